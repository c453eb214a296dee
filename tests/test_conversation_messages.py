"""What is said in a conversation: hello, events that clients tell of, and bad messages."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, deque

import numpy as np
import pytest

import anabranch as ab
from anabranch.federation.client import AHEAD
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note, Played, Send, Stop
from anabranch.protocol.client import conversation as client_side
from anabranch.protocol.memory import InMemory
from anabranch.protocol.server import conversation as conversation
from anabranch.protocol.server.missing import HOW, Skip, Wait, Zero
from anabranch.protocol.server.pending_rounds import Late, Stored
from anabranch.storage.feature_store import KeptInputs
from conversations import answer, answered, check_same, check_steps, heard, hello_of, joined, play, said, told
from federations import UPDATES, Setting, Told, follow, name, sent, trained

# -- hello -------------------------------------------------------------------------------------------------------------


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
    tries = ((9, False), (10, True), (15, True), (19, True), (20, False), (-1, False))
    for i, (applied, kept) in enumerate(tries):
        draw = dataclasses.replace(hello, applied=applied, session=1000 + applied)
        actions = server.receive(1, draw, world.now + 2.0 * i)
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


def test_hellos_that_overtake_one_another_do_not_hold_up_the_end():
    """The server takes part in the older session, and nobody says anything but that no round follows."""
    setting = Setting(activation=ab.Full(), rounds=5)
    server, client = joined(setting), setting.client(1, itertools.count(100))
    older, newer = hello_of(client), hello_of(client)
    (welcome,) = sent(server.receive(1, newer, 0.0), m.Welcome)
    client.receive([welcome])
    server.receive(1, older, 0.0)
    (end,) = [each.message for each in server.end("it is over", 0.0) if each.client == 1]
    (again,) = sent(client.receive([end]), m.Hello)
    assert again.session not in (older.session, newer.session)
    client.receive([each.message for each in server.receive(1, again, 0.0) if isinstance(each, Send)])
    assert client.over == "it is over"


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


def test_a_client_that_has_left_for_good_is_waited_for_once_something_is_lacking_of_it():
    """A server that is started again does not know yet whether anything follows."""
    setting = Setting(rounds=4)
    world, _ = play(setting)
    assert world.server.done
    server = setting.server(2)
    server.restore(*world.server.state())
    assert (server.awaited(), server.room) == ([], 1)
    server.receive(1, hello_of(world.clients[0]), 0.0)
    assert (server.awaited(), server.room) == ([], 1)
    server.open([b"4"], [0], 1.0)
    assert (server.awaited(), server.room) == ([2, 3, 4], 0)


def test_a_client_leaves_when_the_server_has_kept_that_no_round_follows():
    client, server = Setting().client(1), Setting().server()

    def enter() -> int:
        hello = hello_of(client)
        client.receive([each.message for each in server.receive(1, hello, 0.0) if isinstance(each, Send)])
        return hello.session

    session = enter()
    assert client.receive([m.Bye(session, m.NONE, "training cannot go on")]) == []  # its parameters are of use
    client.receive([m.End(session, 0, m.NONE, "it is over")])
    assert client.over == "it is over"
    again = enter()  # the server has begun again, and perhaps goes on
    assert client.over is None
    assert [each.what for each in client.receive([m.Bye(session, m.NONE, "kept")])] == ["old session"]
    client.receive([m.End(again, 0, m.NONE, "it is over")])
    assert client.receive([m.Bye(again, m.NONE, "kept")]) == [Stop("it is over")]


@pytest.mark.parametrize("hears", ["its own server", "another server", "nobody"])
def test_a_client_is_let_go_that_says_hello_while_the_others_say_goodbye(hears):
    """The server is gone then, and would not answer. Another one perhaps goes on."""
    setting = Setting(rounds=4)
    server, client = joined(setting), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    client.receive(heard(server.end("it is over", 0.0), 1))
    said(server, 1, client.bye("it has all"))
    session = client.session
    if hears == "nobody":  # its connection is back
        client.hello()
    else:
        calls = (server if hears == "its own server" else setting.server(2)).begin()
        assert sent(client.receive(heard(calls, 1)), m.Hello)
    for i in (2, 3, 4):
        server.receive(i, m.Bye(server.seats[i - 1].session, m.NONE, "it has all"), 0.0)
    assert server.done
    actions = client.receive([m.Bye(session, m.NONE, "all is kept")])
    if hears == "another server":
        assert [type(each) for each in actions] == [Note]
    else:
        assert actions[-1] == Stop("it is over")


def test_a_client_that_is_let_go_while_it_says_hello_is_not_waited_for():
    """The server, which waits for another one, hears the hello after it has let the client go."""
    setting = Setting(rounds=4)
    server, client = joined(setting), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    client.receive(heard(server.end("it is over", 0.0), 1))
    said(server, 1, client.bye("it has all"))
    session, hello = client.session, client.hello()  # its connection is back
    goodbye = client.receive([m.Bye(session, m.NONE, "all is kept")])
    assert goodbye[-1] == Stop("it is over")
    assert said(server, 1, hello)
    said(server, 1, goodbye)
    for i in (2, 3, 4):
        server.receive(i, m.Bye(server.seats[i - 1].session, m.NONE, "it has all"), 0.0)
    assert server.done


# -- two processes where one belongs -----------------------------------------------------------------------------------


def carry(servers, clients, stopped, first) -> None:
    """Carries messages of servers and of processes that are client 1; what a server says, all of these hear."""
    waiting = deque(first)
    while waiting:
        source, action = waiting.popleft()
        if isinstance(action, Stop):
            stopped[source] = action
        if not isinstance(action, Send):
            continue
        if source in clients:
            waiting += [(each, new) for each in servers for new in each.receive(1, action.message, 0.0)]
        else:
            hear = [each for each in clients if each not in stopped and action.client in (None, 1)]
            waiting += [(each, new) for each in hear for new in each.receive([action.message])]


def test_a_client_that_is_there_twice_says_so_and_ends():
    setting = Setting(missing=(Zero(),) * 4)
    server, twins, stopped = setting.server(), [setting.client(1, itertools.count(k)) for k in (100, 500)], {}
    carry([server], twins, stopped, [(each, action) for each in twins for action in each.hello()])
    for t in range(40):
        carry([server], twins, stopped, [(server, each) for each in server.open([name(t)], [0], 10.0 * t)])
        carry([server], twins, stopped, [(server, each) for each in server.tick(10.0 * t + 5)])
    (stop,) = stopped.values()
    assert stop.failed
    assert "another process takes part as client 1: end one of them" in stop.reason
    (left,) = [each for each in twins if each not in stopped]
    assert left.joined


@pytest.mark.parametrize(
    ("when", "leaves"),
    [
        ("before the first round", "with a goodbye"),
        ("under way", "with a goodbye"),
        ("under way", "killed"),
        ("at the end", "killed"),
    ],
)
def test_a_client_takes_part_again_once_another_process_of_it_is_gone(when, leaves):
    """It thinks that it takes part, and the server sends what it says in the session of the other."""
    server, stopped = Setting().server(), {}
    client, other = twins = [Setting().client(1, itertools.count(k)) for k in (100, 500)]
    carry([server], [client], stopped, [(client, each) for each in client.hello()])
    server.tick(0.0)
    if when != "before the first round":
        for i in (2, 3, 4):
            server.receive(i, hello_of(Setting().client(i)), 0.0)
    carry([server], twins, stopped, [(other, each) for each in other.hello()])
    if when == "under way":
        server.open([name(0)], [0], 0.0)
    if when == "at the end":
        server.end("it is over", 0.0)
    if leaves == "with a goodbye":
        said(server, 1, other.bye("it was stopped"))
        assert server.due() <= server._deadline
    for now in (5.0, 10.0):
        carry([server], [client], stopped, [(server, each) for each in server.tick(now)])
    assert not stopped
    assert (server.seats[0].session, server.seats[0].present) == (client.session, True)
    assert client.joined
    assert 1 not in (server.awaited() if when != "under way" else server.lacking())
    assert (client.over == "it is over") is (when == "at the end")
    assert not [each for each in heard(server.tick(15.0), 1) if isinstance(each, m.Call)]


def test_a_client_that_left_is_called_once_a_deadline_until_it_comes_or_all_is_over():
    """Nobody hears it, as a rule."""
    server = joined(Setting())
    assert server.tick(0.0) == []
    said(server, 1, [Send(m.Bye(server.seats[0].session, m.NONE, "it was stopped"))])
    now, calls = 0.0, 0
    while (now := max(now, server.due())) < 100:
        calls += len(server.tick(now))
    assert 90 < calls <= 100
    server.end("it is over", now)
    for i in (1, 2, 3, 4):
        assert not server.done
        if i == 1:
            server.receive(1, hello_of(Setting().client(1, itertools.count(100))), now)
        server.receive(i, m.Bye(server.seats[i - 1].session, m.NONE, "it has all"), now)
    assert server.done
    server.tick(now + 1)
    assert not [each for each in server.tick(now + 10) if isinstance(each, Send)]


def test_a_client_that_is_there_twice_at_the_end_says_so_and_ends():
    server, stopped = Setting().server(), {}
    twins = [Setting().client(1, itertools.count(k)) for k in (100, 500)]
    carry([server], twins, stopped, [(each, action) for each in twins for action in each.hello()])
    carry([server], twins, stopped, [(server, each) for each in server.end("it is over", 0.0)])
    (stop,) = stopped.values()
    assert "another process takes part as client 1" in stop.reason
    (left,) = [each for each in twins if each not in stopped]
    carry([server], [left], stopped, [(server, each) for each in server.tick(100.0)])
    assert (left.over, server.seats[0].session) == ("it is over", left.session)


def test_two_servers_of_a_federation_end_its_clients_with_a_word():
    setting = Setting()
    servers, client, stopped = [setting.server(epoch) for epoch in (1, 2)], setting.client(1), {}
    for _ in range(20):
        carry(servers, [client], stopped, [(each, action) for each in servers for action in each.begin()])
        if stopped:
            break
    assert stopped[client].failed
    assert "two servers of this federation answer" in stopped[client].reason


def beside(setting, first):
    """A server that has played a round, its client 1 of then, and beside it a server that knows of nothing; and both
    in the order in which they answer."""
    server, other = joined(setting), setting.server(2)
    client = setting.client(1, itertools.count(100))
    carry([server], [client], {}, [(client, each) for each in client.hello()])
    one_round(server, client)
    return server, client, other, [other, server] if first == "the wrong one" else [server, other]


def one_round(server, client) -> None:
    t = server.rounds
    carry([server], [client], {}, [(server, each) for each in server.open([name(t)], [0], 0.0)])
    carry([server], [client], {}, [(server, each) for each in answered(server, (2, 3, 4), t)])
    assert client.applied == t


@pytest.mark.parametrize("first", ["the right one", "the wrong one"])
def test_a_server_beside_the_right_one_is_named_once_it_stays(first):
    """It refuses the clients, which nothing is wrong with."""
    server, client, other, servers = beside(Setting(activation=ab.Full()), first)
    stopped = {}
    for _ in range(client_side.OTHERS):
        assert not stopped
        one_round(server, client)
        assert (client.joined, server.seats[0].session) == (True, client.session)
        carry(servers, [client], stopped, [(other, each) for each in other.begin()])
    assert stopped[client].sound
    assert "two servers of this federation answer" in stopped[client].reason


@pytest.mark.parametrize("first", ["the right one", "the wrong one"])
def test_a_client_goes_on_beside_a_server_that_refuses_it(first, monkeypatch):
    """As long as there are enough rounds in between."""
    monkeypatch.setattr(client_side, "LATELY", client_side.OTHERS - 2)
    server, client, other, servers = beside(Setting(activation=ab.Full()), first)
    stopped = {}
    for _ in range(5 * client_side.OTHERS):
        carry(servers, [client], stopped, [(other, each) for each in other.begin()])
        one_round(server, client)
    assert not stopped


def test_a_server_beside_one_that_answers_too_late_is_named_too():
    server, client, other, _ = beside(Setting(activation=ab.Full()), "the wrong one")
    (late,) = sent(server.receive(1, hello_of(client), 0.0), m.Welcome)
    for _ in range(100):
        refused = heard(other.receive(1, hello_of(client), 0.0), 1)
        stops = [each for each in client.receive([*refused, late]) if isinstance(each, Stop)]
        if stops:
            break
        late = dataclasses.replace(late, session=client.session)
    assert "two servers of this federation answer" in stops[0].reason


def test_a_client_that_was_welcome_before_ends_with_what_a_server_alone_refuses_it_for():
    """It has begun again with an older folder."""
    setting = Setting(activation=ab.Full())
    server, client, _, _ = beside(setting, "the right one")
    older = setting.server(2)
    older.restore(*server.state())
    one_round(server, client)
    (hello,) = sent(client.receive(heard(older.begin(), 1)), m.Hello)
    for _ in range(client_side.REFUSALS - 1):
        (note,) = client.receive(heard(older.receive(1, hello, 0.0), 1))
        assert note.what == "refused"
        assert client.receive(heard(older.begin(), 1)) == [], "it waits a moment"
        hello = hello_of(client)
    (stop,) = client.receive(heard(older.receive(1, hello, 0.0), 1))
    assert "have the derivatives up to round 1, but the server has sent them up to round 0" in stop.reason
    assert not stop.sound


def test_a_server_that_begins_again_and_again_is_not_taken_for_two():
    setting = Setting()
    client, stopped = setting.client(1), {}
    for epoch in range(1, 30):
        server = setting.server(epoch)
        carry([server], [client], stopped, [(server, action) for action in server.begin()])
    assert not stopped
    assert client.joined


# -- events that clients tell of ---------------------------------------------------------------------------------------


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
    late, forget = server.receive(4, told(server, 4, b"a"), 1.5)
    assert (late.what, late.client) == ("late", 4)
    assert (forget.message.events, forget.client) == ((b"a",), 4)
    assert server.arrived(2.0) == [b"b"]
    note, forget = server.discard(b"b")
    assert note.what == "event dropped"
    assert (forget.message.events, forget.client) == ((b"b",), 2)
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


def test_events_before_the_server_is_there_wait_as_told_ones_do():
    setting = Setting(rounds=10)
    server, client = setting.server(), setting.client(1)
    hello = hello_of(client)
    assert [client.happened(name(i)) for i in range(3)] == [[], [], []]
    assert client.told == 3
    client.receive(sent(server.receive(1, hello, 0.0), m.Welcome))
    assert client.told == 3
    client.receive([m.Void(client._session, (), (name(0),))])
    assert client.told == 2


def test_of_too_many_events_of_its_own_the_oldest_is_settled(monkeypatch):
    """Else it would be held on the client's disk, and its source never be told that it may forget it."""
    monkeypatch.setattr(client_side, "REMEMBERED", 2)
    client = Setting(rounds=10).client(1)
    assert [client.happened(name(i)) for i in range(2)] == [[], []]
    (note,) = client.happened(name(2))
    assert note.what == "event dropped"
    assert [*client.settled] == [name(0)]
    assert client.state()[1]["happened"] == [name(1).hex(), name(2).hex()]


