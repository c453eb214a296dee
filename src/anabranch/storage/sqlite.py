"""A party's own small SQLite files: opened so that a killed process loses nothing, with errors for people."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.errors import CheckpointError, OutputError

_OURS = 0x616E  # "an", with which all our kinds begin
MEMORY = Path(":memory:")
"""In place of a path: a database that no file has."""
_BUSY = 5.0
"""Seconds to wait for another process that writes into the same file."""


def open_sqlite(path: Path, kind: int, schema: str, holds: str, *, durable: bool = False) -> sqlite3.Connection:
    """Return the file, made where it is not there; each statement is a transaction of its own.

    Write-ahead: a process may be killed at any moment. A machine that loses its power may lose the last statements,
    unless ``durable``, and the file stays whole.

    Args:
        path: of the file.
        kind: a number that tells what the file is, so that another one is never written into.
        schema: the statements that make its tables.
        holds: what is lost with it, for people.
        durable: whether each statement is on the disk before it returns; else that is so at SQLite's checkpoints.

    Raises:
        CheckpointError: where the file is damaged, or not of this kind.
        OutputError: where it cannot be opened or written.
    """
    with naming(path):
        if path != MEMORY:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)  # ids and inputs are their owner's alone; SQLite makes the files beside it alike
        # A party runs its checkpoints in another thread; SQLite itself orders what several threads ask of it.
        database = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            (found,) = database.execute("PRAGMA application_id").fetchone()
            if found != kind:
                if found >> 16 == _OURS:
                    raise CheckpointError(
                        f"{path}: is a file of another kind, which an earlier version of Anabranch may have written: "
                        f"name another folder, or move it away. Lost with it: {holds}"
                    )
                if found or database.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                    raise CheckpointError(f"{path}: is a file of another kind: name another folder, or move it away")
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA application_id = {kind}; COMMIT")
            database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        except BaseException:
            database.close()
            raise
    return database


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise into an error that names the file and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OutputError(f"{path}: cannot be used ({error})") from error
    except sqlite3.DatabaseError as error:
        raise CheckpointError(
            f"{path}: is damaged ({error}): put back a copy of the whole folder, or name another folder to begin anew"
        ) from error
    except OSError as error:
        raise OutputError(f"{path}: cannot be used ({error.strerror or error})") from error
