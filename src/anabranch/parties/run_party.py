"""Runs one party from its file, until its end or a signal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from anabranch.broker.credentials import ASKER, Credentials
from anabranch.config import party as partyfile
from anabranch.config.load import find_source
from anabranch.config.load import load as load_config
from anabranch.errors import ConfigError, ConnectError, counted
from anabranch.federation.client import ClientParty
from anabranch.federation.logs import name_party
from anabranch.federation.server import ServerParty
from anabranch.interrupt import calling
from anabranch.parties import assemble, party_result, process
from anabranch.parties import build_party as own
from anabranch.parties.ending import Ending, ending_of, sum_up
from anabranch.parties.federation_table import MinuteLines
from anabranch.parties.predict_service import predicting
from anabranch.serving.metrics import Metrics, serving
from anabranch.serving.status import client_status, server_status
from anabranch.storage.lock import locked

_log = logging.getLogger(__name__)

REPORT = 0.5
"""Seconds between two reports."""
RETRY = 1.0
"""Seconds between two attempts to open a source."""


def serve(
    path: Path, *, server: bool, report: Callable[[dict[str, Any]], None] | None, with_parent: int | None
) -> Ending:
    """Run the party of a file; in a command, SIGINT and SIGTERM make it leave, after a last checkpoint.

    Until it takes part, they end the process at once: there is nothing to keep.

    Args:
        path: of the party's file.
        server: whether it should be the server's.
        report: called twice a second, and at the end, with the party's status; None has a line a minute in the log.
        with_parent: the process that started it, where it should leave when that is gone.

    Returns:
        How the party has ended. Its result is in its folder then, unless it replays a run.

    Raises:
        AnabranchError: where the party cannot take part; see `anabranch.federation.engine.Engine.run`.
    """
    settings, credentials = load(path, server=server)
    name_party(credentials.party)
    folder = Path(settings.folder)
    with locked(folder):
        if with_parent is not None:
            threading.Thread(target=_leave_with, args=(with_parent,), daemon=True).start()
        return process.run(lambda: _run(path, settings, credentials, folder, report))


def load(path: Path, *, server: bool) -> tuple[partyfile.AnyFile, Credentials]:
    """Return the settings of a party's file, and its connection.

    Args:
        path: of the party's file.
        server: whether it should be the server's.

    Raises:
        ConfigError: where it is another party's, or a setting is wrong.
    """
    settings = partyfile.load(path)
    credentials = Credentials.load(settings.connection)
    if server == isinstance(settings, partyfile.ClientFile) and not isinstance(settings, partyfile.PartyFile):
        section, command = ("features", "client") if server else ("labels", "server")
        raise ConfigError(f"{path}: has [{section}], so start it with 'anabranch {command}'")
    if credentials.index == ASKER:
        raise ConfigError(f"{settings.connection}: is for asking for predictions only: 'anabranch predict' takes it")
    if server != (credentials.index == 0):
        command = "client" if server else "server"
        raise ConfigError(f"{path}: is the file of {credentials.party}: start it with 'anabranch {command}'")
    return settings, credentials


def party_of(
    path: Path, settings: partyfile.AnyFile, credentials: Credentials, folder: Path
) -> ServerParty | ClientParty:
    """Return the party of a file."""
    try:
        match settings:
            case partyfile.ServerFile():
                return own.server_party(settings, credentials, folder)
            case partyfile.ClientFile():
                return own.client_party(settings, credentials, folder)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(f"{path}: the model is larger than this machine's memory: make its layers smaller") from error
    run = assemble.replay(load_config(find_source(settings.run), []))
    if credentials.index == 0:
        return assemble.server_party(run, credentials, folder, settings.pace)
    if credentials.index <= run.clients:
        return assemble.client_party(run, credentials.index, credentials, folder, settings.pace)
    raise ConfigError(f"this is client {credentials.index}, but the run has {counted(run.clients, 'client')}")


async def _when_there(party: Callable[[], ServerParty | ClientParty]) -> ServerParty | ClientParty:
    """Return the party, once the database that it reads is there: after a power failure either may be the first."""
    said = ""
    while True:
        try:
            return party()
        except ConnectError as error:
            if not error.temporary:
                raise
            if str(error) != said:
                said = str(error)
                _log.warning("%s; waiting for it", said)
        await asyncio.sleep(RETRY)


async def _run(
    path: Path,
    settings: partyfile.AnyFile,
    credentials: Credentials,
    folder: Path,
    report: Callable[[dict[str, Any]], None] | None,
) -> Ending:
    party = await _when_there(lambda: party_of(path, settings, credentials, folder))
    loop = asyncio.get_running_loop()
    with calling(lambda _: loop.call_soon_threadsafe(party.leave)):
        return await _take_part(party, settings, folder, report)


async def _take_part(
    party: ServerParty | ClientParty,
    settings: partyfile.AnyFile,
    folder: Path,
    report: Callable[[dict[str, Any]], None] | None,
) -> Ending:
    """Run the party to its end, and write what it leaves behind."""
    started = time.monotonic()
    ending: Ending | None = None
    tell_of = MinuteLines(party.say) if report is None else report

    def tell() -> None:
        status = server_status(party, started) if isinstance(party, ServerParty) else client_status(party, started)
        how = None if ending is None else ending.describe()
        tell_of(status | {"ended": None if ending is None else ending.reason, "ending": how})

    async def reports() -> None:
        while True:
            tell()
            await asyncio.sleep(REPORT)

    reporting = asyncio.ensure_future(reports())
    try:
        async with AsyncExitStack() as beside:
            of: ServerParty | ClientParty | Metrics = party
            if isinstance(settings, partyfile.ServerFile) and settings.predictions is not None:
                assert isinstance(party, ServerParty)
                of = Metrics(party)
                labels = settings.labels
                names, of_times = None, False
                if not isinstance(labels, partyfile.Labels):
                    names, of_times = labels.names_of_events(), labels.entity is None
                asked = predicting(party, settings.predictions, of, names, of_times=of_times)
                await beside.enter_async_context(asked)
            await beside.enter_async_context(serving(of, settings.metrics, settings.metrics_host))
            stop = await party.run()
        ending = ending_of(party, stop, settings.most_lost)
        # The model of a run is made of all its parties' later, and one that is not finite is of no use.
        if not (isinstance(settings, partyfile.PartyFile) or stop.diverged):
            party_result.write(party, settings, ending, folder, time.monotonic() - started)
            party.say(f"{sum_up(party)}; the result is in {folder}")
        party.say(ending.text, logging.ERROR if ending.problem else logging.INFO)
        return ending
    finally:
        reporting.cancel()
        tell()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def print_json(status: dict[str, Any]) -> None:
    """A status as a line on stdout. Where nobody reads it any longer, the party goes on without."""
    try:
        sys.stdout.write(json.dumps(status) + "\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
