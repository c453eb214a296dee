"""Many runs of one shape as one compiled program, for a device that is faster on a batch than on one run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from anabranch.core.activation import Mask
from anabranch.core.compiling import compiled
from anabranch.core.party import Measures
from anabranch.core.round import Federation, init_federation, measured, play_round
from anabranch.core.types import Round
from anabranch.simulation.chunks import Chunk
from anabranch.simulation.loop import Played
from anabranch.simulation.run_setup import Prepared, state_bytes

BATCH_BYTES = 2 * 2**30
"""So much of the device's memory a batch may take, by the estimate of `most_together`."""
MOST = 256
"""Of runs in a batch. By then a device is busy, and the streams on the host set the pace."""
COPIES = 3
"""Of a run's state that a batch may hold at a time: before a round, after it, and the gradients between."""

Tree = TypeVar("Tree")


class Feed(NamedTuple):
    """What one run of a batch plays next."""

    chunk: Chunk
    active: Mask


class Seen(NamedTuple):
    """What is seen of a chunk's rounds in each run; of one round and one run within the program."""

    predictions: Int[Array, "n B"]
    troubles: Int[Array, "n B"]
    """One of `anabranch.core.party.TROUBLES` each."""
    measures: Measures | None
    """(n, B) each, or None where nothing is measured."""


class Batch:
    """The compiled loop over a chunk of every run, and the state of all their parties in it.

    No run ends the loop for the others. Whoever counts leaves out what a run's program went on with after its last
    sample, or after a round that had trouble.

    Args:
        runs: of the same `shape`.
    """

    def __init__(self, runs: Sequence[Prepared]) -> None:
        self._rates = [run.rates for run in runs]
        self._nothing = Feed(runs[0].nothing, np.zeros((len(runs[0].nothing.y), len(runs[0].model.clients)), bool))
        self._fixed = (runs[0].layout, _stacked([run.rule for run in runs]))
        first = self._rates_of(0)[0]
        self._federations = _init(self._fixed, first, _stacked([run.model for run in runs]))
        jax.block_until_ready(self.play({}, 0))  # compiles, and plays no round

    def play(self, feeds: Mapping[int, Feed], begun: int) -> Seen:
        """Start on these runs' chunks, the first rounds of which are round ``begun``, and return at once.

        Args:
            feeds: by the run's place in the batch; a run without one goes on with nothing.
            begun: how many rounds were played before, the same for all.
        """
        each = [feeds.get(place, self._nothing) for place in range(len(self._rates))]
        # A round's numbers of all runs lie together, since the program reads them round by round.
        x, y, active = (
            np.stack(rows, axis=1)
            for rows in zip(*((feed.chunk.x, feed.chunk.y, feed.active) for feed in each), strict=True)
        )
        rows = max(feed.chunk.rows for feed in each)
        numbers = (x, y, active, self._rates_of(begun), np.asarray(rows, np.int32), np.asarray(begun, np.int32))
        self._federations, seen = _play((self._fixed, numbers), self._federations)
        return seen

    def _rates_of(self, begun: int) -> np.ndarray:
        """(n, B, M + 1): every run's learning rates in the chunk's rounds; one row where none of them falls."""
        each = [rates.of(begun, len(self._nothing.chunk.y), self._nothing.chunk.x.dtype) for rates in self._rates]
        rows = max(map(len, each))
        return np.stack([np.broadcast_to(rates, (rows, rates.shape[1])) for rates in each], axis=1)


def played(feeds: Mapping[int, Feed], seen: Seen) -> dict[int, Played]:
    """What each run has played, up to and with the first round that had trouble; waits for the program."""
    predictions, troubles, measures = jax.device_get(seen)
    found = {}
    for place, (chunk, active) in feeds.items():
        codes = troubles[: chunk.rows, place]
        bad = codes.nonzero()[0]
        done: Any = bad[0] + 1 if len(bad) else chunk.rows
        trouble: Any = codes[bad[:1]].sum()
        found[place] = Played(
            chunk=chunk,
            active=active,
            predictions=predictions[:, place],
            done=done,
            trouble=trouble,
            measures=jax.tree.map(lambda each, place=place: each[:, place], measures),
        )
    return found


def shape(run: Prepared) -> Hashable:
    """Return the same for two runs where one compiled program plays both: all but the numbers in their arrays."""
    leaves, structure = jax.tree.flatten((run.layout, run.rule, run.model, run.nothing))
    return structure, tuple((leaf.shape, str(leaf.dtype)) if eqx.is_array(leaf) else leaf for leaf in leaves)


def most_together(run: Prepared) -> int:
    """Return how many runs of this one's shape a batch may have."""
    held = state_bytes(run.layout, run.rule, run.rates, run.model)
    # Beside the chunk that is played, the next one is there.
    return max(1, min(MOST, BATCH_BYTES // (COPIES * held + 2 * run.nothing.x.nbytes)))


@compiled
def _init(fixed: tuple[Any, ...], rates: Array, models: Any) -> Federation:
    layout, rules = fixed
    return eqx.filter_vmap(partial(init_federation, layout))(rules, rates, models)


@partial(compiled, donate="all-except-first")
def _play(inputs: tuple[Any, ...], federations: Federation) -> tuple[Federation, Seen]:
    """Return the chunks' rounds, one after another, each in all runs at once."""
    (layout, rules), (x, y, active, rates, rows, begun) = inputs
    arrays, rest = eqx.partition(federations, eqx.is_array)

    def one(rule: Any, federation: Federation, rates: Array, x: Array, label: Array, active: Array, t: Round) -> Any:
        federation, outcome = play_round(layout, rule, rates, federation, x, label, active, t)
        return federation, Seen(outcome.prediction, outcome.trouble, measured(federation))

    # The round's number is that of all runs: with one for each, a slot of a ring could not be written in place.
    every = eqx.filter_vmap(one, in_axes=(*[eqx.if_array(0)] * 6, None))

    def play(i: Array, carry: tuple[Any, Seen]) -> tuple[Any, Seen]:
        arrays, seen = carry
        step = rates[jnp.minimum(i, len(rates) - 1)]
        federations, now = every(rules, eqx.combine(arrays, rest), step, x[i], y[i], active[i], begun + i)
        return eqx.filter(federations, eqx.is_array), jax.tree.map(lambda all, one: all.at[i].set(one), seen, now)

    _, now = eqx.filter_eval_shape(every, rules, federations, rates[0], x[0], y[0], active[0], begun)
    nothing = jax.tree.map(lambda one: jnp.zeros((len(y), *one.shape), one.dtype), now)
    # A loop that ended for each run by itself would choose between all old and all new state in every round.
    arrays, seen = jax.lax.fori_loop(0, rows, play, (arrays, nothing))
    return eqx.combine(arrays, rest), seen


def _stacked(trees: Sequence[Tree]) -> Tree:
    """Equal trees as one, each array with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)
