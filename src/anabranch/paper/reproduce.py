"""Makes experiments: tunes, runs every trial once, and writes tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.config.run import Config
from anabranch.errors import ConfigError
from anabranch.interrupt import Interruptible
from anabranch.paper import summary
from anabranch.paper.check import comparable
from anabranch.paper.costs import ClientCosts
from anabranch.paper.experiment import Experiment, Run, rows_of
from anabranch.paper.registry import EXPERIMENTS
from anabranch.paper.study import Method, Problem, Study
from anabranch.paper.tuning import NAME as TUNING
from anabranch.paper.tuning import Tuned, choose, present_tuning, tuned_before, tuned_pairs, tuning_runs, untuned
from anabranch.simulation.result import versions
from anabranch.sweep.backend import Backend
from anabranch.sweep.data import with_data
from anabranch.sweep.folder import TrialFolder, opened
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.run import run_trials
from anabranch.sweep.trial import Record, Trial

UCI = {
    "susy": "https://archive.ics.uci.edu/dataset/279/susy",
    "higgs": "https://archive.ics.uci.edu/dataset/280/higgs",
}
"""Where the tables are that a person has to get."""


class Stage(NamedTuple):
    """What is being done."""

    name: str
    """Such as ``"tuning"``."""
    progress: SweepProgress | None
    """How far its trials are, where it has trials."""


class Reproduced(NamedTuple):
    """What came of it."""

    summaries: list[dict[str, Any]]
    """Of the experiments that are complete."""
    failed: dict[str, str]
    """The trials that failed: what they were, and why."""


def reproduce(
    experiments: Sequence[Experiment],
    study: Study,
    folder: Path,
    backend: Backend,
    progress: Callable[[Stage], None] = lambda stage: None,
    *,
    to_check: bool = False,
) -> Reproduced:
    """Make the tables and pictures of the experiments, in ``folder``; trials that are there are not run again.

    Args:
        experiments: what to make.
        study: how large they are, and their data.
        folder: where trials are kept and results are written.
        backend: where trials run.
        progress: called as it goes on.
        to_check: whether the results are for `anabranch.paper.check`.

    Raises:
        ConfigError: where the folder holds results of other versions or data or of another size, or another process
            uses it, or none of the committed results could be compared with those of an experiment ``to_check``.
        DataError: where data is missing or broken.
        OutputError: where something cannot be written.
    """
    progress(Stage("reading data", None))
    study = with_rows(study, experiments)
    if to_check:
        _check_comparable(experiments, study)
    common = {"versions": versions(), "rounds": study.rounds}
    with opened(folder, common, {"seeds": study.seeds}) as kept:
        return _reproduce(experiments, study, _Work(kept, backend, progress))


def _check_comparable(experiments: Sequence[Experiment], study: Study) -> None:
    dry = replace(study, dry=True)
    runs = {each.name: each.runs(dry) for each in experiments}
    if unlike := [name for name in runs if not comparable(with_data([run.config for run in runs[name]]))]:
        raise ConfigError(
            f"--check: nothing to compare with: no committed trial of {', '.join(unlike)} has these rounds (--rounds) "
            "and this data"
        )


def _reproduce(experiments: Sequence[Experiment], study: Study, work: _Work) -> Reproduced:
    grid = {pair: tuning_runs(study, [pair]) for pair in tuned_pairs(experiments)}
    work.do("tuning", [run for runs in grid.values() for run in runs])
    pairs = [pair for pair, runs in grid.items() if work.found(runs) is not None]
    tuning = [run for pair in pairs for run in grid[pair]]
    tuned = work.found(tuning) or []
    chosen, doubts = choose(pairs, tuning, tuned), untuned(pairs, tuning, tuned)
    study = replace(study, rates=chosen)

    # What could not be tuned is no reason to leave out the others.
    experiments = [experiment for experiment in experiments if set(tuned_pairs([experiment])) <= set(pairs)]
    grids = {experiment.name: experiment.runs(study) for experiment in experiments}
    work.do("training", [run for runs in grids.values() for run in runs])
    found = {name: work.found(runs) for name, runs in grids.items()}

    with Interruptible() as ctrl_c, ctrl_c.at_once():
        work.begin("timing the clients")
        costs = ClientCosts(work.folder)
        timed = [each.name for each in experiments if each.timed and found[each.name]]
        costs.measure([run.config for name in timed for run in grids[name]])

        work.begin("writing")
        summaries = [_write_tuning(work, study, Tuned(pairs, tuning, tuned))] if pairs else []
        for experiment in experiments:
            runs, records = grids[experiment.name], found[experiment.name]
            if records is not None:
                rows = rows_of(runs, records, [costs.seconds(*each) for each in zip(runs, records, strict=True)])
                shown = experiment.present(study, rows)
                shown.notes += [doubts[pair] for pair in tuned_pairs([experiment]) if pair in doubts]
                summaries.append(
                    summary.write(work.folder, experiment.name, experiment.paper, study, shown, runs, records)
                )
    return Reproduced(summaries, work.failed)


def _write_tuning(work: _Work, study: Study, now: Tuned) -> dict[str, Any]:
    """Return the tables of what is tuned in the folder: now, and by earlier commands for other experiments."""
    known = tuned_pairs(list(EXPERIMENTS.values()))
    before = tuned_before(work.kept, study, [pair for pair in known if pair not in now.pairs])
    runs, records = [*now.runs, *before.runs], [*now.records, *before.records]
    chosen = choose([pair for pair in known if pair in {*now.pairs, *before.pairs}], runs, records)
    shown = present_tuning(rows_of(runs, records, [0.0] * len(runs)), chosen)
    # As few experiments as have tuned it all.
    names, left = [], set(chosen)
    for name, experiment in EXPERIMENTS.items():
        own = set(tuned_pairs([experiment]))
        if own & left and own <= set(chosen):
            names.append(name)
            left -= own
    place = (work.folder, TUNING, "not in the paper")
    return summary.write(*place, study, shown, runs, records, " ".join(names))


class _Work:
    """Runs trials, and finds their records again."""

    def __init__(self, folder: TrialFolder, backend: Backend, progress: Callable[[Stage], None]) -> None:
        self.kept, self._backend, self._progress = folder, backend, progress
        self._keys: dict[Config, str] = {}
        self._records: dict[str, Record] = {}
        self.failed: dict[str, str] = {}

    @property
    def folder(self) -> Path:
        """Where everything is kept."""
        return self.kept.path

    def begin(self, stage: str) -> None:
        """What is done now, which has no trials."""
        self._progress(Stage(stage, None))

    def do(self, stage: str, runs: Sequence[Run]) -> None:
        """Run those that were not run before."""
        trials = with_data([run.config for run in runs])
        _check_data(self.kept, trials)
        self._keys |= {trial.config: trial.key for trial in trials}
        sweep = run_trials(trials, self.kept, self._backend, lambda progress: self._progress(Stage(stage, progress)))
        self._records |= sweep.records
        titles = {trial.key: trial.config.title() for trial in trials}
        self.failed |= {f"{titles[key]}, trial {key}": error for key, error in sweep.failed.items()}

    def found(self, runs: Sequence[Run]) -> list[Record] | None:
        """Return the runs' records; None where one is missing."""
        records = [self._records.get(self._keys[run.config]) for run in runs]
        complete = [record for record in records if record is not None]
        return complete if len(complete) == len(records) else None


