"""The compiled loop: rounds without a visit to Python."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from anabranch.core.activation import Mask
from anabranch.core.compiling import compiled
from anabranch.core.models import Group, SplitModel
from anabranch.core.party import Measures, Rule
from anabranch.core.party_programs import from_arrays
from anabranch.core.round import Federation, emptied, init_federation, measured, play_round, predict_event
from anabranch.simulation.chunks import Chunk, Late
from anabranch.simulation.label_delay import Lateness, no_events


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
    happened: Int[Array, ""] | None = None
    """How many of the chunk's events were predicted; None where labels come at once."""
    sizes: Float[Array, "n M"] | None = None
    """Of the embeddings that the server learnt from, where they are watched."""


class Kept(NamedTuple):
    """What is kept of events whose labels come later, by their slots."""

    predictions: Int[Array, " s"]
    embeddings: Float[Array, "s e"] | None
    """Those that the predictions were made from, where they are learnt from later."""


class LearningRates(NamedTuple):
    """The learning rates of every party in every round: ``η_t = η · t^(−power)``, rounds counted from 1 here.

    >>> LearningRates(np.array([0.1, 0.2]), power=0.5).of(3, 2, np.dtype("float32"))[0]  # of round 4
    array([0.05, 0.1 ], dtype=float32)
    """

    first: NDArray[np.float64]
    """(M + 1,): of the first round, the server's first."""
    power: float

    def of(self, begun: int, rounds: int, dtype: np.dtype[Any], factor: float = 1.0) -> NDArray[np.floating[Any]]:
        """(n, M + 1): those of ``rounds`` rounds, before which ``begun`` were played; one row where they do not fall.

        All are multiplied by ``factor``.

        Of one row the compiler knows that it stays, and prepares the steps' factors before the first round. A step may
        round in another way without that, so rates that fall have two rows even for one round: then the bits do not
        depend on the chunk.
        """
        rows = max(rounds, 2) if self.power else 1
        t = np.arange(begun + 1, begun + rows + 1, dtype=np.float64)[:, None]
        return (factor * self.first * t**-self.power).astype(dtype)


class Loop:
    """The compiled loop over a chunk, and the parties' state in it."""

    def __init__(
        self,
        layout: tuple[Group, ...],
        rule: Rule,
        rates: LearningRates,
        model: SplitModel,
        nothing: Chunk,
        lateness: Lateness | None = None,
    ) -> None:
        self._fixed = (layout, rule)
        self._rates = rates
        self.federation = _init(layout, rule, rates.of(0, 1, nothing.x.dtype)[0], model)
        self._kept = None if lateness is None else _nothing_kept(layout, rule, lateness)
        if lateness is not None:
            nothing = no_events(nothing, len(model.clients))
        self._trouble = jnp.zeros((), jnp.int32)
        nobody = np.zeros((len(nothing.y), len(model.clients)), bool)
        jax.block_until_ready(self.play(nothing, nobody, 0).done)  # compiles, and plays no round

    def play(self, chunk: Chunk, active: Mask, begun: int, factor: float = 1.0) -> Played:
        """Start on the chunk's rounds, the first of which is round ``begun``, and return at once.

        Learning rates are multiplied by ``factor``.
        """
        # Every number that changes is an array, so that it is an argument of the compiled program.
        rates = self._rates.of(begun, len(chunk.y), chunk.x.dtype, factor)
        numbers = (chunk.x, chunk.y, active, rates, np.asarray(chunk.rows, np.int32), np.asarray(begun, np.int32))
        late = None if chunk.late is None else _Events.of(chunk.late)
        inputs = (self._fixed, numbers, late, self._trouble)
        state, predictions, done, self._trouble, (measures, sizes), happened = _play(
            inputs, (self.federation, self._kept)
        )
        self.federation, self._kept = state
        return Played(chunk, active, predictions, done, self._trouble, measures, happened, sizes)

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from the parties' states of another loop, as `anabranch.core.party_programs.to_arrays` gave them.

        Raises:
            ValueError: if they are those of another model or update.
        """
        self.federation = from_arrays(self.federation, arrays)

    def reset(self) -> None:
        """Empty every party's window of gradients."""
        self.federation = _emptied(self.federation)