def test_too_many_events_of_its_own_let_go_of_none_that_the_server_may_learn_from(monkeypatch):
    """The server may have the embedding of an announced event, and a step needs what was kept of it."""
    monkeypatch.setattr(client_side, "REMEMBERED", 2)
    setting = Setting(rounds=10)
    server, client = setting.server(coalesce=0.0), setting.client(1)
    client.receive(heard(server.receive(1, hello_of(client), 0.0), 1))
    for i in range(2):
        client.happened(name(i))
    client.happened(b"no features yet")
    assert [*client.settled] == [b"no features yet"]
    client.happened(name(2))
    assert client.state()[1]["happened"] == [name(i).hex() for i in range(3)]


def test_what_was_learnt_before_a_restart_is_let_go_of(tmp_path, monkeypatch):
    monkeypatch.setattr(client_side, "LONG", 3)
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), rounds=10)
    kept = KeptInputs(tmp_path / "inputs", most=9)
    for t in range(3):
        kept.put(name(t), setting.look(1)(name(t)), False, t)
        kept.learnt([(t, name(t), t == 1)], [])  # of the second no checkpoint has the step
    made = setting.client(1)
    client = client_side.ClientConversation(
        made.terms, 1, made.schema, made.compute, made._look, made._decide, made._draw, kept
    )
    client.receive(sent(setting.server().receive(1, hello_of(client), 0.0), m.Welcome))
    for t, there in ((3, [1, 2]), (5, [1])):  # a passive round waits for no checkpoint, whatever is before it
        assert sent(client.receive([m.Query(1, t, (name(t),), None)]), m.Embeddings)
        assert [i for i in range(3) if kept.get(name(i))] == there
    client.safe = 1
    client.receive([m.Query(1, 6, (name(6),), None)])
    assert len(kept) == 0


