"""How far a source was read, in the party's own folder: moved only past what is safe, in whatever order it gets so."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

from anabranch.errors import CheckpointError
from anabranch.sources.sqlite import naming, open_sqlite

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
        self._database = open_sqlite(path, _KIND, _SCHEMA)
        self._given: OrderedDict[str, bool] = OrderedDict()
        """Places of what was given since the position, in order, and whether each is safe."""
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
        """How many readings were given and are not safe, or wait for one that was given before."""
        return len(self._given)

    def given(self, place: Any) -> None:
        """A reading was given; it ends at this place, of JSON's values."""
        self._given[json.dumps(place)] = False

    def safe(self, place: Any) -> None:
        """The reading that ends there is safe.

        Raises:
            OutputError: where the file cannot be written.
        """
        key = json.dumps(place)
        if key not in self._given:
            return
        self._given[key] = True
        last = None
        while self._given and self._given[next(iter(self._given))]:
            last, _ = self._given.popitem(last=False)
        if last is not None:
            with naming(self._path):
                self._database.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (self._source, last))
            self.position = json.loads(last)

    def close(self) -> None:
        """Closes the file."""
        self._database.close()
