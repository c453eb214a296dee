"""What a person sees of many trials: progress while they run, the best of them when they are done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Show the groups, the best first, with as many columns as the console has room for.

    Args:
        console: takes the table.
        groups: as `anabranch.sweep.table.ranked` returns them.
        keys: of the grid.
    """
    columns: dict[str, Callable[[Group], str | Text]] = {
        "accumulated\nerror": lambda group: _mean(group, "accumulated_error", ".4f"),
        "min–max": lambda group: _range(group, "accumulated_error", ".4f"),
        "run-time\nerror": lambda group: _mean(group, "run_time_error", ".4f"),
        "activated": lambda group: _mean(group, "activation_rate", ".4f"),
        "MB": lambda group: _mean(group, "MB", ",.2f"),
        "": _remark,
    }
    if "seed" not in keys:
        del columns["min–max"]
    if all(group.complete for group in groups):
        del columns[""]
    shown, left_out = wide(console), []
    names = {key: key for key in keys if key != "seed"}
    table = _ranking(groups, names, columns)
    for heading in ("a name in one line", "MB", "activated", "min–max", "run-time\nerror"):
        if shown.measure(table, options=shown.options.update(width=FILE_WIDTH)).minimum <= shown.width:
            break
        if columns.pop(heading, None) is not None:
            left_out.append(heading.replace("\n", " "))
        names = {key: key.replace(".", ".\n").replace("_", "_\n") for key in names}
        table = _ranking(groups, names, columns)
    shown.print(table)
    if left_out:
        console.print(f"There is no room here for {', '.join(reversed(left_out))}: trials.csv has all numbers.")
    if len(groups) > MOST_GROUPS:
        console.print(f"and {len(groups) - MOST_GROUPS:,} more, which trials.csv has too")


def _ranking(
    groups: Sequence[Group], names: Mapping[str, str], columns: Mapping[str, Callable[[Group], str | Text]]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names.values():
        table.add_column(name, overflow="fold", min_width=max(8, *map(len, name.split("\n"))))
    for heading in columns:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for group in groups[:MOST_GROUPS]:
        labels = (Text(label_text(value)) for value in group.labels.values())
        table.add_row(*labels, *(cell(group) for cell in columns.values()))
    return table


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
