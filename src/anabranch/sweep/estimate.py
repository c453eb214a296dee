"""How long a trial takes, before it is run."""

from __future__ import annotations

import time

import numpy as np

from anabranch.config.run import Config, SlrUpdate

START_SECONDS = 3.0
"""Of each trial: reading its data and compiling its program."""
ROUND_SECONDS = {"OGD": 42e-6, "DLR": 63e-6, "ActiveDLR": 70e-6, "Momentum": 55e-6, "SLR": 15.5e-6}
"""Of a round on the reference machine, two cores with a trial on each, for the i-MNIST model with four clients; of SLR,
for each round of its window. Other models are taken to need as much."""
OWN_SECONDS = 63e-6
"""The same for an update of a person's own, which nobody has measured."""
CLIENTS_POWER = 0.85
"""Twice as many clients need about 1.8 times as long."""
REGRET_FACTOR = 2.6
"""So many times as long a round takes where the regret is measured."""
LATE_FACTOR = 1.4
"""So many times as long a round takes where labels come late, since each event is predicted by itself."""
ROWS = {"susy": 5_000_000, "higgs": 11_000_000}
"""Of the streams that end, and whose end is known."""
TABLE_ROWS = 100_000
"""Of a table that is read to its end."""
REFERENCE_SECONDS = 29e-6
"""What `_work` takes on the reference machine."""


def estimated_seconds(config: Config) -> float:
    """Return the seconds that a trial takes on one core of the reference machine.

    >>> from anabranch.config.load import load
    >>> estimated_seconds(load("imnist", ["rounds=2_000_000"]))
    129.0
    """
    match config.update:
        case SlrUpdate(window=window):
            seconds = ROUND_SECONDS["SLR"] * window
        case update:
            seconds = ROUND_SECONDS.get(update.name, OWN_SECONDS)
    seconds *= ((getattr(config.model, "clients", None) or 4) / 4) ** CLIENTS_POWER
    if config.measure_regret:
        seconds *= REGRET_FACTOR
    if config.label_delay != 0:
        seconds *= LATE_FACTOR
    return START_SECONDS + seconds * (config.rounds or ROWS.get(config.stream.name, TABLE_ROWS))


def machine_factor() -> float:
    """Return how many times as long this machine takes as the reference machine; measured in a tenth of a second."""
    matrix, vector = np.ones((256, 256), np.float32), np.ones(256, np.float32)
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < 0.1:
        started = time.perf_counter()
        _work(matrix, vector)
        best = min(best, time.perf_counter() - started)
    return best / REFERENCE_SECONDS


def _work(matrix: np.ndarray, vector: np.ndarray) -> None:
    """As a round does, it goes over a matrix that fits the second-level cache; on one core, whatever the others do."""
    np.multiply(matrix, np.float32(0.999), out=matrix)
    np.add(matrix, vector, out=matrix)
