from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.streams.shuffle import shuffled


def order(n: int, cuts, size: int, seed: int) -> list[int]:
    pieces = np.split(np.arange(n), sorted(cut % (n + 1) for cut in cuts))
    return [int(row) for piece in shuffled(pieces, size, seed) for row in piece]


def one_by_one(n: int, size: int, seed: int) -> list[int]:
    """The docstring, a row at a time."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    buffer, out = list(range(min(size, n))), []
    for row in range(size, n):
        place = int(rng.random() * size)
        out.append(buffer[place])
        buffer[place] = row
    return out + [buffer[i] for i in rng.permutation(len(buffer))]


@given(st.integers(1, 60), st.lists(st.integers(0, 60), max_size=5), st.integers(2, 70), st.integers(0, 3))
def test_one_by_one_whatever_the_pieces(n: int, cuts, size: int, seed: int) -> None:
    found = order(n, cuts, size, seed)
    assert found == one_by_one(n, size, seed)
    assert sorted(found) == list(range(n))
    assert all(row - place < size for place, row in enumerate(found))  # none comes more than size rows early


def test_zero_and_one_keep_the_order() -> None:
    assert order(10, [4], 0, 0) == order(10, [4], 1, 0) == list(range(10))


def test_a_sorted_column_gets_mixed() -> None:
    found = np.array(order(2000, [], 2000, 0))
    assert abs((found[:1000] < 1000).mean() - 0.5) < 0.05


def test_no_pieces() -> None:
    assert list(shuffled([], 5, 0)) == []
