"""What a person sees of many trials: progress while they run, the best of them when they are done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.display import Live, duration, error, note
from anabranch.sweep.file import label_text
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.table import Group

MOST_GROUPS = 40
"""So many have a row of their own on the terminal."""
FILE_WIDTH = 160
"""Where the table does not go to a terminal."""


class TrialsReporter(Live):
    """Shows how far a sweep is."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        super().__init__(console, quiet=quiet)
        self.last: SweepProgress | None = None
        """What was shown last."""

    def __call__(self, progress: SweepProgress, doing: str = "trials") -> None:
        """Called by `run_trials` now and then."""
        self.last = progress
        left = f" · {_left(progress)}" if progress.running else ""
        self.show(
            doing,
            progress.done + progress.failed,
            progress.total,
            f"{progress.done} of {progress.total} done · {progress.running} running · {progress.failed} failed{left}",
        )


def _left(progress: SweepProgress) -> str:
    """Return how long it takes yet, as far as that is known."""
    if not progress.late:
        return f"{duration(progress.seconds_left)} left"
    if progress.seconds_left < 1:
        return "longer than estimated"
    return f"more than {duration(progress.seconds_left)} left"


def stopped(console: Console, done: int, total: int, folder: Path) -> None:
    """What is kept of trials that were stopped."""
    kept = f"{done} of {total} trials are done and kept in {folder}"
    note(console, f"stopped: {kept}; the same command goes on from there")


def wide(console: Console) -> Console:
    """Return one for tables: as the console, but wide where it is not a terminal."""
    return console if console.is_terminal else Console(file=console.file, width=FILE_WIDTH)


def ranking(console: Console, groups: Sequence[Group], keys: Sequence[str]) -> None:
    """The groups, the best first.

    Args:
        groups: as `anabranch.sweep.table.ranked` returns them.
        keys: of the grid.
    """
    seeds, remarks = "seed" in keys, any(not group.complete for group in groups)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for key in keys:
        if key != "seed":
            table.add_column(key, overflow="fold", min_width=8)
    headings = ["accumulated\nerror", *(["min–max"] if seeds else []), "run-time\nerror", "activated", "MB"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    if remarks:
        table.add_column(no_wrap=True)
    for group in groups[:MOST_GROUPS]:
        table.add_row(
            *(Text(label_text(value)) for value in group.labels.values()),
            _mean(group, "accumulated_error", ".4f"),
            *([_range(group, "accumulated_error", ".4f")] if seeds else []),
            _mean(group, "run_time_error", ".4f"),
            _mean(group, "activation_rate", ".4f"),
            _mean(group, "MB", ",.2f"),
            *([_remark(group)] if remarks else []),
        )
    wide(console).print(table)
    if len(groups) > MOST_GROUPS:
        console.print(f"and {len(groups) - MOST_GROUPS:,} more, which trials.csv has too")


def failures(console: Console, failed_trials: Iterable[tuple[str, str]]) -> None:
    """The trials that failed, those of the same error together.

    Args:
        failed_trials: what each was, and why it failed.
    """
    of_error: dict[str, list[str]] = {}
    for name, why in failed_trials:
        of_error.setdefault(why, []).append(name)
    for why, failed in of_error.items():
        these = "; ".join(failed[:3])
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        count = f"{len(failed)} trials" if len(failed) > 1 else "a trial"
        error(console, f"{count} failed: {why.rstrip('.')} ({these}{more})")
    if of_error:
        note(console, "the same command tries again what failed")


def name_of(labels: Mapping[str, object]) -> str:
    """Return a trial by its grid's values."""
    return ", ".join(f"{key} = {label_text(value)}" for key, value in labels.items())


def _range(group: Group, name: str, form: str) -> str:
    _, least, greatest = group.span(name)
    return "" if math.isnan(least) else f"{least:{form}}–{greatest:{form}}"


def _mean(group: Group, name: str, form: str) -> str:
    mean = group.span(name)[0]
    return "" if math.isnan(mean) else f"{mean:{form}}"


def _remark(group: Group) -> Text:
    """Return whether trials of the group diverged, failed or were not run yet."""
    counts = {what: group.count(what) for what in ("diverged", "failed")}
    counts["not run yet"] = group.trials - len(group.rows)
    parts = [
        what if group.trials == 1 else f"{count} of {group.trials} {what}" for what, count in counts.items() if count
    ]
    return Text(", ".join(parts), "yellow")
