"""Who does not answer in a conversation, and what stands in for it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest

import anabranch as ab
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note, Played, Send, Stop
from anabranch.protocol.memory import InMemory
from anabranch.protocol.server.missing import HOW, Last, Mean, Skip, Wait, Zero
from conversations import answer, answered, bits_of, check_same, heard, joined, said
from federations import UPDATES, Chaos, Setting, follow, name, noted, sent, trained


class Quiet(InMemory):
    """Client 2, or whoever else is named, says nothing in some rounds."""

    away = (2,)
    quiet = range(10, 20)
    until = math.inf

    def do(self, party, actions):
        silent = party in self.away and self.server.rounds in self.quiet and self.now < self.until
        super().do(party, [each for each in actions if not isinstance(each, Send)] if silent else actions)


def quiet(policy, **options):
    setting = Setting(activation=ab.Full(), rounds=40, missing=(Wait(), policy, Wait(), Wait()), **options)
    log, predictions = [], []

    def played(each):
        log.extend(each.records)
        predictions.extend(each.predictions)

    return setting, Quiet(setting.server(), setting.clients(), setting.samples(), played=played), log, predictions


@pytest.mark.parametrize("policy", [Zero(), Mean(), Skip(), Last(4)], ids=str)
def test_a_silent_client_is_replaced_and_comes_back(policy):
    setting, world, log, predictions = quiet(policy)
    world.run()
    how = [HOW[record.missing[1]] for record in log]
    back = how.index("answered", 10)
    assert back in (20, 21), "its first answer may be too late for its round"
    assert how[:10] + how[back:] == ["answered"] * (50 - back)
    expected = ["last"] * 4 + ["zero"] * (back - 14) if policy == Last(4) else [str(policy)] * (back - 10)
    assert how[10:back] == expected
    answers = [record.embeddings[5:10] for record in log[:10]]
    mean = np.mean(np.array(answers, np.float64), axis=0).astype(np.float32)
    values = {"zero": np.zeros(5, np.float32), "mean": mean, "last": answers[-1]}
    for t in range(10, back):
        if how[t] == "skip":
            assert not log[t].embeddings.size
            assert not log[t].activated.any()
            assert predictions[t] is None
        else:
            np.testing.assert_array_equal(log[t].embeddings[5:10], values[how[t]])
            assert log[t].activated.tolist() == [True, False, True, True]
    assert noted(world)["missed"] == 1
    assert world.now < 3, "a client that is away is not waited for again"
    assert trained(world.server, world.clients) == follow(setting, log)
    assert Counter(HOW[code] for code in log[12].missing) == {"answered": 3, how[12]: 1}


@pytest.mark.parametrize("policy", [Zero(), Last(4)], ids=str)
def test_where_all_are_away_every_round_waits_for_its_deadline(policy):
    """Else the stream would be gone, with nobody in it, before the first of them is back."""
    deadline = 2.0
    setting, log, times = Setting(activation=ab.Full(), rounds=40, missing=(policy,) * 4), [], []

    def played(each):
        log.extend(each.records)
        times.extend([world.now] * len(each.records))

    server = setting.server(deadline=deadline)
    world = Quiet(server, setting.clients(), setting.samples(), played=played)
    world.away = (1, 2, 3, 4)
    world.run()
    alone = [t for t, record in enumerate(log) if all(HOW[how] != "answered" for how in record.missing)]
    assert alone[0] == 10
    assert {*range(10, 20)} <= {*alone}
    assert [times[t] - times[t - 1] for t in alone] == [deadline] * len(alone)
    assert all(record.missing == (0, 0, 0, 0) for t, record in enumerate(log) if t < 10 or t > 21)
    assert len(log) == 40
    assert trained(world.server, world.clients) == follow(setting, log)


def test_a_client_that_is_waited_for_is_asked_again():
    setting, world, log, predictions = quiet(Wait())
    world.until = 3.5
    world.run()
    assert all(record.missing == (0, 0, 0, 0) for record in log)
    assert world.now >= 3.5
    assert noted(world)["missed"] == 1
    check_same(setting, world, predictions)


@pytest.mark.parametrize("seed", range(4))
def test_policies_under_loss_and_death(seed):
    """Who was replaced depends on time; that the parameters follow from the log does not."""
    policies = [(Wait(), Zero(), Mean(), Last(5)), (Skip(), Wait(), Skip(), Mean())][seed % 2]
    setting = Setting(UPDATES[1], ab.Random(0.5), rounds=150, missing=policies)
    world = Chaos(setting, seed, lost=0.1, kills=12, every=40)
    world.run()
    assert [record.event for record in world.log] == [name(t) for t in range(150)]
    replaced = {HOW[how] for record in world.log for how in record.missing}
    assert len(replaced) > 2
    assert trained(world.server, world.clients) == follow(setting, world.log)


@pytest.mark.parametrize("what", ["parameters", "features"])
def test_a_client_whose_parameters_are_not_finite_cannot_go_on(what):
    """Nothing that it could send would be usable again; features that are not finite are those of an event."""
    setting = Setting(activation=ab.Full(), rounds=15, missing=(Wait(), Zero(), Wait(), Wait()))
    log, stops, world = [], [], None

    def do(party, actions):
        stops.extend(each for each in actions if party == 2 and isinstance(each, Stop))
        InMemory.do(world, party, actions)

    def played(each):
        log.extend(each.records)
        if world.server.rounds == 5 and what == "parameters":
            client = world.clients[1].compute
            client.restore({name: array * np.float32(np.nan) for name, array in client.arrays().items()}, client.rounds)

    world = setting.in_memory(played=played)
    world.do = do
    if what == "features":
        known = world.clients[1]._look
        world.clients[1]._look = lambda event: known(event) * np.float32(np.inf if event == name(5) else 1)
    world.run()
    how = [HOW[record.missing[1]] for record in log]
    if what == "features":
        assert how == ["answered"] * 5 + ["zero"] + ["answered"] * 9
        assert stops == []
        return
    assert how == ["answered"] * 5 + ["zero"] * 10
    stop = stops[0]
    assert (stop.failed, stop.diverged) == (True, True)
    assert stop.reason == "the embeddings of client 2 are not finite since round 5: try a smaller learning rate"


def test_last_and_mean_know_of_the_rounds_just_before():
    """Two rounds become complete at once: what stands in for client 2 in the second is its answer in the first."""
    for policy in (Last(5), Mean()):
        setting = Setting(activation=ab.Full(), in_flight=2, missing=(Wait(), policy, Wait(), Wait()))
        server = joined(setting)
        server.open([name(0), name(1)], [0, 1], 0.0)
        ones = np.ones((1, 5), np.float32)
        for client in (1, 3, 4):
            server.receive(client, answer(server, client, (1,), ones), 0.0)
        server.receive(2, m.Unknown(server.seats[1].session, (1,)), 0.0)
        for client in (1, 2, 3):
            assert not server.receive(client, answer(server, client, (0,), client * ones), 0.0)
        first, second = [
            each for each in server.receive(4, answer(server, 4, (0,), ones), 0.0) if isinstance(each, Played)
        ]
        np.testing.assert_array_equal(first.records[0].embeddings[5:10], 2 * ones[0])
        np.testing.assert_array_equal(second.records[0].embeddings[5:10], 2 * ones[0])
        assert HOW[second.records[0].missing[1]] == str(policy).split()[0]


def test_an_event_that_a_client_knows_nothing_of():
    """It says so at once, and its policy decides; with wait, it is asked again after the deadline."""
    setting = Setting(activation=ab.Full(), rounds=30, missing=(Wait(), Mean(), Wait(), Wait()))
    log = []
    world = setting.in_memory(played=lambda each: log.extend(each.records))
    known = world.clients[1]._look
    world.clients[1]._look = lambda event: None if event == name(12) else known(event)
    world.run()
    assert [HOW[record.missing[1]] for record in log] == ["answered"] * 12 + ["mean"] + ["answered"] * 17
    assert noted(world)["unknown"] == 1
    assert world.now < 1
    patient, asked = Setting(activation=ab.Full(), rounds=30), []
    world = patient.in_memory()
    look = world.clients[1]._look

    def late(event):
        asked.append(event)
        return None if event == name(12) and asked.count(event) < 4 else look(event)

    world.clients[1]._look = late
    world.run()
    assert noted(world)["unknown"] == 1  # however often it is asked
    assert world.now >= 2


@pytest.mark.parametrize("missing", [Wait(), Mean()], ids=str)
def test_nobody_waits_for_a_client_that_cannot_use_a_value_of_an_event(missing):
    setting = Setting(activation=ab.Full(), rounds=30, missing=(Wait(), missing, Wait(), Wait()))
    log = []
    world = setting.in_memory(played=lambda each: log.extend(each.records))
    client = world.clients[1]
    known = client._look
    client._look = lambda event: None if event == name(12) else known(event)
    client._is_unusable = lambda event: event == name(12)
    world.run()
    how = "skip" if missing == Wait() else "mean"
    assert [HOW[record.missing[1]] for record in log] == ["answered"] * 12 + [how] + ["answered"] * 17
    assert noted(world)["unknown"] == 1
    assert world.now < 1


def test_under_slr_a_value_that_cannot_be_used_ends_training_and_says_why():
    setting = Setting(ab.SLR(3), activation=ab.Full(), rounds=5)
    server = joined(setting)
    server.open([b"0"], [0], 0.0)
    actions = server.receive(2, m.Unusable(server.seats[1].session, (b"0",)), 0.0)
    (stop,) = [each for each in actions if isinstance(each, Stop)]
    assert stop.failed
    assert "client 2: a value of this event cannot be used there" in stop.reason


@pytest.mark.parametrize("missing", [Zero(), Skip()], ids=str)
def test_an_event_that_nobody_knows_is_as_the_policies_say(missing):
    setting = Setting(activation=ab.Full(), rounds=5, missing=(missing,) * 4)
    log = []
    world = setting.in_memory(played=lambda each: log.extend(each.records))
    for client in world.clients:
        known = client._look
        client._look = lambda event, known=known: None if event == name(2) else known(event)
    world.run()
    assert [[HOW[how] for how in record.missing] for record in log] == [
        [str(missing) if i == 2 else "answered"] * 4 for i in range(5)
    ]
    assert world.now < 1


@pytest.mark.parametrize("how", ["its own event", "an event whose label comes later"])
def test_parameters_that_are_not_finite_are_noticed_wherever_an_embedding_is_sent(how):
    setting = Setting()
    server, client = setting.server(), setting.client(1)
    (hello,) = sent(client.hello(), m.Hello)
    client.receive(sent(server.receive(1, hello, 0.0), m.Welcome))
    arrays = client.compute.arrays()
    client.compute.restore({name: array * np.float32(np.nan) for name, array in arrays.items()}, 0)
    if how == "its own event":
        actions = client.happened(b"0")
    else:
        actions = client.receive(sent(server.questions.ask([b"0"], 0.0, first=0), m.Ask))
    (stop,) = actions
    assert isinstance(stop, Stop)
    assert stop.diverged


def test_a_client_that_dies_once_it_has_said_that_it_knows_nothing_is_away():
    server = joined(Setting())
    server.open([b"0"], [0], 0.0)
    for client in (2, 3, 4):
        server.receive(client, answer(server, client, (0,), np.ones((1, 5), np.float32)), 0.1)
    for now in (0.1, 1.2):
        server.receive(1, lacks(server, 1, 0), now)
        server.tick(now + 1.05)
        assert (server.unknowing(), server.awaited()) == ([1], [])
    server.tick(3.5)
    assert (server.unknowing(), server.awaited()) == ([], [1])


def test_an_event_that_nobody_knows_is_waited_for_by_default():
    """And it is said for whom."""
    server = joined(Setting(activation=ab.Full(), missing=(Wait(), Zero(), Wait(), Wait())))
    server.open([b"0", b"1"], [0, 0], 0.0)
    notes = [each for i in (1, 2, 3) for each in server.receive(i, lacks(server, i, 0, 1), 0.1)]
    said = [each.text for each in notes if isinstance(each, Note)]
    assert said[0] == "client 1: it has no features for this event, and is waited for, since its missing is 'wait'"
    assert said[1] == "client 2: it has no features for this event"
    assert server.unknowing() == []  # they may know it in a moment
    server.tick(1.1)
    assert (server.unknowing(), server.awaited()) == ([1, 3], [4])  # the last has not answered
    server.receive(1, answer(server, 1, (0,), np.ones((1, 5), np.float32)), 1.2)
    assert server.unknowing() == [3]


@pytest.mark.parametrize("missing", [Zero(), Wait()], ids=str)
def test_a_client_that_is_owed_a_derivative_takes_part_in_the_round_of_its_own_event(missing):
    """What it tells of goes by the parameters from before; it learns so, and answers once it has stepped."""
    nobody = ab.Recorded(np.zeros((300, 4), bool))
    setting = Setting(activation=nobody, missing=(missing, Wait(), Wait(), Wait()))
    server, client = joined(setting), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    for t in range(2):
        said(server, 1, client.happened(name(t)))
    server.open([name(0)], [0], 5.0)
    answered(server, (2, 3, 4), 0, 5.0)  # the derivative is lost, and so is the next query
    server.open([name(1)], [0], 5.1)
    assert server.rounds == 1
    said(server, 1, client.hello(), 6.0)  # what the server says to that is lost, too
    told = client.receive(heard(said(server, 1, client.hello(), 6.2), 1))
    assert server.seats[0].owed
    assert client.receive(heard(said(server, 1, told, 6.2), 1)) == []
    answered(server, (2, 3, 4), 1, 6.3)
    mine = client.receive(heard(server.tick(6.5), 1))
    assert [type(each.message) for each in mine] == [m.Embeddings]
    (played,) = [each for each in said(server, 1, mine, 6.5) if isinstance(each, Played)]
    assert (played.records[0].activated[0], played.records[0].missing[0]) == (True, 0)
    assert played.records[0].applied[0] == 0


def lacks(server, client: int, *rounds: int) -> m.Unknown:
    return m.Unknown(server.seats[client - 1].session, rounds)


def test_the_log_is_played_again_in_blocks_of_any_length():
    setting, world, log, predictions = quiet(Skip())
    world.run()
    for in_flight in (1, 8):
        again = dataclasses.replace(setting, in_flight=in_flight).server()
        played = again.replay(log)
        assert list(played.predictions) == predictions
        assert again.rounds == 40
        assert bits_of(again) == bits_of(world.server)
