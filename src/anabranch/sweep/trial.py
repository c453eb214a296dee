"""One trial of a sweep: a configuration goes in, a record of plain numbers comes out."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.config.run import Config, SlrUpdate, kinds_by_name
from anabranch.errors import ConfigError, DataError, Diverged
from anabranch.simulation.output import untimed
from anabranch.storage.files import json_values

if TYPE_CHECKING:
    from anabranch.config.build import Plan
    from anabranch.simulation.result import Result

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
        settings = portable(self.config, exclude_defaults=True)
        if self.config.label_delay == 0 and not isinstance(self.config.update, SlrUpdate):  # SLR refuses "stored"
            settings.pop("label_learning", None)  # how to learn from late labels, where none is late
        return digest({"config": settings, "data": checksums(self.data)})


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a JSON value.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def portable(config: Config, *, exclude_none: bool = True, **how: Any) -> dict[str, Any]:
    """Return the settings as JSON values, without where this machine keeps its files."""
    values = json_values(config.model_dump(exclude_none=exclude_none, **how))
    for section in values.values():
        if isinstance(section, dict):
            for path in PATHS:
                section.pop(path, None)
    return values


def restored(settings: Mapping[str, Any]) -> Config:
    """What `portable` made these of; a file that must be named has a name of no meaning.

    Raises:
        ValidationError: where they are not the settings of a run.
    """
    values = dict(settings)
    for section in ("stream", "activation"):
        held = values.get(section)
        if isinstance(held, dict):
            kind = kinds_by_name(section).get(str(held.get("name")))
            if kind is not None and "path" in kind.settings() and kind.model_fields["path"].is_required():
                values[section] = {**held, "path": "-"}
    return Config.model_validate_json(json.dumps(values))


def checksums(data: Mapping[str, Any]) -> dict[str, str]:
    """Of each file, by the section that reads it."""
    return {section: each["sha256"] for section, each in data.items()}


def run_trial(trial: Trial) -> Record:
    """Train, and return the record.

    A trial whose loss stops being finite is done all the same: its record has the round in which that happened, and
    the rates of the rounds before.

    Raises:
        AnabranchError: where the trial cannot be run, or the files that are found are not those of the trial.
    """
    from anabranch.simulation.simulator import simulate

    started = time.perf_counter(), time.process_time()
    plan = plan_of(trial)
    train = partial(simulate, plan.model, plan.stream, **plan.options)
    return record_of(trial, train, lambda: (time.perf_counter() - started[0], time.process_time() - started[1]))


def plan_of(trial: Trial) -> Plan:
    """What the trial is run with, on this machine.

    Raises:
        AnabranchError: where it cannot be run, or the files that are found are not those of the trial.
    """
    from anabranch.config import build as runner

    plan = runner.build(trial.config)
    _check_data(trial.data, plan.data)
    return plan


def record_of(trial: Trial, train: Callable[[], Result], seconds: Callable[[], tuple[float, float]]) -> Record:
    """Return the record of what ``train`` comes to.

    Args:
        trial: the one that it trains.
        train: returns a result, or raises `Diverged`.
        seconds: called after that; how long the trial took, by the clock and of the processor.
    """
    from anabranch.simulation.result import machine

    diverged = None
    try:
        result = train()
    except Diverged as problem:
        result, diverged = problem.result, problem.round
    described = json_values(untimed(result).describe())
    wall, cpu = seconds()
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
        "cpu_seconds": round(cpu, 3),
        "wall_seconds": round(wall, 3),
        "versions": described["versions"],
        "machine": machine(),
    }


def check_versions(wanted: Mapping[str, str]) -> None:
    """Whether this process has the versions that the sweep was begun with.

    Raises:
        ConfigError: where it has others; both are named.
    """
    from anabranch.simulation.result import versions

    held = versions()
    other = [f"{name} {held.get(name)}, not {each}" for name, each in wanted.items() if held.get(name) != each]
    if other:
        raise ConfigError(f"{platform.node()} has {'; '.join(other)}: not to be mixed with the others")


def _check_data(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Whether the files here are those of the trial, which on a worker far away they may not be."""
    for section, sum_there in checksums(wanted).items():
        sum_here = checksums(found).get(section)
        if sum_here != sum_there:
            raise DataError(
                f"{platform.node()} finds other data for the {section}: {found.get(section, {}).get('name')} with "
                f"SHA-256 {str(sum_here)[:12]}…, but the sweep was begun with {sum_there[:12]}…. Put the same files "
                "there, at the same path or where its ANABRANCH_DATA says"
            )
