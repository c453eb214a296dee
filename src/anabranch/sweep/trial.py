"""One trial of a sweep: a configuration goes in, a record of plain numbers comes out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.config import Config
from anabranch.errors import Diverged
from anabranch.files import json_values
from anabranch.output import untimed

PATHS = ("path", "data_dir")
"""Where a file lies says nothing about what is in it: these are no part of a trial's key."""

NUMBERS = (
    "rounds",
    "stopped",
    "accumulated_error",
    "run_time_error",
    "activation_rate",
    "bytes_up",
    "bytes_down",
    "regret",
    "rounds_per_second",
)
"""Of what a result says of itself (`anabranch.Result.describe`), what a record keeps."""

Record = dict[str, Any]
"""What a trial came to, as JSON values; see `run_trial`."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    config: Config
    data: Mapping[str, Any]
    """What identifies the files that it reads: a checksum for each section that names one."""

    @property
    def key(self) -> str:
        """What tells the trial from all others: a digest of its settings and of its data, the same on every machine.

        A setting at its default counts for nothing, so that a later version may have more of them.
        """
        return digest({"config": portable(self.config, exclude_defaults=True), "data": checksums(self.data)})


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a JSON value.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def portable(config: Config, **how: Any) -> dict[str, Any]:
    """The settings as JSON values, without where this machine keeps its files."""
    values = json_values(config.model_dump(exclude_none=True, **how))
    for section in values.values():
        if isinstance(section, dict):
            for path in PATHS:
                section.pop(path, None)
    return values


def checksums(data: Mapping[str, Any]) -> dict[str, str]:
    """Of each file, by the section that reads it."""
    return {section: each["sha256"] for section, each in data.items()}


def run_trial(trial: Trial) -> Record:
    """Trains, and returns the record.

    A trial whose loss stops being finite is done all the same: its record has the round in which that happened, and
    the rates of the rounds before.

    Raises:
        AnabranchError: where the trial cannot be run.
    """
    from anabranch import runner

    started = time.perf_counter(), time.process_time()
    diverged = None
    try:
        result = runner.run(trial.config)
    except Diverged as problem:
        result, diverged = problem.result, problem.round
    described = json_values(untimed(result).describe())
    return {
        "key": trial.key,
        "config": portable(trial.config),
        "data": json_values(trial.data),
        "diverged": diverged,
        **{name: described.get(name) for name in NUMBERS},
        "curve": {
            "rounds": result.curve.rounds.tolist(),
            "run_time_error": [round(each, 7) for each in result.curve.run_time_error.tolist()],
        },
        "cpu_seconds": round(time.process_time() - started[1], 3),
        "wall_seconds": round(time.perf_counter() - started[0], 3),
        "versions": described["versions"],
    }
