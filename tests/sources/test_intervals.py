"""A label of an interval is a label of each moment in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import DataError
from anabranch.sources import intervals
from anabranch.sources.base import Happening
from anabranch.sources.file import FileSource
from anabranch.sources.intervals import moments_of
from anabranch.storage.event_ids import Names
from anabranch.storage.times import micros
from source_playing import play, run

NAMES = Names(bytes(32), grain=60_000_000)
MINUTE = 60_000_000


def opened(path: Path, rows: str, **options: Any) -> FileSource:
    path.write_text(rows)
    return FileSource(path, NAMES, options.pop("time", None), ["y"], interval=("from", "to"), **options)


def labels(source: FileSource) -> list[tuple[str, str, int, str]]:
    """Of each event its entity, when it was in minutes of its day, when its label is known, and the label."""

    def one(each: Happening) -> tuple[str, str, int, str]:
        read = Names.read(each.name)
        assert read is not None
        day = micros("2026-01-01")
        return (
            each.reading.entity,
            (read[1] - day) / MINUTE,
            (each.reading.time - day) / MINUTE,
            each.reading.values["y"],
        )

    return [one(each) for each in run(play(source))]


ROWS = "from,to,y\n2026-01-01T00:00,2026-01-01T00:02,1\n2026-01-01T00:02,2026-01-01T00:03,0\n"


def test_a_moment_is_of_the_interval_that_ends_with_it(tmp_path: Path) -> None:
    assert labels(opened(tmp_path / "t.csv", ROWS)) == [("", 1, 1, "1"), ("", 2, 2, "1"), ("", 3, 3, "0")]


def test_a_label_is_known_at_the_time_of_its_row(tmp_path: Path) -> None:
    assert labels(opened(tmp_path / "t.csv", ROWS, time="to")) == [("", 1, 2, "1"), ("", 2, 2, "1"), ("", 3, 3, "0")]


def test_a_gap_has_no_labels_and_an_entity_its_own_intervals(tmp_path: Path) -> None:
    rows = (
        "from,to,y,who\n2026-01-01T00:05:30,2026-01-01T00:06:30,1,x\n"
        "2026-01-01T00:00,2026-01-01T00:01,0,x\n2026-01-01T00:00,2026-01-01T00:01,1,y\n"
    )
    found = labels(opened(tmp_path / "t.csv", rows, entity="who"))
    assert found == [("x", 1, 1, "0"), ("y", 1, 1, "1"), ("x", 6, 6, "1")]


def test_intervals_that_overlap_have_one_label(tmp_path: Path) -> None:
    rows = "from,to,y\n2026-01-01T00:00,2026-01-01T00:03,1\n2026-01-01T00:01,2026-01-01T00:04,{}\n"
    found = labels(opened(tmp_path / "t.csv", rows.format(1), time="to"))
    assert found == [("", 1, 3, "1"), ("", 2, 3, "1"), ("", 3, 3, "1"), ("", 4, 4, "1")]
    with pytest.raises(DataError, match=r"row 2: the interval overlaps that of row 1, of another label"):
        opened(tmp_path / "t.csv", rows.format(0))


@pytest.mark.parametrize("end", ["2026-01-01T00:01", "2026-01-01T00:00"])
def test_an_interval_ends_after_its_start(tmp_path: Path, end: str) -> None:
    with pytest.raises(DataError, match="row 1: the interval does not end after its start"):
        opened(tmp_path / "t.csv", f"from,to,y\n2026-01-01T00:01,{end},1\n")


def test_an_interval_without_a_moment_is_counted(tmp_path: Path) -> None:
    short = "2026-01-01T00:03:10,2026-01-01T00:03:50,1\n"
    source = opened(tmp_path / "t.csv", ROWS + short)
    assert (len(labels(source)), source.counts["no moment"]) == (3, 1)
    with pytest.raises(DataError, match="no interval has a moment"):
        opened(tmp_path / "t.csv", "from,to,y\n" + short)


def test_too_many_moments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "MOST", 2)
    with pytest.raises(DataError, match=r"have 3 moments, but at most 2 are taken: give a larger grain"):
        opened(tmp_path / "t.csv", ROWS)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 40)), min_size=1, max_size=5), st.integers(1, 7))
def test_moments_are_those_of_a_plain_search(spans: list[tuple[int, int]], grain: int) -> None:
    starts, ends = np.array([(a, a + n) for a, n in spans]).T
    rows, times = moments_of(starts, ends, grain)
    found = [(i, t) for i, (a, n) in enumerate(spans) for t in range(-98, 98) if t % grain == 0 and a < t <= a + n]
    assert [*zip(rows.tolist(), times.tolist(), strict=True)] == found
