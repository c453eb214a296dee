"""Runs an experiment's trials one after another, in the experiment's own order, for hours in the background.

``python -m benchmarks.run_trials DIR NAME...`` keeps each trial in DIR as soon as it is done, as ``anabranch reproduce
NAME --out DIR`` does. Committed trials are taken over. The same command goes on where it was ended. An experiment that
needs tuning cannot be run so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from anabranch.paper import check
from anabranch.paper.experiment import Run
from anabranch.paper.registry import find
from anabranch.paper.study import Study
from anabranch.simulation.result import versions
from anabranch.sweep.data import with_data
from anabranch.sweep.folder import TrialFolder, opened
from anabranch.sweep.trial import Trial, run_trial


def missing(folder: TrialFolder, runs: list[Run]) -> Iterator[tuple[Run, Trial]]:
    """Yield the trials that the folder lacks; a committed one of the same versions is put there instead."""
    committed = check.reference()
    seen: set[str] = set()
    for run, trial in zip(runs, with_data([run.config for run in runs]), strict=True):
        record = committed.get(trial.key)
        if trial.key in seen or folder.get(trial.key) is not None:
            continue
        seen.add(trial.key)
        if record is not None and record["versions"] == versions():
            folder.put(record)
        else:
            yield run, trial


def main() -> None:
    study = Study()
    with opened(Path(sys.argv[1]), {"versions": versions(), "rounds": study.rounds}, {"seeds": None}) as folder:
        left = list(missing(folder, [run for each in find(sys.argv[2:]) for run in each.runs(study)]))
        for place, (run, trial) in enumerate(left, 1):
            record = run_trial(trial)
            folder.put(record)
            labels = check.labels_text({"labels": run.labels, "seed": run.config.seed})
            error, seconds = record["accumulated_error"], record["wall_seconds"]
            now = time.strftime("%H:%M:%S")
            print(f"{now} {place}/{len(left)} {trial.key} {labels}: {error}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
