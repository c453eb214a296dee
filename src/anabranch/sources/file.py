"""A CSV or Parquet file as a source: its rows happen at their own times, and an entity is as its last row says."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError
from anabranch.sources.base import Freshness, Happening, Notes, Reading
from anabranch.sources.intervals import RowError, moments_of, without_twins
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names
from anabranch.storage.place import Place
from anabranch.storage.times import ImplausibleError, TimeRule
from anabranch.tables import Reader, TableForm, open_table
from anabranch.tables.columns import Rule
from anabranch.tables.rows import OrMissing, numbers_of
from anabranch.tables.values import value_of

Order = Literal["check", "sort"]


class FileSource:
    """The rows of a file, in the order of their times; the whole file is held.

    Of two rows of the same entity, time and event time the later one counts, and they are one event.

    Args:
        path: a CSV or Parquet file whose columns have names.
        names: of events.
        time: the column of the time, or several that make it together, such as a date and a time of day.
        columns: the columns that readings have as values.
        entity: the column of the entity; None where only the time counts.
        event_time: the column of the time of the event that a row tells of, as a label does later, or several columns
            that make it together; None is its own.
        interval: the columns of the start and the end of the interval that a row is of; each moment in it, a multiple
            of the names' grain, is then an event. None is without. Then ``time`` may be None, for the moment itself.
        unit: of a time that is a number: ``"s"``, ``"ms"``, ``"us"``, ``"ns"`` or ``"excel"``.
        times: how times are read; None is by ``unit`` alone.
        event_times: how those of ``event_time`` and ``interval`` are; None is likewise.
        speed: how many seconds of the file pass in a second; None is as fast as possible.
        origin: a time of the file and when that is, both in microseconds since 1970, so that parties with the same
            origin and speed replay together; None is the first row that is left, and the moment when it is read.
        order: ``"check"`` refuses a file whose times go back, ``"sort"`` puts its rows in order.
        max_age: seconds that a row may be older than an event; then its values are missing. None is any.
        cursor: how far it was read before; None begins anew.
        form: how the file is written; its first line names the columns, whatever this says.
        rules: of some of the columns, whose values are then missing or such that the rules take them.
        clock: seconds since 1970.
        waited: a clock that never jumps.
        sleep: waits for so many.

    Raises:
        ConfigError: where there is no such column, or a setting is out of range.
        DataError: where the file cannot be read, or an entity, a time or a value of it is wrong; it names the row.
    """

    slow = False
    """Look-ups are in memory."""

    def __init__(
        self,
        path: Path,
        names: Names,
        time: str | Sequence[str] | None,
        columns: Sequence[str],
        *,
        entity: str | None = None,
        event_time: str | Sequence[str] | None = None,
        interval: tuple[str, str] | None = None,
        unit: str = "s",
        times: TimeRule | None = None,
        event_times: TimeRule | None = None,
        speed: float | None = None,
        origin: tuple[int, int] | None = None,
        order: Order = "check",
        max_age: float | None = None,
        cursor: Cursor | None = None,
        form: TableForm | None = None,
        rules: Mapping[str, Rule] | None = None,
        clock: Callable[[], float] = time.time,
        waited: Callable[[], float] = monotonic,
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
        self._clock, self._waited, self._sleep = clock, waited, sleep
        self._fresh = Freshness(max_age, self.counts)
        times = times or TimeRule(unit)
        event_times = event_times or times
        reader = open_table(path, replace(form or TableForm(), header=True), shown=False)
        known, told, span, whose = (_listed(each) for each in (time, event_time, interval, entity))
        cells = iter(reader.whole(reader.find_all([*known, *told, *span, *whose, *columns])))
        found = _times(reader, known, [next(cells) for _ in known], times)
        of_events = _times(reader, told, [next(cells) for _ in told], event_times)
        ends = [_times(reader, [name], [next(cells)], event_times) for name in span]
        entities = reader.ids_of(reader.find(whose[0]), next(cells)) if whose else None
        self._values = dict(zip(columns, cells, strict=True))
        if rules:
            _check(reader, self._values, rules)
        rows = len((found, *ends)[-1])
        if not rows:
            raise DataError(f"{path}: the file has no rows")
        if known and order == "check":
            _check_order(reader, found)
        self._rows = np.arange(rows)
        """Of each event the row of the file that it came of."""
        self._entities, self._times = entities or [""] * rows, found
        self._event_times = of_events if told else found
        if ends:
            self._spread(reader, ends[0], ends[1], found if known else None)
        self._arrange()

    def _spread(
        self, reader: Reader, starts: NDArray[np.int64], ends: NDArray[np.int64], known: NDArray[np.int64] | None
    ) -> None:
        """Make events of the moments in the rows' intervals.

        Raises:
            DataError: where an interval is none, or two of one entity overlap and differ.
        """
        labels = zip(*(column.to_pylist() for column in self._values.values()), strict=True)
        try:
            moments = moments_of(starts, ends, self._names.grain)
            without = len(starts) - len(np.unique(moments.rows))
            times = moments.times if known is None else known[moments.rows]
            moments = without_twins(moments, _numbered(self._entities), _numbered(labels), times)
        except RowError as error:
            raise DataError(f"{reader.path}: row {error.row + 1}: {error}") from None
        except DataError as error:
            raise DataError(f"{reader.path}: {error}") from None
        if not len(moments.rows):
            raise DataError(f"{reader.path}: no interval has a moment: all are shorter than the grain")
        if without:
            text = f"{without:,} intervals are shorter than the grain, and no moment lies in them"
            self._notes.note("no moment", text)
            self.counts["no moment"] = without
        self._rows = moments.rows
        self._entities = [self._entities[row] for row in moments.rows]
        self._times = moments.times if known is None else known[moments.rows]
        self._event_times = moments.times

    def _arrange(self) -> None:
        """The order of the rows as events, and of each entity as it changes."""
        entities, times = self._entities, self._times
        of_row = _numbered(entities)
        places = np.arange(len(times))
        rows = np.lexsort((places, times, of_row))  # by entity, then time, then place: a look-up finds the last
        groups = np.split(rows, np.flatnonzero(np.diff(of_row[rows])) + 1)
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
        ahead = self._clock() - self._waited()  # a machine's clock that jumps meanwhile moves no row
        moment, seen = None, set[bytes]()
        for place in range(done, len(self._events)):
            row = int(self._events[place])
            reading = Reading(self._entities[row], int(self._times[row]), self._of(row))
            name = self._name(place)
            if self._speed is not None:
                now = self._waited() + ahead
                began = began or (now, reading.time)
                due = began[0] + (reading.time - began[1]) / 1e6 / self._speed
                if (left := due - now) > 0:
                    await self._sleep(left)
            if (then := self._names.moment(reading.time)) != moment:
                moment, seen = then, set()
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
        return None if not place else self._fresh(self._of(int(rows[place - 1])), int(times[place - 1]), read[1])

    def _of(self, event: int) -> dict[str, Any]:
        row = int(self._rows[event])
        return {name: value_of(column[row]) for name, column in self._values.items()}

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
    reader = open_table(path, TableForm(header=True))
    return reader.ids(reader.find(column))


def _check(reader: Reader, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Refuse values that are neither missing nor such that the rules take them."""
    if not rules:
        return
    columns = reader.find_all([*rules])
    _, wrong = numbers_of(reader, columns, [*map(OrMissing, rules.values())], [values[name] for name in rules])
    if wrong is not None:
        raise wrong


