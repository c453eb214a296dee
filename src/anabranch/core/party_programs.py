"""A party's own functions, compiled for blocks of rounds, and the state that they move on.

The simulator compiles a whole federation into one loop (`anabranch.simulation.loop`). Here the server and each client
compute by themselves, as in a real federation. They use the same functions: `encode`, `server_step` and `client_step`.
On a CPU the bits are the same. A block holds the rounds that are in flight together, and is one
round if only one is in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from anabranch.core.compiling import OPTIONS, compiled, copied
from anabranch.core.gradients import parameters
from anabranch.core.party import Party, Rule, client_step, empty_window, encode, init_client, init_server, server_step
from anabranch.core.types import Tree
from anabranch.core.updates import DLR, Window

Rows = NDArray[Any]
"""An array whose first axis counts the rounds of a block."""
Pending: TypeAlias = tuple[NDArray[Any], ...]
"""What a client keeps of a round until its derivative comes: the arrays of its pullback."""


FAR = 4096
"""After so many passive rounds it is seen whether there is anything left in a window that another would change."""
LOOKS = 64
"""So many samples are predicted in one call at most, or a block of rounds where that is longer."""


class Rate(NamedTuple):
    """One party's learning rate: ``η_t = η (t + 1)^(−power)`` in round ``t``, counted from 0.

    >>> Rate(0.1, power=0.5).of(np.array([0, 3]), np.dtype("float32"))
    array([0.1 , 0.05], dtype=float32)
    """

    first: float
    power: float = 0.0

    def of(self, rounds: NDArray[np.integer[Any]], dtype: np.dtype[Any], factor: float = 1.0) -> Rows:
        """(n,) in these rounds, or (1,) where it stays, which lets the compiler do what it does in the simulator.

        All are multiplied by ``factor``.
        """
        if not self.power:
            return np.asarray([factor * self.first], dtype)
        rates = factor * self.first * (rounds + 1.0) ** -self.power
        return np.resize(rates, max(len(rates), 2)).astype(dtype)


class Stepped(NamedTuple):
    """What the server has worked out for some consecutive rounds."""

    predictions: NDArray[np.int32]
    """(n,): the class predicted in each round, before its update."""
    derivatives: Rows
    """(n, .., e): for every client, side by side, in the dtype of the wire."""
    trouble: int
    """0, or which of `anabranch.core.party.TROUBLES` ended the last of these rounds without a step."""


class _Compute:
    """What the server and a client have in common."""

    _state: State

    @property
    def party(self) -> Party:
        """The state as the functions of a round have it."""
        return self._state.party

    def copy_model(self) -> eqx.Module:
        """Return the party's model in arrays of its own; any thread may ask."""
        with self._state.turn:
            return jax.tree.map(copied, self.party.model)

    def empty_window(self) -> None:
        """Empty the window of gradients."""
        self._state.move(_empties, ())


class ServerCompute(_Compute):
    """The server's state, moved on by rounds.

    Args:
        rule: the update, and the step that follows.
        model: the top model ``w_0``.
        width: ``e``, the elements of all clients' embeddings together.
        rate: the server's learning rate.
        block: how many rounds at most are stepped in one call.
    """

    def __init__(self, rule: Rule, model: eqx.Module, width: int, rate: Rate, block: int = 1) -> None:
        dtype = _dtype(model)
        party = _init_server((rule, np.zeros(width, dtype), np.asarray(rate.first, dtype)), model)
        self._state = State(rule, party)
        self.rule, self.block = rule, block
        self._rate, self._sizes, self._dtype = rate, _sizes(block), dtype
        rows = rule.update.rows
        self._shape = (width,) if rows is None else (rows, width)
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
        size = _size(self._sizes, n)
        rates = self._rate.of(np.arange(self.rounds, self.rounds + size, dtype=np.int32), self._dtype, factor)
        whole = np.array([n, self.rounds, *_padded(labels, size)], np.int32)
        derivatives, worked_out = self._state.move(_server_rounds, (_padded(embeddings, size), rates, whole))
        done, trouble, *predictions = np.asarray(worked_out).tolist()
        self.rounds += done - (trouble != 0)
        if trouble and self.party.window is not None:  # its gradient must not stay there for whoever goes on
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
        size = _size(_sizes(self.looks), n)
        return np.asarray(self._state.read(_server_looks, (_padded(embeddings, size),)))[:n]

    def skip(self, label: int) -> None:
        """Play the next round as one that nobody learns from: 0 is pushed, nothing steps."""
        self._state.move(_server_skips, (np.int32(label), np.int32(self.rounds)))
        self.rounds += 1

    def warm_up(self) -> None:
        """Compile what `step` and `predict` need, for the longest block too; the state stays."""
        for size in _sizes(self.looks):
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


