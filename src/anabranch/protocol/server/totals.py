"""Adds up what the server has played: errors, activations, who was missing, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party import Rule
from anabranch.protocol.actions import Played
from anabranch.protocol.messages import Rounds
from anabranch.protocol.server.missing import HOW
from anabranch.simulation.metrics import Curve, Prequential
from anabranch.simulation.traffic import Traffic, add_rounds, no_traffic

AT_ONCE = 500
"""Rounds that are added together: one at a time would cost more than playing them."""


class Ledger:
    """The totals of a federation's rounds.

    Args:
        rule: the update and the dtype of the wire.
        widths: ``e_m`` of each client.
        report_every: a point of the curve after so many rounds.
    """

    def __init__(self, rule: Rule, widths: Sequence[int], report_every: int) -> None:
        self._rule, self._widths = rule, tuple(widths)
        self._prequential = Prequential(report_every)
        self._activations = np.zeros(len(widths), np.int64)
        self._how = np.zeros((len(widths), len(HOW)), np.int64)
        self._skipped = 0
        self._traffic = no_traffic(len(widths))
        self._played = 0
        self._waiting: list[tuple[NDArray[np.bool_], Rounds, bool | None]] = []
        """Of each round that is not added yet: who was activated, who was missing, and whether the prediction was wrong
        (None: there was none). Not the record, which holds embeddings."""

    def add(self, played: Played) -> None:
        """Some rounds were played."""
        for record, predicted in zip(played.records, played.predictions, strict=True):
            wrong = None if predicted is None else predicted != record.label
            self._waiting.append((record.activated, record.missing, wrong))
        if len(self._waiting) >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        activated, missing, wrong = zip(*self._waiting, strict=True)
        self._waiting = []
        active, how = np.stack(activated), np.array(missing)
        for code in range(len(HOW)):
            self._how[:, code] += (how == code).sum(axis=0)
        self._skipped += int((how == HOW.index("skip")).any(axis=1).sum())
        self._prequential.push(np.array([each for each in wrong if each is not None], bool))
        self._activations += active.sum(axis=0)
        self._traffic = add_rounds(
            self._traffic, self._rule.update, self._widths, self._rule.wire.itemsize, self._played, active
        )
        self._played += len(active)

    @property
    def rounds(self) -> int:
        """How many were played, those that were dropped among them."""
        return self._played + len(self._waiting)

    @property
    def skipped(self) -> int:
        """How many of them were dropped, since a client was missing: nothing was learnt from them."""
        self._flush()
        return self._skipped

    @property
    def run_time_error(self) -> float:
        """Mean error of the last 20,000 rounds that were predicted; NaN before the first."""
        self._flush()
        return self._prequential.run_time_error

    @property
    def error_rate(self) -> float:
        """Mean error of all rounds that were predicted; NaN before the first."""
        self._flush()
        return self._prequential.accumulated_error

    def curve(self) -> Curve:
        """Return the errors as the rounds went on."""
        self._flush()
        return self._prequential.curve()

    @property
    def activations(self) -> NDArray[np.int64]:
        """(M,): in how many rounds each client was activated."""
        self._flush()
        return self._activations

    @property
    def traffic(self) -> Traffic:
        """Payload bytes of embeddings and derivatives, as the simulator counts them."""
        self._flush()
        return self._traffic

    @property
    def missing(self) -> list[dict[str, int]]:
        """Of each client: in how many rounds it answered, and in how many it was replaced, and how."""
        self._flush()
        return [dict(zip(HOW, counts.tolist(), strict=True)) for counts in self._how]

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint."""
        self._flush()
        arrays, values = self._prequential.state()
        arrays |= {
            "activations": self._activations,
            "how": self._how,
            "up": self._traffic.up,
            "down": self._traffic.down,
        }
        return arrays, {**values, "played": self._played, "skipped": self._skipped}

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._prequential.restore(arrays, values)
        self._activations, self._how = arrays["activations"].copy(), arrays["how"].copy()
        self._traffic = Traffic(arrays["up"].copy(), arrays["down"].copy())
        self._played, self._skipped = values["played"], values.get("skipped", 0)