@pytest.mark.parametrize("missing", [Skip(), Zero()], ids=["dropped", "played without it"])
def test_what_is_kept_of_rounds_that_go_without_the_client_is_let_go_of(missing):
    """No checkpoint says so: the last one may be long ago, and hold up what is behind it."""
    skips = isinstance(missing, Skip)
    policies = (Wait(), Wait(), Wait(), missing) if skips else (missing, Wait(), Wait(), Wait())
    setting = Setting(activation=ab.Full(), rounds=50, missing=policies)
    server, client = joined(setting), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    for t in range(50):
        client._inputs.put(name(t), setting.look(1)(name(t)), None, t)
        now = 10.0 * t
        mine = client.receive(heard(server.open([name(t)], [0], now), 1))
        if t == 0:  # it steps, and has no checkpoint of it
            actions = said(server, 1, mine) + answered(server, (2, 3, 4), t)
        elif skips:
            actions = said(server, 1, mine, now) + answered(server, (2, 3), t, now) + server.tick(now + 5)
        else:
            actions = answered(server, (2, 3, 4), t, now) + server.tick(now + 5) + said(server, 1, mine, now + 5)
        client.receive(heard(actions, 1))
    assert (server.rounds, client.applied, client.safe) == (50, 0, m.NONE)
    assert [*client._learnt[True]] == [(0, name(0))]
    assert len(client._inputs) == 1


