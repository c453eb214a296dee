"""A CSV or Parquet file as a source: its rows happen at their own times, and an entity is as its last row says."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError
from anabranch.sources.base import Happening, Notes, Reading
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names, entity_text
from anabranch.storage.place import Place
from anabranch.storage.times import micros
from anabranch.streams.readers import Reader, open_table
from anabranch.streams.tables import find_column

_DATE = re.compile("(19|20)[0-9]{6}")

Order = Literal["check", "sort"]


class FileSource:
    """The rows of a file, in the order of their times; the whole file is held.

    Of two rows of the same entity, time and event time the later one counts, and they are one event.

    Args:
        path: Parquet where the name says so, else CSV; the columns have names.
        names: of events.
        time: the column of the time, or several that make it together, such as a date and a time of day.
        columns: the columns that readings have as values.
        entity: the column of the entity; None where only the time counts.
        event_time: the column of the time of the event that a row tells of, as a label does later; None is its own.
        unit: of a time that is a number: ``"s"``, ``"ms"`` or ``"us"`` since 1970.
        speed: how many seconds of the file pass in a second; None is as fast as possible.
        origin: a time of the file and when that is, both in microseconds since 1970, so that parties with the same
            origin and speed replay together; None is the first row that is left, and the moment when it is read.
        order: ``"check"`` refuses a file whose times go back, ``"sort"`` puts its rows in order.
        cursor: how far it was read before; None begins anew.
        clock: seconds since 1970.
        sleep: waits for so many.

    Raises:
        ConfigError: where there is no such column, or a setting is out of range.
        DataError: where the file cannot be read, or an entity or a time of it is wrong; it names the row.
    """

    slow = False
    """Look-ups are in memory."""

    def __init__(
        self,
        path: Path,
        names: Names,
        time: str | Sequence[str],
        columns: Sequence[str],
        *,
        entity: str | None = None,
        event_time: str | None = None,
        unit: str = "s",
        speed: float | None = None,
        origin: tuple[int, int] | None = None,
        order: Order = "check",
        cursor: Cursor | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if speed is not None and not 0 < speed < math.inf:
            raise ConfigError(f"speed is {speed!r}: must be a number above 0, or left out for as fast as possible")
        if origin is not None and speed is None:
            raise ConfigError("origin says when a replay at a speed begins: give a speed as well")
        if order not in ("check", "sort"):
            raise ConfigError(f"order is {order!r}: must be 'check' or 'sort'")
        self.counts: Counter[str] = Counter()
        self._notes = Notes(self.counts, str(path))
        self._path, self._names, self._speed, self._cursor = path, names, speed, cursor
        self._origin = None if origin is None else (origin[1] / 1e6, origin[0])
        self._clock, self._sleep = clock, sleep
        reader = open_table(path, True)
        moments = [time] if isinstance(time, str) else list(time)
        whose = [] if entity is None else [entity]
        told = [] if event_time is None else [event_time]
        cells = _whole(reader, [*moments, *whose, *told, *columns])
        if not len(cells[0]):
            raise DataError(f"{path}: the file has no rows")
        self._values = dict(zip(columns, cells[len(moments) + len(whose) + len(told) :], strict=True))
        times = _times(reader, moments, cells[: len(moments)], unit)
        entities = _entities(reader, entity, cells[len(moments)]) if entity is not None else [""] * len(times)
        place = len(moments) + len(whose)
        self._event_times = _times(reader, told, cells[place : place + 1], unit) if told else times
        self._arrange(reader, entities, times, order)

    def _arrange(self, reader: Reader, entities: list[str], times: NDArray[np.int64], order: Order) -> None:
        """The order of the rows as events, and of each entity as it changes."""
        back = np.flatnonzero(np.diff(times) < 0)
        if len(back) and order == "check":
            raise DataError(
                f"{reader.path}: row {int(back[0]) + 2} is earlier than the row before it, but rows happen in their "
                'order: sort the file by its time, or write order = "sort"'
            )
        ids: dict[str, int] = {}
        of_row = np.array([ids.setdefault(each, len(ids)) for each in entities], np.int64)
        places = np.arange(len(times))
        rows = np.lexsort((places, times, of_row))  # by entity, then time, then place: a look-up finds the last
        groups = np.split(rows, np.flatnonzero(np.diff(of_row[rows])) + 1)
        self._entities, self._times = entities, times
        self._of_entity = {self._names.hash(entities[int(group[0])]): (times[group], group) for group in groups}
        told = self._event_times  # a label may become known at the same time as that of another event
        rows = np.lexsort((places, told, times, of_row))
        same = (np.diff(of_row[rows]) == 0) & (np.diff(times[rows]) == 0) & (np.diff(told[rows]) == 0)
        if same.any():
            first = int(rows[np.flatnonzero(same)[0] + 1])
            self._notes.note(
                "duplicate",
                f"row {first + 1} has the entity and the time of one before it, and takes its place; "
                f"{int(same.sum()):,} rows are such",
            )
            self.counts["duplicate"] = int(same.sum())
            rows = rows[np.append(~same, True)]
        self._events = rows[np.lexsort((rows, times[rows]))]

    def __len__(self) -> int:
        return len(self._events)

    async def begin(self) -> None:
        """Nothing: it is ready."""

    async def readings(self) -> AsyncIterator[Happening]:
        """Yield the rows, each when its time has come.

        Raises:
            DataError: where the file is another one than the cursor is of.
        """
        done = self._passed()
        began = self._origin
        moment, seen = None, set[bytes]()
        for place in range(done, len(self._events)):
            row = int(self._events[place])
            reading = Reading(self._entities[row], int(self._times[row]), self._of(row))
            name = self._name(place)
            if self._speed is not None:
                began = began or (self._clock(), reading.time)
                due = began[0] + (reading.time - began[1]) / 1e6 / self._speed
                if (left := due - self._clock()) > 0:
                    await self._sleep(left)
            if (now := self._names.moment(reading.time)) != moment:
                moment, seen = now, set()
            if name in seen:  # of the same grain, and so of the same event
                continue
            seen.add(name)
            yield Happening(name, reading, self._acknowledge(place + 1, name), Place(self._path.name, [place]))

    def _passed(self) -> int:
        if self._cursor is None or self._cursor.position is None:
            return 0
        done, name = self._cursor.position
        if not 0 < done <= len(self._events) or self._name(done - 1).hex() != name:
            raise DataError(
                f"{self._path}: {done:,} rows were read before, and the last of them is another now: rows may only be "
                "added at the end; give the old file, or another folder"
            )
        return int(done)

    def _name(self, place: int) -> bytes:
        row = int(self._events[place])
        return self._names.of(self._entities[row], int(self._event_times[row]))

    def _acknowledge(self, done: int, name: bytes) -> Callable[[], Awaitable[None]] | None:
        cursor = self._cursor
        if cursor is None:
            return None
        place = [done, name.hex()]
        cursor.given(place)

        async def acknowledge() -> None:
            cursor.safe(place)

        return acknowledge

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the values of the last row of an event's entity at or before its time."""
        read = self._names.read(name)
        found = None if read is None else self._of_entity.get(read[0])
        if read is None or found is None:
            return None
        times, rows = found
        place = int(np.searchsorted(times, read[1], side="right"))
        return None if not place else self._of(int(rows[place - 1]))

    def _of(self, row: int) -> dict[str, Any]:
        return {name: _value(column[row]) for name, column in self._values.items()}

    async def close(self) -> None:
        """Close the cursor."""
        if self._cursor is not None:
            self._cursor.close()


