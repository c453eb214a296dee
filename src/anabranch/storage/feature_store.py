"""What a client has looked up for an event, kept until the event is learned from or too old.

An entity's features may change between a round's query and its repeat, and labels may come weeks after their events: an
event's input stays what it was when somebody else first knew of it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import CheckpointError, ConfigError
from anabranch.storage.event_ids import EARLIEST, Names
from anabranch.storage.place import Place
from anabranch.storage.sqlite import naming, open_sqlite

_KIND = 0x616E6B61  # "anka"
_SCHEMA = """
CREATE TABLE kept (
    event BLOB PRIMARY KEY, x BLOB NOT NULL, place INTEGER NOT NULL, moment INTEGER, activated INTEGER,
    number INTEGER NOT NULL, learnt INTEGER, stepped INTEGER, asked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX kept_undecided ON kept (number) WHERE activated IS NULL AND learnt IS NULL;
CREATE INDEX kept_waiting ON kept (number) WHERE activated IS NOT NULL AND learnt IS NULL;
CREATE INDEX kept_learnt ON kept (learnt) WHERE learnt IS NOT NULL;
CREATE INDEX kept_by_place ON kept (place);
CREATE INDEX kept_by_moment ON kept (moment);
CREATE TABLE own (place INTEGER PRIMARY KEY, event BLOB NOT NULL UNIQUE, read_at TEXT);
CREATE TABLE told (
    place INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, read_at TEXT, state TEXT NOT NULL
);
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL)
"""

_HOLDS = (
    "the inputs of events that wait for their labels, the running means of the features, and from which readings on "
    "something has moved"
)
_UNDECIDED, _WAITING, _LEARNT = range(3)
_WHICH = f"CASE WHEN learnt IS NOT NULL THEN {_LEARNT} ELSE activated IS NOT NULL END"
_ARE_UNDECIDED = "activated IS NULL AND learnt IS NULL"
_WAIT = "activated IS NOT NULL AND learnt IS NULL"
_INSERT = f"""
INSERT OR IGNORE INTO kept (event, x, place, moment, activated, number)
VALUES (?, ?, ?, ?, ?, coalesce(?, (SELECT coalesce(max(number), -1) + 1 FROM kept WHERE {_ARE_UNDECIDED})))
"""
_OLDEST = "SELECT event FROM kept WHERE {} ORDER BY number LIMIT ?"
_ASKED = "UPDATE kept SET asked = 1 WHERE event = ?"
_NOT_OWN = f"{_ARE_UNDECIDED} AND event NOT IN (SELECT event FROM own)"


class Told(NamedTuple):
    """The last reading of an entity that has activated this client."""

    place: Place | None
    """Of the reading, where its source has places."""
    state: list[Any]
    """What the stimulus holds of the entity since, of JSON's values."""


