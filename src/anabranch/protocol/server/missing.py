"""What stands in for the embedding of a client that does not answer in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError, nearest

HOW = ("answered", "last", "zero", "mean", "skip")
"""What a round's record says of each client: its own embedding, or which replacement; ``skip`` drops the round."""


@dataclass(frozen=True)
class Wait:
    """No round goes on without the client."""

    def __str__(self) -> str:
        return "wait"


@dataclass(frozen=True)
class Zero:
    """An embedding of zeros."""

    def __str__(self) -> str:
        return "zero"


@dataclass(frozen=True)
class Mean:
    """The mean of all embeddings that the client has sent; zeros before the first."""

    def __str__(self) -> str:
        return "mean"


@dataclass(frozen=True)
class Skip:
    """The round is dropped: nobody learns from it, and nothing is predicted."""

    def __str__(self) -> str:
        return "skip"


@dataclass(frozen=True)
class Last:
    """The client's last embedding where it is at most so many rounds old, else zeros."""

    rounds: int

    def __str__(self) -> str:
        return f"last {self.rounds}"


Policy: TypeAlias = Wait | Zero | Mean | Skip | Last


def unknown(policy: Policy) -> str:
    """What is said of a client of this policy that does not know an event."""
    text = "it has no features for this event"
    return f"{text}, and is waited for, since its missing is 'wait'" if isinstance(policy, Wait) else text


def policy(text: str) -> Policy:
    """Return the policy of this name.

    Raises:
        ConfigError: where there is none.

    >>> policy("last 20"), policy("mean")
    (Last(rounds=20), Mean())
    >>> policy("men")
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: missing is 'men', but it is wait, last N, zero, mean or skip. Did you mean 'mean'?
    """
    name, _, rest = text.strip().partition(" ")
    plain: dict[str, Policy] = {"wait": Wait(), "zero": Zero(), "mean": Mean(), "skip": Skip()}
    if name == "last" and rest.strip().isascii() and rest.strip().isdigit():
        return Last(int(rest))
    if name in plain and not rest:
        return plain[name]
    raise ConfigError(
        f"missing is {text!r}, but it is wait, last N, zero, mean or skip.{nearest(name, [*plain, 'last N'])}"
    )


HOPELESS = "a value of this event cannot be used there"
"""What is said of a client that has a row of an event, and can make no features of it."""


class Stand(NamedTuple):
    """What stands in for an embedding."""

    how: int
    """Its place in `HOW`."""
    values: NDArray[Any] | None
    """None where the round is dropped."""


SKIPPED = Stand(HOW.index("skip"), None)
"""Nothing stands in, and the round is dropped."""


class History:
    """What a client has sent, as far as a replacement needs it.

    Args:
        width: ``e_m``
        dtype: of the wire.
    """

    def __init__(self, width: int, dtype: np.dtype[Any]) -> None:
        self.last = np.zeros(width, dtype)
        self.round = -1
        """In which round the last embedding came; -1 before the first."""
        self.total = np.zeros(width, np.float64)
        self.count = 0

    def push(self, t: int, embedding: NDArray[Any]) -> None:
        """The client has answered in round ``t``."""
        self.last, self.round = embedding, t
        np.add(self.total, embedding, out=self.total)
        self.count += 1

    def stand(self, policy: Policy, t: int) -> Stand | None:
        """What stands in for it in round ``t``; None where the round has to wait."""
        zero = np.zeros_like(self.last)
        match policy:
            case Wait():
                return None
            case Skip():
                return SKIPPED
            case Mean() if self.count:
                return Stand(HOW.index("mean"), (self.total / self.count).astype(self.last.dtype))
            case Last(rounds) if self.round >= 0 and t - self.round <= rounds:
                return Stand(HOW.index("last"), self.last)
        return Stand(HOW.index("zero"), zero)
