"""Each row of a database is found by its own event, whatever its time is written as; SQLite and PostgreSQL alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.sources.sql.source import SqlSource
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names
from anabranch.storage.times import TimeRule, micros
from databases import Database, Sqlite, postgresql
from source_playing import play, run

NAMES = Names(bytes(32))
BEGIN = dt.datetime(2026, 10, 25, tzinfo=dt.UTC)
NEAR = st.integers(0, 3_000_000) | st.integers(0, 90_000_000_000)
"""Microseconds, so that many are in one second and some in another day."""


def written(micro: int, form: str, zone: int) -> str:
    """A time as ISO 8601 has it, in one of its forms."""
    stamp = (BEGIN + dt.timedelta(microseconds=micro)).astimezone(dt.timezone(dt.timedelta(hours=zone)))
    text = stamp.isoformat(" " if "space" in form else "T", "auto" if form.endswith("micro") else "seconds")
    if "nano" in form:
        text = f"{text[:19]}.{micro % 1_000_000:06}{micro % 1000:03}{text[19:]}"
    return text.replace("+00:00", "Z") if "Z" in form else text[: -len("+00:00")] if "naive" in form else text


FORMS = st.sampled_from(["", "micro", "nano", "space", "space micro", "Z", "Z micro", "Z nano", "naive", "naive micro"])
ISO = st.builds(lambda micro, form, zone: written(micro, form, 0 if form else zone), NEAR, FORMS, st.integers(-3, 3))
SAME = st.builds(lambda micro: written(micro, "naive nano", 0), NEAR)
REALS = st.builds(lambda micro, little: BEGIN.timestamp() + micro / 1e6 + little, NEAR, st.floats(0, 3e-6))
TYPES: dict[str, tuple[str, str, Any]] = {
    "INTEGER": ("both", "s", st.builds(lambda micro: int(BEGIN.timestamp()) + micro // 1_000_000, NEAR)),
    "BIGINT": ("both", "ns", st.builds(lambda nano: int(BEGIN.timestamp()) * 10**9 + nano, NEAR)),
    "DOUBLE PRECISION": ("both", "s", REALS),
    "REAL": ("both", "s", REALS),
    "NUMERIC(30, 12)": (
        "both",
        "s",
        st.builds(lambda real, more: Decimal(real) + more, REALS, st.decimals(0, 1, places=9)),
    ),
    "FLOAT": ("both", "excel", st.builds(lambda micro: 46_320 + micro / 86_400e6, NEAR)),
    "TEXT": ("both", "s", ISO),
    "VARCHAR(40)": ("both", "s", SAME),
    "TIMESTAMP": ("both", "s", st.builds(lambda micro: written(micro, "naive micro", 0), NEAR)),
    "TIMESTAMP WITH TIME ZONE": ("postgresql", "s", ISO),
    "DATE": ("both", "s", st.builds(lambda micro: written(micro, "naive", 0)[:10], NEAR)),
    "DATETIME": ("sqlite", "s", ISO | REALS),
    "BLOB": ("sqlite", "s", ISO | REALS | st.builds(str, REALS)),
}


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Database]]:
    with postgresql() as server:
        made: dict[str, Database] = {"sqlite": Sqlite(tmp_path_factory.mktemp("sqlite") / "t.db"), "postgresql": server}
        yield made.__getitem__


def table(database: Database, kind: str, rows: list[Any], entities: list[int]) -> None:
    database.run(
        "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id INTEGER PRIMARY KEY, who INTEGER, at {kind}, a INTEGER)"
    )
    if rows:
        query = sa.text(f"INSERT INTO t VALUES (:id, :who, CAST(:at AS {kind}), :a)")
        if database.url.startswith("sqlite"):
            query = sa.text("INSERT INTO t VALUES (:id, :who, :at, :a)")
        kept = [float(at) if isinstance(at, Decimal) and database.url.startswith("sqlite") else at for at in rows]
        with database.engine.begin() as connection:
            pairs = enumerate(zip(kept, entities, strict=True))
            connection.execute(query, [{"id": i, "who": who, "at": at, "a": i} for i, (at, who) in pairs])


def opened(database: Database, unit: str = "s", **options: Any) -> SqlSource:
    return SqlSource(
        database.url, "t", NAMES, ["a"], **{"time": "at", "id": "id", "follow": False, "unit": unit} | options
    )


CASES = [
    (backend, kind)
    for kind, (on, _, _) in TYPES.items()
    for backend in ("sqlite", "postgresql")
    if on in ("both", backend)
]


@pytest.mark.parametrize(("backend", "kind"), CASES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_row_is_found_by_its_own_event(
    databases: Callable[[str], Database], backend: str, kind: str, data: st.DataObject
) -> None:
    """A look-up finds the last row of the entity that is not after the event, by the times that all events bear."""
    database, unit = databases(backend), TYPES[kind][1]
    rows = data.draw(st.lists(st.tuples(TYPES[kind][2], st.integers(0, 1)), min_size=1, max_size=9))
    table(database, kind, [at for at, _ in rows], [who for _, who in rows])
    entity = data.draw(st.sampled_from(["who", None]))
    before, source = opened(database, unit, entity=entity), opened(database, unit, entity=entity)
    events = run(play(source))
    assert sorted(each.reading.values["a"] for each in events) == [*range(len(rows))]
    place = {each.reading.values["a"]: i for i, each in enumerate(events)}
    for each in events:
        known = [other.reading for other in events if other.reading.entity == each.reading.entity]
        last = max(other.time for other in known if other.time <= each.reading.time)
        expected = max((other.values["a"] for other in known if other.time == last), key=place.__getitem__)
        assert [asked.look(each.name) for asked in (before, source)] == [{"a": expected}] * 2
    run(source.close())
    run(before.close())


@pytest.mark.parametrize(("backend", "kind"), CASES)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_row_is_read_once_across_restarts(
    databases: Callable[[str], Database], backend: str, kind: str, data: st.DataObject, tmp_path: Path
) -> None:
    """A cursor at a time that is finer than a microsecond passes over no row, and gives none again."""
    database, unit = databases(backend), TYPES[kind][1]
    rows = data.draw(st.lists(TYPES[kind][2], min_size=1, max_size=6))
    table(database, kind, rows, [0] * len(rows))
    path, found = tmp_path / "cursor.sqlite", []
    path.unlink(missing_ok=True)
    for _ in range(len(rows) + 1):
        source = opened(database, unit, cursor=Cursor(path, "t"))
        for each in run(play(source, 1)):
            found.append(each.reading.values["a"])
            run(each.safe())
        run(source.close())
    assert sorted(found) == [*range(len(rows))]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("kind", "rows", "said"),
    [
        ("BIGINT", [1711846800000], 'column .at.: a number of 13 digits.*write time_unit = "ms"'),
        ("BIGINT", [1711846800, 20240331], 'write format = "%Y%m%d"'),
        ("BIGINT", [1711846800, 202403310230, 1711846801], 'write format = "%Y%m%d%H%M"'),
        ("BIGINT", [2024033102, 2024033103], 'write format = "%Y%m%d%H"'),
        ("DOUBLE PRECISION", [45382.10417], 'write time_unit = "excel"'),
        ("TEXT", ["1711846800000", "1711846800001"], 'write time_unit = "ms"'),
        ("DATE", ["2024-03-31", "1970-01-01"], r"write years = \[1970, 2100\]"),
    ],
)
def test_a_table_whose_times_are_of_another_unit_is_refused(
    databases: Callable[[str], Database], backend: str, kind: str, rows: list[Any], said: str
) -> None:
    database = databases(backend)
    table(database, kind, rows, [0] * len(rows))
    with pytest.raises(DataError, match=said):
        opened(database)
    with pytest.raises(DataError, match=said):
        opened(database, time="id", times=TimeRule(years=(1970, 2100)), event_time="at", event_times=TimeRule())


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_row_of_another_unit_that_comes_later_is_left_out(databases: Callable[[str], Database], backend: str) -> None:
    database = databases(backend)
    table(database, "BIGINT", [1711846800], [0])
    source = opened(database)
    database.run("INSERT INTO t VALUES (2, 0, 1711846801000, 2)")
    assert [each.reading.values["a"] for each in run(play(source))] == [0]
    assert source.counts["unusable"] == 1
    run(source.close())


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize("kind", ["BIGINT", "TEXT"])
def test_a_format_is_of_numbers_and_texts(databases: Callable[[str], Database], backend: str, kind: str) -> None:
    database = databases(backend)
    cells = [202403310229, 202403310230, 202404010000]
    table(database, kind, cells if kind == "BIGINT" else [*map(str, cells)], [0, 0, 0])
    source = opened(database, times=TimeRule(format="%Y%m%d%H%M"))
    events = run(play(source))
    assert [each.reading.time for each in events] == [
        micros("2024-03-31 02:29"), micros("2024-03-31 02:30"), micros("2024-04-01"),
    ]  # fmt: skip
    assert [source.look(each.name) for each in events] == [{"a": 0}, {"a": 1}, {"a": 2}]
    run(source.close())
    with pytest.raises(ConfigError, match="the year must come first"):
        opened(database, times=TimeRule(format="%d%m%Y"))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_texts_of_several_forms_are_said_once(databases: Callable[[str], Database], backend: str) -> None:
    database = databases(backend)
    table(database, "TEXT", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:10:00+01:00"], [0, 0])
    source = opened(database)
    for each in run(play(source)):
        source.look(each.name)
    assert source.counts["several forms"] == 1
    run(source.close())
