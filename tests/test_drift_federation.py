"""Drift in a federation: the server notices it, and what follows every party does in the same round."""

from __future__ import annotations

import json

import numpy as np
import optax
import pytest
from river.base import BinaryDriftDetector

import anabranch as ab
from anabranch.broker.credentials import Credentials
from anabranch.config import party as partyfile
from anabranch.config.load import load
from anabranch.config.runtime_options import RuntimeOptions
from anabranch.net import Expected, Server
from anabranch.parties import assemble
from anabranch.parties import build_party as own
from anabranch.protocol.server import drift as watching
from anabranch.serving.metrics import Metrics
from anabranch.serving.status import server_status
from anabranch.simulation.drift_detection import Detect, Detection, Watch
from conversations import bits_of, check_same, check_steps, play
from federations import UPDATES, Chaos, Setting, trained
from late_federations import LateWorld
from problems import bits
from real_federations import RealFederation, same, simulate, write_run


class EveryError(BinaryDriftDetector):
    """Remembers nothing, so a server that begins again notices what it would have."""

    def update(self, x):
        self._drift_detected = bool(x)


@pytest.fixture
def every_error(monkeypatch):
    monkeypatch.setattr("anabranch.simulation.drift_detection._named", lambda name: EveryError)


DLR = UPDATES[1]
SOON = {"threshold": 1.5, "min_instances": 5}
RESET = Detect(on_drift="reset", every=2)
BOOST = Detect(on_drift="boost", boost=1.5, boost_rounds=1, every=3)
"""They begin and end all the time: every other block of so few rounds has no error in it."""


def check_changes(log, detect):
    """What follows begins and ends, and nowhere but at a multiple of ``every``."""
    changes = [(each.emptied, each.factor) for each in log]
    at = [t for t in range(1, len(log)) if changes[t] != changes[t - 1]]
    if detect.on_drift == "boost":
        assert {factor for _, factor in changes} == {1.0, detect.boost}
        assert all(t % detect.every == 0 for t in at)
    else:
        emptied = [t for t, each in enumerate(log) if each.emptied]
        assert all(t % detect.every == 0 for t in emptied)
        assert 0 < len(emptied) < len(log) // detect.every
    assert len(at) > 4


@pytest.mark.parametrize(
    "setting",
    [
        Setting(DLR, ab.Random(0.3), detect=RESET),
        Setting(UPDATES[2], ab.Fixed(2), detect=RESET),
        Setting(DLR, ab.Event(0.1), detect=BOOST),
        Setting(UPDATES[0], ab.Random(0.5), power=0.1, detect=BOOST),
        Setting(UPDATES[3], ab.Full(), rounds=150, detect=BOOST),
    ],
    ids=["reset", "reset of the server alone", "boost", "boost of a falling rate", "boost of SLR"],
)
def test_what_follows_gives_the_bits_of_the_simulator(setting, every_error):
    world, predictions = play(setting)
    check_same(setting, world, predictions)
    plain = Setting(setting.update, setting.activation, setting.rounds, power=setting.power).simulated()
    assert trained(world.server, world.clients) != bits(plain.model)
    noticed = setting.simulated().detections
    assert [each.round for each in world.server.training.watch.detections] == [each.round for each in noticed] != []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("detect", [RESET, BOOST], ids=["reset", "boost"])
def test_the_same_bits_where_parties_die(detect, seed, every_error):
    setting = Setting(DLR, ab.Random(0.4), rounds=150, detect=detect)
    world = Chaos(setting, seed, kills=15, every=40)
    world.run()
    assert 0 in world.deaths
    check_same(setting, world, world.predictions)
    check_changes(world.log, detect)
    found, expected = (
        [(each.round, each.what) for each in detections]
        for detections in (world.server.training.watch.detections, setting.simulated().detections)
    )
    assert found == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "detect",
    [
        Detect("PageHinkley", on_drift="reset", every=2, options=SOON),
        Detect("PageHinkley", on_drift="boost", boost=1.5, boost_rounds=4, every=4, options=SOON),
    ],
    ids=["reset", "boost"],
)
def test_what_a_detector_has_seen_survives_the_server(detect, seed):
    setting = Setting(DLR, ab.Random(0.4), rounds=150, detect=detect)
    world = Chaos(setting, seed, kills=15, every=40)
    world.run()
    assert 0 in world.deaths
    assert setting.simulated().detections
    check_same(setting, world, world.predictions)


@pytest.mark.parametrize("stored", [False, True], ids=["fresh", "stored"])
@pytest.mark.parametrize("detect", [RESET, BOOST], ids=["reset", "boost"])
def test_the_same_bits_where_labels_come_late(detect, stored, every_error):
    setting = Setting(DLR, ab.Random(0.5), rounds=120, detect=detect)
    world = LateWorld(setting, 0, [5] * 120, stored=stored, kills=6, every=60)
    world.run()
    assert len(world.deaths) > 3
    check_changes(world.log, detect)
    simulated = setting.simulated(label_delay=5, label_learning="stored" if stored else "fresh")
    assert trained(world.server, world.clients) == bits(simulated.model)


