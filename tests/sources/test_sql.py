"""New and changed rows are events, entities are looked up, and a database may go away: SQLite and PostgreSQL alike."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from anabranch.errors import AwayError, CheckpointError, ConfigError, ConnectError, DataError
from anabranch.sources.base import Happening
from anabranch.sources.sql import source as sql
from anabranch.sources.sql.database import Connections, may_come, open_engine
from anabranch.sources.sql.source import SqlSource
from anabranch.sources.sql.text_time_index import Marks
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names
from anabranch.storage.times import TimeRule, micros
from databases import Database, Line, Postgresql, Sqlite, postgresql
from source_playing import placed, play, run

NAMES = Names(bytes(32))
EARLY = TimeRule(years=(1970, 2100))


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with postgresql() as database:
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        made: Database = Sqlite(tmp_path / "orders.db")
    else:
        made = request.getfixturevalue("server")
    made.run(
        "DROP TABLE IF EXISTS orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, who VARCHAR(20), at BIGINT, a DOUBLE PRECISION)",
        "CREATE INDEX by_who ON orders (who)",
        "CREATE INDEX by_time ON orders (at)",
    )
    return made


def add(database: Database, *rows: tuple[int, str | None, int, float | None]) -> None:
    for id, who, at, a in rows:
        database.run("INSERT INTO orders VALUES (:id, :who, :at, :a)", id=id, who=who, at=at, a=a)


def opened(database: Database, **options: Any) -> SqlSource:
    options = {"time": "at", "id": "id", "entity": "who", "follow": False, "times": EARLY} | options
    return SqlSource(database.url, "orders", NAMES, ["a"], **options)


def short(events: list[Happening]) -> list[tuple[str, int, Any]]:
    return [(each.reading.entity, each.reading.time // 1_000_000, each.reading.values["a"]) for each in events]


def at(source: SqlSource, entity: str, seconds: int) -> Any:
    values = source.look(NAMES.of(entity, seconds * 1_000_000))
    return None if values is None else values["a"]


def test_rows_are_events_in_the_order_of_their_times(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "BATCH", 2)
    add(database, (3, "y", 10, 0.5), (1, "x", 10, 1.5), (2, "x", 11, None), (5, "z", 9, 2.5), (4, "y", 10, 3.5))
    source = opened(database)
    events = run(play(source))
    assert short(events) == [("z", 9, 2.5), ("x", 10, 1.5), ("y", 10, 0.5), ("y", 10, 3.5), ("x", 11, None)]
    assert events[0].name == NAMES.of("z", 9_000_000)
    run(source.close())


def test_an_entity_is_as_its_last_row_before_the_event_says(database: Database) -> None:
    add(database, (1, "x", 1, 10), (2, "x", 3, 30), (3, "x", 3, 31), (4, "y", 5, 50))
    source = opened(database)
    assert [at(source, "x", s) for s in (0, 1, 2, 3, 9)] == [None, 10, 10, 31, 31]
    assert [at(source, who, 9) for who in ("y", "nobody", "")] == [50, None, None]
    assert source.look(b"order 17") is None
    now = opened(database, as_of="now")
    assert (at(now, "x", 0), at(now, "y", 0), at(now, "nobody", 0)) == (31, 50, None)
    run(source.close())
    run(now.close())


@pytest.mark.parametrize("as_of", ["event", "now"])
def test_a_row_that_is_too_old_is_missing(database: Database, as_of: str) -> None:
    add(database, (1, "x", 10, 1))
    source = opened(database, as_of=as_of, max_age=5.0)
    looked = [source.look(NAMES.of("x", second * 1_000_000)) for second in (10, 15, 16)]
    assert looked == [{"a": 1}, {"a": 1}, {"a": None}]
    assert source.counts["too old"] == 1
    run(source.close())


def test_entities_that_come_later_are_learned(database: Database, tmp_path: Path) -> None:
    now = [100.0]
    add(database, (1, "x", 1, 10))
    source = opened(database, known=tmp_path / "known", waited=lambda: now[0])
    assert at(source, "y", 9) is None
    add(database, (2, "y", 2, 20))
    assert at(source, "y", 9) is None  # asked a moment ago
    now[0] += sql.AGAIN
    assert at(source, "y", 9) == 20
    run(source.close())
    again = opened(database, known=tmp_path / "known", waited=lambda: 0.0)
    assert (at(again, "x", 9), at(again, "y", 9)) == (10, 20)
    run(again.close())


def test_the_cursor_moves_past_what_is_safe_only(database: Database, tmp_path: Path) -> None:
    add(database, (1, "x", 1, 10), (2, "y", 2, 20), (3, "z", 3, 30))

    def again() -> tuple[SqlSource, list[Happening]]:
        source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"))
        return source, run(play(source))

    source, events = again()
    places = placed(events)
    run(events[0].safe())
    run(events[2].safe())
    run(source.close())
    source, events = again()
    assert short(events) == [("y", 2, 20), ("z", 3, 30)]
    assert placed(events) == places[1:]
    for each in events:
        run(each.safe())
    run(source.close())
    database.run("UPDATE orders SET at = 4, a = 11 WHERE id = 1")
    source, events = again()
    assert short(events) == [("x", 4, 11)]  # a changed row
    assert all(each is not None and events[0].place is not None and each.is_before(events[0].place) for each in places)
    run(source.close())


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("INTEGER", [9, 10, 200]), ("VARCHAR(20)", ["10", "200", "9"]), ("DECIMAL(12, 2)", ["9.25", "10.00", "200.50"])],
)
def test_places_are_in_the_order_of_the_rows_also_at_one_time(
    database: Database, tmp_path: Path, kind: str, ids: list[Any]
) -> None:
    database.run("DROP TABLE orders", f"CREATE TABLE orders (id {kind}, who VARCHAR(20), at BIGINT, a FLOAT)")
    for id in ids[::-1]:
        database.run("INSERT INTO orders VALUES (:id, 'x', 5, 0)", id=id)
    source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"))
    assert len(placed(run(play(source)))) == 3
    run(source.close())


def test_rows_that_come_later_are_followed(database: Database) -> None:
    add(database, (1, "x", 1, 10))

    async def main() -> list[Happening]:
        source = opened(database, follow=True, poll=0.01)
        found = []
        async for each in source.readings():
            found.append(each)
            if len(found) == 1:
                await asyncio.to_thread(add, database, (2, "y", 2, 20))
            if len(found) == 2:
                await asyncio.to_thread(add, database, (3, "z", 2, 30))
            if len(found) == 3:
                break
        await source.close()
        return found

    assert short(run(main())) == [("x", 1, 10), ("y", 2, 20), ("z", 2, 30)]


def test_rows_wait_until_they_are_old_enough(database: Database) -> None:
    add(database, (1, "x", 100, 10), (2, "y", 103, 20))
    now, waits = [101.0], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += 1.0

    source = opened(database, lag=1.0, poll=7.0, clock=lambda: now[0], sleep=sleep)
    assert short(run(play(source))) == [("x", 100, 10), ("y", 103, 20)]
    assert waits == [7.0] * 3
    run(source.close())


def test_a_young_row_is_at_no_place_yet(database: Database, tmp_path: Path) -> None:
    """It is changed while it waits, and so is never read where it was; one without an entity is not left out yet."""
    add(database, (1, "x", 100, 10), (2, "y", 103, 20), (3, None, 104, 30))
    now, waits = [101.5], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += 1.0
        assert source.counts["unusable"] == 0
        if len(waits) == 1:
            await asyncio.to_thread(database.run, "UPDATE orders SET at = 105 WHERE id = 2")
            await asyncio.to_thread(database.run, "UPDATE orders SET who = 'z' WHERE id = 3")

    cursor = Cursor(tmp_path / "cursor", "orders")
    source = opened(database, lag=1.0, clock=lambda: now[0], sleep=sleep, cursor=cursor)
    events = run(play(source))
    assert short(events) == [("x", 100, 10), ("z", 104, 30), ("y", 105, 20)]
    for each in events:
        run(each.safe())
    assert (cursor.waiting, cursor.position) == (0, [105, 2])
    run(source.close())


def test_rows_without_an_entity_are_left_out_and_passed(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(database, (1, None, 1, 10), (2, " ", 2, 20), (3, "x", 3, 30))
    source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"))
    events = run(play(source))
    assert short(events) == [("x", 3, 30)]
    assert source.counts["unusable"] == 2
    assert "a row of 1970-01-01 00:00:01 UTC is left out: the entity is None" in caplog.text
    assert at(source, "x", 9) == 30
    run(source.close())
    assert Cursor(tmp_path / "cursor", "orders").position == [2, 2]


def test_two_rows_of_one_entity_and_time_are_one_event(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    order = [("x", 1), ("y", 1), ("x", 1), ("x", 2)]
    add(database, *((i, who, t, 10 * i) for i, (who, t) in enumerate(order, 1)))
    source = opened(database)
    events = run(play(source))
    assert [each.name for each in events] == [
        NAMES.of(who, t * 1_000_000) for who, t in zip("xyxx", (1, 1, 1, 2), strict=True)
    ]
    assert source.counts == {"duplicate": 1}
    assert at(source, "x", 1) == 30  # the last of them
    assert (
        "two rows of one entity and event have the same 'at', 1970-01-01 00:00:01 UTC: they are one event"
        in caplog.text
    )
    run(source.close())


def test_a_clock_that_is_ahead_is_noted(database: Database) -> None:
    add(database, (1, "x", 10_000, 1), (2, "x", 2_000, 1))
    source = opened(database, clock=lambda: 1000.0)
    assert len(run(play(source))) == 2
    assert source.counts == {"ahead of the clock": 1}
    run(source.close())


def test_a_database_that_goes_away_is_waited_for(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, (1, "x", 1, 10))
    now, waits = [100.0], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds
        if waits.count(sql.AGAIN) == 1 and len(waits) > 1:
            for _ in range(2):  # the second is not even tried
                with pytest.raises(AwayError, match="the database is away"):
                    at(source, "x", 9)
        if waits == [0.5]:
            await asyncio.to_thread(database.stop)
        if waits.count(sql.AGAIN) == 3:
            await asyncio.to_thread(database.start)
            await asyncio.to_thread(add, database, (2, "x", 2, 20))

    source = opened(database, follow=True, poll=0.5, waited=lambda: now[0], sleep=sleep)
    with caplog.at_level(logging.INFO):
        assert short(run(play(source, 2))) == [("x", 1, 10), ("x", 2, 20)]
    assert waits == [0.5, sql.AGAIN, sql.AGAIN, sql.AGAIN]
    assert at(source, "x", 9) == 20
    said = [record.getMessage() for record in caplog.records]
    assert sum("the database is away" in each for each in said) == 1
    assert sum("the database is back" in each for each in said) == 1
    assert (source.counts["away"], source.counts["back"]) == (1, 1)
    run(source.close())


def test_a_look_up_ends_with_its_source_though_the_database_is_silent(server: Postgresql) -> None:
    server.run("DROP TABLE IF EXISTS orders", "CREATE TABLE orders (id INTEGER, who TEXT, at BIGINT, a INTEGER)")
    server.run("INSERT INTO orders VALUES (1, 'x', 1, 10)")
    line = Line(server.folder / ".s.PGSQL.5432")
    url = server.engine.url.set(host="127.0.0.1", port=line.port, query={"keepalives_idle": "7"})
    source = SqlSource(
        url.render_as_string(hide_password=False), "orders", NAMES, ["a"], time="at", id="id", times=EARLY
    )
    assert source.look(NAMES.of("", 1_000_000)) == {"a": 10}
    with source._engine.connect() as connection:
        given = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert (given["keepalives_idle"], given["keepalives_count"], given["tcp_user_timeout"]) == ("7", "3", "20000")

    async def main() -> None:
        line.silence()
        looking = asyncio.ensure_future(asyncio.to_thread(source.look, NAMES.of("", 1_000_000)))
        await asyncio.to_thread(line.held.wait)
        try:
            await source.close()
            with pytest.raises(AwayError, match="the source is closed"):
                await asyncio.wait_for(looking, 60.0)
        finally:
            line.close()

    run(main())
    assert source.counts["away"] == 0


def test_a_connection_that_is_closed_just_now_is_not_interrupted(tmp_path: Path) -> None:
    """By the thread of a look-up, which closes one after each."""
    database = Sqlite(tmp_path / "orders.db")
    database.run("CREATE TABLE orders (id INTEGER)")
    engine = open_engine(database.url)
    connections = Connections(engine)
    connection = engine.raw_connection()
    connection.driver_connection.close()  # type: ignore[union-attr]
    connections.interrupt()
    connection.invalidate()


def test_a_column_that_vanishes_ends_it_with_its_name(database: Database) -> None:
    add(database, (1, "x", 1, 10))

    async def sleep(seconds: float) -> None:
        await asyncio.to_thread(database.run, "ALTER TABLE orders RENAME COLUMN a TO b")

    source = opened(database, follow=True, sleep=sleep)
    with pytest.raises(DataError, match=r"there is no column 'a' any more: it was renamed or dropped"):
        run(play(source))
    with pytest.raises(DataError, match="no column 'a' any more"):
        at(source, "x", 9)
    database.run("DROP TABLE orders")
    with pytest.raises(DataError, match="no such table any more"):
        at(source, "x", 9)
    run(source.close())


def test_what_is_not_there_at_the_start_is_named(database: Database) -> None:
    with pytest.raises(ConfigError, match=r"has no column 'hwo'. Did you mean 'who'"):
        opened(database, entity="hwo")
    with pytest.raises(ConfigError, match=r"there is no such table. Did you mean 'orders'"):
        SqlSource(database.url, "order", NAMES, ["a"], time="at", id="id")


def test_look_ups_go_by_the_index(database: Database) -> None:
    rows = "INSERT INTO orders VALUES " + ", ".join(f"({i}, 'w{i}', {i}, 1)" for i in range(2000))
    database.run(rows)
    postgres = database.url.startswith("postgres")
    database.run("ANALYZE orders")
    source = opened(database)
    asked: list[tuple[str, Any]] = []

    def heard(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sa.event.listen(source._engine, "before_cursor_execute", heard)
    assert at(source, "w1500", 2000) == 1
    with source._engine.connect() as connection:
        explain = "EXPLAIN " if postgres else "EXPLAIN QUERY PLAN "
        plans = [str(connection.exec_driver_sql(explain + sql, values).fetchall()) for sql, values in list(asked)]
    run(source.close())
    assert "by_who" in plans[-1]
    assert any("by_time" in plan for plan in plans[:-1])  # which entities have come


def test_look_ups_without_an_index_are_said(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    run(opened(database).close())
    assert "index" not in caplog.text
    database.run("DROP INDEX by_who")
    run(opened(database).close())
    assert "column 'who' has no index" in caplog.text


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "TEXT", "NUMERIC(20, 6)"])
def test_times_of_every_type(database: Database, kind: str) -> None:
    texts = ["2026-01-01", "2026-01-02"] if kind == "DATE" else ["2026-01-01 10:00:00+00", "2026-01-01 10:00:01.5+00"]
    if kind == "TIMESTAMP":
        texts = [each.removesuffix("+00") for each in texts]
    times = {"DATE": [1_767_225_600, 1_767_312_000]}.get(kind, [1_767_261_600, 1_767_261_601.5])
    if kind.startswith("NUMERIC"):
        texts = [str(each) for each in times]
    database.run(
        "DROP TABLE orders",
        f"CREATE TABLE orders (id VARCHAR(5) PRIMARY KEY, who INTEGER, at {kind}, a INTEGER)",
        f"INSERT INTO orders VALUES ('a', 7, '{texts[0]}', 1), ('b', 7, '{texts[0]}', 2), ('c', 7, '{texts[1]}', 3)",
    )
    source = opened(database)
    events = run(play(source))
    moments = [round(each * 1e6) for each in times]
    assert [(each.reading.entity, each.reading.time, each.reading.values["a"]) for each in events] == [
        ("7", moments[0], 1), ("7", moments[0], 2), ("7", moments[1], 3),
    ]  # fmt: skip
    looked = [source.look(NAMES.of("7", moments[0] + more)) for more in (-1, 0)]
    looked.append(source.look(NAMES.of("7", moments[1])))
    assert [None if each is None else each["a"] for each in looked] == [None, 2, 3]
    run(source.close())


def test_the_cursor_can_be_of_a_time_with_a_zone(database: Database, tmp_path: Path) -> None:
    database.run(
        "DROP TABLE orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, who INTEGER, at TIMESTAMP WITH TIME ZONE, a INTEGER)",
        "INSERT INTO orders VALUES (1, 7, '2026-01-01 10:00:00+00', 1), (2, 7, '2026-01-01 10:00:00+00', 2)",
    )
    for expected in ([1, 2], [2], []):
        source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"))
        events = run(play(source))
        assert [each.reading.values["a"] for each in events] == expected
        if events:
            run(events[0].safe())
        run(source.close())


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "TEXT"])
def test_a_look_up_of_a_time_that_no_date_has(database: Database, kind: str) -> None:
    database.run(
        "DROP TABLE orders",
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, who INTEGER, at {kind}, a INTEGER)",
        "INSERT INTO orders VALUES (1, 7, '2026-01-01', 1)",
    )
    source = opened(database)
    far = micros("9999-12-31T23:59:59-14:00")
    assert [at(source, "7", each // 1_000_000) for each in (-far, far, 2**62)] == [None, 1, 1]
    run(source.close())


def test_a_look_up_passes_a_row_whose_text_is_no_time(database: Database) -> None:
    database.run(
        "DROP TABLE orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, who INTEGER, at TEXT, a INTEGER)",
        "INSERT INTO orders VALUES (1, 7, '2026-01-01', 1), (2, 7, 'soon', 2)",
    )
    source = opened(database)
    assert at(source, "7", 2_000_000_000) == 1
    assert source.counts["unusable"] == 1
    run(source.close())


def test_look_ups_of_times_that_are_texts_read_few_rows(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its own readings begin at the reading, and others read no row twice."""
    database.run("DROP TABLE orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, at TEXT, a INTEGER)")
    rows = [f"({i}, 'x', '2026-01-01 {i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}', {i})" for i in range(0, 4000, 2)]
    database.run(f"INSERT INTO orders VALUES {', '.join(rows)}")
    begin, read = micros("2026-01-01") // 1_000_000, [0]
    source = opened(database, entity=None)
    fetch = source._fetch

    def counted(query: Any) -> list[Any]:
        found = fetch(query)
        read[0] += len(found)
        return found

    def cost(seconds: int, expected: int) -> int:
        read[0] = 0
        assert at(source, "", begin + seconds) == expected
        return read[0]

    monkeypatch.setattr(source, "_fetch", counted)
    assert cost(101, 100) <= 2000
    assert cost(101, 100) <= 2 * sql._PAGES[1]
    assert cost(2101, 2100) <= 2 * sql._PAGES[1]
    assert at(source, "", begin - 1) is None
    run(source.close())
    source = opened(database, entity=None)
    monkeypatch.setattr(source, "_fetch", counted)
    fetch = SqlSource._fetch.__get__(source)

    async def main() -> None:
        async for each in source.readings():
            i = each.reading.values["a"]
            if i % 200 == 0:
                assert cost(i, i) <= sql._PAGES[1]
                assert source.look(NAMES.of("", (begin + i) * 1_000_000 - 1)) == (None if i == 0 else {"a": i - 2})

    run(main())
    run(source.close())


