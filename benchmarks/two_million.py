"""Two million rounds of i-MNIST, stationary and drifting: OGD and DLR under Full, Random(0.5) and Event(0.2).

``python -m benchmarks.two_million RESULTS.jsonl`` adds a JSON line a run and skips the runs that are there already, so
it can be stopped and started again. The table of docs/two-million.md comes from it.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import anabranch as ab

UPDATES = [ab.OGD(), ab.DLR(window=10, decay=0.95)]
ACTIVATIONS = [ab.Full(), ab.Random(0.5), ab.Event(0.2)]


def main() -> None:
    path = Path(sys.argv[1])
    done = [json.loads(line)["run"] for line in path.read_text().splitlines()] if path.exists() else []
    digits = ab.streams.load_digits()
    for drifting, update, activation in itertools.product((False, True), UPDATES, ACTIVATIONS):
        run = f"{'drifting' if drifting else 'stationary'} {update!r} {activation!r}"
        if run in done:
            continue
        stream = ab.streams.imnist(seed=0, digits=digits)
        result = ab.simulate(
            ab.models.imnist(clients=4, seed=0),
            ab.streams.Drift(stream, seed=0) if drifting else stream,
            update=update,
            activation=activation,
            learning_rate=0.003,
            rounds=2_000_000,
            seed=0,
            wire_dtype="float32",
        )
        with path.open("a") as lines:
            lines.write(json.dumps({"run": run, "drifting": drifting, **result.describe()}) + "\n")
        print(run, f"{result.error_rate:.4f}", f"{result.rounds_per_second:,.0f} rounds/s", flush=True)


if __name__ == "__main__":
    main()
