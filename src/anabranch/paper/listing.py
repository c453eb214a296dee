"""What there is to reproduce, how many trials that takes, and about how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.paper.experiment import Experiment
from anabranch.paper.study import Study
from anabranch.paper.tuning import tuned_pairs, tuning_runs
from anabranch.sweep.estimate import estimated_seconds, machine_factor


class Entry(NamedTuple):
    """An experiment, before it is run."""

    name: str
    paper: str
    caption: str
    trials: int
    tuning_trials: int
    seconds: float
    """On this machine with so many trials at a time, tuning included. Trials that two experiments share count in
    both."""


def entries(experiments: Sequence[Experiment], study: Study, jobs: int) -> list[Entry]:
    """Return one for each experiment.

    Args:
        study: a dry one, with the rows of the tables that are at hand.
        jobs: how many trials run at a time.
    """
    factor = machine_factor() / jobs
    found = []
    for experiment in experiments:
        tuning = tuning_runs(study, tuned_pairs([experiment]))
        runs = experiment.runs(study)
        seconds = sum(estimated_seconds(run.config) for run in [*tuning, *runs]) * factor
        found.append(Entry(experiment.name, experiment.paper, experiment.caption, len(runs), len(tuning), seconds))
    return found
