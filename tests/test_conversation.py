"""The conversation of a server and its clients, carried in memory."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

import anabranch as ab
from anabranch.errors import ConfigError
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note
from anabranch.protocol.client import conversation as client_side
from anabranch.protocol.client.inputs import InputsInMemory
from anabranch.protocol.server import conversation as server_side
from anabranch.protocol.server.client_session import Sent
from anabranch.protocol.server.missing import Wait, Zero
from anabranch.storage.checkpoint import load, save
from conversations import answer, check_same, check_steps, hello_of, joined, play
from federations import UNEQUAL, UPDATES, Chaos, Setting, name, noted, sent

ACTIVATIONS = (
    ab.Full(),
    ab.Random(0.5),
    ab.Event(0.1),
    ab.Fixed(2),
    ab.Recorded(np.random.default_rng(5).random((300, 4)) < 0.3),
)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_conversation_gives_the_bits_of_the_simulator(update, activation):
    setting = Setting(update, activation)
    world, predictions = play(setting)
    check_same(setting, world, predictions)
    assert noted(world) == {"joined": 12, "left": 4, "old session": 4}, "nothing but that both sides called first"


@pytest.mark.parametrize(
    "setting",
    [
        Setting(UPDATES[1], ab.Random((0.2, 0.5, 0.9, 0.4)), shapes=UNEQUAL),
        Setting(UPDATES[1], wire="float16"),
        Setting(UPDATES[2], wire="bfloat16"),
        Setting(UPDATES[1], power=0.5),
    ],
    ids=["unequal", "float16", "bfloat16", "falling rate"],
)
def test_the_same_bits_for_other_shapes_wires_and_rates(setting):
    check_same(setting, *play(setting))


@pytest.mark.parametrize(
    ("update", "activation"),
    [
        (UPDATES[0], ab.Event(0.1)),
        (UPDATES[1], ab.Random(0.5)),
        (UPDATES[1], ab.Recorded(np.random.default_rng(5).random((5000, 4)) < 0.3)),
        (UPDATES[2], ab.Full()),
        (UPDATES[3], ab.Fixed(2)),
    ],
    ids=repr,
)
def test_the_same_bits_after_5000_rounds(update, activation):
    setting = Setting(update, activation, rounds=5000, rate=0.01)
    check_same(setting, *play(setting))


@pytest.mark.parametrize("activation", [ab.Random((0.2, 0.5, 0.9, 0.4)), ab.Event(0.1)], ids=repr)
def test_a_client_decides_by_itself_as_the_simulator_does(activation):
    setting = Setting(activation=activation, rounds=100)
    decided = [
        [activation.decide(0, m, t, x[t]) for m, x in enumerate(setting.features, 1)] for t in range(setting.rounds)
    ]
    np.testing.assert_array_equal(decided, setting.mask)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_the_same_bits_where_messages_are_lost_and_parties_die(update, seed):
    setting = Setting(update, ACTIVATIONS[seed], rounds=150)
    world = Chaos(setting, seed, kills=15, every=40)
    world.run()
    assert len(world.deaths) >= 10
    check_same(setting, world, world.predictions)


def test_the_same_seed_gives_the_same_notes():
    worlds = [Chaos(Setting(UPDATES[1], rounds=100), 3, kills=8, every=40) for _ in range(2)]
    for world in worlds:
        world.run()
    one, other = worlds
    assert one.notes == other.notes
    assert one.deaths == other.deaths
    assert one.log == other.log
    assert one.now == other.now


# -- more than one round under way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("update", "in_flight"), [(UPDATES[1], 8), (UPDATES[0], 64), (UPDATES[2], 8)], ids=lambda each: repr(each)
)
def test_with_many_rounds_under_way_each_is_played_once(update, in_flight, seed):
    setting = Setting(update, ACTIVATIONS[seed + 1], rounds=200, in_flight=in_flight)
    world = Chaos(setting, seed, kills=15, every=100 // in_flight)
    world.run()
    assert len(world.deaths) >= 10
    assert [record.event for record in world.log] == [name(t) for t in range(200)]
    np.testing.assert_array_equal([record.activated for record in world.log], setting.mask)
    assert 0 < max(seat.max_delay for seat in world.server.seats) < in_flight
    check_steps(setting, world.server, world.clients, world.log)


def test_slr_takes_one_round_at_a_time_and_waits_for_everyone():
    with pytest.raises(ConfigError, match="needs in_flight = 1 and missing = 'wait'"):
        Setting(UPDATES[3], in_flight=2).server()
    with pytest.raises(ConfigError, match="needs in_flight = 1 and missing = 'wait'"):
        Setting(UPDATES[3], missing=(Wait(), Zero(), Wait(), Wait())).server()


def test_queries_that_wait_at_a_client_are_answered_in_one_call(monkeypatch):
    setting = Setting(activation=ab.Full(), in_flight=4)
    client = setting.client(1)
    client.receive(sent(joined(setting).receive(1, hello_of(client), 0.0), m.Welcome))
    calls, encode = [], client.compute.encode
    monkeypatch.setattr(client.compute, "encode", lambda rounds, x: calls.append(len(x)) or encode(rounds, x))
    queries = [m.Query(1, first, (name(first), name(first + 1)), None) for first in (0, 2)]
    (answered,) = sent(client.receive(queries), m.Embeddings)
    assert answered.rounds == (0, 1, 2, 3)
    assert calls == [4]


# -- what the chaos has found ------------------------------------------------------------------------------------------


def test_a_client_that_was_asked_twice_can_use_either_answer():
    """Between two answers for round 2 it has stepped, and the server has taken the first."""
    setting = Setting(activation=ab.Full(), in_flight=4)
    server, client = joined(setting), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    query = m.Query(1, 0, tuple(name(t) for t in range(3)), None)
    (first,) = sent(client.receive([query]), m.Embeddings)
    v = np.ones((1, 5), np.float32)
    derivative = m.Derivatives(client._session, -1, (0,), (-1,), (), v)
    assert client.receive([derivative]) == []
    (second,) = sent(client.receive([dataclasses.replace(query, first=2, events=(name(2),))]), m.Embeddings)
    assert (first.applied, second.applied) == (-1, 0)
    assert not np.array_equal(first.values[2], second.values[0])
    for t, belongs in ((1, -1), (2, -1)):
        assert client.receive([m.Derivatives(client._session, t - 1, (t,), (belongs,), (), v)]) == []
    assert client.applied == 2


def test_a_client_that_starts_again_stops_where_an_embedding_belongs():
    """Derivatives 0 to 3 come again in one message, and the embedding of round 3 was made after the step of round 1."""
    setting = Setting(activation=ab.Full(), in_flight=4)
    v = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    before = setting.client(1)
    before.receive([m.Welcome(before.hello()[0].message.session, 1, setting.terms, 5, "", 0)])
    before.receive([m.Query(1, 0, (name(0), name(1), name(2)), None)])
    for t in (0, 1):
        before.receive([m.Derivatives(before._session, t - 1, (t,), (-1,), (), v[t : t + 1])])
    before.receive([m.Query(1, 3, (name(3),), None)])
    before.receive([m.Derivatives(before._session, 1, (2, 3), (-1, 1), (), v[2:])])
    after = setting.client(1)
    after.receive([m.Welcome(after.hello()[0].message.session, 1, setting.terms, 5, "", 0)])
    events = tuple(name(t) for t in range(4))
    assert after.receive([m.Derivatives(after._session, -1, (0, 1, 2, 3), (-1, -1, -1, 1), events, v)]) == []
    assert (before.applied, after.applied) == (3, 3)
    for mine, theirs in zip(before.compute.arrays().values(), after.compute.arrays().values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_slr_makes_its_window_again_though_newer_samples_are_in_it():
    setting = Setting(UPDATES[3], ab.Full())
    client = setting.client(1)

    def begin(each):
        each.receive([m.Welcome(each.hello()[0].message.session, 1, setting.terms, 5, "", 0)])

    def play(each, t):
        x = setting.features[0][t]
        _, pending = each.compute.encode(np.array([t], np.int32), x[None])
        each.compute.step(np.array([t], np.int32), pending, v[t : t + 1])

    v = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    begin(client)
    for t in range(5):
        client.receive([m.Query(1, t, (name(t),), None)])
        if t < 2:
            client.receive([m.Derivatives(client._session, t - 1, (t,), (t - 1,), (), v[t : t + 1])])
    saved = client.state()  # the derivatives of rounds 2 and 3 are lost, and the window has rounds 3 and 4 in it
    restored = setting.client(1)
    restored.restore(*saved)
    begin(restored)
    again = m.Derivatives(restored._session, 1, (2, 3), (1, 2), (name(2), name(3)), v[2:])
    notes = [each.what for each in restored.receive([again]) if isinstance(each, Note)]
    assert notes == ["gap"], "the events of the window are not there yet"
    begin(restored)
    restored.receive([m.Recall(restored._session, 0, tuple(name(t) for t in range(5)))])
    assert restored.receive([dataclasses.replace(again, session=restored._session)]) == []
    plain = setting.client(1)
    for t in range(4):
        play(plain, t)
    one, other = (
        {name: array.tobytes() for name, array in each.compute.arrays().items() if "model" in name}
        for each in (restored, plain)
    )
    assert one == other


def test_slr_recalls_whole_windows_however_long_they_are(monkeypatch):
    """The client has a checkpoint of before round 40, and what it lacks belongs to the windows of rounds 80 and 81."""
    monkeypatch.setattr(server_side, "REMEMBERED", 50)
    monkeypatch.setattr(server_side, "FORGOTTEN", 30)
    rows = np.zeros((150, 4), bool)
    rows[80:82] = True
    setting, predictions = Setting(ab.SLR(60), ab.Recorded(rows), rounds=150), []
    world = setting.in_memory(played=lambda each: predictions.extend(each.predictions))
    step, saved = world.step, {}

    def restarts():
        step()
        if world.server.rounds == 40:
            saved.setdefault("before", world.clients[0].state())
        elif world.server.rounds == 120 and "after" not in saved:
            saved["after"] = True
            client = setting.client(1, itertools.count(1000))
            client.restore(*saved["before"])
            world.clients[0] = client
            world.do(1, client.hello())

    world.step = restarts
    world.run()
    assert "after" in saved
    check_same(setting, world, predictions)


def test_under_slr_inputs_are_kept_for_as_long_as_the_server_recalls_them(monkeypatch):
    monkeypatch.setattr(client_side, "REMEMBERED", 5)
    monkeypatch.setattr(client_side, "LONG", 1)
    rows, inputs = np.zeros((300, 4), bool), InputsInMemory()
    setting = Setting(ab.SLR(3), ab.Recorded(rows))
    made = setting.client(1)
    client = client_side.ClientConversation(
        made.terms, 1, made.schema, made.compute, made._look, made._decide, made._draw, inputs
    )
    client.receive([m.Welcome(hello_of(client).session, 1, client.terms, 5, "", 0)])
    for t in range(12):
        inputs.put(name(t), setting.features[0][t], None, t)
        assert sent(client.receive([m.Query(1, t, (name(t),), None)]), m.Embeddings)
    assert [t for t in range(12) if inputs.get(name(t))] == [*range(4, 12)]


def test_what_is_kept_for_a_client_comes_back_and_does_not_lengthen_the_manifest(tmp_path):
    setting = Setting(shapes=((8, 5),), missing=(Wait(),))
    one, again, sizes = setting.server(), setting.server(), []
    for t in range(60):
        value, event = np.full(5, t, np.float32), bytes(range(t % 33))
        sent_one = Sent(one.seats[0].before, t - 1, event, value, t % 3 == 0, 1 + t / 7, t % 2 == 0)
        one.seats[0].push(3 * t, sent_one)
        if t in (9, 59):
            sizes.append(len(json.dumps(one.state()[1])))
    assert sizes[1] < sizes[0] + 20, "only numbers of more digits"
    save(tmp_path, *one.state())
    again.restore(*load(tmp_path)[:2])
    assert [*again.seats[0].outbox] == [*one.seats[0].outbox] == [3 * t for t in range(60)]
    for there, here in zip(again.seats[0].outbox.values(), one.seats[0].outbox.values(), strict=True):
        assert there.value.tobytes() == here.value.tobytes()
        assert there._replace(value=None) == here._replace(value=None)
    assert again.seats[0].after(30) == one.seats[0].after(30)


def test_what_is_kept_for_a_client_holds_nothing_else_in_memory():
    """Derivatives of a block of rounds and of all clients come as one array."""
    setting = Setting(activation=ab.Full(), in_flight=4)
    server = joined(setting)
    server.open([name(t) for t in range(4)], [0] * 4, 0.0)
    for client in range(1, 5):
        server.receive(client, answer(server, client, range(4), np.ones((4, 5), np.float32)), 0.0)
    assert server.rounds == 4
    kept = [each.value for seat in server.seats for each in seat.outbox.values()]
    assert len(kept) == 16
    assert all(each.base is None for each in kept)


def test_a_checkpoint_has_what_cannot_be_made_again():
    """The embeddings of rounds 1 and 2 belong to parameters that the client has left by the time of the checkpoint."""
    setting, v = Setting(activation=ab.Full(), in_flight=4), np.ones((2, 5), np.float32)
    before, after = setting.client(1), setting.client(1)
    before.receive([m.Welcome(before.hello()[0].message.session, 1, setting.terms, 5, "", 0)])
    before.receive([m.Query(1, 0, (name(0), name(1), name(2)), None)])
    before.receive([m.Derivatives(before._session, -1, (0,), (-1,), (), v[:1])])
    after.restore(*before.state())
    after.receive([m.Welcome(after.hello()[0].message.session, 2, setting.terms, 5, "", 1)])
    for each in (before, after):
        again = m.Derivatives(each._session, 0, (1, 2), (-1, -1), (name(1), name(2)), v)
        assert each.receive([again]) == []
        assert each.applied == 2
    one, other = ({key: array.tobytes() for key, array in c.compute.arrays().items()} for c in (before, after))
    assert one == other


def test_what_is_kept_of_a_round_is_not_taken_for_another_servers():
    """The server from before had asked for event 0 in round 0; the new one may have another event there."""
    setting = Setting(activation=ab.Full())
    client = setting.client(1)
    client.receive([m.Welcome(client.hello()[0].message.session, 1, setting.terms, 5, "", 0)])
    client.receive([m.Query(1, 0, (name(0),), None)])
    client.receive([m.Welcome(client.hello()[0].message.session, 2, setting.terms, 5, "", 1)])
    bare = m.Derivatives(client._session, -1, (0,), (-1,), (), np.ones((1, 5), np.float32))
    actions = client.receive([bare])
    assert [each.what for each in actions if isinstance(each, Note)] == ["gap"]
    assert client.applied == -1
    client.receive([m.Welcome(client._session, 2, setting.terms, 5, "", 1)])
    assert client.receive([dataclasses.replace(bare, session=client._session, events=(name(7),))]) == []
    plain = setting.client(1)
    _, pending = plain.compute.encode(np.zeros(1, np.int32), setting.features[0][7][None])
    plain.compute.step(np.zeros(1, np.int32), pending, bare.values)
    one, other = ({key: array.tobytes() for key, array in c.compute.arrays().items()} for c in (client, plain))
    assert one == other


def test_a_derivative_is_not_used_before_the_one_that_was_lost():
    setting = Setting(activation=ab.Full(), in_flight=4)
    client = setting.client(1)
    client.receive([m.Welcome(client.hello()[0].message.session, 1, setting.terms, 5, "", 0)])
    client.receive([m.Query(1, 0, (name(0), name(1)), None)])
    actions = client.receive([m.Derivatives(client._session, 0, (1,), (-1,), (), np.ones((1, 5), np.float32))])
    assert [each.what for each in actions if isinstance(each, Note)] == ["gap"]
    assert hello_of(client).applied == client.applied == -1


def test_a_checkpoint_of_other_widths_or_other_features_is_refused():
    server = Setting(shapes=((8, 4), (8, 6), (8, 5), (8, 5))).server()
    with pytest.raises(ValueError, match="an embedding has 5 elements there and 4 here"):
        server.restore(*Setting().server().state())
    with pytest.raises(ValueError, match="the schema of the features is schema 1 there and schema 2 here"):
        Setting().client(2).restore(*Setting().client(1).state())


def test_derivatives_that_can_never_be_used_are_no_storm_of_hellos():
    client = Setting().client(1)
    for expected in (1, 0, 0):  # the carrier says hello again after a while
        if not client.joined:
            hello = hello_of(client)
            client.receive([m.Welcome(hello.session, 1, client.terms, 5, "", 1)])
        lost = m.Derivatives(client._session, -1, (0,), (-1,), (b"gone",), np.ones((1, 5), np.float32))
        actions = client.receive([lost])
        assert [each.what for each in actions if isinstance(each, Note)] == ["gap"]
        assert len(sent(actions, m.Hello)) == expected
        assert not client.joined


def test_rounds_end_with_the_numbers():
    server = joined(Setting())
    server.compute.rounds = m.LAST
    assert (server.room, server.full) == (1, False)
    server.open([b"last"], [0], 0.0)
    assert (server.room, server.full) == (0, True)
