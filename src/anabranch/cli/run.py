"""``anabranch run``: trains, and writes the files of a result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from anabranch.cli.common import STOPPED, DataDirOption, SetOption, SourceArgument, errors, import_jax, interrupted_code
from anabranch.errors import AnabranchError, ConfigError, DataError, Diverged, Interrupted
from anabranch.interrupt import Interruptible, cleaning

# What trains is imported where it is needed: JAX takes a second, and --help should not wait for it.
if TYPE_CHECKING:
    from anabranch.config.build import Plan
    from anabranch.config.load import Override, Source
    from anabranch.config.run import Config
    from anabranch.display import Reporter
    from anabranch.simulation.output import Origin
    from anabranch.simulation.result import Result

EXAMPLES = (
    "Examples:\n\n"
    "anabranch run imnist\n\n"
    "anabranch run imnist --set update.window=50 --rounds 100000 --out runs/long\n\n"
    "anabranch run imnist --set activation.name=Random --set activation.p=0.5 --seed 1\n\n"
    "anabranch run imnist --set update.name=SLR --set drift.every=50\n\n"
    "anabranch run higgs --data-dir ~/data --json > higgs.json\n\n"
    "anabranch run runs/long  (again, to the same bits)\n\n"
    "anabranch run --resume runs/long --rounds 400000  (from where it stopped)"
)


def run(
    source: SourceArgument,
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds to train.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the result.", show_default="runs/NAME-TIME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier result in --out.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of the folder SOURCE, where it stopped; see --rounds.")
    ] = False,
    data_dir: DataDirOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json to stdout, and everything else to stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Neither progress nor tables.")] = False,
) -> None:
    """Train, and write result.json, curve.csv, curve.png and model.safetensors.

    Ctrl-C stops a run and keeps the rounds that were done, and so does SIGTERM; while the clients are timed, it skips
    that. With --resume the run goes on from there, and its result takes the place of the earlier one unless --out names
    another folder. The bits are those of a run that never stopped.

    Exit codes: 0 done; 2 something is wrong, nothing was trained; 3 stopped at an error, the rounds before it are
    kept; 130 Ctrl-C; 143 SIGTERM.
    """
    notes = Console(stderr=True)
    with errors(notes):
        from anabranch.config.load import Override, find_source, load, parse_override

        found = find_source(source)
        overrides = [parse_override(change, "--set") for change in changes or ()]
        for key, value, flag in ((("rounds",), rounds, "--rounds"), (("seed",), seed, "--seed")):
            if value is not None:
                overrides.append(Override(key, value, flag))
        if data_dir is not None:
            overrides.append(Override(("stream", "data_dir"), str(data_dir), "--data-dir"))
        config = load(found, overrides)
        begun = _begun(found) if resume else None
        code = _train(found, config, overrides, out, begun, notes, force=force, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)


def _begun(source: Source) -> Path:
    """Return the folder of the run that goes on.

    Raises:
        ConfigError: if the source is no result.
    """
    if source.result is None:
        raise ConfigError(
            f"--resume goes on with the run of a result, and {source.where} is none: name the folder that 'anabranch "
            "run' wrote"
        )
    return source.folder


def _train(
    source: Source,
    config: Config,
    overrides: list[Override],
    out: Path | None,
    begun: Path | None,
    notes: Console,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Train and write; return the exit code.

    Args:
        begun: the folder of the run that goes on; None begins a run.
    """
    from anabranch import display
    from anabranch.simulation import output

    goes_on_there = begun is not None and out is None
    folder = output.prepare(begun if goes_on_there else out, source.name, force=force or goes_on_there)
    with cleaning(folder.discard), display.Reporter(notes, config.rounds, quiet=quiet) as reporter:
        try:
            plan = _plan(source, config, overrides, reporter, notes)
            reporter.stage("compiling")
            result, problem = _simulate(plan, begun, reporter)
        except BaseException:
            folder.discard()
            raise
        with Interruptible() as ctrl_c:  # there is a result now, and it reaches the disk
            origin = output.Origin(source.name, config.title(), config.to_dict(), plan.data)
            result, described = _keep(result, folder.path, origin, reporter, ctrl_c)
            reporter.close()
            if as_json:
                typer.echo(output.to_json(described), nl=False)
            if not quiet:
                display.summary(notes if as_json else Console(), result, origin.title, folder.path)
            pressed = ctrl_c.problem() if ctrl_c.pressed else problem
            interrupted = interrupted_code(pressed) if isinstance(pressed, KeyboardInterrupt) else None
            return _conclude(result, problem, folder.path, notes, interrupted=interrupted)


