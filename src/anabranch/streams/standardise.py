"""Online standardisation: by the mean and variance of the rows so far, so that nothing looks ahead."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Moments(NamedTuple):
    """What is remembered of the rows so far; ``d`` features."""

    rows: int
    """How many rows."""
    shift: NDArray[np.float64]
    """(d,): the first row. Sums of differences from it keep their digits where a mean is far from 0."""
    total: NDArray[np.float64]
    """(d,): sum of ``x − shift``."""
    squares: NDArray[np.float64]
    """(d,): sum of ``(x − shift)²``."""


def standardise(moments: Moments | None, x: NDArray[np.floating]) -> tuple[Moments | None, NDArray[np.float64]]:
    """Standardise rows ``x (n, d)`` by the rows up to and including each one; state in, state out.

    Row ``t`` becomes ``(x_t − μ_t) / σ_t``, where ``μ_t`` and ``σ_t²`` are the mean and the variance (divided by
    ``t``, not ``t − 1``) of rows ``1..t``. A feature that was constant so far gives 0. ``moments`` is None before the
    first row.

    The sums run row by row in float64, so cutting the rows into other pieces, or giving them one at a time as a client
    of a federation does, returns the same bits.

    >>> state, z = standardise(None, np.array([[1.0], [3.0]]))
    >>> z
    array([[0.],
           [1.]])
    >>> state, z = standardise(state, np.array([[2.0]]))
    >>> z
    array([[0.]])
    """
    rows: NDArray[np.float64] = np.asarray(x, dtype=np.float64)
    n, d = rows.shape
    if n == 0:
        return moments, rows
    if moments is None:
        moments = Moments(0, rows[0].copy(), np.zeros(d), np.zeros(d))
    away = rows - moments.shift
    # cumsum adds row by row (unlike sum, which adds in pairs), beginning here with the sums so far.
    total = np.cumsum(np.concatenate([moments.total[None], away]), axis=0)[1:]
    squares = np.cumsum(np.concatenate([moments.squares[None], np.square(away)]), axis=0)[1:]
    count = np.arange(moments.rows + 1, moments.rows + n + 1, dtype=np.float64)[:, None]
    mean = total / count
    variance = np.maximum(squares / count - np.square(mean), 0.0)
    away -= mean
    z = np.divide(away, np.sqrt(variance), out=np.zeros_like(away), where=variance > 0)
    return Moments(moments.rows + n, moments.shift, total[-1].copy(), squares[-1].copy()), z
