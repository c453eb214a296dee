"""``anabranch reproduce``: the paper's tables and figures again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.cli.common import (
    STOPPED,
    AddressOption,
    BackendOption,
    DataDirOption,
    JobsOption,
    errors,
    import_jax,
    interrupted_code,
)
from anabranch.errors import AnabranchError, ConfigError

if TYPE_CHECKING:
    from anabranch.cli.trials import TrialsReporter
    from anabranch.paper.experiment import Experiment
    from anabranch.paper.reproduce import Reproduced, Stage
    from anabranch.paper.study import Study
    from anabranch.sweep.backend import Backend

EXAMPLES = (
    "Examples:\n\n"
    "anabranch reproduce --list\n\n"
    "anabranch reproduce drift --quick\n\n"
    "anabranch reproduce probability threshold --seeds 3\n\n"
    "anabranch reproduce susy --susy SUSY.csv.gz\n\n"
    "anabranch reproduce drift --seeds 1 --check\n\n"
    "anabranch reproduce all --susy SUSY.csv.gz --higgs HIGGS.csv.gz"
)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Experiments, or all; --list names them.", show_default=False),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the experiments, their trials and the time that they take here.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(help="Of each trial.", show_default="2,000,000")] = None,
    seeds: Annotated[int | None, typer.Option(help="Of each experiment.", show_default="3 or 1")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="20,000 rounds and one seed, to see that it works.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the results.", show_default="runs/paper")
    ] = None,
    susy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SUSY.csv, plain or gzipped.", show_default=False)
    ] = None,
    higgs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HIGGS.csv, plain or gzipped.", show_default=False)
    ] = None,
    data_dir: DataDirOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = "loky",
    address: AddressOption = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the committed results.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Neither progress nor tables.")] = False,
) -> None:
    """Make tables and figures of the paper again.

    Trials are kept in the folder: the same command goes on where it stopped, and experiments share trials.

    Exit codes: 0 done; 2 something is wrong, nothing was run; 3 a trial failed, an error stopped it, or a check did
    not hold; 130 Ctrl-C; 143 SIGTERM.
    """
    notes = Console(stderr=True)
    with errors(notes):
        from anabranch.config.load import absolute_path
        from anabranch.paper.registry import FURTHER, find
        from anabranch.paper.study import QUICK_ROUNDS, ROUNDS, Study
        from anabranch.sweep.backend import Backend

        if quick and (rounds is not None or seeds is not None):
            raise ConfigError("--quick is --rounds 20000 --seeds 1: give it, or those")
        study = Study(
            rounds=QUICK_ROUNDS if quick else ROUNDS if rounds is None else rounds,
            seeds=1 if quick else seeds,
            data_dir=None if data_dir is None else Path(absolute_path(str(data_dir), Path())),
            files={name: file.resolve() for name, file in (("susy", susy), ("higgs", higgs)) if file is not None},
        )
        where = Backend(backend, address, jobs)
        if show_list:
            _list(find(names or ["all", *FURTHER]), study, where.jobs or os.cpu_count() or 1)
            return
        if not names:
            raise ConfigError("which experiments? Name some of them (--list), or all")
        chosen = find(names)
        folder = out or Path("runs") / _default_folder(study)
        code = _reproduce(chosen, study, folder, where, notes, check=check, quiet=quiet)
    raise typer.Exit(code)


def _default_folder(study: Study) -> str:
    from anabranch.paper.study import ROUNDS

    return "paper" if study.rounds == ROUNDS else f"paper-{study.rounds}"


def _list(experiments: Sequence[Experiment], study: Study, jobs: int) -> None:
    from dataclasses import replace

    from anabranch.display import duration
    from anabranch.paper.listing import entries
    from anabranch.paper.reproduce import with_given_rows

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "the paper's", "caption"):
        table.add_column(heading, no_wrap=heading == "name")
    for heading in ("trials", "of tuning", "time here"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in entries(experiments, replace(with_given_rows(study, experiments), dry=True), jobs):
        counts = str(each.trials), str(each.tuning_trials or "")
        table.add_row(each.name, each.paper, each.caption, *counts, duration(each.seconds))
    console = Console()
    console.print(table)
    console.print(
        f"{study.rounds:,} rounds a trial (susy and higgs: at most the rows of the file that --susy or --higgs names), "
        f"{jobs} at a time. Times are estimates. Experiments share trials and tuning, so that several together take "
        "less than the sum.",
        highlight=False,
    )


def _reproduce(
    experiments: Sequence[Experiment],
    study: Study,
    folder: Path,
    backend: Backend,
    notes: Console,
    *,
    check: bool,
    quiet: bool,
) -> int:
    """Run, write and show; return the exit code."""
    from anabranch import display
    from anabranch.cli.trials import TrialsReporter, failures, stopped

    with TrialsReporter(notes, quiet=quiet) as reporter, display.notices(notes):
        reporter.stage("importing")
        import_jax(notes)
        from anabranch.paper.reproduce import reproduce

        try:
            done = reproduce(experiments, study, folder, backend, lambda stage: _tell(reporter, stage), to_check=check)
        except (AnabranchError, KeyboardInterrupt) as stop:
            if not reporter.last or not (reporter.last.running or reporter.last.over):
                raise  # nothing was run yet
            reporter.close()
            if isinstance(stop, AnabranchError):
                display.error(notes, str(stop))
            stopped(notes, reporter.last.done, reporter.last.total, folder)
            return interrupted_code(stop) if isinstance(stop, KeyboardInterrupt) else STOPPED
    if not quiet:
        _show(done, folder)
    made = {summary["name"] for summary in done.summaries}
    if unmade := [experiment.name for experiment in experiments if experiment.name not in made]:
        display.error(notes, f"not made, for want of trials that failed: {', '.join(unmade)}")
    failures(notes, done.failed.items())
    held = not check or _check(done, notes)
    return STOPPED if done.failed or not held else 0


def _tell(reporter: TrialsReporter, stage: Stage) -> None:
    if stage.progress is None:
        reporter.stage(stage.name, line=True)
    else:
        reporter(stage.progress, stage.name)


def _show(done: Reproduced, folder: Path) -> None:
    """Each table as the terminal can have it, and where everything is."""
    from anabranch.cli.trials import wide
    from anabranch.report.formats import text

    console = Console()
    for summary in done.summaries:
        for table in summary["tables"]:
            shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=table["caption"], title_justify="left")
            for column in table["columns"]:
                shown.add_column(column["heading"], justify="right" if column["format"] else "left", overflow="fold")
            for row in table["rows"]:
                shown.add_row(*(Text(text(row[column["key"]], column["format"])) for column in table["columns"]))
            wide(console).print(shown)
        for note in summary["notes"]:
            console.print(f"· {note}", soft_wrap=True, highlight=False, markup=False)
        console.print(Text.assemble((f"{folder / summary['name']}/", "bold")), soft_wrap=True)
    again = f"One page of all results: anabranch report {folder}"
    console.print(again, soft_wrap=True, highlight=False, markup=False)


def _check(done: Reproduced, notes: Console) -> bool:
    """Compare each summary with the committed one; whether all hold."""
    from anabranch import display
    from anabranch.paper.check import ALLOWED, check

    held = True
    console = Console()
    for summary in done.summaries:
        found = check(summary)
        held = held and found.passed
        if not found.compared:
            display.error(
                notes,
                f"{found.name}: nothing to compare: none of its {found.missing} trials is among the committed, which "
                "have other settings, such as --rounds, or other data",
            )
            continue
        text = f"{found.name}: {found.compared} trials compared, {found.identical} of them the same to the last bit"
        if found.missing:
            text += f"; {found.missing} are not among the committed"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        for each in found.differences:
            text = f"{found.name}: {each.quantity}: the largest difference is {each.size:.4f}"
            if each.allowed:
                console.print(f"  {text}", soft_wrap=True, highlight=False, markup=False)
            else:
                display.error(notes, f"{text}, of {each.where}, where {ALLOWED[each.quantity]} is allowed")
    return held