class KeptInputs:
    """Inputs by the names of their events, in a file; a process may be killed at any moment.

    Args:
        path: of the file, made where it is not there.
        most: how many are kept that wait for their labels, and how many of which nobody has decided whether they
            activated this client, as no event may have come of them; where there are more, those with the lowest
            numbers go. Events of its own stay besides, and so do those that are learnt, until they are dropped.
        expiry: seconds after which one may go: its event is older than the newest event by more. None is never.
        durable: whether what is kept is on the disk at once, so that a power failure does not lose it.
        clock: seconds since 1970. An event that is ahead of it makes no other old.

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
        self._expiry = None if expiry is None else round(expiry * 1e6)
        self._clock = clock
        self._newest: int | None = None
        """The time of the newest event, in microseconds since 1970."""
        self._database = open_sqlite(path, _KIND, _SCHEMA, _HOLDS, durable=durable)
        self.crowded_out = 0
        """How many that waited for their labels went because there were too many, since this process began."""
        with naming(path):
            found = self._database.execute(f"SELECT {_WHICH} AS which, count(*) FROM kept GROUP BY which").fetchall()
            (self._places,) = self._database.execute("SELECT coalesce(max(place), 0) FROM kept").fetchone()
            (self._owned,) = self._database.execute("SELECT count(*) FROM own").fetchone()
            (self._entities,) = self._database.execute("SELECT count(*) FROM told").fetchone()
        self._counts: Counter[int] = Counter(dict(found))

    def get(self, event: bytes) -> tuple[NDArray[np.float32], bool | None] | None:
        """Return the event's input (d_m,), and whether it activated this client (None: not decided); None where not
        kept.

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
        """Keep an event's input. One that is kept stays, and so does a decision that was made.

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
        self._places += 1
        moment = self._moment(event)
        row = (event, np.ascontiguousarray(x, "<f4").tobytes(), self._places, moment, activated, number)
        with naming(self.path), self._database:
            if state is not None:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (state,))
            new = self._database.execute(_INSERT, row).rowcount
            decided = 0
            if not new and activated is not None:
                update = (
                    f"UPDATE kept SET activated = ?, number = coalesce(?, number) WHERE event = ? AND {_ARE_UNDECIDED}"
                )
                decided = self._database.execute(update, (activated, number, event)).rowcount
        self._counts[_UNDECIDED if activated is None else _WAITING] += new + decided
        self._counts[_UNDECIDED] -= decided
        # Of its own events some may be decided of or not kept, so there may be a few more than `most` besides.
        over = self._counts[_UNDECIDED] - self._most - self._owned
        if over > 0:  # some together, since each look passes over all of its own
            self._crowd_out(_NOT_OWN, over + self._most // 100)
        self.crowded_out += self._crowd_out(_WAIT, self._counts[_WAITING] - self._most)

    def _moment(self, event: bytes) -> int | None:
        """Return the time of an event by its name, and note the newest."""
        read = Names.read(event)
        if read is None or self._expiry is None:
            return None
        newest = min(read[1], int(self._clock() * 1e6))
        self._newest = newest if self._newest is None else max(self._newest, newest)
        return read[1]

    def renew(self, event: bytes, x: NDArray[np.float32]) -> bool:
        """Make ``x`` (d_m,) an event's input, unless it is of its own or was asked for; whether it did.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        row = (np.ascontiguousarray(x, "<f4").tobytes(), event)
        with naming(self.path), self._database:
            query = f"UPDATE kept SET x = ? WHERE event = ? AND NOT asked AND {_NOT_OWN}"
            return self._database.execute(query, row).rowcount > 0

    def _crowd_out(self, which: str, over: int) -> int:
        """Let go of the oldest, so many; how many that were."""
        if over <= 0:
            return 0
        with naming(self.path):
            gone = [event for (event,) in self._database.execute(_OLDEST.format(which), (over,)).fetchall()]
        self.drop(gone)
        return len(gone)

    def recent(self, n: int) -> list[bytes]:
        """Return the last ``n`` of the events that have activated this client and wait for their labels, by their
        numbers.

        Raises:
            CheckpointError: where the file is damaged.
        """
        query = f"SELECT event FROM kept WHERE {_WAIT} AND activated = 1 ORDER BY number DESC LIMIT ?"
        with naming(self.path):
            return [event for (event,) in self._database.execute(query, (n,)).fetchall()][::-1]

    def was_asked(self, event: bytes) -> None:
        """Somebody has asked for an event that is kept, whether or not that is decided.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute(_ASKED, (event,))

    def asked(self, n: int) -> list[bytes]:
        """Return the last ``n`` of the events that somebody asked for, or that were of its own, the first one first.

        Raises:
            CheckpointError: where the file is damaged.
        """
        query = f"SELECT event FROM kept WHERE asked OR NOT ({_ARE_UNDECIDED}) ORDER BY place DESC LIMIT ?"
        with naming(self.path):
            return [event for (event,) in self._database.execute(query, (n,)).fetchall()][::-1]

    def own(self) -> dict[bytes, Place | None]:
        """Return the events that have activated this client and are not known to be safe, in their order, and the
        places as `add_own` was told.

        Raises:
            CheckpointError: where the file is damaged.
        """
        with naming(self.path):
            rows = self._database.execute("SELECT event, read_at FROM own ORDER BY place").fetchall()
        with self._whole("from where its own events come"):
            return {event: _place_of(read_at) for event, read_at in rows}

    def add_own(
        self,
        event: bytes,
        place: Place | None = None,
        entity: str = "",
        state: list[Any] | None = None,
        entities: int = 1,
    ) -> None:
        """An event activates this client: so it is after this process was killed, too.

        Args:
            event: its name.
            place: of the reading that did, where its source has places; of an event that is there already it stays.
            entity: of the reading.
            state: what the stimulus now holds of it, kept with the event or not at all; None is as before.
            entities: of how many a state is kept, which are those that it was given of last.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            row = (event, _text_of(place))
            new = self._database.execute("INSERT OR IGNORE INTO own (event, read_at) VALUES (?, ?)", row)
            change = 0 if state is None else self._tell(entity, Told(place, state), entities)
        self._owned += new.rowcount
        self._entities += change

    def _tell(self, entity: str, told: Told, entities: int) -> int:
        """Keep what was told of an entity last; how many more entities there are then."""
        gone = self._database.execute("DELETE FROM told WHERE entity = ?", (entity,)).rowcount
        row = (entity, _text_of(told.place), json.dumps(told.state))
        self._database.execute("INSERT INTO told (entity, read_at, state) VALUES (?, ?, ?)", row)
        over = self._entities + 1 - gone - entities
        if over > 0:
            query = "DELETE FROM told WHERE place IN (SELECT place FROM told ORDER BY place LIMIT ?)"
            gone += self._database.execute(query, (over,)).rowcount
        return 1 - gone

    def told(self) -> dict[str, Told]:
        """What `add_own` was told of entities, the one that it was told of last at the end.

        Raises:
            CheckpointError: where the file is damaged.
        """
        with naming(self.path):
            rows = self._database.execute("SELECT entity, read_at, state FROM told ORDER BY place").fetchall()
        with self._whole("what was told of an entity"):
            return {entity: Told(_place_of(read_at), json.loads(state)) for entity, read_at, state in rows}

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """Return an error that names what is damaged, where it cannot be read."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{self.path}: {what} is damaged: put back a copy") from error

    def drop_own(self, events: Iterable[bytes]) -> None:
        """Of these nothing can be lost any more, and somebody knows of them; others do not matter.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = [(event,) for event in events]
            self._database.executemany(_ASKED, rows)
            gone = self._database.executemany("DELETE FROM own WHERE event = ?", rows)
        self._owned -= max(gone.rowcount, 0)

    def learnt(self, rounds: Sequence[tuple[int, bytes, bool]], gone: Iterable[bytes]) -> None:
        """Rounds of events were played: their inputs wait for no label, but may be asked for again for a while.

        Args:
            rounds: their numbers, their events, and whether they have activated this client.
            gone: events to let go of together with that.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for t, event, stepped in rounds:
                was = self._which(event)
                if was is not None:
                    self._database.execute(
                        "UPDATE kept SET learnt = ?, stepped = ? WHERE event = ?", (t, stepped, event)
                    )
                    self._counts[was] -= 1
                    self._counts[_LEARNT] += 1
            self._drop(gone)

    def were_learnt(self) -> list[tuple[int, bytes, bool]]:
        """What `learnt` was told of the events that are kept, in the order of their rounds.

        Raises:
            CheckpointError: where the file is damaged.
        """
        query = "SELECT learnt, event, stepped FROM kept WHERE learnt IS NOT NULL ORDER BY learnt"
        with naming(self.path):
            return [(t, event, bool(stepped)) for t, event, stepped in self._database.execute(query).fetchall()]

    def drop(self, events: Iterable[bytes]) -> None:
        """Let go of events, together; those that are not kept do not matter.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        with naming(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._drop(events)

    def _drop(self, events: Iterable[bytes]) -> None:
        for event in events:
            was = self._which(event)
            if was is not None:
                self._database.execute("DELETE FROM kept WHERE event = ?", (event,))
                self._counts[was] -= 1

    def _which(self, event: bytes) -> int | None:
        """Return whether it is undecided, waits for its label or is learnt; None where it is not kept."""
        found = self._database.execute(f"SELECT {_WHICH} FROM kept WHERE event = ?", (event,)).fetchone()
        return None if found is None else found[0]

    def expire(self) -> int:
        """Let go of the inputs of events that are older than the newest by more than ``expiry``; return how many.

        Of its own events among them nothing is awaited any more after a restart.

        Raises:
            CheckpointError: where the file is damaged.
            OutputError: where it cannot be written.
        """
        if self._expiry is None or self._newest is None:
            return 0
        bound = max(EARLIEST, self._newest - self._expiry)
        with naming(self.path):
            rows = self._database.execute("SELECT event FROM kept WHERE moment < ?", (bound,)).fetchall()
        gone = [event for (event,) in rows]
        if gone:
            self.drop(gone)
            self.drop_own(gone)
        return len(gone)

    def __len__(self) -> int:
        return self._counts.total()

    def close(self) -> None:
        """Close the file; what is in it is safe without, too."""
        self._database.close()


def _text_of(place: Place | None) -> str | None:
    return None if place is None else json.dumps(place)


def _place_of(text: str | None) -> Place | None:
    return None if text is None else Place(*json.loads(text))
