"""Messages that are well formed and mean harm: they lead to little work, few notes and no lasting memory."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.errors import MessageError
from anabranch.protocol import messages as m
from anabranch.protocol import server as conversation
from anabranch.protocol.actions import Note, Send
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.server import ServerConversation
from federations import EQUAL, Setting, name

WIDTH = EQUAL[0][1]
MANY = 50_000


@pytest.fixture
def server() -> ServerConversation:
    """One that all clients have joined, with a round open."""
    made = Setting(rounds=10).server()
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
    assert sent == [m.Void(7, (-1,))]


def test_stale_answers_lead_to_one_question(server):
    for client in range(1, 5):
        server.receive(client, answer((0,)), 0.0)
    assert server.rounds == 1
    server.open([name(1)], [0], 0.0)
    sent = [each.message for each in server.receive(1, answer((1,) * MANY), 0.0) if isinstance(each, Send)]
    assert [type(each) for each in sent] == [m.Derivatives, m.Query]


def test_an_event_told_of_with_parameters_that_cannot_be_is_not_used(server):
    before = server.seats[0].before
    told = m.Happened(7, before + 1, b"new", np.zeros(WIDTH, np.float32))
    (note,) = server.receive(1, told, 0.0)
    assert isinstance(note, Note)
    assert note.what == "unusable"
    assert "which it was never sent" in note.text
    assert not server.arrived(1.0)


def test_events_told_of_in_a_flood_are_forgotten(server, monkeypatch):
    monkeypatch.setattr(conversation, "REMEMBERED", 10)
    notes = []
    for t in range(25):
        notes += server.receive(1, m.Happened(7, m.NONE, b"%d!" % t, np.zeros(WIDTH, np.float32)), 0.0)
    assert server.arrived(1.0) == [b"%d!" % t for t in range(15, 25)]
    assert [each.what for each in notes] == ["event dropped"] * 15
    assert not any("!" in each.text for each in notes), "no name of an event"


def test_a_query_has_one_form_only():
    raw = bytearray(encode(m.Query(2, 5, (b"one",), np.array([[True]]))))
    place = raw.index(b"one") + 3
    assert raw[place] == 1
    raw[place] = 0x11
    with pytest.raises(MessageError, match="whether flags follow is 17"):
        decode(bytes(raw))
