"""Messages that are well formed and mean harm: they lead to little work, few notes and no lasting memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from anabranch.errors import MessageError
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note, Send
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.server import conversation as conversation
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.missing import Zero
from conversations import hello_of
from federations import EQUAL, Setting, name, sent

WIDTH = EQUAL[0][1]
MANY = 50_000


@pytest.fixture
def server() -> ServerConversation:
    """One that all clients have joined, with a round open."""
    made = Setting(rounds=10).server(coalesce=0.0, deadline=2.0)
    for seat in made.seats:
        seat.session, seat.present = 7, True
    made.open([name(0)], [0], 0.0)
    return made


def answer(rounds: tuple[int, ...], applied: int = m.NONE) -> m.Embeddings:
    n = len(rounds)
    return m.Embeddings(7, applied, m.NONE, rounds, np.ones(n, bool), np.zeros((n, WIDTH), np.float32))


def test_a_message_of_very_many_rounds_leads_to_one_note(server):
    notes = [
        action
        for message in (answer(tuple(range(5, MANY + 5))), answer((0,) * MANY), answer((-1,) * MANY))
        for action in server.receive(1, message, 0.0)
    ]
    assert [(each.what, each.count, each.client) for each in notes if isinstance(each, Note)] == [
        ("no such round", MANY, 1),
        ("twice", MANY - 1, 1),
        ("late", MANY, 1),
    ]
    sent = [each.message for each in notes if isinstance(each, Send)]
    assert sent == [m.Void(7, (-1,), ())]


def test_stale_answers_lead_to_one_question(server):
    for client in range(1, 5):
        server.receive(client, answer((0,)), 0.0)
    assert server.rounds == 1
    server.open([name(1)], [0], 0.0)
    sent = [each.message for each in server.receive(1, answer((1,) * MANY), 0.0) if isinstance(each, Send)]
    assert [type(each) for each in sent] == [m.Derivatives, m.Query]


def test_an_event_told_of_with_parameters_that_cannot_be_is_not_used(server):
    before = server.seats[0].before
    told = m.Happened(7, before + 1, m.NONE, b"new", np.zeros(WIDTH, np.float32))
    (note,) = server.receive(1, told, 0.0)
    assert isinstance(note, Note)
    assert note.what == "unusable"
    assert "which it was never sent" in note.text
    assert not server.arrived(1.0)


def test_events_told_of_in_a_flood_are_forgotten(server, monkeypatch):
    monkeypatch.setattr(conversation, "REMEMBERED", 10)
    notes = []
    for t in range(25):
        notes += server.receive(1, m.Happened(7, m.NONE, m.NONE, b"%d!" % t, np.zeros(WIDTH, np.float32)), 0.0)
    assert server.arrived(1.0) == [b"%d!" % t for t in range(15, 25)]
    said = [each for each in notes if isinstance(each, Note)]
    assert [each.what for each in said] == ["event dropped"] * 15
    assert not any("!" in each.text for each in said), "no name of an event"
    told = [each.message.events for each in notes if isinstance(each, Send)]
    assert told == [(b"%d!" % t,) for t in range(15)], "the client forgets them too"


def test_a_flood_of_one_client_drops_no_event_of_another(server, monkeypatch):
    monkeypatch.setattr(conversation, "REMEMBERED", 10)
    happened = m.Happened(7, m.NONE, m.NONE, b"true", np.zeros(WIDTH, np.float32))
    hello, voids = hello_of(Setting().client(1)), []
    assert server.receive(2, happened, 0.0) == []
    assert server.receive(1, happened, 0.0) == []
    for t in range(60):
        if t % 19 == 0:  # in a new session it is no better off
            hello = dataclasses.replace(hello, session=100 + t)
            server.receive(1, hello, 0.0)
        flood = dataclasses.replace(happened, session=hello.session, event=b"%d!" % t)
        voids += [each for each in server.receive(1, flood, 0.0) if isinstance(each, Send)]
    assert server.arrived(1.0) == [b"true", *(b"%d!" % t for t in range(50, 60))]
    # Of what it told in another session, and not again in this one, it is told nothing.
    told = [(1, (b"%d!" % t,)) for t in (*range(9), *range(19, 28), *range(38, 47))]
    assert [(each.client, each.message.events) for each in voids] == told


@pytest.mark.parametrize("value", [3e38, -2e6, np.inf, np.nan])
def test_an_embedding_beyond_all_measure_is_not_used(server, value):
    bad = answer((0,))
    bad.values.setflags(write=True)
    bad.values[0, 1] = value
    (note,) = [each for each in server.receive(1, bad, 0.0) if isinstance(each, Note)]
    assert note.what == "unusable"
    assert server.lacking() == [1, 2, 3, 4]


def test_a_client_that_says_hello_again_and_again_holds_nobody_up():
    setting = Setting(rounds=10, missing=(Zero(),) * 4)
    server = setting.server(deadline=1.0)
    for seat in server.seats:
        seat.session, seat.present = 7, True
    server.open([name(0)], [0], 0.0)
    for client in (2, 3):
        server.receive(client, answer((0,)), 0.0)
    hello = hello_of(setting.client(1))
    for i in range(4):
        now = 0.9 * (i + 1)
        server.receive(1, dataclasses.replace(hello, session=100 + i), now)
        server.tick(now)
    assert server.rounds == 1


def test_what_a_client_saves_in_no_checkpoint_is_not_kept_without_end(server, monkeypatch):
    monkeypatch.setattr("anabranch.protocol.server.client_session.KEPT", 3 * WIDTH)
    for t in range(5):
        for client in range(1, 5):
            actions = server.receive(client, answer((t,), server.seats[client - 1].before), 0.0)
        if server.rounds == t:
            break
        server.open([name(t + 1)], [0], 0.0)
    assert server.rounds == 3
    assert [len(seat.outbox) for seat in server.seats] == [3] * 4
    assert "no more are kept for it" in next(each for each in actions if isinstance(each, Note)).text


def test_a_client_cannot_have_more_kept_by_what_it_says_of_itself(server, monkeypatch):
    """Where the server decides who is activated, what a client says of that counts for nothing; events that it tells of
    are answers, too."""
    monkeypatch.setattr("anabranch.protocol.server.client_session.KEPT", 3 * WIDTH)

    def lie(rounds: tuple[int, ...], client: int) -> m.Embeddings:
        return dataclasses.replace(answer(rounds, server.seats[client - 1].before), activated=np.zeros(1, bool))

    for client in range(1, 5):
        server.receive(client, lie((0,), client), 0.0)  # here they decide
    for t in range(1, 6):
        server.open([name(t)], [0], 0.0, np.ones((1, 4), bool))
        for client in range(1, 5):
            actions = server.receive(client, lie((t,), client), 0.0)
        if server.rounds == t:
            break
    assert server.rounds == 4
    assert [len(seat.outbox) for seat in server.seats] == [3] * 4
    assert "no more are kept for it" in next(each for each in actions if isinstance(each, Note)).text

    before = server.seats[0].before
    asked = server.questions.asked
    server.questions.ask([b"late"], 0.0, first=0, stored=True, activated=np.ones((1, 4), bool))
    values, no = np.zeros((1, WIDTH), np.float32), np.zeros(1, bool)
    (note,) = server.receive(1, m.Reply(7, before, m.NONE, (asked,), (), no, values), 0.0)
    assert "no more are kept for it" in note.text
    for wrong in (np.ones(3, bool), np.ones((), bool)):
        assert server.receive(1, m.Reply(7, before, m.NONE, (), (), wrong, values), 0.0) == []

    for event in (name(4), b"new"):  # its round is open, or it has none yet
        (note,) = server.receive(1, m.Happened(7, before, m.NONE, event, values[0]), 0.0)
        assert "no more are kept for it" in note.text
    assert server.arrived(1.0) == []
    assert server.lacking() == [1, 2, 3, 4]
    (call,) = sent(server.tick(20.0), m.Call)
    assert call.session == 0, "it is to tell once more, and says then what it has saved"
    assert sent(server.tick(20.0), m.Call) == []
    server.receive(1, m.Happened(7, before, before, name(4), values[0]), 0.0)
    assert server.lacking() == [2, 3, 4], "its checkpoint has them"
    assert server.receive(2, m.Reply(7, before, before, (asked,), (), ~no, values), 0.0) == []
    assert [len(seat.outbox) for seat in server.seats] == [0, 0, 3, 3]


def test_derivatives_are_sent_again_in_pieces_and_not_at_every_answer(server, monkeypatch):
    monkeypatch.setattr(conversation, "PIECE", 2 * 4 * WIDTH)
    for t in range(5):
        for client in range(1, 5):
            server.receive(client, answer((t,), server.seats[client - 1].before), 0.0)
        server.open([name(t + 1)], [0], 0.0)

    def again(now: float) -> list[m.Rounds]:
        actions = server.receive(1, answer((5,)), now)
        return [each.message.rounds for each in actions if isinstance(each, Send) and hasattr(each.message, "values")]

    assert again(0.0) == [(0, 1), (2, 3), (4,)]
    assert again(0.5) == []
    assert again(1.5) == [(0, 1), (2, 3), (4,)]


def test_a_client_that_says_hello_again_and_again_is_not_sent_all_each_time(server):
    for t in range(5):
        for client in range(1, 5):
            server.receive(client, answer((t,), server.seats[client - 1].before), 0.0)
        server.open([name(t + 1)], [0], 0.0)
    hello, sessions = hello_of(Setting().client(1)), iter(range(100, 200))

    def sent(actions) -> list[tuple[int, m.Rounds]]:
        messages = [each.message for each in actions if isinstance(each, Send)]
        return [(each.session, each.rounds) for each in messages if isinstance(each, m.Derivatives)]

    def again(now: float, applied: int = m.NONE) -> list[tuple[int, m.Rounds]]:
        return sent(server.receive(1, dataclasses.replace(hello, session=next(sessions), applied=applied), now))

    assert again(1.0) == [(100, (0, 1, 2, 3, 4))]
    assert [again(1.5, applied) for applied in (m.NONE, 2) * 10] == [[]] * 20
    assert server.due() <= 2.0
    assert sent(server.tick(1.9)) == []
    actions = [each for each in server.tick(2.0) if isinstance(each, Send) and each.client == 1]
    assert sent(actions) == [(120, (3, 4))]
    assert [type(each.message) for each in actions[:2]] == [m.Derivatives, m.Query]  # the answer has them
    assert sent(server.tick(3.0)) == []


def test_a_query_has_one_form_only():
    raw = bytearray(encode(m.Query(2, 5, (b"one",), np.array([[True]]))))
    place = raw.index(b"one") + 3
    assert raw[place] == 1
    raw[place] = 0x11
    with pytest.raises(MessageError, match="whether flags follow is 17"):
        decode(bytes(raw))


def test_who_is_owed_derivatives_is_told_of_nothing_before_them(server):
    """Else it would say hello for want of them, and be owed them again, for as long as the times fit."""
    for client in range(1, 5):
        server.receive(client, answer((0,), server.seats[client - 1].before), 0.0)
    hello = hello_of(Setting().client(1))
    for session, now in ((100, 1.0), (101, 1.5)):
        server.receive(1, dataclasses.replace(hello, session=session), now)
    assert server.seats[0].owed

    def told(actions) -> list[type]:
        return [type(each.message) for each in actions if isinstance(each, Send) and each.client == 1]

    assert told(server.open([name(1)], [0], 1.6)) == []
    assert told(server.end("over", 1.7)) == []
    assert told(server.tick(2.0)) == [m.Derivatives, m.Query, m.End]
