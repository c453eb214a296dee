"""Drift: class probabilities that change from stage to stage, over any stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError, DataError
from anabranch.streams.base import Block, Stream

QUEUE = 4096
"""The most samples of one class that wait for their round."""
PATIENCE = 100_000
"""How many samples are read in search of a class before it counts as absent."""

_BLOCK = 1024


class Drift(Stream):
    """The samples of ``stream``, drawn so that the class probabilities change every ``every`` rounds.

    Stage ``s`` (rounds ``s · every`` to ``(s + 1) · every − 1``) has probabilities ``p_c = u_c / Σ_c u_c`` with
    ``u_c ~ U(0, 1)``. A round draws its class from them and takes the next sample of this class that ``stream`` gives
    and that was not used before. Samples of other classes wait in a queue for each class, first in, first out; where
    4,096 of a class wait already, a further one is dropped and counted in ``dropped``. So memory does not grow, and
    within a class the order stays that of ``stream``. ``stream`` is read on only when a queue is empty; when it has no
    more samples to give, the drifting stream ends too, at the first round that finds none of its class.

    The labels depend on ``seed``, ``every`` and the number of classes alone.

    Args:
        stream: any stream.
        every: rounds of a stage, at least 1; the paper uses 50.
        seed: a whole number of at least 0.

    Raises:
        ConfigError: ``stream`` is not a stream, or ``every`` or ``seed`` is out of range.
        DataError: while reading, a class does not show up in 100,000 samples, or a label is not in ``0..classes − 1``.

    Source: Wang et al. (ICLR 2025), section 5.3 (the non-stationary stream).

    >>> from anabranch.streams.arrays import from_arrays
    >>> base = from_arrays([np.arange(1000.0).reshape(1000, 1)], np.arange(1000) % 2)
    >>> block = next(Drift(base, every=50, seed=0).blocks())
    >>> int(block.y[:50].sum()), int(block.y[50:100].sum())  # of class 1 in the first two stages
    (12, 4)
    >>> block.x[block.y == 0][:4].ravel()  # class 0 is the even numbers, in their order
    array([0., 2., 4., 6.])
    """

    dropped: int = 0
    """Samples dropped so far by the latest call of ``blocks``."""

    def __init__(self, stream: Stream, every: int = 50, seed: int = 0) -> None:
        if not isinstance(stream, Stream):
            raise ConfigError(f"Drift needs a stream to draw from, not {type(stream).__name__}")
        self.stream = stream
        self.every = whole("every", every, 1)
        self.seed = whole("seed", seed, 0)
        self.widths = stream.widths
        self.classes = stream.classes
        self.endless = stream.endless

    def describe(self) -> dict[str, Any]:
        return {"name": "drift", "every": self.every, "seed": self.seed, "stream": self.stream.describe()}

    def blocks(self) -> Iterator[Block]:
        self.dropped = 0
        queues = _Queues(self)
        for y in self._labels():
            x = queues.take(y)
            if len(x):
                yield Block(x, y[: len(x)])
            if queues.error is not None:
                raise queues.error
            if len(x) < len(y):
                return

    def _labels(self) -> Iterator[NDArray[np.int32]]:
        """Yield the classes of all rounds, ``_BLOCK`` at a time."""
        # Two generators, so that neither a stage's probabilities nor a round's class depends on _BLOCK.
        seeds = np.random.SeedSequence(self.seed).spawn(2)
        of_stages, of_rounds = (np.random.Generator(np.random.PCG64(s)) for s in seeds)
        below = np.empty((0, self.classes - 1))  # cumulative probabilities of the stages that are still needed
        first = 0  # the stage of its first row
        start = 0
        while True:
            stage = np.arange(start, start + _BLOCK) // self.every
            below = below[stage[0] - first :]
            first = int(stage[0])
            new = int(stage[-1]) + 1 - first - len(below)
            cumulative = np.cumsum(of_stages.random((new, self.classes)), axis=1)
            below = np.concatenate([below, cumulative[:, :-1] / cumulative[:, -1:]])
            u = of_rounds.random(_BLOCK)
            yield (u[:, None] >= below[stage - first]).sum(axis=1, dtype=np.int32)
            start += _BLOCK


class _Queues:
    """Samples that wait for their round: rows in one array, and for each class the queue of its rows' numbers."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self.source = drift.stream.blocks()
        self.rows: NDArray[Any] = np.empty((0, 0))
        self.free: list[int] = []
        self.queues: list[deque[int]] = [deque() for _ in range(drift.classes)]
        # The samples of the source's latest block that were not looked at yet, as (class, row).
        self.unread: Iterator[tuple[int, int]] = iter(())
        self.error: DataError | None = None
        """What stopped the latest ``take``: the samples found before it come first."""

    def take(self, labels: NDArray[np.int32]) -> NDArray[Any]:
        """(k, d): the next sample of each of ``labels``; fewer rows than labels where the source ends or fails."""
        queues = self.queues
        taken: list[int] = []
        for label in labels.tolist():
            queue = queues[label]
            try:
                row = queue.popleft() if queue else self._search(label)
            except DataError as error:
                self.error, row = error, None
            if row is None:
                break
            taken.append(row)
        x = np.take(self.rows, taken, axis=0) if taken else self.rows[:0]
        self.free += taken  # Only now: rows must not be overwritten by a block read above.
        return x

    def _search(self, label: int) -> int | None:
        """Read on to the next sample of class ``label``, queueing the others; None where the source ends."""
        queues = self.queues
        seen = 0
        while True:
            for kind, row in self.unread:
                if kind == label:
                    return row
                seen += 1
                if seen >= PATIENCE:
                    raise DataError(f"class {label} did not show up in {PATIENCE:,} samples of the stream under drift")
                queue = queues[kind]
                if len(queue) < QUEUE:
                    queue.append(row)
                else:
                    self.free.append(row)
                    self.drift.dropped += 1
            if not self._read():
                return None

    def _read(self) -> bool:
        """Store the next block of the source, False where there is none."""
        block = next(self.source, None)
        if block is None:
            return False
        x, y = np.asarray(block.x), np.asarray(block.y)
        bad = (y < 0) | (y >= self.drift.classes)
        if bad.any():
            raise DataError(
                f"label {y[np.argmax(bad)]} of the stream under drift is not in 0..{self.drift.classes - 1}"
            )
        if len(self.free) < len(x):
            self._grow(len(x), x)
        rows = self.free[-len(x) :]
        del self.free[-len(x) :]
        self.rows[rows] = x
        self.unread = iter(list(zip(y.tolist(), rows, strict=True)))
        return True

    def _grow(self, n: int, like: NDArray[Any]) -> None:
        old = len(self.rows)
        rows = np.empty((max(2 * old, old + n), like.shape[1]), like.dtype)
        rows[:old] = self.rows.reshape(old, like.shape[1])
        self.rows = rows
        self.free += range(len(rows) - 1, old - 1, -1)
