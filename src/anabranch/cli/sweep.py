"""``anabranch sweep``: every combination of a grid, on all cores or a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from anabranch.cli.common import (
    STOPPED,
    AddressOption,
    BackendOption,
    DataDirOption,
    JobsOption,
    SetOption,
    errors,
    import_jax,
    interrupted_code,
)
from anabranch.errors import AnabranchError, OutputError
from anabranch.storage.files import json_values, to_json

if TYPE_CHECKING:
    from anabranch.cli.trials import TrialsReporter
    from anabranch.sweep.backend import Backend
    from anabranch.sweep.file import SweepFile
    from anabranch.sweep.table import Row
    from anabranch.sweep.trial import Trial

EXAMPLES = (
    "Examples:\n\n"
    "anabranch sweep rates.toml\n\n"
    "anabranch sweep rates.toml --set rounds=20000 --out runs/quick --jobs 4\n\n"
    "anabranch sweep rates.toml --backend ray --address auto\n\n"
    "anabranch sweep rates.toml --backend dask --address 10.0.0.1:8786"
)


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A configuration file with a section \\[grid] of settings to vary.", show_default=False
        ),
    ],
    changes: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the trials.", show_default="runs/NAME")
    ] = None,
    jobs: JobsOption = None,
    backend: BackendOption = "loky",
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the trials to stdout, and the rest to stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Neither progress nor tables.")] = False,
) -> None:
    """Run every combination of a grid, and compare them.

    Finished trials are kept in the folder. The same command goes on where it stopped, and runs what a grid that is
    widened adds. Settings that the trials have in common must stay the same.

    Exit codes: 0 done; 2 something is wrong, nothing was run; 3 a trial failed, or the sweep stopped at an error, the
    others are kept; 130 Ctrl-C; 143 SIGTERM.
    """
    notes = Console(stderr=True)
    with errors(notes):
        from anabranch.config.load import Override, parse_override
        from anabranch.sweep.backend import Backend
        from anabranch.sweep.file import read

        overrides = [parse_override(change, "--set") for change in changes or ()]
        if data_dir is not None:
            overrides.append(Override(("stream", "data_dir"), str(data_dir), "--data-dir"))
        where = Backend(backend, address, jobs)
        read_file = read(file, overrides)
        code = _sweep(read_file, out or Path("runs") / read_file.name, where, notes, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)


def _sweep(file: SweepFile, out: Path, backend: Backend, notes: Console, *, as_json: bool, quiet: bool) -> int:
    """Run and write; return the exit code."""
    from anabranch import display
    from anabranch.cli.trials import TrialsReporter, stopped
    from anabranch.sweep.run import Sweep, finished, run_trials
    from anabranch.sweep.table import rows_of
    from anabranch.sweep.tables import open_sweep

    with ExitStack() as stack:
        with TrialsReporter(notes, quiet=quiet) as reporter:
            trials = _look(file, reporter, notes)
            folder = stack.enter_context(open_sweep(file, out, trials))
            stop: BaseException | None = None
            try:
                swept = run_trials(trials, folder, backend, reporter)
            except (AnabranchError, KeyboardInterrupt) as error:
                if not reporter.last or not reporter.last.running:
                    raise
                stop, swept = error, Sweep(finished(trials, folder), {})
        rows = rows_of(file.points, trials, swept)
        unwritten = _report(file, rows, out, notes, as_json=as_json, quiet=quiet)
    problem = stop if isinstance(stop, AnabranchError) else unwritten
    if problem is not None:
        display.error(notes, str(problem))
    if stop is not None:
        total = len({trial.key for trial in trials})
        stopped(notes, len(swept.records), total, out)
    if isinstance(stop, KeyboardInterrupt):
        return interrupted_code(stop)
    return STOPPED if stop or unwritten or swept.failed else 0


def _look(file: SweepFile, reporter: TrialsReporter, notes: Console) -> list[Trial]:
    """Return the trials with the data that they read."""
    from anabranch import display

    reporter.stage("importing")
    import_jax(notes)
    from anabranch.sweep.data import with_data

    reporter.stage("reading data")
    with display.notices(notes):
        return with_data([point.config for point in file.points])


def _report(
    file: SweepFile, rows: Sequence[Row], out: Path, notes: Console, *, as_json: bool, quiet: bool
) -> OutputError | None:
    """Write and show the trials; return why they could not be written."""
    from anabranch.cli import trials
    from anabranch.sweep.table import CSV, ranked
    from anabranch.sweep.tables import BEST, write_tables

    groups = ranked(rows, file.points)
    unwritten = None
    try:
        write_tables(file, rows, groups, out)
    except OutputError as error:
        unwritten = error
    if as_json:
        typer.echo(to_json(_described(file, rows, out)), nl=False)
    if not quiet and rows:
        console = notes if as_json else Console()
        trials.ranking(console, groups, list(file.grid))
        if unwritten is None:
            best = [BEST] if groups[0].complete else []
            if best:
                again = shlex.join(["anabranch", "run", str(out / BEST)])
                console.print(f"The best one again: {again}", soft_wrap=True, highlight=False, markup=False)
            files = ", ".join([CSV, *best, "manifest.json", "trials/"])
            console.print(Text.assemble((f"{out}/", "bold"), f": {files}"), soft_wrap=True)
    failed = [(trials.name_of(row.point.labels), row.values["failed"]) for row in rows if row.values["failed"]]
    trials.failures(notes, failed)
    return unwritten


def _described(file: SweepFile, rows: Sequence[Row], out: Path) -> dict[str, Any]:
    trials = [{"labels": row.point.labels, **row.values} for row in rows]
    return json_values({"folder": str(out), "grid": file.grid, "trials": trials})
