"""The server's state and its programs: blocks of rounds, skipped rounds, and predictions."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from anabranch.core.compiling import compiled, copied
from anabranch.core.gradients import parameters
from anabranch.core.party import Party, Rule, init_server, server_step, zero_gradient
from anabranch.core.party_programs.state import (
    LOOKS,
    Compute,
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


class Stepped(NamedTuple):
    """What the server has worked out for some consecutive rounds."""

    predictions: NDArray[np.int32]
    """(n,): the class predicted in each round, before its update."""
    derivatives: Rows
    """(n, .., e): for every client, side by side, in the dtype of the wire."""
    trouble: int
    """0, or which of `anabranch.core.party.TROUBLES` ended the last of these rounds without a step."""


class ServerCompute(Compute):
    """The server's state, moved on by rounds.

    Args:
        rule: the update, and the step that follows.
        model: the top model ``w_0``.
        width: ``e``, the elements of all clients' embeddings together.
        rate: the server's learning rate.
        block: how many rounds at most are stepped in one call.
    """

    def __init__(self, rule: Rule, model: eqx.Module, width: int, rate: Rate, block: int = 1) -> None:
        dtype = dtype_of(model)
        party = _init_server((rule, np.zeros(width, dtype), np.asarray(rate.first, dtype)), model)
        self._state = State(rule, party)
        self.rule, self.block = rule, block
        self._rate, self._sizes, self._dtype = rate, sizes_of(block), dtype
        rows = rule.update.rows
        self._shape = (width,) if rows is None else (rows, width)
        self._like = copied(np.zeros(width, dtype))
        self.rounds = 0
        """How many have been played: the number of the next one."""

    @property
    def looks(self) -> int:
        """How many samples `predict` takes at most."""
        return max(LOOKS, self.block)

    def step(self, embeddings: Rows, labels: NDArray[np.int32], factor: float = 1.0) -> Stepped:
        """Play the next ``n`` rounds, or fewer where something is not finite any more.

        Args:
            embeddings: (n, e), or (n, l, e) under SLR, as they crossed the wire.
            labels: (n,)
            factor: what the learning rate is multiplied by.
        """
        n = len(labels)
        size = size_of(self._sizes, n)
        rates = self._rate.of(np.arange(self.rounds, self.rounds + size, dtype=np.int32), self._dtype, factor)
        whole = np.array([n, self.rounds, *padded(labels, size)], np.int32)
        derivatives, worked_out = self._state.move(_server_rounds, (padded(embeddings, size), rates, whole))
        done, trouble, *predictions = np.asarray(worked_out).tolist()
        self.rounds += done - (trouble != 0)
        if trouble and self.rule.update.can_take_back and self.party.window is not None:
            # The server may go on, so the gradient that is not finite must not stay in the window.
            self._state.move(_server_takes_back, (np.int32(self.rounds),))
        return Stepped(np.array(predictions[:done], np.int32), np.asarray(derivatives)[:done], trouble)

    def predict(self, embeddings: Rows) -> NDArray[Any]:
        """Return the logits for some samples at today's parameters; nothing changes.

        Args:
            embeddings: (n, e), as they crossed the wire; n is at most `looks`.

        Returns:
            (n, c)
        """
        n = len(embeddings)
        size = size_of(sizes_of(self.looks), n)
        return np.asarray(self._state.read(_server_looks, (padded(embeddings, size),)))[:n]

    def skip(self, label: int) -> None:
        """Play the next round as one that nobody learns from: 0 is pushed, nothing steps."""
        self._state.move(_server_skips, (self._like, np.int32(label), np.int32(self.rounds)))
        self.rounds += 1

    def warm_up(self) -> None:
        """Compile what `step` and `predict` need, for the longest block too; the state stays."""
        for size in sizes_of(self.looks):
            self.predict(np.zeros((size, self._shape[-1]), self.rule.wire))
        for size in self._sizes:
            rates = self._rate.of(np.arange(size, dtype=np.int32), self._dtype)
            embeddings, whole = np.zeros((size, *self._shape), self.rule.wire), np.zeros(size + 2, np.int32)
            self._state.move(_server_rounds, (embeddings, rates, whole))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as flat arrays, for a checkpoint."""
        return to_arrays(self.party)

    def restore(self, arrays: dict[str, NDArray[Any]], rounds: int) -> None:
        """The inverse of `arrays`.

        Raises:
            ValueError: where they are those of another model or update.
        """
        self._state.party = from_arrays(self.party, arrays)
        self.rounds = rounds


@compiled
def _init_server(inputs: tuple[Any, ...], model: eqx.Module) -> Party:
    rule, embeddings, rate = inputs
    return init_server(rule, model, embeddings, rate)


@program
def _server_rounds(
    rule: Rule, server: Party, embeddings: Array, rates: Array, whole: Array
) -> tuple[Party, tuple[Array, Array]]:
    """Return the server's part of some consecutive rounds, until something is not finite.

    Whole numbers go in and come out in one array each, since every array takes a few microseconds: how many rounds,
    the first one's number, and the labels; how many were done, the trouble, and the predictions.
    """
    rows, first, labels = whole[0], whole[1], whole[2:]
    arrays, rest = eqx.partition(server, eqx.is_array)

    def play(carry: tuple) -> tuple:
        i, arrays, predictions, derivatives, _ = carry
        rate = rates[jnp.minimum(i, len(rates) - 1)]
        before = eqx.combine(arrays, rest)
        server, outcome = server_step(rule, before, embeddings[i], labels[i], rate, first + i)
        if not rule.update.can_take_back:
            keep = lambda new, old: jnp.where(outcome.trouble == 0, new, old)  # noqa: E731
            server = server._replace(window=jax.tree.map(keep, server.window, before.window))
        predictions = predictions.at[i].set(outcome.prediction)
        derivatives = derivatives.at[i].set(outcome.derivatives)
        return i + 1, eqx.filter(server, eqx.is_array), predictions, derivatives, outcome.trouble

    start = (jnp.int32(0), arrays, jnp.zeros(len(labels), jnp.int32), jnp.zeros_like(embeddings), jnp.int32(0))
    done, arrays, predictions, derivatives, trouble = jax.lax.while_loop(
        lambda c: (c[0] < rows) & (c[4] == 0), play, start
    )
    worked_out = jnp.concatenate([jnp.stack([done, trouble]), predictions])
    return eqx.combine(arrays, rest), (derivatives, worked_out)


@program
def _server_takes_back(rule: Rule, server: Party, t: Array) -> tuple[Party, tuple]:
    return server._replace(window=rule.update.take_back(server.window, t)), ()


@program
def _server_skips(rule: Rule, server: Party, like: Array, label: Array, t: Array) -> tuple[Party, tuple]:
    memory, _ = rule.update.recall(server.memory, label, t)
    window = server.window
    if window is not None:
        window, _ = rule.update.smooth(window, zero_gradient(rule, server.model, like), t)
    return server._replace(memory=memory, window=window), ()


@reading
def _server_looks(rule: Rule, server: Party, embeddings: Array) -> Array:
    dtype = jax.tree.leaves(parameters(server.model))[0].dtype
    return each_row(lambda row: apply(server.model, row.astype(dtype)), embeddings)
