"""The clock that late labels expire by: the data's own, or the time that the server was up.

The machine's clock expires nothing: a busy server is not late, and a clock that jumps loses no event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from anabranch.storage.event_ids import LATEST, Names
from anabranch.storage.pending_labels import Waiting

LONGEST_STEP = 2_000_000
"""Microseconds that `Uptime` counts at most between two looks: a process that was stopped was not up."""
SETTLED = 2
"""After so many looks of a source that found no label, one of them was begun after the first."""


class ExpiryClock(Protocol):
    """Says of which moment an event is, and which moment it is now; all in microseconds."""

    timed: bool
    """Whether the names of events bear their times."""

    def since(self, event: bytes) -> int | None:
        """Return the moment of an event, or of the event of a label; None if it never expires."""

    @property
    def now(self) -> int | None:
        """The moment up to which all labels were read; None if no event expires yet."""

    @property
    def passed(self) -> int | None:
        """The moment up to which all events have happened; None if no label expires yet."""

    @property
    def reached(self) -> int | None:
        """The moment of the newest event; None before the first."""

    def read(self, moment: int | None) -> None:
        """A label that became known at this moment was read."""

    def asked(self, event: bytes, clients: Collection[int]) -> None:
        """An event that these clients have announced is predicted now."""

    def look(self, now: float, awaited: Collection[int], *, idle: bool, found_none: int) -> None:
        """Look again, once in a while.

        Args:
            now: by the monotonic clock.
            awaited: the clients that may announce events yet.
            idle: whether all labels that came are sorted in.
            found_none: how often the source has looked for labels and found none.
        """


class Uptime:
    """The time that the server was up and had read all labels, for events whose names bear no times.

    Args:
        waiting: keeps it.
    """

    timed = False

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._last: float | None = None

    def since(self, event: bytes) -> int | None:
        return self._waiting.uptime

    @property
    def now(self) -> int | None:
        return self._waiting.uptime

    passed = now

    @property
    def reached(self) -> int | None:
        return LATEST  # no label is ahead of an event

    def read(self, moment: int | None) -> None:
        """Nothing: labels have no times."""

    def asked(self, event: bytes, clients: Collection[int]) -> None:
        """Nothing: events have no times."""

    def look(self, now: float, awaited: Collection[int], *, idle: bool, found_none: int) -> None:
        if idle and self._last is not None:
            self._waiting.stay(min(round((now - self._last) * 1e6), LONGEST_STEP))
        self._last = now if idle else None


class DataTime:
    """The times in the data: a label's time moves it on once it is read, and so does an event's.

    An event's time counts once the source of labels has looked and found none after that event. A time that is ahead
    of the machine's clock counts as the machine's: a reading from the future expires nothing of today.

    Args:
        wall: seconds since 1970.

    >>> clock = DataTime(wall=lambda: 100.0)
    >>> clock.read(70_000_000); clock.now
    70000000
    >>> clock.read(10_000_000); clock.read(999_000_000); clock.now
    100000000
    """

    timed = True

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._now: int | None = None
        self._reached: int | None = None
        self._announced: dict[int, int] = {}
        """The newest event of each client that has announced one."""
        self._awaited: Collection[int] | None = None
        self._noted: tuple[int, int | None] = (0, None)
        """How often the source had found no label, and the newest event then."""

    def since(self, event: bytes) -> int | None:
        read = Names.read(event)
        return self._now if read is None else read[1]

    @property
    def now(self) -> int | None:
        return self._now

    @property
    def passed(self) -> int | None:
        if not self._awaited:  # nobody was asked yet, or no event will come at all
            return None
        newest = [self._announced.get(client) for client in self._awaited]
        known = [each for each in newest if each is not None]
        return min(known) if len(known) == len(newest) else None

    @property
    def reached(self) -> int | None:
        return self._reached

    def read(self, moment: int | None) -> None:
        self._now = self._later(self._now, moment)

    def asked(self, event: bytes, clients: Collection[int]) -> None:
        read = Names.read(event)
        if read is None:
            return
        self._reached = self._later(self._reached, read[1])
        for client in clients:
            newest = self._later(self._announced.get(client), read[1])
            if newest is not None:
                self._announced[client] = newest

    def look(self, now: float, awaited: Collection[int], *, idle: bool, found_none: int) -> None:
        self._awaited = awaited
        count, reached = self._noted
        if idle and found_none >= count + SETTLED:
            self._now = self._later(self._now, reached)
            self._noted = found_none, self._reached

    def _later(self, held: int | None, moment: int | None) -> int | None:
        if moment is None:
            return held
        moment = min(moment, int(self._wall() * 1e6))
        return moment if held is None else max(held, moment)
