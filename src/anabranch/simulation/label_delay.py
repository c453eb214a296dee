"""Labels that come after their events: which rounds follow which events, and what the delay came to.

Event ``i`` happens at tick ``i``, and its label arrives at tick ``i + d_i``. In a tick the event is predicted first,
with the parameters of that moment. Then each label that arrives in the tick is learnt from in a round of its own, in
the order of their events. Rounds are numbered as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError
from anabranch.simulation.chunks import Chunk, Late
from anabranch.simulation.delays import Delay

LEARNINGS = ("fresh", "stored")
Learning: TypeAlias = Literal["fresh", "stored"]
"""From which embeddings the server learns: of the round's parameters, or those that it predicted from."""

_NEVER = np.iinfo(np.int64).max


class Lateness(NamedTuple):
    """How a run's labels come late."""

    delay: Delay
    learning: Learning
    slots: int
    """For what is kept of events that wait: event ``i`` has slot ``i mod slots``, and nobody needs it any more when
    the next one comes."""


class LateChunks(Iterator[Chunk]):
    """Chunks of rounds, each with the events that happen meanwhile.

    Args:
        chunks: of events.
        lateness: of their labels.
        seed: that the delays are drawn from.
        decide: whom the events of a chunk activate, the first of which is event ``begun``.
        nothing: a chunk without a sample, of the shape of all others.
        clients: ``M``
        whole: whether no chunk goes past a round whose number is a multiple of the length of ``nothing``.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        lateness: Lateness,
        seed: int,
        decide: Callable[[int, Chunk], NDArray[np.bool_]],
        nothing: Chunk,
        clients: int,
        *,
        whole: bool,
    ) -> None:
        self._lateness, self._seed, self._decide, self._nothing = lateness, seed, decide, nothing
        self._length = len(nothing.y)
        self._happened = self._learnt = 0
        self._whole = whole
        # Of the events that wait for their label; a row whose label is due never is free.
        self._due = np.full(self._length, _NEVER)
        self._event = np.zeros(self._length, np.int64)
        self._x = np.zeros_like(nothing.x)
        self._y = np.zeros_like(nothing.y)
        self._active = np.zeros((self._length, clients), bool)
        self._chunks = self._all(chunks)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def _all(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            begun, self._happened = self._happened, self._happened + chunk.rows
            self._wait(begun, chunk)
            yield from self._learnable(begun, chunk, self._happened)
        if (self._due != _NEVER).any():  # no more events, and the labels that have not come yet
            yield from self._learnable(self._happened, self._nothing, _NEVER)

    def _wait(self, begun: int, chunk: Chunk) -> None:
        """Keep the chunk's events until their labels come."""
        rows = chunk.rows
        delays = np.asarray(self._lateness.delay.draw(self._seed, begun, self._length))
        wrong = delays.shape != (self._length,) or not np.issubdtype(delays.dtype, np.integer)
        if wrong or (delays < 0).any() or (delays > self._lateness.delay.most).any():
            raise ConfigError(
                f"label_delay {type(self._lateness.delay).__name__}: draw must return {self._length} whole numbers "
                f"from 0 to its most, {self._lateness.delay.most:,}"
            )
        active = self._decide(begun, chunk)
        free = np.flatnonzero(self._due == _NEVER)[:rows]
        if len(free) < rows:
            self._grow()
            free = np.flatnonzero(self._due == _NEVER)[:rows]
        self._event[free] = np.arange(begun, begun + rows)
        self._due[free] = self._event[free] + delays[:rows]
        self._x[free], self._y[free], self._active[free] = chunk.x[:rows], chunk.y[:rows], active[:rows]

    def _grow(self) -> None:
        """Twice as many rows."""
        more = len(self._due)
        self._due = np.concatenate([self._due, np.full(more, _NEVER)])
        for name in ("_event", "_x", "_y", "_active"):
            held = getattr(self, name)
            setattr(self, name, np.concatenate([held, np.zeros((more, *held.shape[1:]), held.dtype)]))

    def _learnable(self, begun: int, chunk: Chunk, until: int) -> Iterator[Chunk]:
        """Yield the chunk's events, and the rounds of the labels that come before tick ``until``; at least one
        chunk.
        """
        due = np.flatnonzero(self._due < until)
        due = due[np.lexsort((self._event[due], self._due[due]))]
        before = np.minimum(self._due[due] + 1 - begun, chunk.rows)
        start = 0
        most = self._length - self._learnt % self._length if self._whole else self._length
        cuts = range(most, len(due), self._length)
        for first, last in pairwise([0, *cuts, len(due)]):
            end = chunk.rows if last == len(due) else int(before[last - 1])
            yield self._one(begun + start, chunk.x[start:end], due[first:last], before[first:last] - start)
            start = end
        self._learnt += len(due)
        self._due[due] = _NEVER

    def _one(self, first: int, x: NDArray[Any], due: NDArray[np.intp], before: NDArray[np.int64]) -> Chunk:
        numbers = self._event[due]
        slots = self._lateness.slots
        late = Late(
            x=self._padded(x),
            events=len(x),
            into=((first + np.arange(self._length)) % slots).astype(np.int32),
            before=self._padded(before.astype(np.int32)),
            out=self._padded((numbers % slots).astype(np.int32)),
            active=self._padded(self._active[due]),
            first=first,
            numbers=self._padded(numbers),
            delays=self._padded(self._due[due] - numbers),
        )
        return Chunk(self._padded(self._x[due]), self._padded(self._y[due]), len(due), late)

    def _padded(self, rows: NDArray[Any]) -> NDArray[Any]:
        missing = self._length - len(rows)
        return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)]) if missing else rows


