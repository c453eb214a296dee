"""The trials of a sweep as a table, and the best of them."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from anabranch.simulation.traffic import MB
from anabranch.sweep.file import Point, label_text
from anabranch.sweep.run import Sweep
from anabranch.sweep.trial import Trial

CSV = "trials.csv"
NUMBERS = ("accumulated_error", "run_time_error", "diverged", "activation_rate", "MB", "seconds", "key", "failed")
"""The columns of `CSV` after those of the grid."""


class Row(NamedTuple):
    """What a trial came to."""

    point: Point
    values: dict[str, Any]
    """The numbers of `NUMBERS`, each None where there is none."""


class Group(NamedTuple):
    """The trials that differ by their seed only."""

    labels: dict[str, Any]
    """Without the seed."""
    rows: list[Row]
    """Of the trials that are done or failed."""
    trials: int
    """How many the grid has, those that were not run yet included."""

    def count(self, what: str) -> int:
        """Return how many of its trials ``"diverged"`` or ``"failed"``."""
        return sum(row.values[what] is not None for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether every trial is done, and none diverged: else its numbers are not to be compared with others'."""
        return len(self.rows) == self.trials and not self.count("diverged") and not self.count("failed")

    def span(self, number: str) -> tuple[float, float, float]:
        """Mean, least and greatest over the seeds that are done; NaN where no trial has it."""
        held = [row.values[number] for row in self.rows if row.values[number] is not None]
        return (fmean(held), min(held), max(held)) if held else (math.nan, math.nan, math.nan)


def rows_of(points: Sequence[Point], trials: Sequence[Trial], sweep: Sweep) -> list[Row]:
    """Return a row for each trial that is done or failed, in the order of the grid.

    Args:
        points: of the grid.
        trials: one for each point; points whose trials have the same key make one row.
        sweep: what the trials came to.
    """
    rows: dict[str, Row] = {}
    for point, trial in zip(points, trials, strict=True):
        key = trial.key
        if key not in rows and (key in sweep.records or key in sweep.failed):
            numbers = _numbers(sweep.records[key]) if key in sweep.records else {}
            values = {**dict.fromkeys(NUMBERS), **numbers, "key": key, "failed": sweep.failed.get(key)}
            rows[key] = Row(point, values)
    return list(rows.values())


def ranked(rows: Sequence[Row], points: Sequence[Point]) -> list[Group]:
    """Return the rows in groups, the least accumulated error first; those that are not complete are last.

    A mean over fewer seeds could win by the luck of those that it has.

    Args:
        rows: as `rows_of` returns them.
        points: of the whole grid.
    """
    trials = Counter(repr(_without_seed(point)) for point in points)
    groups: dict[str, Group] = {}
    for row in rows:
        labels = _without_seed(row.point)
        name = repr(labels)
        groups.setdefault(name, Group(labels, [], trials[name])).rows.append(row)

    def order(group: Group) -> tuple[bool, bool, bool, float]:
        error = group.span("accumulated_error")[0]
        return not group.complete, group.count("diverged") > 0, math.isnan(error), error

    return sorted(groups.values(), key=order)


def _without_seed(point: Point) -> dict[str, Any]:
    return {key: value for key, value in point.labels.items() if key != "seed"}


def trials_csv(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """Return the text of ``trials.csv``.

    Args:
        keys: of the grid.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*keys, *NUMBERS])
    for row in rows:
        labels = [label_text(row.point.labels[key]) for key in keys]
        lines.writerow([*labels, *(row.values[name] for name in NUMBERS)])
    return text.getvalue()


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    rates = record["activation_rate"]
    return {
        "accumulated_error": record["accumulated_error"],
        "run_time_error": record["run_time_error"],
        "diverged": record["diverged"],
        "activation_rate": fmean(rates) if rates and None not in rates else None,
        "MB": (sum(record["bytes_up"]) + sum(record["bytes_down"])) / MB,
        "seconds": record["wall_seconds"],
    }
