"""The server's part in late labels: events are predicted when they happen, and wait here until their labels come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from anabranch.federation.expiry import ExpiryClock, Uptime
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Predicted
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.server.pending_rounds import Late, Stored
from anabranch.storage.pending_labels import Ready, Waiting
from anabranch.storage.place import Place

LOOK_AGAIN = 1.0
"""Seconds between two looks at who has waited too long."""
WAITS = 10_000
"""So many labels wait at most for the predictions of events that are under way."""


class Happening(NamedTuple):
    """An event that happens, or a label that comes."""

    event: bytes
    label: int | None = None
    """None where the event happens."""
    time: int | None = None
    """When the label became known, in microseconds since 1970; None if nobody knows."""
    place: Place | None = None
    """Of the label in its source; None if the source has no places."""


class Happenings(Protocol):
    """Where the server's events and their late labels come from."""

    @property
    def over(self) -> bool:
        """Whether none will come any more."""

    @property
    def found_none(self) -> int:
        """How often it has looked for more and found none; 0 if it does not say."""

    def take(self, n: int) -> list[Happening]:
        """Up to ``n`` that are there now, in order."""

    async def more(self) -> None:
        """Return when `take` may have some again, or there will be none."""

    def go_on(self, happened: int, labelled: int) -> None:
        """So many events and labels were taken by an earlier process of this server."""


