"""What all experiments share: the problems, the nine methods, and how large everything is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.config.run import Config
from anabranch.errors import ConfigError

ROUNDS = 2_000_000
"""Of each of the paper's trials."""
QUICK_ROUNDS = 20_000
"""With ``--quick``."""
TUNING_SHARE = 10
"""Tuning takes a tenth of the rounds."""
TUNING_SEED = 1000
"""Of the stream, the initial parameters and the activation while tuning; no final trial has it."""
MOST_ROUNDS, MOST_SEEDS = 2**31 - 1, TUNING_SEED - 1
SHUFFLE_BUFFER = 20_000
"""Rows held for shuffling a table: a sample of SUSY is sorted by class."""

WINDOW, DECAY = 10, 0.95
"""The window length and the attenuation coefficient of Section 5.4, here of all experiments that do not vary them."""
UPDATES: dict[str, dict[str, Any]] = {
    "OGD": {"name": "OGD"},
    "SLR": {"name": "SLR", "window": WINDOW},
    "DLR": {"name": "DLR", "window": WINDOW, "decay": DECAY},
}
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Full": {"name": "Full"},
    "Random": {"name": "Random", "p": 0.5},
    "Event": {"name": "Event", "threshold": 0.0},
}


class Method(NamedTuple):
    """An update under an activation, such as DLR-Event."""

    update: str
    activation: str

    def __str__(self) -> str:
        return f"{self.update}-{self.activation}"


METHODS = tuple(Method(update, activation) for update in UPDATES for activation in ACTIVATIONS)
"""The nine methods, in the order of the paper's tables."""


@dataclass(frozen=True)
class Problem:
    """A model and a stream."""

    name: str
    """imnist, susy or higgs."""
    drifting: bool = False
    clients: int | None = None
    """How many, where there can be more than the paper's four."""

    def __str__(self) -> str:
        clients = f", {self.clients} clients" if self.clients else ""
        return f"{self.name}, {'drifting' if self.drifting else 'stationary'}{clients}"

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The grid that every method is tuned on: the paper's powers of ten, and their thirds where errors are low."""
        if self.name == "imnist":
            return (1.0, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
        return (0.1, 0.03, 0.01, 0.003, 0.001)


IMNIST, IMNIST_DRIFT = Problem("imnist"), Problem("imnist", drifting=True)


@dataclass(frozen=True)
class Study:
    """How large the experiments are, where their data is, and which learning rates were chosen.

    Raises:
        ConfigError: where the rounds or the seeds are too few or too many.

    >>> Study(seeds=1000)
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: seeds is 1000, but it must be a whole number from 1 to 999; ...
    """

    rounds: int = ROUNDS
    seeds: int | None = None
    """Seeds of every experiment; None: as many as each asks for."""
    data_dir: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    """The tables, by their problem's name."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows each table has."""
    rates: Mapping[tuple[Problem, Method], float] = field(default_factory=dict)
    """What tuning chose."""
    dry: bool = False
    """Whether the runs are only counted: no data is read, and a learning rate that was not chosen is any."""

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise ConfigError(f"rounds is {self.rounds}, but it must be a whole number from 1 to {MOST_ROUNDS:,}")
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(
                f"seeds is {self.seeds}, but it must be a whole number from 1 to {MOST_SEEDS}; the next one is tuning's"
            )

    def seeds_of(self, usual: int) -> range:
        """Return the seeds of an experiment that usually has so many."""
        return range(1, (self.seeds or usual) + 1)

    def rounds_of(self, problem: Problem) -> int:
        """As many as were asked for, or as the table has rows."""
        return min(self.rounds, self.rows.get(problem.name, self.rounds))

    def tuning_rounds_of(self, problem: Problem) -> int:
        """Return a tenth of the paper's, or as many as the table has rows, where it is a small one."""
        return min(max(1, self.rounds // TUNING_SHARE), self.rounds_of(problem))

    def rate(self, problem: Problem, method: Method) -> float:
        """Return the learning rate that was chosen for a method; with more clients, the one for four."""
        chosen = Problem(problem.name, problem.drifting), method
        return self.rates.get(chosen, 0.0) if self.dry else self.rates[chosen]

    def config(
        self,
        problem: Problem,
        method: Method,
        *,
        seed: int = 1,
        learning_rate: float | tuple[float, ...] | None = None,
        rounds: int | None = None,
        **changes: Any,
    ) -> Config:
        """Return a method on a problem, at its chosen learning rate unless another is given.

        Args:
            changes: sections and settings of the configuration in place of the method's own.
        """
        stream: dict[str, Any] = {"name": problem.name}
        if problem.name == "imnist":
            if self.data_dir is not None:
                stream["data_dir"] = str(self.data_dir)
        else:
            stream |= {"path": str(self.files.get(problem.name, problem.name)), "shuffle_buffer": SHUFFLE_BUFFER}
        values = {
            "rounds": self.rounds_of(problem) if rounds is None else rounds,
            "seed": seed,
            "learning_rate": self.rate(problem, method) if learning_rate is None else learning_rate,
            "model": {"name": problem.name, **({"clients": problem.clients} if problem.clients else {})},
            "stream": stream,
            "update": UPDATES.get(method.update),
            "activation": ACTIVATIONS.get(method.activation),
            **({"drift": {"every": 50}} if problem.drifting else {}),
            **changes,
        }
        return Config.model_validate(values)
