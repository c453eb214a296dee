"""The paper's pictures: run-time error rates as the rounds go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anabranch.paper.experiment import Row
from anabranch.simulation.metrics import RUN_TIME_WINDOW
from anabranch.sweep.trial import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4c6faf", "#d98c2b", "#b8352f", "#3f8f6b", "#7d5ba6", "#8a8a8a")
"""Of the lines, in order; blue, orange and red are OGD, SLR and DLR."""


def error_curves(panels: Mapping[str, Sequence[tuple[str, Row]]], colours: Mapping[str, str] | None = None) -> Figure:
    """Draw a panel for each title with a line for each row: the mean of its seeds, the range of all seeds shaded.

    Args:
        panels: by title, the lines' names and rows.
        colours: by a line's name; `COLOURS` in their order without it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.2, 4.0 * len(panels)), 3.7), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for each, (title, lines) in zip(axes, panels.items(), strict=True):
        chosen = COLOURS if colours is None else [colours[name] for name, _ in lines]
        for (name, row), colour in zip(lines, chosen, strict=False):
            _line(each, name, row, colour)
        each.set_title(title, loc="left", fontsize=10, fontweight="bold")
        each.set_xlabel("rounds")
        each.legend(frameon=False, fontsize=8.5)
        style(each)
    rows = [row for lines in panels.values() for _, row in lines]
    axes[0].set_ylabel(error_label([recent_error(record)[0] for row in rows for record in row.records]))
    axes[0].set_ylim(0, _top(rows))
    return figure


def error_label(rounds: Iterable[NDArray[np.float64]]) -> str:
    """What the errors of `recent_error` are, of curves with these rounds."""
    short = all(len(each) == 0 or each[-1] <= RUN_TIME_WINDOW for each in rounds)
    return "error rate between two points" if short else "run-time error rate"


def recent_error(record: Record) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rounds of a curve's points, and the mean error between each and the one before.

    A run-time error rate is the mean of the last 20,000 rounds, which says little about a run that has fewer. There a
    last point of few rounds is left out: it would be little but chance.
    """
    rounds = np.asarray(record["curve"]["rounds"], float)
    errors = np.asarray(record["curve"]["run_time_error"], float)
    if len(rounds) and rounds[-1] <= RUN_TIME_WINDOW:  # until then the rate is that of all rounds so far
        between = np.diff(rounds, prepend=0)
        errors = np.diff(rounds * errors, prepend=0) / between
        if between[-1] < between[0] / 2:
            rounds, errors = rounds[:-1], errors[:-1]
    return rounds, errors


def style(axes: Axes) -> None:
    """What all axes have in common."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def short(value: float) -> str:
    """Return a round number in few letters.

    >>> short(1_500_000), short(20_000), short(50)
    ('1.5 M', '20 k', '50')
    """
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _line(axes: Axes, name: str, row: Row, colour: str) -> None:
    curves = [recent_error(record) for record in row.records]
    points = min(len(rounds) for rounds, _ in curves)
    if points == 0:
        return
    errors = np.stack([errors[:points] for _, errors in curves])
    rounds = curves[0][0][:points]
    diverged = any(record["diverged"] is not None for record in row.records)
    label = f"{name} (diverged)" if diverged else name
    axes.plot(rounds, errors.mean(axis=0), color=colour, linewidth=1.5, label=label)
    if len(curves) > 1:
        axes.fill_between(rounds, errors.min(axis=0), errors.max(axis=0), color=colour, alpha=0.2, linewidth=0)


def _top(rows: Sequence[Row]) -> float:
    """Above all lines, their first points excepted, which start at the error of guessing."""
    highest = [0.05]
    for row in rows:
        for record in row.records:
            errors = recent_error(record)[1]
            highest += errors[max(1, len(errors) // 20) :].tolist()
    return min(1.0, 1.08 * max(highest))
