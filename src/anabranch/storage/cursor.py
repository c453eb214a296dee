"""How far a source was read, in the party's own folder: moved only past what is safe, in whatever order it gets so."""

from __future__ import annotations

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any

from anabranch.errors import CheckpointError
from anabranch.storage.sqlite import naming, open_sqlite

_KIND = 0x616E6B32  # "ank2"
_SCHEMA = "CREATE TABLE cursor (one INTEGER PRIMARY KEY CHECK (one = 1), source TEXT NOT NULL, position TEXT NOT NULL)"


class Cursor:
    """The place after the last reading before which all are safe.

    Args:
        path: of its file.
        source: what is read, so that no other is gone on with by mistake.

    Raises:
        CheckpointError: where the file is damaged, or of another source.
        OutputError: where it cannot be used.

    >>> import tempfile
    >>> cursor = Cursor(Path(tempfile.mkdtemp()) / "cursor", "orders")
    >>> for place in (1, 2, 3):
    ...     cursor.given(place)
    >>> cursor.safe(2); cursor.position
    >>> cursor.safe(1); cursor.position
    2
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self._database = open_sqlite(path, _KIND, _SCHEMA, "how far the source was read, so that it is read anew")
        self._numbers: dict[str, int] = {}
        """Of the places of what was given and is not safe, in the order in which it was given."""
        self._unsafe: list[int] = []
        """These numbers."""
        self._ends: list[str] = []
        """For each of them the last place up to which all that was given after it is safe; its own where nothing is."""
        self._next = 0
        with naming(path):
            found = self._database.execute("SELECT source, position FROM cursor").fetchone()
        if found is not None and found[0] != source:
            raise CheckpointError(
                f"{path}: says how far {found[0]} was read, but the source is {source}: name another folder, or remove "
                "the file to read it from its beginning"
            )
        self.position: Any = None if found is None else json.loads(found[1])
        """The place; None at the beginning."""

    @property
    def waiting(self) -> int:
        """How many readings were given and are not safe; those that are take no room."""
        return len(self._unsafe)

    def given(self, place: Any) -> None:
        """A reading was given; it ends at this place, of JSON's values."""
        key = json.dumps(place)
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._unsafe.append(self._next)
            self._ends.append(key)
            self._next += 1

    def safe(self, place: Any) -> None:
        """The reading that ends there is safe.

        Raises:
            OutputError: where the file cannot be written.
        """
        key = json.dumps(place)
        if key not in self._numbers:
            return
        i = bisect_left(self._unsafe, self._numbers.pop(key))
        del self._unsafe[i]
        end = self._ends.pop(i)
        if i:
            self._ends[i - 1] = end  # all from there to here is safe
            return
        with naming(self._path):
            self._database.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (self._source, end))
        self.position = json.loads(end)

    def close(self) -> None:
        """Close the file."""
        self._database.close()