def test_a_client_forgets_an_event_whose_round_went_without_it():
    setting = Setting(rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    client.happened(name(0))
    assert client.told == 1
    assert client.receive([m.Void(client._session, (), (name(0),))]) == []
    assert client.told == 0
    assert client.state()[1]["happened"] == []


def test_an_event_whose_features_come_later_is_told_of_then():
    setting = Setting(rounds=10)
    server, client, there = setting.server(), setting.client(1), []
    look = client._look
    client._look = lambda event: look(event) if there else None
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    (note,) = client.happened(name(0))
    assert note.what == "unknown"
    assert client.waits_for_features
    assert client.tell_later() == [], "said once"
    there.append(True)
    (happened,) = sent(client.tell_later(), m.Happened)
    assert happened.event == name(0)
    assert not client.waits_for_features


def test_an_event_that_never_has_a_round_is_forgotten_at_last(monkeypatch):
    monkeypatch.setattr(conversation, "REMEMBERED", 3)
    server = joined(Setting())
    assert server.receive(1, told(server, 1, b"never"), 0.0) == []
    assert server.arrived(1e9) == []
    gone = []
    for t in range(5):
        server.open([name(t)], [0], 0.0)
        for client in range(1, 5):
            rounds, values = (t,), np.ones((1, 5), np.float32)
            applied = server.seats[client - 1].before
            gone += sent(server.receive(client, answer(server, client, rounds, values, applied), 0.0), m.Void)
    assert [each.events for each in gone] == [(b"never",)]


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_every_event_told_of_is_one_round_whoever_dies(seed, in_flight):
    rows = np.random.default_rng(seed).random((120, 4)) < 0.4
    setting = ToldSetting(UPDATES[1], ab.Recorded(rows), rounds=120, in_flight=in_flight)
    world = Told(setting, seed, kills=10, every=40)
    world.run()
    check_told(setting, world)


def check_told(setting, world) -> None:
    """Every event was one round, with whom it touched."""
    assert sorted(record.event for record in world.log) == sorted(world.planned)
    for record in world.log:
        np.testing.assert_array_equal(record.activated, world.planned[record.event])
    if setting.in_flight == 1:
        assert trained(world.server, world.clients) == follow(setting, world.log)
    else:
        check_steps(setting, world.server, world.clients, world.log)


def test_a_client_that_tells_of_every_event_frees_what_the_server_keeps_for_it():
    """It is never asked, so it sends nothing else that says what its checkpoints have."""
    setting, log, kept = Setting(activation=ab.Full(), rounds=40), [], []

    class World(InMemory):
        def take(self, room):
            t = len(log)
            if not all(client.joined and client.applied == t - 1 for client in self.clients):
                return []
            self._over = t == setting.rounds
            for number, client in enumerate(self.clients, 1):
                client.saved(client.applied)
                self.do(number, [] if self._over else client.happened(name(t)))
            kept.extend(len(seat.outbox) for seat in self.server.seats)
            return [] if self._over else [(name(t), setting.labels[t])]

    world = World(setting.server(), setting.clients(), iter(()), played=lambda each: log.extend(each.records))
    world.run()
    assert [client.answers for client in world.clients] == [0] * 4
    assert all(record.activated.all() for record in log)
    assert max(kept) <= 2


def test_events_without_labels_stop_no_client_from_listening(monkeypatch):
    """One event in five has a label, which comes once it was told of, or while the client listens for no more."""
    assert conversation.OVERTAKEN == AHEAD / 2
    monkeypatch.setattr(conversation, "OVERTAKEN", 10)
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), rounds=200)
    log = []

    class World(InMemory):
        told = 0

        def take(self, room):
            if not all(client.joined for client in self.clients):
                return []
            while self.clients[0].told < 20 and self.told < 200:
                self.do(1, self.clients[0].happened(name(self.told)))
                self.told += 1
            t = 5 * len(log)
            self._over = t >= 200
            return [] if self._over else [(name(t), setting.labels[t])]

    world = World(setting.server(), setting.clients(), iter(()), played=lambda each: log.extend(each.records))
    world.run()
    assert [record.event for record in log] == [name(t) for t in range(0, 200, 5)]
    assert all(record.activated[0] for record in log)
    assert not {name(t) for t in range(0, 200, 5)} & {*world.clients[0].settled}, "those were not given up"
    assert len(world.clients[0].settled) > 100


