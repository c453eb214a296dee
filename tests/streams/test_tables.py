from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.streams import Drift, table
from anabranch.tables import parquet_reader, records

HEADER = ["a", "b", "c", "label"]
ROWS = [[0.5, 1, -2, 0], [1.5, 1, 1e3, 1], [-1, 1, 0, 2], [2, 1, 4, 1]]


def text(rows=ROWS, header=HEADER) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in ([header] if header else []) + rows)


def csv(folder: Path, content: str | bytes | None = None, name: str = "t.csv") -> Path:
    raw = (text() if content is None else content) if isinstance(content, bytes) else (content or text()).encode()
    path = folder / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def parquet(folder: Path, columns: dict, name: str = "t.parquet") -> Path:
    path = folder / name
    pq.write_table(pa.table(columns), path)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def columns(rows=ROWS) -> dict:
    return {name: [row[i] for row in rows] for i, name in enumerate(HEADER)}


def everything(stream) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*stream.blocks(), strict=True)
    return np.concatenate(x), np.concatenate(y)


X = np.array(ROWS, float)[:, :3]
Y = [0, 1, 2, 1]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.data", "t.parquet", "t.parquet.gz", "t.pq"])
def test_formats(tmp_path: Path, name: str) -> None:
    path = parquet(tmp_path, columns(), name) if "p" in name.split(".")[1] else csv(tmp_path, name=name)
    stream = table(path, split=[1, 2], standardise=None)
    assert (stream.widths, stream.classes) == ((1, 2), 3)
    for _ in range(2):
        x, y = everything(stream)
        np.testing.assert_array_equal(x, X)
        assert y.tolist() == Y


@pytest.mark.parametrize("header", ["auto", False])
def test_without_a_header(tmp_path: Path, header) -> None:
    stream = table(csv(tmp_path, text(header=None)), split=1, header=header, standardise="none", label="4")
    assert stream.widths == (3,)
    np.testing.assert_array_equal(everything(stream)[0], X)


def test_a_header_of_numbers_can_be_declared(tmp_path: Path) -> None:
    path = csv(tmp_path, "2019,2020,2021\n1,2,0\n3,4,1\n")
    assert len(everything(table(path, split=2, header=False, classes=2022))[1]) == 3
    with pytest.raises(ConfigError, match=r"t.csv: header is 'auto', but .* give header = true if"):
        table(path, split=2)
    stream = table(path, split=[["2020"], ["2019"]], header=True, standardise=None)
    np.testing.assert_array_equal(everything(stream)[0], [[2, 1], [4, 3]])


def test_what_a_csv_may_look_like(tmp_path: Path) -> None:
    raw = '\ufeff"a, first",b,label\r\n"1.5", 2 ,0\r\n\r\n1e3,-.5,1.0\r\n7,8,1'
    for name in ("t.csv", "t.csv.gz"):
        stream = table(csv(tmp_path, raw, name), split=[["a, first"], ["b"]], standardise=None)
        x, y = everything(stream)
        np.testing.assert_array_equal(x, [[1.5, 2], [1000, -0.5], [7, 8]])
        assert y.tolist() == [0, 1, 1]


def test_empty_lines_before_the_header(tmp_path: Path) -> None:
    stream = table(csv(tmp_path, "\n\na,y\n1,0\n2,1\n3,x\n"), split=1, classes=2, standardise=None)
    with pytest.raises(DataError, match="row 3, column 'y': 'x' is not a number"):
        everything(stream)


@pytest.mark.parametrize(
    ("label", "labels", "features"),
    [
        ("first", [0, 1, 2, 1], ["x", "z"]),
        ("last", [2, 0, 0, 1], ["y", "x"]),
        ("x", [7, 5, 6, 8], ["y", "z"]),
    ],
)
def test_label_column(tmp_path: Path, label: str, labels, features) -> None:
    data = {"y": [0, 1, 2, 1], "x": [7, 5, 6, 8], "z": [2, 0, 0, 1]}
    path = csv(tmp_path, text([list(row) for row in zip(*data.values(), strict=True)], list(data)))
    for file in (path, parquet(tmp_path, data)):
        x, y = everything(table(file, label=label, split=2, standardise=None))
        assert y.tolist() == labels
        np.testing.assert_array_equal(x.T, [data[name] for name in features])


