"""The conversation of a server and its clients, carried in memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest

import anabranch as ab
from anabranch.compute import ClientCompute, Rate, ServerCompute
from anabranch.errors import ConfigError
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note, Played, Send, Stop
from anabranch.protocol.memory import InMemory
from anabranch.protocol.missing import HOW, Last, Mean, Skip, Wait, Zero
from anabranch.protocol.server import missing_counts
from federations import UNEQUAL, UPDATES, Chaos, Setting, Told, follow, name, noted, sent, trained
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


def test_the_same_bits_after_5000_rounds():
    setting = Setting(UPDATES[1], ab.Random(0.5), rounds=5000, rate=0.01)
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
    assert max(seat.max_delay for seat in world.server.seats) < in_flight
    check_steps(setting, world.server, world.clients, world.log)


def check_steps(setting, server, clients, log) -> None:
    """Every step was made once: the parameters are, but for rounding, those that the log leads to."""
    expected = in_arrays(setting, log)
    for party, model in zip([server, *clients], expected, strict=True):
        for mine, theirs in zip(party.compute.party.model.layers, model.layers, strict=True):
            np.testing.assert_allclose(mine.weight, theirs.weight, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(mine.bias, theirs.bias, rtol=1e-4, atol=1e-5)


def in_arrays(setting, log) -> list:
    """The parties' models, worked out from the log; each embedding at the parameters that it says it belongs to."""
    rate, widths = Rate(setting.rate), [e for _, e in setting.shapes]
    starts = np.cumsum([0, *widths])
    top = ServerCompute(setting.rule, setting.model.server, int(starts[-1]), rate)
    bottoms = [
        ClientCompute(setting.rule, model, d, rate)
        for model, d in zip(setting.model.clients, setting.widths, strict=True)
    ]
    derivatives = [top.step(record.embeddings[None], np.array([record.label], np.int32)).derivatives for record in log]
    for c, client in enumerate(bottoms):
        belong: dict[int, list[int]] = {}
        for t, record in enumerate(log):
            belong.setdefault(record.applied[c], []).append(t)
        held: dict[int, list] = {}

        def encode(applied: int, client=client, c=c, belong=belong, held=held) -> None:
            for t in belong.pop(applied, []):
                x = setting.features[c][int(log[t].event)]
                embedding, held[t] = client.encode(np.array([t], np.int32), x[None])
                own = log[t].embeddings[starts[c] : starts[c + 1]]
                np.testing.assert_allclose(own, embedding[0], rtol=1e-4, atol=1e-5)

        encode(-1)
        for t, record in enumerate(log):
            if record.activated[c]:
                client.step(np.array([t], np.int32), held.pop(t), derivatives[t][..., starts[c] : starts[c + 1]])
                encode(t)
        assert not belong, "an embedding belongs to parameters that the client never had"
    return [top.party.model, *(client.party.model for client in bottoms)]


def test_slr_takes_one_round_at_a_time_and_waits_for_everyone():
    with pytest.raises(ConfigError, match="needs in_flight = 1 and missing = 'wait'"):
        Setting(UPDATES[3], in_flight=2).server()
    with pytest.raises(ConfigError, match="needs in_flight = 1 and missing = 'wait'"):
        Setting(UPDATES[3], missing=(Wait(), Zero(), Wait(), Wait())).server()


# -- hello -------------------------------------------------------------------------------------------------------------


def hello_of(client) -> m.Hello:
    (hello,) = sent(client.hello(), m.Hello)
    return hello


