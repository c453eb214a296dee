"""A stream that every party reads for itself and takes its own part of: labels, or one client's features.

It stands for what the parties of a real federation hold. An event's name is the number of its row.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.federation.late_labels import Happening
from anabranch.simulation.chunks import Chunk
from anabranch.simulation.delays import Delay

NAME = 8
"""Bytes of an event's name."""
HELD = 20_000
"""Rows, at least, that are held for what is asked for again."""

Chunks = Callable[[], Iterator[Chunk]]
"""The stream's chunks from the first on; each call begins anew, with the same samples."""


def name_of(row: int) -> bytes:
    """Return the name of the event that row ``row`` is."""
    return row.to_bytes(NAME, "big")


def row_of(event: bytes) -> int | None:
    """Return the inverse of `name_of`; None where it is the name of no row."""
    return int.from_bytes(event, "big") if len(event) == NAME else None


class Rows:
    """The rows of a stream, near to where one reads; a row from long ago makes it begin anew."""

    def __init__(self, chunks: Chunks, most: int | None = None) -> None:
        self._chunks = chunks
        self._end = most
        """No row has this number or a greater one; None while that is not known."""
        self._begin()

    def _begin(self) -> None:
        self._left = self._chunks()
        self._held: deque[tuple[int, Chunk]] = deque()
        self._read = 0

    def chunk(self, row: int) -> tuple[int, Chunk] | None:
        """Return the chunk that has the row, and the number of its first one; None where the stream ended before."""
        if self._end is not None and row >= self._end:
            return None
        if self._held and row < self._held[0][0]:
            self._begin()
        while row >= self._read:
            chunk = next(self._left, None)
            if chunk is None:
                self._end = self._read
                return None
            # A chunk's memory is used again for the next one.
            self._held.append((self._read, Chunk(chunk.x.copy(), chunk.y.copy(), chunk.rows)))
            self._read += chunk.rows
            while self._read - self._held[0][0] - self._held[0][1].rows >= HELD:
                self._held.popleft()
        return next((first, chunk) for first, chunk in reversed(self._held) if first <= row)


class ReplaySamples:
    """The events and labels of a stream, for the server.

    Args:
        chunks: of the stream.
        rounds: how many; None is all.
    """

    def __init__(self, chunks: Chunks, rounds: int | None) -> None:
        self._rows, self._rounds, self._next = Rows(chunks), rounds, 0
        self.over = rounds == 0

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """Return the next ``n`` events and their labels."""
        taken: list[tuple[bytes, int]] = []
        while len(taken) < n and not self.over:
            found = self._rows.chunk(self._next) if self._next != self._rounds else None
            if found is None:
                self.over = True
                break
            first, chunk = found
            taken.append((name_of(self._next), int(chunk.y[self._next - first])))
            self._next += 1
        self.over = self.over or self._next == self._rounds
        return taken

    async def more(self) -> None:
        """A stream's rows are there at once."""
        await asyncio.sleep(0)

    def label(self, event: bytes) -> int | None:
        """None: events come from the stream, each of them once and in its order."""
        return None

    def go_on(self, rounds: int) -> None:
        """So many were taken before."""
        self._next = rounds
        self.over = self._next == self._rounds


class ReplayHappenings:
    """The events of a stream, and their labels so many events later.

    Args:
        chunks: of the stream.
        rounds: how many events; None is all.
        delay: of the labels.
        seed: that the delays are drawn from.
    """

    found_none = 0

    def __init__(self, chunks: Chunks, rounds: int | None, delay: Delay, seed: int) -> None:
        self._chunks, self._rounds, self._delay, self._seed = chunks, rounds, delay, seed
        self._left = self._all()
        self.over = False

    def _all(self) -> Iterator[Happening]:
        """As `anabranch.simulate` orders them: in a tick the event, and then the labels that come in it."""
        due: list[tuple[int, int, int]] = []
        i = 0
        for chunk in self._chunks():
            rows = chunk.rows if self._rounds is None else min(chunk.rows, self._rounds - i)
            delays, labels = self._delay.draw(self._seed, i, rows).tolist(), chunk.y[:rows].tolist()
            for delay, label in zip(delays, labels, strict=True):
                yield Happening(name_of(i))
                heapq.heappush(due, (i + delay, i, label))
                while due and due[0][0] <= i:
                    yield Happening(name_of(due[0][1]), heapq.heappop(due)[2])
                i += 1
            if i == self._rounds:
                break
        for _, event, label in sorted(due):
            yield Happening(name_of(event), label)

    def take(self, n: int) -> list[Happening]:
        """Return the next ``n``."""
        taken = list(islice(self._left, n))
        self.over = len(taken) < n
        return taken

    async def more(self) -> None:
        """A stream's rows are there at once."""
        await asyncio.sleep(0)

    def go_on(self, happened: int, labelled: int) -> None:
        """So many events and labels were taken before, the first ones of each."""
        counts = [happened, labelled]

        def is_left(each: Happening) -> bool:
            late = each.label is not None
            counts[late] -= 1
            return counts[late] < 0

        self._left = filter(is_left, self._all())


class ReplayFeatures:
    """One client's features in a stream, and whether an event activates it.

    Args:
        chunks: of the stream.
        columns: which of the features are the client's.
        rounds: how many rows are events; None is all.
    """

    def __init__(self, chunks: Chunks, columns: slice, rounds: int | None) -> None:
        self._rows, self._columns = Rows(chunks, rounds), columns

    def look(self, event: bytes) -> NDArray[Any] | None:
        """Return the features (d_m,) of the row that an event names."""
        row = row_of(event)
        found = None if row is None else self._rows.chunk(row)
        return None if row is None or found is None else found[1].x[row - found[0], self._columns]


class Decider:
    """A client's own decision in each round, drawn for many rounds at once where it is drawn.

    Args:
        decide: whether it is activated in so many rounds from a first one on: (n,).
        ahead: how many.
    """

    def __init__(self, decide: Callable[[int, int], NDArray[np.bool_]], ahead: int = 1024) -> None:
        self._decide, self._ahead = decide, ahead
        self._first, self._drawn = 0, np.zeros(0, bool)

    def __call__(self, t: int, x: NDArray[Any]) -> bool:
        if not 0 <= t - self._first < len(self._drawn):
            self._first = t
            self._drawn = self._decide(t, self._ahead)
        return bool(self._drawn[t - self._first])
