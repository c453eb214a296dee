"""Features follow the declared rules, and nothing that is wrong becomes a feature."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.sources.features import Column, Features, schema_digest
from anabranch.streams.standardise import standardise


def played(features: Features, *rows: dict[str, Any]) -> list[list[float]]:
    state, out = features.begin(), []
    for row in rows:
        state, x = features(state, row)
        assert x.dtype == np.float32
        assert x.shape == (features.width,)
        out.append(x.tolist())
    return out


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=30))
def test_standardised_as_a_stream_is_to_the_bit(rows: list[list[float]]) -> None:
    _, expected = standardise(None, np.array(rows))
    features = Features([Column(name, standardise=True) for name in "abc"])
    found = played(features, *(dict(zip("abc", row, strict=True)) for row in rows))
    np.testing.assert_array_equal(np.array(found, np.float32), expected.astype(np.float32))


def test_plain_columns_are_taken_in_order_and_scaled_by_constants() -> None:
    features = Features(["a", "b"], [1.0, 0.0], [2.0, 4.0])
    assert played(features, {"b": "8", "a": 5, "c": "ignored"}) == [[2.0, 2.0]]
    assert features.schema == schema_digest(["a", "b"], [1.0, 0.0], [2.0, 4.0])


@pytest.mark.parametrize(("missing", "expected"), [("zero", 0.0), ("mean", 3.0), (7, 7.0), (-1.5, -1.5)])
@pytest.mark.parametrize("value", [None, "", "  ", float("nan"), np.float32("nan"), Decimal("NaN"), "nan", pandas.NA])
def test_something_stands_in_for_a_missing_number(missing: Any, expected: float, value: Any) -> None:
    features = Features([Column("a", missing=missing)])
    assert played(features, {"a": 2}, {"a": 4}, {"a": value}, {"a": value}, {"a": 1})[2:] == [
        [expected], [expected], [1.0],
    ]  # fmt: skip


def test_the_mean_before_the_first_value_is_zero_and_imputed_values_do_not_count() -> None:
    features = Features([Column("a", missing="mean", standardise=True)])
    rows = played(features, {"a": None}, {"a": 10}, {"a": None}, {"a": 20})
    assert rows == [[0.0], [0.0], [0.0], [1.0]]


def test_a_category_has_a_feature_a_value_and_one_for_all_others() -> None:
    features = Features([Column("s", "category", values=("1", "b"))])
    rows = played(features, *({"s": value} for value in (1, "1", 1.0, Decimal("1.00"), " b ", "c", None, "")))
    assert rows == [[1, 0, 0]] * 4 + [[0, 1, 0]] + [[0, 0, 1]] * 3
    assert features.names == ("s=1", "s=b", "s=?")
    strict = Features([Column("s", "category", missing="refuse", values=("b",))])
    assert played(strict, {"s": "other"}) == [[0, 1]]
    with pytest.raises(DataError, match=r"column 's': the value is missing; with missing = 'unknown'"):
        strict(strict.begin(), {"s": None})


def test_a_flag_is_0_or_1() -> None:
    features = Features([Column("f", "flag", missing="mean")])
    values = (True, False, "yes", "No", 1, 0.0, "TRUE", np.bool_(True))
    assert played(features, *({"f": value} for value in values)) == [[1], [0], [1], [0], [1], [0], [1], [1]]
    with pytest.raises(DataError, match="column 'f': a text is neither true nor false"):
        features(features.begin(), {"f": "maybe"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("abc", "a text is not a number: has the column changed its type"),
        ("1_000", "a text is not a number"),
        (b"1", "is not a number"),
        ([1], "a value of type list is not a number"),
        (float("inf"), "is not a finite number"),
        ("-inf", "a text is not a finite number"),
        (1e39, "larger than float32 holds"),
        (10**400, "is not a number"),
        (None, "the value is missing; with missing = 'mean', 'zero' or a number"),
        (dt.datetime(2026, 1, 1), "is a time, which a model cannot take"),
        (dt.date(2026, 1, 1), "is a time"),
        (np.datetime64("2026-01-01"), "is a time"),
    ],
)
def test_what_is_no_number_is_refused_with_its_column(value: Any, said: str) -> None:
    features = Features(["amount"])
    state = features.begin()
    with pytest.raises(DataError, match=f"column 'amount': .*{said}"):
        features(state, {"amount": value})
    assert not state.any()


def test_a_number_too_large_to_standardise_changes_nothing() -> None:
    features = Features([Column("a", standardise=True)])
    state, _ = features(features.begin(), {"a": 1.0})
    before = state.copy()
    with pytest.raises(DataError, match="too large to standardise"):
        features(state, {"a": 1e200})
    np.testing.assert_array_equal(state, before)
    _, x = features(state, {"a": 3.0})
    assert x.tolist() == [1.0]


def test_a_column_that_vanished_is_named() -> None:
    with pytest.raises(DataError, match=r"no column 'amount': it has vanished or been renamed. Did you mean 'amont'"):
        Features(["amount"])(np.zeros((4, 1)), {"amont": 1})


def test_the_state_can_be_kept_as_bytes() -> None:
    features = Features([Column("a", missing="mean"), Column("b", standardise=True)])
    state, _ = features(features.begin(), {"a": 1, "b": 2})
    again = np.frombuffer(state.tobytes()).reshape(state.shape)
    one, two = (features(each, {"a": None, "b": 5}) for each in (state, again))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


def test_the_digest_tells_rules_apart_and_no_values() -> None:
    different = [
        Features(["a", "b"]),
        Features(["b", "a"]),
        Features([Column("a", standardise=True), "b"]),
        Features([Column("a", missing="mean"), "b"]),
        Features([Column("a", missing=0), "b"]),
        Features([Column("a", "flag"), "b"]),
        Features([Column("a", "category", values=("x",)), "b"]),
        Features([Column("a", "category", values=("x", "y")), "b"]),
    ]
    assert len({each.schema for each in different}) == len(different)
    assert Features([Column("a", missing=1)]).schema == Features([Column("a", missing=1.0)]).schema


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": ""}, "empty name"),
        ({"name": "a", "kind": "date"}, "kind is 'date'"),
        ({"name": "a", "missing": "median"}, "missing is 'median', but it must be refuse, zero, mean or a number"),
        ({"name": "a", "missing": math.inf}, "float32 does not hold"),
        ({"name": "a", "missing": True}, "missing is True"),
        ({"name": "a", "kind": "flag", "standardise": True}, "leave standardise out"),
        ({"name": "a", "kind": "category"}, "needs its values"),
        ({"name": "a", "kind": "category", "values": ("x", "x")}, "a value twice"),
        ({"name": "a", "kind": "category", "values": ("x",), "missing": "mean"}, "must be refuse, unknown"),
        ({"name": "a", "kind": "category", "values": ("x",), "missing": 1}, "must be refuse, unknown"),
        ({"name": "a", "values": ("x",)}, "kind must be category"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Column(**settings)


def test_columns_and_scales_are_checked() -> None:
    for arguments, said in [
        (([],), "columns is empty"),
        ((["a", "a"],), "names 'a' twice"),
        ((["a"], [1.0]), "belong together"),
        ((["a"], [1.0, 2.0], [1.0, 2.0]), "mean has 2 numbers for 1 column$"),
        (([Column("a", standardise=True)], [1.0], [1.0]), "without rules"),
    ]:
        with pytest.raises(ConfigError, match=said):
            Features(*arguments)
