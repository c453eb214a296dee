"""What stands in for a client that does not answer."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError
from anabranch.protocol.server.missing import HOW, History, Last, Mean, Skip, Wait, Zero, policy

POLICIES = (Wait(), Zero(), Mean(), Skip(), Last(0), Last(20))


@pytest.mark.parametrize("each", POLICIES, ids=str)
def test_a_policy_is_read_from_its_name(each):
    assert policy(str(each)) == each
    assert policy(f"  {each} ") == each


@pytest.mark.parametrize("text", ["", "waits", "last", "last -1", "last x", "last 1 2", "last ٣", "zero 1", "mean 0.5"])
def test_another_name_is_refused(text):
    with pytest.raises(ConfigError, match="it is wait, last N, zero, mean or skip"):
        policy(text)


def history(*sent: tuple[int, list[float]], dtype=np.float32) -> History:
    made = History(2, np.dtype(dtype))
    for t, values in sent:
        made.push(t, np.array(values, dtype))
    return made


def stands(made: History, each, t: int) -> tuple[str, list[float] | None]:
    stand = made.stand(each, t)
    assert stand is not None
    return HOW[stand.how], None if stand.values is None else stand.values.tolist()


def test_what_stands_in_for_an_embedding():
    made = history((0, [1, 2]), (3, [3, 6]))
    assert made.stand(Wait(), 4) is None
    assert stands(made, Zero(), 4) == ("zero", [0, 0])
    assert stands(made, Mean(), 4) == ("mean", [2, 4])
    assert stands(made, Skip(), 4) == ("skip", None)
    assert stands(made, Last(1), 4) == ("last", [3, 6])
    assert stands(made, Last(2), 5) == ("last", [3, 6])
    assert stands(made, Last(1), 5) == ("zero", [0, 0]), "too old"
    assert stands(made, Last(0), 4) == ("zero", [0, 0])


@pytest.mark.parametrize("each", [Mean(), Last(5), Zero()], ids=str)
def test_zeros_stand_in_before_the_first_embedding(each):
    assert stands(history(), each, 0) == ("zero", [0, 0])
    assert stands(history(), each, 3) == ("zero", [0, 0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("each", [Mean(), Last(100), Zero()], ids=str)
def test_what_stands_in_is_of_the_dtype_of_the_wire(dtype, each):
    stand = history((0, [0.5, 2]), (1, [1.5, 2]), dtype=dtype).stand(each, 2)
    assert stand is not None
    assert stand.values is not None
    assert stand.values.dtype == np.dtype(dtype)
    assert stand.values.shape == (2,)


@given(st.lists(st.floats(-1000, 1000, width=16), min_size=1, max_size=50))
def test_the_mean_of_short_numbers_does_not_drift(values):
    """It is added up in float64, so that thousands of float16 embeddings do not swallow one another."""
    made = history(*[(t, [each, -each]) for t, each in enumerate(values)], dtype=np.float16)
    stand = made.stand(Mean(), len(values))
    assert stand is not None
    expected = np.array([np.mean(values), -np.mean(values)]).astype(np.float16)
    np.testing.assert_allclose(stand.values, expected, rtol=1e-3, atol=1e-3)
