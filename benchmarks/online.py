"""What one sample costs `anabranch.OnlineVFL`, beside a classifier of River's: ``python -m benchmarks.online``.

Each number is the fastest of many runs of 20 samples, in microseconds a sample: the least that other work on the
machine has disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from river import linear_model

import anabranch as ab

SAMPLES, RUNS = 20, 100


def fastest(use: Callable[[dict[str, float]], Any], samples: list[dict[str, float]]) -> float:
    """Microseconds a sample."""
    use(samples[0])
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        for sample in samples:
            use(sample)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / len(samples) * 1e6


def main() -> None:
    rng = np.random.default_rng(0)
    print("| features | model | update | learn_one | predict_proba_one |\n|---|---|---|---|---|")
    for clients, each, build in ((3, 2, None), (4, 196, ab.models.imnist())):
        names = [f"f{i}" for i in range(clients * each)]
        split = {f"client {m + 1}": names[m * each : (m + 1) * each] for m in range(clients)}
        samples = [dict(zip(names, row, strict=True)) for row in rng.normal(size=(SAMPLES, len(names))).tolist()]
        for update in (ab.OGD(), ab.DLR(10, 0.95), ab.SLR(10)):
            model = ab.OnlineVFL(split, model=build, update=update)
            learn = fastest(lambda x, model=model: model.learn_one(x, x["f0"] > 0), samples)
            predict = fastest(model.predict_proba_one, samples)
            kind = "default" if build is None else "imnist"
            print(f"| {len(names)} | {kind} | {type(update).__name__} | {learn:.0f} | {predict:.0f} |", flush=True)
        other = linear_model.LogisticRegression()
        learn = fastest(lambda x, other=other: other.learn_one(x, x["f0"] > 0), samples)
        predict = fastest(other.predict_proba_one, samples)
        print(f"| {len(names)} | River's LogisticRegression | | {learn:.0f} | {predict:.0f} |", flush=True)


if __name__ == "__main__":
    main()
