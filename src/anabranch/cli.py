"""The command line: ``anabranch run`` and ``anabranch show``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from anabranch.errors import AnabranchError, DataError, Diverged, Interrupted

# What trains is imported where it is needed: JAX takes a second, and --help should not wait for it.
if TYPE_CHECKING:
    from anabranch.config import Config
    from anabranch.configfile import Override, Source
    from anabranch.display import Reporter
    from anabranch.result import Result
    from anabranch.runner import Plan

WRONG, STOPPED, INTERRUPTED = 2, 3, 130
"""Exit codes: something was wrong before training; training stopped at an error; Ctrl-C."""

RUN_EXAMPLES = (
    "Examples:\n\n"
    "anabranch run imnist\n\n"
    "anabranch run imnist --set update.window=50 --rounds 100000 --out runs/long\n\n"
    "anabranch run imnist --set activation.name=Random --set activation.p=0.5 --seed 1\n\n"
    "anabranch run imnist --set update.name=SLR --set drift.every=50\n\n"
    "anabranch run higgs --data-dir ~/data --json > higgs.json\n\n"
    "anabranch run runs/long  (again, to the same bits)"
)
SHOW_EXAMPLES = (
    "Examples:\n\n"
    "anabranch show imnist\n\n"
    "anabranch show imnist --set update.name=SLR > mine.toml\n\n"
    "anabranch show runs/long"
)

app = typer.Typer(
    name="anabranch",
    help="Event-driven online vertical federated learning: several parties hold different features, a server holds "
    "the labels, and they train one model while the data streams in.",
    epilog="Begin with: anabranch run imnist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A preset (imnist, susy or higgs), a configuration file (.toml), or the result of an earlier run "
        "(result.json or its folder).",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as update.window=50 or update.name=SLR; may be given again.",
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True)
def _about(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(f"anabranch {version('anabranch')}")
        raise typer.Exit


@app.command(epilog=RUN_EXAMPLES)
def run(
    source: SourceArgument,
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds to train.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the result.", show_default="runs/NAME-TIME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier result in --out.")] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the stream's data files.", show_default="ANABRANCH_DATA"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json to stdout, and everything else to stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Neither progress nor tables.")] = False,
) -> None:
    """Train, and write result.json, curve.csv, curve.png and model.safetensors.

    Ctrl-C stops a run and keeps the rounds that were done.

    Exit codes: 0 done; 2 something is wrong, nothing was trained; 3 stopped at an error, the rounds before it are
    kept; 130 Ctrl-C.
    """
    notes = Console(stderr=True)
    with _errors(notes):
        from anabranch.configfile import Override, find_source, load, parse_override

        found = find_source(source)
        overrides = [parse_override(change, "--set") for change in changes or ()]
        for key, value, flag in ((("rounds",), rounds, "--rounds"), (("seed",), seed, "--seed")):
            if value is not None:
                overrides.append(Override(key, value, flag))
        if data_dir is not None:
            overrides.append(Override(("stream", "data_dir"), str(data_dir), "--data-dir"))
        config = load(found, overrides)
        code = _train(found, config, overrides, out, notes, force=force, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)


@app.command(epilog=SHOW_EXAMPLES)
def show(source: SourceArgument, changes: SetOption = None) -> None:
    """Print a configuration as TOML: a preset with its comments, or all settings of a file after --set."""
    with _errors(Console(stderr=True)):
        from anabranch.configfile import PRESETS, load, parse_override, preset_text

        if source in PRESETS and not changes:
            typer.echo(preset_text(source), nl=False)
        else:
            config = load(source, [parse_override(change, "--set") for change in changes or ()])
            typer.echo(config.to_toml(), nl=False)


def main() -> None:
    """The command ``anabranch``."""
    app(prog_name="anabranch")


@contextmanager
def _errors(notes: Console) -> Iterator[None]:
    """Within it, what goes wrong is one message and an exit code."""
    try:
        yield
    except (AnabranchError, KeyboardInterrupt) as problem:
        from anabranch.display import error

        if isinstance(problem, KeyboardInterrupt):
            error(notes, "interrupted before a result was written")
            raise typer.Exit(INTERRUPTED) from None
        error(notes, str(problem))
        raise typer.Exit(WRONG) from None


def _train(
    source: Source,
    config: Config,
    overrides: list[Override],
    out: Path | None,
    notes: Console,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Trains and writes; returns the exit code."""
    from anabranch import display, output

    folder = output.prepare(out, source.name, force=force)
    try:
        with display.Reporter(notes, config.rounds, quiet=quiet) as reporter:
            reporter.stage("importing")
            from anabranch import runner

            reporter.stage("reading data")
            with display.notices(notes):
                plan = runner.build(config)
            if source.result is not None:
                runner.check_same_data(plan, source.result.get("data", {}), source.where)
                if not overrides:
                    _note_versions(source.result, notes)
            reporter.stage("compiling")
            result, problem = _simulate(plan, reporter)
            reporter.stage("timing the clients and writing")
            described = output.write(folder.path, result, config, name=source.name, data=plan.data)
    except BaseException:
        folder.discard()
        raise
    if as_json:
        typer.echo(output.to_json(described), nl=False)
    if not quiet:
        display.summary(notes if as_json else Console(), result, output.title(config), folder.path)
    if problem is not None:
        kept = f"The {result.rounds:,} rounds before it are in {folder.path}"
        if isinstance(problem, KeyboardInterrupt):
            display.note(notes, f"{result.stopped}; their result is in {folder.path}")
            return INTERRUPTED
        display.error(notes, f"{problem}. {kept}")
        return STOPPED
    if result.stopped:
        display.note(notes, result.stopped)
    return 0


def _simulate(plan: Plan, reporter: Reporter) -> tuple[Result, BaseException | None]:
    """The result, and what ended the run early where that kept a result."""
    from anabranch.simulator import simulate

    try:
        return simulate(plan.model, plan.stream, **plan.options, progress=reporter), None
    except (Diverged, Interrupted) as problem:
        return problem.result, problem
    except DataError as problem:
        if problem.result is None:
            raise
        return problem.result, problem


def _note_versions(stored: dict[str, object], notes: Console) -> None:
    """Says where the versions are not those of the stored run."""
    from anabranch.display import note
    from anabranch.result import versions

    then, now = stored.get("versions"), versions()
    if isinstance(then, dict):
        changed = [f"{name} {then.get(name)}, now {each}" for name, each in now.items() if then.get(name) != each]
        if changed:
            note(notes, f"the stored run had {'; '.join(changed)}: the bits may differ")
