"""What a run costs: bytes that cross the wire, and the clients' computing time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from anabranch.compiling import compiled
from anabranch.models import Group, SplitModel
from anabranch.party import Rule, client_step, encode, init_client
from anabranch.round import model_dtype
from anabranch.updates import Update

MB = 2**20
"""One megabyte, as the paper counts them."""


class Traffic(NamedTuple):
    """Payload bytes of embeddings and derivatives over a whole run. A simulator sends no queries and no frames."""

    up: NDArray[np.int64]
    """(M,): each client's embeddings, activated or passive."""
    down: NDArray[np.int64]
    """(M,): the derivatives returned to each client when it was activated."""

    @property
    def total(self) -> int:
        """Both directions, all clients, in bytes."""
        return int(self.up.sum() + self.down.sum())

    @property
    def megabytes(self) -> float:
        """Both directions, all clients, in MB of 2^20 bytes.

        >>> Traffic(np.array([2**20, 2**20]), np.array([2**19, 0])).megabytes
        2.5
        """
        return self.total / MB


def no_traffic(clients: int) -> Traffic:
    """Before round 0."""
    return Traffic(np.zeros(clients, np.int64), np.zeros(clients, np.int64))


def add_rounds(
    traffic: Traffic, update: Update, widths: Sequence[int], itemsize: int, t: int, active: NDArray[np.bool_]
) -> Traffic:
    """The traffic with the rounds ``t .. t + n − 1`` added.

    A client sends ``r_t · e_m · itemsize`` bytes up in each round and gets as many down when it is activated, with
    ``r_t = 1`` for OGD and DLR, and ``r_t = min(t + 1, l)`` for SLR.

    Args:
        widths: ``e_m``, the elements of each client's embedding.
        itemsize: bytes of an element on the wire.
        active: (n, M), who was activated.
    """
    rows = update.sent_rows(np.arange(t, t + len(active), dtype=np.int64))
    size = np.asarray(widths, np.int64) * itemsize
    return Traffic(traffic.up + rows.sum() * size, traffic.down + (active * rows[:, None]).sum(axis=0) * size)


class ClientTimes(NamedTuple):
    """Seconds of one call of each party function, for each client (M,)."""

    encode: NDArray[np.float64]
    step: NDArray[np.float64]


def measure_client_times(model: SplitModel, layout: Sequence[Group], rule: Rule, calls: int = 200) -> ClientTimes:
    """Times each client's two functions, jitted one by one as in the processes of a federation.

    Each is the median of ``calls`` calls on this machine, with the overhead of a call that a real client pays too.
    """
    dtype = model_dtype(model)
    rate, t, yes = jnp.asarray(0.0, dtype), jnp.asarray(0, jnp.int32), jnp.asarray(True)
    times = []
    for group in layout:
        x = jnp.ones(group.features, dtype)
        client = init_client(rule, model.clients[group.first], x, rate)
        encoded, embedding, pullback = _encode(rule, client, x, t)
        derivative = jnp.zeros_like(embedding)
        forward = _median(calls, partial(_encode, rule, client, x, t))
        backward = _median(calls, partial(_client_step, rule, encoded, pullback, derivative, rate, t, yes))
        times += [(forward, backward)] * group.size
    encode_times, step_times = zip(*times, strict=True)
    return ClientTimes(np.array(encode_times), np.array(step_times))


_encode = compiled(encode)
_client_step = compiled(client_step)


def _median(calls: int, call: Callable[[], Any]) -> float:
    jax.block_until_ready(eqx.filter(call(), eqx.is_array))
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(eqx.filter(call(), eqx.is_array))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
