"""The best fixed model in hindsight, for the linear model: multinomial logistic regression, solved to convergence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE = 50_000
"""Samples are widened to float64 so many at a time."""


class Best(NamedTuple):
    """The minimiser of ``Σ_t f^t(w)``."""

    loss: float
    """``Σ_t f^t(w*)``."""
    weights: NDArray[np.float64]
    """(d + 1, classes); the last row is the bias, the server's ``w_0``."""
    slope: float
    """The norm of the mean gradient at the end, in features of unit variance."""


def best_fixed_model(x: NDArray[np.float32], y: NDArray[np.int32], classes: int) -> Best:
    """Minimise the total cross-entropy over all linear models with SciPy's L-BFGS-B, in float64.

    Args:
        x: (n, d), the clients' features side by side.
        y: (n,)

    >>> x = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32)
    >>> best = best_fixed_model(x, np.array([0, 0, 1, 0], np.int32), 2)
    >>> round(best.loss, 4)    # 2 ln 2 of the even pair, and the other two told apart as far as one likes
    1.3863
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    # In features of unit variance that do not correlate, the minimiser takes a hundredth of the steps.
    mean, spread = _whitening(x)
    white = ((x - mean.astype(x.dtype)) @ spread.astype(x.dtype)).astype(x.dtype)
    shape = (white.shape[1] + 1, classes)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        loss, gradient = _loss_and_gradient(flat.reshape(shape), white, y)
        return loss / len(y), gradient.ravel() / len(y)

    # On more threads the many small products wait for one another, the longer the busier the machine is.
    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-7, "maxcor": 30}
    with threadpool_limits(1):
        found = minimize(objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options)
    inner = found.x.reshape(shape)
    weights = np.vstack([spread @ inner[:-1], inner[-1:] - mean @ spread @ inner[:-1]])
    return Best(float(found.fun) * len(y), weights, float(np.linalg.norm(found.jac)))


def _whitening(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean ``μ`` (d,) and the matrix ``A`` (d, r) that make ``(x − μ) A`` uncorrelated and of unit
    variance.
    """
    count = len(x)
    mean = np.add.reduce([x[i : i + PIECE].sum(axis=0, dtype=np.float64) for i in range(0, count, PIECE)]) / count
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for begin in range(0, count, PIECE):
        centred = x[begin : begin + PIECE] - mean
        covariance += centred.T @ centred / count
    sizes, directions = np.linalg.eigh(covariance)
    kept = sizes > 1e-9 * max(sizes.max(), 1e-30)  # a feature that never changes is the bias's
    return mean, directions[:, kept] / np.sqrt(sizes[kept])


def _loss_and_gradient(
    weights: NDArray[np.float64], x: NDArray[np.float32], y: NDArray[np.int32]
) -> tuple[float, NDArray[np.float64]]:
    loss, gradient = 0.0, np.zeros_like(weights)
    for begin in range(0, len(y), PIECE):
        piece, labels = x[begin : begin + PIECE].astype(np.float64), y[begin : begin + PIECE]
        logits = piece @ weights[:-1] + weights[-1]
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss += float((np.log(total[:, 0]) - logits[rows, labels]).sum())
        delta = odds / total
        delta[rows, labels] -= 1
        gradient[:-1] += piece.T @ delta
        gradient[-1] += delta.sum(axis=0)
    return loss, gradient
