"""The learning curves of a few trials or runs in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.paper.figures import COLOURS, error_label, recent_error, style
from anabranch.report.page import Picture, picture
from anabranch.simulation.output import png

MOST_LINES = len(COLOURS)
LONGEST = 90
"""Letters of a line's name."""


def draw_curves(curves: Mapping[str, Mapping[str, Sequence[Any]]], caption: str) -> Picture | None:
    """Return the error rates as the rounds go by; None where no curve has a point.

    Args:
        curves: by name, at most `MOST_LINES`; each has ``rounds`` and ``run_time_error``.
    """
    from matplotlib.figure import Figure

    drawn = {name: recent_error({"curve": curve}) for name, curve in curves.items() if len(curve["rounds"])}
    if not drawn:
        return None
    figure = Figure(figsize=(8, 4 + 0.2 * len(drawn)), dpi=130, layout="constrained")
    axes = figure.subplots()
    for (name, (rounds, errors)), colour in zip(drawn.items(), COLOURS, strict=False):
        label = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        marker = "o" if len(rounds) == 1 else ""
        axes.plot(rounds, errors, color=colour, linewidth=1.6, marker=marker, label=label.replace("$", r"\$"))
    axes.set_xlim(left=0)
    axes.set_ylim(0, min(1.0, 1.08 * max(0.05, *(max(errors) for _, errors in drawn.values()))))
    axes.set_xlabel("rounds")
    axes.set_ylabel(error_label([rounds for rounds, _ in drawn.values()]))
    style(axes)
    figure.legend(loc="outside lower left", frameon=False, fontsize=8.5)
    return picture(png(figure), caption)