def _times(reader: Reader, columns: Sequence[str], cells: Sequence[Any], rule: TimeRule) -> NDArray[np.int64]:
    """Return the times that columns make together; none where there are no columns."""
    listed = [[value_of(cell) for cell in _whole_micros(each)] for each in cells]
    found = np.empty(len(listed[0]) if listed else 0, np.int64)
    for row, parts in enumerate(zip(*listed, strict=True)):
        try:
            found[row] = rule.joined(parts, columns)
        except DataError as error:
            raise DataError(f"{_where(reader, row, columns[0])}: {error}") from None
    if len(columns) == 1 and len(found):
        try:
            rule.check_together(listed[0])
        except ImplausibleError as error:
            raise DataError(f"{reader.path}: column '{columns[0]}': {error}") from None
    return found


def _whole_micros(cells: Any) -> Any:
    """Time without what is finer than a microsecond, which Python's have not."""
    if not pa.types.is_timestamp(cells.type) or cells.type.unit != "ns":
        return cells
    return pa.compute.cast(cells, pa.timestamp("us", cells.type.tz), safe=False)


def _check_order(reader: Reader, times: NDArray[np.int64]) -> None:
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        raise DataError(
            f"{reader.path}: row {int(back[0]) + 2} is earlier than the row before it, but rows happen in their "
            'order: sort the file by its time, or write order = "sort"'
        )


def _listed(columns: str | Sequence[str] | None) -> list[str]:
    return [] if columns is None else [columns] if isinstance(columns, str) else [*columns]


def _numbered(values: Iterable[Hashable]) -> NDArray[np.int64]:
    """Return a number for each value, the same for those that are the same."""
    ids: dict[Hashable, int] = {}
    return np.array([ids.setdefault(each, len(ids)) for each in values], np.int64)


def _where(reader: Reader, row: int, column: str) -> str:
    return reader.where(row + 1, reader.find(column))