def test_what_is_overtaken_is_forgotten_of_its_own_client_alone(monkeypatch):
    monkeypatch.setattr(conversation, "OVERTAKEN", 3)
    server = joined(Setting())
    for t in range(10):
        server.receive(1, told(server, 1, name(t)), 0.0)
    for t in (2, 20):
        server.receive(2, told(server, 2, name(t)), 0.0)
    actions = server.open([name(9)], [0], 0.0)
    (note,) = [each for each in actions if isinstance(each, Note)]
    assert (note.what, note.client, note.count) == ("event dropped", 1, 6)
    (void,) = [each for each in actions if isinstance(each, Send) and isinstance(each.message, m.Void)]
    assert (void.client, void.message.events) == (1, tuple(name(t) for t in range(6)))
    assert server.arrived(math.inf) == [name(t) for t in (2, 6, 7, 8, 20)]
    assert server.arrived(math.inf, 2) == [name(2), name(6)]


def test_an_event_whose_round_begins_with_that_of_a_later_one_is_not_overtaken_by_it(monkeypatch):
    monkeypatch.setattr(conversation, "OVERTAKEN", 3)
    server = joined(Setting())
    for t in range(10):
        server.receive(1, told(server, 1, name(t)), 0.0)
    actions = server.open([name(9), name(1)], [0, 0], 0.0)
    (void,) = [each for each in actions if isinstance(each, Send) and isinstance(each.message, m.Void)]
    assert void.message.events == tuple(name(t) for t in (0, 2, 3, 4, 5))


