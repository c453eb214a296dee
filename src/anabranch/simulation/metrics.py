"""How well a run went: prequential error, each prediction made before the update of its round."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

RUN_TIME_WINDOW = 20_000
"""The run-time error rate is the mean of so many last rounds (the paper's Section 5.1)."""

MOST_POINTS = 100_000
"""Where a curve gets so many points, every second one goes, and they lie twice as far apart from then on."""


Point = TypeVar("Point")


class Curve(NamedTuple):
    """The error as the run went on; row ``i`` is what was known after ``rounds[i]`` rounds."""

    rounds: NDArray[np.int64]
    """(k,)"""
    run_time_error: NDArray[np.float64]
    """(k,): mean 0/1 error of the last 20,000 rounds, or of all where there are fewer."""
    accumulated_error: NDArray[np.float64]
    """(k,): mean 0/1 error of all rounds so far."""


def thinned(points: list[Point], apart: int) -> tuple[list[Point], int]:
    """Return the points that stay of those that lie so many rounds apart, and how far these lie apart; see
    `MOST_POINTS`.
    """
    return (points[1::2], 2 * apart) if len(points) == MOST_POINTS else (points, apart)


class Prequential:
    """Takes the 0/1 errors in order and keeps the rates; its memory does not grow with the rounds.

    Args:
        report_every: a point of the curve after every so many rounds, and one at the end; see `MOST_POINTS`.

    >>> errors = Prequential(report_every=2)
    >>> errors.push(np.array([1, 0, 0, 0, 1]))
    >>> errors.curve().rounds, errors.curve().run_time_error
    (array([2, 4, 5]), array([0.5 , 0.25, 0.4 ]))
    """

    def __init__(self, report_every: int) -> None:
        self.report_every = report_every
        self.rounds = 0
        self.errors = 0
        self._recent = np.zeros(0, np.uint8)
        self._points: list[tuple[int, float, float]] = []
        self._apart = report_every

    def push(self, errors: NDArray[Any]) -> None:
        """The 0/1 errors (n,) of the next rounds."""
        seen = np.concatenate([self._recent, errors.astype(np.uint8)])
        sums = np.concatenate([[0], np.cumsum(seen, dtype=np.int64)])
        before = self.rounds - len(self._recent)  # the round at which `seen` starts
        t = self.rounds
        while (t := (t // self._apart + 1) * self._apart) <= self.rounds + len(errors):
            end = t - before
            start = max(0, end - RUN_TIME_WINDOW)
            total = self.errors + sums[end] - sums[len(self._recent)]
            self._points.append((t, (sums[end] - sums[start]) / (end - start), total / t))
            self._points, self._apart = thinned(self._points, self._apart)
        self.rounds += len(errors)
        self.errors += int(errors.sum())
        self._recent = seen[-RUN_TIME_WINDOW:]

    @property
    def run_time_error(self) -> float:
        """Mean error of the last 20,000 rounds; NaN before the first."""
        return float(self._recent.mean()) if self.rounds else float("nan")

    @property
    def accumulated_error(self) -> float:
        """Mean error of all rounds; NaN before the first."""
        return self.errors / self.rounds if self.rounds else float("nan")

    def curve(self) -> Curve:
        """Return the points so far, the present one included."""
        points = list(self._points)
        if self.rounds and (not points or points[-1][0] != self.rounds):
            points.append((self.rounds, self.run_time_error, self.accumulated_error))
        rounds, run_time, accumulated = zip(*points, strict=True) if points else ((), (), ())
        return Curve(np.array(rounds, np.int64), np.array(run_time, float), np.array(accumulated, float))

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values to go on from."""
        points = np.array(self._points, np.float64).reshape(-1, 3)
        values = {"rounds": self.rounds, "errors": self.errors, "apart": self._apart}
        return {"recent": self._recent, "points": points}, values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._recent = arrays["recent"].copy()
        self._points = [(int(t), run_time, accumulated) for t, run_time, accumulated in arrays["points"].tolist()]
        self.rounds, self.errors, self._apart = values["rounds"], values["errors"], values["apart"]