class WaitingRoom:
    """Which events are to be predicted next, and which are to be learnt from.

    Args:
        waiting: the events that were predicted, on the disk.
        source: of events and labels.
        stored: whether a round goes by the embeddings that were sent when its event happened.
        clock: what expires by; by default the time that the server was up.
    """

    def __init__(self, waiting: Waiting, source: Happenings, *, stored: bool, clock: ExpiryClock | None = None) -> None:
        self.waiting, self.source, self.stored = waiting, source, stored
        self._clock: ExpiryClock = Uptime(waiting) if clock is None else clock
        self._asked: dict[bytes, None] = {}
        """Events whose predictions are under way."""
        self._next = waiting.counts["happened"]
        """The number of the next event to be asked for."""
        self._predicted: dict[int, Predicted] = {}
        """Predictions that came before that of an earlier event: they are written in order."""
        self._held: deque[Happening] = deque()
        """Labels whose events are being predicted."""
        self._here: deque[Happening] = deque()
        self._look_again = 0.0
        self._gone: list[bytes] = []
        """Events that have expired, and that nobody was told of yet."""
        self.without_event = 0
        """Labels of moments without an event, as it seems: they wait for theirs, and later events have happened."""
        self._quiet = self._looked = 0.0
        """For how many seconds nothing has happened since the labels ended, and when that was looked at last."""
        self._happened = 0
        """How many events had happened then."""
        self._gave_up = False
        """Whether labels were left out, since no event follows."""
        self.kept: Callable[[Happening], None] = lambda label: None
        """Called with each label that no death of the process loses any more."""

    def go_on(self, replayed: Iterable[bytes]) -> None:
        """An earlier process has played the rounds of these events last."""
        self.waiting.learnt(replayed)
        self.source.go_on(self.waiting.counts["happened"], self.waiting.counts["labelled"])

    @property
    def over(self) -> bool:
        """Whether nothing will come of anything here any more."""
        return self._is_still

    @property
    def _is_still(self) -> bool:
        """Whether nothing comes of itself any more, and nothing is under way."""
        return self.source.over and not (self._here or self._held or self._asked)

    @property
    def reads_on(self) -> bool:
        """Whether more labels may be read: not while too many wait here that are ahead of all events."""
        return self.waiting.has_room(self._clock.reached)

    @property
    def kept_open_by(self) -> int:
        """How many labels it waits for the events of, where nothing else is waited for."""
        return self.waiting.early if self._is_still and not self.over else 0

    def ready(self, room: int) -> list[Ready]:
        """Return the next events to learn from, at most so many."""
        return self.waiting.ready(room)

    @property
    def is_ready(self) -> bool:
        """Whether `ready` has something to give."""
        return self.waiting.is_ready

    def sort_in(self, n: int) -> None:
        """Sort in the labels that are here, up to the next event or to the first label that makes a round ready.

        Args:
            n: how many are taken from the source at a time.
        """
        while not self.waiting.is_ready and (each := self._head(n)) is not None and each.label is not None:
            if self._held or each.event in self._asked:  # those that follow wait too, so that their order stays
                if len(self._held) >= WAITS:
                    break
                self._held.append(self._here.popleft())
            else:
                self._label(self._here.popleft())

    def _head(self, n: int) -> Happening | None:
        if not self._here and self.reads_on:
            self._here.extend(self.source.take(n))
        return self._here[0] if self._here else None

    def take(self, room: int) -> list[bytes]:
        """Return the next events to predict, at most so many; labels that come before them are sorted in.

        Returns none where labels have made rounds ready, which go first.
        """
        events: list[bytes] = []
        while len(events) < room:
            if not events:  # an event that happens before the label comes is predicted before it is learnt from
                self.sort_in(room)
            each = self._head(room)
            if each is None or each.label is not None or (not events and self.waiting.is_ready):
                break
            events += self._new([self._here.popleft().event])
        return events

    def arrived(self, events: Sequence[bytes]) -> list[bytes]:
        """Return those of the events that clients have told of that are new here."""
        return self._new(events)

    def _new(self, events: Sequence[bytes]) -> list[bytes]:
        new = [event for event in events if event not in self._asked and not self.waiting.knows(event)]
        self._asked |= dict.fromkeys(new)
        return new

    def announced(self, event: bytes, clients: Collection[int]) -> None:
        """These clients have announced an event, and it is predicted now, or was before."""
        self._clock.asked(event, clients)

    def expect_no_event(self) -> None:
        """No client announces an event any more: the labels that wait for theirs are left out once all others came."""
        if self._is_still and self.waiting.early:
            self.without_event, self._gave_up = self._passed(), True
            self.waiting.give_up_early()

    def _passed(self) -> int:
        return self.waiting.passed() if self._clock.timed else 0

    def number(self, n: int) -> int:
        """Return the number of the first of ``n`` events that are asked for now."""
        first = self._next
        self._next += n
        return first

    def _label(self, each: Happening) -> None:
        """Sort a label in."""
        assert each.label is not None
        self._expire(each.time)
        self.waiting.label(each.event, each.label, self._clock.since(each.event), each.time, each.place)
        self.kept(each)

    def predicted(self, predicted: Predicted) -> list[bytes]:
        """An event was predicted; it waits from now on, and is on the disk.

        Returns:
            The events that had to go, since too many wait.
        """
        self._predicted[predicted.number] = predicted
        gone: list[bytes] = []
        while (each := self._predicted.pop(self.waiting.counts["happened"], None)) is not None:
            gone += self.waiting.add(each.event, each.number, self._record(each), self._clock.since(each.event))
            self._asked.pop(each.event, None)
        while self._held and self._held[0].event not in self._asked:
            self._label(self._held.popleft())
        return gone

    def _record(self, each: Predicted) -> bytes:
        embeddings = each.embeddings if self.stored else None
        return encode(
            m.Record(
                event=each.event,
                label=0,
                activated=each.activated,
                missing=each.missing,
                applied=each.steps if self.stored else (m.NONE,) * len(each.steps),
                embeddings=np.zeros(0, np.float32) if embeddings is None else embeddings,
                predicted=m.NOTHING if each.prediction is None else each.prediction,
                stored=self.stored,
            )
        )

    def late(self, ready: Ready) -> Late:
        """What its round needs."""
        record = decode(ready.record, most=None)
        assert isinstance(record, m.Record)
        predicted = None if record.predicted == m.NOTHING else record.predicted
        if not record.stored:  # it may have been predicted before the setting was changed
            return Late(predicted)
        embeddings = record.embeddings if record.embeddings.size else None
        return Late(predicted, Stored(embeddings, record.activated, record.missing, record.applied))

    def alike(self, ready: Sequence[Ready]) -> tuple[list[Ready], list[Late]]:
        """Return the first of them that are learnt from in the same way, and what their rounds need; the others
        wait.
        """
        lates = [self.late(each) for each in ready]
        kinds = [each.stored is None for each in lates]
        n = kinds.index(not kinds[0]) if (not kinds[0]) in kinds else len(kinds)
        self.waiting.put_back(ready[n:])
        return list(ready[:n]), lates[:n]

    def number_of(self, event: bytes) -> int | None:
        """Of an event that waits; None where none of this name does."""
        return self.waiting.number(event)

    def is_under_way(self, event: bytes) -> bool:
        """Return whether an event is just being predicted."""
        return event in self._asked

    def activated(self, ready: Sequence[Ready]) -> np.ndarray:
        """(n, M): whom their events have activated."""
        records = [decode(each.record, most=None) for each in ready]
        return np.stack([record.activated for record in records if isinstance(record, m.Record)])

    def learnt(self, events: Iterable[bytes]) -> None:
        """Rounds were played of these."""
        self.waiting.learnt(events)

    def due(self, now: float) -> float:
        """When `expired` should be asked again; both by the monotonic clock."""
        return max(self._look_again, now)

    def expired(self, now: float, awaited: Collection[int], *, idle: bool) -> list[bytes]:
        """Return the events that have waited too long, and look for more of them once in a while.

        Args:
            now: by the monotonic clock.
            awaited: the clients that may announce events yet.
            idle: whether the source has no label that was not taken.
        """
        if now >= self._look_again:
            self._look_again = now + LOOK_AGAIN
            idle = idle and not self._here
            self._clock.look(now, awaited, idle=idle, found_none=self.source.found_none)
            self._gone += self.waiting.expire(self._clock.now, self._clock.passed)
            self._give_up_after_quiet(now)
            if not self._gave_up:
                self.without_event = self._passed()
        gone, self._gone = self._gone, []
        return gone

    def expire_now(self) -> list[bytes]:
        """Return the events that have waited too long by now, when no other look follows."""
        gone, self._gone = [*self._gone, *self.waiting.expire(self._clock.now, self._clock.passed)], []
        return gone

    def _give_up_after_quiet(self, now: float) -> None:
        """Leave out the labels that wait for events, where labels have ended and nothing happens for too long.

        Only time counts in which the server was up: a step between two looks is never long.
        """
        happened, step = self.waiting.counts["happened"], min(now - self._looked, 2 * LOOK_AGAIN)
        quiet = self._is_still and happened == self._happened
        self._quiet = self._quiet + step if quiet else 0.0
        self._looked, self._happened = now, happened
        if self.waiting.expiry is not None and self._quiet > self.waiting.expiry:
            self.expect_no_event()

    def _expire(self, moment: int | None) -> None:
        """Let go of what has waited too long at this moment of the data."""
        if moment is not None:
            self._clock.read(moment)
            self._gone += self.waiting.expire(self._clock.now, self._clock.passed)
