"""How long the clients compute: their functions timed one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from anabranch.core.compiling import compiled
from anabranch.core.gradients import Pullback
from anabranch.core.models import Group, SplitModel
from anabranch.core.party import Party, Rule, client_step, encode, init_client
from anabranch.core.round import model_dtype
from anabranch.core.types import Scalar, Tree


class ClientTimes(NamedTuple):
    """Seconds of one call of each party function, for each client (M,)."""

    encode: NDArray[np.float64]
    step: NDArray[np.float64]


def measure_client_times(model: SplitModel, layout: Sequence[Group], rule: Rule) -> ClientTimes:
    """Time each client's two functions on this machine, each compiled on its own, apart from all other parties.

    What is timed is a compiled loop of 500 calls, the best of five: computing alone, without what a process of a
    federation pays for a call from Python and for the network.
    """
    dtype = model_dtype(model)
    rate = jnp.asarray(0.0, dtype)
    times = []
    for group in layout:
        x = np.ones((_CALLS, group.features), dtype)
        client, embedding, pullback = _begun(rule, model.clients[group.first], x[0], rate)
        derivative = np.zeros((_CALLS, *embedding.shape), embedding.dtype)
        forward = _seconds(partial(_encode_loop, rule, client, x))
        backward = _seconds(partial(_step_loop, rule, client, pullback, derivative, rate))
        times += [(forward, backward)] * group.size
    encode_times, step_times = zip(*times, strict=True)
    return ClientTimes(np.array(encode_times), np.array(step_times))


_CALLS = 500


@compiled
def _begun(rule: Rule, model: eqx.Module, x: Array, rate: Scalar) -> tuple[Party, Array, Pullback]:
    """Return a client that has encoded its first sample."""
    return encode(rule, init_client(rule, model, x, rate), x, jnp.asarray(0, jnp.int32))


@compiled
def _encode_loop(rule: Rule, client: Party, x: Array) -> Tree:
    arrays, rest = eqx.partition(client, eqx.is_array)

    def call(t: Array, carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
        after, embedding, _ = encode(rule, eqx.combine(carry[0], rest), x[t], t)
        return eqx.filter(after, eqx.is_array), carry[1] + embedding.astype(x.dtype).sum()

    return jax.lax.fori_loop(0, _CALLS, call, (arrays, jnp.zeros((), x.dtype)))


@compiled
def _step_loop(rule: Rule, client: Party, pullback: Pullback, v: Array, rate: Scalar) -> Tree:
    arrays, rest = eqx.partition(client, eqx.is_array)

    def call(t: Array, arrays: Tree) -> Tree:
        after = client_step(rule, eqx.combine(arrays, rest), pullback, v[t], rate, t, jnp.asarray(True))
        return eqx.filter(after, eqx.is_array)

    return jax.lax.fori_loop(0, _CALLS, call, arrays)


def _seconds(loop: Callable[[], Any]) -> float:
    """Of one call in a compiled loop of `_CALLS`."""
    jax.block_until_ready(loop())
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(loop())
        best = min(best, time.perf_counter() - start)
    return best / _CALLS
