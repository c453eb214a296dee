"""The part of a page that shows what ``anabranch sweep`` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel

from anabranch.report.drawing import MOST_LINES, draw_curves
from anabranch.report.formats import is_number, joined, mean, megabytes, text
from anabranch.report.page import Fact, Fold, Heading, Part, Picture, Row, Table
from anabranch.report.places import relative
from anabranch.report.reading import Value, flat, read_json
from anabranch.sweep.folder import MANIFEST, TRIALS

WRITER = "anabranch sweep"
FORMATS = {
    "accumulated error": ".4f",
    "run-time error": ".4f",
    "diverged in round": ",",
    "rounds done": ",",
    "activated": ".3f",
    "MB": ",.2f",
    "CPU s": ",.1f",
}


class ManifestFile(RootModel[dict[str, Any]]):
    """A ``manifest.json``: what the trials have in common."""


class CurveFile(BaseModel):
    """The run-time error rate of a trial as it went on."""

    rounds: list[int]
    run_time_error: list[float | None]


class TrialFile(BaseModel):
    """The record of a trial, as `anabranch.sweep.trial` makes it."""

    key: str
    config: dict[str, Any]
    diverged: int | None
    rounds: int
    accumulated_error: float | None
    run_time_error: float | None
    activation_rate: list[float]
    bytes_up: list[int]
    bytes_down: list[int]
    cpu_seconds: float | None = None
    curve: CurveFile
    versions: dict[str, Value]

    @property
    def rank(self) -> tuple[bool, float, str]:
        """The least accumulated error is first, and what diverged is last."""
        error = math.inf if self.accumulated_error is None else self.accumulated_error
        return self.diverged is not None, error, self.key


def sweep_part(folder: Path, place: Path) -> Part:
    """The trials from best to worst, the best few's curves, and what all have in common.

    Args:
        folder: what the page is about.
        place: the folder of the sweep.

    Raises:
        DataError: where a file is damaged.
    """
    manifest = read_json(place / MANIFEST, ManifestFile, WRITER).root
    files = sorted((place / TRIALS).glob("*.json"))
    trials = sorted((read_json(file, TrialFile, WRITER) for file in files), key=lambda trial: trial.rank)
    settings = [flat(trial.config) for trial in trials]
    names = dict.fromkeys(name for each in settings for name in each)
    varied = [name for name in names if _varies(name, settings)]
    fixed = {name: each[name] for each in settings for name in each if name not in varied}

    notes = [_counts(trials)]
    blocks: list[Table | Picture] = []
    if len(varied) == 0 and len(trials) > 1:
        notes.append("All trials have the same settings; they differ in their data.")
    if trials:
        best = [(trial, each) for trial, each in zip(trials, settings, strict=True) if trial.diverged is None]
        curves = {
            f"{rank}. {_label(each, varied)}": trial.curve.model_dump()
            for rank, (trial, each) in enumerate(best[:MOST_LINES], 1)
        }
        few = f"the {len(curves)} best trials" if len(curves) > 1 else "the best trial"
        drawn = draw_curves(curves, f"Run-time error rates of {few}")
        blocks = [*([drawn] if drawn else []), _table(trials, settings, varied)]
    manifest.pop("versions", None)  # each trial has its own
    facts = [Fact(name, text(value)) for name, value in {**fixed, **flat(manifest)}.items() if name]
    versions = list(dict.fromkeys(joined(trial.versions) for trial in trials))
    if len(versions) == 1:
        facts.append(Fact("versions", versions[0]))
    elif versions:
        notes.append(f"Trials ran with different versions: {'; or '.join(versions)}.")
    return Part(
        relative(place, folder),
        "Sweep" if place == folder else f"Sweep: {relative(place, folder)}",
        notes=notes,
        blocks=blocks,
        folds=[Fold("What all trials have in common", facts)] if facts else [],
    )


def _counts(trials: Sequence[TrialFile]) -> str:
    if not trials:
        return "No trial is finished yet."
    diverged = sum(trial.diverged is not None for trial in trials)
    return f"{len(trials)} finished trial{'s' if len(trials) > 1 else ''}" + (
        f"; the loss of {diverged} of them stopped being finite." if diverged else "."
    )


def _table(trials: Sequence[TrialFile], settings: Sequence[Mapping[str, Value]], varied: Sequence[str]) -> Table:
    lines: list[dict[str, Value]] = []
    for rank, (trial, each) in enumerate(zip(trials, settings, strict=True), 1):
        errors = {"accumulated error": trial.accumulated_error, "run-time error": trial.run_time_error}
        chosen = {name: each.get(name) for name in varied}
        lines.append({"rank": rank, **errors, **chosen, **_costs(trial)})
        lines[-1]["key"] = trial.key
    kept = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    headings = [Heading(name, "number" if any(is_number(line[name]) for line in lines) else "") for name in kept]
    cells = [[text(line[name], FORMATS.get(name, "")) for name in kept] for line in lines]
    best = len(trials) > 1 and trials[0].diverged is None
    rows = [Row(each, "best" if best and rank == 1 else "") for rank, each in enumerate(cells, 1)]
    return Table("Trials by accumulated error", headings, rows)


def _varies(name: str, settings: Sequence[Mapping[str, Value]]) -> bool:
    """Whether a setting tells trials apart; one that some have not, since their section's name is another, does not."""
    held = [each[name] for each in settings if name in each]
    if any(value != held[0] for value in held):
        return True
    kind = f"{name.rpartition('.')[0]}.name"
    return len(held) < len(settings) and not any(kind in each for each in settings)


def _costs(trial: TrialFile) -> dict[str, Value]:
    return {
        "rounds done": trial.rounds,
        "diverged in round": trial.diverged,
        "activated": mean(trial.activation_rate),
        "MB": megabytes(sum(trial.bytes_up) + sum(trial.bytes_down)),
        "CPU s": trial.cpu_seconds,
    }


def _label(settings: Mapping[str, Value], varied: Sequence[str]) -> str:
    """What tells a trial from the others, in few words."""
    words = []
    for name in varied:
        if settings.get(name) is not None:
            value, last = text(settings[name]), name.rpartition(".")[2]
            words.append(value if last == "name" else f"{last.replace('_', ' ')} {value}")
    return ", ".join(words) or "the only trial"
