"""The paper's two tables of particle collisions, which differ in their file only."""

from __future__ import annotations

from anabranch.paper.experiment import Experiment, Presentation, Row, Run, select
from anabranch.paper.nine_methods import method_curves, nine_methods
from anabranch.paper.study import METHODS, Problem, Study
from anabranch.paper.tables import performance

SEEDS = 3


def physics(name: str, paper: str) -> Experiment:
    """Nine methods on a table, stationary and drifting."""
    problems = (Problem(name), Problem(name, drifting=True))
    caption = f"{name.upper()} dataset, stationary and non-stationary case"

    def runs(study: Study) -> list[Run]:
        return [run for problem in problems for run in nine_methods(study, problem, SEEDS)]

    def present(study: Study, rows: list[Row]) -> Presentation:
        shown, count = Presentation(), study.rows[name]
        for problem in problems:
            case = "drifting" if problem.drifting else "stationary"
            some = select(rows, problem=str(problem))
            rounds = max(record["rounds"] for row in some for record in row.records)
            title = f"{name.upper()} dataset of {count:,} rows, {case}, {rounds:,} rounds"
            table = performance(f"{name}-{case}", title, some, "method", f"{name}-{case}")
            shown.tables.append(table._replace(own_rounds=True))
            shown.pictures.append(method_curves(f"{name}-{case}", title, some)._replace(own_rounds=True))
        shown.notes.append(
            f"The file had {count:,} rows; the paper's are UCI's full files. Rows are shuffled anew for each seed, and "
            "the drifting stream leaves some out, so that its classes come with the probabilities of the hour."
        )
        return shown

    return Experiment(name, paper, caption, runs, present, tunes=[(problem, METHODS) for problem in problems])