def test_nothing_is_overtaken_where_rounds_begin_with_what_clients_tell_of(monkeypatch):
    """Each of these events has a label, or is discarded for want of one: they may only have to wait for room."""
    monkeypatch.setattr(conversation, "OVERTAKEN", 3)
    server = joined(Setting(), coalesce=0.0)
    server.receive(2, told(server, 2, name(9)), 0.0)
    for t in range(10):
        server.receive(1, told(server, 1, name(t)), 0.1)
    assert server.arrived(0.2, server.room) == [name(9)]
    (query,) = server.open([name(9)], [0], 0.2)
    assert isinstance(query.message, m.Query)
    assert server.arrived(0.2) == [name(t) for t in range(9)]


def test_a_client_of_which_something_was_lost_is_asked_to_tell_again_now_and_then():
    server = joined(Setting(), coalesce=1.0)
    server.missed_of(2)
    server.missed_of(9)  # there is none
    (call,) = [each for each in server.tick(0.0) if isinstance(each.message, m.Call)]
    assert (call.client, call.message.session) == (2, 0)
    server.missed_of(2)
    assert not [each for each in server.tick(0.1) if isinstance(each.message, m.Call)]
    assert server.due() <= 1.0
    assert [each.client for each in server.tick(1.0) if isinstance(each.message, m.Call)] == [2]


class ToldSetting(Setting):
    """Clients are activated by what they tell of, and by nothing else; rounds begin with it."""

    def server(self, epoch=1, **options):
        return super().server(epoch, coalesce=0.0, **options)

    def decide(self, client):
        return lambda t, x: False


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_clients_told_of_while_the_server_had_no_connection_is_told_again(seed, in_flight):
    rows = np.random.default_rng(seed).random((120, 4)) < 0.4
    setting = ToldSetting(UPDATES[1], ab.Recorded(rows), rounds=120, in_flight=in_flight)
    world = Told(setting, seed, outages=8, kills=4, every=80)
    world.run()
    assert world.outages == 0
    check_told(setting, world)


def test_a_call_of_the_server_that_is_known_has_all_told_again_that_may_be_lost():
    setting = Setting(rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    for i in range(3):
        assert sent(client.happened(name(i)), m.Happened)
    client.receive([m.Void(client._session, (), (name(1),))])
    (hello,) = sent(client.receive(sent(server.begin(), m.Call)), m.Hello)
    (welcome,) = sent(server.receive(1, hello, 0.0), m.Welcome)
    again = client.receive([welcome])
    assert [each.event for each in sent(again, m.Happened)] == [name(0), name(2)]
    assert client.receive([welcome]) == [], "it came twice, and what is told twice may be given up in between"


@pytest.mark.parametrize("given_up", ["before the hello", "after the hello"])
def test_what_is_given_up_while_it_is_told_again_waits_again_on_both_sides(given_up, monkeypatch):
    """Else the client would lack what it needs of the events' rounds, and ask for their derivatives for ever."""
    monkeypatch.setattr(conversation, "OVERTAKEN", 3)
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), in_flight=8)
    server, client = joined(setting), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    for t in range(10):
        said(server, 1, client.happened(name(t)))
    hello = client.receive(sent(server.begin(), m.Call))
    # Meanwhile the label of the last event is there, and the first six are overtaken.
    to_hear = heard(server.open([name(9)], [0], 0.0), 1) if given_up == "before the hello" else []
    to_hear += heard(said(server, 1, hello), 1)
    to_hear += heard(server.open([name(9)], [0], 0.0), 1) if given_up == "after the hello" else []
    again = client.receive(to_hear)
    assert server.arrived(math.inf) == [name(t) for t in (6, 7, 8)]
    to_hear = heard(said(server, 1, again) + answered(server, (2, 3, 4), 0), 1)
    assert {*server.arrived(math.inf)} == {name(t) for t in range(9)}
    to_hear += heard(said(server, 1, client.receive(to_hear)), 1)
    assert not client.settled
    to_hear += heard(server.open([name(0)], [0], 0.0), 1)
    said(server, 1, client.receive(to_hear))
    assert client.receive(heard(answered(server, (2, 3, 4), 1), 1)) == []
    assert (client.applied, server.seats[0].before, server.rounds) == (1, 1, 2)


def test_a_round_that_is_complete_when_it_opens_needs_no_new_session():
    """Its query and its derivatives come together, and those are read first."""
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)))
    server, clients = setting.server(coalesce=0.0), setting.clients()
    for i, client in enumerate(clients, 1):
        client.receive(sent(server.receive(i, hello_of(client), 0.0), m.Welcome))
    for t in range(4):
        for i, client in enumerate(clients, 1):
            assert server.receive(i, *sent(client.happened(name(t)), m.Happened), 0.0) == []
        actions = server.open([name(t)], [0], 0.0)
        for i, client in enumerate(clients, 1):
            query, derivatives = heard(actions, i)
            assert (type(query), type(derivatives)) == (m.Query, m.Derivatives)
            assert client.receive([derivatives, query]) == []
            (note,) = client.happened(name(t))
            assert note.what == "late", "it was asked for"
    assert [client.applied for client in clients] == [3] * 4
    assert [client.told for client in clients] == [0] * 4


