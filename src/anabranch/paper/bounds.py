"""The paper's two regret bounds as functions of their constants, and its table of bounds."""

from __future__ import annotations

import math
from typing import NamedTuple


class Constants(NamedTuple):
    """What the bounds depend on. Of a real run they can only be estimated."""

    loss: float
    """``D`` of the local regret: no loss is greater (Assumption 5)."""
    smoothness: float
    """``L``: the gradient's Lipschitz constant (Assumption 1)."""
    variance: float
    """``σ²``: of the stochastic gradient (Assumption 3)."""
    gradient: float
    """``G``: no gradient's norm is greater (Assumption 4)."""


def local_regret_bound(
    rounds: int, window: int, learning_rate: float, least: float, greatest: float, constants: Constants
) -> float:
    """Theorem 1, for ``α → 1``, where ``W`` is the window length.

    ``DLR_l(T) ≤ T/(W p_min) (8D/η + 2Lη p_max σ²) + 2TLη (p_max/p_min) G²``

    Args:
        least: ``p_min``, of the clients' activation probabilities.
        greatest: ``p_max``.

    >>> round(local_regret_bound(100, 10, 0.1, 0.5, 0.5, Constants(1, 1, 1, 1)))
    1622
    """
    loss, smoothness, variance, gradient = constants
    first = 8 * loss / learning_rate + 2 * smoothness * learning_rate * greatest * variance
    missing = 2 * rounds * smoothness * learning_rate * greatest / least * gradient**2
    return rounds / (window * least) * first + missing


def convex_regret_bound(
    rounds: int, diameter: float, gradient: float, least: float, smoothness: float = 0.0, delay: int = 0
) -> float:
    """Theorem 2: ``R_T ≤ (3G²D + 4D³ + 2L²τ²G²D) / (2G p_min) √T``, with ``η_t = D/(G√t)``.

    Args:
        diameter: ``D``: no two parameters are further apart (Assumption 7).
        gradient: ``G``.
        least: ``p_min``.
        smoothness: ``L``, which counts where there is a delay only.
        delay: ``τ``; a simulator has none.

    >>> convex_regret_bound(100, 1, 1, 0.5)
    70.0
    """
    constant = 3 * gradient**2 * diameter + 4 * diameter**3 + 2 * (smoothness * delay * gradient) ** 2 * diameter
    return constant / (2 * gradient * least) * math.sqrt(rounds)


BOUNDS = (
    ("standalone", "OGD (Hazan, 2016)", "O(√T)", None),
    ("standalone", "SLR (Hazan et al., 2017)", None, "SLR_w(T) ≤ T/w (8βM + σ²)"),
    ("standalone", "DLR (Aydore et al., 2019)", None, "DLR_w(T) ≤ T/W (8βM + σ²)"),
    ("online VFL", "online VFL (Wang and Xu, 2023)", "O(√T)", None),
    (
        "online VFL",
        "event-driven online VFL (the paper)",
        "O(√T)",
        "DLR_w(T) ≤ T/W · p_max/p_min · (8βM/p_max + 2σ² + 2WG)",
    ),
)
"""The paper's Table 6: setting, method, bound for convex and for non-convex models. ``M`` bounds the loss there."""
