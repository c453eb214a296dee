"""Measures the simulator on one pinned core, everything in one run and interleaved, and prints JSON lines.

``make bench``, or ``python -m benchmarks.bench [--quick] [--clients 4]``. Each time is the best of several repetitions,
taken in turns, so that what else the machine does falls on all alike. The last lines hold the measured ratios against
the floors that the project sets itself; nothing fails when one is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

CORE = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before JAX counts the cores
os.environ["ANABRANCH_CACHE"] = "off"  # whether a program is compiled again is measured

import jax  # noqa: E402
import torch  # noqa: E402

import anabranch as ab  # noqa: E402
from anabranch.streams.base import Block, Stream  # noqa: E402
from benchmarks import eager  # noqa: E402

UPDATES = {
    "OGD": ab.OGD(),
    "DLR l=10": ab.DLR(10, 0.95),
    "DLR l=100": ab.DLR(100, 0.95),
    "DLR l=1000": ab.DLR(1000, 0.95),
    "SLR l=10": ab.SLR(10),
}
EAGER_ROUNDS = {"OGD": 600, "DLR l=10": 400, "DLR l=100": 100, "SLR l=10": 400}


def parameters(clients: int) -> int:
    """How many numbers the i-MNIST model has."""
    return 784 * 64 + clients * 64 + 64 * clients * 256 + 256 + 2570


class Free(Stream):
    """Samples that cost nothing: the same block of digits again and again."""

    classes, endless = 10, True

    def __init__(self, stream: Stream) -> None:
        self.widths = stream.widths
        self._block = next(stream.blocks())

    def blocks(self) -> Iterator[Block]:
        return itertools.repeat(self._block)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: dict[Any, Callable[[], Any]], repetitions: int) -> dict[Any, float]:
    """The best time of each call, taken in turns after one turn to warm up."""
    best = dict.fromkeys(calls, float("inf"))
    for repetition in range(repetitions + 1):
        for key, call in calls.items():
            taken = seconds(call)
            if repetition:
                best[key] = min(best[key], taken)
    return best


def eager_run(name: str, clients: int, rounds: int) -> Callable[[], None]:
    """So many rounds in eager PyTorch, the buffer full."""
    kind, _, window = name.partition(" l=")
    step = eager.make(kind, int(window or 1), 0.95, clients, 0.003)
    samples = eager.rounds_for(clients, rounds + int(window or 1))
    for sample in samples[rounds:]:
        step(*sample)

    def run() -> None:
        for sample in samples[:rounds]:
            step(*sample)

    return run


def peak_memory(rounds: int) -> float:
    """Peak MB of a process of its own that trains so many rounds."""
    script = (
        "import resource, warnings, anabranch as ab; warnings.simplefilter('ignore');"
        f"ab.simulate(ab.models.imnist(), ab.streams.imnist(), activation=ab.Random(0.5), rounds={rounds});"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout) / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[4, 8, 16], help="for how many clients (4 among them)"
    )
    options = parser.parse_args()
    quick, sizes = options.quick, sorted({4, *options.clients})
    rounds, repetitions = (2_000, 1) if quick else (20_000, 5)
    warnings.simplefilter("ignore", ab.streams.DigitsNotice)
    torch.set_num_threads(1)
    say(
        what="machine", cpu=_cpu(), core=CORE, python=platform.python_version(), jax=jax.__version__,
        torch=torch.__version__, rounds=rounds, repetitions=repetitions,
    )  # fmt: skip

    digits = ab.streams.load_digits()
    streams = {clients: ab.streams.imnist(clients=clients, digits=digits) for clients in sizes}
    models = {clients: ab.models.imnist(clients=clients) for clients in sizes}

    def simulate(name: str, clients: int, stream: Stream) -> ab.Result:
        return ab.simulate(
            models[clients], stream, update=UPDATES[name], activation=ab.Random(0.5), rounds=rounds, seed=0
        )

    def read(stream: Stream) -> None:
        done = 0
        for block in stream.blocks():
            done += len(block.y)
            if done >= rounds:
                return

    calls: dict[Any, Callable[[], Any]] = {}
    for name, clients in itertools.product(UPDATES, sizes):
        calls["simulate", name, clients] = lambda n=name, c=clients: simulate(n, c, streams[c])
    calls["free stream", "DLR l=10", 4] = lambda: simulate("DLR l=10", 4, Free(streams[4]))
    calls["stream", "i-MNIST", 4] = lambda: read(streams[4])
    calls["stream", "i-MNIST, drifting", 4] = lambda: read(ab.streams.Drift(streams[4]))
    for name, clients in itertools.product(("OGD", "DLR l=10"), sizes):
        touched = np.ones(parameters(clients) * (1 if name == "OGD" else 2), np.float32)
        calls["roofline", name, clients] = lambda a=touched: [np.multiply(a, 1.0, out=a) for _ in range(rounds // 10)]
    counts = {key: rounds // 10 if key[0] == "roofline" else rounds for key in calls}
    for name, clients in itertools.product(EAGER_ROUNDS, sizes):
        if clients == 4 or name in ("OGD", "DLR l=10"):
            counts["eager", name, clients] = max(20, EAGER_ROUNDS[name] // (10 if quick else 1))
            calls["eager", name, clients] = eager_run(name, clients, counts["eager", name, clients])
    best = interleaved(calls, repetitions)
    micro = {key: taken / counts[key] * 1e6 for key, taken in best.items()}
    for (what, name, clients), value in micro.items():
        times = {"times_slower": round(value / micro["simulate", name, clients], 1)} if what == "eager" else {}
        say(what=what, of=name, clients=clients, microseconds=round(value, 2), per_second=round(1e6 / value), **times)

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **rest: compiled.append(event) if "backend_compile" in event else None
    )
    ab.simulate(
        models[4], streams[4], update=ab.DLR(10, 0.9), activation=ab.Random(0.25), learning_rate=0.001,
        rounds=rounds, seed=1,
    )  # fmt: skip
    compilations = len(compiled)
    peaks = {times: peak_memory(times * rounds) for times in (1, 5)}
    grown = peaks[5] - peaks[1]
    say(what="memory", peak_mb=round(peaks[1]), grown_mb_in_five_times_the_rounds=round(grown, 1))

    dlr = {window: micro["simulate", f"DLR l={window}", 4] for window in (10, 100, 1000)}
    floor("DLR l=10 against eager", ">=", 25, micro["eager", "DLR l=10", 4] / dlr[10])
    floor("DLR l=100 against eager", ">=", 120, micro["eager", "DLR l=100", 4] / dlr[100])
    floor("DLR l=1000 against l=10", "<=", 1.5, dlr[1000] / dlr[10])
    floor("what the stream adds to a DLR round", "<=", 0.25, dlr[10] / micro["free stream", "DLR l=10", 4] - 1)
    floor("MB grown in five times the rounds", "<=", 20, grown)
    floor("programs compiled for other numbers of the same shapes", "<=", 0, compilations)


def floor(what: str, relation: str, needed: float, measured: float) -> None:
    holds = measured >= needed if relation == ">=" else measured <= needed
    say(what="floor", of=what, needs=f"{relation} {needed}", measured=round(measured, 3), holds=bool(holds))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
