from __future__ import annotations

import json
from collections import deque
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.streams import Block, Drift, Stream, drift, from_arrays


class Pieces(Stream):
    """Rows 0, 1, 2, ... with the given labels, cut into pieces of the given lengths."""

    widths = (2,)

    def __init__(self, labels, classes: int, lengths=(64,)) -> None:
        self.labels, self.classes, self.lengths = np.asarray(labels), classes, lengths
        self.read = 0

    def blocks(self):
        at, i = 0, 0
        while at < len(self.labels):
            n = self.lengths[i % len(self.lengths)]
            y = self.labels[at : at + n]
            rows = np.arange(at, at + len(y), dtype=np.float64)
            self.read = at + len(y)
            yield Block(np.stack([rows, -rows], axis=1), y)
            at, i = at + len(y), i + 1


def naive(labels, wanted, queue: int = drift.QUEUE) -> tuple[list[int], int]:
    """Which row each round takes, and how many were dropped: one sample at a time."""
    waiting: dict[int, deque[int]] = {}
    dropped, out, at = 0, [], 0
    for y in wanted:
        line = waiting.setdefault(int(y), deque())
        if line:
            out.append(line.popleft())
            continue
        while at < len(labels) and labels[at] != y:
            other = waiting.setdefault(int(labels[at]), deque())
            if len(other) < queue:
                other.append(at)
            else:
                dropped += 1
            at += 1
        if at == len(labels):
            break
        out.append(at)
        at += 1
    return out, dropped


def rounds(stream: Stream, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(islice(stream.blocks(), n))
    if not blocks:
        return np.empty((0, 2)), np.empty(0, np.int32)
    return np.concatenate([b.x for b in blocks]), np.concatenate([b.y for b in blocks])


def wanted_labels(classes: int, every: int, seed: int, n: int) -> np.ndarray:
    """The labels of ``n`` rounds: those over a stream that always has what is asked for."""
    labels = np.tile(np.arange(classes), n)
    return rounds(Drift(Pieces(labels, classes, (classes * 8,)), every, seed))[1][:n]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 70),
    st.integers(0, 3),
    st.lists(st.integers(1, 97), min_size=1, max_size=4),
    st.sampled_from([1, 3, drift.QUEUE]),
    st.sampled_from([1, 7, 1000]),
)
def test_first_in_first_out_whatever_the_pieces(classes, every, seed, lengths, queue, block) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, 600)
    wanted = wanted_labels(classes, every, seed, 700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "QUEUE", queue)
        patch.setattr(drift, "_BLOCK", block)
        stream = Drift(Pieces(labels, classes, lengths), every, seed)
        x, y = rounds(stream)
    rows, dropped = naive(labels, wanted, queue)
    assert x[:, 0].tolist() == rows
    assert x[:, 1].tolist() == [-row for row in rows]
    assert y.tolist() == wanted[: len(rows)].tolist()
    assert y.tolist() == labels[rows].tolist()
    assert stream.dropped == dropped


