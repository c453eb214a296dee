"""The paper's ablations: DLR with one setting varied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.paper.experiment import Experiment, Picture, Presentation, Row, Run
from anabranch.paper.figures import error_curves
from anabranch.paper.study import Method, Problem, Study
from anabranch.paper.tables import performance


def one_setting(
    name: str,
    problem: Problem,
    method: Method,
    paper: str,
    caption: str,
    values: Mapping[str, Mapping[str, Any]],
) -> Experiment:
    """DLR on a problem, at the learning rate that was tuned for ``method``, with each of the values in turn.

    Args:
        values: by a row's title, the section of the configuration that it changes.
    """

    def runs(study: Study) -> list[Run]:
        return [
            Run({"setting": title}, study.config(problem, method, seed=seed, **changes))
            for title, changes in values.items()
            for seed in study.seeds_of(1)
        ]

    def present(study: Study, rows: list[Row]) -> Presentation:
        lines = [(str(row.labels["setting"]), row) for row in rows]
        return Presentation(
            [performance(name, caption, rows, "setting", name)],
            [Picture(name, caption, error_curves({str(method): lines}))],
        )

    return Experiment(name, paper, caption, runs, present, tunes=[(problem, [method])])