@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        ({"terms": {"federation": "other"}}, "federation is test here and other there", "federation is other here"),
        ({"terms": {"clients": 5}}, "clients is 4 here and 5 there", "clients is 5 here and 4 there"),
        ({"terms": {"update": "SLR(window=3)"}}, r"update is OGD\(\) here and SLR\(window=3\) there", "update is SLR"),
        ({"terms": {"wire": "float16"}}, "wire is float32 here and float16 there", "wire is float16 here and float32"),
        ({"client": 2}, "client is 1 here and 2 there", None),
        ({"width": 7}, "embedding width is 5 here and 7 there", None),
        ({"schema": "abc"}, "feature schema is schema 1 here and abc there", "feature schema is abc here and schema 1"),
        ({"applied": 3}, "have the derivatives up to round 3, but the server has sent them up to round -1", None),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_differs_is_refused_on_both_sides_with_both_values(change, theirs, ours):
    setting = Setting()
    server, client = setting.server(), setting.client(1)
    good = hello_of(client)
    terms = dataclasses.replace(good.terms, **change.get("terms", {}))
    actions = server.receive(1, dataclasses.replace(good, **{**change, "terms": terms}), 0.0)
    (refused,) = sent(actions, m.Refused)
    assert re.search(theirs, refused.reason)
    assert not sent(actions, m.Welcome)
    assert [each.what for each in actions if isinstance(each, Note)] == ["refused"]
    assert server.awaited() == [1, 2, 3, 4]
    (stop,) = client.receive([refused])
    assert isinstance(stop, Stop)
    assert stop.failed
    assert refused.reason in stop.reason
    assert "client 1" in stop.reason
    if ours is None:
        return
    client = setting.client(1)  # a client that is asked to take part in something else says so too
    (welcome,) = sent(server.receive(1, hello_of(client), 0.0), m.Welcome)
    client.terms, client.schema = terms, change.get("schema", client.schema)
    (stop,) = client.receive([welcome])
    assert stop.failed
    assert re.search(ours, stop.reason)


def test_several_differences_are_named_together():
    server, client = Setting().server(), Setting().client(1)
    hello = dataclasses.replace(hello_of(client), width=9, schema="x")
    (refused,) = sent(server.receive(1, hello, 0.0), m.Refused)
    assert refused.reason == "embedding width is 5 here and 9 there; feature schema is schema 1 here and x there"


def test_a_client_whose_width_the_server_does_not_expect_says_so():
    server, client = Setting().server(), Setting().client(1)
    (welcome,) = sent(server.receive(1, hello_of(client), 0.0), m.Welcome)
    (stop,) = client.receive([dataclasses.replace(welcome, width=6)])
    assert stop.failed
    assert "embedding width is 5 here and 6 there" in stop.reason


def test_a_client_older_or_newer_than_what_the_server_keeps_is_refused():
    setting = Setting(activation=ab.Full(), rounds=20)
    world, _ = play(setting)
    server = world.server
    server.seats[0].forget(10)
    hello = hello_of(world.clients[0])
    assert hello.applied == 19
    for applied, kept in ((9, False), (10, True), (15, True), (19, True), (20, False), (-1, False)):
        draw = dataclasses.replace(hello, applied=applied, session=1000 + applied)
        actions = server.receive(1, draw, 0.0)
        assert bool(sent(actions, m.Welcome)) is kept, applied
        if kept:
            again = sent(actions, m.Derivatives)
            assert [t for each in again for t in each.rounds] == list(range(applied + 1, 20))
        else:
            (refused,) = sent(actions, m.Refused)
            assert f"up to round {applied}, but the server has sent them up to round 19" in refused.reason
            assert "after round 10" in refused.reason


def test_a_hello_that_comes_twice_or_late_stops_nobody():
    setting = Setting(activation=ab.Full(), rounds=20)
    world, _ = play(setting)
    client, server = world.clients[0], world.server
    old = dataclasses.replace(hello_of(client), applied=3)
    (welcome,) = sent(server.receive(1, hello_of(client), 0.0), m.Welcome)
    client.receive([welcome])
    server.seats[0].forget(10)
    twice = dataclasses.replace(old, session=welcome.session)
    assert server.receive(1, twice, 0.0) == []
    (refused,) = sent(server.receive(1, old, 0.0), m.Refused)
    for session in (refused.session, welcome.session):
        (note,) = client.receive([dataclasses.replace(refused, session=session)])
        assert isinstance(note, Note)
        assert note.what == "old session"
    assert client.joined