def test_class_probabilities_are_uniform_draws_normalised() -> None:
    classes, every = 5, 4000
    _, y = rounds(Drift(Pieces(np.tile(np.arange(classes), 60_000), classes, (5000,)), every, seed=2), 200)
    stages = y[: len(y) // every * every].reshape(-1, every)
    found = np.stack([np.bincount(stage, minlength=classes) / every for stage in stages])
    # Draws normalised: the largest share is, on average, far above 1/5, and every class is high somewhere.
    assert found.max(axis=1).mean() > 0.3
    assert len(set(found.argmax(axis=1))) > 2
    # Within a stage the probabilities stay the same: halves of it agree up to chance.
    halves = [np.stack([np.bincount(h, minlength=classes) for h in part]) for part in np.split(stages, 2, axis=1)]
    np.testing.assert_allclose(halves[0] / (every / 2), halves[1] / (every / 2), atol=0.06)


def test_many_stages_average_to_even_classes() -> None:
    _, y = rounds(Drift(Pieces(np.tile(np.arange(4), 50_000), 4, (4096,)), 50, seed=0), 150)
    np.testing.assert_allclose(np.bincount(y, minlength=4) / len(y), 0.25, atol=0.02)
    shares = np.stack([np.bincount(s, minlength=4) / 50 for s in y[: len(y) // 50 * 50].reshape(-1, 50)])
    # Var(u / Σu) for four uniforms is about 0.0154 (by simulation), and drawing 50 labels adds p(1 − p)/50.
    u = np.random.default_rng(0).random((200_000, 4))
    p = u / u.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares.var(), p.var() + (p * (1 - p)).mean() / 50, rtol=0.1)


def test_labels_depend_on_seed_and_every_only() -> None:
    a = wanted_labels(3, 50, 0, 2000)
    assert (a == wanted_labels(3, 50, 0, 3000)[:2000]).all()
    assert (a != wanted_labels(3, 50, 1, 2000)).any()
    assert (a != wanted_labels(3, 49, 0, 2000)).any()


def test_blocks_begins_anew() -> None:
    stream = Drift(Pieces(np.tile(np.arange(3), 2000), 3), 10, 4)
    one, two = rounds(stream), rounds(stream)
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


def test_reads_on_only_when_needed() -> None:
    base = Pieces(np.tile(np.arange(2), 50_000), 2, (10,))
    blocks = Drift(base, 50, 0).blocks()
    n = 0
    for block in islice(blocks, 20):
        n += len(block.y)
    rows, _ = naive(base.labels, wanted_labels(2, 50, 0, n))
    assert base.read <= max(rows) + 10


def test_memory_does_not_grow_where_one_class_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "QUEUE", 100)
    labels = (np.arange(200_000) % 20 == 0).astype(int)
    stream = Drift(Pieces(labels, 2, (500,)), 50, 0)
    source = drift._Queues(stream)
    wanted = stream._labels()
    for _ in range(10):
        source.take(next(wanted))
    assert stream.dropped > 10_000
    assert len(source.rows) <= 4 * (2 * 100 + 1024 + 500)


def test_the_rounds_before_an_error_come_first() -> None:
    class Breaks(Pieces):
        def blocks(self):
            yield from super().blocks()
            raise DataError("row 601 is bad")

    labels = np.tile([0, 1], 300)
    seen = []
    with pytest.raises(DataError, match="row 601 is bad"):  # noqa: PT012
        for block in Drift(Breaks(labels, 2), 50, 0).blocks():
            seen += block.x[:, 0].tolist()
    assert seen == naive(labels, wanted_labels(2, 50, 0, 700))[0]


def test_an_absent_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PATIENCE", 1000)
    with pytest.raises(DataError, match="class 2 did not show up in 1,000 samples"):
        rounds(Drift(Pieces(np.tile([0, 1], 1000), 3), 50, 0))


def test_a_label_outside_the_classes_is_named() -> None:
    with pytest.raises(DataError, match=r"label 5 .* not in 0..1"):
        rounds(Drift(Pieces([0, 1, 5], 2), 50, 0))


def test_an_empty_stream_gives_no_block() -> None:
    assert list(Drift(Pieces([], 2)).blocks()) == []


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None])
def test_every_out_of_range(every) -> None:
    with pytest.raises(ConfigError, match="every is "):
        Drift(Pieces([0], 2), every)


def test_other_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match="seed is -1"):
        Drift(Pieces([0], 2), seed=-1)
    with pytest.raises(ConfigError, match="not list"):
        Drift([1, 2])  # type: ignore[arg-type]


def test_keeps_widths_classes_and_dtype_and_describes_both() -> None:
    base = from_arrays([np.ones((40, 2), np.float32), np.ones((40, 1), np.float32)], np.arange(40) % 2)
    stream = Drift(base, every=10, seed=3)
    assert (stream.widths, stream.classes) == ((2, 1), 2)
    assert next(stream.blocks()).x.dtype == np.float32
    said = stream.describe()
    assert json.loads(json.dumps(said)) == said
    assert said == {"name": "drift", "every": 10, "seed": 3, "stream": base.describe()}
