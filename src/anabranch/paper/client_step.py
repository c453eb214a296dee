"""Is DLR anything but a smaller client step? DLR, and what would do the same if it were not, at common learning rates.

A gradient that client ``m`` pushes is applied with weight 1 in its own round and with weight ``α^i`` in each of the
next rounds in which the client is activated, which has probability ``p_m``. All weights together are
``ρ_m = (1 + p_m (W − 1))/W``, where OGD's are 1. So DLR makes a client's step smaller by the factor ``ρ_m``, and the
server's by none. If that is all that matters, OGD with client rates ``η ρ_m`` does what DLR does, and DLR with client
rates ``η/ρ_m`` does what OGD does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from anabranch.paper.arms import arm_table
from anabranch.paper.experiment import Experiment, Picture, Presentation, Row, Run, select
from anabranch.paper.figures import COLOURS, error_curves
from anabranch.paper.study import ACTIVATIONS, DECAY, IMNIST_DRIFT, UPDATES, WINDOW, Method, Study

FIRST_RATES, OTHER_RATES = (0.015, 0.01, 0.003), (0.0125, 0.006)
RATES = tuple(sorted(FIRST_RATES + OTHER_RATES))
SEEDS = 3
WEIGHTS = (1 - DECAY**WINDOW) / (1 - DECAY)
"""``W``"""
ACTIVATED = {"Full": (1.0,) * 4, "Random": (0.5,) * 4, "Event": (0.075, 0.8, 0.768, 0.178)}
"""``p_m`` of each client: how often it is activated, under Event as the committed trials have it."""


class Arm(NamedTuple):
    """An update, with the client rates that it is given."""

    update: dict[str, Any]
    factor: Callable[[float], float] = lambda p: 1.0
    """Of client ``m``'s learning rate, given ``p_m``; the server's rate has the factor 1."""
    partial: bool = False
    """Whether it is another arm's equal when all clients are active, so that it is left out there."""


def total_weight(p: float) -> float:
    """Return ``ρ_m``.

    >>> round(total_weight(0.5), 3), total_weight(1.0)
    (0.562, 1.0)
    """
    return (1 + p * (WEIGHTS - 1)) / WEIGHTS


_ACTIVE = {"name": "ActiveDLR", "window": WINDOW, "decay": DECAY}
ARMS: dict[str, Arm] = {
    "OGD": Arm(UPDATES["OGD"]),
    "DLR": Arm(UPDATES["DLR"]),
    "OGD, client rates × ρ": Arm(UPDATES["OGD"], total_weight, partial=True),
    "DLR, client rates / ρ": Arm(UPDATES["DLR"], lambda p: 1 / total_weight(p), partial=True),
    "DLR by Algorithm 3": Arm({**UPDATES["DLR"], "client_window": False}),
    "DLR by the letter of Algorithm 1": Arm(UPDATES["DLR"], lambda p: 1 / WEIGHTS),
    "momentum": Arm({"name": "Momentum", "decay": DECAY}),
    "DLR without zeros": Arm(_ACTIVE, partial=True),
    "DLR without zeros, weights 1/p": Arm(_ACTIVE, lambda p: 1 / p, partial=True),
}
DRAWN_RATE = FIRST_RATES[0]
DRAWN = {
    "OGD": COLOURS[0],
    "DLR, client rates / ρ": COLOURS[5],
    "DLR": COLOURS[2],
    "OGD, client rates × ρ": COLOURS[3],
    "DLR by Algorithm 3": COLOURS[4],
}
"""The arms of the picture, with their colours; OGD and DLR have those of all pictures."""


def client_rates(rate: float, activation: str, factor: Callable[[float], float]) -> float | tuple[float, ...]:
    """Return the learning rates of an arm, the server's first, or one number where all are the same.

    They have six digits: a power may differ in its last digit from machine to machine, and with it a trial's key.
    """
    rates = (rate, *(float(f"{rate * factor(p):.6g}") for p in ACTIVATED[activation]))
    return rate if set(rates) == {rate} else rates


def _cells(study: Study) -> Iterator[tuple[float, str, int]]:
    """Yield learning rates, activations and seeds; those that decide come first."""
    first, *others = study.seeds_of(SEEDS)
    fastest, fast, small = ([rate] for rate in FIRST_RATES)
    groups = [(fastest + fast, [first]), (fastest, others), (small, [first]), (fast + small, others)]
    for rates, seeds in groups:
        for seed in seeds:
            yield from ((rate, activation, seed) for rate in rates for activation in ("Random", "Event"))
    for some, activations in ((FIRST_RATES, ("Full",)), (OTHER_RATES, ("Random", "Event", "Full"))):
        for seed in study.seeds_of(SEEDS):
            yield from ((rate, activation, seed) for rate in some for activation in activations)


def _runs(study: Study) -> list[Run]:
    return [
        Run(
            {"activation": activation, "rate": rate, "arm": name},
            study.config(
                IMNIST_DRIFT,
                Method("", activation),
                seed=seed,
                learning_rate=client_rates(rate, activation, arm.factor),
                update=arm.update,
                activation=ACTIVATIONS[activation],
            ),
        )
        for rate, activation, seed in _cells(study)
        for name, arm in ARMS.items()
        if not (arm.partial and activation == "Full")
    ]


def _picture(rows: Sequence[Row]) -> Picture:
    """Draw the arms where steps are longest: a panel for each activation, with the arms that were run."""
    panels = {}
    for activation in ACTIVATIONS:
        some = {str(row.labels["arm"]): row for row in select(rows, activation=activation, rate=DRAWN_RATE)}
        panels[activation] = [(arm, some[arm]) for arm in DRAWN if arm in some and some[arm].records]
    caption = f"Run-time error on drifting i-MNIST at the learning rate {DRAWN_RATE:g} for all arms"
    return Picture("client-step", caption, error_curves({key: each for key, each in panels.items() if each}, DRAWN))


def _present(study: Study, rows: list[Row]) -> Presentation:
    seeds = len(study.seeds_of(SEEDS))
    shown = Presentation()
    for activation in ACTIVATIONS:
        some = select(rows, activation=activation)
        caption = f"Accumulated error on drifting i-MNIST under {activation} at common learning rates"
        shown.tables.append(
            arm_table(f"client-step-{activation.lower()}", caption, some, seeds, references=("OGD", "DLR"))
        )
    if any(row.records for row in select(rows, rate=DRAWN_RATE)):
        shown.pictures.append(_picture(rows))
    rho = ", ".join(f"{total_weight(p):.3f}" for p in ACTIVATED["Event"])
    shown.notes.append(
        f"ρ is {total_weight(0.5):.3f} for every client under Random, and {rho} under Event. The server's learning "
        "rate is that of the column in every arm. Under Full ρ and p are 1, so four arms are left out."
    )
    shown.notes.append(
        "A difference is the mean over the seeds that both arms have, each seed by itself, with its 95 % interval by "
        "Student's t. The momentum is w ← w − η (1 − 0.95) v with v ← 0.95 v + g; a passive client keeps its v."
    )
    return shown


EXPERIMENT = Experiment(
    "client-step",
    "not in the paper",
    "DLR and what would do the same if DLR were a smaller client step and nothing else",
    _runs,
    _present,
    timed=False,
)
