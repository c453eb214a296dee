"""Theorem 2: with a convex loss and ``η_t = D/(G√t)``, OGD's regret against the best fixed model is ``O(√T)``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.config.run import Config
from anabranch.paper.bounds import convex_regret_bound
from anabranch.paper.experiment import Column, Picture, Presentation, Row, Run, Table, Value, select
from anabranch.paper.growth import slopes
from anabranch.paper.hindsight import Best, best_fixed_model
from anabranch.paper.local_regret import horizons, reach
from anabranch.paper.loglog import growth_picture
from anabranch.paper.study import IMNIST, TUNING_SEED, Method, Study
from anabranch.sweep.trial import Record

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Full": {"name": "Full"},
    "Random": {"name": "Random", "p": 0.5},
    "Event": {"name": "Event", "threshold": 0.0},
}
POOL = 7
"""7 × 7 pixels make one: 16 features, all of which vary, so that the best fixed model is not far from 0."""
CLASSES = 10
PILOT_ROUNDS = 10_000


def runs(study: Study) -> list[Run]:
    diameter, gradient = constants(study)
    longest = max(horizons(study))
    return [
        Run(
            {"part": "convex", "activation": name, "D": diameter, "G": gradient},
            _config(
                study, seed, longest, diameter / gradient, activation=activation, measure_regret=True, report_every=1000
            ),
        )
        for name, activation in ACTIVATIONS.items()
        for seed in study.seeds_of(1)
    ]


def constants(study: Study) -> tuple[float, float]:
    """Return ``D`` and ``G``, from a stream that no run sees.

    ``D`` is estimated: the distance from where every run begins, 0, to the best fixed model of 10,000 rounds. ``G``
    is ``√2 max‖(x, 1)‖``, which no gradient of a sample seen exceeds, since ``‖softmax − onehot‖ ≤ √2``. Both have as
    few digits as every machine finds alike: the solver's fifth depends on the processor.
    """
    if study.dry:
        return 1.0, 1.0
    x, y = samples(_config(study, TUNING_SEED, PILOT_ROUNDS, 0.0), PILOT_ROUNDS)
    best = best_fixed_model(x, y, CLASSES)
    largest = math.sqrt(2 * (float((x.astype(np.float64) ** 2).sum(axis=1).max()) + 1))
    return float(f"{np.linalg.norm(best.weights):.2g}"), math.ceil(100 * largest) / 100


def present(study: Study, rows: Sequence[Row]) -> Presentation:
    some = select(rows, part="convex")
    horizon = horizons(study)
    best = {seed: _best(study, seed, horizon) for seed in study.seeds_of(1)}

    shown, curves = Presentation(), {}
    lines: list[dict[str, Value]] = []
    for row in some:
        name = f"OGD-{row.labels['activation']}"
        losses = {record["config"]["seed"]: _losses(record) for record in row.records}
        rate = min(fmean(rates) for rates in zip(*(record["activation_rate"] for record in row.records), strict=True))
        diameter, gradient = float(row.labels["D"] or 0), float(row.labels["G"] or 0)
        curves[name] = [(t, [losses[seed][t] - best[seed][t].loss for seed in losses]) for t in horizon]
        # Of one run: no interval can be had from points that are not independent.
        between = slopes([(t, fmean(regrets)) for t, regrets in curves[name]])
        found = f"{min(between):.2f} to {max(between):.2f}, at last {between[-1]:.2f}" if between else "none"
        shown.notes.append(f"Regret of {name}, its exponent from one T to the next: {found}; proved: at most 0.5.")
        for rounds, regrets in curves[name]:
            lines.append(
                {
                    "method": name,
                    "T": rounds,
                    "loss": fmean(losses[seed][rounds] for seed in losses) / rounds,
                    "best": fmean(best[seed][rounds].loss for seed in losses) / rounds,
                    "regret": fmean(regrets),
                    "scaled": fmean(regrets) / math.sqrt(rounds),
                    "bound": convex_regret_bound(rounds, diameter, gradient, max(rate, 1e-12)),
                }
            )
    slope = max(each.slope for found in best.values() for each in found.values())
    shown.notes.append(
        f"η_t = D/(G√t) with D = {some[0].labels['D']:.4g} and G = {some[0].labels['G']:.4g}, both estimated from "
        f"{PILOT_ROUNDS:,} rounds of another stream. "
        f"The best fixed models are solved to a mean gradient of norm {slope:.1e} or less."
    )
    columns = [
        Column("method", "method"),
        Column("T", "T", ","),
        Column("loss", "mean loss", ".4f"),
        Column("best", "best fixed model", ".4f"),
        Column("regret", "regret R_T", ",.1f"),
        Column("scaled", "R_T / √T", ".3f"),
        Column("bound", "bound (of estimates)", ",.0f"),
    ]
    caption = "Regret of linear models against the best fixed one in hindsight, stationary i-MNIST of 4 × 4 pixels"
    caption += (", one seed" if study.seeds is None else "") + reach(study)
    shown.tables.append(Table("convex-regret", caption, columns, lines, own_rounds=True))
    shown.pictures.append(Picture("convex-regret", caption, growth_picture(curves, 0.5, "regret"), own_rounds=True))
    return shown


def _best(study: Study, seed: int, horizon: Sequence[int]) -> dict[int, Best]:
    """Return the best fixed models of a seed's stream, by how many of its rounds they are of."""
    x, y = samples(_config(study, seed, max(horizon), 0.0), max(horizon))
    return {rounds: best_fixed_model(x[:rounds], y[:rounds], CLASSES) for rounds in horizon}


def _losses(record: Record) -> dict[int, float]:
    """Return the total loss of a run after so many rounds."""
    return dict(zip(record["regret"]["rounds"], record["regret"]["loss"], strict=True))


def samples(config: Config, rounds: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the first rounds of a configuration's stream."""
    from anabranch.config import build as runner

    x, y, count = [], [], 0
    for block in runner.build(config).stream.blocks():
        x.append(np.asarray(block.x, np.float32))
        y.append(np.asarray(block.y, np.int32))
        count += len(block.y)
        if count >= rounds:
            break
    return np.concatenate(x)[:rounds], np.concatenate(y)[:rounds]


def _config(study: Study, seed: int, rounds: int, rate: float, **changes: Any) -> Config:
    plain = study.config(IMNIST, Method("OGD", "Full"), seed=seed, learning_rate=rate, rounds=rounds)
    stream = plain.stream.model_dump(exclude_none=True) | {"pool": POOL}
    return study.config(
        IMNIST,
        Method("OGD", "Full"),
        seed=seed,
        learning_rate=rate,
        rounds=rounds,
        **{"model": {"name": "linear"}, "stream": stream, "learning_rate_power": 0.5, **changes},
    )