@pytest.mark.parametrize("stored", [False, True])
def test_what_was_learnt_of_a_late_label_is_not_told_to_a_server_that_begins_again(stored):
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), rounds=10)
    server, client = joined(setting, coalesce=0.0), setting.client(1, itertools.count(100))
    client.receive(heard(said(server, 1, client.hello()), 1))
    for t in range(3):
        said(server, 1, client.happened(name(t)))
        server.take_up(name(t))
        said(server, 1, client.receive(heard(server.questions.ask([name(t)], 0.0, first=t, stored=stored), 1)))
    log = []
    for t in range(2):
        reply = Stored(np.zeros(20, np.float32), np.eye(4, dtype=bool)[0], (0,) * 4, (0,) * 4)
        actions = server.open([name(t)], [0], 0.0, None, [Late(0, reply if stored else None)])
        if not stored:
            said(server, 1, client.receive(heard(actions, 1)))
            actions = answered(server, (2, 3, 4), t)
        client.receive(heard(actions, 1))
        log += [record for each in actions if isinstance(each, Played) for record in each.records]
    assert (client.applied, client.safe) == (1, m.NONE)
    again = setting.server(2)
    again.replay(log)
    told = client.receive(heard(said(again, 1, client.receive(heard(again.begin(), 1))), 1))
    assert [each.event for each in sent(told, m.Happened)] == [name(2)]


def test_an_event_whose_round_is_in_the_last_checkpoint_alone_is_let_go_of_with_the_next():
    """A client that has begun again tells of it, and it may have to step in it once more, where that one is damaged."""
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), rounds=10)
    server, killed = joined(setting), setting.client(1, itertools.count(100))
    killed.receive(heard(said(server, 1, killed.hello()), 1))
    said(server, 1, killed.happened(name(0)))
    server.open([name(0)], [0], 0.0)
    killed.receive(heard(answered(server, (2, 3, 4), 0), 1))
    client = setting.client(1, itertools.count(200))
    client.restore(*killed.state())
    client.saved(m.NONE)
    client._inputs.put(name(0), setting.look(1)(name(0)), None, 0)
    client.resume([name(0)])
    told = client.receive(heard(said(server, 1, client.hello()), 1))
    assert [each.event for each in sent(told, m.Happened)] == [name(0)]
    assert client.receive(heard(said(server, 1, told), 1)) == []
    assert (client.told, [*client.settled], len(client._inputs)) == (0, [], 1)
    client.saved(0)
    assert [*client.settled] == [name(0)]


def test_an_event_that_waits_is_kept_once_however_often_it_is_told_again():
    """Also in checkpoints. What was told before is dropped once all is stepped in that may go by it, and no sooner."""
    setting = Setting(activation=ab.Recorded(np.zeros((300, 4), bool)), in_flight=8)
    server, client = joined(setting), setting.client(1, itertools.count(100))

    def again(now):
        """Begins a session."""
        to_hear = heard(said(server, 1, client.hello(), now), 1)
        said(server, 1, client.receive(to_hear), now)

    def play(t, now):
        query = server.open([name(t)], [0], now)
        return heard(query, 1), heard(answered(server, (2, 3, 4), t, now), 1)

    again(0.0)
    for t in range(10):
        said(server, 1, client.happened(name(t)))
    client.receive([each for part in play(0, 0.0) for each in part])
    assert client.applied == 0
    play(1, 1.0)  # with the parameters from before that, and the client hears nothing of it
    again(2.0)
    assert client.applied == 1, "its parameters of then are in what it had kept"
    for t in range(2, 8):
        again(10.0 * t)
        client.receive([each for part in play(t, 10.0 * t) for each in part])
        assert client.applied == t
        assert [len(client._keeping.own[name(i)]) for i in (8, 9)] == [1, 1]
    assert len(client.state()[1]["told"]) == 2


