"""What a client has looked up for an event, kept until the event is learned from or too old.

An entity's features may change between a round's query and its repeat, and labels may come weeks after their events: an
event's input stays the one that was looked up first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import CheckpointError, ConfigError
from anabranch.sources.sqlite import naming, open_sqlite

_KIND = 0x616E6B34  # "ank4"
_SCHEMA = """
CREATE TABLE kept (
    event BLOB PRIMARY KEY, x BLOB NOT NULL, kept_at REAL NOT NULL, activated INTEGER, number INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX kept_by_number ON kept (activated IS NOT NULL, number);
CREATE INDEX kept_by_time ON kept (kept_at);
CREATE TABLE own (place INTEGER PRIMARY KEY, event BLOB NOT NULL UNIQUE);
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL)
"""

_INSERT = """
INSERT OR IGNORE INTO kept
VALUES (?, ?, ?, ?, coalesce(?, (SELECT coalesce(max(number), -1) + 1 FROM kept WHERE (activated IS NOT NULL) = 0)))
"""
_OLDEST = "SELECT event, activated FROM kept ORDER BY activated IS NOT NULL, number LIMIT ?"


class KeptInputs:
    """Inputs by the names of their events, in a file; a process may be killed at any moment.

    Args:
        path: of the file, made where it is not there.
        most: how many are kept; where there are more, those go first of which nobody has decided whether they activated
            this client, as no event may have come of them, and then those with the lowest numbers.
        expiry: seconds after which one may go; None is never.
        durable: whether what is kept is on the disk at once, so that a power failure does not lose it.
        clock: seconds since 1970.

    Raises:
        ConfigError: where ``most`` or ``expiry`` is out of range.
        CheckpointError: where the file is damaged.
        OutputError: where it cannot be used.

    >>> import tempfile
    >>> kept = KeptInputs(Path(tempfile.mkdtemp()) / "inputs", most=2)
    >>> for number, event in enumerate([b"a", b"b", b"c"]):
    ...     kept.put(event, np.float32([number]), True, number)
    >>> kept.get(b"a"), kept.get(b"c"), kept.crowded_out
    (None, (array([2.], dtype=float32), True), 1)
    """

    def __init__(
        self,
        path: Path,
        *,
        most: int,
        expiry: float | None = None,
        durable: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._most = whole("most", most, 1)
        if expiry is not None and not expiry > 0:
            raise ConfigError(f"expiry is {expiry!r}: must be a number of seconds above 0")
        self.path = path
        self._expiry, self._clock = expiry, clock
        self._database = open_sqlite(path, _KIND, _SCHEMA, durable=durable)
        self.crowded_out = 0
        """How many that were decided of went because there were too many, since this process began."""
        with naming(path):
            (self._count,) = self._database.execute("SELECT count(*) FROM kept").fetchone()

    def get(self, event: bytes) -> tuple[NDArray[np.float32], bool | None] | None:
        """The event's input (d_m,), and whether it activated this client (None: not decided); None where not kept.

        Raises:
            CheckpointError: where the file is damaged.
        """
        with naming(self.path):
            found = self._database.execute("SELECT x, activated FROM kept WHERE event = ?", (event,)).fetchone()
        if found is None:
            return None
        x, activated = found
        if not isinstance(x, bytes) or len(x) % 4:
            raise CheckpointError(f"{self.path}: the input of event {event.hex()} is damaged: put back a copy")
        return np.frombuffer(x, "<f4").astype(np.float32), None if activated is None else bool(activated)

    def state(self) -> bytes | None:
        """What was last given to `put` as the state; None before.

        Raises:
            CheckpointError: where the file is damaged.
        """
        with naming(self.path):
            found = self._database.execute("SELECT value FROM state").fetchone()
        return None if found is None else bytes(found[0])

    def put(
        self,
        event: bytes,
        x: NDArray[np.float32],
        activated: bool | None,
        number: int | None = None,
        state: bytes | None = None,
    ) -> None:
        """Keeps an event's input. One that is kept stays, and so does a decision that was made.

        Args:
            event: its name.
            x: (d_m,), its features.
            activated: whether it activated this client; None where that is not decided yet.
            number: of the event, by which too many are sorted out; None is one more than the highest that is kept of
                those that are not decided of.
            state: of what made the input of the values, kept with it or not at all; None is as before.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written, as on a full disk.
        """
        row = (event, np.ascontiguousarray(x, "<f4").tobytes(), self._clock(), activated, number)
        with naming(self.path), self._database:
            if state is not None:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (state,))
            new = self._database.execute(_INSERT, row).rowcount
            if not new and activated is not None:
                self._database.execute(
                    "UPDATE kept SET activated = ?, number = coalesce(?, number) WHERE event = ? AND activated IS NULL",
                    (activated, number, event),
                )
        self._count += new
        if self._count > self._most:
            with naming(self.path):
                gone = self._database.execute(_OLDEST, (self._count - self._most,)).fetchall()
            self.drop([each for each, _ in gone])
            self.crowded_out += sum(decided is not None for _, decided in gone)

    def recent(self, n: int) -> list[bytes]:
        """The last ``n`` of the events that have activated this client, by their numbers.

        Raises:
            CheckpointError: where the file is damaged.
        """
        query = (
            "SELECT event FROM kept WHERE (activated IS NOT NULL) = 1 AND activated = 1 ORDER BY number DESC LIMIT ?"
        )
        with naming(self.path):
            return [event for (event,) in self._database.execute(query, (n,)).fetchall()][::-1]

    def own(self) -> list[bytes]:
        """The events that have activated this client and are not known to be safe, in their order.

        Raises:
            CheckpointError: where the file is damaged.
        """
        with naming(self.path):
            return [event for (event,) in self._database.execute("SELECT event FROM own ORDER BY place").fetchall()]

    def add_own(self, event: bytes) -> None:
        """An event activates this client: so it is after this process was killed, too.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path):
            self._database.execute("INSERT OR IGNORE INTO own (event) VALUES (?)", (event,))

    def drop_own(self, events: Iterable[bytes]) -> None:
        """Of these nothing can be lost any more; others do not matter.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("DELETE FROM own WHERE event = ?", [(event,) for event in events])

    def drop(self, events: Iterable[bytes]) -> None:
        """Lets go of events, together; those that are not kept do not matter.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            gone = self._database.executemany("DELETE FROM kept WHERE event = ?", [(event,) for event in events])
        self._count -= max(gone.rowcount, 0)

    def expire(self, now: float) -> int:
        """Lets go of what was kept ``expiry`` seconds before ``now`` or earlier; how many that were.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        if self._expiry is None:
            return 0
        with naming(self.path):
            gone = self._database.execute("DELETE FROM kept WHERE kept_at <= ?", (now - self._expiry,)).rowcount
        self._count -= gone
        return gone

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Closes the file; what is in it is safe without, too."""
        self._database.close()
