"""Table 5: how often each client is activated, for four probabilities and five thresholds."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from anabranch.paper.experiment import Column, Experiment, Presentation, Row, Run, Table, Value
from anabranch.paper.paper import number
from anabranch.paper.probability import PROBABILITIES
from anabranch.paper.study import IMNIST_DRIFT, Method, Study
from anabranch.paper.threshold import THRESHOLDS

CLIENTS = (1, 2, 3, 4)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"p = {p:g}": ("Random", {"name": "Random", "p": p}) for p in PROBABILITIES},
    **{
        title: ("Event", {"name": "Event", "threshold": threshold})
        for title, threshold in {"Γ = +∞": float("inf"), **THRESHOLDS, "Γ = −∞": float("-inf")}.items()
    },
}


def runs(study: Study) -> list[Run]:
    return [
        Run({"setting": title}, study.config(IMNIST_DRIFT, Method("DLR", kind), seed=seed, activation=activation))
        for title, (kind, activation) in SETTINGS.items()
        for seed in study.seeds_of(1)
    ]


def present(study: Study, rows: list[Row]) -> Presentation:
    columns = [Column("row", "setting")]
    for client in CLIENTS:
        columns += [Column(f"client {client}", f"client {client}", ".6f"), Column(f"paper {client}", "paper", ".6f")]
    columns.append(Column("difference", "largest difference", ".3f"))
    return Presentation([Table("activation", EXPERIMENT.caption, columns, [_line(row) for row in rows])])


def _line(row: Row) -> dict[str, Value]:
    title = str(row.labels["setting"])
    line: dict[str, Value] = {"row": title}
    differences = []
    for client in CLIENTS:
        ours = fmean(record["activation_rate"][client - 1] for record in row.records)
        paper = number("activation", title, f"client {client}")
        line |= {f"client {client}": ours, f"paper {client}": paper}
        if paper is not None:
            differences.append(abs(ours - paper))
    return line | {"difference": max(differences, default=None)}


EXPERIMENT = Experiment(
    "activation",
    "Table 5",
    "Frequency of activation for each client under different settings",
    runs,
    present,
    tunes=[(IMNIST_DRIFT, [Method("DLR", "Random"), Method("DLR", "Event")])],
    timed=False,
)
