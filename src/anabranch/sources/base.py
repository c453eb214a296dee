"""What every source is: readings as they happen, and the values of an entity as they were at a time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from anabranch.errors import ConfigError
from anabranch.storage.place import Place
from anabranch.storage.times import text_of

AsOf: TypeAlias = Literal["event", "now"]
"""What a look-up is of: the last values at or before the event, or the last there are."""

_log = logging.getLogger(__name__)


def check_as_of(as_of: str) -> AsOf:
    """It, where it is one; else a ConfigError."""
    if as_of not in ("event", "now"):
        raise ConfigError(f"as_of is {as_of!r}: must be 'event' or 'now'")
    return as_of  # type: ignore[return-value]


class Reading(NamedTuple):
    """What was known of an entity from a time on."""

    entity: str
    """Its id as a text; empty where only the time counts, as with sensors."""
    time: int
    """Microseconds since 1970, in UTC."""
    values: Mapping[str, Any]
    """By column."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A reading that has come, and so an event."""

    name: bytes
    """Of the event, on the wire."""
    reading: Reading
    acknowledge: Callable[[], Awaitable[None]] | None = None
    place: Place | None = None
    """None where the source gives nothing again that it was told is safe."""

    async def safe(self) -> None:
        """Whoever took it will not lose it: the source need not give it again after a restart."""
        if self.acknowledge is not None:
            await self.acknowledge()


class Source(Protocol):
    """Where readings come from.

    A source gives a reading again, after a restart, unless it was said to be safe; whoever takes them must not mind.
    """

    counts: Counter[str]
    """How often something came that a person may want to know of, by what it was."""
    slow: bool
    """Whether `look` may take a while: another thread may then call it, whatever else goes on."""

    async def begin(self) -> None:
        """Get ready to be asked, once, before anything else."""
        ...

    def readings(self) -> AsyncIterator[Happening]:
        """Return readings as they happen; it ends where none will follow."""
        ...

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the last values of an event's entity at or before its time; None where there are none.

        Raises:
            AwayError: where it cannot say now, and may later.
        """
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


class Freshness:
    """Which values still count at an event's time: those of a reading that is too old are missing.

    Args:
        most: seconds that a reading may be older than the event; None is any.
        counts: where those that are too old are counted.

    Raises:
        ConfigError: where ``most`` is not above 0.

    >>> fresh = Freshness(60.0, Counter())
    >>> fresh({"light": 3}, 0, 60_000_000), fresh({"light": 3}, 0, 60_000_001)
    ({'light': 3}, {'light': None})
    """

    def __init__(self, most: float | None, counts: Counter[str]) -> None:
        if most is not None and not most > 0:
            raise ConfigError(f"max_age = {most}: must be a number of seconds above 0")
        self._most, self._counts = most, counts

    def __call__(self, values: Mapping[str, Any], read_at: int, event: int) -> Mapping[str, Any]:
        """Return a reading's values at the time of an event; both times are in microseconds since 1970."""
        if self._most is None or event - read_at <= self._most * 1e6:
            return values
        self._counts["too old"] += 1
        return dict.fromkeys(values)


class Notes:
    """Counts what a person may want to know of. It says the first of each kind, and again when they are ten times more.

    Args:
        counts: by kind.
        where: the text that messages begin with.
        say: logs a message; by default as a warning of no party.

    >>> notes = Notes(Counter(), "labels", print)
    >>> for _ in range(99):
    ...     notes.note("no class", "a label is no class")
    labels: a label is no class
    labels: a label is no class (no class: 10 by now)
    >>> notes.note("no class", "labels are no class", 1000)
    labels: labels are no class (no class: 1,099 by now)
    """

    def __init__(self, counts: Counter[str], where: str, say: Callable[[str], None] | None = None) -> None:
        self._counts, self._where = counts, where
        self._say = _log.warning if say is None else say

    def __getitem__(self, kind: str) -> int:
        """Return how many of a kind there were."""
        return self._counts[kind]

    def note(self, kind: str, text: str, n: int = 1) -> None:
        """Count ``n`` more of a kind."""
        before, count = self._counts[kind], self._counts[kind] + n
        self._counts[kind] = count
        if before < 10 ** (len(str(count)) - 1) <= count:
            begin = f"{self._where}: " if self._where else ""
            self._say(f"{begin}{text}{f' ({kind}: {count:,} by now)' if count > 1 else ''}")


def note_place(notes: Notes, reading: Reading, place: str) -> None:
    """Note a reading that is older than another of its entity, or of the same time."""
    if place == "before others":
        notes.note(
            "back in time",
            f"a reading of {text_of(reading.time)} has come after a later one of its entity: it counts by its own time",
        )
    if place == "again":
        notes.note(
            "duplicate",
            f"two readings of one entity are both of {text_of(reading.time)}: they are one event",
        )


class ClockCheck:
    """Notes readings that are from the future, by this machine's clock: some clock is wrong, or a time zone.

    Args:
        notes: where they are counted.
        most: seconds that a reading may be ahead.
        clock: seconds since 1970.
    """

    def __init__(self, notes: Notes, most: float, clock: Callable[[], float] = time.time) -> None:
        self._notes, self._most, self._clock = notes, most, clock

    def check(self, reading: Reading) -> None:
        """Look at a reading; it counts by its own time all the same, as all parties name it by that."""
        ahead = reading.time / 1e6 - self._clock()
        if ahead > self._most:
            self._notes.note(
                "ahead of the clock",
                f"a reading of {text_of(reading.time)} is {ahead:,.0f} s ahead of this machine's clock: is a clock or "
                "a time zone wrong? It counts by its own time",
            )
