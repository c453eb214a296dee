from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anabranch.streams.standardise import standardise

values = st.floats(-1e3, 1e3).map(lambda v: round(v, 3))
tables = hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=values)


def in_pieces(x, cuts):
    state, out = None, []
    for piece in np.split(x, sorted(cut % (len(x) + 1) for cut in cuts)):
        state, z = standardise(state, piece)
        out.append(z)
    return state, np.concatenate(out)


@given(tables)
def test_every_row_is_standardised_by_the_rows_up_to_it(x) -> None:
    _, z = standardise(None, x)
    for t in range(len(x)):
        so_far = x[: t + 1]
        std = so_far.std(axis=0)
        mean = so_far.mean(axis=0)
        varies = so_far.max(axis=0) > so_far.min(axis=0)
        # Two passes against running sums: the latter's error grows with distance from the first row.
        np.testing.assert_allclose((z[t] * std)[varies], (x[t] - mean)[varies], rtol=1e-6, atol=1e-6)
        assert (z[t][~varies] == 0).all()


@given(tables, st.lists(st.integers(0, 30), max_size=6))
def test_pieces_do_not_matter_to_the_last_bit(x, cuts) -> None:
    state, z = standardise(None, x)
    other_state, other = in_pieces(x, cuts)
    one_state, one = in_pieces(x, range(len(x)))  # a row at a time, as a client of a federation does
    for found in (other, one):
        np.testing.assert_array_equal(found, z)
    for found in (other_state, one_state):
        for a, b in zip(found, state, strict=True):
            np.testing.assert_array_equal(a, b)


@given(tables, st.integers(0, 29))
def test_nothing_looks_ahead(x, t) -> None:
    _, z = standardise(None, x)
    changed = x.copy()
    changed[t + 1 :] += 7
    np.testing.assert_array_equal(standardise(None, changed)[1][: t + 1], z[: t + 1])


def test_a_mean_far_from_zero_keeps_its_digits() -> None:
    x = 1e9 + np.random.default_rng(0).normal(size=(1000, 1))
    _, z = standardise(None, x)
    np.testing.assert_allclose(z[-1], (x[-1] - x.mean()) / x.std(), rtol=1e-6)


def test_a_constant_feature_is_zero_until_it_changes() -> None:
    _, z = standardise(None, np.array([[0.1], [0.1], [0.1], [0.2]]))
    np.testing.assert_allclose(z.ravel(), [0, 0, 0, np.sqrt(3)])


def test_no_rows() -> None:
    state, z = standardise(None, np.empty((0, 2)))
    assert state is None
    assert z.shape == (0, 2)
