"""Folders of results as the commands write them, of made-up numbers: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.config.run import Config
from anabranch.paper import summary
from anabranch.paper.experiment import Run, rows_of
from anabranch.paper.registry import EXPERIMENTS
from anabranch.paper.study import Study
from anabranch.paper.tuning import choose, present_tuning, tuned_pairs, tuning_runs
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.trial import Record, Trial, portable

FILES = {"susy": Path("SUSY.csv"), "higgs": Path("HIGGS.csv")}
VERSIONS = {"anabranch": "0.2.0", "jax": "0.10.2", "machine": "Linux x86_64"}


def record(config: Config, diverged: int | None = None) -> Record:
    """A trial that came to numbers drawn from its key."""
    key = Trial(config, {}).key
    rng = np.random.default_rng(int(key, 16))
    rounds = np.linspace(0, config.rounds or 1000, 41).astype(int)[1:]
    errors = 0.05 + 0.1 * rng.random() + 0.4 * np.exp(-np.arange(1, 41) / 4) + 0.003 * rng.normal(size=40)
    clients = getattr(config.model, "clients", None) or 4
    return {
        "key": key,
        "config": portable(config),
        "data": {},
        "diverged": diverged,
        "rounds": int(rounds[-1]),
        "stopped": None,
        "accumulated_error": float(errors.mean()),
        "run_time_error": float(errors[-1]),
        "activation_rate": rng.random(clients).tolist(),
        "bytes_up": [int(256 * rounds[-1])] * clients,
        "bytes_down": [int(128 * rounds[-1])] * clients,
        "regret": None,
        "rounds_per_second": 20_000.0,
        "curve": {"rounds": rounds.tolist(), "run_time_error": errors.tolist()},
        "cpu_seconds": 12.5,
        "wall_seconds": 13.0,
        "versions": VERSIONS,
    }


def write_experiments(folder: Path, names: Sequence[str], rounds: int = 20_000) -> Path:
    """What ``anabranch reproduce`` writes for these experiments, tuning included; the first trial of each diverged."""
    experiments = [EXPERIMENTS[name] for name in names]
    study = Study(rounds=rounds, seeds=2, files=FILES, rows=dict.fromkeys(FILES, 50_000))
    pairs = tuned_pairs(experiments)
    tuning = tuning_runs(study, pairs)
    records = _records(tuning)
    study = Study(**{**vars(study), "rates": choose(pairs, tuning, records)})
    shown = present_tuning(rows_of(tuning, records, [0.0] * len(tuning)), study.rates)
    summary.write(folder, "tuning", "not in the paper", study, shown, tuning, records)
    for experiment in experiments:
        runs = experiment.runs(study)
        records = _records(runs)
        shown = experiment.present(study, rows_of(runs, records, [4.2] * len(runs)))
        summary.write(folder, experiment.name, experiment.paper, study, shown, runs, records)
    return folder


def write_sweep(folder: Path, configs: Sequence[Config]) -> Path:
    """What ``anabranch sweep`` writes for these configurations; the last diverged."""
    trials = TrialFolder(folder, {"versions": VERSIONS})
    for i, config in enumerate(configs, 1):
        trials.put(record(config, diverged=77 if i == len(configs) > 1 else None))
    return folder


def write_run(folder: Path, config: Config, png: bytes) -> Path:
    """What ``anabranch run`` writes, with this picture."""
    held = record(config)
    curve = held.pop("curve")
    settings = {
        "model": {"clients": 4, "features": [196] * 4},
        "stream": {"name": "imnist"},
        "update": "DLR(window=10, decay=0.95, client_window=True)",
        "activation": "Event(threshold=0.2)",
        "learning_rate": config.learning_rate,
        "seed": config.seed,
    }
    result: dict[str, Any] = {
        "name": "imnist",
        "run_again": f"anabranch run {folder / 'result.json'}",
        **held,
        "client_seconds": None,
        "settings": settings,
        "data": {"stream": {"name": "MNIST train", "sha256": "809ec085"}},
    }
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    lines = [f"{n},{error},{error}" for n, error in zip(curve["rounds"], curve["run_time_error"], strict=True)]
    (folder / "curve.csv").write_text("\n".join(["rounds,run_time_error,accumulated_error", *lines]) + "\n")
    (folder / "curve.png").write_bytes(png)
    return folder


def _records(runs: Sequence[Run]) -> list[Record]:
    return [record(run.config, diverged=123 if i == 0 else None) for i, run in enumerate(runs)]
