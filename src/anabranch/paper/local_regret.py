"""Corollary 1: with ``l = √T``, ``η = T^(−1/4)`` and ``α → 1`` the dynamic local regret is ``O(T^(3/4))``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from anabranch.paper.bounds import Constants, local_regret_bound
from anabranch.paper.experiment import Column, Picture, Presentation, Row, Run, Table, Value, select
from anabranch.paper.growth import Exponent, fit_exponent, slopes
from anabranch.paper.loglog import growth_picture
from anabranch.paper.study import IMNIST_DRIFT, Method, Study

SEEDS = 3
P = 0.5
DECAY = 0.9999
"""Near 1: in the longest window, of 1,000 rounds, the oldest gradient has the weight 0.9."""
FACTORS = (1.0, 0.1)
"""``c`` in ``η = c T^(−1/4)``: the paper's 1, and a tenth, at which this model learns. Either has the same proved rate
of growth, as long as ``η ≤ 1/(2L)``."""
PROVED = 0.75
LONGEST = 10**6


def horizons(study: Study) -> list[int]:
    """Return ``T = 10^3 .. 10^6``, up to half of the study's rounds."""
    steps = [step * 10**k for k in range(3, 6) for step in (1, 3)] + [LONGEST]
    return [rounds for rounds in steps if 2 * rounds <= study.rounds] or [max(1, study.rounds // 2)]


def reach(study: Study) -> str:
    """For the caption: how far ``T`` goes, where that is not as far as usual."""
    longest = max(horizons(study))
    return "" if longest == LONGEST else f", T up to {longest:,} where the full size has {LONGEST:,}"


def runs(study: Study) -> list[Run]:
    return [
        Run(
            {"part": "local", "factor": factor, "T": rounds},
            study.config(
                IMNIST_DRIFT,
                Method("DLR", "Random"),
                seed=seed,
                rounds=rounds,
                learning_rate=factor * rounds**-0.25,
                update={"name": "DLR", "window": math.isqrt(rounds), "decay": DECAY},
                activation={"name": "Random", "p": P},
                measure_regret=True,
            ),
        )
        for factor in FACTORS
        for rounds in horizons(study)
        for seed in study.seeds_of(SEEDS)
    ]


def present(study: Study, rows: Sequence[Row], smoothness: float) -> Presentation:
    shown = Presentation()
    lines, curves = [], {}
    constants: list[dict[str, Value]] = []
    for factor in FACTORS:
        every = select(rows, part="local", factor=factor)
        some = [row for row in every if not _diverged(row)]
        if lost := [f"{row.labels['T']:,}" for row in every if _diverged(row)]:
            shown.notes.append(f"c = {factor:g}: left out, since a seed's loss diverged: T = {', '.join(lost)}.")
        lines += [_line(row, smoothness) for row in some]
        constants += [{"factor": factor, "T": row.labels["T"], **estimate(row, smoothness)._asdict()} for row in some]
        for kind in ("ideal", "applied"):
            points = [(int(row.labels["T"] or 0), [final(r, kind) for r in row.records]) for row in some]
            name = f"{kind}, η = {'' if factor == 1 else f'{factor:g} '}T^(−1/4)"
            curves[name] = points
            shown.notes.append(_growth_note(name, points))
    columns = [
        Column("factor", "c", "g"),
        Column("T", "T", ","),
        Column("window", "l"),
        Column("rate", "η = c T^(−1/4)", ".4f"),
        Column("ideal", "DLR_l(T), measured", ",.1f"),
        Column("applied", "applied, measured", ",.1f"),
        Column("scaled", "DLR_l(T) / T^(3/4)", ".4f"),
        Column("error", "accumulated error", ".4f"),
        Column("small", "η ≤ 1/(2L)? (estimate)"),
        Column("bound", "bound (of estimates)", ".3g"),
    ]
    caption = f"Dynamic local regret of DLR-Random, p = {P}, on drifting i-MNIST, mean of the seeds{reach(study)}"
    shown.tables.append(Table("local-regret", caption, columns, lines, own_rounds=True))
    estimates = [
        Column("factor", "c", "g"),
        Column("T", "T", ","),
        Column("loss", "D, largest loss", ".3g"),
        Column("smoothness", "L", ".3g"),
        Column("variance", "σ²", ".3g"),
        Column("gradient", "G, largest gradient", ".3g"),
    ]
    title = f"The constants of Theorem 1 as these runs show them: estimates, which the bounds above take with p = {P}"
    title += reach(study)
    shown.tables.append(Table("local-constants", title, estimates, constants, own_rounds=True))
    picture = growth_picture(curves, PROVED, "Σ squared norm")
    shown.pictures.append(Picture("local-regret", caption, picture, own_rounds=True))
    return shown


def final(record: dict, kind: str) -> float:
    """What a measured sum came to in the end."""
    return float(record["regret"][kind][-1])


def _growth_note(name: str, points: list[tuple[int, list[float]]]) -> str:
    exponent: Exponent | None = fit_exponent(
        [t for t, sums in points for _ in sums], [each for _, sums in points for each in sums]
    )
    if exponent is None:
        return f"{name}: no exponent, for want of points; proved: at most {PROVED}."
    between = slopes([(t, fmean(sums)) for t, sums in points])
    return (
        f"{name}: fitted exponent {exponent}, were it a power law; between one T and the next {min(between):.2f} to "
        f"{max(between):.2f}, at last {between[-1]:.2f}; proved: at most {PROVED}."
    )


def _line(row: Row, smoothness: float) -> dict[str, Value]:
    rounds = int(row.labels["T"] or 0)
    rate = row.records[0]["config"]["learning_rate"]
    ideal = fmean(final(record, "ideal") for record in row.records)
    return {
        "factor": row.labels["factor"],
        "T": rounds,
        "window": math.isqrt(rounds),
        "rate": rate,
        "ideal": ideal,
        "applied": fmean(final(record, "applied") for record in row.records),
        "scaled": ideal / rounds**PROVED,
        "error": fmean(record["accumulated_error"] for record in row.records),
        "small": "yes" if rate <= 1 / (2 * smoothness) else "no",
        "bound": local_regret_bound(rounds, math.isqrt(rounds), rate, P, P, estimate(row, smoothness)),
    }


def estimate(row: Row, smoothness: float) -> Constants:
    """Return the constants of Theorem 1 as a run shows them: maxima of what occurred, which a true bound may exceed.

    ``σ²`` is the mean of ``‖∇f^t‖²``, which is the variance where the true gradient is small.
    """
    regrets = [record["regret"] for record in row.records]
    return Constants(
        loss=max(regret["largest_loss"] for regret in regrets),
        smoothness=smoothness,
        variance=fmean(regret["mean_squared_gradient"] for regret in regrets),
        gradient=max(regret["largest_gradient"] for regret in regrets),
    )


def _diverged(row: Row) -> bool:
    return any(record["diverged"] is not None for record in row.records)
