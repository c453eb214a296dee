"""The paper's two main experiments, which differ in their stream only."""

from __future__ import annotations

from anabranch.paper.experiment import Experiment, Presentation, Row, Run, select
from anabranch.paper.nine_methods import method_curves, nine_methods
from anabranch.paper.study import METHODS, Method, Problem, Study
from anabranch.paper.tables import performance

SEEDS = 3
COMMON_RATES = (0.01, 0.003, 0.001)
"""Learning rates that all methods have in common: tuning each method hides how much it depends on it."""


def main_table(
    name: str, problem: Problem, paper: str, caption: str, thresholds: dict[str, float], slr_window: int | None = None
) -> Experiment:
    """Nine methods at their tuned learning rates and at common ones.

    Args:
        thresholds: by update, the Γ that comes nearest to the paper's own activation rate in its Event column. Its
            totals of MB imply rates that differ from method to method; in our table Γ is 0 for all.
        slr_window: a second window length for SLR-Full, since the paper's SLR sends 40 times what its DLR does.
    """

    def runs(study: Study) -> list[Run]:
        common = [run for rate in COMMON_RATES for run in nine_methods(study, problem, 1, rate)]
        return [*nine_methods(study, problem, SEEDS), *paper_rates(study), *longer_window(study), *common]

    def paper_rates(study: Study) -> list[Run]:
        return [
            Run(
                {"paper's Γ": f"{update}-Event"},
                study.config(
                    problem,
                    Method(update, "Event"),
                    seed=seed,
                    activation={"name": "Event", "threshold": threshold},
                ),
            )
            for update, threshold in thresholds.items()
            for seed in study.seeds_of(SEEDS)
        ]

    def longer_window(study: Study) -> list[Run]:
        if slr_window is None:
            return []
        update = {"name": "SLR", "window": slr_window}
        return [Run({"SLR's l": "SLR-Full"}, study.config(problem, Method("SLR", "Full"), update=update))]

    def present(study: Study, rows: list[Row]) -> Presentation:
        tuned = select(rows, rate="tuned")
        event = [row for row in rows if "paper's Γ" in row.labels]
        tables = [
            performance(name, caption, tuned, "method", name),
            performance(
                f"{name}-paper-rates",
                f"{caption}: the Event column at the paper's own activation rates",
                event,
                "paper's Γ",
                name,
            ),
        ]
        if slr_window is not None:
            title = f"{caption}: SLR with a window of {slr_window}, one seed"
            longer = [row for row in rows if "SLR's l" in row.labels]
            table = performance(f"{name}-slr-{slr_window}", title, longer, "SLR's l", name)
            tables.append(table._replace(one_seed=True))
        pictures = [method_curves(name, caption, tuned)]
        for rate in COMMON_RATES:
            common = select(rows, rate=rate)
            title = f"{caption}: learning rate {rate:g} for all methods"
            tables.append(performance(f"{name}-rate-{rate:g}", title, common, "method", name))
            pictures.append(method_curves(f"{name}-rate-{rate:g}", title, common))
        chosen = ", ".join(f"{threshold:g} for {update}" for update, threshold in thresholds.items()).replace("-", "−")
        note = f"At the paper's own activation rates Γ is {chosen}; in the other tables it is 0."
        return Presentation(tables, pictures, [note])

    return Experiment(name, paper, caption, runs, present, tunes=[(problem, METHODS)])
