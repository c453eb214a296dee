"""Theorems 1 and 2 and Table 6: regret, which the paper proves bounds of, measured."""

from __future__ import annotations

from anabranch.paper import convex_regret, local_regret, unequal
from anabranch.paper.bounds import BOUNDS
from anabranch.paper.experiment import Column, Experiment, Presentation, Row, Run, Table
from anabranch.paper.smoothness import estimate_smoothness
from anabranch.paper.study import IMNIST_DRIFT, Method, Study

SMOOTHNESS_ROUNDS, SMOOTHNESS_SAMPLES = 20_000, 50


def runs(study: Study) -> list[Run]:
    return [*local_regret.runs(study), *convex_regret.runs(study), *unequal.runs(study)]


def present(study: Study, rows: list[Row]) -> Presentation:
    smoothness = estimate(study)
    shown = Presentation()
    for part in (
        local_regret.present(study, rows, smoothness),
        convex_regret.present(study, rows),
        unequal.present(study, rows),
    ):
        shown.tables += part.tables
        shown.pictures += part.pictures
        shown.notes += part.notes
    columns = [
        Column("setting", "setting"),
        Column("row", "method"),
        Column("convex", "convex"),
        Column("nonconvex", "non-convex"),
    ]
    lines = [dict(zip(("setting", "row", "convex", "nonconvex"), line, strict=True)) for line in BOUNDS]
    caption = "Comparison of the regret bound (the paper's table)"
    shown.tables.append(Table("bounds", caption, columns, lines, measured=False))
    shown.notes.append(
        f"The smoothness L is estimated as {smoothness:.3g}: the steepest of {SMOOTHNESS_SAMPLES} samples, before "
        "training and after it. Theorem 1's D, G and σ² are maxima and means of what occurred. All are estimates."
    )
    return shown


def estimate(study: Study) -> float:
    """Return ``L`` as it is found before training, and after a short one."""
    import jax.numpy as jnp

    from anabranch.config import build as runner

    rounds = min(study.rounds, SMOOTHNESS_ROUNDS)
    config = study.config(IMNIST_DRIFT, Method("DLR", "Random"), learning_rate=0.003, rounds=rounds)
    plan = runner.build(config)
    x, y = convex_regret.samples(config, SMOOTHNESS_SAMPLES)
    models = (plan.model, runner.run(config).model)
    return max(estimate_smoothness(m, jnp.asarray(x), jnp.asarray(y), tuple(plan.stream.widths)) for m in models)


EXPERIMENT = Experiment(
    "regret",
    "Theorems 1 and 2, Table 6",
    "Dynamic local regret and convex regret against their bounds",
    runs,
    present,
    timed=False,
)
