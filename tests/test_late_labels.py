"""Labels that come late, in a conversation: predicted at the event, learnt from when the label is there."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.simulation.delays import UniformDelay
from federations import UPDATES, Setting, noted, trained
from late_federations import LateWorld, played_by_hand
from problems import bits

CALM = {"lost": 0.0, "doubled": 0.0, "late": 0.0}
ACTIVATIONS = (ab.Random(0.5), ab.Event(0.1), ab.Fixed(2), ab.Full())


def check(setting: Setting, delays: list[int], world: LateWorld, *, stored: bool) -> None:
    parameters, predictions = played_by_hand(setting, delays, stored=stored)
    assert world.predictions == predictions
    assert trained(world.server, world.clients) == parameters
    assert len(world.log) == setting.rounds


def test_fresh_labels_lead_to_the_parameters_without_a_delay():
    setting = Setting(UPDATES[1], ab.Event(0.1), rounds=120)
    world = LateWorld(setting, 0, [9] * setting.rounds, stored=False, **CALM)
    world.run()
    simulated = setting.simulated()
    assert trained(world.server, world.clients) == bits(simulated.model)
    assert world.predictions != simulated.predictions.tolist()


@pytest.mark.parametrize("delay", [7, UniformDelay(0, 20)], ids=repr)
@pytest.mark.parametrize(
    ("update", "stored"), [*((each, False) for each in UPDATES), *((each, True) for each in UPDATES[:3])], ids=repr
)
def test_the_bits_of_the_simulator(update, delay, stored):
    setting = Setting(update, ACTIVATIONS[0], rounds=120)
    simulated = setting.simulated(label_delay=delay, label_learning="stored" if stored else "fresh")
    delays = [7] * 120 if delay == 7 else delay.draw(0, 0, 120).tolist()
    world = LateWorld(setting, 0, delays, stored=stored, **CALM)
    world.run()
    assert world.predictions == simulated.predictions.tolist()
    assert trained(world.server, world.clients) == bits(simulated.model)
    behind = [seat.max_delay for seat in world.server.seats]
    assert behind == simulated.late_labels.steps_behind.tolist()
    assert (max(behind) > 0) == stored
    assert noted(world).keys() <= {"joined", "left", "old session"}


@pytest.mark.parametrize("stored", [False, True], ids=["fresh", "stored"])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_where_messages_are_lost_and_parties_die(seed, stored):
    setting = Setting(UPDATES[1], ACTIVATIONS[seed], rounds=100)
    delays = np.random.default_rng(seed).integers(0, 20, setting.rounds).tolist()
    world = LateWorld(setting, seed, delays, stored=stored, kills=12, every=40)
    world.run()
    assert len(world.deaths) >= 8
    check(setting, delays, world, stored=stored)