def entities_of(path: Path, column: str) -> list[str]:
    """Return the entities in a column of a file, in its order, one a row.

    Raises:
        ConfigError: where there is no such column.
        DataError: where the file cannot be read, or a row has none.
    """
    reader = open_table(path, True)
    (cells,) = _whole(reader, [column])
    return _entities(reader, column, cells)


def _whole(reader: Reader, columns: Sequence[str]) -> list[Any]:
    """Whole columns, as the file has them."""
    pieces = list(reader.cells([find_column(reader, name) for name in columns]))
    if not pieces:
        return [pa.array([], pa.string()) for _ in columns]
    return [pa.chunked_array(parts).combine_chunks() for parts in zip(*pieces, strict=True)]


def _entities(reader: Reader, column: str, cells: Any) -> list[str]:
    found: list[str] = []
    for row, cell in enumerate(cells.to_pylist()):
        try:
            found.append(entity_text(cell))
        except DataError as error:
            raise DataError(f"{_where(reader, row, column)}: {error}") from None
    return found


def _times(reader: Reader, columns: Sequence[str], cells: Sequence[Any], unit: str) -> NDArray[np.int64]:
    found = np.empty(len(cells[0]), np.int64)
    if unit == "s" and len(columns) == 1 and len(found) and all(_is_date(_value(cell)) for cell in cells[0]):
        raise DataError(
            f"{_where(reader, 0, columns[0])}: {cells[0][0]} looks like a date, but a number is of seconds since 1970: "
            "write it as 2026-11-28, or with a decimal point if it is of seconds"
        )
    listed = [[_value(cell) for cell in each] for each in cells]
    for row, parts in enumerate(zip(*listed, strict=True)):
        try:
            found[row] = micros(parts[0] if len(parts) == 1 else " ".join(map(str, parts)), unit)
        except DataError as error:
            raise DataError(f"{_where(reader, row, columns[0])}: {error}") from None
    return found


def _value(cell: Any) -> Any:
    """What a cell has, of Python's types; a text of it where Python has none, as of a year after 9999."""
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        return f"{cell.type} {cell.value}"


def _is_date(value: Any) -> bool:
    """Return whether a number is written as the year, month and day of the last or this century."""
    text = str(value).strip()
    if not _DATE.fullmatch(text):
        return False
    try:
        date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        return False
    return True


def _where(reader: Reader, row: int, column: str) -> str:
    return reader.where(row + 1, find_column(reader, column))
