"""Learning rates chosen at the full length: the two best of the short horizon, each run for 2,000,000 rounds.

Tuning takes a tenth of the rounds (`anabranch.paper.tuning`). A rate that is best then need not be best in the
end. So its two best rates are run again at the full length, on a seed that no other trial has, and the better one of
these counts. The ablations follow at both rates too, and those of DLR's window at rates where a window can matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.paper.arms import arm_table, errors
from anabranch.paper.experiment import Column, Experiment, Presentation, Row, Run, Table, Value, select
from anabranch.paper.paired import interval, paired_difference
from anabranch.paper.study import IMNIST, IMNIST_DRIFT, METHODS, TUNING_SEED, Method, Problem, Study

CANDIDATES = {"OGD": (0.003, 0.01), "SLR": (0.03, 0.01), "DLR": (0.003, 0.01)}
"""By update, the best and the second best learning rate of the short horizon, under each activation and stream."""
SELECTION_SEED = TUNING_SEED + 1
SEEDS = 3
PROBLEMS = (IMNIST_DRIFT, IMNIST)
DLR_RANDOM, DLR_FULL = Method("DLR", "Random"), Method("DLR", "Full")
FAST_RATES = (0.01, 0.015)
"""Learning rates at which DLR's window may matter: at small ones it is gradient descent, whatever the window."""

Changes = Mapping[str, Mapping[str, Any]]


def _dlr(window: int, decay: float) -> dict[str, Any]:
    return {"update": {"name": "DLR", "window": window, "decay": decay}}


ABLATIONS: dict[str, tuple[Problem, Method, Sequence[float], Changes]] = {
    "probability": (
        IMNIST_DRIFT,
        DLR_RANDOM,
        CANDIDATES["DLR"],
        {f"p = {p:g}": {"activation": {"name": "Random", "p": p}} for p in (0.25, 0.5, 0.75, 1.0)},
    ),
    "activated": (
        IMNIST,
        DLR_RANDOM,
        CANDIDATES["DLR"],
        {f"{k} of 4 clients": {"activation": {"name": "Fixed", "k": k}} for k in (1, 2, 3, 4)},
    ),
    "window": (
        IMNIST_DRIFT,
        DLR_FULL,
        FAST_RATES,
        {f"l = {window}": _dlr(window, 0.95) for window in (10, 50, 100, 150)},
    ),
    "decay": (IMNIST_DRIFT, DLR_FULL, FAST_RATES, {f"α = {decay:g}": _dlr(100, decay) for decay in (0.99, 0.95, 0.9)}),
}
"""By part: the stream, the method, the learning rates, and by a row's title what is changed."""