@pytest.mark.parametrize(
    ("split", "widths", "order"),
    [
        (1, (3,), "abc"),
        (2, (2, 1), "abc"),
        ([1, 2], (1, 2), "abc"),
        ((2, 1), (2, 1), "abc"),
        ([["c"], ["b", "a"]], (1, 2), "cba"),
        ({"shop": ["b"], "bank": ["a"]}, (1, 1), "ba"),
    ],
)
def test_split(tmp_path: Path, split, widths, order: str) -> None:
    for path in (csv(tmp_path), parquet(tmp_path, columns())):
        stream = table(path, split=split, standardise=None)
        assert stream.widths == widths
        np.testing.assert_array_equal(everything(stream)[0], X[:, ["abc".index(name) for name in order]])
        assert stream.describe()["split"] == [list(part) for part in np.split(list(order), np.cumsum(widths)[:-1])]


def test_columns_not_named_are_not_read(tmp_path: Path) -> None:
    path = csv(tmp_path, "date,a,label\n2017-12-22,1,0\n,2,1\n")
    np.testing.assert_array_equal(everything(table(path, split=[["a"]], standardise=None))[0], [[1], [2]])
    with pytest.raises(DataError, match="row 1, column 'date': '2017-12-22' is not a number"):
        everything(table(path, split=1))


SPLITS = [
    (0, "clients is 0"),
    (4, "clients is 4.*1 to 3"),
    (True, "clients is True"),
    ([2, 2], r"\[2, 2\] adds up to 4, but .*t.csv has 3 features"),
    ([3, 0], "at least one feature"),
    ([], "split is "),
    ("ab", "split is 'ab'"),
    (2.5, "split is 2.5"),
    ([["a"], []], "client 2 has no columns"),
    ([["a"], "bc"], "client 2 has 'bc', expected a list"),
    ([["a"], [1]], r"client 2 has \[1\], expected a list"),
    ([["a", "b"], ["c", "a"]], "column 'a' is named twice, by client 1 and by client 2"),
    ({"bank": ["a", "a"]}, "column 'a' is named twice, by client 'bank' and by client 'bank'"),
    ([["a", "label"]], "client 1 has column 'label', which is the label"),
    ([["a"], ["lable"]], "t.csv has no column 'lable'. Did you mean 'label'. Its columns: a, b, c, label"),
]


