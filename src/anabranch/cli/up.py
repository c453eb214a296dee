"""``anabranch up``: a whole federation on this machine."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from anabranch.cli.common import DataDirOption, SetOption, SourceArgument, errors, import_jax, private_files
from anabranch.interrupt import INTERRUPTED, TERMINATED, calling, cleaning

if TYPE_CHECKING:
    from anabranch.config.load import Source
    from anabranch.config.run import Config
    from anabranch.config.runtime_options import RuntimeOptions
    from anabranch.parties.local_federation import Processes

EXAMPLES = (
    "Examples:\n\n"
    "anabranch up imnist --rounds 20000\n\n"
    "anabranch up imnist --rounds 100000 --clients 16 --in-flight 64\n\n"
    "anabranch up imnist --rounds 20000 --missing 'last 20' --nats nats://127.0.0.1:4222\n\n"
    "anabranch up examples/two-rooms  (a folder with server.toml and a file for each client)"
)


def up(
    source: SourceArgument,
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds to train.", show_default=False)] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.", show_default="the model's")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", show_default=False)] = None,
    in_flight: Annotated[int, typer.Option(help="Rounds under way at a time; 1 gives the bits of 'run'.")] = 1,
    deadline: Annotated[float, typer.Option(help="Seconds until a client that does not answer is missing.")] = 1.0,
    missing: Annotated[
        str, typer.Option(metavar="POLICY", help="For a missing client: wait, 'last N', zero, mean or skip.")
    ] = "wait",
    most_lost: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the rounds, from 0 to 1, that may be dropped.")
    ] = 0.1,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="A broker that is there already.", show_default="one is started")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the federation.", show_default="runs/NAME-TIME")
    ] = None,
    data_dir: DataDirOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Neither table nor progress.")] = False,
) -> None:
    """Run a federation on this machine: a broker, a server and its clients, each a process of its own.

    SOURCE is a run that the parties replay. Or it is a folder with the files of a real federation's parties:
    server.toml, and NAME.toml for each client that it names. They stay as they are. The broker, connections, an entity
    key if there is none, and the parties' state are made in --out. It ends when the parties' data have ended.

    It writes the files of 'anabranch run', and a folder for each party with its settings, log and checkpoints. Ctrl-C
    stops it cleanly; the same command with the same --out goes on.

    At a terminal a table shows how far it is; elsewhere a line a minute does.

    Exit codes: 0 done; 2 something is wrong; 3 training could not go on; 4 more than --most-lost of the rounds were
    dropped; 130 Ctrl-C; 143 SIGTERM.
    """
    notes = Console(stderr=True)
    with errors(notes), private_files():
        from anabranch.config.load import RESULT, Override, find_source, load, parse_override

        if Path(source).is_dir() and not (Path(source) / RESULT).is_file():
            _refuse_settings(changes, rounds, clients, seed, data_dir, in_flight, deadline, missing, most_lost)
            _check_broker(nats)
            raise typer.Exit(_up_folder(Path(source), nats, out, notes, quiet=quiet))
        found = find_source(source)
        overrides = [parse_override(change, "--set") for change in changes or ()]
        given = (
            (("rounds",), rounds, "--rounds"),
            (("seed",), seed, "--seed"),
            (("model", "clients"), clients, "--clients"),
            (("stream", "data_dir"), None if data_dir is None else str(data_dir), "--data-dir"),
        )
        overrides += [Override(key, value, flag) for key, value, flag in given if value is not None]
        config = load(found, overrides)
        _check_broker(nats)
        pace = _pace(config, in_flight, deadline, missing, most_lost)
        code = _up(found, config, pace, nats, out, notes, quiet=quiet)
    raise typer.Exit(code)


def _pace(config: Config, in_flight: int, deadline: float, missing: str, most_lost: float) -> RuntimeOptions:
    from anabranch.config.run import SlrUpdate
    from anabranch.config.runtime_options import RuntimeOptions
    from anabranch.errors import ConfigError
    from anabranch.protocol.server.missing import Wait, policy

    if not 1 <= in_flight <= 1024:
        raise ConfigError(f"in_flight is {in_flight}, but it must be a whole number from 1 to 1024 (--in-flight)")
    if not 0 < deadline <= 86400:
        raise ConfigError(f"deadline is {deadline}, but it must be above 0 and at most a day, in seconds (--deadline)")
    if not 0 <= most_lost <= 1:
        raise ConfigError(f"most_lost is {most_lost}, but it must be a share from 0 to 1 (--most-lost)")
    chosen = policy(missing)
    if isinstance(config.update, SlrUpdate) and (in_flight > 1 or not isinstance(chosen, Wait)):
        raise ConfigError(
            "update.name is SLR, under which all parties must hold the same samples: it needs --in-flight 1 and "
            "--missing wait"
        )
    return RuntimeOptions(in_flight=in_flight, deadline=deadline, missing=(chosen,), most_lost=most_lost)


def _check_broker(nats: str | None) -> None:
    from anabranch.broker.credentials import Credentials
    from anabranch.errors import ConfigError

    try:
        if nats is not None:
            Credentials((nats,), "local", "server", 0)
    except ConfigError:
        raise ConfigError(
            f"--nats is {nats}, but here it must be a broker on this machine, such as nats://127.0.0.1:4222; for "
            "parties on several machines, begin with 'anabranch keys init'"
        ) from None


def _up(
    source: Source,
    config: Config,
    pace: RuntimeOptions,
    nats: str | None,
    out: Path | None,
    notes: Console,
    *,
    quiet: bool,
) -> int:
    from anabranch import display
    from anabranch.errors import AnabranchError
    from anabranch.simulation import output

    import_jax(notes)
    from anabranch.parties import assemble
    from anabranch.parties.local_federation import LOG, RUN, LocalFederation, collect

    begun = out is not None and (out / RUN).exists()
    folder = output.prepare(out, f"{source.name}-federation", force=begun or None)
    name = "local" if nats is None else f"local-{time.time_ns() % 10**10}"
    goes_on = f"the same command with --out {folder.path} goes on"
    federation = None
    try:
        with cleaning(folder.discard), display.notices(notes):
            run = assemble.replay(config)
        federation = LocalFederation(config, folder.path, run.clients, pace, url=nats, federation=name)
        code, timed, pressed = asyncio.run(_watch(federation, config.rounds, notes, quiet=quiet))
    except BaseException as error:
        folder.discard()
        if isinstance(error, AnabranchError) and federation is not None and federation.started:
            display.note(notes, f"once that is mended, {goes_on}; the parties' logs are in {folder.path}/*/{LOG}")
        raise
    stopped = None
    if pressed is not None:
        stopped = "interrupted"
    elif federation.failed is not None:
        stopped = federation.last_words(federation.failed)
    result = output.untimed(collect(run, folder.path, timed, stopped, federation.status))
    origin = output.Origin(source.name, config.title(), config.to_dict(), run.plan.data)
    output.write(folder.path, result, origin)
    if not quiet:
        display.summary(Console(), result, f"federation: {config.title()}", folder.path)
    if pressed is not None:
        display.note(notes, f"interrupted; {goes_on}")
        return TERMINATED if pressed == signal.SIGTERM else INTERRUPTED
    if code:
        display.error(notes, str(stopped))
    return code


def _refuse_settings(*given: Any) -> None:
    """Refuse settings of a run where the parties' own files have them."""
    from anabranch.errors import ConfigError

    options = (
        "--set",
        "--rounds",
        "--clients",
        "--seed",
        "--data-dir",
        "--in-flight",
        "--deadline",
        "--missing",
        "--most-lost",
    )
    usual = (None, None, None, None, None, 1, 1.0, "wait", 0.1)
    for name, value, default in zip(options, given, usual, strict=True):
        if value != default:
            raise ConfigError(f"{name} is for a run: with a folder, its files have the settings of each party")


