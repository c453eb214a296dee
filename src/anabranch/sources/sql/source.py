"""A table of a database as a source: new and changed rows are events, and an entity is asked for by its index."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import floor, inf, nextafter
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from anabranch.errors import AwayError, ConfigError, ConnectError, DataError, nearest
from anabranch.sources.base import AsOf, ClockCheck, Freshness, Happening, Notes, Reading, check_as_of
from anabranch.sources.clock import SteadyClock
from anabranch.sources.sql.database import (
    FAILED,
    NO_IDS,
    NO_TIMES,
    Connections,
    check_types,
    may_come,
    of_a_value,
    open_engine,
    reason,
    reflected,
    sa,
    without_index,
)
from anabranch.sources.sql.text_time_index import Marks
from anabranch.storage.cursor import Cursor
from anabranch.storage.entities import KnownEntities, json_of, order_of, values_of
from anabranch.storage.event_ids import Names, entity_text
from anabranch.storage.place import Place
from anabranch.storage.times import EPOCH, ImplausibleError, TimeRule, number_at, text_of

BATCH = 1000
"""Rows of one query."""
TOGETHER = 100_000
"""Rows of the same time among which two of one event are told apart."""
AGAIN = 1.0
"""Seconds after which a database that is away is tried again."""
_PAGES = (2, 100)
"""Rows of the first query of a look-up, and of those that follow."""

_DATES = (datetime(2, 1, 1), datetime(9998, 12, 31))
"""Those that Python can have in every time zone; a database's go further."""
_EARLIEST, _LATEST = ((each.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for each in _DATES)
"""The times that a date can be of, in microseconds since 1970; that of an event may be before or after."""


class _Unread(NamedTuple):
    """A row with a value that the driver cannot make anything of."""

    time: Any
    id: Any
    reason: str


class SqlSource:
    """The rows of a table, by a column of the time at which each was last changed.

    Rows are read in the order of their times and ids, from the cursor on. A row whose time is set anew is read again. A
    row that appears with a time before the cursor's is not: where writers commit late, give ``lag``.

    A database that goes away is waited for: that is said once, and once more when it is back. Look-ups raise an
    `AwayError` meanwhile.

    Args:
        url: as SQLAlchemy has it, such as ``sqlite:///orders.db`` or ``postgresql://reader@10.0.0.5/orders``.
        table: its name, or that of a view, perhaps with a schema before it.
        names: of events.
        columns: the columns that readings have as values.
        time: the column of the time: a date and time, a text of ISO 8601, or a number.
        id: the column of the row's id, unique among rows of the same time.
        entity: the column of the entity; None where only the time counts.
        event_time: the column of the time of the event that a row tells of, as a label does later; None is ``time``.
        unit: of a time that is a number.
        times: how times are read; None is by ``unit`` alone.
        event_times: how those of ``event_time`` are; None is likewise.
        as_of: what a look-up is of: ``"event"``, the last row at or before the event; or ``"now"``, the last row there
            is, where a table has one row an entity that is written over.
        follow: whether rows that come later are readings too; else they end with the table.
        poll: seconds between two looks for new rows.
        lag: seconds that a row must be old before it is read.
        cursor: how far it was read before; None begins anew.
        known: the file with the entities of hashes; None is in memory.
        most_ahead: seconds that a row may be ahead of this machine's clock before that is noted.
        max_age: seconds that a row may be older than an event; then its values are missing. None is any.
        clock: seconds since 1970; None is the machine's without its jumps.
        waited: a clock that never jumps.
        sleep: waits for so many seconds.

    Raises:
        ConfigError: where a setting is wrong, or there is no such table or column.
        DataError: where the first or the last time is implausible.
        ConnectError: where the database is not there.
    """

    slow = True
    """A look-up is a query, and may be called by another thread."""

    def __init__(
        self,
        url: str,
        table: str,
        names: Names,
        columns: Sequence[str],
        *,
        time: str,
        id: str,
        entity: str | None = None,
        event_time: str | None = None,
        unit: str = "s",
        times: TimeRule | None = None,
        event_times: TimeRule | None = None,
        as_of: AsOf = "event",
        follow: bool = True,
        poll: float = 1.0,
        lag: float = 0.0,
        cursor: Cursor | None = None,
        known: Path | None = None,
        most_ahead: float = 3600.0,
        max_age: float | None = None,
        clock: Callable[[], float] | None = None,
        waited: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not poll > 0 or not lag >= 0:
            raise ConfigError(f"poll is {poll} and lag {lag}: must be seconds, the first above 0")
        self.counts: Counter[str] = Counter()
        self._names, self._as_of = names, check_as_of(as_of)
        self._fresh = Freshness(max_age, self.counts)
        self._times = times or TimeRule(unit)
        self._event_times = event_times or self._times
        if not self._times.has_order:
            raise ConfigError(
                f"format is {self._times.format!r}, but a database compares times as they are written: the year must "
                "come first, then the month, the day and so on; name a view in which it does"
            )
        self._follow, self._poll, self._lag = follow, poll, lag
        clock = SteadyClock() if clock is None else clock
        self._cursor, self._clock, self._waited, self._sleep = cursor, clock, waited, sleep
        self._engine = open_engine(url)
        self._connections = Connections(self._engine)
        shown = self._engine.url.render_as_string(hide_password=True)
        self._where = f"{shown}, table '{table}'"
        self._notes = Notes(self.counts, self._where)
        self._ahead = ClockCheck(self._notes, most_ahead, clock)
        self._sqlite = self._engine.dialect.name == "sqlite"
        self._away = self._closed = self._out = False
        self._again = -math.inf
        self.found_none = 0
        """How often it has looked for more rows and found none."""
        self._learnt_to: Any = None
        """Up to where rows were read for their entities in this process."""
        self._marks: Marks | None = None
        """Times of rows, where the database compares them as texts."""
        self._marked_to: Any = None
        """The last time in the column's order that was looked at for how it is written."""
        self._moment: int | None = None
        self._of_moment: set[bytes] = set()
        """The events of the last row's time."""
        try:
            self._begin(table, time, id, entity, event_time or time, columns)
            self._known = (
                None if entity is None else KnownEntities(known, f"{self._where}, key {names.hash('').hex()[:8]}")
            )
        except sa.exc.DBAPIError as error:
            self._engine.dispose()
            why = ConnectError(f"{shown}: cannot be used: {reason(error)}")
            why.temporary = may_come(error)
            raise why from error
        except BaseException:
            self._engine.dispose()
            raise

    def _begin(
        self, table: str, time: str, id: str, entity: str | None, event_time: str, columns: Sequence[str]
    ) -> None:
        self._asked = (time, id, event_time, *([] if entity is None else [entity]), *columns)
        self._table = reflected(self._engine, self._where, table, self._asked)
        self._time, self._id, event = (self._exact(name) for name in (time, id, event_time))
        self._entity = None if entity is None else self._column(entity)
        self._columns, self._values = tuple(columns), [self._column(name) for name in columns]
        whose = sa.null() if self._entity is None else self._entity
        self._all = [self._time, self._id, whose, event, *self._values]
        kind = self._table.c[time].type
        if not self._sqlite:  # there a value may be of any type
            kinds = {time: NO_TIMES, event_time: NO_TIMES, id: NO_IDS, entity or id: NO_IDS}
            check_types(self._where, self._table, kinds)
        dates = isinstance(kind, sa.Date | sa.DateTime) and not self._sqlite
        self._dated = [self._time.between(*map(self._bound, (_EARLIEST, _LATEST)))] if dates else []
        """Only times that Python has a date for; PostgreSQL has 'infinity' as well."""
        last = self._check_plausible(event)
        if self._times.format is not None or isinstance(last, str) or isinstance(self._time.type, sa.String):
            self._marks = Marks()
        for name in without_index(self._engine, self._table, [time, *([] if entity is None else [entity])]):
            self._notes.note("no index", f"column '{name}' has no index, so every look goes through the whole table")

    def _check_plausible(self, event: Any) -> Any:
        """Look at the first and the last time of the table; return the last one, as the column has it.

        Raises:
            DataError: where one is implausible.
        """
        lasts: list[Any] = []
        pairs = [(self._time, self._asked[0], self._times), (event, self._asked[2], self._event_times)]
        for column, name, rule in pairs:
            query = sa.select(sa.func.min(column), sa.func.max(column)).where(*self._dated)
            try:
                ((first, last),) = self._fetch(query)
            except FAILED as error:
                if not of_a_value(error):
                    raise
                first = last = None  # `readings` says so
            lasts.append(last)
            try:
                rule.check([first, last])
            except ImplausibleError as error:
                raise DataError(f"{self._where}: column '{name}': {error}") from None
        return lasts[0]

    async def begin(self) -> None:
        """Nothing: it is ready."""

    # -- events -------------------------------------------------------------------------------------------------

    async def readings(self) -> AsyncIterator[Happening]:
        """New and changed rows, as they come.

        Raises:
            DataError: where a column has vanished.
        """
        watching = asyncio.ensure_future(self._watch())
        try:
            async for happening in self._happenings():
                self._out = True
                yield happening
                self._out = False
        finally:
            self._out = False
            watching.cancel()

    async def _watch(self) -> None:
        """See whether the database is back, while a reading is out that may wait for it and no rows are fetched."""
        one = sa.select(sa.literal(1)).select_from(self._table).limit(1)
        while not self._closed:
            await asyncio.sleep(AGAIN)
            if self._away and self._out:
                with suppress(*FAILED):
                    await asyncio.to_thread(self._fetch, one)
                    self._back()

    async def _happenings(self) -> AsyncIterator[Happening]:
        place = None if self._cursor is None or self._cursor.position is None else values_of(self._cursor.position)
        while True:
            rows = await self._patiently(place)
            ripe = (self._clock() - self._lag) * 1e6
            young = False
            for row in rows:
                young = self._is_after(row[0], ripe)
                if young:  # it may still be changed, and is then somewhere else: nothing is made of it yet
                    break
                place = [row[0], row[1]]
                happening = self._happening(row)
                if happening is not None:
                    yield happening
            if len(rows) < BATCH or young:
                if not self._follow and not young:
                    return
                self.found_none += not young
                await self._sleep(self._poll)

    def _is_after(self, moment: Any, ripe: float) -> bool:
        """Return whether a row is too young; one whose time is none is not."""
        try:
            return self._lag > 0 and self._times.micros(moment) > ripe
        except DataError:
            return False

    def _happening(self, row: Any) -> Happening | None:
        place = None
        try:
            place = self._place(row)
            if isinstance(row, _Unread):
                raise DataError(f"a value of it cannot be read ({row.reason})")
            moment, _, whose, event, *values = row
            entity = "" if self._entity is None else entity_text(whose)
            reading = Reading(entity, self._times.micros(moment), self._of(values))
            name = self._names.of(entity, self._event_times.micros(event))
            ordered = Place(f"{self._where} by '{self._asked[0]}' and '{self._asked[1]}'", order_of(row[:2]))
            if self._known is not None:
                self._known.add([(self._names.hash(entity), whose)])
        except DataError as error:
            self._notes.note("unusable", f"{self._named(row[0])} is left out: {error}")
            if self._cursor is not None and place is not None:
                self._cursor.given(place)
                self._cursor.safe(place)
            return None
        self._mark(reading.time, row[0])
        self._ahead.check(reading)
        if reading.time != self._moment or len(self._of_moment) >= TOGETHER:
            self._moment, self._of_moment = reading.time, set()
        if name in self._of_moment:
            self._notes.note(
                "duplicate",
                f"two rows of one entity and event have the same '{self._asked[0]}', {text_of(reading.time)}: they are "
                "one event",
            )
        self._of_moment.add(name)
        cursor = self._cursor
        if cursor is None:
            return Happening(name, reading, place=ordered)

        async def acknowledge() -> None:
            cursor.safe(place)

        cursor.given(place)
        return Happening(name, reading, acknowledge, ordered)

    def _named(self, moment: Any) -> str:
        """Return a row for people, by its time, which alone a log may have."""
        try:
            return f"a row of {text_of(self._times.micros(moment))}"
        except DataError:
            return "a row without a usable time"

    def _place(self, row: Any) -> list[Any]:
        """Where a row is, as JSON has it.

        Raises:
            DataError: where its time or id is of a type that cannot say so.
        """
        try:
            return json_of(row[:2])
        except DataError as error:
            time, id = self._asked[:2]
            raise DataError(f"columns '{time}' and '{id}': {error}") from None

    def _after(self, place: Any, columns: Sequence[Any]) -> list[Any]:
        """Return the next rows after a place, in order: their times, ids and more columns.

        Raises:
            DataError: where not even the time and id of each can be read.
        """
        return self._rows(self._next(place, columns), columns)

    def _rows(self, query: Any, columns: Sequence[Any]) -> list[Any]:
        """Return the rows of a query for times, ids and more columns; those that the driver cannot read are `_Unread`.

        Raises:
            DataError: where not even the time and id of each can be read.
        """
        try:
            return self._fetch(query)
        except FAILED as error:
            if not of_a_value(error):
                raise
        try:
            places = self._fetch(query.with_only_columns(*columns[:2]))
        except FAILED as error:
            if not of_a_value(error):
                raise
            raise DataError(
                f"{self._where}: the time or the id of a row cannot be read ({reason(error)}): correct it, or name a "
                "view without it"
            ) from error
        return [self._alone(moment, id, columns) for moment, id in places]

    def _alone(self, moment: Any, id: Any, columns: Sequence[Any]) -> Any:
        """Return one row, by itself."""
        query = sa.select(*columns).where(self._time == moment, self._id == id).limit(1)
        try:
            rows = self._fetch(query)
        except FAILED as error:
            if not of_a_value(error):
                raise
            return _Unread(moment, id, reason(error))
        return rows[0] if rows else _Unread(moment, id, "it has just been changed")

    def _next(self, place: Any, columns: Sequence[Any]) -> Any:
        query = sa.select(*columns).where(self._time.is_not(None), *self._dated)
        query = query.order_by(self._time, self._id).limit(BATCH)
        if place is not None:
            moment, id = place
            query = query.where(sa.or_(self._time > moment, sa.and_(self._time == moment, self._id > id)))
        return query

    def _fetch(self, query: Any) -> list[Any]:
        with self._connected() as connection:
            return list(connection.execute(query).fetchall())

    def _connected(self) -> Any:
        """Return a connection, for as long as a ``with`` lasts."""
        if self._closed:  # a look-up may take many of these
            raise sa.exc.InterfaceError("", None, RuntimeError("the source is closed"))
        return self._engine.connect()

    async def _patiently(self, place: Any) -> list[Any]:
        """Return the rows after a place, once the database is there."""
        while True:
            try:
                rows = await asyncio.to_thread(self._after, place, self._all)
            except sa.exc.DBAPIError as error:
                if self._closed:
                    raise
                await asyncio.to_thread(self._gone, error)
            else:
                self._back()
                return rows
            await self._sleep(AGAIN)

    def _gone(self, error: Any) -> None:
        """The database does not answer.

        Raises:
            DataError: where it does, but has not what it had.
        """
        self._check_columns(error)
        if not self._away:
            self._away = True
            self._notes.note("away", f"the database is away: {reason(error)}; waiting for it")

    def _back(self) -> None:
        if self._away:
            self._away, self._again = False, -math.inf
            self._notes.note("back", "the database is back; going on")

    def _check_columns(self, error: Any) -> None:
        try:
            inspector = sa.inspect(self._engine)
            there = {each["name"] for each in inspector.get_columns(self._table.name, self._table.schema)}
        except sa.exc.NoSuchTableError:
            raise DataError(f"{self._where}: there is no such table any more ({reason(error)})") from error
        except sa.exc.SQLAlchemyError:
            return  # it is away
        for name in self._asked:
            if name not in there:
                raise DataError(
                    f"{self._where}: there is no column '{name}' any more: it was renamed or dropped. Name another in "
                    f"the settings, or bring it back.{nearest(name, there)}"
                ) from error

    # -- look-ups -----------------------------------------------------------------------------------------------

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the values of an event's entity in its last row; None where the entity is unknown.

        Raises:
            AwayError: where the database is away, or this is closed.
            DataError: where a column has vanished.
        """
        read = self._names.read(name)
        if read is None:
            return None
        if self._away and self._waited() < self._again:
            raise AwayError(f"{self._where}: the database is away")
        begun = self._waited()
        try:
            found = self._look(*read)
        except FAILED as error:
            if self._closed:
                raise AwayError(f"{self._where}: the source is closed") from error
            if of_a_value(error):
                self._left_out_of_look_up(reason(error))
                return None
            self._gone(error)
            now = self._waited()
            self._again = now + max(AGAIN, 10 * (now - begun))  # whoever looks up does nothing else meanwhile
            raise AwayError(f"{self._where}: the database is away: {reason(error)}") from error
        self._back()
        return found

    def _look(self, key: bytes, moment: int) -> Mapping[str, Any] | None:
        query = sa.select(self._time, *self._values).order_by(self._time.desc(), self._id.desc())
        query = query.where(*(sa.or_(self._time.is_(None), each) for each in self._dated))
        if self._entity is None:
            if key != self._names.hash(""):
                return None
        else:
            assert self._known is not None
            whose = self._known.get(key)
            if whose is None and self._learn():
                whose = self._known.get(key)
            if whose is None:
                return None
            query = query.where(self._entity == whose)
        if self._as_of == "now":
            rows = self._fetch(query.limit(1))
            return self._last(rows[0], moment) if rows else None
        return self._look_back(query, moment)

    def _last(self, row: Any, moment: int) -> Mapping[str, Any]:
        values = self._of(row[1:])
        try:
            return self._fresh(values, self._times.micros(row[0]), moment)
        except DataError:  # a table of one row an entity may lack the time of its change
            return values

    def _look_back(self, query: Any, moment: int) -> Mapping[str, Any] | None:
        """Return the values of the last row that is not after a moment, of a query that gives the last rows first.

        A column may hold times that are finer than a microsecond, or texts. So the query goes a little too far, and
        each time is read as `readings` does.
        """
        columns = [self._time, self._id, *self._values]
        query = query.with_only_columns(*columns).where(self._time.is_not(None), self._id.is_not(None))
        page = query.where(*self._up_to(moment)).limit(_PAGES[0])
        best: tuple[int, Any] | None = None
        while rows := self._rows(page, columns):
            for row in rows:
                try:
                    then = self._times.micros(row[0])
                    self._mark(then, row[0])
                    slack = 0 if self._marks is None else self._marks.slack
                    if best is not None and slack is not None and then + slack <= best[0]:
                        return self._fresh(self._of(best[1]), best[0], moment)
                    if then > moment or (best is not None and then <= best[0]):
                        continue
                    if isinstance(row, _Unread):
                        raise DataError(f"a value of it cannot be read ({row.reason})")
                    best = then, row[2:]
                    if slack == 0:
                        return self._fresh(self._of(best[1]), then, moment)
                except DataError as error:
                    self._left_out_of_look_up(str(error))
            last, id = rows[-1][:2]
            older = sa.or_(self._time < last, self._id < id)
            page = query.where(self._time <= last, older).limit(_PAGES[1])
        return None if best is None else self._fresh(self._of(best[1]), best[0], moment)

    def _up_to(self, moment: int) -> list[Any]:
        """Return a condition for all rows that are not after a moment, and few others."""
        if self._marks is None:
            return [self._time <= self._bound(moment)]
        after = self._marks.after(moment)
        if after is None and (self._marks.slack is not None or self._marked_to is None):
            self._mark_more()
            after = self._marks.after(moment)
        return [] if after is None else [self._time < after]

    def _mark(self, moment: int, written: Any) -> None:
        """Note how a time is written, where the database compares texts."""
        if self._marks is None and isinstance(written, str):
            self._marks = Marks()
        if self._marks is None:
            return
        self._marks.add(moment, written)
        if self._marks.slack != 0 and not self.counts["several forms"]:
            self._notes.note(
                "several forms",
                f"the times in column '{self._asked[0]}' are texts of several forms or time zones, which the database "
                "does not order as they happened: a row that comes later may be passed over. Write all in one form, "
                "such as 2026-11-28T13:05:00.000000Z",
            )

    def _mark_more(self) -> None:
        """Note how the times are written that the table has got since the last call."""
        query = sa.select(self._time).where(self._time.is_not(None), *self._dated).order_by(self._time)
        if self._marked_to is not None:
            query = query.where(self._time > self._marked_to)
        try:
            with self._connected() as connection:
                for (written,) in connection.execution_options(yield_per=10 * BATCH).execute(query):
                    self._marked_to = written
                    with suppress(DataError):
                        self._mark(self._times.micros(written), written)
        except FAILED as error:
            if not of_a_value(error):  # else `readings` says so
                raise

    def _left_out_of_look_up(self, reason: str) -> None:
        self._notes.note("unusable", f"a row that a look-up met is left out: {reason}")

    def _learn(self) -> bool:
        """Read which entities have come since the last time; false where none may have."""
        known = self._known
        if known is None or self._entity is None or self._waited() < self._again:
            return False
        # Some rows are at places that the file cannot have.
        place = known.position if self._learnt_to is None else self._learnt_to
        while True:
            rows = self._after(place, [self._time, self._id, self._entity])
            pairs, position = [], None
            for row in rows:
                place = self._learnt_to = [row[0], row[1]]
                try:
                    self._place(row)
                    position = place
                    if not isinstance(row, _Unread):
                        json_of(row[2:])
                        pairs.append((self._names.hash(entity_text(row[2])), row[2]))
                except DataError:
                    continue  # `readings` says so
            if rows:
                known.add(pairs, position)
            if len(rows) < BATCH:
                break
        self._again = self._waited() + AGAIN
        return True

    def _bound(self, moment: int) -> Any:
        """Return a time of the column's type that no time up to a moment exceeds."""
        kind = self._table.c[self._asked[0]].type
        if isinstance(kind, sa.Date | sa.DateTime) and not self._sqlite:
            aware = EPOCH + timedelta(microseconds=min(max(moment, _EARLIEST), _LATEST))
            if isinstance(kind, sa.DateTime):
                return aware if kind.timezone else aware.replace(tzinfo=None)
            return aware.date()
        number = number_at(moment, self._times.unit)
        if isinstance(kind, sa.Integer) and not self._sqlite:
            return floor(number)
        return nextafter(float(number), inf) if self._sqlite or isinstance(kind, sa.Float) else number

    def _of(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._columns, values, strict=True))

    # -- the table ----------------------------------------------------------------------------------------------

    def _exact(self, name: str) -> Any:
        """Return a column by which rows are ordered: PostgreSQL shows fewer digits of a REAL than it compares."""
        column = self._column(name)
        is_short = isinstance(column.type, sa.REAL) and not self._sqlite
        return sa.cast(column, sa.Double()) if is_short else column

    def _column(self, name: str) -> Any:
        column = self._table.c[name]
        # SQLite keeps whatever it is given, whatever a column's type says: as it is, then.
        return sa.type_coerce(column, sa.types.NullType()) if self._sqlite else column

    async def close(self) -> None:
        """Close connections and files; look-ups that are under way raise an `AwayError`."""
        self._closed = True
        self._connections.interrupt()
        self._engine.dispose()
        if self._cursor is not None:
            self._cursor.close()
        if self._known is not None:
            self._known.close()