@pytest.mark.parametrize(("split", "message"), SPLITS)
def test_split_out_of_range(tmp_path: Path, split, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table(csv(tmp_path), split=split)


def test_unknown_and_ambiguous_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no column 'labels'\. Did you mean 'label'\?"):
        table(csv(tmp_path), split=1, label="labels")
    with pytest.raises(ConfigError, match="label is 3"):
        table(csv(tmp_path), split=1, label=3)  # type: ignore[arg-type]
    path = csv(tmp_path, "a,a,y\n1,2,0\n3,4,1\n")
    with pytest.raises(ConfigError, match="2 columns named 'a'"):
        table(path, split=[["a"]])
    np.testing.assert_array_equal(everything(table(path, split=2, standardise=None))[0], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"header": "yes"}, "header is 'yes'"),
        ({"classes": 0}, "classes is 0"),
        ({"classes": 2.0}, "classes is 2.0"),
        ({"shuffle_buffer": -1}, "shuffle_buffer is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"standardise": "offline"}, "standardise is 'offline'"),
        ({"standardise": {"mean": [0, 0, 0]}}, "standardise is"),
        ({"standardise": {"mean": [0, 0], "std": [1, 1, 1]}}, "mean has 2 numbers, but the clients hold 3"),
        ({"standardise": {"mean": [0, 0, 0], "std": [1, 0, 1]}}, "std of feature 2"),
        ({"standardise": {"mean": [0, np.nan, 0], "std": [1, 1, 1]}}, "mean has a number that is not finite"),
        ({"standardise": {"mean": "abc", "std": [1, 1, 1]}}, "lists of numbers"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, given, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table(csv(tmp_path), split=1, **given)


def test_standardised_online(tmp_path: Path) -> None:
    x, _ = everything(table(csv(tmp_path), split=[["c", "a", "b"]]))
    data = X[:, [2, 0, 1]]
    for t in range(4):
        so_far = data[: t + 1]
        std = so_far.std(axis=0)
        expected = np.where(std > 0, (data[t] - so_far.mean(axis=0)) / np.where(std > 0, std, 1), 0)
        np.testing.assert_allclose(x[t], expected, atol=1e-9)


def test_standardised_by_constants(tmp_path: Path) -> None:
    x, _ = everything(table(csv(tmp_path), split=2, standardise={"mean": [1, 2, 3], "std": [1, 2, 4]}))
    np.testing.assert_array_equal(x, (X - [1, 2, 3]) / [1, 2, 4])


def written(cell: str, row: int = 3, column: int = 1) -> str:
    lines = [line.split(",") for line in text().splitlines()]
    lines[row][column] = cell
    return "\n".join(map(",".join, lines)) + "\n"


STANDS_IN = "with missing = 'mean', 'zero' or a number something stands in for it"
WORDS = "has the column changed its type.*"
CELLS = [
    ("", 1, f"column 'b': the cell is empty; {STANDS_IN}"),
    ("  ", 1, f"column 'b': the cell is empty; {STANDS_IN}"),
    ("x1", 1, f"column 'b': 'x1' is not a number: {WORDS}"),
    ("NA", 1, f"column 'b': 'NA' is one of missing_values; {STANDS_IN}"),
    ("1_000", 1, f"column 'b': '1_000' is not a number: {WORDS}"),
    ("nan", 1, f"column 'b': nan is one of missing_values; {STANDS_IN}"),
    ("-inf", 2, "column 'c': -inf is not a finite number"),
    ("1e999", 2, "column 'c': 1e999 is not a finite number"),
    ("", 3, "column 'label': the cell is empty"),
    ("?", 3, r"column 'label': the label is missing \('\?' is one of missing_values\)"),
    ("two", 3, "column 'label': 'two' is not a number: name labels that are texts, such as .*"),
    ("1.5", 3, "column 'label': 1.5 is no whole number from 0 on: name such labels, .*"),
    ("3", 3, r"column 'label': 3 is no label from 0 to 2: is the number of classes right\?"),
    ("-1", 3, "column 'label': -1 is no whole number from 0 on: name such labels, .*"),
    ("1,1", 0, "row 3 has 5 cells, expected 4"),
]


@pytest.mark.parametrize(("cell", "column", "message"), CELLS)
@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("pad", [0, 90_000])
def test_a_bad_row_is_named_after_the_rows_before_it(
    tmp_path: Path, cell: str, column: int, message: str, gz: str, pad: int
) -> None:
    lines = written(cell, column=column).splitlines(keepends=True)
    path = csv(tmp_path, lines[0] + "0,0,0,0\n" * pad + "".join(lines[1:]), f"t.csv{gz}")
    stream = table(path, split=1, classes=3, standardise=None)
    seen = []
    with pytest.raises(DataError) as error:  # noqa: PT012
        for block in stream.blocks():
            seen += block.x.tolist()
    row = f"row {pad + 3}"
    assert error.match(f"^{path}: ({row}, )?{message.replace('row 3', row)}$")
    assert row in str(error.value)
    assert seen == [[0, 0, 0]] * pad + X[:2].tolist()


def test_the_first_of_several_bad_rows_is_named(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n1,2,0\n1,2\nx,2,0\n1,2,3,4\n")
    with pytest.raises(DataError, match="row 2 has 2 cells, expected 3"):
        everything(table(path, split=1, classes=2))
    path = csv(tmp_path, "a,b,y\n1,2,0\nx,2,0\n1,2\n")
    with pytest.raises(DataError, match="row 2, column 'a': 'x'"):
        everything(table(path, split=1, classes=2))


@pytest.mark.parametrize(("cell", "message"), [("1.5", "1.5 is no whole"), ("-1", "-1 is no whole"), ("x", "'x'")])
def test_a_bad_label_is_found_when_classes_are_counted(tmp_path: Path, cell: str, message: str) -> None:
    with pytest.raises(DataError, match=f"t.csv: row 3, column 'label': .*{message}"):
        table(csv(tmp_path, written(cell, column=3)), split=1)
    lines = written(cell, column=3).splitlines(keepends=True)
    with pytest.raises(DataError, match=f"t.csv: row 90003, column 'label': .*{message}"):
        table(csv(tmp_path, lines[0] + "0,0,0,0\n" * 90_000 + "".join(lines[1:])), split=1)


def test_classes_are_counted(tmp_path: Path) -> None:
    stream = table(csv(tmp_path), split=1)
    assert stream.classes == 3
    assert stream.describe()["rows"] == 4
    assert table(csv(tmp_path, "a,y\n1,0\n2,0\n"), split=1).classes == 2
    assert table(csv(tmp_path), split=1, classes=7).classes == 7


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.csv: no such file"):
        table(tmp_path / "gone.csv", split=1)
    with pytest.raises(DataError, match="is not a file"):
        table(tmp_path, split=1)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "empty.parquet").touch()
    for name in ("empty.csv", "empty.parquet"):
        with pytest.raises(DataError, match=f"{name}: the file is empty"):
            table(tmp_path / name, split=1)
    with pytest.raises(DataError, match=r"t.csv.gz: the file is empty"):
        table(csv(tmp_path, b"\n", "t.csv.gz"), split=1)
    with pytest.raises(DataError, match="one column only"):
        table(csv(tmp_path, "y\n1\n"), split=1)


@pytest.mark.parametrize("classes", [None, 2])
def test_no_rows(tmp_path: Path, classes) -> None:
    paths = [csv(tmp_path, "a,y\n"), parquet(tmp_path, {"a": pa.array([], pa.float64()), "y": pa.array([], pa.int8())})]
    for path in paths:
        with pytest.raises(DataError, match=f"{path.name}: the file has no rows"):
            list(table(path, split=1, classes=classes).blocks())


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-4], lambda raw: b"x" + raw])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_broken_gzip_file(tmp_path: Path, damage, kind: str) -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=(20_000, 3)), rng.integers(0, 3, 20_000)]).tolist()
    name = f"t.{kind}.gz"
    path = csv(tmp_path, text(rows), name) if kind == "csv" else parquet(tmp_path, columns(rows), name)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path}: (cannot be read|broken or truncated gzip)"):
        everything(table(path, split=1, classes=3))


