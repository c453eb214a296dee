"""Would the paper's numbers come of a softmax that is applied twice?

Its text has the server's model end with a softmax, and the loss be cross-entropy, which in common libraries applies one
itself. ``python -m benchmarks.softmax_twice RESULTS.jsonl`` trains OGD and DLR under each activation on the drifting
i-MNIST stream with such a model: 200,000 rounds at each learning rate, then 2,000,000 at the best of them. It adds a
JSON line a run and skips those that are there already. The results of docs/paper.md are in docs/paper/.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from matplotlib.figure import Figure

import anabranch as ab
from anabranch.paper.study import TUNING_SEED
from anabranch.simulation.output import png
from anabranch.simulation.result import machine, versions

METHODS: dict[str, tuple[ab.Update, ab.Activation]] = {
    f"{name}-{activation}": (update, rule)
    for activation, rule in (("Event", ab.Event(0.0)), ("Full", ab.Full()), ("Random", ab.Random(0.5)))
    for name, update in (("OGD", ab.OGD()), ("DLR", ab.DLR(window=10, decay=0.95)))
}
ROUNDS = 2_000_000
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


class Twice(eqx.Module):
    """A server's model, and a softmax at its end; the loss applies another."""

    model: eqx.Module

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(self.model(x))


class Results:
    """The runs in a file, each run once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            made = {
                "command": "python -m benchmarks.softmax_twice RESULTS.jsonl",
                "versions": versions(),
                "machine": machine(),
            }
            path.write_text(json.dumps(made) + "\n")
        runs = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        self._done = {run["run"]: run for run in runs}
        self._digits = ab.streams.load_digits()

    def run(self, method: str, rate: float, rounds: int, seed: int) -> dict[str, Any]:
        """What came of a run."""
        run = f"{method}, {rate:g}, {rounds:,} rounds, seed {seed}"
        if run not in self._done:
            self._done[run] = {"run": run, **self._train(method, rate, rounds, seed)}
            with self._path.open("a") as lines:
                lines.write(json.dumps(self._done[run]) + "\n")
        print(run, f"{self._done[run]['error']:.4f}", flush=True)
        return self._done[run]

    def _train(self, method: str, rate: float, rounds: int, seed: int) -> dict[str, Any]:
        update, activation = METHODS[method]
        model = ab.models.imnist(clients=4, seed=seed)
        result = ab.simulate(
            ab.SplitModel(model.clients, Twice(model.server)),
            ab.streams.Drift(ab.streams.imnist(seed=seed, digits=self._digits), seed=seed),
            update=update,
            activation=activation,
            learning_rate=rate,
            rounds=rounds,
            seed=seed,
        )
        late = [float(each) for each in result.curve.run_time_error]
        return {"error": result.error_rate, "last": result.run_time_error, "curve": late}

    def draw(self, curves: dict[str, list[float]]) -> None:
        """The methods' run-time errors, beside the file."""
        figure = Figure(figsize=(9, 3), dpi=120, layout="constrained")
        for axes, activation in zip(figure.subplots(1, 3, sharey=True), ("Full", "Random", "Event"), strict=True):
            for update, colour in (("OGD", "#b8352f"), ("DLR", "#2f6db8")):
                curve = curves[f"{update}-{activation}"]
                millions = [ROUNDS / 1e6 * (i + 1) / len(curve) for i in range(len(curve))]
                axes.plot(millions, curve, color=colour, label=update)
            axes.set_title(activation)
            axes.set_xlabel("million rounds")
            axes.set_ylim(0, 0.3)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("run-time error rate")
        figure.axes[0].legend(frameon=False)
        self._path.with_suffix(".png").write_bytes(png(figure))


def main() -> None:
    results = Results(Path(sys.argv[1]))
    curves = {}
    for method in METHODS:
        errors = {rate: results.run(method, rate, 200_000, TUNING_SEED)["error"] for rate in RATES}
        curves[method] = results.run(method, min(errors, key=errors.__getitem__), ROUNDS, 1)["curve"]
    results.draw(curves)


if __name__ == "__main__":
    main()
