"""Theorem 1's factor ``p_max/p_min``: clients that are activated with unequal probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from anabranch.paper.experiment import Column, Picture, Presentation, Row, Run, Table, Value, select
from anabranch.paper.local_regret import final
from anabranch.paper.study import IMNIST_DRIFT, Method, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 3
MEAN_P = 0.5
RATIOS = (1, 2, 4, 9, 19)
"""``p_max/p_min``: two clients have ``p_max``, two ``p_min``, and the mean is 0.5 always."""
SHARE = 20
"""A twentieth of the study's rounds."""
RATE = 0.003


def probabilities(ratio: float) -> tuple[float, ...]:
    """Of the four clients.

    >>> probabilities(4)
    (0.8, 0.2, 0.8, 0.2)
    """
    least = 2 * MEAN_P / (1 + ratio)
    return (ratio * least, least, ratio * least, least)


def runs(study: Study) -> list[Run]:
    return [
        Run(
            {"part": "unequal", "ratio": ratio},
            study.config(
                IMNIST_DRIFT,
                Method("DLR", "Random"),
                seed=seed,
                rounds=max(1, study.rounds // SHARE),
                learning_rate=RATE,
                activation={"name": "Random", "p": probabilities(ratio)},
                measure_regret=True,
            ),
        )
        for ratio in RATIOS
        for seed in study.seeds_of(SEEDS)
    ]


def present(study: Study, rows: Sequence[Row]) -> Presentation:
    some = select(rows, part="unequal")
    equal = _regret(select(some, ratio=1)[0])
    columns = [
        Column("ratio", "p_max/p_min"),
        Column("p", "probabilities"),
        Column("regret", "DLR_l(T), measured", ",.1f"),
        Column("relative", "relative to equal ones", ".3f"),
        Column("bound", "factor in the bound's last term"),
        Column("error", "accumulated error", ".4f"),
    ]
    lines: list[dict[str, Value]] = [
        {
            "ratio": row.labels["ratio"],
            "p": ", ".join(f"{p:.3g}" for p in row.records[0]["config"]["activation"]["p"]),
            "regret": _regret(row),
            "relative": _regret(row) / equal,
            "bound": row.labels["ratio"],
            "error": fmean(record["accumulated_error"] for record in row.records),
        }
        for row in some
    ]
    rounds = max(1, study.rounds // SHARE)
    caption = f"DLR-Random with unequal probabilities, learning rate {RATE}, {rounds:,} rounds"
    return Presentation(
        [Table("unequal", caption, columns, lines, own_rounds=True)],
        [Picture("unequal", caption, _picture([_regret(row) / equal for row in some]), own_rounds=True)],
    )


def _regret(row: Row) -> float:
    return fmean(final(record, "ideal") for record in row.records)


def _picture(relative: Sequence[float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot(RATIOS, relative, "o-", color="#b8352f", label="measured regret")
    axes.plot(RATIOS, RATIOS, "--", color="0.45", label="the bound's factor p_max/p_min")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(RATIOS, [str(ratio) for ratio in RATIOS])
    axes.minorticks_off()
    axes.set_xlabel("p_max/p_min")
    axes.set_ylabel("relative to equal probabilities")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5)
    return figure
