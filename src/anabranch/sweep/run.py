"""Runs the trials of a sweep: those that are in the folder already are taken from there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple

from anabranch.interrupt import Interruptible
from anabranch.sweep.backend import Backend
from anabranch.sweep.estimate import estimated_seconds
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.parallel import Attempt, run_all
from anabranch.sweep.progress import Book, SweepProgress, told
from anabranch.sweep.trial import Record, Trial


class Sweep(NamedTuple):
    """What a sweep came to."""

    records: dict[str, Record]
    """Of each trial that is done, by its key, in the order in which the trials were given."""
    failed: dict[str, str]
    """Why a trial failed, by its key; it is tried again the next time."""


def run_trials(
    trials: Sequence[Trial],
    folder: TrialFolder,
    backend: Backend | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Run those of the trials that the folder does not have, and keep each there as soon as it is done.

    This process alone writes to the folder, so workers may be on machines that share no disk with it. Long trials are
    begun first. A trial that diverges is done; one that fails is listed, and stops no other.

    Args:
        trials: those of equal keys are one.
        folder: where records are kept.
        backend: where to run them; on this machine's cores by default.
        progress: called every second and after each trial, not always from the same thread.

    Raises:
        ConfigError: where the back end's package is not installed.
        ClusterError: where the cluster cannot be reached; finished trials are kept.
        OutputError: where a record cannot be written, as on a full disk; finished trials are kept.
        KeyboardInterrupt: at Ctrl-C, and in a command at SIGTERM; finished trials are kept.
    """
    wanted = {trial.key: trial for trial in trials}
    records = finished(trials, folder)
    failed: dict[str, str] = {}
    left = sorted(
        (trial for key, trial in wanted.items() if key not in records),
        key=lambda trial: estimated_seconds(trial.config),
        reverse=True,
    )
    book = Book(len(wanted), left)
    attempts = _attempts(left, backend or Backend(), book.begun)
    # Ctrl-C tears neither a file nor the end of the workers apart.
    with Interruptible() as ctrl_c, told(book, progress) as tell, closing(attempts):
        tell()
        while True:
            with ctrl_c.at_once():
                each = next(attempts, None)
            if each is None:
                break
            if each.record is not None:
                folder.put(each.record)
                records[each.key] = each.record
            else:
                failed[each.key] = str(each.error)
            book.ended(each.key, each.record)
            tell()
    return Sweep({key: records[key] for key in wanted if key in records}, failed)


def _attempts(left: Sequence[Trial], backend: Backend, begun: Callable[[int], None]) -> Generator[Attempt]:
    """What comes of the trials: in batches where this machine has an accelerator, else each in a process."""
    if left and backend.name == "loky":
        import jax

        from anabranch.core.compiling import check_devices

        check_devices()
        if jax.default_backend() != "cpu":
            from anabranch.sweep.batched import run_batched

            return run_batched(left, backend.jobs, begun)
    return run_all(left, backend, begun)


def finished(trials: Sequence[Trial], folder: TrialFolder) -> dict[str, Record]:
    """Return the records that the folder has of these trials, by their keys."""
    found = {trial.key: folder.get(trial.key) for trial in trials}
    return {key: record for key, record in found.items() if record is not None}
