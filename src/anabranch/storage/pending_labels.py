"""Events that the server has predicted and whose labels come later, in a file.

An event waits from its prediction until its label has been learnt from, or until it expires. Whatever a label finds, it
is counted: none is dropped without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from anabranch.errors import CheckpointError
from anabranch.storage.event_ids import EARLIEST, HASH_BYTES, NAME_BYTES
from anabranch.storage.place import Place
from anabranch.storage.sqlite import naming, open_sqlite

_KIND = 0x616E7732  # "anw2"
_HOLDS = "the events that wait for their labels, and the labels that wait for their events"
_SCHEMA = """
CREATE TABLE waiting (
    event BLOB PRIMARY KEY, number INTEGER NOT NULL, record BLOB NOT NULL, since INTEGER,
    label INTEGER, place INTEGER, known INTEGER
) WITHOUT ROWID;
CREATE INDEX waiting_by_place ON waiting (place) WHERE place IS NOT NULL;
CREATE INDEX waiting_by_time ON waiting (since) WHERE place IS NULL;
CREATE INDEX waiting_by_number ON waiting (number);
CREATE TABLE early (event BLOB PRIMARY KEY, label INTEGER NOT NULL, since INTEGER) WITHOUT ROWID;
CREATE INDEX early_by_time ON early (since);
CREATE TABLE past (place INTEGER PRIMARY KEY, event BLOB NOT NULL UNIQUE, how TEXT NOT NULL);
CREATE TABLE sorted_in (one INTEGER PRIMARY KEY CHECK (one = 1), place TEXT NOT NULL);
CREATE TABLE counts (what TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID
"""

COUNTED = ("happened", "labelled", "learnt", "early", "duplicate", "unknown", "expired", "expired label", "crowded out")
"""The counters. Of events: happened (they were predicted), learnt (their round was played), expired (no label came in
time), crowded out (more than `most` waited). Of labels: labelled (the event was found), early (it came before its
event), duplicate, unknown (its event never came), expired label (its event had expired or was crowded out).

An event that happened is learnt, expired, crowded out, or waits still: the four add up."""
_UPTIME = "uptime"
"""The row beside the counters with the time that the server was up."""
_TIME = f"substr(event, {HASH_BYTES + 1})"
"""Of a name of a source's events; as bytes they are in the order of the times from 1970 on."""
_NEWEST = "SELECT event FROM {} WHERE " + f"length(event) = {NAME_BYTES} ORDER BY {_TIME} DESC LIMIT 1"
Order: TypeAlias = Literal["labels", "events", "known"]
_ORDERS: dict[Order, str] = {"labels": "place", "events": "number", "known": "known, number"}
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

    It has no clock of its own: each event and each early label bears a moment, in microseconds, and `expire` is told
    which moment it is.

    Args:
        path: of the file, made where it is not there.
        most: how many may wait; where there are more, the oldest go. Also how many labels may wait for their events.
        expiry: seconds that an event waits for its label at most, and a label for its event; None is without end.
        durable: whether what is said to be there is on the disk, so that a power failure does not lose it.

    Raises:
        CheckpointError: where the file is damaged.
        OutputError: where it cannot be used.

    >>> import tempfile
    >>> waiting = Waiting(Path(tempfile.mkdtemp()) / "waiting", most=10, expiry=60)
    >>> waiting.add(b"a", 0, b"what was predicted", since=0)
    []
    >>> [waiting.label(event, 1, since=5_000_000) for event in (b"a", b"a", b"b")]
    ['ready', 'duplicate', 'early']
    >>> waiting.ready(10)
    [Ready(event=b'a', label=1, record=b'what was predicted')]
    >>> waiting.learnt([b"a"])
    >>> waiting.counts["learnt"], waiting.counts["duplicate"], len(waiting)
    (1, 1, 0)
    """

    def __init__(self, path: Path, *, most: int, expiry: float | None, durable: bool = False) -> None:
        self._path, self._most, self.expiry = path, most, expiry
        self._expiry = None if expiry is None else round(expiry * 1e6)
        self._database = open_sqlite(path, _KIND, _SCHEMA, _HOLDS, durable=durable)
        with naming(path):
            held = dict(self._database.execute("SELECT what, n FROM counts").fetchall())
            (self._length,) = self._database.execute("SELECT count(*) FROM waiting").fetchone()
            (self._labelled,) = self._database.execute("SELECT count(place) FROM waiting").fetchone()
            (self._early,) = self._database.execute("SELECT count(*) FROM early").fetchone()
            place = self._one("SELECT place FROM sorted_in")
            newest = [self._one(_NEWEST.format(table)) for table in ("waiting", "past")]
        self._newest = max((found[0][HASH_BYTES:] for found in newest if found is not None), default=b"")
        """The time of the latest event that has happened, where names bear times."""
        self.counts: dict[str, int] = {what: held.get(what, 0) for what in COUNTED}
        """How often each of `COUNTED` has occurred, since the file was made."""
        try:
            self.sorted_in = None if place is None else Place(*json.loads(place[0]))
        except (ValueError, TypeError) as error:
            self._database.close()
            raise CheckpointError(f"{path}: up to where labels were read is damaged: put back a copy") from error
        """The place of the last label that was sorted in by an earlier process."""
        self._taken: set[bytes] = set()
        """What `ready` has given out in this process."""
        self.uptime: int = held.get(_UPTIME, 0)
        """Microseconds that the server was up and had read all labels that were there, as `stay` counts them."""

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

    def has_room(self, passed: int | None) -> bool:
        """Return whether one more label may wait for its event, and none is lost that may still be wanted.

        Args:
            passed: the moment that the events have reached; None if that is not known.
        """
        if self._early < self._most:
            return True
        with naming(self._path):
            oldest = self._one("SELECT min(since) FROM early")[0]
        return oldest is None or (passed is not None and oldest < passed)

    def stay(self, micros: int) -> None:
        """Count that the server was up for some time more."""
        if micros > 0 and self._expiry is not None:
            self.uptime += micros
            with naming(self._path):
                self._run("INSERT OR REPLACE INTO counts VALUES (?, ?)", _UPTIME, self.uptime)

    def add(self, event: bytes, number: int, record: bytes, since: int | None) -> list[bytes]:
        """Keep an event that was predicted; one that waits already stays as it was.

        Args:
            number: of the event, in the order in which they happened.
            record: what will be needed of it.
            since: its moment, in microseconds; None if it never expires.

        Returns:
            The events that had to go, since too many wait.
        """
        with naming(self._path), self._database:
            self._begin()
            early = self._one("SELECT label FROM early WHERE event = ?", event)
            row = (event, number, record, since, None if early is None else early[0])
            new = self._run("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?, ?, NULL, NULL)", *row)
            self._length += new
            self._count("happened", new)
            if len(event) == NAME_BYTES:
                self._newest = max(self._newest, event[HASH_BYTES:])
            if early is not None:
                self._run("DELETE FROM early WHERE event = ?", event)
                self._early -= 1
                self._place(event, since)
            return self._crowd_out()

    def _crowd_out(self) -> list[bytes]:
        over = self._length - self._most
        if over <= 0:
            return []
        query = "SELECT event FROM waiting WHERE place IS NULL ORDER BY number LIMIT ?"
        gone = [event for (event,) in self._database.execute(query, (over,)).fetchall()]
        self._end(gone, "crowded out")
        return gone

    def label(
        self, event: bytes, label: int, since: int | None, known: int | None = None, place: Place | None = None
    ) -> str:
        """Sort in a label that has come.

        Args:
            since: the moment of its event, in microseconds, for a label that has to wait; None if it never expires.
            known: when the label became known; None if nobody knows. One that is too late waits for no event.
            place: of the label in its source; `sorted_in` is then this place, after a restart too.

        Returns:
            ``"ready"`` where its event waits for it, ``"early"`` where its event has not happened yet, as far as the
            server knows; ``"duplicate"`` where it came before, ``"expired"`` where its event has gone.
        """
        with naming(self._path), self._database:
            self._begin()
            if place is not None:
                self._run("INSERT OR REPLACE INTO sorted_in VALUES (1, ?)", json.dumps(place))
            waits = self._one("SELECT place FROM waiting WHERE event = ?", event)
            if waits is not None and waits[0] is None:
                self._run("UPDATE waiting SET label = ? WHERE event = ?", label, event)
                self._place(event, known)
                return "ready"
            past = self._one("SELECT how FROM past WHERE event = ?", event)
            if past is not None and past[0] != "learnt":
                self._count("expired label")
                return "expired"
            if waits is not None or past is not None:
                self._count("duplicate")
                return "duplicate"
            if known is not None and since is not None and since < self._bound(known):
                self._count("expired label")
                return "expired"
            new = self._run("INSERT OR IGNORE INTO early VALUES (?, ?, ?)", event, label, since)
            self._early += new
            self._count("early" if new else "duplicate")
            if self._early > self._most:
                oldest = "event IN (SELECT event FROM early ORDER BY since LIMIT ?)"
                self._drop_early(oldest, self._early - self._most)
            return "early" if new else "duplicate"

    def _place(self, event: bytes, known: int | None) -> None:
        """Its label was the next one to find its event."""
        self._run("UPDATE waiting SET place = ?, known = ? WHERE event = ?", self.counts["labelled"], known, event)
        self._labelled += 1
        self._count("labelled")

    def knows(self, event: bytes) -> bool:
        """Return whether an event waits, or is over and still remembered."""
        query = "SELECT 1 FROM waiting WHERE event = ?1 UNION ALL SELECT 1 FROM past WHERE event = ?1"
        with naming(self._path):
            return self._one(query, event) is not None

    def ready(self, n: int, order: Order = "labels") -> list[Ready]:
        """Return up to ``n`` events whose labels are there, each of them once in a process.

        Args:
            order: that of the labels, as they came; that of the events; or that of the times at which the labels
                became known, and of the events where these are the same.
        """
        if not self.is_ready:
            return []
        query = f"SELECT event, label, record FROM waiting WHERE place IS NOT NULL ORDER BY {_ORDERS[order]} LIMIT ?"
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

    def expire(self, now: int | None, passed: int | None) -> list[bytes]:
        """Let go of what has waited for more than ``expiry``.

        Args:
            now: the moment up to which all labels were read; None if that is not known, and no event goes.
            passed: the moment up to which all events have happened; None if that is not known, and no label goes.

        Returns:
            The events that went.
        """
        if self._expiry is None:
            return []
        old: list[bytes] = []
        if now is not None:
            query = "SELECT event FROM waiting WHERE place IS NULL AND since < ?"
            with naming(self._path):
                old = [event for (event,) in self._database.execute(query, (self._bound(now),)).fetchall()]
            if old:
                with naming(self._path), self._database:
                    self._begin()
                    self._end(old, "expired")
        if passed is not None and self._early:
            with naming(self._path), self._database:
                self._begin()
                self._drop_early("since < ?", self._bound(passed))
        return old

    def _bound(self, moment: int) -> int:
        """Return the first moment whose events have not waited for too long."""
        return EARLIEST if self._expiry is None else max(EARLIEST, moment - self._expiry)

    def give_up_early(self) -> None:
        """No event will come for the labels that wait for theirs."""
        if self._early:
            with naming(self._path), self._database:
                self._begin()
                self._drop_early("true")

    def _drop_early(self, which: str, *values: Any) -> None:
        gone = self._run(f"DELETE FROM early WHERE {which}", *values)
        self._early -= gone
        self._count("unknown", gone)

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
