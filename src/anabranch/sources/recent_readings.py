"""The last readings of each entity, in memory: what it was at a time not long ago."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from anabranch.checks import whole
from anabranch.sources.base import Freshness, Reading
from anabranch.storage.event_ids import Names

ENTITIES, HISTORY = 1_000_000, 16
Place: TypeAlias = Literal["last", "before others", "again"]
"""Where a reading is among those of its entity; again, where there is one of the same time."""


class Latest:
    """The last readings of each entity.

    Args:
        names: of events.
        entities: how many are held; the one without a reading for the longest goes.
        history: how many readings of each.
        fresh: which of them still count at an event's time; None is all.

    >>> names = Names(bytes(32))
    >>> latest = Latest(names)
    >>> for time in (10, 30, 20):
    ...     print(latest.add(Reading("x", time, {"a": time})))
    last
    last
    before others
    >>> [latest.look(names.of("x", time)) for time in (5, 25, 99)]
    [None, {'a': 20}, {'a': 30}]
    """

    def __init__(
        self, names: Names, entities: int = ENTITIES, history: int = HISTORY, fresh: Freshness | None = None
    ) -> None:
        self._names, self._fresh = names, fresh or Freshness(None, Counter())
        self._entities, self._history = whole("entities", entities, 1), whole("history", history, 1)
        self._held: OrderedDict[bytes, tuple[str, list[Reading]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, reading: Reading) -> Place:
        """Return one more reading, and where it is among those of its entity; of two of the same time the later one
        counts.
        """
        key = self._names.hash(reading.entity)
        _, readings = self._held.setdefault(key, (reading.entity, []))
        self._held.move_to_end(key)
        begin = bisect_left(readings, reading.time, key=_time)
        place: Place = "last" if begin == len(readings) else "before others"
        if begin < len(readings) and readings[begin].time == reading.time:
            place = "again"
        readings[begin : begin + (place == "again")] = [reading]
        if len(readings) > self._history:
            del readings[0]
        if len(self._held) > self._entities:
            self._held.popitem(last=False)
        return place

    def remove(self, entity: str) -> None:
        """An entity is known no more."""
        self._held.pop(self._names.hash(entity), None)

    def entity(self, key: bytes) -> str | None:
        """Return the entity of a keyed hash; None where none had a reading."""
        held = self._held.get(key)
        return None if held is None else held[0]

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the values of an event's entity at or before its time; None where none is held."""
        read = self._names.read(name)
        held = None if read is None else self._held.get(read[0])
        if read is None or held is None:
            return None
        place = bisect_right(held[1], read[1], key=_time)
        return self._at(held[1][place - 1], read[1]) if place else None

    def last(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the last values of an event's entity, whenever the event was; None where none is held."""
        read = self._names.read(name)
        held = None if read is None else self._held.get(read[0])
        return None if read is None or held is None else self._at(held[1][-1], read[1])

    def _at(self, reading: Reading, moment: int) -> Mapping[str, Any]:
        return self._fresh(reading.values, reading.time, moment)


def _time(reading: Reading) -> int:
    return reading.time
