"""Adds up what the compiled loop reports, chunk by chunk, and says what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from anabranch.core.models import Group
from anabranch.core.party import TROUBLES, Rule
from anabranch.core.updates import Update
from anabranch.errors import ConfigError
from anabranch.simulation.label_delay import Lateness, LateTally
from anabranch.simulation.loop import Played
from anabranch.simulation.metrics import Prequential
from anabranch.simulation.regret import RegretTally
from anabranch.simulation.result import Result
from anabranch.simulation.traffic import Traffic, add_rounds, no_traffic


class Tally:
    """Adds up the chunks of one run.

    Args:
        layout: of the clients, whose messages are counted.
        update: what they send.
        rule: in which dtype, and whether the regret is measured.
        keep_errors: keep the 0/1 error and the prediction of every round too.
        report_every: a point of the curve after so many rounds.
        lateness: of the labels; None where they come at once.
        chunk: rounds of a chunk.
    """

    def __init__(
        self,
        layout: Sequence[Group],
        update: Update,
        rule: Rule,
        keep_errors: bool,
        report_every: int,
        lateness: Lateness | None,
        chunk: int,
    ) -> None:
        self._update, self._itemsize = update, rule.wire.itemsize
        self._widths = [group.embedding for group in layout for _ in range(group.size)]
        self.report_every = report_every
        self._prequential = Prequential(report_every)
        self._activations = np.zeros(len(self._widths), np.int64)
        self._traffic = no_traffic(len(self._widths))
        self._regret = RegretTally(report_every) if rule.measure else None
        self._kept: tuple[list[NDArray[np.bool_]], list[NDArray[np.int32]]] | None = ([], []) if keep_errors else None
        sizes = np.array(self._widths, np.int64) * self._itemsize
        self._late = None if lateness is None else LateTally(lateness, chunk, sizes)
        self.trouble: str | None = None
        """What stopped being finite, one of `TROUBLES`; no round after that is to be added."""

    def add(self, played: Played) -> NDArray[np.bool_]:
        """Wait for the compiled loop to finish the chunk, then add its rounds; return their 0/1 errors."""
        predictions, trouble = np.asarray(played.predictions), int(played.trouble)
        self.trouble = TROUBLES[trouble] if trouble else None
        rounds = int(played.done) - (trouble != 0)
        errors, active = predictions[:rounds] != played.chunk.y[:rounds], played.active[:rounds]
        before = self._prequential.rounds
        self._traffic = add_rounds(self._traffic, self._update, self._widths, self._itemsize, before, active)
        self._activations += active.sum(axis=0)
        self._prequential.push(errors)
        if self._regret is not None:
            self._regret.push(jax.tree.map(lambda measure: np.asarray(measure)[:rounds], played.measures))
        if self._late is not None and played.chunk.late is not None and played.happened is not None:
            self._late.add(played.chunk.late, int(played.happened), active)
        if self._kept is not None:
            self._kept[0].append(errors)
            self._kept[1].append(predictions[:rounds])
        return errors

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values to go on from; not of a run whose labels come late."""
        arrays, values = self._prequential.state()
        arrays |= {"activations": self._activations, "up": self._traffic.up, "down": self._traffic.down}
        if self._regret is not None:
            held, values["regret"] = self._regret.state()
            arrays |= {f"regret/{name}": array for name, array in held.items()}
        if self._kept is not None:
            arrays |= {"kept/errors": np.concatenate(self._kept[0]), "kept/predictions": np.concatenate(self._kept[1])}
        return arrays, values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`.

        Raises:
            ConfigError: if errors are to be kept, and those of the rounds before were not.
        """
        if self._kept is not None:
            if "kept/errors" not in arrays:
                raise ConfigError(
                    "keep_errors is True, but the run that goes on has not kept those of its rounds: leave it out"
                )
            self._kept = [arrays["kept/errors"]], [arrays["kept/predictions"]]
        if self._regret is not None:
            held = {name.removeprefix("regret/"): array for name, array in arrays.items() if name.startswith("regret/")}
            self._regret.restore(held, values["regret"])
        self._prequential.restore(arrays, values)
        self._activations = arrays["activations"].copy()
        self._traffic = Traffic(arrays["up"], arrays["down"])

    @property
    def rounds(self) -> int:
        """How many have been added."""
        return self._prequential.rounds

    @property
    def run_time_error(self) -> float:
        """Mean error of the last 20,000 rounds; NaN before the first."""
        return self._prequential.run_time_error

    def result(self, **rest: Any) -> Result:
        """Return the result of the rounds so far; ``rest`` is what is not counted here."""
        return Result(
            rounds=self.rounds,
            stopped=None,
            error_rate=self._prequential.accumulated_error,
            curve=self._prequential.curve(),
            activation_rate=self._activations / max(self.rounds, 1),
            traffic=self._traffic,
            regret=None if self._regret is None else self._regret.regret(),
            errors=None if self._kept is None else np.concatenate(self._kept[0]),
            predictions=None if self._kept is None else np.concatenate(self._kept[1]),
            late_labels=None if self._late is None else self._late.labels(),
            **rest,
        )