class ClientCompute(_Compute):
    """One client's state, moved on by the derivatives that it is sent.

    Args:
        rule: the update, and the step that follows.
        model: the bottom model ``w_m``.
        features: ``d_m``.
        rate: the client's learning rate.
        block: how many rounds at most are computed in one call.
    """

    def __init__(self, rule: Rule, model: eqx.Module, features: int, rate: Rate, block: int = 1) -> None:
        dtype = _dtype(model)
        party = _init_client((rule, np.zeros(features, dtype), np.asarray(rate.first, dtype)), model)
        self._state = State(rule, party)
        self.rule, self.block = rule, block
        self._rate, self._sizes, self._dtype = rate, _sizes(block), dtype
        self._like = copied(np.zeros(features, dtype))
        self.width: int = eqx.filter_eval_shape(_apply, party.model, self._like).shape[-1]
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
        size = _size(self._sizes, n)
        whole = np.array([n, *_padded(rounds, size)], np.int32)
        numbers = (_padded(x.astype(self._dtype, copy=False), size), whole)
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
        size = _size(_sizes(self.looks), n)
        samples = _padded(x.astype(self._dtype, copy=False), size)
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
        size = _size(self._sizes, n)
        padded = _padded(rounds, size)
        leaves = tuple(_padded(np.stack(leaf), size) for leaf in zip(*pending, strict=True))
        rates = self._rate.of(padded, self._dtype, factor)
        whole = np.array([n, self.rounds, *padded], np.int32)
        numbers = (self._like, leaves, _padded(derivatives, size), rates, whole)
        self._state.move(_client_rounds, numbers)
        self.rounds = int(rounds[-1]) + 1

    def _pass(self, until: int) -> None:
        """Push 0 in each round before this one, or as long as that changes anything."""
        at_rest = self.party.window is None
        while self.rounds < until and not at_rest:
            n = min(FAR, until - self.rounds)
            at_rest = bool(self._state.move(_client_passes, (np.array([self.rounds, self.rounds + n], np.int32),)))
            self.rounds += n
        self.rounds = until

    def warm_up(self) -> None:
        """Compile what `encode`, `step` and `embed` need, for the longest block too; the state stays."""
        for size in _sizes(self.looks):
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


def to_arrays(tree: Tree) -> dict[str, NDArray[Any]]:
    """Return copies of a state's arrays by their place, such as ``"model/layers/0/weight"``: programs use its
    memory again.
    """
    paths = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf) for path, leaf in paths}


def from_arrays(tree: Tree, arrays: dict[str, NDArray[Any]]) -> Tree:
    """Return the state with these arrays in place of its own.

    Raises:
        ValueError: where there are others, or of other shapes; the first difference is named.
    """
    own = to_arrays(tree)
    for name in sorted({*own, *arrays}):
        here, there = (f"{a[name].dtype}{list(a[name].shape)}" if name in a else "none" for a in (own, arrays))
        if here != there:
            raise ValueError(f"{name} is {there} there and {here} here")
    values, rest = eqx.partition(tree, eqx.is_array)
    structure = jax.tree.structure(values)
    return eqx.combine(jax.tree.unflatten(structure, [copied(arrays[name]) for name in own]), rest)


