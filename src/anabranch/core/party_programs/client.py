"""A client's state and its programs: embeddings for blocks of rounds, steps, and passive rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from anabranch.core.compiling import compiled, copied
from anabranch.core.party import Party, Rule, client_step, encode, init_client, zero_gradient
from anabranch.core.party_programs.state import (
    LOOKS,
    Compute,
    Pending,
    Rate,
    Rows,
    State,
    apply,
    dtype_of,
    each_row,
    from_arrays,
    padded,
    program,
    reading,
    size_of,
    sizes_of,
    to_arrays,
)
from anabranch.core.types import Tree

FAR = 4096
"""After so many passive rounds it is seen whether there is anything left in a window that another would change."""


class ClientCompute(Compute):
    """One client's state, moved on by the derivatives that it is sent.

    Args:
        rule: the update, and the step that follows.
        model: the bottom model ``w_m``.
        features: ``d_m``.
        rate: the client's learning rate.
        block: how many rounds at most are computed in one call.
    """

    def __init__(self, rule: Rule, model: eqx.Module, features: int, rate: Rate, block: int = 1) -> None:
        dtype = dtype_of(model)
        party = _init_client((rule, np.zeros(features, dtype), np.asarray(rate.first, dtype)), model)
        self._state = State(rule, party)
        self.rule, self.block = rule, block
        self._rate, self._sizes, self._dtype = rate, sizes_of(block), dtype
        self._like = copied(np.zeros(features, dtype))
        self.width: int = eqx.filter_eval_shape(apply, party.model, self._like).shape[-1]
        """``e_m``, the elements of an embedding."""
        self.rounds = 0
        """How many rounds are in its window: one more than the last that it stepped in."""

    @property
    def looks(self) -> int:
        """How many samples `embed` takes at most."""
        return max(LOOKS, self.block)

    def encode(self, rounds: NDArray[np.int32], x: Rows) -> tuple[Rows, list[Pending]]:
        """Return the embeddings for some rounds, at today's parameters, and what a step in each of them will need.

        Args:
            rounds: (n,), in order.
            x: (n, d_m), the client's features.

        Returns:
            (n, e_m), or (n, l, e_m) under SLR, in the dtype of the wire; and for each round what is pending.
        """
        n = len(rounds)
        size = size_of(self._sizes, n)
        whole = np.array([n, *padded(rounds, size)], np.int32)
        numbers = (padded(x.astype(self._dtype, copy=False), size), whole)
        embeddings, leaves = self._state.move(_encode_rounds, numbers)
        held = [np.asarray(leaf) for leaf in leaves]
        return np.asarray(embeddings)[:n], [tuple(leaf[i] for leaf in held) for i in range(n)]

    def embed(self, x: Rows) -> Rows:
        """Return the embeddings of some samples at today's parameters, with nothing to learn from; nothing changes.

        Args:
            x: (n, d_m), the client's features; n is at most `looks`.

        Returns:
            (n, e_m), in the dtype of the wire.
        """
        n = len(x)
        size = size_of(sizes_of(self.looks), n)
        samples = padded(x.astype(self._dtype, copy=False), size)
        return np.asarray(self._state.read(_client_looks, (samples,)))[:n]

    def step(
        self, rounds: NDArray[np.int32], pending: Sequence[Pending], derivatives: Rows, factor: float = 1.0
    ) -> None:
        """Steps in the rounds in which it was activated, and pushes 0 in all that lie between them.

        Args:
            rounds: (n,), in order, none of them before `rounds`.
            pending: what `encode` gave for each.
            derivatives: (n, e_m), or (n, l, e_m) under SLR, as they crossed the wire.
            factor: what the learning rate is multiplied by.
        """
        self._step(rounds, pending, derivatives, factor)

    def _step(self, rounds: NDArray[np.int32], pending: Sequence[Pending], derivatives: Rows, factor: float) -> None:
        far = np.flatnonzero(np.diff(rounds, prepend=self.rounds) > FAR)
        if far.size:
            i = int(far[0])
            if i:
                self._step(rounds[:i], pending[:i], derivatives[:i], factor)
            self._pass(int(rounds[i]))
            rounds, pending, derivatives = rounds[i:], pending[i:], derivatives[i:]
            if far.size > 1:
                self._step(rounds, pending, derivatives, factor)
                return
        n = len(rounds)
        size = size_of(self._sizes, n)
        stepped = padded(rounds, size)
        leaves = tuple(padded(np.stack(leaf), size) for leaf in zip(*pending, strict=True))
        rates = self._rate.of(stepped, self._dtype, factor)
        whole = np.array([n, self.rounds, *stepped], np.int32)
        numbers = (self._like, leaves, padded(derivatives, size), rates, whole)
        self._state.move(_client_rounds, numbers)
        self.rounds = int(rounds[-1]) + 1

    def _pass(self, until: int) -> None:
        """Push 0 in each round before this one, or as long as that changes anything."""
        at_rest = self.party.window is None
        while self.rounds < until and not at_rest:
            n = min(FAR, until - self.rounds)
            whole = np.array([self.rounds, self.rounds + n], np.int32)
            at_rest = bool(self._state.move(_client_passes, (self._like, whole)))
            self.rounds += n
        self.rounds = until

    def warm_up(self) -> None:
        """Compile what `encode`, `step` and `embed` need, for the longest block too; the state stays."""
        for size in sizes_of(self.looks):
            self.embed(np.zeros((size, *self._like.shape), self._dtype))
        for size in self._sizes:
            rounds = np.zeros(size, np.int32)
            samples = np.zeros((size, *self._like.shape), self._dtype)
            embeddings, leaves = self._state.move(_encode_rounds, (samples, np.zeros(size + 1, np.int32)))
            leaves = tuple(np.asarray(leaf) for leaf in leaves)
            sent, rates = np.asarray(embeddings), self._rate.of(rounds, self._dtype)
            numbers = (self._like, leaves, sent, rates, np.zeros(size + 2, np.int32))
            self._state.move(_client_rounds, numbers)

    def arrays(self, pending: dict[int, Pending] | None = None) -> dict[str, NDArray[Any]]:
        """Return the state as flat arrays, for a checkpoint, with what is pending for some rounds."""
        held = {f"pending/{t}/{i}": leaf for t, leaves in (pending or {}).items() for i, leaf in enumerate(leaves)}
        return to_arrays(self.party) | held

    def restore(self, arrays: dict[str, NDArray[Any]], rounds: int) -> dict[int, Pending]:
        """Return the inverse of `arrays`; returns what is pending.

        Raises:
            ValueError: where they are those of another model or update.
        """
        held = {name: array for name, array in arrays.items() if name.startswith("pending/")}
        self._state.party = from_arrays(self.party, {name: array for name, array in arrays.items() if name not in held})
        self.rounds = rounds
        leaves: dict[int, dict[int, NDArray[Any]]] = {}
        for name, array in held.items():
            _, t, i = name.split("/")
            leaves.setdefault(int(t), {})[int(i)] = array
        return {t: tuple(each[i] for i in range(len(each))) for t, each in leaves.items()}


@compiled
def _init_client(inputs: tuple[Any, ...], model: eqx.Module) -> Party:
    rule, features, rate = inputs
    return init_client(rule, model, features, rate)


@program
def _encode_rounds(rule: Rule, client: Party, x: Array, whole: Array) -> tuple[Party, tuple[Array, list[Array]]]:
    """Return the embeddings of some rounds, and the arrays of their pullbacks, each with an axis of rounds.

    The whole numbers are how many rounds there are, and which.
    """
    rows, rounds = whole[0], whole[1:]

    def one(memory: Array | None, x: Array, t: Array) -> tuple[Array | None, tuple[Array, list[Array]]]:
        moved, embedding, pullback = encode(rule, client._replace(memory=memory), x, t)
        return moved.memory, (embedding, jax.tree.leaves(pullback))

    if client.memory is not None:  # each round's window has the rounds before in it

        def play(memory: Array, i: Array) -> tuple[Array, Any]:
            moved, sent = one(memory, x[i], rounds[i])
            assert moved is not None
            return jnp.where(i < rows, moved, memory), sent

        memory, sent = jax.lax.scan(play, client.memory, jnp.arange(len(x), dtype=jnp.int32))
        return client._replace(memory=memory), sent
    if len(x) == 1:  # as the simulator computes it, without an axis of rounds
        _, sent = one(None, x[0], rounds[0])
        return client, jax.tree.map(lambda leaf: leaf[None], sent)
    return client, jax.vmap(lambda x, t: one(None, x, t)[1])(x, rounds)


@program
def _client_rounds(
    rule: Rule,
    client: Party,
    like: Array,
    leaves: tuple[Array, ...],
    derivatives: Array,
    rates: Array,
    whole: Array,
) -> tuple[Party, tuple]:
    """Round after round from the first that is not in the window: a step where it was activated, else a push of 0.

    The whole numbers are how many steps there are, the first round, and the rounds of the steps.
    """
    rows, begun, rounds = whole[0], whole[1], whole[2:]
    arrays, rest = eqx.partition(client, eqx.is_array)
    structure = jax.tree.structure(eqx.filter_eval_shape(lambda: encode(rule, client, like, begun)[2]))

    def play(carry: tuple) -> tuple:
        t, i, arrays = carry
        active = t == rounds[i]
        rate = rates[jnp.minimum(i, len(rates) - 1)]
        pullback = jax.tree.unflatten(structure, [leaf[i] for leaf in leaves])
        stepped = client_step(rule, eqx.combine(arrays, rest), pullback, derivatives[i], rate, t, active)
        return t + 1, i + active.astype(jnp.int32), eqx.filter(stepped, eqx.is_array)

    _, _, arrays = jax.lax.while_loop(lambda c: c[1] < rows, play, (begun, jnp.int32(0), arrays))
    return eqx.combine(arrays, rest), ()


@program
def _client_passes(rule: Rule, client: Party, like: Array, whole: Array) -> tuple[Party, Array]:
    """Push 0 from the first round to before the last; say whether one more would change nothing."""
    zero = zero_gradient(rule, client.model, like)

    def push(carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        t, window = carry
        return t + 1, rule.update.smooth(window, zero, t)[0]

    t, window = jax.lax.while_loop(lambda c: c[0] < whole[1], push, (whole[0], client.window))
    _, pushed = push((t, window))
    return client._replace(window=window), rule.update.is_at_rest(window, pushed)


@reading
def _client_looks(rule: Rule, client: Party, x: Array) -> Array:
    return each_row(lambda row: apply(client.model, row).astype(rule.wire), x)
