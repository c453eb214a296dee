"""Questions without a round: nobody who is away, unknown or slow holds up what they have nothing to do with."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest

import anabranch as ab
from anabranch.federation.late_labels import Happening, WaitingRoom
from anabranch.federation.server import ServerParty
from anabranch.federation.source_client import SourcedRoom
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Note, Predicted, Send
from anabranch.protocol.server.missing import HOPELESS, HOW, Skip, Wait, Zero
from anabranch.protocol.server.pending_rounds import Late, Stored
from anabranch.sources.base import Notes
from anabranch.storage.pending_labels import Waiting
from conversations import answer, hello_of, joined, told
from federations import Setting, name, sent

TWO = ((8, 5), (8, 5))
CALM = Setting(ab.DLR(4, 0.9), shapes=TWO, missing=(Wait(), Zero()), rounds=20)


def reply(server, client, asked, *, unknown=(), applied=-1, safe=-1, value=1.0, activated=True) -> m.Reply:
    session = server.seats[client - 1].session
    flags, values = np.full(len(asked), activated), np.full((len(asked), 5), value, np.float32)
    return m.Reply(session, applied, safe, tuple(asked), tuple(unknown), flags, values)


def predicted(actions) -> list[Predicted]:
    return [each for each in actions if isinstance(each, Predicted)]


def asked_of(actions) -> list[tuple[int | None, m.Ask]]:
    return [
        (each.client, each.message) for each in actions if isinstance(each, Send) and isinstance(each.message, m.Ask)
    ]


def test_a_client_that_does_not_know_an_event_yet_is_asked_again():
    """Its policy is to wait, so the event can only be predicted once it knows it."""
    server = joined(CALM)
    server.questions.ask([b"0"], 0.0, first=0)
    server.receive(2, reply(server, 2, [0]), 0.1)
    assert not predicted(server.receive(1, reply(server, 1, [], unknown=[0]), 0.1))
    assert server.unknowing() == []
    assert [client for client, _ in asked_of(server.tick(1.1))] == [1]
    assert (server.unknowing(), server.awaited(), server.room) == ([1], [], 0)
    (done,) = predicted(server.receive(1, reply(server, 1, [0]), 1.2))
    assert (done.number, done.missing, server.unknowing()) == (0, (0, 0), [])


def test_an_event_with_a_value_that_a_client_cannot_use_is_not_waited_for():
    """It is predicted without, though its policy is to wait; a client that comes again is asked again."""
    server = joined(CALM)
    session = server.seats[0].session
    server.questions.ask([b"0", b"1"], 0.0, first=0)
    server.receive(2, reply(server, 2, [0, 1]), 0.1)
    actions = server.receive(1, m.Unusable(session, (b"0", b"elsewhere")), 0.1)
    (done,) = predicted(actions)
    assert (done.event, done.prediction, done.missing) == (b"0", None, (HOW.index("skip"), 0))
    assert [each.text for each in actions if isinstance(each, Note)] == [f"client 1: {HOPELESS}"]
    assert not server.receive(1, m.Unusable(session, (b"0",)), 0.2)
    (done,) = predicted(server.receive(1, reply(server, 1, [1]), 0.3))
    assert (done.event, done.missing) == (b"1", (0, 0))


def test_an_event_that_nobody_knows_is_said_to_be_waited_for():
    server = joined(CALM)
    server.questions.ask([b"0"], 0.0)
    server.questions.ask([b"1"], 0.0, first=0)
    notes = [each for i in (1, 2) for each in server.receive(i, reply(server, i, [], unknown=[1]), 0.1)]
    asked = [each for i in (1, 2) for each in server.receive(i, reply(server, i, [], unknown=[0]), 0.1)]
    waits = "it has no features for this event, and is waited for, since its missing is 'wait'"
    assert [(each.what, each.text) for each in notes if isinstance(each, Note)] == [
        ("unknown", f"client 1: {waits}"), ("unknown", "client 2: it has no features for this event"),
    ]  # fmt: skip
    # Nobody is waited for where no round follows, and no round lacks anything.
    assert [(each.what, each.text) for each in asked if isinstance(each, Note)] == [
        ("unknown question", f"client {i} was asked for a prediction, and has no features for its event")
        for i in (1, 2)
    ]
    server.tick(1.1)
    assert (server.unknowing(), server.awaited()) == ([1], [])
    server.tick(2.2)  # it says no more
    assert (server.unknowing(), server.awaited()) == ([], [1])


def test_a_question_that_nobody_answers_says_of_no_client_that_it_is_away():
    server = joined(CALM)
    server.questions.ask([b"0"], 0.0)
    (done,) = predicted(server.tick(1.1))
    assert done.prediction is None
    assert all(seat.present for seat in server.seats)
    assert server.room == 1


def test_a_client_that_is_replaced_in_a_question():
    server = joined(CALM)
    server.questions.ask([b"0"], 0.0)
    server.receive(1, reply(server, 1, [0]), 0.1)
    (done,) = predicted(server.tick(1.1))
    assert (done.missing, done.prediction is None) == ((0, 2), False)
    assert float(done.probabilities.sum()) == pytest.approx(1)


def test_an_event_that_is_told_of_again_is_settled():
    """By the number that it has, or as one that is over; each by a message to those that told of it."""
    server = joined(CALM, coalesce=0.0)
    server.receive(1, told(server, 1, b"7"), 0.0)
    ((client, ask),) = asked_of(server.known(b"7", 3, stored=True))
    assert (client, ask.asked, ask.first, ask.stored, ask.events) == (1, m.NONE, 3, True, (b"7",))
    server.receive(1, told(server, 1, b"8"), 0.0)
    (void,) = sent(server.known(b"8", None, stored=True), m.Void)
    assert void.events == (b"8",)
    assert not server.arrived(1.0)


def test_a_client_settles_what_the_server_knows_already():
    client = CALM.client(1)
    client.hello()
    session = client._session
    client.receive([m.Welcome(session, 1, CALM.terms, 5, "schema 1", 0)])
    assert sent(client.happened(b"3"), m.Happened)
    assert client.told == 1
    client.receive([m.Ask(1, m.NONE, 3, False, (b"3",), None)])
    assert client.told == 0
    assert [*client.settled] == [b"3"]
    # The same server's next welcome has nothing told again; another server's has.
    hello = hello_of(client)
    again = client.receive([m.Welcome(hello.session, 1, CALM.terms, 5, "schema 1", 0)])
    assert not sent(again, m.Happened)
    hello = hello_of(client)
    other = client.receive([m.Welcome(hello.session, 2, CALM.terms, 5, "schema 1", 0)])
    assert [each.event for each in sent(other, m.Happened)] == [b"3"]
    # And its query for the event's round is answered, though it was told of.
    (answer,) = sent(client.receive([m.Query(2, 0, (b"3",), None)]), m.Embeddings)
    assert answer.activated.tolist() == [True]


def test_rounds_that_go_by_stored_embeddings_free_the_outbox():
    server = joined(CALM)
    for t in range(6):
        server.questions.ask([name(t)], 0.0, first=t, stored=True)
        applied = server.seats[0].before
        server.receive(2, reply(server, 2, [t], activated=False), 0.0)
        (done,) = predicted(server.receive(1, reply(server, 1, [t], applied=applied, safe=applied), 0.0))
        stored = Stored(done.embeddings, done.activated, done.missing, done.steps)
        server.open([name(t)], [1], 0.0, None, [Late(done.prediction, stored)])
        assert len(server.seats[0].outbox) <= 1
    assert server.seats[0].pushed == 6
    assert server.seats[0].max_delay == 0


def test_who_keeps_features_for_a_round_of_which_nothing_comes_is_told():
    """Else they are kept until they are too many or too old, as if their label might still come."""
    server = joined(Setting(shapes=TWO, missing=(Skip(), Zero()), rounds=20))

    def voided(actions) -> list[tuple[int | None, tuple[bytes, ...]]]:
        voids = [each for each in actions if isinstance(each, Send) and isinstance(each.message, m.Void)]
        return [(each.client, each.message.events) for each in voids]

    # One whose embedding could not be replaced was away: what the others have sent is of no use.
    stored = Stored(None, np.array([False, True]), (3, 0), (0, 0))
    assert voided(server.open([b"0"], [1], 0.0, None, [Late(None, stored)])) == [(2, (b"0",))]
    # One that has replied does not answer when the label is there.
    assert voided(server.open([b"1"], [1], 0.0, None, [Late(1)])) == []
    server.receive(2, m.Bye(server.seats[1].session, m.NONE, "away"), 0.0)
    assert voided(server.receive(1, answer(server, 1, (1,), np.ones((1, 5), np.float32)), 0.0)) == [(2, (b"1",))]
    # A label that comes with its event finds nothing that was kept.
    server.open([b"2"], [1], 0.0)
    ones = np.ones((1, 5), np.float32)
    assert voided(server.receive(1, answer(server, 1, (2,), ones, server.seats[0].before), 0.0)) == []
    assert server.rounds == 3


class Listed:
    """Happenings that are all there."""

    found_none = 0

    def __init__(self, *happenings: Happening) -> None:
        self._left = list(happenings)

    @property
    def over(self) -> bool:
        return not self._left

    def take(self, n: int) -> list[Happening]:
        taken, self._left = self._left[:n], self._left[n:]
        return taken

    def go_on(self, happened: int, labelled: int) -> None:
        pass


def test_labels_keep_their_order_while_an_event_is_being_predicted(tmp_path: Path):
    source = Listed(Happening(b"a"), Happening(b"b"), Happening(b"b", 1), Happening(b"a", 0))
    room = WaitingRoom(Waiting(tmp_path / "waiting", most=10, expiry=None), source, stored=False)
    assert room.take(2) == [b"a", b"b"]
    assert room.number(2) == 0
    assert room.take(2) == []
    for number, event in ((1, b"b"), (0, b"a")):
        nothing = np.zeros(2, bool)
        room.predicted(Predicted(number, event, number, 0, None, None, nothing, (0, 0), (0, 0)))
    assert [each.event for each in room.ready(5)] == [b"b", b"a"]


def test_what_was_predicted_before_the_setting_was_changed_is_learnt_from_as_it_was(tmp_path: Path):
    for stored in (False, True):
        waiting = Waiting(tmp_path / "waiting", most=10, expiry=None)
        room = WaitingRoom(waiting, Listed(), stored=stored)
        number = room.number(1)
        logits, row = np.zeros(2, np.float32), np.ones(4, np.float32)
        room.predicted(Predicted(0, b"%d" % number, number, 0, logits, row, np.ones(2, bool), (0, 0), (3, 0)))
        waiting.label(b"%d" % number, 1, 0)
        if stored:
            ready, lates = room.alike(room.ready(5))
            assert ([each.event for each in ready], lates[0].stored) == ([b"0"], None)
            ready, lates = room.alike(room.ready(5))
            assert [each.event for each in ready] == [b"1"]
            assert lates[0].stored is not None
            assert lates[0].stored.steps == (3, 0)
        waiting.close()


def test_a_log_that_is_ahead_of_the_file_keeps_an_event_from_being_learnt_again(tmp_path: Path):
    waiting = Waiting(tmp_path / "waiting", most=10, expiry=None, durable=True)
    waiting.add(b"a", 0, b"", 0)
    waiting.learnt([b"a", b"b"])  # neither label, nor the second event, had reached the file
    assert not waiting.is_ready
    assert waiting.knows(b"b")
    assert waiting.label(b"b", 1, 0) == "duplicate"
    waiting.add(b"c", 1, b"", 0)
    waiting.label(b"c", 1, 0)
    assert waiting.is_ready


def test_a_server_says_at_powers_of_ten_why_events_are_not_learnt_from(caplog: pytest.LogCaptureFixture) -> None:
    server = ServerParty.__new__(ServerParty)
    server._losses = Notes(Counter(), "", logging.getLogger("test").warning)
    forgotten: list[bytes] = []
    server.conversation = SimpleNamespace(forget=forgotten.extend)
    server._do = AsyncMock()

    async def main() -> None:
        for _ in range(25):
            await server._forget([b"a"], "crowded out", "they are many")
        await server._forget([b"b"] * 80, "expired", "they are late")
        await server._forget([], "expired", "nothing")
        await server._forget([b"a"] * 80, "crowded out", "they are many")

    asyncio.run(main())
    assert len(forgotten) == 185
    assert [each.getMessage().partition("since ")[2] for each in caplog.records] == [
        "they are many",
        "they are many (crowded out: 10 by now)",
        "they are late (expired: 80 by now)",
        "they are many (crowded out: 105 by now)",
    ]


def test_labels_that_keep_a_server_open_are_counted(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=10, expiry=60.0)
    room = SourcedRoom(waiting, Listed(Happening(b"a", 1), Happening(b"b", 1), Happening(b"c")), stored=False)
    assert not room.kept_open_by
    assert room.take(5) == [b"c"]
    assert (len(room.take(5)), room.kept_open_by) == (0, 0)  # an event is under way
    nothing = np.zeros(2, bool)
    room.number(1)
    room.predicted(Predicted(0, b"c", 0, 0, None, None, nothing, (0, 0), (0, 0)))
    assert (room.kept_open_by, room.over) == (2, False)
    room.expect_no_event()
    assert (room.kept_open_by, room.over) == (0, True)