def test_a_look_up_finds_the_same_row_whatever_was_read_before(tmp_path: Path) -> None:
    """Texts of one second sort by how many decimals they have, and those of one microsecond may differ."""
    database = Sqlite(tmp_path / "orders.db")
    database.run("CREATE TABLE orders (id INTEGER, who TEXT, at TEXT, a REAL)")
    rows = [("x", "09:00:00Z", 1), ("x", "10:00:00Z", 2), ("y", "10:00:00.500000Z", 3)]
    rows += [("x", "11:00:00.123456999Z", 4), ("y", "11:00:00.123456000Z", 5)]
    for i, (who, at, a) in enumerate(rows):
        database.run("INSERT INTO orders VALUES (:id, :who, :at, :a)", id=i, who=who, at=f"2026-11-28T{at}", a=a)
    source = opened(database)
    half, later = micros("2026-11-28T10:00:00.5Z"), micros("2026-11-28T11:00:00.123456Z")
    looks = [("x", half), ("x", later), ("y", half), ("y", later)]

    def found() -> list[Any]:
        return [(source.look(NAMES.of(who, moment)) or {}).get("a") for who, moment in looks]

    before = found()
    run(play(source))
    assert before == found() == [2, 4, 3, 5]
    run(source.close())


def test_marks_are_bounded() -> None:
    marks = Marks(3)
    for moment in (5, 1, 9, 5):
        marks.add(moment, str(moment))
    assert [marks.after(moment) for moment in (0, 5, 6, 10)] == ["1", "9", "9", None]
    marks.add(7, "7")
    assert [marks.after(moment) for moment in (0, 5, 6, 10)] == ["5", "9", "9", None]
    marks.add(7, "7")
    assert marks.after(6) == "7"


