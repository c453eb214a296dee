"""Any async iterator of readings, and any function of an entity, as a source."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

from anabranch.errors import DataError
from anabranch.sources.base import ClockCheck, Freshness, Happening, Notes, Reading, note_place
from anabranch.sources.recent_readings import Latest
from anabranch.storage.event_ids import Names, entity_text
from anabranch.storage.times import micros

LookUp: TypeAlias = Callable[[str, int], Mapping[str, Any] | None]
"""The values of an entity (an empty text with sensors) at a time, in microseconds since 1970; None where unknown."""
Entities: TypeAlias = Callable[[bytes], str | None]
"""The entity of a keyed hash, as `Names.hash` makes it; None where unknown."""


class PythonSource:
    """Readings from an async iterator, and look-ups by a function.

    Args:
        names: of events.
        readings: as they happen; an entity may be a whole number, and a time whatever
            `anabranch.storage.times.micros` takes. None where there are no events, only look-ups.
        look: the values of an entity at a time. None is the last reading of the entity at or before it.
        entities: whose ids `look` may be asked for, beside those that had readings. Only with a list of them can a
            client answer for an entity of which it had no reading itself, since the wire has keyed hashes alone.
        most_ahead: seconds that a reading may be ahead of this machine's clock before that is noted.
        max_age: seconds that the last reading may be older than an event; then its values are missing. None is any.
        clock: seconds since 1970.

    >>> import asyncio
    >>> async def room():
    ...     yield Reading("", 10, {"light": 3})
    >>> source = PythonSource(Names(bytes(32)), room())
    >>> async def main():
    ...     return [(event.reading.values, source.look(event.name)) async for event in source.readings()]
    >>> asyncio.run(main())
    [({'light': 3}, {'light': 3})]
    """

    slow = False
    """Look-ups are in memory, or the function's own matter."""

    def __init__(
        self,
        names: Names,
        readings: AsyncIterable[Reading] | None = None,
        look: LookUp | None = None,
        entities: Entities | None = None,
        *,
        most_ahead: float = 3600.0,
        max_age: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._names, self._readings, self._look, self._entities = names, readings, look, entities
        self._latest = Latest(names, fresh=Freshness(max_age, self.counts))
        self._notes = Notes(self.counts, "the readings")
        self._ahead = ClockCheck(self._notes, most_ahead, clock)

    async def begin(self) -> None:
        """Nothing: it is ready."""

    async def readings(self) -> AsyncIterator[Happening]:
        """Yield the iterator's; one whose entity or time is none is counted and left out.

        Raises:
            DataError: where something is no reading at all.
        """
        if self._readings is None:
            return
        async for each in self._readings:
            if not isinstance(each, tuple | list) or len(each) != 3 or not isinstance(each[2], Mapping):
                raise DataError(
                    f"the readings gave {_kind(each)}, but each is an entity, a time and a mapping of values by "
                    "column: Reading(entity, time, values), or such a tuple"
                )
            entity, moment, values = each
            try:
                known = "" if entity == "" else entity_text(entity)
                reading = Reading(known, moment if type(moment) is int else micros(moment), values)
            except DataError as error:
                self._notes.note("unusable", f"a reading is left out: {error}")
                continue
            self._ahead.check(reading)
            note_place(self._notes, reading, self._latest.add(reading))
            yield Happening(self._names.of(reading.entity, reading.time), reading)

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the values of an event's entity at its time."""
        if self._look is None:
            return self._latest.look(name)
        read = self._names.read(name)
        if read is None:
            return None
        entity = self._latest.entity(read[0])
        if entity is None and read[0] == self._names.hash(""):
            entity = ""
        if entity is None and self._entities is not None:
            entity = self._entities(read[0])
        return None if entity is None else self._look(entity, read[1])

    async def close(self) -> None:
        """Nothing is held."""


def _kind(each: Any) -> str:
    """What it is, without the values in it."""
    if isinstance(each, tuple | list):
        return f"a {type(each).__name__} of {', '.join(type(part).__name__ for part in each) or 'nothing'}"
    return f"what is of type {type(each).__name__}"
