"""A stream's blocks, checked and cut into chunks of equal shape for the compiled loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import unmasked
from anabranch.errors import AnabranchError, DataError
from anabranch.streams.base import Block, Stream


class Late(NamedTuple):
    """The events of a chunk beside its rounds, if labels are late; see `anabranch.simulation.label_delay`."""

    x: NDArray[np.floating[Any]]
    """(n, d): the events that happen, in order; only the first ``events`` rows are some, the rest is padding."""
    events: int
    into: NDArray[np.int32]
    """(n,): in which slot what is made of each event is kept until its round."""
    before: NDArray[np.int32]
    """(n,): how many of these events happen before each round."""
    out: NDArray[np.int32]
    """(n,): in which slot each round finds what was made of its event."""
    active: NDArray[np.bool_]
    """(n, M): whom each round's event has activated."""
    first: int
    """The number of the first of the events that happen."""
    numbers: NDArray[np.int64]
    """(n,): the number of each round's event."""
    delays: NDArray[np.int64]
    """(n,): how many events later its label came."""


class Chunk(NamedTuple):
    """Some consecutive rounds' samples; only the first ``rows`` rows are samples, the rest is padding."""

    x: NDArray[np.floating[Any]]
    """(n, d)"""
    y: NDArray[np.int32]
    """(n,)"""
    rows: int
    late: Late | None = None
    """None where labels come at once."""


def empty_chunk(length: int, features: int, dtype: np.dtype[Any]) -> Chunk:
    """Return a chunk with room for ``length`` samples."""
    return Chunk(np.zeros((length, features), dtype), np.zeros(length, np.int32), 0)


def read_chunks(
    stream: Stream,
    classes: int,
    dtype: np.dtype[Any],
    length: int,
    rounds: int | None,
    unused: int = 0,
    begun: int = 0,
) -> Iterator[Chunk]:
    """Yield the stream's first ``rounds`` samples in chunks of ``length``, the last one shorter; the first
    ``begun`` not.

    Each sample is checked as it is read. What comes before a wrong one is given first, unless nothing has been yet.
    The last ``unused`` samples may be wrong: it only matters that they are there.

    Raises:
        DataError: where a sample is wrong, with its row from 1; or where the stream is empty or fails.
    """
    features = sum(stream.widths)
    chunk, read, given = empty_chunk(length, features, dtype), begun, False
    blocks = _blocks(stream, begun)
    problem: DataError | None = None
    while problem is None and (rounds is None or read < rounds):
        try:
            block = next(blocks, None)
        except DataError as error:
            problem = error
            break
        if block is None:
            break
        x, good, problem = _check(block, stream.widths, classes, read, dtype)
        start = 0
        while start < good and (rounds is None or read < rounds):
            take = min(good - start, length - chunk.rows, length if rounds is None else rounds - read)
            place = slice(chunk.rows, chunk.rows + take)
            chunk.x[place] = x[start : start + take]
            chunk.y[place] = block.y[start : start + take]
            chunk = chunk._replace(rows=chunk.rows + take)
            start, read = start + take, read + take
            if chunk.rows == length:
                yield chunk
                chunk, given = empty_chunk(length, features, dtype), True
    if rounds is not None and read >= rounds:
        problem = None  # what is wrong lies after the last round
    if problem is not None and rounds is not None and read >= rounds - unused:
        chunk, read, problem = chunk._replace(rows=chunk.rows + 1), read + 1, None
    if chunk.rows and (given or problem is None):
        yield chunk
    if problem is not None:
        raise problem
    if read == begun:
        raise DataError(
            f"the stream has no sample after the first {begun:,}, which the run has learnt from: there is nothing to "
            "go on with"
            if begun
            else "the stream is empty: it has no sample to train on"
        )


def _blocks(stream: Stream, begun: int) -> Iterator[Block]:
    """Yield the blocks without the first ``begun`` samples."""
    try:
        for block in stream.blocks():
            if not isinstance(block, Block):
                raise DataError(f"the stream gave {block!r:.60}; a Block(x, y) is needed")
            known = min(begun, len(block.y))
            begun -= known
            if known:
                block = Block(block.x[known:], block.y[known:])
            if len(block.y) or not known:
                yield block
    except AnabranchError:
        raise
    except Exception as error:
        raise DataError(f"the stream failed: {type(error).__name__}: {error}") from error


def _check(
    block: Block, widths: Sequence[int], classes: int, before: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], int, DataError | None]:
    """Return the features in the model's precision, how many first samples are right, and what is wrong with the
    next.
    """
    x, y = unmasked(block.x), unmasked(block.y)
    if x.ndim != 2 or x.shape[1] != sum(widths) or y.shape != (len(x),):
        return (
            x,
            0,
            DataError(
                f"after row {before:,}: the stream gave features of shape {x.shape} and labels of shape {y.shape}, but "
                f"(n, {sum(widths)}) and (n,) are needed"
            ),
        )
    if not np.issubdtype(y.dtype, np.integer) and y.dtype != np.bool_:
        message = f"after row {before:,}: the stream gave labels of type {y.dtype}; whole numbers are needed"
        return x, 0, DataError(message)
    if not np.issubdtype(x.dtype, np.number) and x.dtype != np.bool_:
        return x, 0, DataError(f"after row {before:,}: the stream gave features of type {x.dtype}; numbers are needed")
    with np.errstate(over="ignore"):
        cast = x.astype(dtype, copy=False)
    wrong = (y < 0) | (y >= classes)
    if not np.isfinite(cast.sum()):  # one pass in the usual case; the sum is not finite where a feature is not
        wrong |= ~np.isfinite(cast).all(axis=1)
    if not wrong.any():
        return cast, len(x), None
    i = int(wrong.argmax())
    row = before + i + 1
    if not 0 <= y[i] < classes:
        message = f"row {row:,}: the label is {y[i]}, but the model tells {classes} classes apart: 0 to {classes - 1}"
        return cast, i, DataError(message)
    column = int(np.isfinite(cast[i]).argmin())
    client = int(np.searchsorted(np.cumsum(widths), column, side="right"))
    feature = column - sum(widths[:client]) + 1
    what = "a number" if not np.isfinite(x[i, column]) else f"a number that {dtype} holds"
    message = f"row {row:,}: feature {feature} of client {client + 1} is {x[i, column]}; {what} is needed"
    return cast, i, DataError(message)
