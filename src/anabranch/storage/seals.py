"""Seals: a checkpoint names the SQLite files that belong to it, so that none is gone, old or another's in silence.

A file that is sealed has a random name and a number that grows with each checkpoint. The checkpoint holds both. The
file of a party that goes on must have the name, and a number that is not smaller. A party saves its first checkpoint
before it does anything, so a folder without a checkpoint and with a file of number 1 is that of a party that begins.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from anabranch.errors import CheckpointError
from anabranch.storage.sqlite import naming

Seals: TypeAlias = dict[str, list[str | int]]
"""The name and the number of each file, by the file's own name."""

_TABLE = """
CREATE TABLE IF NOT EXISTS seal (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, number INTEGER NOT NULL)
"""
_NEXT = "INSERT INTO seal VALUES (1, ?, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1"
_BUSY = 30.0
"""Seconds to wait for the party, which writes into the same files."""


def seal(folder: Path, names: Collection[str]) -> Seals:
    """Seal files of a folder once more, and return the seals. The disk has all of each file then.

    Args:
        folder: of a party.
        names: of the files; those that are not there have no seal.

    Raises:
        CheckpointError: if a file is damaged.
        OutputError: if a file cannot be written.
    """
    seals: Seals = {}
    for path in (folder / name for name in names):
        if path.exists():
            with naming(path), closing(sqlite3.connect(path, timeout=_BUSY, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(_TABLE)
                database.execute(_NEXT, (os.urandom(16).hex(),))
                seals[path.name] = list(_read(database) or ())
    return seals


def check_seals(folder: Path, seals: Seals | None, names: Collection[str]) -> None:
    """Check that the files of a folder are those of its checkpoint, or of no checkpoint yet.

    Args:
        folder: of a party.
        seals: of its checkpoint; None if it has none.
        names: as `seal` was given them.

    Raises:
        CheckpointError: if one is not.
    """
    for name, (known, number) in sorted((seals or {}).items()):
        path = folder / name
        found = _read_file(path)
        if found is None or found[0] != known:
            raise CheckpointError(
                f"{path} was deleted or is of another folder: what was kept in it is lost. Put back a copy of the "
                "whole folder, or name another folder to begin anew"
            )
        if int(found[1]) < int(number):
            raise CheckpointError(
                f"{path} is older than the checkpoint beside it: what was kept in it since is lost. Put back a copy of "
                "the whole folder, or name another folder to begin anew"
            )
    for path in (folder / name for name in names if seals is None):
        if (found := _read_file(path)) is not None and found[1] > 1:
            raise CheckpointError(
                f"{path} goes with a checkpoint that is gone: put back a copy of the whole folder, or name another "
                "folder to begin anew"
            )


def _read_file(path: Path) -> tuple[str, int] | None:
    """Return the seal of a file; None if it has none, or is not there."""
    if not path.exists():
        return None
    with naming(path), closing(sqlite3.connect(path, timeout=_BUSY, isolation_level=None)) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone() is None:
            return None
        return _read(database)


def _read(database: sqlite3.Connection) -> tuple[str, int] | None:
    found: tuple[str, int] | None = database.execute("SELECT name, number FROM seal").fetchone()
    return found