@pytest.mark.parametrize("detect", [RESET, BOOST], ids=["reset", "boost"])
def test_with_many_rounds_under_way_each_follows_its_own(detect, every_error):
    setting = Setting(DLR, ab.Random(0.5), rounds=200, in_flight=8, detect=detect)
    world = Chaos(setting, 1, kills=10, every=12)
    world.run()
    check_steps(setting, world.server, world.clients, world.log)
    check_changes(world.log, detect)


@pytest.mark.parametrize("detect", [RESET, BOOST], ids=["reset", "boost"])
def test_the_log_is_played_as_it_was_whatever_is_watched_now(detect, every_error):
    """A person may change what is watched between two starts of the server."""
    setting, log, saved = Setting(DLR, ab.Full(), rounds=60, detect=detect), [], []

    def played(each):
        log.extend(each.records)
        if len(log) == 20:
            saved.append(world.server.state())

    world = setting.in_memory(played=played)
    world.run()
    for other in (None, Detect(on_drift="boost", boost=3.0, every=5)):
        server = Setting(DLR, ab.Full(), rounds=60, detect=other).server()
        server.restore(*saved[0])
        server.replay(log[20:])
        assert bits_of(server) == bits_of(world.server)
        for one, seat in zip(server.seats, world.server.seats, strict=True):
            of = [(t, sent.factor, sent.emptied) for t, sent in one.outbox.items()]
            assert of == [(t, sent.factor, sent.emptied) for t, sent in seat.outbox.items()]
        again = setting.server()
        again.restore(*server.state())
        noticed = again.training.watch.detections
        expected = world.server.training.watch.detections
        assert noticed == (expected if other else [each for each in expected if each.round <= 20]) != []


@pytest.mark.parametrize("on_drift", ["reset", "boost"])
def test_what_was_only_reported_sets_off_nothing_later(on_drift, every_error):
    told = Setting(DLR, ab.Full(), rounds=60, detect=Detect())
    world, _ = play(told)
    assert world.server.training.watch.detections
    server = Setting(DLR, ab.Full(), detect=Detect(on_drift=on_drift, every=20)).server()
    server.restore(*world.server.state())
    assert server.training.watch.begin(60) is False
    assert server.training.watch.factor == 1


def test_a_round_that_begins_twice_begins_alike():
    """What is not finite ends a run in a round, which is played again by the next one."""
    watch = Watch(RESET, clients=2, seed=0)
    watch.add(np.ones(1, bool), recorded=[Detection(1, "error", None, 0.0, 1.0)])
    assert watch.begin(2)
    again = Watch(RESET, clients=2, seed=0)
    again.restore(json.loads(json.dumps(watch.state())))
    assert again.begin(2)
    assert not again.begin(4)


@pytest.mark.parametrize(
    "detect",
    [
        {"on_drift": "reset", "every": 50},
        {"on_drift": "boost", "boost": 0.5, "boost_rounds": 200, "every": 50},
    ],
    ids=["reset", "boost"],
)
def test_what_follows_is_the_simulators_where_parties_are_killed(tmp_path, detect):
    """The detector has seen 600 of 700 rounds when the server dies."""
    once = {"detector": "DummyDriftDetector", "options": {"t_0": 700}}
    run = write_run(tmp_path / "data", clients=2, rounds=1500, detect=detect | once)
    with RealFederation(tmp_path / "fed", run) as federation:
        federation.start(*federation.names)
        federation.wait_for_rounds(600)
        federation.kill("server")
        federation.start("server")
        federation.wait_for_rounds(750)
        federation.kill("client-1")
        federation.start("client-1")
        assert federation.wait() == [0] * 3
        same(federation.result(), simulate(run))


def test_a_federation_notices_what_the_simulator_does(tmp_path):
    """And says so in its status, its log and its result."""
    detect = {"watch": ["error", "embedding"], "options": {"delta": 0.01}}
    run = write_run(tmp_path / "data", clients=2, rounds=1500, detect=detect)
    with RealFederation(tmp_path / "fed", run) as federation:
        federation.start(*federation.names)
        assert federation.wait() == [0] * 3
        result, status, log = federation.result(), federation.status(), federation.log("server")
    expected = simulate(run)
    same(result, expected)
    noticed = [(each.round, each.what, each.client) for each in expected.detections]
    assert [(each.round, each.what, each.client) for each in result.detections] == noticed != []
    for one, other in zip(result.detections, expected.detections, strict=True):
        assert (one.before, one.after) == pytest.approx((other.before, other.after), rel=1e-4)
    assert status["drifts"] == len(noticed)
    for each in result.detections:
        assert f"drift was noticed after round {each.round:,}: {each}" in log


