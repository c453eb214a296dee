"""The conversation of a server and its clients, carried in memory."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from federations import UNEQUAL, UPDATES, Chaos, Setting, noted, trained
from problems import bits

ACTIVATIONS = (
    ab.Full(),
    ab.Random(0.5),
    ab.Event(0.1),
    ab.Fixed(2),
    ab.Recorded(np.random.default_rng(5).random((300, 4)) < 0.3),
)


def check_same(setting: Setting, world, predictions) -> None:
    """The conversation came to the simulator's bits."""
    simulated = setting.simulated()
    assert predictions == simulated.predictions.tolist()
    assert trained(world.server, world.clients) == bits(simulated.model)


def play(setting: Setting, **options):
    predictions: list[int | None] = []
    world = setting.in_memory(played=lambda played: predictions.extend(played.predictions), **options)
    world.run()
    return world, predictions


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_conversation_gives_the_bits_of_the_simulator(update, activation):
    setting = Setting(update, activation)
    world, predictions = play(setting)
    check_same(setting, world, predictions)
    assert noted(world) == {"joined": 12, "left": 4, "old session": 4}, "nothing but that both sides called first"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_the_same_bits_where_messages_are_lost_and_parties_die(update, seed):
    activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
    setting = Setting(update, activation, rounds=150)
    world = Chaos(setting, seed, kills=12)
    world.run()
    assert len(world.deaths) == 12
    check_same(setting, world, world.predictions)
