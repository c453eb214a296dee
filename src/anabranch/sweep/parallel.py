"""Runs trials on many cores, or on a cluster, through joblib."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import joblib

from anabranch.errors import AnabranchError
from anabranch.sweep.trial import Record, Trial, run_trial


class Attempt(NamedTuple):
    """What came of trying a trial."""

    key: str
    record: Record | None
    """None where it failed."""
    error: str | None
    """Why it failed."""


@dataclass(frozen=True)
class Backend:
    """Where trials run.

    Args:
        name: ``loky`` (processes on this machine), ``ray`` or ``dask``.
        address: of the cluster's head, for Ray and Dask; None starts a local one.
        jobs: how many trials at a time; None is as many as there are cores.
    """

    name: str = "loky"
    address: str | None = None
    jobs: int | None = None


def run_all(trials: Sequence[Trial], backend: Backend) -> Iterator[Attempt]:
    """Tries every trial, and yields what came of each as soon as it is known."""
    jobs = backend.jobs or os.cpu_count() or 1
    with joblib.parallel_config(backend=backend.name, n_jobs=jobs):
        pool = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=jobs)
        yield from pool(joblib.delayed(attempt)(trial) for trial in trials)


def attempt(trial: Trial) -> Attempt:
    """Runs the trial; whatever goes wrong is said in what is returned."""
    try:
        return Attempt(trial.key, run_trial(trial), None)
    except AnabranchError as error:
        return Attempt(trial.key, None, str(error))
    except Exception as error:  # one trial's failure must not end the others
        return Attempt(trial.key, None, f"{type(error).__name__}: {error}")
