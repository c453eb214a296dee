"""A federation of real processes over a nats-server, all on this machine, and what they say of themselves."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import tomli_w

from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf
from anabranch.storage.event_ids import write_key
from baselines import Errors

EVERY = 5.0
"""Seconds between two lines of progress."""
PATIENCE = 300.0
"""Seconds after which a party has stopped that does nothing."""


def command(arguments: Sequence[str], stderr: IO[bytes]) -> Any:
    """``anabranch`` with arguments, as a process that ends with this one."""
    own = ["--with-parent", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", "anabranch", *arguments, *own], stdout=subprocess.PIPE, stderr=stderr
    )


class Federation:
    """A folder with a file for each party, ``server.toml`` and ``NAME.toml``; while it is entered, their processes run.

    Each has its ``connection.toml`` and its log in a folder of its own, and ``entity.key`` is there for all. On one
    machine no keys are needed; between machines they are: see the example of two companies.

    Args:
        folder: of the files.
        clients: their names, in order.
        start: makes a process of ``anabranch`` with arguments, whose output can be read.
    """

    def __init__(
        self, folder: Path, clients: Sequence[str], *, start: Callable[[Sequence[str], IO[bytes]], Any] = command
    ) -> None:
        self.folder, self.clients = folder, tuple(clients)
        self.broker = LocalBroker(folder / "broker", ServerConf(port=-1, jetstream="jetstream"))
        self._start = start
        self._processes: dict[str, Any] = {}
        self._readers: list[threading.Thread] = []
        self.said: dict[str, list[dict[str, Any]]] = {name: [] for name in ("server", *clients)}
        """Each party's status, twice a second."""
        self._said_at = -math.inf

    async def __aenter__(self) -> Federation:
        await self.broker.start()
        write_key(self.folder / "entity.key")
        for index, name in enumerate(self.said):
            own = self.folder / name
            own.mkdir()
            connection = {"url": self.broker.url, "federation": "example", "party": name, "index": index}
            more = {} if index else {"clients": [*self.clients]}
            (own / "connection.toml").write_text(tomli_w.dumps(connection | more))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end(signal.SIGTERM if kind is None else signal.SIGKILL)
        finally:
            await self.broker.stop()

    def begin(self) -> None:
        """Starts the parties, in any order: each waits for the others."""
        for name in self.said:
            role = "server" if name == "server" else "client"
            with (self.folder / name / "log").open("wb") as log:
                process = self._start([role, str(self.folder / f"{name}.toml"), "--json"], log)
            self._processes[name] = process
            reader = threading.Thread(target=self._read, args=(name, process.stdout))
            reader.start()
            self._readers.append(reader)

    def _read(self, name: str, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self.said[name].append(json.loads(line))

    async def until(self, done: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the server's status is such, and say now and then what it is; give up if nothing happens."""
        held: Any = None
        since = time.monotonic()
        while not any(done(said) for said in self.said["server"][-1:]):
            for name, process in self._processes.items():
                if process.poll():
                    raise SystemExit(f"{name} has ended, which it should not have:\n{self._log(name)}")
            now = [{key: said.get(key) for key in ("rounds", "labels")} for said in self.said["server"][-1:]]
            if now != held:
                held, since = now, time.monotonic()
            self._progress(f"{now[0]['rounds']:,} rounds" if now and now[0]["rounds"] else "waiting for the parties")
            if time.monotonic() - since > PATIENCE:
                raise SystemExit(f"nothing happens any more. The server says\n{self._log('server')}")
            await asyncio.sleep(0.05)

    def _progress(self, text: str) -> None:
        if time.monotonic() > self._said_at + EVERY:
            self._said_at = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def _log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")[-2000:]

    async def keep_up(self, happened: int, learnt: int) -> None:
        """Waits until the server has predicted so many events, and learnt from so many labels."""
        await self.until(lambda said: said["labels"]["happened"] >= happened and said["labels"]["learnt"] >= learnt)

    async def all_here(self) -> None:
        """Waits until every client has come."""
        await self.until(lambda said: all(client["present"] for client in said.get("clients", [{"present": False}])))

    async def _end(self, how: int) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(how)
        for process in self._processes.values():
            await asyncio.to_thread(process.wait, PATIENCE)
        for reader in self._readers:
            reader.join()

    def last(self, name: str = "server") -> dict[str, Any]:
        """What a party has said last."""
        return self.said[name][-1]

    def errors(self) -> Errors:
        """The server's prequential errors, as far as it had come at each status."""
        found = {said["rounds"]: said["accumulated_error"] for said in self.said["server"] if said.get("rounds")}
        rounds = np.array([0, *found])
        return Errors(rounds, rounds * np.array([0, *found.values()]))


def in_folder(main: Callable[[Path, slice], str]) -> None:
    """An example as a command: plays it in the folder that was named, or in a new one; with a number, so many rows."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="anabranch-"))
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: is not empty: name another folder, or none")
    if sys.argv[2:] and not sys.argv[2].isdecimal():
        raise SystemExit(f"'{sys.argv[2]}' is no number of rows")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"begins in {folder}: the data, the federation, then what it is compared with", file=sys.stderr, flush=True)
    print(main(folder, slice(int(sys.argv[2]) if sys.argv[2:] else None)))
    print(f"{folder}: picture.png, table.md, and a folder with a log for each party")