def _up_folder(files: Path, nats: str | None, out: Path | None, notes: Console, *, quiet: bool) -> int:
    from anabranch import display
    from anabranch.errors import AnabranchError, ConfigError
    from anabranch.parties.folder_federation import SERVER, FolderFederation
    from anabranch.parties.local_federation import LOG
    from anabranch.simulation import output

    if not (files / SERVER).is_file():
        raise ConfigError(
            f"'{files}' has no {SERVER}: a folder of parties has one, and NAME.toml for each client; or name a run"
        )
    folder = output.prepare(out, f"{files.resolve().name}-federation", force=True if out is not None else None)
    name = "local" if nats is None else f"local-{time.time_ns() % 10**10}"
    goes_on = f"the same command with --out {folder.path} goes on"
    federation = None
    try:
        with cleaning(folder.discard):
            federation = FolderFederation(files, folder.path, url=nats, federation=name)
        code, _, pressed = asyncio.run(_watch(federation, None, notes, quiet=quiet))
    except BaseException as error:
        folder.discard()
        if isinstance(error, AnabranchError) and federation is not None and federation.started:
            display.note(notes, f"once that is mended, {goes_on}; the parties' logs are in {folder.path}/*/{LOG}")
        raise
    status = federation.status
    if not quiet and status:
        run_time, accumulated = (
            "none" if (rate := status[name]) is None else f"{rate:.4f}"
            for name in ("run_time_error", "accumulated_error")
        )
        Console().print(
            f"{status['rounds']:,} rounds, run-time error {run_time}, accumulated error {accumulated}\n"
            f"The parties' models, logs and state are in {folder.path}/NAME",
            highlight=False,
            soft_wrap=True,
        )
    if pressed is not None:
        display.note(notes, f"interrupted; {goes_on}")
        return TERMINATED if pressed == signal.SIGTERM else INTERRUPTED
    if code and federation.failed is not None:
        display.error(notes, federation.last_words(federation.failed))
    return code


