"""Events that the server has predicted and whose labels come later, in a file.

An event waits from its prediction until its label has been learnt from, or until it expires. Whatever a label finds, it
is counted: none is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.storage.event_ids import HASH_BYTES, NAME_BYTES
from anabranch.storage.sqlite import naming, open_sqlite

_KIND = 0x616E7731  # "anw1"
_HOLDS = "the events that wait for their labels, and the labels that wait for their events"
_SCHEMA = """
CREATE TABLE waiting (
    event BLOB PRIMARY KEY, number INTEGER NOT NULL, record BLOB NOT NULL, since REAL NOT NULL,
    label INTEGER, place INTEGER
) WITHOUT ROWID;
CREATE INDEX waiting_by_place ON waiting (place) WHERE place IS NOT NULL;
CREATE INDEX waiting_by_time ON waiting (since);
CREATE INDEX waiting_by_number ON waiting (number);
CREATE TABLE early (event BLOB PRIMARY KEY, label INTEGER NOT NULL, since REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX early_by_time ON early (since);
CREATE TABLE past (place INTEGER PRIMARY KEY, event BLOB NOT NULL UNIQUE, how TEXT NOT NULL);
CREATE TABLE counts (what TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID
"""

COUNTED = ("happened", "labelled", "learnt", "early", "duplicate", "unknown", "expired", "expired label", "crowded out")
"""What is counted: events, labels that found theirs, rounds; labels that came before their event, twice, and of no
event at all; events without a label in time, labels of those, and events that had to go since too many waited."""
_TIME = f"substr(event, {HASH_BYTES + 1})"
"""Of a name of a source's events; as bytes they are in the order of the times from 1970 on."""
_NEWEST = "SELECT event FROM {} WHERE " + f"length(event) = {NAME_BYTES} ORDER BY {_TIME} DESC LIMIT 1"
REMEMBERED = 100_000
"""So many events that are over are remembered, to tell a second label from one of no event."""


class Ready(NamedTuple):
    """An event whose label is there."""

    event: bytes
    label: int
    record: bytes
    """As it was given when the event was predicted."""


class Waiting:
    """The events that wait for their labels; a process may be killed at any moment.

    Args:
        path: of the file, made where it is not there.
        most: how many may wait; where there are more, the oldest go. Also how many labels may wait for their events.
        expiry: seconds after which an event without a label goes, and a label without an event; None is never.
        durable: whether what is said to be there is on the disk, so that a power failure does not lose it.

    Raises:
        CheckpointError: where the file is damaged.
        OutputError: where it cannot be used.

    >>> import tempfile
    >>> waiting = Waiting(Path(tempfile.mkdtemp()) / "waiting", most=10, expiry=60)
    >>> waiting.add(b"a", 0, b"what was predicted", now=0.0)
    []
    >>> [waiting.label(event, 1, now=5.0) for event in (b"a", b"a", b"b")]
    ['ready', 'duplicate', 'early']
    >>> waiting.ready(10)
    [Ready(event=b'a', label=1, record=b'what was predicted')]
    >>> waiting.learnt([b"a"])
    >>> waiting.counts["learnt"], waiting.counts["duplicate"], len(waiting)
    (1, 1, 0)
    """

    def __init__(self, path: Path, *, most: int, expiry: float | None, durable: bool = False) -> None:
        self._path, self._most, self._expiry = path, most, expiry
        self._database = open_sqlite(path, _KIND, _SCHEMA, _HOLDS, durable=durable)
        with naming(path):
            held = dict(self._database.execute("SELECT what, n FROM counts").fetchall())
            (self._length,) = self._database.execute("SELECT count(*) FROM waiting").fetchone()
            (self._labelled,) = self._database.execute("SELECT count(place) FROM waiting").fetchone()
            (self._early,) = self._database.execute("SELECT count(*) FROM early").fetchone()
            newest = [self._one(_NEWEST.format(table)) for table in ("waiting", "past")]
        self._newest = max((found[0][HASH_BYTES:] for found in newest if found is not None), default=b"")
        """The time of the latest event that has happened, where names bear times."""
        self.counts: dict[str, int] = {what: held.get(what, 0) for what in COUNTED}
        """How often each of `COUNTED` has occurred, since the file was made."""
        self._taken: set[bytes] = set()
        """What `ready` has given out in this process."""

    def __len__(self) -> int:
        """Return how many events wait, those that are just being learnt from among them."""
        return self._length

    @property
    def early(self) -> int:
        """How many labels wait for their events to happen."""
        return self._early

    def passed(self) -> int:
        """Return how many labels wait for events of times before that of the latest event, where all names bear
        times.
        """
        if not self._early:
            return 0
        with naming(self._path):
            return int(self._one(f"SELECT count(*) FROM early WHERE {_TIME} < ?", self._newest)[0])

    def add(self, event: bytes, number: int, record: bytes, now: float) -> list[bytes]:
        """An event was predicted, and waits; one that waits already stays as it was.

        Args:
            number: of the event, in the order in which they happened.
            record: what will be needed of it.
            now: seconds since 1970.

        Returns:
            The events that had to go, since too many wait.
        """
        with naming(self._path), self._database:
            self._begin()
            early = self._one("SELECT label FROM early WHERE event = ?", event)
            row = (event, number, record, now, None if early is None else early[0])
            new = self._run("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?, ?, NULL)", *row)
            self._length += new
            self._count("happened", new)
            if len(event) == NAME_BYTES:
                self._newest = max(self._newest, event[HASH_BYTES:])
            if early is not None:
                self._run("DELETE FROM early WHERE event = ?", event)
                self._early -= 1
                self._place(event)
            return self._crowd_out()

    def _crowd_out(self) -> list[bytes]:
        over = self._length - self._most
        if over <= 0:
            return []
        query = "SELECT event FROM waiting WHERE place IS NULL ORDER BY number LIMIT ?"
        gone = [event for (event,) in self._database.execute(query, (over,)).fetchall()]
        self._end(gone, "crowded out")
        return gone

    def label(self, event: bytes, label: int, now: float) -> str:
        """A label has come.

        Returns:
            ``"ready"`` where its event waits for it, ``"early"`` where its event has not happened yet, as far as the
            server knows; ``"duplicate"`` where it came before, ``"expired"`` where its event has gone.
        """
        with naming(self._path), self._database:
            self._begin()
            waits = self._one("SELECT place FROM waiting WHERE event = ?", event)
            if waits is not None and waits[0] is None:
                self._run("UPDATE waiting SET label = ? WHERE event = ?", label, event)
                self._place(event)
                return "ready"
            past = self._one("SELECT how FROM past WHERE event = ?", event)
            if past is not None and past[0] != "learnt":
                self._count("expired label")
                return "expired"
            if waits is not None or past is not None:
                self._count("duplicate")
                return "duplicate"
            new = self._run("INSERT OR IGNORE INTO early VALUES (?, ?, ?)", event, label, now)
            self._early += new
            self._count("early" if new else "duplicate")
            if self._early > self._most:
                query = "DELETE FROM early WHERE event IN (SELECT event FROM early ORDER BY since LIMIT ?)"
                gone = self._run(query, self._early - self._most)
                self._early -= gone
                self._count("unknown", gone)
            return "early" if new else "duplicate"

    def _place(self, event: bytes) -> None:
        """Its label was the next one to find its event."""
        self._run("UPDATE waiting SET place = ? WHERE event = ?", self.counts["labelled"], event)
        self._labelled += 1
        self._count("labelled")

    def knows(self, event: bytes) -> bool:
        """Return whether an event waits, or is over and still remembered."""
        query = "SELECT 1 FROM waiting WHERE event = ?1 UNION ALL SELECT 1 FROM past WHERE event = ?1"
        with naming(self._path):
            return self._one(query, event) is not None

    def ready(self, n: int) -> list[Ready]:
        """Up to ``n`` events whose labels are there, in the order of their labels; each of them once in a process."""
        if not self.is_ready:
            return []
        query = "SELECT event, label, record FROM waiting WHERE place IS NOT NULL ORDER BY place LIMIT ?"
        with naming(self._path):
            rows = self._database.execute(query, (n + len(self._taken),)).fetchall()
        found = [Ready(*row) for row in rows if row[0] not in self._taken][:n]
        self._taken |= {each.event for each in found}
        return found

    @property
    def is_ready(self) -> bool:
        """Whether `ready` has something to give."""
        return self._labelled > len(self._taken)

    def put_back(self, ready: Iterable[Ready]) -> None:
        """`ready` gives these again."""
        self._taken.difference_update(each.event for each in ready)

    def number(self, event: bytes) -> int | None:
        """Of an event that waits; None where none of this name does."""
        with naming(self._path):
            found = self._one("SELECT number FROM waiting WHERE event = ?", event)
        return None if found is None else int(found[0])

    def learnt(self, events: Iterable[bytes]) -> None:
        """Rounds were played of these; those that do not wait do not matter."""
        with naming(self._path), self._database:
            self._begin()
            gone = self._end(events, "learnt")
        self._taken.difference_update(gone)

    def expire(self, now: float) -> list[bytes]:
        """Return the events that have waited too long for their label, which they no longer do.

        Args:
            now: seconds since 1970.
        """
        if self._expiry is None:
            return []
        with naming(self._path), self._database:
            self._begin()
            query = "SELECT event FROM waiting WHERE place IS NULL AND since <= ?"
            old = [event for (event,) in self._database.execute(query, (now - self._expiry,)).fetchall()]
            self._end(old, "expired")
            gone = self._run("DELETE FROM early WHERE since <= ?", now - self._expiry)
            self._early -= gone
            self._count("unknown", gone)
        return old

    def _end(self, events: Iterable[bytes], how: str) -> list[bytes]:
        """These wait no longer."""
        gone = []
        for event in events:
            found = self._one("SELECT place FROM waiting WHERE event = ?", event)
            if found is not None:
                gone.append(event)
                self._labelled -= found[0] is not None
                self._run("DELETE FROM waiting WHERE event = ?", event)
            if found is not None or how == "learnt":  # a log may know of rounds that a file of before does not
                self._run("INSERT OR REPLACE INTO past (event, how) VALUES (?, ?)", event, how)
        if gone:
            self._length -= len(gone)
            self._count(how, len(gone))
            last = self._one("SELECT max(place) FROM past")
            self._run("DELETE FROM past WHERE place <= ?", (last[0] if last else 0) - REMEMBERED)
        return gone

    def close(self) -> None:
        """Close the file; what is in it is safe without, too."""
        self._database.close()

    def _begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def _run(self, query: str, *values: Any) -> int:
        """Return how many rows it has changed."""
        return self._database.execute(query, values).rowcount

    def _one(self, query: str, *values: Any) -> Any:
        return self._database.execute(query, values).fetchone()

    def _count(self, what: str, n: int = 1) -> None:
        if n:
            self.counts[what] += n
            self._run("INSERT OR REPLACE INTO counts VALUES (?, ?)", what, self.counts[what])