def test_a_server_calls_until_every_client_has_come():
    """A client that believes in the server from before says nothing by itself."""
    server = Setting().server()
    called = []
    now = 0.0
    for _ in range(5):
        assert server.due() < math.inf
        now = max(now, server.due())
        called.append([each.client for each in server.tick(now) if isinstance(each.message, m.Call)])
    assert called == [[], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
    for i in range(1, 5):
        server.receive(i, hello_of(Setting().client(i)), now)
    assert server.due() == math.inf
    assert server.tick(now + 100) == []


# -- who does not answer -----------------------------------------------------------------------------------------------


class Quiet(InMemory):
    """Client 2 says nothing in some rounds."""

    quiet = range(10, 20)
    until = math.inf

    def do(self, party, actions):
        silent = party == 2 and self.server.rounds in self.quiet and self.now < self.until
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
    assert missing_counts(log[12]) == {"answered": 3, how[12]: 1}


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
    assert noted(world)["unknown"] == 3
    assert world.now >= 2
    assert trained(world.server, world.clients) == bits(patient.simulated().model)


# -- events that clients tell of ---------------------------------------------------------------------------------------


def joined(setting, **options):
    """A server that every client has said hello to."""
    server = setting.server(**options)
    for i, client in enumerate(setting.clients(), 1):
        server.receive(i, hello_of(client), 0.0)
    return server


def answer(server, client, rounds, values, applied=-1, activated=True) -> m.Embeddings:
    flags = np.full(len(rounds), activated)
    return m.Embeddings(server.seats[client - 1].session, applied, -1, rounds, flags, values)


def told(server, client, event, value=1.0, applied=-1) -> m.Happened:
    return m.Happened(server.seats[client - 1].session, applied, event, np.full(5, value, np.float32))


def test_an_event_that_two_clients_tell_of_is_one_round():
    server = joined(Setting(), coalesce=0.2)
    assert server.receive(1, told(server, 1, b"a"), 1.0) == []
    assert server.receive(3, told(server, 3, b"a", 3.0), 1.1) == []
    assert server.receive(2, told(server, 2, b"b"), 1.15) == []
    assert server.arrived(1.19) == []
    assert server.due() == 1.2
    assert server.arrived(1.2) == [b"a"]
    assert server.arrived(1.4) == [b"a", b"b"]
    (query,) = sent(server.open([b"a"], [1], 1.4), m.Query)
    assert query.events == (b"a",)
    assert server.lacking() == [2, 4]
    none = np.zeros((1, 5), np.float32)
    server.receive(2, answer(server, 2, (0,), none, activated=False), 1.4)
    actions = server.receive(4, answer(server, 4, (0,), none, activated=False), 1.4)
    (played,) = [each for each in actions if isinstance(each, Played)]
    assert played.records[0].activated.tolist() == [True, False, True, False]
    assert {each.client for each in actions if isinstance(each, Send)} == {1, 3}
    (late,) = server.receive(4, told(server, 4, b"a"), 1.5)
    assert (late.what, late.client) == ("late", 4)
    assert server.arrived(2.0) == [b"b"]
    (note,) = server.discard(b"b")
    assert note.what == "event dropped"
    assert server.arrived(2.0) == []


def test_an_event_told_with_old_parameters_is_asked_for_again():
    setting = Setting(activation=ab.Full())
    server = joined(setting)
    server.open([name(0)], [0], 0.0)
    ones = np.ones((1, 5), np.float32)
    for client in range(1, 5):
        server.receive(client, answer(server, client, (0,), ones), 0.0)
    assert server.rounds == 1
    server.receive(1, told(server, 1, b"1"), 0.0)  # before the derivative of round 0 has come
    actions = server.open([b"1"], [0], 0.0)
    assert [(each.client, each.message.events) for each in actions if isinstance(each, Send)] == [
        (None, (b"1",)),
        (1, (b"1",)),
    ]
    (ask,) = server.receive(2, told(server, 2, b"1"), 0.0)  # the same when the round is open already
    assert ask.client == 2
    assert server.lacking() == [1, 2, 3, 4]


def test_an_event_told_is_not_unknown_and_is_not_answered_twice():
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    (happened,) = sent(client.happened(name(0)), m.Happened)
    assert happened.event == name(0)
    assert client.happened(name(0)) == []
    query = m.Query(1, 0, (name(0),), None)
    assert client.receive([query]) == []
    (again,) = sent(client.receive([query]), m.Embeddings)  # asked once more, since it was lost
    assert again.activated.all()
    assert client.happened(name(0)) == []
    v = np.ones((1, 5), np.float32)
    assert client.receive([m.Derivatives(client._session, -1, (0,), (-1,), (), v)]) == []
    (note,) = client.happened(name(0))
    assert note.what == "late"


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_every_event_told_of_is_one_round_whoever_dies(seed, in_flight):
    rows = np.random.default_rng(seed).random((120, 4)) < 0.4
    setting = ToldSetting(UPDATES[1], ab.Recorded(rows), rounds=120, in_flight=in_flight)
    world = Told(setting, seed, kills=10, every=40)
    world.run()
    assert sorted(record.event for record in world.log) == sorted(world.planned)
    for record in world.log:
        np.testing.assert_array_equal(record.activated, world.planned[record.event])
    if in_flight == 1:
        assert trained(world.server, world.clients) == follow(setting, world.log)
    else:
        check_steps(setting, world.server, world.clients, world.log)


class ToldSetting(Setting):
    """Clients are activated by what they tell of, and by nothing else."""

    def decide(self, client):
        return lambda t, x: False


# -- bad messages ------------------------------------------------------------------------------------------------------


class Liar(InMemory):
    """Beside its true messages, client 2 sends wrong ones before every third step."""

    true = True

    def __init__(self, setting, make, **options):
        super().__init__(setting.server(), setting.clients(), setting.samples(), **options)
        self.make, self.earlier, self.steps = make, [], itertools.count()

    def do(self, party, actions):
        if party == 2:
            self.earlier += sent(actions, m.Embeddings)
            actions = [each for each in actions if self.true or not sent([each], m.Embeddings)]
        super().do(party, actions)

    def step(self):
        seat = self.server.seats[1]
        if seat.session is not None and self.server.rounds < self.server.opened:
            rounds, ones = (self.server.rounds,), np.ones((1, 5), np.float32)
            good = m.Embeddings(seat.session, seat.before, seat.safe, rounds, np.ones(1, bool), ones)
            for message in self.make(self, good) if next(self.steps) % 3 == 0 else ():
                super().do(0, self.server.receive(2, message, self.now))
        super().step()


def changed(**fields):
    return lambda world, good: [dataclasses.replace(good, **fields)]


def values(array):
    return changed(values=np.asarray(array, np.float32))


BAD = {
    "NaN": (values([[1, 2, np.nan, 4, 5]]), "unusable", "not finite"),
    "infinity": (values([[1, 2, np.inf, 4, 5]]), "unusable", "not finite"),
    "too short": (values(np.ones((1, 4))), "unusable", r"shape \[1, 4\] for 1 rounds, not \[1, 5\]"),
    "no axis": (values(np.ones(5)), "unusable", r"shape \[5\] for 1 rounds"),
    "two rows": (values(np.ones((2, 5))), "unusable", r"shape \[2, 5\] for 1 rounds"),
    "no flag": (changed(activated=np.ones(0, bool)), "unusable", "shape"),
    "no round": (
        changed(rounds=(), activated=np.ones(0, bool), values=np.ones((0, 5), np.float32)),
        "unusable",
        "0 rounds",
    ),
    "wrong dtype": (changed(values=np.ones((1, 5))), "unusable", "embeddings are float64, not float32"),
    "future parameters": (changed(applied=10**6), "unusable", "derivative of round 1,000,000, which it was never sent"),
    "a round to come": (changed(rounds=(10**9,)), "no such round", "round 1,000,000,000, which is not open"),
    "a round before": (lambda world, good: [dataclasses.replace(good, rounds=(-7,))], "late", "round -7"),
    "an old session": (changed(session=99), "old session", "a Embeddings of an old session"),
    "replayed": (lambda world, good: world.earlier[:-1][-3:], "late", "when it was over"),
    "the server's": (lambda world, good: [m.Query(1, 0, (b"",), None)], "unexpected", "a Query, which no client does"),
    "a log's": (
        lambda world, good: [m.Record(b"", 0, np.ones(4, bool), (0,) * 4, (0,) * 4, good.values)],
        "unexpected",
        "Record",
    ),
    "told NaN": (
        lambda world, good: [m.Happened(good.session, -1, b"x", np.full(5, np.nan, np.float32))],
        "unusable",
        "not finite",
    ),
    "far from known": (
        lambda world, good: [m.Unknown(good.session, (2**63 - 1, -(2**63)))],
        "unknown",
        "no features for this event",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_message_is_named_and_changes_nothing(kind):
    make, what, text = BAD[kind]
    setting, predictions = Setting(activation=ab.Full(), rounds=15), []
    world = Liar(setting, make, played=lambda each: predictions.extend(each.predictions))
    world.run()
    notes = [note for note in world.notes if note.what == what and note.client == 2]
    assert len(notes) > 5
    assert any(re.search(text, note.text) for note in notes)
    check_same(setting, world, predictions)


def test_a_bad_answer_counts_as_missing():
    setting = Setting(activation=ab.Full(), rounds=15, missing=(Wait(), Zero(), Wait(), Wait()))
    log = []
    world = Liar(setting, BAD["NaN"][0], played=lambda each: log.extend(each.records))
    world.true = False
    world.run()
    assert {HOW[record.missing[1]] for record in log} == {"zero"}
    assert world.now < 1, "it is not waited for"
    assert all(np.isfinite(record.embeddings).all() for record in log)
    assert trained(world.server, world.clients) == follow(setting, log)


def bad_of_the_server(client):
    """What no server sends to this client, and what is said of it."""
    session, applied = client._session, client.applied
    good = m.Derivatives(session, applied, (applied + 1,), (applied,), (), np.ones((1, 5), np.float32))
    query = m.Query(client._epoch, applied + 1, (name(applied + 1),), None)
    replace = dataclasses.replace
    return [
        (replace(good, values=np.full((1, 5), np.nan, np.float32)), "unusable"),
        (replace(good, values=np.ones((1, 4), np.float32)), "unusable"),
        (replace(good, values=np.ones((1, 5), np.float64)), "unusable"),
        (replace(good, rounds=()), "unusable"),
        (replace(good, rounds=(-5,)), "unusable"),
        (replace(good, rounds=(2**40,)), "unusable"),
        (replace(good, rounds=(9, 8), applied=(1, 1), values=np.ones((2, 5), np.float32)), "unusable"),
        (replace(good, applied=(1, 2)), "unusable"),
        (replace(good, events=(b"1", b"2")), "unusable"),
        (replace(good, before=applied + 5, rounds=(applied + 9,)), "gap"),
        (replace(good, rounds=(applied + 9,)), "gap"),
        (replace(good, session=12345), "old session"),
        (replace(query, first=2**40), "unusable"),
        (replace(query, first=-1), "unusable"),
        (replace(query, activated=np.ones((1, 3), bool)), "unusable"),
        (replace(query, activated=np.ones((2, 4), bool)), "unusable"),
        (m.Unknown(session, (1,)), "unexpected"),
        (m.Refused(session, "no"), "old session"),
    ]


@pytest.mark.parametrize("number", range(18))
def test_a_bad_message_of_the_server_is_named_and_changes_nothing(number):
    setting, predictions, what = Setting(activation=ab.Full(), rounds=15), [], []
    world = setting.in_memory(played=lambda each: predictions.extend(each.predictions))
    step = world.step

    def lie():
        client = world.clients[1]
        if client.joined and client.applied >= 5 and not what:
            message, expected = bad_of_the_server(client)[number]
            actions = client.receive([message])
            what.extend([expected, next(each.what for each in actions if isinstance(each, Note))])
            world.do(2, actions)
        step()

    world.step = lie
    world.run()
    assert what[0] == what[1]
    check_same(setting, world, predictions)


# -- what the chaos has found ------------------------------------------------------------------------------------------


def test_the_log_is_played_again_in_blocks_of_any_length():
    setting, world, log, predictions = quiet(Skip())
    world.run()
    for in_flight in (1, 8):
        again = dataclasses.replace(setting, in_flight=in_flight).server()
        played = again.replay(log)
        assert list(played.predictions) == predictions
        assert again.rounds == 40
        assert bits_of(again) == bits_of(world.server)


def bits_of(server) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in server.compute.arrays().items()}


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