def test_a_reading_whose_round_was_dropped_is_safe_at_once():
    """No derivative comes that a checkpoint could wait for, and perhaps none for as long as another client is away."""
    setting = Setting(rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    client.happened(name(0))
    client.receive([m.Query(1, 0, (name(0),), None)])
    client.receive([m.Void(client._session, (0,), ())])
    assert [*client.settled] == [name(0)]
    # What is kept of a round of an earlier server is not what this one says of its own.
    client.happened(name(1))
    client.receive([m.Query(1, 1, (name(1),), None)])
    hello = hello_of(client)
    (again,) = sent(client.receive([m.Welcome(hello.session, 2, setting.terms, 5, "schema 1", 0)]), m.Happened)
    client.receive([m.Void(client._session, (1,), ())])
    assert (again.event, client.told, [*client.settled]) == (name(1), 1, [name(0)])


def test_a_dropped_round_is_over_for_who_has_not_read_its_query_yet():
    setting = Setting(rounds=10, missing=(Wait(), Skip(), Wait(), Wait()))
    server, clients = setting.server(coalesce=0.0), setting.clients()
    for i, client in enumerate(clients, 1):
        client.receive(sent(server.receive(i, hello_of(client), 0.0), m.Welcome))
    server.receive(2, m.Bye(clients[1]._session, m.NONE, "away"), 0.0)
    tellers = [1, 3, 4]
    for i in tellers:
        server.receive(i, *sent(clients[i - 1].happened(name(0)), m.Happened), 0.0)
    actions = server.open([name(0)], [1], 0.0)
    assert server.rounds == 1
    (query,) = sent(actions, m.Query)
    voids = {each.client: each.message for each in actions if isinstance(each, Send) and each.client}
    assert [*voids] == tellers
    for i in tellers:
        clients[i - 1].receive([voids[i], query])
        assert [*clients[i - 1].settled] == [name(0)]
        assert clients[i - 1].state()[1]["happened"] == []


def test_an_event_that_wants_no_reply_gets_none():
    """The server knows of it already; a reply to no question would look like a client that is wrong."""
    setting = Setting(rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    client.happened(name(0))
    assert client.receive([m.Ask(1, m.NONE, 3, False, (name(0), b"nowhere"), None)]) == []
    assert [*client.settled] == [name(0)]
    assert client._inputs.get(name(0)) is not None


def test_many_derivatives_sent_again_are_looked_through_once():
    class Counting(tuple):
        looked = 0

        def __getitem__(self, i):
            Counting.looked += 1
            return super().__getitem__(i)

    setting = Setting(activation=ab.Full(), rounds=200)
    world, _ = play(setting)
    client = setting.client(1, itertools.count(500))
    actions = world.server.receive(1, hello_of(client), world.now + 9)
    client.receive(sent(actions, m.Welcome))
    (again,) = sent(actions, m.Derivatives)
    assert client.receive([dataclasses.replace(again, applied=Counting(again.applied))]) == []
    assert client.applied == 199
    assert Counting.looked <= 10 * 200


# -- events of its own under SLR ---------------------------------------------------------------------------------------


def test_under_slr_events_of_its_own_wait_too_and_are_passed_over_by_later_rounds():
    """The server is told of none of them: no more of them may be read than are remembered."""
    setting = Setting(ab.SLR(3), ab.Recorded(np.zeros((300, 4), bool)), rounds=10)
    server, client = setting.server(), setting.client(1)
    client.receive(sent(server.receive(1, hello_of(client), 0.0), m.Welcome))
    assert [client.happened(name(i)) for i in range(4)] == [[]] * 4
    assert client.told == 4
    (answered,) = sent(client.receive([m.Query(1, 0, (name(0),), None)]), m.Embeddings)
    assert answered.activated.tolist() == [True]
    assert client.pass_over(lambda event: int(event) < 1) == [], "its derivative is on its way"
    (note,) = client.pass_over(lambda event: int(event) < 2)
    assert note.what == "event dropped"
    assert ([*client.settled], client.told) == ([name(1)], 3)
    assert Setting(rounds=10).client(1).pass_over(lambda event: True) == [], "a server says so itself"


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
    "an old session": (changed(session=99), "old session", "sent Embeddings of an old session"),
    "replayed": (lambda world, good: world.earlier[:-1][-3:], "late", "when it was over"),
    "the server's": (
        lambda world, good: [m.Query(1, 0, (b"",), None)],
        "unexpected",
        "sent Query, which no client does",
    ),
    "a log's": (
        lambda world, good: [m.Record(b"", 0, np.ones(4, bool), (0,) * 4, (0,) * 4, good.values)],
        "unexpected",
        "Record",
    ),
    "told NaN": (
        lambda world, good: [m.Happened(good.session, -1, -1, b"x", np.full(5, np.nan, np.float32))],
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


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_counts_as_missing(kind):
    make, what, _ = BAD[kind]
    lies: Counter[int] = Counter()

    def some(world, good):
        """In each round, so that a world in which messages take no time comes to the deadline."""
        lies[good.rounds[0]] += 1
        return make(world, good) if lies[good.rounds[0]] < 10 else []

    setting = Setting(activation=ab.Full(), rounds=15, missing=(Wait(), Zero(), Wait(), Wait()))
    log = []
    world = Liar(setting, some, played=lambda each: log.extend(each.records))
    world.true = False
    world.run()
    assert [HOW[record.missing[1]] for record in log] == ["zero"] * 15
    if what == "unusable" and kind not in ("no round", "told NaN"):  # it names the round
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
        (replace(good, factors=(2.0, 2.0)), "unusable"),
        (replace(good, factors=(np.nan,)), "unusable"),
        (replace(good, factors=(-1.0,)), "unusable"),
        (replace(good, emptied=np.ones(2, bool)), "unusable"),
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


@pytest.mark.parametrize("number", range(22))
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
