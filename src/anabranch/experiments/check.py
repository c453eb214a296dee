"""Compares a fresh run of an experiment with the committed one, trial by trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from anabranch.sweep.trial import Record

FILE = "trials.jsonl"
"""The records of the committed trials, one a line."""
TOLERANCE = 0.003
"""How far the accumulated errors of a trial may lie apart: other processors and versions round in another way, and
after two million rounds that shows in the last digits."""


class Check(NamedTuple):
    """How a fresh run agrees with the committed one."""

    name: str
    compared: int
    """Trials that both have: the same settings and data."""
    missing: int
    """Fresh trials that the committed results lack."""
    identical: int
    """Of those compared, the ones with the same errors to the last bit."""
    largest: float
    """The largest difference between two accumulated errors."""
    where: str
    """The labels of the trial that it is in."""

    @property
    def passed(self) -> bool:
        """Whether trials were compared, and none differs by more than the tolerance."""
        return self.compared > 0 and self.largest <= TOLERANCE


def check(summary: Mapping[str, Any]) -> Check:
    """Compares the trials in the summary of a fresh run with the committed ones."""
    committed = reference()
    compared = [(run, committed[run["key"]]) for run in summary["runs"] if run["key"] in committed]
    differences = [(difference(run, other), labels_text(run)) for run, other in compared]
    largest, where = max(differences, default=(0.0, ""))
    return Check(
        summary["name"],
        len(compared),
        len(summary["runs"]) - len(compared),
        sum(run["curve"] == other["curve"] and not difference(run, other) for run, other in compared),
        largest,
        where,
    )


@cache
def reference() -> dict[str, Record]:
    """The committed records, by their trials' keys."""
    text = (resources.files("anabranch.experiments") / FILE).read_text(encoding="utf-8")
    return {record["key"]: record for record in map(json.loads, text.splitlines())}


def difference(run: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Between the accumulated errors; 1 where one of them diverged, and the other did not.

    >>> difference({"diverged": None, "accumulated_error": 0.25}, {"diverged": None, "accumulated_error": 0.5})
    0.25
    """
    if (run["diverged"] is None) != (other["diverged"] is None):
        return 1.0
    return abs((run["accumulated_error"] or 0.0) - (other["accumulated_error"] or 0.0))


def labels_text(run: Mapping[str, Any]) -> str:
    """A run's labels and its seed, in a line."""
    return ", ".join(f"{key} {value}" for key, value in {**run["labels"], "seed": run["seed"]}.items())
