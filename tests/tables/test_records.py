"""Rows of CSV are those that Python's own reader sees, whatever is quoted and however long a row is."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.errors import DataError
from anabranch.tables import TableForm, open_table, records

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path, form: TableForm) -> tuple[list[list[str]], str]:
    """The rows before the first wrong one, and what is wrong with that."""
    rows: list[list[str]] = []
    try:
        reader = open_table(path, form)
        for piece in reader.cells(range(len(reader.names))):
            rows += [[*row] for row in zip(*(column.to_pylist() for column in piece), strict=True)]
    except DataError as error:
        return rows, str(error)
    return rows, ""


@QUICK
@given(
    st.lists(st.lists(st.text('a1", \n\rö', max_size=6), min_size=3, max_size=3), min_size=1, max_size=9),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from("|,;\t"),
)
def test_what_a_writer_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[list[str]], size: int, end: str, quoting, separator: str
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, quoting=quoting, delimiter=separator).writerows(
        [[cell.replace("\r", "\n") for cell in row] for row in rows]
    )
    path = tmp_path / "t.csv"
    path.write_bytes(out.getvalue().encode())
    monkeypatch.setattr(records, "PIECE", size)
    expected = list(csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=separator))
    assert read(path, TableForm(header=False, separator=separator)) == (expected, "")


@QUICK
@given(st.text('a1",\n\r ö', min_size=1, max_size=40), st.integers(1, 20))
def test_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    monkeypatch.setattr(records, "PIECE", size)
    expected = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    found, wrong = read(path, TableForm(header=False))
    assert found == expected[: len(found)]
    if "cells, expected" in wrong:
        assert len(expected[len(found)]) != len(expected[0])
    elif "quotation mark" not in wrong:  # Python's reader takes the rest of a file for a cell that is not closed
        assert len(found) == len(expected)


@pytest.mark.parametrize("pad", range(0, 60, 7))
def test_an_inner_line_that_looks_like_a_row_is_none(tmp_path: Path, pad: int) -> None:
    row = '2.5,1,"weight 5\n9999,1,broken"\n'
    path = tmp_path / "t.csv"
    path.write_text(f"a,y,remark\n0.5,0,{'x' * pad}\n" + row * (records.PIECE // len(row) + 60))
    reader = open_table(path)
    (a,) = reader.whole([reader.find("a")])
    assert {*a.to_pylist()} == {"0.5", "2.5"}
    assert reader.rows == records.PIECE // len(row) + 61


@pytest.mark.parametrize("longest", ["heading", "cell", "cells"])
def test_a_row_may_be_longer_than_a_piece(tmp_path: Path, longest: str) -> None:
    path = tmp_path / "t.csv"
    long = "x" * (3 * records.PIECE)
    columns = 60_000 if longest == "cells" else 3
    heading = [f"c{i}" for i in range(columns)]
    heading[1] = long if longest == "heading" else heading[1]
    row = ["0.25"] * columns
    row[1] = f'"{long}\n"' if longest == "cell" else row[1]
    path.write_text("".join(",".join(each) + "\n" for each in (heading, row, ["1"] * columns)))
    reader = open_table(path)
    assert reader.names == heading
    first, _, last = reader.whole([0, 1, columns - 1])
    assert (first.to_pylist(), last.to_pylist()) == (["0.25", "1"], ["0.25", "1"])


def test_a_row_without_an_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,2\n3,"4\n5,6\n')
    assert read(path, TableForm()) == (
        [["1", "2"]],
        f"{path}: row 2 ends with the file inside a quoted cell: a quotation mark is not closed",
    )
    monkeypatch.setattr(records, "_LONGEST", 1000)
    monkeypatch.setattr(records, "PIECE", 100)
    path.write_text('a,b\n1,2\n3,"4\n' + "5,6\n" * 1000)
    found, wrong = read(path, TableForm())
    assert found == [["1", "2"]]
    assert "row 2 has more than" in wrong


def test_a_heading_of_two_lines_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,"y\n(0 or 1)",remark\n1,0,x\n2,1,y\n')
    reader = open_table(path)
    assert reader.names == ["a", "y\n(0 or 1)", "remark"]
    assert reader.whole([1])[0].to_pylist() == ["0", "1"]
