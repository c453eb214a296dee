"""Who is activated in a round: the set ``A_t``.

The party that decides also draws. A client decides its own activation, from its own features or with its own random
key (`anabranch.core.random_keys.party_key`). It sees nothing of the others (`Activation.decide`). The server decides
under `Fixed` only. The simulator asks for many rounds at once (`Activation.mask`) and gets the same decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray
from numpy.typing import ArrayLike, NDArray

from anabranch.checks import plain, whole
from anabranch.core.random_keys import party_key
from anabranch.errors import ConfigError

Mask = NDArray[np.bool_]


class Activation(ABC):
    """Decides which clients an event activates; the base of `Full`, `Random`, `Event`, `Fixed` and `Recorded`."""

    rounds: int | None = None
    """For how many rounds it can decide; None for any number."""

    def check(self, clients: int, rounds: int | None) -> None:  # noqa: B027 (most fit anything)
        """Whether this activation fits so many clients and rounds.

        Raises:
            ConfigError: where it does not.
        """

    @abstractmethod
    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        """Who is activated in the rounds ``t .. t + n − 1``.

        Args:
            seed: where every party's random key comes from.
            t: the number of the first of these rounds.
            x: (n, d), the clients' features side by side.
            widths: how many features each client holds.

        Returns:
            (n, M): true where the client is activated. Rows after the last round are not looked at.
        """

    @abstractmethod
    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        """What client ``client`` (from 1) decides for itself in round ``t``, with its features ``x_m`` (d_m,)."""


@dataclass(frozen=True)
class Full(Activation):
    """Every client, in every round."""

    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        return np.ones((len(x), len(widths)), bool)

    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        return True


@dataclass(frozen=True)
class Random(Activation):
    """Client ``m`` with probability ``p_m``, independently in each round.

    Each client draws with its own key: round ``t`` uses ``fold_in(fold_in(key(seed), m), t)``.

    Args:
        p: one probability for all clients, or one for each.

    Raises:
        ConfigError: where a probability is outside [0, 1].

    >>> Random(0.5).mask(0, 0, np.zeros((10_000, 4)), (1, 1, 1, 1)).mean(axis=0).round(1)
    array([0.5, 0.5, 0.5, 0.5])
    """

    p: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", plain(self.p))
        if not isinstance(self.p, int | float):
            try:
                object.__setattr__(self, "p", tuple(float(p) for p in self.p))
            except (TypeError, ValueError):
                raise ConfigError(f"activation Random: p is {self.p!r}, but it is a number, or one a client") from None
        for p in np.atleast_1d(self.p):
            if not 0 <= p <= 1:
                raise ConfigError(f"activation Random: p is {p}, but a probability lies in [0, 1]")

    def check(self, clients: int, rounds: int | None) -> None:
        if isinstance(self.p, tuple) and len(self.p) != clients:
            raise ConfigError(
                f"activation Random: p has {len(self.p)} probabilities, but there are {clients} clients: "
                "give one number, or one for each client"
            )

    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        clients = np.arange(1, len(widths) + 1)
        p = np.broadcast_to(np.asarray(self.p, np.float32), len(widths))
        return _drawn(seed, clients, t, len(x), p)

    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        return bool(self.draw(seed, client, t, 1)[0])

    def draw(self, seed: int, client: int, t: int, n: int) -> NDArray[np.bool_]:
        """(n,): what client ``client`` (from 1) draws for itself in the rounds ``t .. t + n − 1``."""
        p = np.asarray([self.p[client - 1] if isinstance(self.p, tuple) else self.p], np.float32)
        return _drawn(seed, np.asarray([client]), t, n, p)[:, 0]


@dataclass(frozen=True)
class Event(Activation):
    """A client whose features' mean in this round exceeds a threshold ``Γ``, as a sensor wakes on a stimulus.

    The paper's "Event" (Section 5.1); features are those that the model sees, normalised.

    Args:
        threshold: ``Γ``; −inf activates every client, +inf none.

    Raises:
        ConfigError: where the threshold is not a number.

    >>> Event(0.5).mask(0, 0, np.array([[1.0, 1.0, 0.0], [0.2, 0.6, 0.9]]), widths=(2, 1))
    array([[ True, False],
           [False,  True]])
    """

    threshold: float

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float | np.floating | np.integer) or np.isnan(self.threshold):
            raise ConfigError(f"activation Event: threshold is {self.threshold!r}, but Γ is a number")
        object.__setattr__(self, "threshold", float(self.threshold))  # NumPy's own would widen float32 means

    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        starts = np.cumsum([0, *widths])
        means = [x[:, a:b].mean(axis=1) for a, b in pairwise(starts)]
        return np.stack(means, axis=1) > self.threshold

    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        return bool(x_m.mean() > self.threshold)


@dataclass(frozen=True)
class Fixed(Activation):
    """``k`` of the clients in each round, uniformly without replacement; drawn by the server with its key.

    Args:
        k: how many, from 0 to the number of clients.

    Raises:
        ConfigError: where ``k`` is not such a number.

    >>> Fixed(2).mask(0, 0, np.zeros((3, 4)), (1, 1, 1, 1)).sum(axis=1)
    array([2, 2, 2])
    """

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("activation Fixed: k", self.k, 0))

    def check(self, clients: int, rounds: int | None) -> None:
        if self.k > clients:
            raise ConfigError(f"activation Fixed: k is {self.k}, but there are only {clients} clients")

    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        return np.asarray(_choose(party_key(seed, 0), _rounds(t, len(x)), self.k, clients=len(widths)))[: len(x)]

    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        raise ConfigError("activation Fixed: the server draws the k clients; a client cannot decide alone")


class Recorded(Activation):
    """Who was activated is part of the data, as in an event log.

    Args:
        activated: (T, M), true where round ``t``'s event touched the client.

    Raises:
        ConfigError: where it is not a table of true and false, or has fewer rows than a run asks for rounds. A run
            without a number of rounds ends with the record.

    >>> Recorded([[True, False], [False, True]]).mask(0, 1, np.zeros((1, 2)), (1, 1))
    array([[False,  True]])
    """

    def __init__(self, activated: ArrayLike) -> None:
        try:
            table = np.asarray(activated)
        except ValueError:
            raise ConfigError("activation Recorded: its rows differ in length") from None
        if table.ndim != 2 or not np.isin(table, (0, 1)).all():
            raise ConfigError(
                f"activation Recorded: a table (rounds, clients) of true and false is needed, not {table.dtype} "
                f"values of shape {table.shape}"
            )
        self.activated: NDArray[np.bool_] = table.astype(bool)
        self.rounds = len(table)

    def __repr__(self) -> str:
        return f"Recorded({self.activated.shape[0]} rounds, {self.activated.shape[1]} clients)"

    def check(self, clients: int, rounds: int | None) -> None:
        recorded, columns = self.activated.shape
        if columns != clients:
            raise ConfigError(f"activation Recorded: it has {columns} columns, but there are {clients} clients")
        if rounds is not None and rounds > recorded:
            raise ConfigError(f"activation Recorded: it has {recorded:,} rounds, but the run asks for {rounds:,}")

    def mask(self, seed: int, t: int, x: NDArray[Any], widths: Sequence[int]) -> Mask:
        rows = self.activated[t : t + len(x)]
        return np.pad(rows, ((0, len(x) - len(rows)), (0, 0)))

    def decide(self, seed: int, client: int, t: int, x_m: NDArray[Any]) -> bool:
        return bool(self.activated[t, client - 1])


def _drawn(seed: int, clients: NDArray[Any], t: int, n: int, p: NDArray[np.float32]) -> Mask:
    """(n, M), in a program for as many rounds and clients as a power of two, so that few are compiled."""
    more = (1 << max(2, (len(clients) - 1).bit_length())) - len(clients)
    padded = np.pad(clients, (0, more)), np.pad(p, (0, more))
    return np.asarray(_draw(jax.random.key(seed), padded[0], _rounds(t, n), padded[1]))[:n, : len(clients)]


def _rounds(t: int, n: int) -> NDArray[np.int64]:
    """From ``t`` on, at least ``n`` of them, and a power of two."""
    return np.arange(t, t + (1 << max(6, (n - 1).bit_length())))


@jax.jit
def _draw(key: PRNGKeyArray, clients: Array, rounds: Array, p: Array) -> Bool[Array, "n M"]:
    keys = jax.vmap(partial(jax.random.fold_in, key))(clients)
    uniform = jax.vmap(lambda t: jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, t), dtype=p.dtype))(keys))
    return uniform(rounds) < p[None, :]


@partial(jax.jit, static_argnames="clients")
def _choose(key: PRNGKeyArray, rounds: Array, k: Array, clients: int) -> Bool[Array, "n M"]:
    def one(t: Array) -> Array:
        order = jnp.argsort(jax.random.uniform(jax.random.fold_in(key, t), (clients,)))
        return jnp.argsort(order) < k

    return jax.vmap(one)(rounds)
