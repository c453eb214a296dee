"""What a party of a federation has in a file: events with their labels, or events with one client's features."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError
from anabranch.protocol.codec import LONGEST_EVENT
from anabranch.sources.features import schema_digest
from anabranch.streams.readers import Reader, open_table
from anabranch.streams.tables import find_column, good_labels, label_complaint

LOOK_AGAIN = 1.0
"""Seconds between two looks at whether a file has grown, and from one reading of it to the next."""

_log = logging.getLogger(__name__)


def event_name(name: str | bytes) -> bytes:
    """Return an event's name on the wire: its UTF-8 without the space around it, or 16 bytes of BLAKE2b where that
    is long.

    Every party makes it of its own file, so the names in the files must be the same texts. ``bytes`` of at most 32
    stay as they are.

    >>> event_name(" order 17 ")
    b'order 17'
    >>> len(event_name("0123456789" * 10))
    16
    """
    raw = name if isinstance(name, bytes) else name.strip().encode()
    return raw if len(raw) <= LONGEST_EVENT else hashlib.blake2b(raw, digest_size=16).digest()


class TableLabels:
    """The events and labels of a file, in its order; the whole file is held.

    Args:
        path: a CSV or Parquet file with named columns.
        event: the column with the events' names.
        label: the column with the labels, whole numbers from 0.
        classes: how many there are.
        rounds: how many events at most; None is all.
        follow: whether rows that the file gets later are events too; else the stream ends with the file.

    Raises:
        ConfigError: where there is no such column.
        DataError: where the file cannot be read, or a row of it is wrong.
    """

    def __init__(
        self, path: Path, event: str, label: str, classes: int, *, rounds: int | None = None, follow: bool = False
    ) -> None:
        self._path, self._event, self._label, self._classes = path, event, label, classes
        self._rounds, self._follow = rounds, follow
        self._next = 0
        self._stamp = _stamp(path)
        self._read(growing=follow)

    def _read(self, *, growing: bool) -> None:
        reader = open_table(self._path, True, shown=False)
        names, _ = _events(reader, self._event)
        column = find_column(reader, self._label)
        labels: list[NDArray[np.int32]] = []
        done = 0
        for piece in reader.read([column]):
            good = good_labels(piece[:, 0], self._classes)
            if good < len(piece):
                where = reader.where(done + good + 1, column)
                raise DataError(f"{where}: {label_complaint(piece[good, 0], self._classes, shown=False)}")
            labels.append(piece[:, 0].astype(np.int32))
            done += len(piece)
        if not labels and not growing:
            raise DataError(f"{self._path}: the file has no rows")
        if growing and names and _unfinished(self._path):
            names.pop()
        # The labels first: someone may be taking events meanwhile.
        self._labels = np.concatenate([np.zeros(0, np.int32), *labels])[: len(names)]
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def over(self) -> bool:
        """Whether none will come any more."""
        if self._rounds is not None and self._next >= self._rounds:
            return True
        return not self._follow and self._next >= len(self._names)

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """Up to ``n`` events with their labels that are there now, in order."""
        end = min(self._next + n, len(self._names))
        end = end if self._rounds is None else min(end, self._rounds)
        taken = [(self._names[i], int(self._labels[i])) for i in range(self._next, end)]
        self._next = max(self._next, end)
        return taken

    async def more(self) -> None:
        """Return once the file has more rows."""
        told = ""
        while self._next >= len(self._names) and not self.over:
            await asyncio.sleep(LOOK_AGAIN)
            before = self._names
            try:
                if (stamp := _stamp(self._path)) == self._stamp:
                    continue
                self._stamp = stamp
                await asyncio.to_thread(self._read, growing=True)
            except (DataError, ConfigError) as error:  # someone may be replacing it
                if str(error) != told:
                    told = str(error)
                    _log.warning("%s; going on when the file has changed again", error)
            if self._names[: len(before)] != before:
                raise DataError(f"{self._path}: rows that were there are others now, but rows may only be added")

    def label(self, event: bytes) -> int | None:
        """None: events come from the file, each of them once and in its order."""
        return None

    def go_on(self, rounds: int) -> None:
        """So many were taken before.

        Raises:
            DataError: where the file has fewer.
        """
        if rounds > len(self._names):
            raise DataError(
                f"{self._path}: has {len(self._names):,} rows, but {rounds:,} rounds were played of it: it is another "
                "file, or rows are gone"
            )
        self._next = rounds


class TableFeatures:
    """One client's features, by the name of the event; the whole file is held.

    A file that has changed is read again when an event is asked for that it did not have.

    Args:
        path: a CSV or Parquet file with named columns.
        event: the column with the events' names.
        columns: the columns that are features, in the order in which the model takes them.
        mean: what is subtracted from each; None is nothing.
        std: what each is then divided by.

    Raises:
        ConfigError: where there is no such column.
        DataError: where the file cannot be read, or a row of it is wrong.
    """

    def __init__(
        self,
        path: Path,
        event: str,
        columns: Sequence[str],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self._path, self._event, self._columns = path, event, tuple(columns)
        self._mean = None if mean is None else np.asarray(mean, np.float64)
        self._std = None if std is None else np.asarray(std, np.float64)
        self.schema = schema_digest(columns, mean, std)
        """Its digest."""
        self._stamp = _stamp(path)
        self._again = -math.inf
        """When it may be read again, by the monotonic clock: events that no file has may come fast."""
        self._read()

    def _read(self, *, growing: bool = False) -> None:
        reader = open_table(self._path, True, shown=False)
        names, rows = _events(reader, self._event)
        columns = [find_column(reader, name) for name in self._columns]
        parts = list(reader.read(columns))
        if not parts:
            raise DataError(f"{self._path}: the file has no rows")
        values = np.concatenate(parts)
        if self._mean is not None and self._std is not None:
            values = (values - self._mean) / self._std
        with np.errstate(over="ignore"):
            features = values.astype(np.float32)
        bad = ~np.isfinite(features)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise DataError(f"{reader.where(row + 1, columns[column])}: the number is larger than float32 holds")
        if growing and _unfinished(self._path):
            del rows[names.pop()]
        self._rows, self._features = rows, features

    def __len__(self) -> int:
        return len(self._features)

    def look(self, event: bytes) -> NDArray[Any] | None:
        """Return the features (d_m,) of an event; None where the file does not have it."""
        row = self._rows.get(event)
        if row is None and self._changed():
            row = self._rows.get(event)
        return None if row is None else self._features[row]

    def _changed(self) -> bool:
        """Read the file again if it has changed; one that cannot be read now, perhaps half written, is as it was."""
        if time.monotonic() < self._again:
            return False
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self._read(growing=True)
            found = True
        except (DataError, ConfigError) as error:
            _log.warning("%s; going on with what it had before", error)
            found = False
        self._again = time.monotonic() + LOOK_AGAIN
        return found


def _stamp(path: Path) -> tuple[int, int]:
    """What tells whether a file has changed."""
    try:
        about = path.stat()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return about.st_mtime_ns, about.st_size


def _unfinished(path: Path) -> bool:
    """Return whether a text file's last line has no end yet: someone may be writing it."""
    if not path.name.lower().endswith(".csv"):
        return False
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) not in (b"\n", b"\r")
    except OSError as error:  # it was there a moment ago
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _events(reader: Reader, column: str) -> tuple[list[bytes], dict[bytes, int]]:
    """Return the events' names, and in which row each is."""
    place = find_column(reader, column)
    names = [event_name(text) for text in reader.texts(place)]
    rows: dict[bytes, int] = {}
    for i, name in enumerate(names):
        if rows.setdefault(name, i) != i:
            raise DataError(
                f"{reader.where(i + 1, place)}: this event is in row {rows[name] + 1} too, but each has one row"
            )
    return names, rows
