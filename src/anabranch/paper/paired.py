"""Differences between two methods that were run with the same seeds, with their 95 % confidence intervals.

Two trials of one seed have the same stream, the same initial parameters and the same draws of who is activated. So the
difference within a seed varies less than either error does from seed to seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds, and its confidence interval by Student's t."""

    mean: float
    margin: float | None
    """Half the interval's width; None of one seed, which says nothing about others."""
    seeds: int

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 0; None where there is no interval."""
        return None if self.margin is None else abs(self.mean) > self.margin

    def __str__(self) -> str:
        return f"{self.mean:+.4f} (one seed)" if self.margin is None else f"{self.mean:+.4f} ± {self.margin:.4f}"


def interval(values: Mapping[int, float]) -> Interval | None:
    """Return the mean of the seeds' values and its interval, or None where there is no seed.

    >>> print(interval({1: 0.01, 2: 0.02, 3: 0.03}), interval({1: 0.01}))
    +0.0200 ± 0.0248 +0.0100 (one seed)
    """
    from scipy.stats import t

    if not values:
        return None
    held = np.array([values[seed] for seed in sorted(values)])
    if len(held) == 1:
        return Interval(float(held[0]), None, 1)
    error = held.std(ddof=1) / np.sqrt(len(held))
    return Interval(float(held.mean()), float(t.ppf((1 + CONFIDENCE) / 2, len(held) - 1) * error), len(held))


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """Return our value minus theirs over the seeds that both have, or None where they share none.

    >>> print(paired_difference({1: 0.5, 2: 0.25}, {2: 0.125, 3: 0.75}))
    +0.1250 (one seed)
    """
    return interval({seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()})
