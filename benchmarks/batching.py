"""Measures whether trials of one shape are faster as one batched program than one after another, and prints a table.

``taskset -c 1 python -m benchmarks.batching``, in less than a minute. Both play the same rounds of the i-MNIST model on
samples that lie ready, in turns; each time is the best of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import anabranch as ab
from anabranch.simulation.batch import Batch, Feed
from anabranch.simulation.loop import Loop
from anabranch.simulation.run_setup import Prepared, prepare

UPDATES = {"OGD": ab.OGD(), "DLR, l = 10": ab.DLR(10), "SLR, l = 10": ab.SLR(10)}
TRIALS = (1, 4, 16)
ROUNDS = 200
TURNS = 4


class Times(NamedTuple):
    """Microseconds for each round of each trial."""

    alone: float
    batched: float


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROUNDS, 784)), rng.integers(0, 10, ROUNDS)
    stream = ab.streams.from_arrays(np.split(x, 4, axis=1), y, classes=10)
    print(f"{jax.devices()[0].device_kind}; {ROUNDS} rounds, best of {TURNS} turns; µs for each round of each trial")
    print(f"{'update':<14}{'trials':>8}{'one by one':>12}{'batched':>10}{'ratio':>8}")
    for name, update in UPDATES.items():
        for trials in TRIALS:
            times = measured(stream, update, trials)
            ratio = times.batched / times.alone
            print(f"{name:<14}{trials:>8}{times.alone:>12.1f}{times.batched:>10.1f}{ratio:>8.2f}", flush=True)


def measured(stream: ab.streams.Stream, update: ab.Update, trials: int) -> Times:
    """So many trials, which differ by their learning rates and seeds, in both ways."""
    runs = [prepared(stream, update, seed) for seed in range(trials)]
    chunk = next(runs[0].samples)
    feed = Feed(chunk, runs[0].decide(0, chunk))
    loops = [Loop(run.layout, run.rule, run.rates, run.model, run.nothing) for run in runs]
    batch, feeds = Batch(runs), dict.fromkeys(range(trials), feed)
    alone, batched = [], []
    for turn in range(TURNS):
        begun = turn * ROUNDS
        alone.append(seconds(lambda: [jax.block_until_ready(loop.play(*feed, begun).done) for loop in loops]))  # noqa: B023
        batched.append(seconds(lambda: jax.block_until_ready(batch.play(feeds, begun).predictions)))  # noqa: B023
    return Times(*(min(each) * 1e6 / (trials * ROUNDS) for each in (alone, batched)))


def prepared(stream: ab.streams.Stream, update: ab.Update, seed: int) -> Prepared:
    return prepare(
        ab.models.imnist(4, seed=seed),
        stream,
        update=update,
        activation=ab.Random(0.5),
        learning_rate=0.001 / (seed + 1),
        learning_rate_power=0.0,
        rounds=None,
        seed=seed,
        wire_dtype="float32",
        measure_regret=False,
        report_every=None,
        chunk=ROUNDS,
    )


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
