"""Labels from any source: an event's name, its label, and when it became known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from anabranch.sources.base import Happening, Notes, Source
from anabranch.sources.features import is_missing
from anabranch.storage.event_ids import Names
from anabranch.storage.times import text_of


class LateLabel(NamedTuple):
    """A label that has come, seconds or weeks after its event."""

    name: bytes
    """Of the event."""
    label: int
    time: int
    """Of the event, in microseconds since 1970."""
    happening: Happening

    async def safe(self) -> None:
        """Whoever took it will not lose it."""
        await self.happening.safe()


class SourceLabels:
    """The labels in a column of a source, each of the event that its row is of.

    A row without a label yet is passed over; once it has one, the source must give it anew, as a table does whose time
    column says when a row was changed (the event's own time is then in its ``event_time``). A label that is no class is
    counted, said, and left out.

    Args:
        source: whose readings have the label.
        column: of the label.
        classes: how many there are; labels are whole numbers from 0.
    """

    def __init__(self, source: Source, column: str, classes: int) -> None:
        self._source, self._column, self._classes = source, column, classes
        self.counts: Counter[str] = source.counts
        self.notes = Notes(self.counts, "labels")

    @property
    def found_none(self) -> int:
        """How often the source has looked for more labels and found none; 0 if it does not say."""
        return int(getattr(self._source, "found_none", 0))

    async def labels(self) -> AsyncIterator[LateLabel]:
        """Yield each label, as it comes."""
        async for happening in self._source.readings():
            value = happening.reading.values.get(self._column)
            label = None if is_missing(value) else _whole(value)
            if label is not None and 0 <= label < self._classes:
                yield LateLabel(happening.name, label, _time_of(happening), happening)
                continue
            if is_missing(value):
                self.counts["without a label"] += 1
            else:
                self.notes.note(
                    "no class",
                    f"column '{self._column}': the label of a row of {text_of(happening.reading.time)} is none of 0 to "
                    f"{self._classes - 1}, and is left out: is the number of classes right?",
                )
            await happening.safe()
            await asyncio.sleep(0)  # a file's rows come without a pause, and everything else is to go on


def _time_of(happening: Happening) -> int:
    """Of its event, in microseconds since 1970."""
    read = Names.read(happening.name)
    return happening.reading.time if read is None else read[1]


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and "_" in value:  # Python reads 1_0 as 10
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None
