"""Trials that run as one program: their records are those of trials that run one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from anabranch.config.load import load
from anabranch.sweep import batched, run
from anabranch.sweep.batched import run_batched
from anabranch.sweep.data import with_data
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.run import run_trials
from anabranch.sweep.trial import Record, Trial, run_trial
from small_runs import write_rooms

OGD, DLR, SLR = "update={name='OGD'}", "update={name='DLR', window=3, decay=0.9}", "update={name='SLR', window=3}"
TIMINGS = ("cpu_seconds", "wall_seconds", "rounds_per_second")


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More rows than a chunk has, and fewer than two have."""
    return write_rooms(tmp_path_factory.mktemp("own"), rows=1300)


def trials_of(rooms: Path, *settings: list[str]) -> list[Trial]:
    return with_data([load(rooms, ["rounds=1100", *each]) for each in settings])


def counted(record: Record) -> Record:
    """What of a record is the same in every run, to the bit."""
    return {key: value for key, value in record.items() if key not in (*TIMINGS, "regret")}


@pytest.mark.parametrize(
    "common", [[OGD, "learning_rate_power=0.1"], [DLR, "measure_regret=true"], [SLR]], ids=["OGD", "DLR", "SLR"]
)
def test_records_are_those_of_trials_that_run_one_by_one(rooms: Path, common: list[str]) -> None:
    trials = trials_of(
        rooms,
        [*common, "learning_rate=0.1"],
        [*common, "learning_rate=0.02", "seed=1", "activation={name='Random', p=0.5}"],
        [*common, "learning_rate=0.3", "rounds=2000"],  # the stream ends before
        [*common, "learning_rate=1e25", "activation={name='Full'}"],
        [*common, "learning_rate=0.05", "rounds=40"],
    )
    attempts = list(run_batched(trials))
    assert attempts[0].key in (trials[3].key, trials[4].key)  # a short one waits for no other
    records = {each.key: each.record for each in attempts}
    alone: dict[str, Any] = {trial.key: run_trial(trial) for trial in trials}
    assert alone[trials[2].key]["stopped"] == "the stream ended after 1,300 of 2,000 rounds"
    assert alone[trials[3].key]["diverged"] is not None
    assert len(attempts) == len(records) == len(alone)
    for key, record in records.items():
        assert record is not None
        assert counted(record) == counted(alone[key])
        for name, value in (alone[key]["regret"] or {}).items():  # floats, whose last bits a batch may round otherwise
            np.testing.assert_allclose(record["regret"][name], value, rtol=1e-5)


def test_an_accelerator_gets_batches_and_a_cpu_gets_processes(
    rooms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(run.Book, "begun", lambda book, jobs: begun.append(jobs))
    monkeypatch.setattr(run, "run_all", lambda *_, **__: (each for each in ()))
    trials = trials_of(
        rooms,
        [OGD, "rounds=40"],
        [OGD, "rounds=40", "activation={name='Fixed', k=3}"],
        [SLR, "rounds=40"],
        [OGD, "rounds=30", "seed=1"],
    )
    kept = TrialFolder(tmp_path / "out", {})
    swept = run_trials(trials, kept)
    assert swept.failed == {trials[1].key: "activation Fixed: k is 3, but there are only 2 clients"}
    assert set(swept.records) == {trials[0].key, trials[2].key, trials[3].key}
    assert sorted(begun) == [1, 2]  # two shapes
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert run_trials(trials, TrialFolder(tmp_path / "other", {})) == ({}, {})  # all of them were left to `run_all`


def test_a_batch_that_cannot_run_fails_its_trials_and_no_others(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(runs: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(batched, "Batch", too_large)
    trials = trials_of(rooms, [OGD], [OGD, "seed=1"], [OGD, "seed=2"])
    sizes: list[int] = []
    attempts = list(run_batched(trials, 2, sizes.append))
    assert [each.error for each in attempts] == ["RuntimeError: RESOURCE_EXHAUSTED"] * 3
    assert [each.key for each in attempts] == [trial.key for trial in trials]
    assert sizes == [2, 1]
