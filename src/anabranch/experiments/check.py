"""Compares a fresh run of an experiment with the committed one, trial by trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from anabranch.errors import ConfigError

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
    """Compares the summary of a fresh run with the committed one of the same name.

    Raises:
        ConfigError: where there is none.
    """
    committed = {run["key"]: run for run in reference(summary["name"])["runs"]}
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


def reference(name: str) -> dict[str, Any]:
    """The committed summary of an experiment.

    Raises:
        ConfigError: where there is none.
    """
    file = resources.files("anabranch.experiments") / "reference" / f"{name}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no results of {name} are committed, so there is nothing to check against") from None


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
