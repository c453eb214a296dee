"""A table's columns follow the rules that a federation's client has, to the bit, in whatever pieces it is read."""

from __future__ import annotations

import json
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
from anabranch.sources.features import Features
from anabranch.streams import Column, standardise, table
from anabranch.tables import records

RULES = (
    Column("a", missing="mean", standardise=True),
    Column("f", "flag", missing="mean"),
    Column("c", "category", values=("N", "S")),
    Column("b", missing=-1.5),
)
HEADING = "b,c,a,f,y\n"


def everything(stream) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*stream.blocks(), strict=True)
    return np.concatenate(x), np.concatenate(y)


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


numbers = st.one_of(st.sampled_from(["", "NA", "?"]), st.floats(-1e6, 1e6).map(repr))
rows = st.tuples(numbers, st.sampled_from(["N", "S", "E", "", "NA"]), numbers, st.sampled_from(["yes", "0", "", "NA"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=20), st.integers(1, 200))
def test_features_are_those_of_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, ...]], size: int
) -> None:
    monkeypatch.setattr(records, "PIECE", size)
    path = written(tmp_path, HEADING + "".join(",".join(row) + ",0\n" for row in rows))
    stream = table(
        path, split={"one": ["a", "f"], "two": ["c", "b"]}, columns=RULES, standardise=None, classes=2, header=True
    )
    assert stream.widths == (2, 4)
    features, expected = Features(RULES), []
    state = features.begin()
    for row in rows:
        state, x = features(state, dict(zip("bcaf", row, strict=True)))
        expected.append(x)
    found, _ = everything(stream)
    np.testing.assert_array_equal(found.astype(np.float32), np.array(expected))


@settings(max_examples=40)
@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=2, max_size=2), max_size=12), st.data())
def test_readings_in_any_pieces_are_the_same(rows: list[list[float]], data: Any) -> None:
    features = Features([Column("a", missing="mean", standardise=True), Column("b", missing="zero")])
    numbers = np.array(rows).reshape(-1, 2)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    state, parts = features.begin(), []
    for part in np.split(numbers, cuts):
        state, x = features.made(state, part)
        parts.append(x)
    whole_state, whole = features.made(features.begin(), numbers)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(state, whole_state)


def test_a_rule_of_one_column_changes_no_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "a,b,y\n" + "".join(f"{u!r},{v!r},{i % 2}\n" for i, (u, v) in enumerate(rng.normal(size=(50, 2)).tolist()))
    path = written(tmp_path, text)
    values = np.array([line.split(",")[:2] for line in text.split()[1:]], float)
    for columns in ([], [Column("b", missing="mean")]):
        found, _ = everything(table(path, split=2, columns=columns))
        np.testing.assert_array_equal(found, standardise.standardise(None, values)[1])
    one = everything(table(path, split=2, shuffle_buffer=10, seed=3))
    two = everything(table(path, split=2, shuffle_buffer=10, seed=3, columns=[Column("a", missing="zero")]))
    np.testing.assert_array_equal(one[0], two[0])


def test_numbers_with_rules_are_standardised_as_the_stream_is(tmp_path: Path) -> None:
    path = written(tmp_path, "a,f,y\n1,yes,0\n,no,1\n3,no,0\n")
    columns = [Column("a", missing="mean"), Column("f", "flag")]
    assert everything(table(path, split=1, columns=columns))[0].tolist() == [[0, 1], [0, 0], [1, 0]]
    assert everything(table(path, split=1, columns=columns, standardise="none"))[0].tolist() == [[1, 1], [1, 0], [3, 0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": [Column("x")]}, "columns has a rule of 'x', which no client holds"),
        ({"columns": [Column("y", "flag")]}, "columns has a rule of 'y', which no client holds"),
        ({"columns": [Column("a"), Column("a", "flag")]}, "columns names a column twice"),
        (
            {"columns": [Column("a", "flag")], "standardise": {"mean": [0, 0], "std": [1, 1]}},
            "for columns without rules",
        ),
        ({"ignore": ["x"]}, "has no column 'x'"),
        ({"classes": ["low", "low"]}, "names a label twice"),
    ],
)
def test_rules_that_do_not_fit_are_refused(tmp_path: Path, given, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        table(written(tmp_path, "a,b,y\n1,2,0\n"), split=2, **given)


def test_text_labels_are_classes_and_the_stream_names_them(tmp_path: Path) -> None:
    text = "a,level\n1,low\n2,high\n3,low\n"
    stream = table(written(tmp_path, text), split=1)
    assert (stream.classes, stream.class_names, everything(stream)[1].tolist()) == (2, ("high", "low"), [1, 0, 1])
    assert stream.describe()["class_names"] == ["high", "low"]
    stream = table(written(tmp_path, text), split=1, classes=["low", "middle", "high"])
    assert (stream.classes, everything(stream)[1].tolist()) == (3, [0, 2, 0])
    pq.write_table(
        pa.table({"a": [1.0, 2, 3], "level": pa.array(["low", "high", "low"]).dictionary_encode()}),
        tmp_path / "t.parquet",
    )
    assert everything(table(tmp_path / "t.parquet", split=1))[1].tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="row 2, column 'level': 'high' is none of the 1 labels that classes names"):
        everything(table(written(tmp_path, text), split=1, classes=["low"]))
    with pytest.raises(DataError, match="row 1, column 'level': 'low' is not a number: name labels that are texts"):
        everything(table(written(tmp_path, text), split=1, classes=2))


def test_labels_of_other_numbers_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n1,-1\n2,1.0\n3,-1\n")
    assert everything(table(path, split=1, classes=[-1, 1]))[1].tolist() == [0, 1, 0]


def test_row_numbers_are_a_question_if_they_are_taken_by_their_place(tmp_path: Path) -> None:
    path = written(tmp_path, ",a,b,y\n0,1.5,2,0\n7,3,4,1\n")
    with pytest.raises(ConfigError, match=r"column 1 is named '', as row numbers are.*ignore = \[''\]"):
        table(path, split=2, label="y")
    assert table(path, split=2, ignore=[""]).describe()["split"] == [["a"], ["b"]]
    assert table(path, split=[["a"], ["b"]]).describe()["label"] == "y"
    pq.write_table(
        pa.table({"a": [1.0, 2], "y": [0, 1], "__index_level_0__": [3, 9]}).replace_schema_metadata(
            {"pandas": json.dumps({"index_columns": ["__index_level_0__"]})}
        ),
        tmp_path / "t.parquet",
    )
    described = table(tmp_path / "t.parquet", split=1).describe()
    assert (described["label"], described["split"], described["classes"]) == ("y", [["a"]], 2)


def test_the_rules_are_described(tmp_path: Path) -> None:
    path = written(tmp_path, "b,c,a,f,y\n1,N,2,yes,0\n")
    described = table(path, split=1, columns=RULES, classes=2, standardise=None).describe()
    assert json.loads(json.dumps(described)) == described
    assert [each["name"] for each in described["columns"]] == ["b", "c", "a", "f"]
    assert described["columns"][1]["values"] == ["N", "S"]


def test_an_error_shows_no_cell_if_it_may_not(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n1,0\nsecret,1\n")
    with pytest.raises(DataError, match="row 2, column 'a': a text is not a number") as error:
        everything(table(path, split=1, shown=False))
    assert "secret" not in str(error.value)
