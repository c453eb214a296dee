"""A whole federation on this machine: a broker, a server and its clients, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tomli_w

from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import CONNECTION, Credentials
from anabranch.broker.local import LocalBroker, find_binary
from anabranch.config import party as partyfile
from anabranch.config.load import PATHS
from anabranch.config.run import Config
from anabranch.config.runtime_options import RuntimeOptions
from anabranch.core.models import SplitModel
from anabranch.core.party_programs import from_arrays
from anabranch.errors import AnabranchError, ConfigError
from anabranch.federation.client import STATE as CLIENT_STATE
from anabranch.federation.engine import LEFT
from anabranch.federation.server import STATE as SERVER_STATE
from anabranch.interrupt import blocked
from anabranch.parties import assemble
from anabranch.parties.party_result import federation_settings
from anabranch.protocol.server.totals import Ledger
from anabranch.simulation.result import Result
from anabranch.storage.checkpoint import load
from anabranch.storage.files import replace_file, writing
from anabranch.storage.lock import locked

RUN, LOG = "run.toml", "log.jsonl"
SECONDS = 15.0
"""How long a party may take to leave before it is killed."""
LAST_LINES = 5
KILLED = 3
"""What was killed so often, and no round was played in between, is not started again."""
STOPPED, LOST = 3, 4
"""The exit codes of a party whose training cannot go on, and of one that has lost more than it may."""


@dataclass
class Party:
    """A process of a party."""

    name: str
    file: Path
    """Its settings."""
    log: Path
    """What it wrote to stderr."""
    process: asyncio.subprocess.Process | None = None
    reader: asyncio.Task[None] | None = None
    """Of what that process reports."""
    status: dict[str, Any] = field(default_factory=dict)
    """The last that it reported."""
    told_at: float = 0.0
    """When it did, on the monotonic clock."""
    error: str | None = None
    """What its process has ended with, where that was an error."""

    @property
    def folder(self) -> Path:
        """Where it keeps its state."""
        return self.file.parent

    @property
    def code(self) -> int | None:
        """The exit code of its process; None while there is none."""
        return None if self.process is None else self.process.returncode

    @property
    def gone(self) -> str | None:
        """How its process has ended, where somebody else ended it: it can go on."""
        if self.code is not None and self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        # One that was told in its first seconds has had no time to report.
        return "was told to leave" if self.code == 0 and self.status.get("ended") in (None, LEFT) else None


class Processes(ABC):
    """Starts the processes of a federation, and waits for their end.

    Every party has a folder of its own in ``folder``, with its settings, its log and its checkpoints; so a federation
    that was stopped or killed goes on where it was. A party, or the broker, that somebody kills is started again.

    Args:
        names: of the clients.
        folder: of the federation.
        url: of a broker that is there already; None starts one.
        federation: its name, where several use one broker.
    """

    def __init__(self, names: Sequence[str], folder: Path, *, url: str | None, federation: str) -> None:
        self.folder, self._url = folder.absolute(), url
        self.federation = federation
        self.broker: LocalBroker | None = None
        names = ["server", *names]
        self.parties = [Party(name, self.folder / name / "party.toml", self.folder / name / LOG) for name in names]
        """The server, then the clients."""
        self.started = False
        """Whether it got so far that the same settings in the same folder go on from there."""
        self._stack = AsyncExitStack()
        self._stopping = False
        self._rounds = 0
        self._killed: dict[str, tuple[int, int]] = {}
        """Of what was killed: how often, and how many rounds were played then."""

    @property
    def status(self) -> dict[str, Any]:
        """The server's last status; empty before the first."""
        return self.parties[0].status

    @property
    def failed(self) -> Party | None:
        """The party that has failed, one whose training cannot go on before one that has lost too much; or None."""
        return next((party for code in (STOPPED, LOST) for party in self.parties if party.code == code), None)

    async def __aenter__(self) -> Self:
        try:
            if self._url is None:
                find_binary()
            else:  # a party would wait for it, and nobody would see for what
                await disconnect(await connect(Credentials((self._url,), self.federation, "server", 0)))
            self._stack.enter_context(locked(self.folder))
            await self._wait_until_free()
            self._check()
            if self._url is None:
                self.broker = LocalBroker(self.folder / "broker")
                await self._stack.enter_async_context(self.broker)
            self._write()
            self.started = True
            for party in self.parties:
                await self.start(party)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._stack.aclose()

    async def _wait_until_free(self) -> None:
        """Until the parties of a federation that was killed here have left, as they do by themselves."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with ExitStack() as stack:
                    for party in self.parties:
                        stack.enter_context(locked(party.folder))
                return
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def start(self, party: Party) -> None:
        """Start a party's process, for the first time or again."""
        command = "server" if party is self.parties[0] else "client"
        # The process lets a signal through once it can take it: before, that would end it without a word.
        with writing("log", party.folder), party.log.open("ab") as log, blocked():
            party.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "anabranch",
                command,
                str(party.file),
                "--json",
                "--with-parent",
                str(os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                limit=2**24,  # a line has something on every client
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to hand on
            )
        if self._stopping:  # it was begun before, and is no use any more
            party.process.send_signal(signal.SIGTERM)
        party.error, party.status = None, {}
        party.reader = asyncio.ensure_future(self._read(party, party.process))

    async def _read(self, party: Party, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # it may have been killed in the middle of one
                told = json.loads(line)
                if "error" in told:
                    party.error = told["error"]
                else:
                    party.status, party.told_at = told, time.monotonic()

    async def wait(
        self,
        tell: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda text: None,
        every: float = 0.25,
    ) -> int:
        """Until every party has ended; returns 0, or the exit code of one that has failed.

        What somebody kills is started again. Clients that are still there some time after the server has ended are
        told to leave.

        Args:
            tell: called again and again.
            note: called with what a person should know.
            every: seconds between two looks.

        Raises:
            AnabranchError: where a party has ended with an error, or is killed again and again.
        """
        ended: float | None = None
        while True:
            self._rounds = max(self._rounds, self.status.get("rounds", 0))
            tell()
            for party in self.parties:
                if party.code is not None:
                    await self._look_after(party, note)
            if all(party.code is not None for party in self.parties):
                await self._read_all()
                tell()
                return 0 if self.failed is None else self.failed.code or 0
            if self.broker is not None and not self.broker.running and not self._stopping:
                self._count_killed("the nats-server", "was killed", f"its log is {self.broker.log}", note)
                await self.broker.restart()
            if any(party.code == STOPPED for party in self.parties[1:]) and not self._stopping:
                await self.stop()  # the others would wait for a client that cannot go on
            if self.parties[0].code is not None:
                ended = ended or time.monotonic()
                if time.monotonic() > ended + SECONDS:
                    await self.stop()
            await asyncio.sleep(every)

    async def _look_after(self, party: Party, note: Callable[[str], None]) -> None:
        """Start a party again that can go on; say what is wrong with one that cannot."""
        if party.reader is not None:  # its last words may still be on their way
            await asyncio.wait({party.reader}, timeout=1.0)
        if self._stopping and party.gone:
            return
        if party.gone and (party is self.parties[0] or self.parties[0].code is None):
            self._count_killed(party.name, party.gone, self.last_words(party), note)
            await self.start(party)
        elif party.code not in (0, STOPPED, LOST):
            how = party.gone or f"has ended (exit code {party.code})"
            raise AnabranchError(f"{party.name} {how}: {self.last_words(party)}")

    def _count_killed(self, name: str, how: str, words: str, note: Callable[[str], None]) -> None:
        """Say that something is started again, unless that does not help."""
        times, rounds = self._killed.get(name, (0, 0))
        times = 1 if self._rounds > rounds else times + 1
        self._killed[name] = times, self._rounds
        if times == KILLED:
            raise AnabranchError(f"{name} {how} {times} times, and no round was played in between: {words}")
        note(f"{name} {how}: it is started again, and goes on where it was")

    async def stop(self) -> None:
        """Has every party leave; kills those that take too long."""
        self._stopping = True
        for party in self.parties:
            if party.process is not None and party.code is None:
                party.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS
        for party in self.parties:
            if party.process is None:
                continue
            try:
                await asyncio.wait_for(party.process.wait(), max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                party.process.kill()
                await party.process.wait()
        await self._read_all()

    async def _read_all(self) -> None:
        """Until what the processes that have ended said is read."""
        await asyncio.gather(*(party.reader for party in self.parties if party.reader is not None))

    def last_words(self, party: Party) -> str:
        """Return the error that a party has ended with, else the last lines of its log."""
        if party.error is not None:
            return party.error
        lines = party.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return " / ".join(lines) or "it said nothing"

    @abstractmethod
    def _check(self) -> None:
        """Refuse a folder of another federation."""

    def _write(self) -> None:
        """Write the settings of each party."""
        with writing("settings", self.folder):
            self._write_settings()

    def _write_settings(self) -> None:
        """Write each party's connection, and its file."""
        url = self._url or (self.broker.url if self.broker else "")
        names = [party.name for party in self.parties[1:]]
        for index, party in enumerate(self.parties):
            connection = {"url": url, "federation": self.federation, "party": party.name, "index": index}
            if not index:
                connection["clients"] = names
            replace_file(party.folder / CONNECTION, tomli_w.dumps(connection).encode())
            replace_file(party.file, self._text(party).encode())

    @abstractmethod
    def _text(self, party: Party) -> str:
        """Return the text of a party's file."""


class LocalFederation(Processes):
    """A federation that replays a run.

    Args:
        config: of the run.
        folder: of the federation.
        clients: how many the run has.
        pace: in flight, deadlines and so on.
        url: of a broker that is there already; None starts one.
        federation: its name, where several use one broker.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        clients: int,
        pace: RuntimeOptions,
        *,
        url: str | None = None,
        federation: str = "local",
    ) -> None:
        super().__init__([f"client-{m}" for m in range(1, clients + 1)], folder, url=url, federation=federation)
        self.config, self._pace = config, pace

    def _check(self) -> None:
        """Whether the folder is of the same federation, or of none."""
        run = self.folder / RUN
        if run.exists() and run.read_text(encoding="utf-8") != tomli_w.dumps(_absolute(self.config)):
            raise ConfigError(
                f"{self.folder}: holds a federation of other settings ({run.name} differs): name another folder (--out)"
            )

    def _write_settings(self) -> None:
        replace_file(self.folder / RUN, tomli_w.dumps(_absolute(self.config)).encode())
        super()._write_settings()

    def _text(self, party: Party) -> str:
        return partyfile.text(
            partyfile.PartyFile(
                connection=CONNECTION,
                folder=".",
                run=f"../{RUN}",
                in_flight=self._pace.in_flight,
                deadline=self._pace.deadline,
                missing=tuple(str(each) for each in self._pace.missing),
                checkpoint_every=self._pace.checkpoint_every,
                durable=self._pace.durable,
                most_lost=self._pace.most_lost,
            )
        )


def collect(
    run: assemble.Replay,
    folder: Path,
    timed: tuple[float, int],
    stopped: str | None,
    status: Mapping[str, Any] | None = None,
) -> Result:
    """Return the result of a local federation: what its parties' last checkpoints have.

    Args:
        run: that it replays.
        folder: of the federation.
        timed: seconds, and how many of the rounds took them.
        stopped: why it ended early, or None.
        status: the server's last one, of its last process; None where it is not known.

    Raises:
        CheckpointError: where a party has none that can be used.
    """
    found = load(folder / "server" / SERVER_STATE)
    ledger = Ledger(run.prepared.rule, run.widths, run.prepared.tally.report_every)
    bottoms, top = list(run.model.clients), run.model.server
    if found is not None:
        part = _part(found.arrays, "ledger/")
        ledger.restore(part, found.state["ledger"])
        top = from_arrays(top, _part(found.arrays, "talk/server/model/"))
    for m in range(1, run.clients + 1):
        held = load(folder / f"client-{m}" / CLIENT_STATE)
        if held is not None:
            bottoms[m - 1] = from_arrays(bottoms[m - 1], _part(held.arrays, "model/"))
    status = status or {}
    delays = [each["max_delay"] for each in status.get("clients", ())]
    wire = [] if found is None else found.state["wire"]
    federation = federation_settings(ledger, delays, wire, status.get("notes", {}), status.get("labels"))
    settings = {**run.prepared.settings, "federation": federation}
    watch = run.prepared.watch
    if watch is not None and found is not None and found.state["talk"]["watch"] is not None:
        watch.restore(found.state["talk"]["watch"])
    return Result(
        model=SplitModel(bottoms, top, run.model.widths),
        rounds=ledger.rounds,
        stopped=stopped,
        error_rate=ledger.error_rate,
        curve=ledger.curve(),
        activation_rate=ledger.activations / max(ledger.rounds, 1),
        traffic=ledger.traffic,
        detections=None if watch is None else watch.detections,
        seconds=timed[0],
        compile_seconds=0.0,
        settings=settings,
        timed_rounds=timed[1],
        ending=status.get("ending"),
    )


def _part(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _absolute(config: Config) -> dict[str, Any]:
    """Return the settings of a run, its paths absolute, so that any folder will do."""
    values = config.to_dict()
    for section, key in PATHS:
        if isinstance(values.get(section), dict) and values[section].get(key):
            values[section][key] = str(Path(values[section][key]).absolute())
    return values
