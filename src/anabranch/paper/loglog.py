"""Pictures of growth: sums against the number of rounds, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.paper.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def growth_picture(curves: Mapping[str, Sequence[tuple[int, Sequence[float]]]], proved: float, ylabel: str) -> Figure:
    """Return a line through the means and a dot for each seed; beside them the slope that was proved, and slope 1.

    Args:
        curves: by name, ``T`` and the sums of the seeds.
        proved: the exponent.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    highest: tuple[list[int], float] = ([], 0.0)
    for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
        positive = [(t, [each for each in sums if each > 0]) for t, sums in points]
        points = [(t, sums) for t, sums in positive if sums]
        if not points:
            continue
        rounds = [t for t, _ in points]
        means = [sum(sums) / len(sums) for _, sums in points]
        axes.plot(rounds, means, color=colour, linewidth=1.6, label=name)
        for t, sums in points:
            axes.plot([t] * len(sums), sums, "o", color=colour, markersize=3, alpha=0.6)
        if means[0] > highest[1]:
            highest = rounds, means[0]
    rounds, start = highest
    if rounds:
        for power, style in ((proved, "--"), (1.0, ":")):
            line = [1.6 * start * (t / rounds[0]) ** power for t in rounds]
            axes.plot(rounds, line, style, color="0.45", linewidth=1.2, label=f"slope {power:g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("T, rounds")
    axes.set_ylabel(ylabel)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5)
    return figure