class State:
    """A rule and the state of a party, or of several, taken apart once into arrays and the rest.

    A program gets bare arrays and gives them back. Taking a module apart at each call, and putting it together again,
    takes longer than a small model's round.
    """

    def __init__(self, rule: Tree, party: Tree) -> None:
        self.turn = threading.RLock()
        """Held by the thread that uses the arrays: `move` takes the memory of the old ones."""
        self._rule, self._rule_rest = _apart(rule)
        self.party = party

    @property
    def party(self) -> Tree:
        return _together(self._arrays, self._rest)

    @party.setter
    def party(self, party: Tree) -> None:
        self._arrays, self._rest = _apart(party)
        self._static = _Static((self._rule_rest, self._rest))

    def move(self, program: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
        """Run a program on the state, which becomes the one that it returns; return the rest."""
        with self.turn:
            self._arrays, rest = program(self._static, self._arrays, self._rule, numbers)
        return rest

    def read(self, program: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
        """Run a program that only reads the state; return what it works out."""
        with self.turn:
            return program(self._static, self._arrays, self._rule, numbers)


class _Rest(NamedTuple):
    """What is left of a tree without its arrays."""

    tree: Tree
    """With None in the place of each."""
    structure: Any
    """Of the tree of its arrays."""


def _apart(tree: Tree) -> tuple[tuple[Array, ...], _Rest]:
    """Return copies of a tree's arrays, since programs use their memory again, and the rest."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return tuple(map(copied, leaves)), _Rest(rest, structure)


def _together(arrays: Sequence[Array], rest: _Rest) -> Any:
    """Return the inverse of `_apart`."""
    return eqx.combine(jax.tree.unflatten(rest.structure, arrays), rest.tree)


class _Static:
    """What a program is compiled for beside shapes: equal for parties of equal structure."""

    def __init__(self, rests: tuple[_Rest, _Rest]) -> None:
        self.rests = rests
        self._key = tuple(
            (rest.structure, jax.tree.structure(rest.tree), *jax.tree.leaves(rest.tree)) for rest in rests
        )
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Static) and self._key == other._key)


def program(function: Callable[..., tuple[Tree, Any]]) -> Callable[..., Any]:
    """For `State.move`: the function of a rule, a party and numbers, compiled; the party's memory is used again."""

    @partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=OPTIONS)
    def run(static: _Static, arrays: tuple[Array, ...], rule: tuple[Array, ...], numbers: Any) -> tuple[Any, Any]:
        rule_rest, rest = static.rests
        party, outcome = function(_together(rule, rule_rest), _together(arrays, rest), *numbers)
        return tuple(jax.tree.leaves(eqx.filter(party, eqx.is_array))), outcome

    return run


def reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """For `State.read`: the function of a rule, a party and numbers, compiled."""

    @partial(jax.jit, static_argnums=0, compiler_options=OPTIONS)
    def run(static: _Static, arrays: tuple[Array, ...], rule: tuple[Array, ...], numbers: Any) -> Any:
        rule_rest, rest = static.rests
        return function(_together(rule, rule_rest), _together(arrays, rest), *numbers)

    return run


def _sizes(block: int) -> tuple[int, ...]:
    """Return the lengths for which a program is compiled: powers of four, and the block."""
    sizes = [1]
    while sizes[-1] < block:
        sizes.append(min(sizes[-1] * 4, block))
    return tuple(sizes)


def _size(sizes: Sequence[int], n: int) -> int:
    return next(size for size in sizes if size >= n)


def _padded(rows: Rows, size: int) -> Rows:
    """Return the rows, and the last one again until there are ``size``."""
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def _apply(module: eqx.Module, x: Array) -> Array:
    assert callable(module)
    return module(x)


def _dtype(model: eqx.Module) -> np.dtype[Any]:
    return np.dtype(jnp.result_type(*jax.tree.leaves(parameters(model))))


@compiled
def _init_server(inputs: tuple[Any, ...], model: eqx.Module) -> Party:
    rule, embeddings, rate = inputs
    return init_server(rule, model, embeddings, rate)


@compiled
def _init_client(inputs: tuple[Any, ...], model: eqx.Module) -> Party:
    rule, features, rate = inputs
    return init_client(rule, model, features, rate)


@program
def _empties(rule: Rule, party: Party) -> tuple[Party, tuple]:
    return empty_window(party), ()


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
        server, outcome = server_step(rule, eqx.combine(arrays, rest), embeddings[i], labels[i], rate, first + i)
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
    assert isinstance(rule.update, DLR)
    assert server.window is not None
    return server._replace(window=rule.update.unpushed(server.window, t)), ()


@program
def _server_skips(rule: Rule, server: Party, label: Array, t: Array) -> tuple[Party, tuple]:
    memory, _ = rule.update.recall(server.memory, label, t)
    window = server.window
    if window is not None:
        nothing = jax.tree.map(lambda r: jnp.zeros(r.shape[1:], r.dtype), window.ring)
        window, _ = rule.update.smooth(window, nothing, t)
    return server._replace(memory=memory, window=window), ()


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
def _client_passes(rule: Rule, client: Party, whole: Array) -> tuple[Party, Array]:
    """Push 0 from the first round to before the last; say whether one more would change nothing."""
    assert client.window is not None
    nothing = jax.tree.map(lambda r: jnp.zeros(r.shape[1:], r.dtype), client.window.ring)

    def push(carry: tuple[Array, Window]) -> tuple[Array, Window]:
        t, window = carry
        pushed, _ = rule.update.smooth(window, nothing, t)
        assert pushed is not None
        return t + 1, pushed

    t, window = jax.lax.while_loop(lambda c: c[0] < whole[1], push, (whole[0], client.window))
    _, one_more = push((t, window))
    empty = [~leaf.any() for leaf in jax.tree.leaves(window.ring)]
    same = [(a == b).all() for a, b in zip(*map(jax.tree.leaves, (window.total, one_more.total)), strict=True)]
    return client._replace(window=window), jnp.stack([*empty, *same]).all()


@reading
def _server_looks(rule: Rule, server: Party, embeddings: Array) -> Array:
    dtype = jax.tree.leaves(parameters(server.model))[0].dtype
    return _each(lambda row: _apply(server.model, row.astype(dtype)), embeddings)


@reading
def _client_looks(rule: Rule, client: Party, x: Array) -> Array:
    return _each(lambda row: _apply(client.model, row).astype(rule.wire), x)


def _each(function: Callable[[Array], Array], rows: Array) -> Array:
    """Return a function of each row; of one alone as the simulator computes it, without an axis of rounds."""
    return function(rows[0])[None] if len(rows) == 1 else jax.vmap(function)(rows)
