"""The state of one party as bare arrays, and the programs that move it on.

A party of a federation computes by itself, with the same `encode`, `server_step` and `client_step` as the simulator.
On a CPU the bits are the same. A block holds the rounds that are in flight together; with one in flight it is one
round.
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

from anabranch.core.compiling import OPTIONS, copied
from anabranch.core.gradients import parameters
from anabranch.core.party import Party, Rule, empty_window
from anabranch.core.types import Tree

Rows = NDArray[Any]
"""An array whose first axis counts the rounds of a block."""
Pending: TypeAlias = tuple[NDArray[Any], ...]
"""What a client keeps of a round until its derivative comes: the arrays of its pullback."""
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


class Compute:
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


@program
def _empties(rule: Rule, party: Party) -> tuple[Party, tuple]:
    return empty_window(party), ()


def sizes_of(block: int) -> tuple[int, ...]:
    """Return the lengths for which a program is compiled: powers of four, and the block."""
    sizes = [1]
    while sizes[-1] < block:
        sizes.append(min(sizes[-1] * 4, block))
    return tuple(sizes)


def size_of(sizes: Sequence[int], n: int) -> int:
    return next(size for size in sizes if size >= n)


def padded(rows: Rows, size: int) -> Rows:
    """Return the rows, and the last one again until there are ``size``."""
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def apply(module: eqx.Module, x: Array) -> Array:
    assert callable(module)
    return module(x)


def dtype_of(model: eqx.Module) -> np.dtype[Any]:
    return np.dtype(jnp.result_type(*jax.tree.leaves(parameters(model))))


def each_row(function: Callable[[Array], Array], rows: Array) -> Array:
    """Return a function of each row; of one alone as the simulator computes it, without an axis of rounds."""
    return function(rows[0])[None] if len(rows) == 1 else jax.vmap(function)(rows)
