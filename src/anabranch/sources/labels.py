"""Labels from any source: an event's name, its label, and when it became known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from anabranch.errors import DataError
from anabranch.sources.base import Happening, Notes, Source
from anabranch.storage.event_ids import Names
from anabranch.storage.times import text_of
from anabranch.tables.columns import Classes
from anabranch.tables.form import MISSING_VALUES
from anabranch.tables.values import is_missing


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
        classes: how many there are, if labels are whole numbers from 0; or which there are.
        missing_values: the texts that mean that a row has no label yet; an empty one always does.
    """

    def __init__(
        self, source: Source, column: str, classes: int | Classes, missing_values: Sequence[str] = MISSING_VALUES
    ) -> None:
        self._source, self._column, self._missing_values = source, column, frozenset(missing_values)
        self._classes = classes if isinstance(classes, Classes) else Classes(classes)
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
            try:
                label = int(self._classes.number(value, self._missing_values))
            except DataError as error:
                if is_missing(value, self._missing_values):
                    self.counts["without a label"] += 1
                else:
                    when = text_of(happening.reading.time)
                    self.notes.note(
                        "no class", f"column '{self._column}': the label of a row of {when} is left out: {error}"
                    )
            else:
                yield LateLabel(happening.name, label, _time_of(happening), happening)
                continue
            await happening.safe()
            await asyncio.sleep(0)  # a file's rows come without a pause, and everything else is to go on


def _time_of(happening: Happening) -> int:
    """Of its event, in microseconds since 1970."""
    read = Names.read(happening.name)
    return happening.reading.time if read is None else read[1]
