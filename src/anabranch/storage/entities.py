"""Which entity a keyed hash is of, in the party's own folder; and values of a database as JSON has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

from anabranch.errors import DataError, kind_of
from anabranch.storage.sqlite import MEMORY, naming, open_sqlite
from anabranch.storage.times import micros

_KIND = 0x616E6B33  # "ank3"
_SCHEMA = """
CREATE TABLE known (key BLOB PRIMARY KEY, entity TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cursor (one INTEGER PRIMARY KEY CHECK (one = 1), source TEXT NOT NULL, position TEXT NOT NULL)
"""


class KnownEntities:
    """The entities of keyed hashes, as a table has them, and how far it was read for them.

    Args:
        path: of the file; None is in memory.
        source: which table that is; what was known of another one is forgotten.

    Raises:
        CheckpointError: where the file is damaged.
        OutputError: where it cannot be used.
    """

    def __init__(self, path: Path | None, source: str) -> None:
        self._path = MEMORY if path is None else path
        self._database = open_sqlite(self._path, _KIND, _SCHEMA, "which entities were seen: they are read anew")
        self._lock = Lock()
        """Whoever looks up may be another thread than whoever reads on."""
        with naming(self._path):
            found = self._database.execute("SELECT source, position FROM cursor").fetchone()
            if found is not None and found[0] != source:  # of another table: it is read again
                self._database.executescript("BEGIN IMMEDIATE; DELETE FROM known; DELETE FROM cursor; COMMIT")
                found = None
        self._source = source
        self.position: Any = None if found is None or found[1] is None else values_of(json.loads(found[1]))

    def get(self, key: bytes) -> Any:
        """Return the entity of a hash, as the table has it; None where it is unknown."""
        with naming(self._path), self._lock:
            found = self._database.execute("SELECT entity FROM known WHERE key = ?", (key,)).fetchone()
        return None if found is None else values_of([json.loads(found[0])])[0]

    def add(self, pairs: Sequence[tuple[bytes, Any]], position: Any = None) -> None:
        """More hashes with their entities, and how far the table was read then."""
        rows = [(key, json.dumps(json_of([entity])[0])) for key, entity in pairs]
        with naming(self._path), self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR IGNORE INTO known VALUES (?, ?)", rows)
            if position is not None:
                text = json.dumps(json_of(position))
                self._database.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (self._source, text))
                self.position = position

    def close(self) -> None:
        """Close the file."""
        self._database.close()


_TAGS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "time": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}


def json_of(values: Sequence[Any]) -> list[Any]:
    """Return values of a database as JSON has them."""

    def one(value: Any) -> Any:
        for tag, (kind, text, _) in _TAGS.items():
            if isinstance(value, kind):
                return {tag: text(value)}
        if value is None or isinstance(value, str | int | float):
            return value
        raise DataError(f"{kind_of(value)} is neither a text, a number nor a time, so it cannot say where a row is")

    return [one(value) for value in values]


def order_of(values: Sequence[Any]) -> list[int | float | str]:
    """Return values of a database as what has their order, where texts have that of their letters' numbers; numbers
    come before texts, as in SQLite.

    >>> order_of([5, "b"]) < order_of([5, "c"]) < order_of([Decimal("5.5"), "a"]) < order_of(["5", "a"])
    True
    """

    def one(value: Any) -> tuple[int, int | float | str]:
        if isinstance(value, datetime):
            return 0, micros(value)
        if isinstance(value, Decimal):
            return 0, int(value) if value.is_finite() and value == int(value) else float(value)
        return (0, value) if isinstance(value, int | float) else (1, str(value))

    return [part for value in values for part in one(value)]


def values_of(values: Sequence[Any]) -> list[Any]:
    """Return the inverse."""

    def one(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((tag, text),) = value.items()
        return _TAGS[tag][2](text)

    return [one(value) for value in values]