@pytest.mark.parametrize("time", ["BIGINT", "TEXT"])
def test_a_value_that_cannot_be_read_is_of_its_row_alone(database: Database, tmp_path: Path, time: str) -> None:
    kind, bad = (
        ("TIMESTAMP", "'infinity'") if database.url.startswith("postgres") else ("TEXT", "CAST(x'4df8' AS TEXT)")
    )
    database.run(
        "DROP TABLE orders",
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, at {time}, a {kind})",
        f"INSERT INTO orders VALUES (1, 'x', '1', NULL), (2, 'y', '2', {bad}), (3, 'x', '3', NULL)",
        f"INSERT INTO orders VALUES (4, 'x', '4', {bad})",
    )
    source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"))
    assert short(run(play(source))) == [("x", 1, None), ("x", 3, None)]
    assert source.counts["unusable"] == 2
    assert source.look(NAMES.of("x", 3_000_000)) == {"a": None}
    assert source.look(NAMES.of("y", 9_000_000)) is None
    assert (source.counts["unusable"] > 2, source.counts["away"]) == (True, 0)
    run(source.close())


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE"])
def test_a_time_without_an_end_is_never_read(server: Postgresql, kind: str) -> None:
    server.run(
        "DROP TABLE IF EXISTS orders",
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, at {kind}, a INTEGER)",
        "INSERT INTO orders VALUES (1, 'x', '-infinity', 1), (2, 'x', '1970-01-02', 2), (3, 'x', 'infinity', 3)",
    )
    source, now = opened(server), opened(server, as_of="now")
    assert short(run(play(source))) == [("x", 86_400, 2)]
    assert [at(source, "x", each) for each in (0, 10**6)] == [None, 2]
    assert at(now, "x", 0) == 2
    run(source.close())
    run(now.close())


