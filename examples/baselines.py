"""What a federation is compared with, on the same rows and with labels as late; and the table and picture of it all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import anabranch as ab
from anabranch.config import party as partyfile
from anabranch.paper.figures import COLOURS, style
from anabranch.simulation.output import png
from anabranch.sources.features import Features

UPDATE = ab.DLR(window=10, decay=0.95)
HIDDEN, EMBEDDING = (16,), 8
"""These are the federation's."""
RATES = (0.003, 0.01, 0.03)
"""Learning rates, of which each baseline has the best, as seen afterwards; the federation's parties have 0.01."""
PASSES = 20
"""Of the offline model through the first half."""


class Errors(NamedTuple):
    """How many predictions were wrong by and by."""

    rounds: NDArray
    """(n,): how many were made, from 0 on."""
    wrong: NDArray
    """(n,): how many of them were wrong; NaN where that is not known."""

    def rate(self, begin: NDArray | float, end: NDArray | float) -> NDArray:
        """The share of wrong ones in rounds ``begin .. end − 1``."""
        first, last = (np.interp(each, self.rounds, self.wrong) for each in (begin, end))
        return (last - first) / (np.asarray(end) - begin)


def _errors(wrong: NDArray) -> Errors:
    return Errors(np.arange(len(wrong) + 1), np.append(0, np.cumsum(wrong)))


def features(party: Path, rows: Mapping[str, NDArray], there: NDArray | None = None) -> NDArray:
    """The features (T, d_m) that a client makes of its columns, by the rules of its file; zeros where it has none.

    Args:
        party: the client's file.
        rows: (T,), its columns by name.
        there: (T,), where it has them; None is everywhere.
    """
    columns = [each.column for each in partyfile.load(party).features.columns]
    rules = Features(columns)
    state, found = rules.begin(), np.zeros((len(rows[columns[0].name]), rules.width))
    for row in range(len(found)) if there is None else np.flatnonzero(there):
        state, found[row] = rules(state, {each.name: rows[each.name][row] for each in columns})
    return found


class Late(ab.Delay):
    """Labels that are late by as many events as is known beforehand.

    Args:
        delays: (T,), of each event.
    """

    def __init__(self, delays: NDArray) -> None:
        self._delays = np.asarray(delays, np.int64)
        self.most = int(self._delays.max())

    def draw(self, seed: int, first: int, n: int) -> NDArray:
        return self._delays[np.minimum(np.arange(first, first + n), len(self._delays) - 1)]


def baselines(parts: Mapping[str, NDArray], labels: NDArray, classes: int, delays: NDArray) -> dict[str, Errors]:
    """The errors of each baseline.

    Args:
        parts: (T, d_m), the features of each client.
        labels: (T,), whole numbers from 0.
        classes: how many there are.
        delays: (T,), how many events later each label is known; no label overtakes another.
    """
    known = np.searchsorted(np.arange(len(labels)) + np.maximum(delays, 1), np.arange(len(labels)), side="right")
    counts = np.cumsum(np.vstack([np.zeros(classes), np.eye(classes)[labels]]), axis=0)
    late = Late(delays) if delays.any() else 0
    found = {
        "the most frequent label so far": _errors(counts[known].argmax(axis=1) != labels),
        "the last label repeated": _errors(np.append(0, labels)[known] != labels),
    }
    for name, x in parts.items():
        _say(f"{name} alone")
        found[f"{name} alone"] = _online(_model(x, classes, 1), x, labels, classes, late)
    x = np.hstack([*parts.values()])
    pooled = _model(x, classes, len(parts))
    _say("all features in one place")
    found["all features in one place"] = _online(pooled, x, labels, classes, late)
    found["all features in one place, offline"] = _offline(pooled, x, labels, classes)
    return found


def _say(name: str) -> None:
    """A line of progress: each takes some seconds."""
    print(f"comparing with {name}", file=sys.stderr, flush=True)


def _model(x: NDArray, classes: int, wider: int) -> ab.SplitModel:
    """Of one client; ``wider``: how many clients' embeddings its embedding is as wide as."""
    return ab.models.mlp([x.shape[1]], classes, hidden=HIDDEN, embedding=EMBEDDING * wider, server=HIDDEN)


def _online(model: ab.SplitModel, x: NDArray, labels: NDArray, classes: int, late: int | ab.Delay) -> Errors:
    """Predicts each row, and learns from it once its label is there."""
    return _best(lambda rate: _errors(_train(model, x, labels, classes, rate, label_delay=late).errors))


def _offline(model: ab.SplitModel, x: NDArray, labels: NDArray, classes: int) -> Errors:
    """Learns the first half of the rows in many passes, and predicts the second."""
    half = len(x) // 2
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(half) for _ in range(PASSES)])

    def tried(rate: float) -> Errors:
        trained = _train(model, x[rows], labels[rows], classes, rate).model
        after = _errors(_train(trained, x[half:], labels[half:], classes, 0.0).errors)
        return Errors(np.arange(len(x) + 1), np.append(np.full(half, np.nan), after.wrong))

    return _best(tried)


def _best(of: Callable[[float], Errors]) -> Errors:
    found = []
    for rate in RATES:
        with contextlib.suppress(ab.Diverged):
            found.append(of(rate))
    return min(found, key=lambda errors: errors.wrong[-1])


def _train(
    model: ab.SplitModel, x: NDArray, labels: NDArray, classes: int, rate: float, label_delay: int | ab.Delay = 0
) -> ab.Result:
    stream = ab.streams.from_arrays([x], labels, classes)
    return ab.simulate(model, stream, update=UPDATE, learning_rate=rate, label_delay=label_delay, keep_errors=True)


def table(found: Mapping[str, Errors], rows: int) -> str:
    """Markdown: the error of each on all rows and on the second half of them."""
    lines = ["| error of predictions | all rows | second half |", "|---|---:|---:|"]
    for name, errors in found.items():
        rates = [errors.rate(0, rows), errors.rate(rows // 2, rows)]
        shown = ["–" if np.isnan(rate) else f"{100 * rate:.2f} %" for rate in rates]
        lines.append(f"| {name} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines) + "\n"


class Panel(NamedTuple):
    """One part of a picture."""

    title: str
    found: Mapping[str, Errors]
    """By name; the first one is drawn thick."""
    rows: int
    """How many there are."""
    marks: Mapping[str, int] = MappingProxyType({})
    """Rows at which something happens, by what that is."""


def draw(path: Path, *panels: Panel) -> None:
    """A PNG of the errors as they go by, each point of a fortieth of the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2 * len(panels)), dpi=100, layout="constrained")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        width = max(1, panel.rows // 40)
        ends = np.arange(width, panel.rows + 1, max(1, width // 4))
        for i, ((name, errors), colour) in enumerate(
            zip(panel.found.items(), COLOURS[: len(panel.found)], strict=True)
        ):
            share = 100 * errors.rate(ends - width, ends)
            axes.plot(ends, share, color=colour, linewidth=1.3 if i else 2.6, zorder=2 if i else 3, label=name)
        for text, row in panel.marks.items():
            if row >= panel.rows:  # it happens later
                continue
            axes.axvline(row, color="#666666", linestyle=":", linewidth=1.2)
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "top", "fontsize": 9}
            axes.annotate(text, (row, 1.0), xycoords=("data", "axes fraction"), **place)
        axes.set_xlim(0, panel.rows)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("events")
        axes.set_ylabel(f"% wrong, of {width:,} events")
        axes.set_title(panel.title, loc="left", fontsize=10)
        style(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", frameon=False, fontsize=8.5, ncols=2)
    path.write_bytes(png(figure))
