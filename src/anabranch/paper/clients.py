"""Figures 11 and 12: nine methods with 8 and with 16 clients on the stationary i-MNIST stream."""

from __future__ import annotations

from dataclasses import replace

from anabranch.paper.experiment import Experiment, Presentation, Row, Run, select
from anabranch.paper.nine_methods import method_curves, nine_methods
from anabranch.paper.study import IMNIST, METHODS, Study
from anabranch.paper.tables import performance

PROBLEMS = {clients: replace(IMNIST, clients=clients) for clients in (8, 16)}


def runs(study: Study) -> list[Run]:
    return [run for problem in PROBLEMS.values() for run in nine_methods(study, problem, 1)]


def present(study: Study, rows: list[Row]) -> Presentation:
    shown = Presentation()
    for clients, problem in PROBLEMS.items():
        name, caption = f"clients-{clients}", f"Run-time error rates on i-MNIST with {clients} clients"
        some = select(rows, problem=str(problem))
        shown.tables.append(performance(name, caption, some, "method", name))
        shown.pictures.append(method_curves(name, caption, some))
    shown.notes.append("Learning rates are those tuned for four clients.")
    return shown


EXPERIMENT = Experiment(
    "clients",
    "Figures 11, 12",
    "Run-time error rates on i-MNIST with 8 and 16 clients under stationary data stream",
    runs,
    present,
    tunes=[(IMNIST, METHODS)],
)