def test_an_id_that_cannot_say_where_a_row_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Sqlite(tmp_path / "orders.db")
    database.run(
        "CREATE TABLE orders (id, who TEXT, at INTEGER, a INTEGER)",
        "INSERT INTO orders VALUES (1, 'x', 1, 1), (x'00ff', 'y', 2, 2), (3, 'z', 2, 3), (x'01', 'y', 3, 4)",
    )
    now = [100.0]
    source = opened(database, cursor=Cursor(tmp_path / "cursor", "orders"), waited=lambda: now[0])
    assert [at(source, who, 9) for who in ("z", "y")] == [3, None]
    with pytest.MonkeyPatch.context() as patch:  # what was read for entities is not read again
        read: list[int] = []
        after = source._after
        patch.setattr(source, "_after", lambda *asked: [rows := after(*asked), read.append(len(rows))][0])
        for _ in range(2):
            now[0] += sql.AGAIN
            assert at(source, "nobody", 9) is None
        assert read == [0, 0]
    assert short(run(play(source))) == [("x", 1, 1), ("z", 2, 3)]
    assert source.counts["unusable"] == 2
    assert (
        "table 'orders': a row of 1970-01-01 00:00:02 UTC is left out: columns 'at' and 'id': a value of" in caplog.text
    )
    run(source.close())


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ("at", "TIME", "column 'at' is of type TIME, which cannot be a time: it must be a date"),
        ("id", "BYTEA", "column 'id' is of type BYTEA, which cannot be an id"),
        ("who", "INTERVAL", "column 'who' is of type INTERVAL, which cannot be an id"),
    ],
)
def test_a_column_of_a_type_that_cannot_be_what_it_is_for(
    server: Postgresql, column: str, kind: str, said: str
) -> None:
    kinds = {"id": "INTEGER", "who": "TEXT", "at": "BIGINT", column: kind}
    columns = ", ".join(f"{name} {of}" for name, of in kinds.items())
    server.run("DROP TABLE IF EXISTS orders", f"CREATE TABLE orders ({columns}, a INTEGER)")
    with pytest.raises(ConfigError, match=said):
        opened(server)


