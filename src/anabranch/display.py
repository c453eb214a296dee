"""What a person sees of a run: progress while it goes, tables when it is done."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import rich.progress
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.notes import error as error
from anabranch.notes import note as note
from anabranch.simulation.metrics import RUN_TIME_WINDOW
from anabranch.simulation.output import FILES
from anabranch.simulation.traffic import MB
from anabranch.streams import DigitsNotice

if TYPE_CHECKING:
    from anabranch.simulation.drift_detection import Detection
    from anabranch.simulation.result import Result
    from anabranch.simulation.simulator import Progress

LINE_SECONDS = 10.0
"""Where there is no terminal, a line of progress is written so often."""
MOST_ROWS = 20
"""So many clients have a row of their own in the table."""
MOST_DETECTIONS = 4
"""So many are named; all are in the result file."""


class Live:
    """Shows how far something is: a bar on a terminal, now and then a line elsewhere, or nothing."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._line = 0.0
        self._lines = not quiet and not console.is_terminal
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            console=console,
            refresh_per_second=5,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, numbers="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def stage(self, name: str, *, line: bool = False) -> None:
        """What is being done where it is not counted; with ``line``, said without a terminal too."""
        self._bar.reset(self._task, description=name, total=None, numbers="")
        if line and self._lines:
            self._say(name)

    def show(self, doing: str, done: int, total: int | None, numbers: str) -> None:
        """How far it is, and the numbers that a person reads."""
        self._bar.update(self._task, description=doing, completed=done, total=total, numbers=numbers)
        now = time.perf_counter()
        if self._lines and (not self._line or now - self._line >= LINE_SECONDS):
            self._line = now
            self._say(f"{doing}: {numbers}")

    def _say(self, line: str) -> None:
        with suppress(OSError):  # a file on a full disk: what it tells of goes on
            self._console.print(line, soft_wrap=True, highlight=False)


class Reporter(Live):
    """Shows how far a run is."""

    def __init__(self, console: Console, rounds: int | None, *, quiet: bool = False) -> None:
        super().__init__(console, quiet=quiet)
        self._rounds = rounds
        self._first: tuple[float, int] | None = None

    def __call__(self, progress: Progress) -> None:
        """Called by `simulate` now and then."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now, progress.rounds
        numbers = self._numbers(progress, now - self._first[0], progress.rounds - self._first[1])
        self.show("training", progress.rounds, self._rounds, numbers)

    def _numbers(self, progress: Progress, seconds: float, rounds: int) -> str:
        of = f"{progress.rounds:,}" + (f"/{self._rounds:,}" if self._rounds else "")
        parts = [f"{of} rounds"]
        if seconds > 0 and rounds > 0:
            parts.append(f"{rounds / seconds:,.0f}/s")
        if progress.rounds:  # none yet, where the first labels are still to come
            parts.append(f"error {progress.run_time_error:.4f}")
        if seconds > 0 and rounds > 0 and self._rounds:
            parts.append(f"{duration((self._rounds - progress.rounds) * seconds / rounds)} left")
        return " · ".join(parts)


@contextmanager
def notices(console: Console) -> Iterator[None]:
    """Within it, a `DigitsNotice` is one readable line on ``console``, said once; other warnings are as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DigitsNotice)
        usual = warnings.showwarning
        said: set[str] = set()

        def show(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
            if issubclass(category, DigitsNotice):
                if str(message) not in said:
                    note(console, str(message))
                said.add(str(message))
            else:
                usual(message, category, *rest, **more)  # type: ignore[arg-type]

        warnings.showwarning = show
        yield


def summary(console: Console, result: Result, title: str, folder: Path) -> None:
    """The numbers of a run and where its files are."""
    console.print()
    console.print(Text(title, "bold"), soft_wrap=True)
    console.print(_totals(result))
    console.print(_clients(result))
    console.print(Text.assemble((f"{folder}/", "bold"), f": {', '.join(reversed(FILES))}"), soft_wrap=True)


def _totals(result: Result) -> Table:
    up, down = int(result.traffic.up.sum()), int(result.traffic.down.sum())
    last = min(result.rounds, RUN_TIME_WINDOW)
    seconds = f"{result.seconds:.1f} s, after {result.compile_seconds:.1f} s of compiling"
    if result.timed_rounds is not None:
        seconds = f"{result.timed_rounds:,} rounds in {result.seconds:.1f} s"
    drift = () if result.detections is None else (_drift(result.detections),)
    rows = (
        ("accumulated error rate", f"{result.error_rate:.4f}", f"mean of all {result.rounds:,} rounds"),
        ("run-time error rate", f"{result.run_time_error:.4f}", f"mean of the last {last:,} rounds"),
        ("MB", _mb(up + down), f"{_mb(up)} up, {_mb(down)} down; payload, 2^20 bytes each"),
        ("client seconds", _seconds(result.client_seconds), "estimate: functions timed one by one × rounds"),
        ("rounds a second", f"{result.rounds_per_second:,.0f}", seconds),
        *drift,
    )
    if (late := result.late_labels) is not None:
        more = f"at most {late.longest_delay:,}; {_mb(int(late.prediction_bytes.sum()))} MB more up, for predictions"
        rows = (*rows, ("labels late", f"{late.mean_delay:,.1f}", f"events, on average; {more}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _drift(detections: list[Detection]) -> tuple[str, str, str]:
    """Return how often drift was noticed, and where first."""
    where = [
        f"{each.round:,} ({each.what}{'' if each.client is None else f' of client {each.client}'})"
        for each in detections
    ]
    shown = ", ".join(where[:MOST_DETECTIONS]) + (", …" if len(where) > MOST_DETECTIONS else "")
    return "drift noticed", f"{len(detections):,}", f"after round {shown}" if where else "nowhere"


def _clients(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("client")
    for heading in ("features", "activated", "MB up", "MB down", "seconds"):
        table.add_column(heading, justify="right")
    features = result.settings["model"]["features"]
    seconds = result.seconds_of_clients
    for m in range(min(len(features), MOST_ROWS)):
        up, down = result.traffic.up[m], result.traffic.down[m]
        share = f"{result.activation_rate[m]:.4f}"
        table.add_row(str(m + 1), str(features[m]), share, _mb(up), _mb(down), _seconds(seconds[m]))
    if len(features) > MOST_ROWS:
        table.add_row("…", "", "", "", "", "")
    table.add_section()
    mean = f"mean {result.activation_rate.mean():.4f}"
    up, down = result.traffic.up.sum(), result.traffic.down.sum()
    table.add_row("all", str(sum(features)), mean, _mb(up), _mb(down), _seconds(seconds.sum()))
    return table


def _mb(count: int) -> str:
    return f"{count / MB:,.2f}"


def _seconds(seconds: float) -> str:
    return "not measured" if math.isnan(seconds) else f"{seconds:,.1f}"


def duration(seconds: float) -> str:
    """Such as ``'40 s'``, ``'12 min'`` or ``'3 h 5 min'``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
