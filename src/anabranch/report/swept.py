"""The part of a page that shows what ``anabranch sweep`` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from anabranch.report.drawing import MOST_LINES, draw_curves
from anabranch.report.formats import is_number, joined, machines_text, mean, megabytes, text
from anabranch.report.page import Fact, Fold, Heading, Part, Picture, Row, Table
from anabranch.report.places import relative
from anabranch.report.reading import flat, read_json
from anabranch.report.trials import SEED, WRITER, Group, TrialFile, grouped, read_failures, read_trials
from anabranch.sweep.folder import MANIFEST
from anabranch.sweep.record import Value

FORMATS = {
    "accumulated error": ".4f",
    "run-time error": ".4f",
    "rounds done": ",",
    "diverged in round": ",",
    "activated": ".3f",
    "MB": ",.2f",
    "CPU s": ",.1f",
}


class ManifestFile(BaseModel):
    """A ``manifest.json``: what the trials have in common."""

    model_config = ConfigDict(extra="allow")
    versions: dict[str, Value] | None = None
    """None where whoever ran the trials, in Python, did not say that they have them in common."""


def sweep_part(folder: Path, place: Path) -> Part:
    """Return the trials from best to worst, the best few's curves, what failed, and what all have in common.

    Args:
        folder: what the page is about.
        place: the folder of the sweep.

    Raises:
        DataError: where a file is damaged.
    """
    manifest = read_json(place / MANIFEST, ManifestFile, WRITER)
    trials = read_trials(place, manifest.versions)
    failures = read_failures(place, trials)
    blocks: list[Table | Picture] = []
    if trials:
        blocks += _ranking(trials)
    if failures:
        blocks.append(_failed(failures))
    facts = _facts(trials, manifest.model_dump(exclude_unset=True))
    return Part(
        relative(place, folder),
        "Sweep" if place == folder else f"Sweep: {relative(place, folder)}",
        notes=_notes(trials, len(failures)),
        blocks=blocks,
        folds=[Fold("What all trials have in common", facts)] if facts else [],
    )


def _ranking(trials: Sequence[TrialFile]) -> list[Table | Picture]:
    """Learning curves and tables; trials that differ by their seed are taken together first."""
    groups, varied = grouped(trials), _varied([trial.settings for trial in trials])
    chosen = [name for name in varied if name != SEED]
    several = len(groups) < len(trials)
    what, over = ("settings", ", mean over the seeds") if several else ("trials", "")
    best = [group for group in groups if group.complete][:MOST_LINES]
    names = [
        _label(group.settings if several else group.trials[0].settings, chosen if several else varied) for group in best
    ]
    curves = {f"{rank}. {name}": group.curve() for rank, (name, group) in enumerate(zip(names, best, strict=True), 1)}
    drawn = draw_curves(curves, f"Error rates of the {len(best)} best {what}{over}")
    tables = [_table("Trials by accumulated error", [_trial(trial, varied) for trial in trials], best=not several)]
    if several:
        caption = "Settings by accumulated error, mean over the seeds"
        tables.insert(0, _table(caption, [_group(group, chosen) for group in groups], best=True))
    return [*([drawn] if drawn else []), *tables]


def _trial(trial: TrialFile, varied: Sequence[str]) -> dict[str, Value]:
    errors = {"accumulated error": trial.accumulated_error, "run-time error": trial.run_time_error}
    settings = {name: trial.settings.get(name) for name in varied}
    return {**errors, **settings, "diverged in round": trial.diverged, **_costs([trial]), "key": trial.key}


def _group(group: Group, varied: Sequence[str]) -> dict[str, Value]:
    held = [trial.accumulated_error for trial in group.trials if trial.accumulated_error is not None]
    return {
        "accumulated error": group.error,
        "min–max": f"{min(held):.4f}–{max(held):.4f}" if held else None,
        "run-time error": mean(trial.run_time_error for trial in group.trials),
        **{name: group.settings.get(name) for name in varied},
        "seeds": len(group.trials),
        "seeds missing": group.missing or None,
        "diverged": group.diverged,
        **_costs(group.trials),
    }


def _costs(trials: Sequence[TrialFile]) -> dict[str, Value]:
    traffic = mean(sum(trial.bytes_up) + sum(trial.bytes_down) for trial in trials)
    return {
        "rounds done": round(mean(trial.rounds for trial in trials) or 0),
        "activated": mean(rate for trial in trials for rate in trial.activation_rate),
        "MB": None if traffic is None else megabytes(traffic),
        "CPU s": mean(trial.cpu_seconds for trial in trials),
    }


def _table(caption: str, lines: Sequence[dict[str, Value]], *, best: bool) -> Table:
    """Ranked lines; with ``best``, the first is marked unless it diverged or lacks a seed."""
    ranked = [{"rank": rank, **line} for rank, line in enumerate(lines, 1)]
    kept = [name for name in ranked[0] if any(line[name] is not None for line in ranked)]
    headings = [Heading(name, "number" if any(is_number(line[name]) for line in ranked) else "") for name in kept]
    cells = [[text(line[name], FORMATS.get(name, "")) for name in kept] for line in ranked]
    flaws = any(ranked[0].get(name) for name in ("diverged", "diverged in round", "seeds missing"))
    marks = best and not flaws and len(ranked) > 1
    return Table(caption, headings, [Row(each, "best" if marks and i == 0 else "") for i, each in enumerate(cells)])


def _failed(failures: Sequence[Mapping[str, str]]) -> Table:
    order = [*(name for name in failures[0] if name not in ("key", "failed")), "failed", "key"]
    titles = {"failed": "what was wrong"}
    headings = [Heading(titles.get(name, name)) for name in order]
    return Table("Trials that failed", headings, [Row([line[name] or "" for name in order]) for line in failures])


def _notes(trials: Sequence[TrialFile], failed: int) -> list[str]:
    if not trials:
        counts = "No trial is finished yet."
    else:
        diverged = sum(trial.diverged is not None for trial in trials)
        counts = f"{len(trials)} finished trial{'s' if len(trials) > 1 else ''}" + (
            f"; the loss of {diverged} of them stopped being finite." if diverged else "."
        )
    notes = [counts]
    if failed:
        notes.append(f"{failed} trial{'s' if failed > 1 else ''} failed; the same command tries again.")
    versions = _versions(trials)
    if len(versions) > 1:
        notes.append(f"Trials ran with different versions: {'; or '.join(versions)}.")
    return notes


def _facts(trials: Sequence[TrialFile], manifest: Mapping[str, Any]) -> list[Fact]:
    """Return settings that all trials share, and what else the manifest says."""
    settings = [trial.settings for trial in trials]
    varied = _varied(settings)
    fixed = {name: value for each in settings for name, value in each.items() if name not in varied}
    told = ("versions", "settings") if trials else ()  # by the trials themselves
    others = flat({name: value for name, value in manifest.items() if name not in told})
    facts = [Fact(name, text(value)) for name, value in {**fixed, **others}.items() if name]
    versions = _versions(trials)
    if len(versions) == 1:
        facts.append(Fact("versions", versions[0]))
    return [*facts, Fact("machine", machines_text(trial.machine for trial in trials))] if trials else facts


def _versions(trials: Sequence[TrialFile]) -> list[str]:
    return list(dict.fromkeys(joined(trial.versions) for trial in trials))


def _varied(settings: Sequence[Mapping[str, Value]]) -> list[str]:
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if _varies(name, settings)]


def _varies(name: str, settings: Sequence[Mapping[str, Value]]) -> bool:
    """Return whether a setting tells trials apart; one that some have not, since their section's name is another,
    does not.
    """
    held = [each[name] for each in settings if name in each]
    if any(value != held[0] for value in held):
        return True
    kind = f"{name.rpartition('.')[0]}.name"
    return len(held) < len(settings) and not any(kind in each for each in settings)


def _label(settings: Mapping[str, Value], varied: Sequence[str]) -> str:
    """What tells a trial from the others, in few words."""
    words = []
    for name in varied:
        if settings.get(name) is not None:
            value, last = text(settings[name]), name.rpartition(".")[2]
            words.append(value if last == "name" else f"{last.replace('_', ' ')} {value}")
    return ", ".join(words) or "the only one"
