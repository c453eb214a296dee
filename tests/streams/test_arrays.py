from __future__ import annotations

import json

import numpy as np
import pandas
import pytest

from anabranch.errors import ConfigError, DataError
from anabranch.streams import from_arrays


def test_rows_come_in_order_and_side_by_side() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(3000, d)) for d in (3, 1, 2)]
    y = rng.integers(0, 4, 3000)
    stream = from_arrays(parts, y)
    assert (stream.widths, stream.classes) == ((3, 1, 2), 4)
    for _ in range(2):
        blocks = list(stream.blocks())
        assert len(blocks) > 1
        np.testing.assert_array_equal(np.concatenate([b.x for b in blocks]), np.hstack(parts))
        np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), y)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("float32", "float32"), ("float64", "float64"), ("int8", "float64"), ("bool", "float64"), ("float16", "float64")],
)
def test_dtype(given: str, kept: str) -> None:
    block = next(from_arrays([np.ones((2, 2), given)], [0, 1]).blocks())
    assert block.x.dtype == kept
    assert np.issubdtype(block.y.dtype, np.integer)


def test_lists_and_whole_floats_are_taken() -> None:
    stream = from_arrays([[[1, 2], [3, 4]]], [0.0, 2.0], classes=5)
    assert stream.classes == 5
    assert next(stream.blocks()).y.tolist() == [0, 2]


def test_classes_are_at_least_two() -> None:
    assert from_arrays([np.ones((2, 1))], [0, 0]).classes == 2


X = np.ones((3, 2))
NAN = np.array([[1, 2], [3, np.nan], [5, 6]])


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (X, [0, 1, 0], "a list with one array"),
        ([], [], "features is empty"),
        ([X, X[:2]], [0, 1, 0], "client 2: 2 rows of features but 3 labels"),
        ([X[0]], [0, 1], r"client 1: features have shape \(2,\)"),
        ([X[:, :0]], [0, 1, 0], r"client 1: no features"),
        ([X, NAN], [0, 1, 0], "client 2: nan in row 1, column 1"),
        ([np.where(np.isnan(NAN), -np.inf, NAN)], [0, 1, 0], "client 1: -inf in row 1, column 1"),
        ([np.array([["a"], ["b"]])], [0, 1], "client 1: features of type <U1"),
        ([X * 1j], [0, 1, 0], "client 1: features of type complex128"),
        ([X], [[0, 1, 0]], r"labels have shape \(1, 3\)"),
        ([X], ["a", "b", "c"], "labels of type <U1"),
        ([X], pandas.array([0, None, 1], dtype="Int64"), "label nan in row 1"),
        ([X], [0, 1, None], "label None in row 2 .* is missing"),
        ([X], np.ma.array([0, 1, 1], mask=[0, 0, 1]), "label nan in row 2"),
        ([np.ma.array(X, mask=np.isnan(NAN))], [0, 1, 1], "client 1: nan in row 1, column 1"),
        ([np.where(np.isnan(NAN), pandas.NA, X)], [0, 1, 1], "client 1: <NA> in row 1, column 1"),
        ([X], [0, 1.5, 0], "label 1.5 in row 1"),
        ([X], [0, 1, np.nan], "label nan in row 2"),
        ([X], [0, np.inf, 1], "label inf in row 1"),
        ([X], [0, 1, -1], r"label -1 in row 2 .* not in 0..1"),
        ([X[:0]], [], "no rows"),
    ],
)
def test_what_is_wrong_is_named(features, labels, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(features, labels)


def test_label_outside_the_classes() -> None:
    with pytest.raises(DataError, match=r"label 2 in row 1 .* not in 0..1"):
        from_arrays([X], [0, 2, 1], classes=2)


@pytest.mark.parametrize("classes", [0, -1, 2.0, True, "2"])
def test_classes_out_of_range(classes) -> None:
    with pytest.raises(ConfigError, match="classes is "):
        from_arrays([X], [0, 1, 0], classes=classes)


def test_describe_tells_contents_apart() -> None:
    said = from_arrays([X], [0, 1, 0]).describe()
    assert json.loads(json.dumps(said)) == said
    assert (said["rows"], said["widths"], said["classes"]) == (3, [2], 2)
    others = [
        from_arrays([2 * X], [0, 1, 0]),
        from_arrays([X], [1, 1, 0]),
        from_arrays([X.astype("float32")], [0, 1, 0]),
    ]
    assert len({said["checksum"], *(o.describe()["checksum"] for o in others)}) == 4