class _Events(NamedTuple):
    """What the compiled loop needs of `anabranch.simulation.chunks.Late`."""

    x: Any
    into: Any
    before: Any
    out: Any
    events: Any

    @classmethod
    def of(cls, late: Late) -> _Events:
        return cls(late.x, late.into, late.before, late.out, np.asarray(late.events, np.int32))


_init = compiled(init_federation)
"""In one program: one compilation, and arrays of its own, so that `_play` may use their memory again."""
_emptied = compiled(emptied)


def _nothing_kept(layout: tuple[Group, ...], rule: Rule, lateness: Lateness) -> Kept:
    width = sum(group.size * group.embedding for group in layout)
    stored = lateness.learning == "stored"
    embeddings = jnp.zeros((lateness.slots, width), rule.wire) if stored else None
    return Kept(jnp.zeros(lateness.slots, jnp.int32), embeddings)


_Seen: TypeAlias = tuple[Measures | None, Array | None]
"""The measures of every round, and the sizes of its embeddings, each where it is asked for."""


@partial(compiled, donate="all-except-first")
def _play(
    inputs: tuple[Any, ...], state: tuple[Federation, Kept | None]
) -> tuple[tuple[Federation, Kept | None], Array, Array, Array, _Seen, Array | None]:
    """Return the chunk's rounds, one after another, until something is not finite.

    Where labels come late, the events that happen before a round are predicted before it, and the round's prediction is
    the one that was made of its event then.
    """
    (layout, rule), (x, y, active, rates, rows, begun), late, trouble = inputs
    federation, kept = state
    arrays, rest = eqx.partition(federation, eqx.is_array)

    def happen(arrays: Any, ahead: Any, until: Array) -> Any:
        """Predict the events before ``until``; it carries no parameters, so that none are copied."""

        def one(ahead: tuple) -> tuple:
            j, kept = ahead
            prediction, embeddings = predict_event(layout, rule, eqx.combine(arrays, rest), late.x[j])
            new = Kept(prediction, None if kept.embeddings is None else embeddings)
            return j + 1, jax.tree.map(lambda all, one: all.at[late.into[j]].set(one), kept, new)

        return jax.lax.while_loop(lambda ahead: ahead[0] < until, one, ahead)

    def play(carry: tuple) -> tuple:
        i, arrays, _, predictions, seen, ahead = carry
        if ahead is not None:
            ahead = happen(arrays, ahead, late.before[i])
        then = None if ahead is None else jax.tree.map(lambda all: all[late.out[i]], ahead[1])
        now = rates[jnp.minimum(i, len(rates) - 1)]
        # No class is below 0, which the compiler does not know. So the round waits for its prediction; nobody needs the
        # old parameters after that, and it steps in place.
        row = i if then is None else i + jnp.minimum(then.predictions, 0)
        federation, outcome = play_round(
            layout, rule, now, eqx.combine(arrays, rest), x[i], y[row], active[i], begun + i,
            kept=None if then is None else then.embeddings,
        )  # fmt: skip
        prediction = outcome.prediction if then is None else then.predictions
        arrays = eqx.filter(federation, eqx.is_array)
        seen = jax.tree.map(lambda all, one: all.at[i].set(one), seen, (measured(federation), outcome.sizes))
        return i + 1, arrays, outcome.trouble, predictions.at[i].set(prediction), seen, ahead

    zero = jnp.zeros((), jnp.int32)
    nothing = (
        jax.tree.map(lambda one: jnp.zeros(len(y), one.dtype), measured(federation)),
        jnp.zeros(active.shape, x.dtype) if rule.watch else None,
    )
    ahead = None if late is None else (zero, kept)
    start = (zero, arrays, trouble, jnp.zeros(len(y), jnp.int32), nothing, ahead)
    done, arrays, trouble, predictions, seen, ahead = jax.lax.while_loop(
        lambda c: (c[0] < rows) & (c[2] == 0), play, start
    )
    happened = None
    if ahead is not None:
        happened, kept = happen(arrays, ahead, jnp.where(trouble == 0, late.events, ahead[0]))
    return (eqx.combine(arrays, rest), kept), predictions, done, trouble, seen, happened
