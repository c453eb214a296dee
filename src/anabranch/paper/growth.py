"""How fast a sum grows: the exponent of a power law, fitted, with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Exponent(NamedTuple):
    """Of ``y ≈ c T^exponent``."""

    value: float
    low: float
    """The ends of the 95 % confidence interval; NaN where there are fewer than three points."""
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def slopes(means: Sequence[tuple[float, float]]) -> list[float]:
    """Return the exponent between each ``T`` and the next, of pairs ``(T, mean sum)``; none where a sum is not
    positive.

    A power law has the same everywhere.

    >>> slopes([(10, 2.0), (100, 20.0), (1000, 2000.0)])
    [1.0, 2.0]
    """
    if any(mean <= 0 for _, mean in means):
        return []
    return [float(np.log(b[1] / a[1]) / np.log(b[0] / a[0])) for a, b in pairwise(means)]


def fit_exponent(rounds: Sequence[float], sums: Sequence[float]) -> Exponent | None:
    """Least squares of ``log y`` on ``log T``; None where a sum is not positive or there are fewer than two.

    The interval takes the points to be independent and the law to hold, neither of which is sure.

    >>> print(fit_exponent([10, 100, 1000], [1, 10, 100]))
    1.000 (95 %: 1.000 to 1.000)
    """
    from scipy.stats import linregress, t

    if len(rounds) < 2 or min(sums) <= 0 or len(set(rounds)) < 2:
        return None
    line = linregress(np.log(rounds), np.log(sums))
    if len(rounds) < 3:
        return Exponent(float(line.slope), float("nan"), float("nan"))
    margin = t.ppf(0.975, len(rounds) - 2) * line.stderr
    return Exponent(float(line.slope), float(line.slope - margin), float(line.slope + margin))
