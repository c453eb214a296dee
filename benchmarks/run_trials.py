"""Runs an experiment's trials one after another, in the experiment's own order, for hours in the background.

``python -m benchmarks.run_trials DIR NAME...`` keeps each trial in DIR as soon as it is done, as ``anabranch reproduce
NAME --out DIR`` does, and takes over the committed ones. The same command goes on where it was ended. With ``--tables``
it runs nothing. It writes the tables of the trials that there are, which say what is missing; then ``python -m
benchmarks.commit_results DIR`` commits both. An experiment that needs tuning cannot be run so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from anabranch.paper import check, summary
from anabranch.paper.experiment import Experiment, Row, Run, rows_of
from anabranch.paper.registry import find
from anabranch.paper.study import Study
from anabranch.simulation.result import versions
from anabranch.sweep.data import with_data
from anabranch.sweep.folder import TrialFolder, opened
from anabranch.sweep.trial import Record, Trial, run_trial


def missing(folder: TrialFolder, runs: Sequence[Run]) -> Iterator[tuple[Run, Trial]]:
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


def rows_so_far(runs: Sequence[Run], records: Sequence[Record | None]) -> list[Row]:
    """Return a row for each of the runs' labels, in their order; one without a record is empty."""
    done = [(run, record) for run, record in zip(runs, records, strict=True) if record is not None]
    rows = rows_of((run for run, _ in done), (record for _, record in done), [0.0] * len(done))
    held = {tuple(row.labels.items()): row for row in rows}
    every = dict.fromkeys(tuple(run.labels.items()) for run in runs)
    return [held.get(labels, Row(dict(labels), (), 0.0)) for labels in every]


def write_tables(folder: TrialFolder, experiment: Experiment, study: Study) -> int:
    """Write the tables of the trials that there are; return how many there are."""
    runs = experiment.runs(study)
    records = [folder.get(trial.key) for trial in with_data([run.config for run in runs])]
    shown = experiment.present(study, rows_so_far(runs, records))
    done = [(run, record) for run, record in zip(runs, records, strict=True) if record is not None]
    if len(done) < len(runs):
        shown.notes.append(f"{len(done)} of {len(runs)} trials were run so far.")
    own = [run for run, _ in done], [record for _, record in done]
    summary.write(folder.path, experiment.name, experiment.paper, study, shown, *own)
    return len(done)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_trials")
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("names", metavar="NAME", nargs="+")
    parser.add_argument("--tables", action="store_true", help="run nothing, write the tables of what is there")
    given = parser.parse_args()
    study, experiments = Study(), find(given.names)
    with opened(given.folder, {"versions": versions(), "rounds": study.rounds}, {"seeds": None}) as folder:
        left = list(missing(folder, [run for each in experiments for run in each.runs(study)]))
        if given.tables:
            for each in experiments:
                print(f"{each.name}: {write_tables(folder, each, study)} trials")
            return
        for place, (run, trial) in enumerate(left, 1):
            record = run_trial(trial)
            folder.put(record)
            labels = check.labels_text({"labels": run.labels, "seed": run.config.seed})
            error, seconds = record["accumulated_error"], record["wall_seconds"]
            now = time.strftime("%H:%M:%S")
            print(f"{now} {place}/{len(left)} {trial.key} {labels}: {error}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
