"""The grid of the paper's main experiments: OGD, SLR and DLR, each under Full, Random and Event activation."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.paper.experiment import Picture, Row, Run, the_row
from anabranch.paper.figures import error_curves
from anabranch.paper.study import ACTIVATIONS, METHODS, UPDATES, Problem, Study


def nine_methods(study: Study, problem: Problem, seeds: int, learning_rate: float | None = None) -> list[Run]:
    """Return each method on a problem.

    Args:
        seeds: how many, unless the study says otherwise.
        learning_rate: one for all methods; None takes what tuning chose for each.
    """
    rate = "tuned" if learning_rate is None else learning_rate
    return [
        Run(
            {"problem": str(problem), "rate": rate, "method": str(method)},
            study.config(problem, method, seed=seed, learning_rate=learning_rate),
        )
        for method in METHODS
        for seed in study.seeds_of(seeds)
    ]


def method_curves(name: str, caption: str, rows: Sequence[Row]) -> Picture:
    """Return a panel for each activation, with a line for each update."""
    panels = {
        activation: [(update, the_row(rows, method=f"{update}-{activation}")) for update in UPDATES]
        for activation in ACTIVATIONS
    }
    return Picture(name, caption, error_curves(panels))