def _plan(source: Source, config: Config, overrides: list[Override], reporter: Reporter, notes: Console) -> Plan:
    """Build what is to be trained, which for a stored result is what it was trained on."""
    from anabranch import display

    reporter.stage("importing")
    import_jax(notes)
    from anabranch.config import build as runner

    reporter.stage("reading data")
    with display.notices(notes):
        plan = runner.build(config)
    if source.result is not None:
        runner.check_same_data(plan, source.result.get("data", {}), source.where)
        if not overrides:
            _note_versions(source.result, notes)
    return plan


def _keep(
    result: Result, folder: Path, origin: Origin, reporter: Reporter, ctrl_c: Interruptible
) -> tuple[Result, dict[str, Any]]:
    """Write the files, then times the clients and write ``result.json`` again; Ctrl-C leaves their seconds out.

    Returns the result as it was written, and what ``result.json`` holds.
    """
    from anabranch.simulation import output

    reporter.stage("writing")
    untimed = output.untimed(result)
    described = output.write(folder, untimed, origin)
    reporter.stage("timing the clients", line=True)
    try:
        with ctrl_c.at_once():
            described = output.report(folder, result, origin)
    except KeyboardInterrupt:
        return untimed, described
    output.rewrite(folder, described)
    return result, described


def _conclude(
    result: Result, problem: BaseException | None, folder: Path, notes: Console, *, interrupted: int | None
) -> int:
    """Say how the run ended, and return the exit code: ``interrupted``, where that is one."""
    from anabranch import display

    if isinstance(problem, AnabranchError):
        message = str(problem)
        stop = "" if message.endswith((".", "!", "?")) else "."
        display.error(notes, f"{message}{stop} {_before(result.rounds)} in {folder}")
        return STOPPED if interrupted is None else interrupted
    if interrupted is not None:
        display.note(notes, f"{result.stopped or 'interrupted after the last round'}; the result is in {folder}")
        return interrupted
    if result.stopped:
        display.note(notes, result.stopped)
    return 0


def _before(rounds: int) -> str:
    match rounds:
        case 0:
            return "No round was done before it; the result is"
        case 1:
            return "The round before it is"
    return f"The {rounds:,} rounds before it are"


def _simulate(plan: Plan, begun: Path | None, reporter: Reporter) -> tuple[Result, BaseException | None]:
    """Return the result, and what ended the run early where that kept a result."""
    from anabranch.simulation.simulator import simulate

    try:
        return simulate(plan.model, plan.stream, **plan.options, progress=reporter, resume=begun), None
    except (Diverged, Interrupted) as problem:
        return problem.result, problem
    except DataError as problem:
        if problem.result is None:
            raise
        return problem.result, problem


def _note_versions(stored: dict[str, object], notes: Console) -> None:
    """Say where the versions are not those of the stored run."""
    from anabranch.display import note
    from anabranch.simulation.result import versions

    then, now = stored.get("versions"), versions()
    if isinstance(then, dict):
        changed = [f"{name} {then.get(name)}, now {each}" for name, each in now.items() if then.get(name) != each]
        if changed:
            note(notes, f"the stored run had {'; '.join(changed)}: the bits may differ")