async def _watch(
    federation: Processes, rounds: int | None, notes: Console, *, quiet: bool
) -> tuple[int, tuple[float, int], int | None]:
    """Run it, and show how far it is; return the exit code, the seconds of how many rounds, and the signal."""
    from anabranch import display
    from anabranch.parties.federation_table import LiveTable, MinuteLines, Rates

    pressed: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def press(number: int) -> None:
        loop.call_soon_threadsafe(pressed.put_nowait, number)

    rates = Rates()
    shown: list[dict[str, Any]] = []
    live = LiveTable(notes, rounds, transient=True) if notes.is_terminal and not quiet else None
    lines = MinuteLines(lambda line: notes.print(line, soft_wrap=True, highlight=False))
    show = live or (lines if not quiet else lambda status: None)
    waits = live.say if live else _Lines(notes, quiet=quiet)

    def tell() -> None:
        if not federation.status:
            waits(_starting(federation))
        elif not shown or shown[-1] is not federation.status:
            shown[:] = [federation.status]
            rates.add(federation.parties[0].told_at, federation.status["rounds"])
            show(federation.status)

    with calling(press), live or nullcontext():
        waits(_starting(federation))
        async with federation:
            waiting = asyncio.ensure_future(federation.wait(tell, lambda text: display.note(notes, text)))
            first = asyncio.ensure_future(pressed.get())
            await asyncio.wait({waiting, first}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                first.cancel()
                return waiting.result(), (rates.seconds, rates.rounds), None
            await federation.stop()
            return await waiting, (rates.seconds, rates.rounds), first.result()


def _starting(federation: Processes) -> str:
    """Return which parties the server waits for before it has something to report."""
    waiting = [party.name for party in federation.parties if not party.status]
    if len(waiting) == len(federation.parties):
        return f"starting {len(waiting)} processes in {federation.folder}; the first start compiles"
    return f"waiting for {', '.join(waiting)}"


class _Lines:
    """Print each text once; nothing if it should be quiet."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet, self._last = console, quiet, ""

    def __call__(self, text: str) -> None:
        if text != self._last and not self._quiet:
            self._last = text
            self._console.print(text, soft_wrap=True, highlight=False)