def _check_data(kept: TrialFolder, trials: Sequence[Trial]) -> None:
    """Whether the folder's trials have read the same files: else its tables would not go together."""
    now = {trial.config.stream.name: trial.data["stream"] for trial in trials if "stream" in trial.data}
    for record in filter(None, map(kept.get, kept.keys())):
        name, there = record["config"]["stream"]["name"], record["data"].get("stream")
        here = now.get(name)
        if there and here and there["sha256"] != here["sha256"]:
            files = (f"{each['name']} (SHA-256 {each['sha256'][:12]}…)" for each in (there, here))
            raise ConfigError(
                f"{kept.path} holds trials of other data: {name} is {' there, '.join(files)} now. Name another folder "
                "with --out"
            )


def with_rows(study: Study, experiments: Sequence[Experiment]) -> Study:
    """Return the study with the number of rows of each table that the experiments need.

    Raises:
        ConfigError: where no file is given for one of them.
    """
    missing = sorted(_tables(experiments) - set(study.files))
    if missing:
        raise ConfigError(
            " ".join(
                f"{name} needs a file: name it with --{name} FILE ({name.upper()}.csv[.gz], of {UCI[name]})."
                for name in missing
            )
        )
    return with_given_rows(study, experiments)


def with_given_rows(study: Study, experiments: Sequence[Experiment]) -> Study:
    """Likewise, of those tables only whose file is given."""
    given = _tables(experiments) & set(study.files)
    return replace(study, rows={name: _count_rows(study, name) for name in given})


def _tables(experiments: Sequence[Experiment]) -> set[str]:
    return {name for experiment in experiments for name in experiment.problems()} - {"imnist"}


def _count_rows(study: Study, name: str) -> int:
    from anabranch.config import build as runner

    config = study.config(Problem(name), Method("OGD", "Full"), learning_rate=0.0, rounds=1)
    return sum(len(block.y) for block in runner.build(config).stream.blocks())