@pytest.mark.parametrize(
    ("detect", "follows"),
    [
        ({}, ""),
        ({"on_drift": "reset"}, "; windows are emptied"),
        ({"on_drift": "boost", "boost": 2.5}, "; learning rates x 2.5 for 1,000 rounds"),
    ],
)
def test_the_log_says_what_follows(tmp_path, caplog, detect, follows):
    run = write_run(tmp_path, clients=2, rounds=10, detect=detect)
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("bank", "shop"))
    party = assemble.server_party(assemble.replay(load(run)), credentials, tmp_path / "server", RuntimeOptions())
    party.watch.add(np.ones(1, bool), recorded=[Detection(1003, "error", None, 0.1, 0.2)])
    party._tell_drifts()
    party._log_file.close()
    (said,) = [each.getMessage() for each in caplog.records if "drift was noticed" in each.getMessage()]
    assert said == f"drift was noticed after round 1,003: {party.watch.detections[0]}{follows}"


def test_what_is_noticed_again_and_again_is_kept_and_said_within_bounds(tmp_path, caplog, monkeypatch):
    """A client whose embeddings vary as it likes fills neither checkpoints nor the log."""
    monkeypatch.setattr(watching, "KEPT", 20)
    run = write_run(tmp_path, clients=2, rounds=10, detect={"watch": ["embedding"]})
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("bank", "shop"))
    party = assemble.server_party(assemble.replay(load(run)), credentials, tmp_path / "server", RuntimeOptions())
    noticed = [Detection(i + 1, "embedding", 1 + i % 2, 0.1, 0.2) for i in range(1000)]
    for i in range(0, 1000, 50):
        party.watch.add(np.ones(50, bool), recorded=noticed[i : i + 50])
        party._tell_drifts()
    party._log_file.close()
    assert party.watch.detections == noticed[-20:]
    again = Watch(Detect(watch=("embedding",)), clients=2, seed=0)
    again.restore(json.loads(json.dumps(party.watch.state())))
    assert (again.detections, again.counts) == (noticed[-20:], {("embedding", 1): 500, ("embedding", 2): 500})
    said = [each.getMessage() for each in caplog.records if "drift was noticed" in each.getMessage()]
    assert len(said) == 10  # of each client so many at once
    assert server_status(party, 0.0)["drifts"] == 1000


def test_what_a_server_noticed_is_a_metric(tmp_path):
    run = write_run(tmp_path, clients=2, rounds=10, detect={})
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("bank", "shop"))
    party = assemble.server_party(assemble.replay(load(run)), credentials, tmp_path / "server", RuntimeOptions())
    noticed = [Detection(3, "error", None, 0.1, 0.2), *[Detection(5, "embedding", 2, 0.1, 0.2)] * 2]
    party.watch.add(np.ones(1, bool), recorded=noticed)
    lines = Metrics(party).text().decode().splitlines()
    assert 'anabranch_drifts_total{client="",what="error"} 1.0' in lines
    assert 'anabranch_drifts_total{client="shop",what="embedding"} 2.0' in lines


def test_a_server_with_labels_of_its_own_watches_too(tmp_path):
    """By its file, and in Python."""
    (tmp_path / "labels.csv").write_text("event,label\na,0\nb,1\n")
    settings = {
        "connection": "connection.toml",
        "folder": "server",
        "labels": {"path": "labels.csv", "event": "event", "label": "label"},
        "model": {"name": "linear", "classes": 2},
        "clients": [{"name": "bank", "embedding": 2}, {"name": "shop", "embedding": 2}],
        "detect": {"watch": ["embedding"], "options": {"delta": 0.01}},
    }
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("bank", "shop"))
    file = partyfile.check(settings, tmp_path / "server.toml")
    party = own.server_party(file, credentials, tmp_path / "server")
    assert party.watch.detect == Detect(watch=("embedding",), options={"delta": 0.01})
    nothing_to_empty = {**settings, "detect": {"on_drift": "reset"}, "update": {"name": "OGD"}}
    file = partyfile.check(nothing_to_empty, tmp_path / "server.toml")
    with pytest.raises(ab.ConfigError, match="the update OGD keeps none"):
        own.server_party(file, credentials, tmp_path / "other")
    with pytest.raises(ab.ConfigError, match="which has rates of its own"):
        Server(
            credentials,
            tmp_path / "third",
            model=ab.models.linear((2, 2), 2).server,
            clients=[Expected(2), Expected(2)],
            labels=[("a", 0)],
            learning_rate=optax.sgd(0.1),
            detect=Detect(on_drift="boost"),
        )
