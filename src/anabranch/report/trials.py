"""The trials of a sweep, as they are read and as they are ranked."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anabranch.report.formats import mean
from anabranch.report.reading import damaged, flat, read_bytes, read_json
from anabranch.sweep.folder import TRIALS
from anabranch.sweep.record import RecordFile, Value, check_origin
from anabranch.sweep.table import CSV, NUMBERS

WRITER = "anabranch sweep"
SEED = "seed"
EMPTY = set(NUMBERS) - {"key", "failed"}
"""Columns that a trial which failed has nothing in."""


class TrialFile(RecordFile):
    """The record of a trial, as it is ranked."""

    @property
    def settings(self) -> dict[str, Value]:
        """By their full names."""
        return flat(self.config)

    @property
    def rank(self) -> tuple[bool, float, str]:
        """The least accumulated error is first, and what diverged is last."""
        error = math.inf if self.accumulated_error is None else self.accumulated_error
        return self.diverged is not None, error, self.key


@dataclass(frozen=True)
class Group:
    """The trials that differ by their seed only, the best first."""

    settings: dict[str, Value]
    """Without the seed."""
    trials: Sequence[TrialFile]
    missing: int = 0
    """How many seeds it has less than others: they failed, or were not run yet."""

    @property
    def diverged(self) -> int:
        """How many of them diverged."""
        return sum(trial.diverged is not None for trial in self.trials)

    @property
    def error(self) -> float | None:
        """The mean accumulated error."""
        return mean(trial.accumulated_error for trial in self.trials)

    @property
    def complete(self) -> bool:
        """Whether it can be compared with others: no trial diverged, and none is missing."""
        return not self.diverged and not self.missing

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The least is first, and what is not complete is last: as ``anabranch sweep`` ranks them."""
        return not self.complete, self.diverged > 0, math.inf if self.error is None else self.error

    def curve(self) -> dict[str, list[Any]]:
        """Return the mean of their run-time error rates, as far as all have them."""
        points = min(len(trial.curve.rounds) for trial in self.trials)
        columns = zip(*(trial.curve.run_time_error[:points] for trial in self.trials), strict=True)
        return {"rounds": self.trials[0].curve.rounds[:points], "run_time_error": [mean(each) for each in columns]}


def read_trials(place: Path, versions: Mapping[str, Value] | None) -> list[TrialFile]:
    """Return the records of the finished trials, the best first.

    Args:
        place: the folder of the sweep.
        versions: what its manifest says that all are of, where it does.

    Raises:
        DataError: where one of them is damaged, or is not of these versions.
    """
    trials = []
    for file in (place / TRIALS).glob("*.json"):
        trials.append(read_json(file, TrialFile, WRITER))
        check_origin(trials[-1], file, versions)
    return sorted(trials, key=lambda trial: trial.rank)


def grouped(trials: Sequence[TrialFile]) -> list[Group]:
    """Return the trials in groups, the best first."""
    groups: dict[str, Group] = {}
    for trial in trials:
        settings = {name: value for name, value in trial.settings.items() if name != SEED}
        held = groups.get(repr(settings), Group(settings, []))
        groups[repr(settings)] = Group(settings, [*held.trials, trial])
    most = max((len(group.trials) for group in groups.values()), default=0)
    counted = [replace(group, missing=most - len(group.trials)) for group in groups.values()]
    return sorted(counted, key=lambda group: group.rank)


def read_failures(place: Path, done: Sequence[TrialFile]) -> list[dict[str, str]]:
    """What ``trials.csv`` says of the trials that failed: their settings, ``key``, and why under ``failed``.

    A trial that was done later has not failed.

    Raises:
        DataError: where the file is damaged.
    """
    file = place / CSV
    if not file.exists():  # it is written when a sweep ends
        return []
    keys = {trial.key for trial in done}
    try:
        lines = list(csv.DictReader(read_bytes(file).decode().splitlines(keepends=True), strict=True))
        failed = [line for line in lines if line["failed"] and line["key"] not in keys]
    except KeyError as error:
        raise damaged(file, WRITER, f"it has no column {error}") from None
    except (ValueError, csv.Error) as error:
        raise damaged(file, WRITER, str(error)) from None
    return [{name: value for name, value in line.items() if name not in EMPTY} for line in failed]
