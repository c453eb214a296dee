"""Files of several parties, replayed by the data's own clock: the same rounds at any load, to the bit."""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from file_federations import UPDATE, FileDelay, FileFederation
from patience import wait_for
from real_federations import SERVER

BEGIN, EVENTS = 1_700_000_000, 450
P = 0.5
"""Of the client that is only asked."""


class Rooms:
    """Two rooms tell of readings at times of their own, some of them together; a third is only asked."""

    def __init__(self, events: int = EVENTS, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.times = BEGIN + np.cumsum(rng.integers(1, 90, events))
        self.mask = rng.random((events, 2)) < 0.6
        self.mask[~self.mask.any(axis=1), 0] = True
        self.mask[0] = True
        self.x = rng.normal(size=(events, 3)).round(4)
        self.asked_at = BEGIN + np.arange(0, self.times[-1] - BEGIN + 600, 600)
        self.asked_x = rng.normal(size=len(self.asked_at)).round(4)
        self.labels = (self.x.sum(axis=1) > 0).astype(int)
        # Not of whole seconds: several become known between two events, in another order than those happened in.
        self.known = self.times + rng.uniform(0, 900, events).round(3)

    def features(self) -> list[np.ndarray]:
        """(T, d_m) of each client, of the last reading at or before each event."""
        found = []
        for m in range(2):
            rows = np.maximum.accumulate(np.where(self.mask[:, m], np.arange(len(self.times)), -1))
            found.append(np.where(rows[:, None] >= 0, self.x[rows][:, [m, 2]], 0.0))
        rows = np.searchsorted(self.asked_at, self.times, side="right") - 1
        return [*found, self.asked_x[rows][:, None]]

    def delays(self) -> tuple[int, ...]:
        """How many events happened until each label was known."""
        times = self.times.tolist()
        after = sorted(known for known in self.known.tolist() if known > times[-1])  # each in a tick of its own
        return tuple(
            bisect_right(times, known) - 1 + bisect_right(after, known) - i for i, known in enumerate(self.known)
        )

    def simulated(self, model: ab.SplitModel, learning: str) -> ab.Result:
        activated = np.column_stack(
            [self.mask, ab.Random(P).mask(5, 0, np.zeros((len(self.times), 5)), (2, 2, 1))[:, 2]]
        )
        return ab.simulate(
            model,
            ab.streams.from_arrays(self.features(), self.labels),
            update=ab.DLR(UPDATE["window"], UPDATE["decay"]),
            activation=ab.Recorded(activated),
            learning_rate=0.1,
            seed=5,
            label_delay=FileDelay(self.delays()),
            label_learning=learning,
        )


def federation(folder: Path, rooms: Rooms, **labels: Any) -> FileFederation:
    source = {"source": "csv", "entity_key": "../entity.key", "clock": "data"}
    labels = {"path": "../labels.csv", "time": "known", "event_time": "at", "label": "y"} | source | labels
    mlp = {"name": "mlp", "hidden": [4]}
    files: dict[str, dict[str, Any]] = {
        SERVER: {
            "labels": labels, "model": mlp | {"classes": 2}, "checkpoint_every": 100,
            "clients": [{"name": name, "embedding": 3} for name in ("one", "two", "asked")],
        },
    }  # fmt: skip
    for name, columns in (("one", ["a", "b"]), ("two", ["a", "b"]), ("asked", ["c"])):
        files[name] = {
            "clients": 3, "model": mlp | {"embedding": 3}, "checkpoint_every": 50,
            "features": source | {"path": f"../{name}.csv", "time": "at", "columns": columns},
            "activation": {"name": "Random", "p": P} if name == "asked" else {"name": "OnEvent"},
        }  # fmt: skip
    found = FileFederation(folder, files)
    for m, name in enumerate(("one", "two")):
        own = [(t, *x) for t, x, mine in zip(rooms.times, rooms.x[:, [m, 2]], rooms.mask[:, m], strict=True) if mine]
        found.table(f"{name}.csv", ["at", "a", "b"], own)
    found.table("asked.csv", ["at", "c"], zip(rooms.asked_at, rooms.asked_x, strict=True))
    order = np.argsort(rooms.known, kind="stable")
    found.table(
        "labels.csv", ["at", "known", "y"], [(rooms.times[i], f"{rooms.known[i]:.3f}", rooms.labels[i]) for i in order]
    )
    return found


@contextmanager
def busy(n: int) -> Iterator[None]:
    """So many other processes take what time of the machine they get."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


@pytest.mark.parametrize("learning", ["fresh", "stored"])
def test_the_simulator_s_bits_with_kills_and_at_any_load(tmp_path: Path, learning: str) -> None:
    rooms = Rooms()
    simulated: ab.Result | None = None
    for name, others, victims in (("calm", 0, []), ("killed", 2, [["one"], [SERVER], ["asked", "two"]])):
        with federation(tmp_path / name, rooms, late=learning) as parties, busy(others):
            parties.start(*parties.names)
            for each in victims:
                parties.wait_for_rounds(parties.rounds + 80)
                parties.kill(*each)
                parties.start(*each)
            assert parties.wait() == [0] * 4, parties.log(SERVER)
            said = wait_for(lambda: parties.status().get("labels"), "what became of the labels")
            assert {what: n for what, n in said.items() if n} == dict.fromkeys(
                ("happened", "labelled", "learnt"), EVENTS
            )
            simulated = rooms.simulated(parties.model, learning) if simulated is None else simulated
            assert parties.status()["accumulated_error"] == pytest.approx(simulated.error_rate, abs=1e-12)
            expected = simulated.model.to_arrays()
            trained = parties.trained
            assert trained.keys() == expected.keys()
            for key, array in expected.items():
                assert np.array_equal(trained[key], array), f"{name}: {key} differs"