def test_not_a_parquet_file(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.parquet.gz"):
        path = csv(tmp_path, name=name)
        with pytest.raises(DataError, match=f"{path}: cannot be read .*Parquet"):
            table(path, split=1)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, None, 3.0, 4.0], "row 2, column 'a': the value is missing"),
        ([1.0, 2.0, float("nan"), 4.0], "row 3, column 'a': the value is missing"),
        (["1", "2", "3", "x"], "row 4, column 'a': 'x' is not a number"),
        ([[1], [2], [3], [4]], r"row 1, column 'a': \[1\] is not a number"),
    ],
)
def test_bad_cells_in_parquet(tmp_path: Path, column, message: str) -> None:
    path = parquet(tmp_path, {"a": column, "y": [0, 1, 0, 1]})
    with pytest.raises(DataError, match=f"{path}: {message}"):
        everything(table(path, split=1))


def test_parquet_types(tmp_path: Path) -> None:
    data = {"i": [1, 2], "f": pa.array([0.5, 1], pa.float32()), "b": [True, False], "s": ["1.5", "2"], "y": [0, 1]}
    x, _ = everything(table(parquet(tmp_path, data), split=1, standardise=None))
    np.testing.assert_array_equal(x, [[1, 0.5, 1, 1.5], [2, 1, 0, 2]])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 400), st.integers(60, 5000), st.sampled_from([0, 5, 50, 1000]), st.integers(0, 2))