def test_sensors_are_the_last_row_at_a_time(database: Database) -> None:
    add(database, (1, None, 1, 10), (2, None, 5, 50))
    source = opened(database, entity=None)
    assert short(run(play(source))) == [("", 1, 10), ("", 5, 50)]
    assert [at(source, "", s) for s in (0, 4, 5)] == [None, 10, 50]
    run(source.close())


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("orders", ConfigError, "url is no database's"),
        ("sqlite://", ConfigError, "in memory"),
        ("oracle9://x/y", ConfigError, "driver is not installed"),
        ("sqlite:////nowhere/orders.db", ConnectError, "cannot be used: unable to open"),
        ("postgresql://me:secret@/x?host=/nowhere", ConnectError, r"//me:\*\*\*@"),
    ],
)
def test_a_database_that_cannot_be_is_said_without_its_password(url: str, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        SqlSource(url, "orders", NAMES, ["a"], time="at", id="id")
    assert "secret" not in str(caught.value)
    assert getattr(caught.value, "temporary", False) == url.startswith("postgresql")


def test_a_database_that_answers_with_a_refusal_is_not_waited_for(server: Postgresql) -> None:
    url = server.engine.url.set(database="nobodys").render_as_string(hide_password=False)
    with pytest.raises(ConnectError, match='"nobodys" does not exist') as caught:
        SqlSource(url, "orders", NAMES, ["a"], time="at", id="id")
    assert not caught.value.temporary


@pytest.mark.parametrize(
    "said",
    [
        "the database system is starting up",
        "the database system is not yet accepting connections\nDETAIL: Consistent recovery state has not been reached.",
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "the database system is not accepting connections",
    ],
)
def test_a_database_that_refuses_for_a_while_is_waited_for(said: str) -> None:
    assert may_come(sa.exc.OperationalError(None, None, Exception(f"connection failed: FATAL:  {said}")))


def test_a_database_that_takes_no_connections_at_all_is_not_waited_for() -> None:
    said = 'FATAL:  database "shop" is not currently accepting connections'
    assert not may_come(sa.exc.OperationalError(None, None, Exception(f"connection failed: {said}")))


def test_a_view_that_is_broken_is_not_waited_for(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "orders.db")
    database.run("CREATE TABLE t (id INTEGER, at INTEGER, a REAL)", "CREATE VIEW orders AS SELECT * FROM t")
    database.run("DROP TABLE t")
    with pytest.raises(ConnectError, match="cannot be used: no such table") as caught:
        opened(database, entity=None)
    assert not caught.value.temporary
    assert may_come(sa.exc.OperationalError(None, None, sqlite3.OperationalError("database is locked")))


@pytest.mark.parametrize("options", [{"as_of": "then"}, {"unit": "h"}, {"poll": 0}, {"lag": -1}])
def test_wrong_settings_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SqlSource("sqlite:///x", "orders", NAMES, ["a"], time="at", id="id", **options)


def test_a_damaged_list_of_entities_is_said(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "orders.db")
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, at INTEGER, a REAL)")
    (tmp_path / "known").write_bytes(b"no database" * 1000)
    with pytest.raises(CheckpointError, match="known: is damaged"):
        opened(database, known=tmp_path / "known")