def _method_runs(study: Study, part: str, problem: Problem, updates: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    return [
        Run(
            {"part": part, "problem": str(problem), "method": str(method), "rate": rate},
            study.config(problem, method, seed=seed, learning_rate=rate),
        )
        for seed in seeds
        for method in METHODS
        if method.update in updates
        for rate in CANDIDATES[method.update]
    ]


def _ablation_runs(study: Study, part: str) -> Iterator[Run]:
    problem, method, rates, changes = ABLATIONS[part]
    for seed in study.seeds_of(SEEDS):
        for rate in rates:
            for title, change in changes.items():
                config = study.config(problem, method, seed=seed, learning_rate=rate, **change)
                yield Run({"part": part, "setting": title, "rate": rate}, config)


def _runs(study: Study) -> list[Run]:
    """SLR takes four times as long as the others, and more clients take longer too: they come last."""
    fast, slow, seeds = ("OGD", "DLR"), ("SLR",), study.seeds_of(SEEDS)
    runs: list[Run] = []
    for problem in PROBLEMS:
        runs += _method_runs(study, "selection", problem, fast, [SELECTION_SEED])
    for problem in PROBLEMS:
        runs += _method_runs(study, "main", problem, fast, seeds)
    runs += [run for part in ABLATIONS for run in _ablation_runs(study, part)]
    for problem in PROBLEMS:
        runs += _method_runs(study, "selection", problem, slow, [SELECTION_SEED])
    for problem in PROBLEMS:
        runs += _method_runs(study, "main", problem, slow, seeds)
    for updates in (fast, slow):
        for clients in (8, 16):
            runs += _method_runs(study, "clients", replace(IMNIST, clients=clients), updates, seeds)
    return runs


def chosen_rate(rows: Sequence[Row]) -> float | None:
    """Return the rate of the least error, given a method's rows of the selection; None while one is missing."""
    found = [(error, float(row.labels["rate"] or 0)) for row in rows for error in errors(row).values()]
    return min(found)[1] if all(row.records for row in rows) and found else None


def _main_table(problem: Problem, rows: Sequence[Row]) -> Table:
    """Return a line for each method at its chosen rate, compared with OGD under the same activation, seed by seed."""
    kind = "drifting" if problem.drifting else "stationary"
    held: dict[Method, dict[int, float]] = {}
    lines: list[dict[str, Value]] = []
    for method in METHODS:
        some = select(rows, problem=str(problem), method=str(method))
        tried = select(some, part="selection")
        rate = chosen_rate(tried)
        (main,) = select(some, part="main", rate=rate) or [Row({}, (), 0.0)]
        held[method] = errors(main)
        mean = interval(held[method])
        minus = paired_difference(held[method], held.get(Method("OGD", method.activation), {}))
        lines.append(
            {
                "row": str(method),
                **{f"tried {place}": _tried(row) for place, row in enumerate(tried, 1)},
                "rate": rate,
                "seeds": len(main.records),
                "error": None if mean is None else mean.mean,
                "margin": None if mean is None else mean.margin,
                "minus": None if minus is None or method.update == "OGD" else str(minus),
            }
        )
    columns = [
        Column("row", "method"),
        Column("tried 1", "best of the short horizon"),
        Column("tried 2", "second best"),
        Column("rate", "chosen", "g"),
        Column("seeds", "seeds"),
        Column("error", "accumulated error", ".4f"),
        Column("margin", "± (95 %)", ".4f"),
        Column("minus", "minus OGD, 95 %"),
    ]
    caption = f"Nine methods on {kind} i-MNIST, their learning rates chosen at the full length"
    return Table(f"full-length-{kind}", caption, columns, lines)


def _tried(row: Row) -> str:
    error = next(iter(errors(row).values()), None)
    result = "not run yet" if not row.records else "diverged" if error is None else f"{error:.4f}"
    return f"{row.labels['rate']:g}: {result}"


def _present(study: Study, rows: list[Row]) -> Presentation:
    seeds = len(study.seeds_of(SEEDS))
    shown = Presentation([_main_table(problem, rows) for problem in PROBLEMS])
    for part, (problem, method, *_) in ABLATIONS.items():
        caption = f"{method} on {'drifting' if problem.drifting else 'stationary'} i-MNIST: {part}"
        shown.tables.append(arm_table(f"full-length-{part}", caption, select(rows, part=part), seeds, (), "setting"))
    for clients in (8, 16):
        some = select(rows, part="clients", problem=str(replace(IMNIST, clients=clients)))
        caption = f"Nine methods on stationary i-MNIST with {clients} clients"
        shown.tables.append(arm_table(f"full-length-clients-{clients}", caption, some, seeds, (), "method"))
    shown.notes.append(
        f"Each method's rate is chosen by its error after all rounds with seed {SELECTION_SEED}, which no other trial "
        "has. Differences from OGD are those of each seed by itself."
    )
    return shown


EXPERIMENT = Experiment(
    "full-length",
    "Tables 1 to 3, Figures 5, 6, 11 to 13 again",
    "Learning rates chosen at the full length",
    _runs,
    _present,
    timed=False,
)
