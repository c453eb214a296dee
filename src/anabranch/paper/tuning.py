"""Chooses each method's learning rate: the same grid and the same rounds for all, on a stream that no final trial sees.

The paper says which values it tried and not which it took. What is chosen has the least accumulated error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.paper.experiment import Column, Experiment, Presentation, Row, Run, Table, Value
from anabranch.paper.study import TUNING_SEED, Method, Problem, Study
from anabranch.paper.summary import SUMMARY
from anabranch.paper.tables import error_of
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.trial import Record

NAME = "tuning"
"""Of the folder of its tables."""
Pair = tuple[Problem, Method]
ALL_DIVERGED = "while tuning, the loss diverged at every learning rate, and the smallest was taken"


def tuned_pairs(experiments: Sequence[Experiment]) -> list[Pair]:
    """Whose learning rates these experiments need."""
    pairs = (
        (problem, method) for experiment in experiments for problem, methods in experiment.tunes for method in methods
    )
    return list(dict.fromkeys(pairs))


def tuning_runs(study: Study, pairs: Sequence[Pair]) -> list[Run]:
    """Return every learning rate of the grid, for each problem and method."""
    return [
        Run(
            {"problem": str(problem), "method": str(method), "learning rate": rate},
            study.config(problem, method, seed=TUNING_SEED, learning_rate=rate, rounds=study.tuning_rounds_of(problem)),
        )
        for problem, method in pairs
        for rate in problem.learning_rates
    ]


class Tuned(NamedTuple):
    """The trials of some pairs, with what came of each."""

    pairs: list[Pair]
    runs: list[Run]
    records: list[Record]


def tuned_before(kept: TrialFolder, study: Study, pairs: Sequence[Pair]) -> Tuned:
    """Return those of the pairs that an earlier command tuned in this folder, which had the same rounds and
    versions.
    """
    found = Tuned([], [], [])
    try:
        summary = json.loads((kept.path / NAME / SUMMARY).read_text(encoding="utf-8"))
        keys = {tuple(run["labels"].values()): run["key"] for run in summary["runs"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # there is none, or it is no summary
        return found
    for pair in pairs:
        runs = tuning_runs(study, [pair])
        records = [kept.get(keys.get(tuple(run.labels.values()), "")) for run in runs]
        complete = [record for record in records if record is not None]
        if len(complete) == len(runs):
            found.pairs.append(pair)
            found.runs.extend(runs)
            found.records.extend(complete)
    return found


def choose(pairs: Sequence[Pair], runs: Sequence[Run], records: Sequence[Record]) -> dict[Pair, float]:
    """Return the learning rate with the least accumulated error, for each problem and method; one that diverged is
    out.
    """
    errors: dict[tuple[Value, Value], list[tuple[float, float]]] = {}
    for run, record in zip(runs, records, strict=True):
        if record["diverged"] is None:
            found = errors.setdefault((run.labels["problem"], run.labels["method"]), [])
            found.append((record["accumulated_error"], float(run.labels["learning rate"] or 0)))
    return {
        (problem, method): min(errors.get((str(problem), str(method)), [(1.0, min(problem.learning_rates))]))[1]
        for problem, method in pairs
    }


def untuned(pairs: Sequence[Pair], runs: Sequence[Run], records: Sequence[Record]) -> dict[Pair, str]:
    """Of those that diverged at every learning rate, what a reader of their results must know."""
    tried = zip(runs, records, strict=True)
    held = {(run.labels["problem"], run.labels["method"]) for run, record in tried if record["diverged"] is None}
    return {
        (problem, method): f"{method} on {problem}: {ALL_DIVERGED}, {min(problem.learning_rates):g}."
        for problem, method in pairs
        if (str(problem), str(method)) not in held
    }


def _remark(problem: Problem, errors: Mapping[str, Value], rate: float) -> str | None:
    """What a reader of a choice must know."""
    if all(error is None for error in errors.values()):
        return ALL_DIVERGED
    ends = {max(problem.learning_rates): "the largest", min(problem.learning_rates): "the smallest"}
    return f"{ends[rate]} of the grid" if rate in ends else None


def present_tuning(rows: Sequence[Row], chosen: Mapping[Pair, float]) -> Presentation:
    """Return the whole grid: a table for each problem, with a row for each method."""
    tables = []
    for problem in dict.fromkeys(problem for problem, _ in chosen):
        columns = [Column("row", "method")]
        columns += [Column(f"{rate:g}", f"η = {rate:g}", ".4f") for rate in problem.learning_rates]
        columns.append(Column("chosen", "chosen", "g"))
        lines: list[dict[str, Value]] = []
        some = [row for row in rows if row.labels["problem"] == str(problem)]
        for (of, method), rate in chosen.items():
            if of == problem:
                errors: dict[str, Value] = {
                    f"{row.labels['learning rate']:g}": error_of(row)
                    for row in some
                    if row.labels["method"] == str(method)
                }
                lines.append({"row": str(method), **errors, "chosen": rate, "remark": _remark(problem, errors, rate)})
        if any(line["remark"] for line in lines):
            columns.append(Column("remark", "remark"))
        name = f"tuning-{problem.name}-{'drifting' if problem.drifting else 'stationary'}"
        rounds = max(record["config"]["rounds"] for row in some for record in row.records)
        caption = f"Accumulated error after {rounds:,} rounds of tuning, {problem}; none where the loss diverged"
        tables.append(Table(name, caption, columns, lines, one_seed=True, own_rounds=True))
    return Presentation(tables)