def no_events(nothing: Chunk, clients: int) -> Chunk:
    """Return a chunk without a round in which nothing happens either."""
    n = len(nothing.y)
    none, zeros = np.zeros(n, np.int32), np.zeros(n, np.int64)
    return nothing._replace(late=Late(nothing.x, 0, none, none, none, np.zeros((n, clients), bool), 0, zeros, zeros))


class LateLabels(NamedTuple):
    """What it came to that labels arrived after their events; of the rounds that were done."""

    events: int
    """How many happened, each predicted once; as many as rounds, unless the run ended before all labels were there."""
    mean_delay: float
    """How many events later a label came; NaN where none did."""
    longest_delay: int
    most_waiting: int
    """Events that were predicted and waited for their label at the same time."""
    prediction_bytes: NDArray[np.int64]
    """(M,): payload up that is not in ``traffic``: with ``fresh`` the embeddings that events were predicted from, with
    ``stored`` those whose label did not come before the run ended."""
    steps_behind: NDArray[np.int64]
    """(M,): the most steps that a client had made between an embedding and the step along its derivative; 0 with
    ``fresh``, whose derivatives belong to embeddings of the round."""


class LateTally:
    """Adds up what the delay came to, chunk by chunk.

    Args:
        lateness: of the labels.
        length: of a chunk.
        sizes: (M,), the bytes of each client's embedding.
    """

    def __init__(self, lateness: Lateness, length: int, sizes: NDArray[np.int64]) -> None:
        self._stored = lateness.learning == "stored"
        self._sizes = sizes
        self._events = self._rounds = self._sum = self._longest = self._waiting = 0
        self._steps = np.zeros(len(sizes), np.int64)
        self._behind = np.zeros(len(sizes), np.int64)
        # How many steps each client had made when an event happened. A chunk is counted as a whole, so it has slots
        # for the events of one more than wait.
        self._made = np.zeros((lateness.slots + length if self._stored else 0, len(sizes)), np.int64)

    def add(self, late: Late, happened: int, active: NDArray[np.bool_]) -> None:
        """Some rounds, whose events activated these clients (n, M), and the events that happened meanwhile."""
        rounds = len(active)
        before, delays = late.before[:rounds].astype(np.int64), late.delays[:rounds]
        self._sum += int(delays.sum())
        self._longest = max(self._longest, int(delays.max(initial=0)))
        waiting = self._events + np.append(before, happened) - (self._rounds + np.arange(rounds + 1))
        self._waiting = max(self._waiting, int(waiting.max()))
        if self._stored:
            steps = self._steps + np.pad(np.cumsum(active, axis=0), ((1, 0), (0, 0)))
            events = np.arange(happened)
            self._made[(late.first + events) % len(self._made)] = steps[np.searchsorted(before, events, side="right")]
            behind = steps[:-1] - self._made[late.numbers[:rounds] % len(self._made)]
            self._behind = np.maximum(self._behind, (behind * active).max(axis=0, initial=0))
            self._steps = steps[-1]
        self._events += happened
        self._rounds += rounds

    def labels(self) -> LateLabels:
        """What it has come to so far."""
        return LateLabels(
            events=self._events,
            mean_delay=self._sum / self._rounds if self._rounds else float("nan"),
            longest_delay=self._longest,
            most_waiting=self._waiting,
            prediction_bytes=(self._events - (self._rounds if self._stored else 0)) * self._sizes,
            steps_behind=self._behind,
        )
