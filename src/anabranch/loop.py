"""The compiled loop: rounds without a visit to Python."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from anabranch.activation import Mask
from anabranch.chunks import Chunk
from anabranch.compiling import compiled
from anabranch.models import Group, SplitModel
from anabranch.party import Measures, Rule
from anabranch.round import Federation, init_federation, measured, play_round


class Played(NamedTuple):
    """A chunk that the compiled loop works on or has done; its arrays may still be in the making."""

    chunk: Chunk
    active: Mask
    predictions: Int[Array, " n"]
    done: Int[Array, ""]
    """How many rounds were begun: all of the chunk's, or up to and with the first that had trouble."""
    trouble: Int[Array, ""]
    measures: Measures | None
    """(n,) each, or None where nothing is measured."""


class LearningRates(NamedTuple):
    """The learning rates of every party in every round: ``η_t = η · t^(−power)``, rounds counted from 1 here.

    >>> LearningRates(np.array([0.1, 0.2]), power=0.5).of(3, 2, np.dtype("float32"))[0]  # of round 4
    array([0.05, 0.1 ], dtype=float32)
    """

    first: NDArray[np.float64]
    """(M + 1,): of the first round, the server's first."""
    power: float

    def of(self, begun: int, rounds: int, dtype: np.dtype[Any]) -> NDArray[np.floating[Any]]:
        """(n, M + 1): those of ``rounds`` rounds, before which ``begun`` were played; one row where they do not fall.

        Of one row the compiler knows that it stays, and prepares the steps' factors before the first round. A step may
        round in another way without that, so rates that fall have two rows even for one round: then the bits do not
        depend on the chunk.
        """
        rows = max(rounds, 2) if self.power else 1
        t = np.arange(begun + 1, begun + rows + 1, dtype=np.float64)[:, None]
        return (self.first * t**-self.power).astype(dtype)


class Loop:
    """The compiled loop over a chunk, and the parties' state in it."""

    def __init__(
        self, layout: tuple[Group, ...], rule: Rule, rates: LearningRates, model: SplitModel, nothing: Chunk
    ) -> None:
        self._fixed = (layout, rule)
        self._rates = rates
        self.federation = _init(layout, rule, rates.of(0, 1, nothing.x.dtype)[0], model)
        self._trouble = jnp.zeros((), jnp.int32)
        nobody = np.zeros((len(nothing.y), len(model.clients)), bool)
        jax.block_until_ready(self.play(nothing, nobody, 0).done)  # compiles, and plays no round

    def play(self, chunk: Chunk, active: Mask, begun: int) -> Played:
        """Starts on the chunk's rounds, the first of which is round ``begun``, and returns at once."""
        # Every number that changes is an array, so that it is an argument of the compiled program.
        rates = self._rates.of(begun, len(chunk.y), chunk.x.dtype)
        numbers = (chunk.x, chunk.y, active, rates, np.asarray(chunk.rows, np.int32), np.asarray(begun, np.int32))
        inputs = (self._fixed, numbers, self._trouble)
        self.federation, predictions, done, self._trouble, measures = _play(inputs, self.federation)
        return Played(chunk, active, predictions, done, self._trouble, measures)


_init = compiled(init_federation)
"""In one program: one compilation, and arrays of its own, so that `_play` may use their memory again."""


@partial(compiled, donate="all-except-first")
def _play(inputs: tuple[Any, ...], federation: Federation) -> tuple[Federation, Array, Array, Array, Measures | None]:
    """The chunk's rounds, one after another, until something is not finite."""
    (layout, rule), (x, y, active, rates, rows, begun), trouble = inputs
    arrays, rest = eqx.partition(federation, eqx.is_array)

    def play(carry: tuple) -> tuple:
        i, arrays, _, predictions, measures = carry
        now = rates[jnp.minimum(i, len(rates) - 1)]
        federation, outcome = play_round(layout, rule, now, eqx.combine(arrays, rest), x[i], y[i], active[i], begun + i)
        arrays = eqx.filter(federation, eqx.is_array)
        measures = jax.tree.map(lambda all, one: all.at[i].set(one), measures, measured(federation))
        return i + 1, arrays, outcome.trouble, predictions.at[i].set(outcome.prediction), measures

    nothing = jax.tree.map(lambda one: jnp.zeros(len(y), one.dtype), measured(federation))
    start = (jnp.zeros((), jnp.int32), arrays, trouble, jnp.zeros(len(y), jnp.int32), nothing)
    done, arrays, trouble, predictions, measures = jax.lax.while_loop(
        lambda c: (c[0] < rows) & (c[2] == 0), play, start
    )
    return eqx.combine(arrays, rest), predictions, done, trouble, measures
