"""Labels of intervals, a start and an end each, as labels of the moments that lie in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import DataError

MOST = 20_000_000
"""So many moments a file's intervals may have."""


class Moments(NamedTuple):
    """The moments of intervals, in the order of the intervals."""

    rows: NDArray[np.int64]
    """Of each the row of its interval."""
    times: NDArray[np.int64]
    """In microseconds since 1970."""


class RowError(DataError):
    """What is wrong with a row, counted from 0."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def moments_of(starts: NDArray[np.int64], ends: NDArray[np.int64], grain: int) -> Moments:
    """Return the moments, multiples of the grain, that lie after an interval's start and not after its end.

    A moment names the time of a grain up to it, so two intervals that touch share none.

    Args:
        starts: in microseconds since 1970.
        ends: likewise.
        grain: microseconds from one moment to the next.

    Raises:
        RowError: where an interval does not end after its start.
        DataError: where there are too many moments.

    >>> moments_of(np.array([0, 60]), np.array([60, 90]), 30)
    Moments(rows=array([0, 0, 1]), times=array([30, 60, 90]))
    """
    wrong = np.flatnonzero(ends <= starts)
    if len(wrong):
        raise RowError(int(wrong[0]), "the interval does not end after its start")
    first = (starts // grain + 1) * grain
    counts = np.maximum(ends // grain * grain - first + grain, 0) // grain
    total = int(counts.sum())
    if total > MOST:
        raise DataError(f"its intervals have {total:,} moments, but at most {MOST:,} are taken: give a larger grain")
    rows = np.repeat(np.arange(len(starts)), counts)
    steps = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return Moments(rows, first[rows] + steps * grain)


def without_twins(
    moments: Moments, entities: NDArray[np.int64], labels: NDArray[np.int64], known: NDArray[np.int64]
) -> Moments:
    """Return the moments, each of an entity's once: that of the interval that is known first.

    Args:
        moments: of intervals that may overlap.
        entities: of each interval a number that tells its entity.
        labels: of each interval a number that tells its label.
        known: of each moment when its label becomes known.

    Raises:
        RowError: where intervals of one entity overlap and have different labels.
    """
    rows, times = moments
    order = np.lexsort((rows, known, times, entities[rows]))
    ordered = rows[order]
    twins = (np.diff(times[order]) == 0) & (np.diff(entities[ordered]) == 0)
    wrong = np.flatnonzero(twins & (np.diff(labels[ordered]) != 0))
    if len(wrong):
        one, other = sorted(int(each) for each in ordered[wrong[0] : wrong[0] + 2])
        raise RowError(
            other, f"the interval overlaps that of row {one + 1}, of another label: a moment has one label only"
        )
    kept = np.sort(order[np.append(True, ~twins)]) if len(order) else order
    return Moments(rows[kept], times[kept])
