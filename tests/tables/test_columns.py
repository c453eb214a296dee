"""A value means the same in a file, in a database and in a message."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.tables import MISSING_VALUES, Column, TableForm, open_table
from anabranch.tables.columns import Classes, Rule
from anabranch.tables.rows import OrMissing, find_classes, read_rows
from anabranch.tables.values import entity_text, is_missing, plain_text

RULES: list[Rule] = [
    Column("a"),
    Column("a", missing="mean"),
    Column("a", "flag"),
    Column("a", "flag", missing="zero"),
    Column("a", "category", values=("x", "NA", "1")),
    Column("a", "category", missing="refuse", values=("x", "2")),
    OrMissing(Column("a")),
    Classes(2),
    Classes.named(["x", "NA", 1]),
    OrMissing(Classes(2)),
]
CELLS = ["", " ", "NA", "None", "?", "nan", "1", "1.0", " 2 ", "1e+05", "inf", "-0.0", "x", "true", "1_0", "١", "2,5"]


def one_by_one(rule: Rule, values: list[Any]) -> list[float]:
    """The numbers of values up to the first that is none."""
    found = []
    for value in values:
        try:
            found.append(rule.number(value, MISSING_VALUES))
        except DataError:
            break
    return found


def in_a_file(path: Path, rule: Rule) -> list[float]:
    """The same of a file's first column."""
    found: list[float] = []
    with contextlib.suppress(DataError):
        for piece in read_rows(open_table(path, TableForm(header=True)), [0], [rule]):
            found += piece[:, 0].tolist()
    return found


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(CELLS), min_size=1, max_size=6), st.sampled_from(RULES))
def test_texts_mean_the_same_in_a_file(tmp_path: Path, cells: list[str], rule: Rule) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f'"{cell}",0\n' for cell in cells))
    np.testing.assert_array_equal(in_a_file(path, rule), one_by_one(rule, [cell.strip() for cell in cells]))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, None, 2.0], [1, 0, None], [True, False, None], ["1", "x", None], [None, None], [1.5, math.inf],
        [[1], [2]], [b"1"], pa.array([10**13], pa.timestamp("s")), ["1.5", "NA"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", RULES)
def test_values_mean_the_same_in_parquet(tmp_path: Path, values: Any, rule: Rule) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": values}), path)
    plain = values if isinstance(values, list) else ["a time that Python has not"]
    np.testing.assert_array_equal(in_a_file(path, rule), one_by_one(rule, plain))


@pytest.mark.parametrize("declared", ["-200", "-200.0"])
def test_a_number_may_mean_no_value_in_each_form(tmp_path: Path, declared: str) -> None:
    form = TableForm(missing_values=(declared,))
    pq.write_table(pa.table({"a": [1, -200], "b": [1.0, -200], "c": ["1", "-2e2"]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,b,c\n1,1.0,1\n-200,-200.0,-2e2\n")
    rules = [Column(name, missing="mean") for name in "abc"]
    for name in ("t.csv", "t.parquet"):
        (rows,) = read_rows(open_table(tmp_path / name, form), [0, 1, 2], rules)
        np.testing.assert_array_equal(rows, [[1, 1, 1], [math.nan] * 3])
    for value in (-200, -200.0, "-200", "-200.0", "-2e2", np.float32(-200)):
        assert math.isnan(rules[0].number(value, form.missing_values))
    with pytest.raises(DataError, match="-200 is one of missing_values"):
        for _ in read_rows(open_table(tmp_path / "t.csv", form), [0], [Column("a")]):
            pass


def test_whole_numbers_of_a_category_are_the_same_in_each_form() -> None:
    for declared in ("1", "1.0"):
        column = Column("a", "category", values=(declared, "x"))
        assert [column.number(each, ()) for each in (1, 1.0, "1", "1.0", "x", "1.5")] == [0, 0, 0, 0, 1, 2]
    with pytest.raises(ConfigError, match="names a value twice"):
        Column("a", "category", values=("1", "1.0"))


def test_a_declared_value_is_never_missing() -> None:
    column = Column("a", "category", missing="refuse", values=("NA", "EU"))
    assert column.number("NA", MISSING_VALUES) == 0
    with pytest.raises(DataError, match="a text is one of missing_values"):
        column.number("None", MISSING_VALUES)
    assert column.number("None", ()) == 2
    assert is_missing("", ())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" A-17 ", "A-17"), (17, "17"), (17.0, "17"), ("17.0", "17"), ("17.00", "17"), ("-3.0", "-3"), ("-0.0", "0"),
        ("1e+05", "100000"), ("1.5e+10", "15000000000"), ("1.25e+1", "1.25e+1"), ("1.25e+01", "1.25e+01"),
        ("007", "007"), ("007.0", "007.0"), ("1e5", "1e5"), ("12e45", "12e45"), ("1.10", "1.10"), ("1.", "1."),
        (123456789012.0, "123456789012"), ("123456789012.0", "123456789012"), (2.0**53, str(2**53)),
        ("9007199254740992.0", "9007199254740992"), (2**60, str(2**60)), (str(2**60), str(2**60)),
        ("e\u0301", "é"),
    ],
)  # fmt: skip
def test_ids_are_the_same_however_a_program_writes_them(value: Any, text: str) -> None:
    assert entity_text(value) == text


@pytest.mark.parametrize("value", [2.0**60, "1.152921504606847e+18", "12345678901234567890.0", np.float64(1e300)])
def test_a_float_that_has_lost_its_digits_is_no_id(value: Any) -> None:
    with pytest.raises(DataError, match=r"above 2\*\*53 is written as a float") as error:
        entity_text(value)
    assert "1152" not in str(error.value)
    with pytest.raises(DataError):
        plain_text(value)


def classes_of(folder: Path, *labels: str) -> Classes:
    (folder / "t.csv").write_text("a,y\n" + "".join(f"0,{label}\n" for label in labels))
    return find_classes(open_table(folder / "t.csv"), 1)


def test_classes_are_found(tmp_path: Path) -> None:
    assert classes_of(tmp_path, "1", "3.0", "0") == Classes(4)
    assert classes_of(tmp_path, "0") == Classes(2)
    assert classes_of(tmp_path, "low", " high", "low") == Classes(2, ("high", "low"))
    assert classes_of(tmp_path, "true", "false").names == ("false", "true")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["0", "1", "low"], "row 3, column 'y': 'low' is not a number: name labels that are texts"),
        (["low", "1"], "row 2, column 'y': the label 1 is a number, but the first is a text: .* classes = "),
        (["low", "None"], "row 2, column 'y': the label 'None' is missing: .*name the classes"),
        (["low", ""], "row 2, column 'y': the label is missing"),
        (["1", ""], "row 2, column 'y': the cell is empty"),
        (
            ["-1", "1"],
            r"row 1, column 'y': -1 is no whole number from 0 on: name such labels, as in classes = \[-1, 1\]",
        ),
        ([str(i) for i in range(1001)], "column 'y' has labels of more than 1,000 classes: .*classes = 2000"),
        ([f"id{i}" for i in range(1001)], "column 'y' has labels of more than 1,000 classes"),
    ],
)
def test_labels_that_could_be_anything_are_a_question(tmp_path: Path, labels: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        classes_of(tmp_path, *labels)


def test_classes_are_declared() -> None:
    assert [Classes.of([-1, 1]).number(each, ()) for each in (-1, "1.0", "1", 1.0)] == [0, 1, 1, 1]
    assert Classes.of(3) == Classes(3)
    for names, said in [
        ([], "classes is"),
        ([1.5], "classes is"),
        (["a", "a"], "a label twice"),
        ("ab", "whole number"),
    ]:
        with pytest.raises(ConfigError, match=said):
            Classes.of(names)
