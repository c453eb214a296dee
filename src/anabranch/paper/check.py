"""Compares a fresh run of an experiment with the committed one, trial by trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from anabranch.sweep.trial import Record, Trial, checksums

FILE = "trials.jsonl"
"""The records of the committed trials, one a line."""
ALLOWED = {"accumulated error": 0.003, "activation rate": 0.003, "bytes": 0.01, "regret": 0.05}
"""How far a quantity of a trial may lie apart; bytes and regret as a share of the committed one. Other processors and
versions round in another way, and after two million rounds that shows in the last digits."""


class Difference(NamedTuple):
    """The largest between two values of a quantity."""

    quantity: str
    size: float
    where: str
    """The labels of the trial that it is in."""

    @property
    def allowed(self) -> bool:
        """Whether it is no larger than roundings make it."""
        return self.size <= ALLOWED[self.quantity]


class Check(NamedTuple):
    """How a fresh run agrees with the committed one."""

    name: str
    compared: int
    """Trials that both have: the same settings and data."""
    missing: int
    """Fresh trials that the committed results lack."""
    identical: int
    """Of those compared, the ones with the same numbers to the last bit."""
    differences: tuple[Difference, ...]
    """One of each quantity that any of the trials has."""

    @property
    def passed(self) -> bool:
        """Whether trials were compared, and none differs by more than is allowed."""
        return self.compared > 0 and all(each.allowed for each in self.differences)


def comparable(trials: Sequence[Trial]) -> bool:
    """Return whether a committed trial has the rounds and the data of one of these: what is known before any is
    tuned.
    """
    held = {_size(record["config"], record["data"]) for record in reference().values()}
    return any(_size(trial.config.model_dump(), trial.data) in held for trial in trials)


def _size(config: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Any, ...]:
    return config["stream"]["name"], config["rounds"], *sorted(checksums(data).items())


def check(summary: Mapping[str, Any]) -> Check:
    """Compare the trials in the summary of a fresh run with the committed ones."""
    committed = reference()
    compared = [(run, committed[run["key"]]) for run in summary["runs"] if run["key"] in committed]
    largest: dict[str, Difference] = {}
    for run, other in compared:
        for quantity, size in differences(run, other).items():
            if quantity not in largest or size > largest[quantity].size:
                largest[quantity] = Difference(quantity, size, labels_text(run))
    return Check(
        summary["name"],
        len(compared),
        len(summary["runs"]) - len(compared),
        sum(all(run[key] == other[key] for key in COMPARED) for run, other in compared),
        tuple(largest.values()),
    )


COMPARED = ("diverged", "accumulated_error", "curve", "activation_rate", "bytes_up", "bytes_down", "regret")
"""What two records of the same trial have in common."""


@cache
def reference() -> dict[str, Record]:
    """Return the committed records, by their trials' keys."""
    text = (resources.files("anabranch.paper") / FILE).read_text(encoding="utf-8")
    return {record["key"]: record for record in map(json.loads, text.splitlines())}


def differences(run: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Of each quantity; where one of them diverged and the other did not, of the error alone, 1.

    Where both diverged nothing differs: a rounding may have them do so some rounds sooner or later.

    >>> one = {"diverged": None, "accumulated_error": 0.25, "activation_rate": [0.5, 1.0], "regret": None}
    >>> one |= {"bytes_up": [100, 100], "bytes_down": [50, 100]}
    >>> differences(one, one | {"accumulated_error": 0.5, "bytes_down": [50, 110]})
    {'accumulated error': 0.25, 'activation rate': 0.0, 'bytes': 0.09090909090909091}
    """
    if (run["diverged"] is None) != (other["diverged"] is None):
        return {"accumulated error": 1.0}
    if run["diverged"] is not None:
        return {"accumulated error": 0.0}
    found = {
        "accumulated error": abs((run["accumulated_error"] or 0.0) - (other["accumulated_error"] or 0.0)),
        "activation rate": max(
            abs((a or 0.0) - (b or 0.0)) for a, b in zip(run["activation_rate"], other["activation_rate"], strict=True)
        ),
        "bytes": max(
            _share(a, b) for way in ("bytes_up", "bytes_down") for a, b in zip(run[way], other[way], strict=True)
        ),
    }
    if run["regret"] is not None and other["regret"] is not None:
        found["regret"] = max(
            _share(run["regret"][sum_][-1], other["regret"][sum_][-1]) for sum_ in ("ideal", "applied")
        )
    return found


def _share(fresh: float | None, committed: float | None) -> float:
    """Return the difference as a share of the committed one."""
    fresh, committed = fresh or 0.0, committed or 0.0
    return 0.0 if fresh == committed else abs(fresh - committed) / max(abs(committed), 1e-12)


def labels_text(run: Mapping[str, Any]) -> str:
    """Return a run's labels and its seed, in a line."""
    return ", ".join(f"{key} {value}" for key, value in {**run["labels"], "seed": run["seed"]}.items())
