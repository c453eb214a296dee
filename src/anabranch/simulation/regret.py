"""What the regret of a run comes to: loss, gradients and steps, measured while it goes on.

The paper's dynamic local regret is ``DLR_l(T) = Σ_t ‖∇S_{t,l,α}(w^t)‖²``, over the gradients of all parties in all
rounds. A client that is passive steps along none of its own, so what is applied differs from that; both are measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party import Measures
from anabranch.simulation.metrics import thinned


class Regret(NamedTuple):
    """A run's regret; row ``i`` of an array is the sum over the first ``rounds[i]`` rounds."""

    rounds: NDArray[np.int64]
    """(k,): the points of the run's curve."""
    loss: NDArray[np.float64]
    """(k,): ``Σ f^t(w^t)``, each before the update of its round."""
    ideal: NDArray[np.float64]
    """(k,): ``Σ ‖∇S_{t,l,α}(w^t)‖²``, the dynamic local regret: the window of all parties' gradients in all rounds,
    those of passive clients among them. Under OGD the gradient of the round, under SLR the mean gradient of the last
    ``l`` samples at today's parameters."""
    applied: NDArray[np.float64]
    """(k,): ``Σ`` of the squared norm of what was applied: the server's smoothed gradient, and those of the activated
    clients, in whose windows a passive round is 0. It is taken before the learning rate, and before an Optax
    transformation where there is one."""
    largest_gradient: float
    """``max_t ‖∇f^t(w^t)‖``, over all parties; NaN where there was no round."""
    mean_squared_gradient: float
    """The mean of ``‖∇f^t(w^t)‖²`` over the rounds; NaN where there was none."""
    largest_loss: float
    """``max_t f^t(w^t)``; NaN where there was no round."""


class RegretTally:
    """Takes what is measured in order and adds it up in float64; its memory does not grow with the rounds.

    Args:
        report_every: a point after every so many rounds, and one at the end; see
            `anabranch.simulation.metrics.MOST_POINTS`.

    >>> tally = RegretTally(report_every=2)
    >>> f, g, s, a = np.array([[2.0, 1.0, 0.0], [9.0, 4.0, 1.0], [9.0, 4.0, 1.0], [4.0, 4.0, 0.0]])
    >>> tally.push(Measures(loss=f, gradient=g, ideal=s, applied=a))
    >>> regret = tally.regret()
    >>> regret.rounds, regret.loss, regret.applied, regret.largest_gradient
    (array([2, 3]), array([3., 3.]), array([8., 8.]), 3.0)
    """

    def __init__(self, report_every: int) -> None:
        self._apart = report_every
        self._rounds = 0
        self._sums = np.zeros(len(Measures._fields))
        self._largest = np.full(len(Measures._fields), np.nan)
        self._points: list[tuple[int, NDArray[np.float64]]] = []

    def push(self, measures: Measures) -> None:
        """What was measured in the next rounds, (n,) each."""
        rows = np.stack(measures, axis=1).astype(np.float64)
        # One after another from the sum so far, so that the chunks change no bit.
        sums = np.cumsum(np.concatenate([self._sums[None], rows]), axis=0)
        t = self._rounds
        while (t := (t // self._apart + 1) * self._apart) <= self._rounds + len(rows):
            self._points.append((t, sums[t - self._rounds].copy()))  # a view would keep all sums of the chunk
            self._points, self._apart = thinned(self._points, self._apart)
        self._rounds += len(rows)
        self._sums = sums[-1]
        self._largest = np.fmax.reduce(np.vstack([self._largest, rows]))

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values to go on from."""
        rounds = np.array([t for t, _ in self._points], np.int64)
        points = np.array([sums for _, sums in self._points]).reshape(len(rounds), len(self._sums))
        arrays = {"sums": self._sums, "largest": self._largest, "point_rounds": rounds, "points": points}
        return arrays, {"rounds": self._rounds, "apart": self._apart}

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._sums, self._largest = arrays["sums"].copy(), arrays["largest"].copy()
        self._points = list(zip(arrays["point_rounds"].tolist(), arrays["points"], strict=True))
        self._rounds, self._apart = values["rounds"], values["apart"]

    def regret(self) -> Regret:
        """Return the sums so far, the present ones included."""
        points = list(self._points)
        if self._rounds and (not points or points[-1][0] != self._rounds):
            points.append((self._rounds, self._sums))
        loss, _, ideal, applied = np.array([sums for _, sums in points]).reshape(-1, len(Measures._fields)).T
        largest_loss, largest_gradient, *_ = self._largest
        _, mean_gradient, *_ = self._sums / (self._rounds or np.nan)
        return Regret(
            rounds=np.array([t for t, _ in points], np.int64),
            loss=loss,
            ideal=ideal,
            applied=applied,
            largest_gradient=float(np.sqrt(largest_gradient)),
            mean_squared_gradient=float(mean_gradient),
            largest_loss=float(largest_loss),
        )
