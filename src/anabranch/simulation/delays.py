"""How late labels come: so many rounds after their events, the same for all or drawn for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.core.random_keys import LABELS, party_key
from anabranch.errors import ConfigError

LONGEST = 2**31 - 1
"""Of a delay: no run has more rounds."""


class Delay(ABC):
    """How many events later each label arrives; the base of `UniformDelay` and `GeometricDelay`."""

    most: int
    """No label is later than this."""

    @abstractmethod
    def draw(self, seed: int, first: int, n: int) -> NDArray[np.int64]:
        """(n,): the delays of the events ``first .. first + n − 1``, each from 0 to `most`.

        An event's delay depends on the seed and the event's number alone, not on which others are drawn with it.
        """


@dataclass(frozen=True)
class FixedDelay(Delay):
    """Every label as late as all others: what a whole number as ``label_delay`` stands for."""

    rounds: int

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.rounds

    def draw(self, seed: int, first: int, n: int) -> NDArray[np.int64]:
        return np.full(n, self.rounds, np.int64)


@dataclass(frozen=True)
class UniformDelay(Delay):
    """Every delay from ``least`` to ``most`` is as likely, both included, for each label by itself.

    Args:
        least: a whole number of 0 or more.
        most: a whole number, no smaller.

    Raises:
        ConfigError: where they are not.

    >>> UniformDelay(10, 20).draw(0, 0, 10_000).mean().round()
    np.float64(15.0)
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", whole("label_delay UniformDelay: least", self.least, 0, LONGEST))
        object.__setattr__(self, "most", whole("label_delay UniformDelay: most", self.most, self.least, LONGEST))

    def draw(self, seed: int, first: int, n: int) -> NDArray[np.int64]:
        drawn = _bits(seed, first, n).astype(np.uint64)
        return self.least + (drawn * np.uint64(self.most - self.least + 1) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class GeometricDelay(Delay):
    """A label that has not come yet comes in the next round with the same probability, however long it has waited.

    ``P(d = k) = (1 − q) q^k`` with ``q = mean / (1 + mean)``, for each label by itself. Draws have 32 bits, so none is
    more than about 23 times the mean.

    Args:
        mean: the mean delay, a number of 0 or more.

    Raises:
        ConfigError: where it is not.

    >>> GeometricDelay(20).draw(0, 0, 100_000).mean().round()
    np.float64(20.0)
    """

    mean: float

    def __post_init__(self) -> None:
        number = isinstance(self.mean, int | float | np.floating | np.integer) and not isinstance(self.mean, bool)
        if not (number and 0 <= self.mean < np.inf):
            raise ConfigError(f"label_delay GeometricDelay: mean is {self.mean!r}, but it is a number of 0 or more")
        object.__setattr__(self, "mean", float(self.mean))
        if self.most > LONGEST:
            raise ConfigError(f"label_delay GeometricDelay: mean is {self.mean:g}: no run is as long as such delays")

    @property
    def most(self) -> int:  # type: ignore[override]
        return int(self._of(np.zeros(1, np.uint32))[0])

    def draw(self, seed: int, first: int, n: int) -> NDArray[np.int64]:
        return self._of(_bits(seed, first, n))

    def _of(self, drawn: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return ``P(d ≥ k) = P(u ≤ q^k)`` for a uniform ``u``."""
        if self.mean == 0:
            return np.zeros(len(drawn), np.int64)
        u = (drawn + 0.5) / 2**32
        return np.floor(np.log(u) / -math.log1p(1 / self.mean)).astype(np.int64)


def read_delay(given: Any) -> Delay:
    """What ``label_delay`` stands for.

    Raises:
        ConfigError: where it is neither a whole number of 0 or more nor a `Delay`.

    >>> read_delay(50)
    FixedDelay(rounds=50)
    """
    if isinstance(given, Delay):
        return given
    if isinstance(given, type) and issubclass(given, Delay):
        raise ConfigError(f"label_delay is the class {given.__name__}: make one of it, such as {given.__name__}(...)")
    return FixedDelay(whole("label_delay", given, 0, LONGEST, ", or a distribution such as UniformDelay(0, 100)"))


def _bits(seed: int, first: int, n: int) -> NDArray[np.uint32]:
    """(n,) random bits, each event's from a key of its own; for a power of two events, so that few are compiled."""
    events = np.arange(first, first + (1 << max(6, (n - 1).bit_length())), dtype=np.uint32)
    return np.asarray(_draw(party_key(seed, LABELS), events))[:n]


@jax.jit
def _draw(key: PRNGKeyArray, events: Array) -> Array:
    return jax.vmap(lambda event: jax.random.bits(jax.random.fold_in(key, event), dtype=np.uint32))(events)
