"""Tries many trials side by side, through joblib, whatever becomes of some of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import joblib

from anabranch.errors import AnabranchError
from anabranch.interrupt import blocked
from anabranch.sweep.backend import Backend, connected
from anabranch.sweep.trial import Record, Trial, check_versions, run_trial


class Attempt(NamedTuple):
    """What came of trying a trial."""

    key: str
    record: Record | None
    """None where it failed."""
    error: str | None
    """Why it failed."""


def run_all(
    trials: Sequence[Trial], backend: Backend, begun: Callable[[int], None] = lambda jobs: None
) -> Generator[Attempt]:
    """Try every trial, and yield what came of each as soon as it is known.

    A process that dies takes joblib's pool with it. Then the trials that were under way are suspects: the others go
    on in a new pool, and each suspect is tried alone at the end. One whose process dies again has failed.

    Args:
        trials: in the order in which they begin.
        backend: where they run.
        begun: called with how many run at a time, whenever a pool begins.

    Raises:
        ConfigError: where the back end's package is not installed.
        ClusterError: where the cluster cannot be reached, before the first trial or later.
    """
    left = {trial.key: trial for trial in trials}
    suspects: list[Trial] = []
    while left or suspects:
        if not left:
            left = {suspects[0].key: suspects.pop(0)}
        with connected(backend) as jobs:
            begun(jobs)
            try:
                with _attempts(list(left.values()), jobs) as attempts:
                    for each in attempts:
                        del left[each.key]
                        yield each
            except Exception as problem:  # not a trial's own: `attempt` returns those
                # Trials begin in their order, and one that is done lets one more begin.
                under_way = [left.pop(key) for key in list(left)[:jobs]]
                if len(under_way) > 1:
                    suspects += under_way
                else:
                    yield Attempt(under_way[0].key, None, f"its process died ({_reason(problem)})")


@contextmanager
def _attempts(trials: Sequence[Trial], jobs: int) -> Iterator[Iterator[Attempt]]:
    """What comes of the trials, so many at a time; those under way are stopped where it is left early."""
    from anabranch.simulation.result import versions

    # With one job joblib would train in this process: of two that it has then, one is given work at a time.
    processes = max(2, min(jobs, len(trials)))
    pool = joblib.Parallel(n_jobs=processes, return_as="generator_unordered", batch_size=1, pre_dispatch=jobs)
    with blocked():  # a worker that is about to begin would take Ctrl-C in its own way
        results = pool(joblib.delayed(attempt)(trial, versions()) for trial in trials)
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib's, that trials were stopped
            results.close()


def attempt(trial: Trial, versions: Mapping[str, str]) -> Attempt:
    """Run the trial, where these versions are; whatever goes wrong is said in what is returned."""
    try:
        check_versions(versions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a person reads them once, from who began the sweep
            return Attempt(trial.key, run_trial(trial), None)
    except Exception as error:
        return failed(trial, error)


def failed(trial: Trial, error: Exception) -> Attempt:
    """What came of a trial that raised this: one trial's failure must not end the others."""
    known = isinstance(error, AnabranchError)
    return Attempt(trial.key, None, str(error) if known else f"{type(error).__name__}: {error}")


def _reason(problem: Exception) -> str:
    """Of a dead process: its signal, where loky says it, or the first sentence of what the cluster says."""
    signals = re.search(r"exit codes of the workers are \{(.*)\}", str(problem))
    sentence = re.split(r"(?<=[.!?])\s", str(problem))[0]
    return signals[1] if signals else f"{type(problem).__name__}: {sentence}"
