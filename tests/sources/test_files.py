"""Rows of a file happen at their times, an entity is as its last row says, and wrong files are refused by row."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.errors import CheckpointError, ConfigError, DataError
from anabranch.sources.base import Happening
from anabranch.sources.file import FileSource
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names
from anabranch.storage.times import TimeRule
from anabranch.tables import Column, TableForm
from anabranch.tables.columns import Classes
from source_playing import placed, play, run

NAMES = Names(bytes(32))
EARLY = TimeRule(years=(1970, 2100))
ROWS = "who,at,a\nx,1,10\ny,2,20\nx,3,30\n"


def opened(path: Path, text: str = ROWS, names: Names = NAMES, **options: Any) -> FileSource:
    if text:
        path.write_text(text)
    options = {"entity": "who", "times": None if "unit" in options else EARLY} | options
    return FileSource(path, names, options.pop("time", "at"), ["a"], **options)


def given_of(source: FileSource) -> list[Happening]:
    return run(play(source))


def at(source: FileSource, entity: str, seconds: float) -> Any:
    values = source.look(NAMES.of(entity, round(seconds * 1e6)))
    return None if values is None else values["a"]


def test_rows_are_events_of_an_entity_at_a_time(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv")
    events = given_of(source)
    assert [each.reading for each in events] == [
        ("x", 1_000_000, {"a": "10"}), ("y", 2_000_000, {"a": "20"}), ("x", 3_000_000, {"a": "30"}),
    ]  # fmt: skip
    assert [each.name for each in events] == [NAMES.of(each.reading.entity, each.reading.time) for each in events]
    assert [source.look(each.name) for each in events] == [each.reading.values for each in events]


def test_an_entity_is_as_its_last_row_at_that_time_says(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv")
    assert [at(source, "x", s) for s in (0.999999, 1, 2.5, 3, 1e6)] == [None, "10", "10", "30", "30"]
    assert (at(source, "y", 1), at(source, "nobody", 9), source.look(b"order 17")) == (None, None, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 6)), min_size=1, max_size=12))
def test_look_ups_are_those_of_a_plain_search(tmp_path: Path, rows: list[tuple[str, int]]) -> None:
    lines = "".join(f"{who},{when},{i}\n" for i, (who, when) in enumerate(rows))
    source = opened(tmp_path / "t.csv", "who,at,a\n" + lines, order="sort")
    for who, when in itertools.product("xyz", range(8)):
        known = [(then, i) for i, (whose, then) in enumerate(rows) if whose == who and then <= when]
        assert at(source, who, when) == (str(max(known)[1]) if known else None)
    assert len(source) == len({*rows}) == len(given_of(source))
    assert source.counts["duplicate"] == len(rows) - len({*rows})


def test_parquet_has_times_and_numbers_of_its_own(tmp_path: Path) -> None:
    moments = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]
    pq.write_table(pa.table({"who": [7, 7], "at": moments, "a": [None, 1.5]}), tmp_path / "t.parquet")
    source = opened(tmp_path / "t.parquet", "")
    first, second = given_of(source)
    assert first.reading == ("7", 1_767_225_600_000_000, {"a": None})
    assert second.reading.values == {"a": 1.5}


def test_times_in_milliseconds_are_seconds_of_a_thousandth(tmp_path: Path) -> None:
    rows = "who,at,a\nx,1711846800001,1\nx,1711846800002,2\n"
    source = opened(tmp_path / "t.csv", rows, times=TimeRule("ms"))
    assert [at(source, "x", 1711846800 + s) for s in (0, 0.001, 0.002)] == [None, "1", "2"]
    with pytest.raises(DataError, match=r"row 1, column 'at': .* write time_unit = \"ms\""):
        opened(tmp_path / "t.csv", rows)


def test_nanoseconds_of_parquet_are_cut_to_microseconds(tmp_path: Path) -> None:
    fine = pa.array([1711846800123456789, 1711846800123456999], pa.timestamp("ns"))
    pq.write_table(pa.table({"who": ["x", "y"], "at": fine, "a": [1, 2]}), tmp_path / "t.parquet")
    source = opened(tmp_path / "t.parquet", "")
    events = given_of(source)
    assert [each.reading.time for each in events] == [1711846800123456] * 2
    assert [source.look(each.name) for each in events] == [{"a": 1}, {"a": 2}]


def test_a_time_of_several_columns_has_a_format(tmp_path: Path) -> None:
    rows = "year,month,day,hour,a\n2013,3,1,0,1\n2013,3,1,1,2\n"
    columns = ["year", "month", "day", "hour"]
    options = {"time": columns, "entity": None, "event_time": columns}
    source = opened(tmp_path / "t.csv", rows, **options, times=TimeRule(format="%Y %m %d %H"))
    assert [each.reading.time // 3_600_000_000 % 24 for each in given_of(source)] == [0, 1]
    with pytest.raises(DataError, match=r"row 1, column 'year': 4 columns joined with spaces read like '9999 9 9 9'"):
        opened(tmp_path / "t.csv", rows, **options)


def test_a_row_that_is_too_old_is_missing(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv", max_age=1.5)
    assert [source.look(NAMES.of("y", s * 500_000)) for s in (4, 7, 8)] == [{"a": "20"}, {"a": "20"}, {"a": None}]
    assert source.counts["too old"] == 1
    with pytest.raises(ConfigError, match="max_age = 0"):
        opened(tmp_path / "t.csv", max_age=0)


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("us", "No/Where"), pa.date32()])
def test_parquet_may_have_times_that_python_has_not(tmp_path: Path, kind: pa.DataType) -> None:
    far = pa.array([2**30 if kind == pa.date32() else 10**13], kind)
    pq.write_table(pa.table({"who": ["x"], "at": far, "a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="row 1, column 'at': a text is no time"):
        opened(tmp_path / "t.parquet", "")
    pq.write_table(pa.table({"who": ["x"], "at": [1], "a": far}), tmp_path / "t.parquet")
    assert str(at(opened(tmp_path / "t.parquet", ""), "x", 1)).startswith(str(kind).partition("[")[0])


def test_sensors_have_times_alone_and_a_date_and_a_time_of_day_together(tmp_path: Path) -> None:
    text = "Date,Time,a\n2017/12/22,10:49:41,1\n2017/12/22,10:50:12,2\n"
    source = opened(tmp_path / "t.csv", text, time=["Date", "Time"], entity=None)
    events = given_of(source)
    assert [each.reading.time for each in events] == [1_513_939_781_000_000, 1_513_939_812_000_000]
    assert NAMES.read(events[0].name) == (NAMES.hash(""), 1_513_939_781_000_000)
    assert source.look(NAMES.of("", 1_513_939_800_000_000)) == {"a": "1"}


def test_a_grain_makes_one_event_of_times_that_are_near(tmp_path: Path) -> None:
    names = Names(bytes(32), grain=2_000_000)
    text = "who,at,a\nx,0.5,1\ny,0.6,2\nx,1.5,3\nx,2,4\nx,2.5,5\n"
    source = opened(tmp_path / "t.csv", text, names)
    events = given_of(source)
    assert [(each.reading.entity, Names.read(each.name)[1]) for each in events] == [  # type: ignore[index]
        ("x", 2_000_000), ("y", 2_000_000), ("x", 4_000_000),
    ]  # fmt: skip
    assert [source.look(each.name)["a"] for each in events] == ["4", "2", "5"]  # type: ignore[index]


def test_at_a_speed_rows_wait_for_their_time(tmp_path: Path) -> None:
    now, waited = [100.0], []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    given_of(opened(tmp_path / "t.csv", speed=4.0, waited=lambda: now[0], sleep=sleep))
    assert waited == [0.25, 0.25]
    waited.clear()
    given_of(opened(tmp_path / "t.csv", sleep=sleep))
    assert waited == []


def test_parties_of_one_origin_replay_together(tmp_path: Path) -> None:
    now, waited = [1000.0], []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    clocks = {"clock": lambda: now[0], "waited": lambda: now[0] - 900.0}
    options = {"speed": 2.0, "origin": (0, 1_000_500_000), "sleep": sleep} | clocks
    given_of(opened(tmp_path / "t.csv", **options))
    assert waited == [1.0, 0.5, 0.5]  # the file's first second is half a second after 1000.5
    waited.clear()
    given_of(opened(tmp_path / "t.csv", "who,at,a\nx,1,10\ny,5,20\n", **options))  # another begins a second late
    assert waited == [1.0]


def test_a_duplicate_takes_the_place_of_the_row_before_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = opened(tmp_path / "t.csv", "who,at,a\nx,1,10\ny,1,20\nx,1,30\n")
    assert [each.reading.values["a"] for each in given_of(source)] == ["20", "30"]
    assert source.counts == {"duplicate": 1}
    assert "row 3 has the entity and the time of one before it, and takes its place; 1 rows are such" in caplog.text


def test_rows_of_one_time_that_tell_of_other_events_are_all_given(tmp_path: Path) -> None:
    rows = "x,9,1,10\nx,9,2,20\ny,9,1,30\nx,9,1,40\n"  # labels that became known together
    source = opened(tmp_path / "t.csv", "who,at,of,a\n" + rows, event_time="of")
    events = given_of(source)
    assert [(each.name, each.reading.values["a"]) for each in events] == [
        (NAMES.of("x", 2_000_000), "20"), (NAMES.of("y", 1_000_000), "30"), (NAMES.of("x", 1_000_000), "40"),
    ]  # fmt: skip
    assert source.counts == {"duplicate": 1}
    assert (at(source, "x", 8), at(source, "x", 9)) == (None, "40")


def test_times_that_go_back_are_refused_or_sorted(tmp_path: Path) -> None:
    text = "who,at,a\nx,1,10\nx,3,30\ny,2,20\n"
    with pytest.raises(DataError, match=r"t.csv: row 3 is earlier than the row before it.*order = \"sort\""):
        opened(tmp_path / "t.csv", text)
    source = opened(tmp_path / "t.csv", text, order="sort")
    assert [each.reading.values["a"] for each in given_of(source)] == ["10", "20", "30"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("who,at,a\nx,1,1\nx,soon,2\n", "row 2, column 'at': a text is no time"),
        ("who,at,a\nx,,1\n", "row 1, column 'at': an empty cell is no time"),
        (f"who,at,a\nx,{'1' * 400},1\n", "row 1, column 'at': a number of more than 60 digits under time_unit"),
        ("who,at,a\nx,202611281305,1\nx,5,2\n", "row 1, column 'at': a number of 12 digits .* format = .%Y%m%d%H%M"),
        ("who,at,a\n ,1,1\n", "row 1, column 'who': the id is empty"),
        ("who,at,a\n", "has no rows"),
        ("who,at,a\nx,1\n", "row 1 has 2 cells, expected 3"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        opened(tmp_path / "t.csv", text)


def test_a_value_that_its_column_does_not_take_is_refused_at_the_start(tmp_path: Path) -> None:
    rules = {"a": Column("a")}
    missing = opened(tmp_path / "t.csv", "who,at,a\nx,1,NA\nx,2,\nx,3,5\n", rules=rules)  # a rule has its say later
    assert [each.reading.values["a"] for each in given_of(missing)] == ["NA", "", "5"]
    text = "who,at,a\nx,1,NA\nx,2,1\nx,3,s3cr3t\n"
    with pytest.raises(DataError, match=r"t.csv: row 3, column 'a': a text is not a number.* missing_values$"):
        opened(tmp_path / "t.csv", text, rules=rules)
    assert opened(tmp_path / "t.csv", text, rules=rules, form=TableForm(missing_values=("NA", "s3cr3t")))
    with pytest.raises(DataError, match="row 3, column 'a': a text is not a number: name labels that are texts"):
        opened(tmp_path / "t.csv", text, rules={"a": Classes(2)})


def test_ids_that_a_program_wrote_as_floats_are_the_same(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv", "who,at,a\n1.0,1,10\n1e+05,2,20\n")
    assert (at(source, "1", 1), at(source, "100000", 2)) == ("10", "20")
    with pytest.raises(DataError, match="row 1, column 'who': the id, a text, is one of missing_values"):
        opened(tmp_path / "t.csv", "who,at,a\nNA,1,10\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "when"}, "has no column 'when'"),
        ({"entity": "hwo"}, "has no column 'hwo'. Did you mean 'who'"),
        ({"speed": 0}, "speed is 0"),
        ({"order": "any"}, "order is 'any'"),
        ({"origin": (0, 0)}, "give a speed as well"),
        ({"unit": "h"}, "unit of times"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(tmp_path / "t.csv", **options)


def test_a_column_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no column 'a'"):
        opened(tmp_path / "t.csv", "who,at,b\nx,1,1\n")


def test_a_restart_goes_on_after_what_is_safe(tmp_path: Path) -> None:
    def again() -> tuple[FileSource, list[Happening]]:
        source = opened(tmp_path / "t.csv", cursor=Cursor(tmp_path / "own" / "cursor", "t.csv"))
        return source, given_of(source)

    source, events = again()
    assert len(events) == 3
    places = placed(events)
    run(events[1].safe())  # the first is not
    run(source.close())
    source, events = again()
    assert placed(events) == places
    run(events[1].safe())
    run(events[0].safe())
    run(source.close())
    source, events = again()
    assert [each.reading.values["a"] for each in events] == ["30"]
    assert placed(events) == places[2:]
    run(events[0].safe())
    assert again()[1] == []


def test_a_file_that_grew_goes_on_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    def again(text: str) -> list[Happening]:
        return given_of(opened(path, text, cursor=Cursor(tmp_path / "cursor", "t.csv")))

    for event in again(ROWS):
        run(event.safe())
    assert [each.reading.entity for each in again(ROWS + "z,9,1\n")] == ["z"]
    with pytest.raises(DataError, match="rows were read before"):
        again("who,at,a\nx,1,10\n")
    with pytest.raises(CheckpointError, match=r"says how far t.csv was read, but the source is other.csv"):
        Cursor(tmp_path / "cursor", "other.csv")


def test_a_clock_that_jumps_moves_no_row(tmp_path: Path) -> None:
    """Ahead by sixty days, or back to 1970, while a file is replayed."""
    wall, waited, waits = [1000.0], [50.0], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        waited[0] += seconds
        wall[0] = [5_185_000.0, 0.0][len(waits) % 2]

    clocks = {"clock": lambda: wall[0], "waited": lambda: waited[0]}
    given_of(opened(tmp_path / "t.csv", speed=4.0, sleep=sleep, **clocks))
    assert waits == [0.25, 0.25]
