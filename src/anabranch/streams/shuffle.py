"""A shuffle that holds a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shuffled(pieces: Iterable[NDArray[Any]], size: int, seed: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of ``pieces`` in a random order, holding ``size`` rows at a time.

    The first ``size`` rows fill a buffer. Each further row takes the place of a random one, which goes out. At the end
    the buffer goes out in random order. A row therefore comes at most ``size`` rows early, and as late as it may; with
    ``size`` at least the number of rows every order is equally likely. The order depends on ``seed`` and ``size``
    alone, not on how the rows are cut into pieces. ``size`` 0 or 1 leaves the order as it is.

    >>> pieces = [np.arange(4), np.arange(4, 6)]
    >>> [int(row) for piece in shuffled(pieces, size=3, seed=0) for row in piece]
    [1, 0, 4, 2, 5, 3]
    """
    if size <= 1:
        yield from pieces
        return
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    buffer: NDArray[Any] | None = None
    filled = 0
    for piece in pieces:
        if buffer is None:
            buffer = np.empty((size, *piece.shape[1:]), piece.dtype)
        new = min(size - filled, len(piece))
        buffer[filled : filled + new] = piece[:new]
        filled += new
        rows = piece[new:]
        if len(rows):
            yield _exchange(buffer, rows, (rng.random(len(rows)) * size).astype(np.intp))
    if buffer is not None:
        yield buffer[:filled][rng.permutation(filled)]


def _exchange(buffer: NDArray[Any], rows: NDArray[Any], places: NDArray[np.intp]) -> NDArray[Any]:
    """Put each of ``rows`` at its place in ``buffer``, one after the other, and return what was there."""
    out = buffer[places]
    # Where two rows go to the same place, the later one meets the earlier one there.
    order = np.argsort(places, kind="stable")
    again = places[order[1:]] == places[order[:-1]]
    out[order[1:][again]] = rows[order[:-1][again]]
    buffer[places] = rows
    return out