def test_the_size_of_the_pieces_does_not_matter(tmp_path_factory, n: int, size: int, buffer: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.normal(size=(n, 3)).round(6), rng.integers(0, 3, n)]).tolist()
    files = [csv(folder, text(rows)), parquet(folder, columns(rows))]
    given = {"split": 2, "classes": 3, "shuffle_buffer": buffer, "seed": seed}
    expected = everything(table(files[0], **given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", size)
        patch.setattr(parquet_reader, "ROWS", size // 50)
        for file in files:
            found = everything(table(file, **given))
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])
    assert len(expected[1]) == n


def test_shuffled(tmp_path: Path) -> None:
    rows = [[i, 0, 0, int(i >= 500)] for i in range(1000)]
    path = csv(tmp_path, text(rows))
    x, y = everything(table(path, split=1, standardise=None, shuffle_buffer=1000, seed=1))
    assert sorted(x[:, 0]) == list(range(1000))
    assert (y == (x[:, 0] >= 500)).all()
    assert 200 < y[:500].sum() < 300
    again, _ = everything(table(path, split=1, standardise=None, shuffle_buffer=1000, seed=1))
    np.testing.assert_array_equal(x, again)
    other, _ = everything(table(path, split=1, standardise=None, shuffle_buffer=1000, seed=2))
    assert (x != other).any()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    line = ",".join(["0.123456789"] * 18) + ",1\n"
    path = csv(tmp_path, "0" + ",0" * 18 + "\n" + line * 150_000)
    assert path.stat().st_size > 30e6
    before = pa.total_allocated_bytes()
    held = []
    stream = table(path, split=2, classes=2)
    for _ in stream.blocks():
        held.append(pa.total_allocated_bytes() - before)
    # Arrow reads up to 32 pieces of a quarter of a megabyte ahead.
    assert max(held) < 12e6
    assert max(held[len(held) // 2 :]) <= max(held[: len(held) // 2])
    assert stream.describe()["rows"] == 150_001


def test_describe(tmp_path: Path) -> None:
    path = csv(tmp_path)
    stream = table(path, split=[2, 1], classes=3, shuffle_buffer=5, seed=9)
    said = stream.describe()
    assert json.loads(json.dumps(said)) == said
    assert said == {
        "name": "table",
        "file": "t.csv",
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows": None,
        "label": "label",
        "split": [["a", "b"], ["c"]],
        "classes": 3,
        "standardise": "online",
        "shuffle_buffer": 5,
        "seed": 9,
    }
    everything(stream)
    assert stream.describe()["rows"] == 4
    by = table(path, split=1, standardise={"mean": [0, 0, 0], "std": [1, 1, 1]}).describe()
    assert by["standardise"] == {"mean": [0, 0, 0], "std": [1, 1, 1]}


def test_a_stream_goes_to_another_process(tmp_path: Path) -> None:
    for path in (csv(tmp_path), parquet(tmp_path, columns(), "t.parquet.gz")):
        stream = table(path, split=2)
        np.testing.assert_array_equal(everything(pickle.loads(pickle.dumps(stream)))[0], everything(stream)[0])


def test_real_tables(real) -> None:
    path = real("room_occupancy_estimation/Occupancy_Estimation.csv.gz")
    rooms = table(path, split={"S6": ["S6_PIR"], "S7": ["S7_PIR"]})
    x, _ = everything(rooms)
    assert x.shape == (10_129, 2)
    assert (rooms.classes, rooms.widths) == (4, (1, 1))
    with pytest.raises(DataError, match="row 95, column 'S1_Temp': the cell is empty"):
        everything(table(path, split=[["S1_Temp"]]))
    cards = table(real("credit_default/UCI_Credit_Card.csv.gz"), split=[12, 12])
    assert everything(cards)[0].shape == (30_000, 24)
    drifting = Drift(cards, every=50, seed=0)
    assert np.bincount(next(drifting.blocks()).y).min() > 100
