"""What a party of a federation has in a file: events with their labels, or events with one client's features."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError
from anabranch.protocol.codec import LONGEST_EVENT
from anabranch.sources.features import Features
from anabranch.tables import Column, Reader, TableForm, open_table
from anabranch.tables.columns import Classes
from anabranch.tables.content import content_of
from anabranch.tables.reader import naming
from anabranch.tables.rows import read_rows
from anabranch.tables.values import plain_text

LOOK_AGAIN = 1.0
"""Seconds between two looks at whether a file has grown, and from one reading of it to the next."""

_log = logging.getLogger(__name__)


def event_name(name: str | bytes) -> bytes:
    """Return an event's name on the wire: its UTF-8 without the space around it, or 16 bytes of BLAKE2b where that
    is long.

    Every party makes it of its own file, so the names in the files must be the same texts in Unicode's form NFC. A
    whole number is the same if it is written as a float. ``bytes`` of at most 32 stay as they are.

    >>> event_name(" order 17 "), event_name("17.0")
    (b'order 17', b'17')
    >>> len(event_name("0123456789" * 10))
    16
    """
    raw = name if isinstance(name, bytes) else unicodedata.normalize("NFC", plain_text(name)).encode()
    return raw if len(raw) <= LONGEST_EVENT else hashlib.blake2b(raw, digest_size=16).digest()


class TableLabels:
    """The events and labels of a file, in its order; the whole file is held.

    Args:
        path: a CSV or Parquet file with named columns.
        event: the column with the events' names.
        label: the column with the labels.
        classes: how many there are, if labels are whole numbers from 0; or which there are.
        form: how the file is written; its first line names the columns, whatever this says.
        rounds: how many events at most; None is all.
        follow: whether rows that the file gets later are events too; else the stream ends with the file.

    Raises:
        ConfigError: where there is no such column.
        DataError: where the file cannot be read, or a row of it is wrong.
    """

    def __init__(
        self,
        path: Path,
        event: str,
        label: str,
        classes: int | Classes,
        *,
        form: TableForm | None = None,
        rounds: int | None = None,
        follow: bool = False,
    ) -> None:
        self._path, self._event, self._label, self._form = path, event, label, form
        self._classes = classes if isinstance(classes, Classes) else Classes(classes)
        self._rounds, self._follow = rounds, follow
        self._next = 0
        self._stamp = _stamp(path)
        self._read(growing=follow)

    def _read(self, *, growing: bool) -> None:
        reader = _opened(self._path, self._form)
        label = reader.find(self._label, self._event)
        names, _ = _events(reader, self._event, self._label)
        labels = [piece[:, 0].astype(np.int32) for piece in read_rows(reader, [label], [self._classes])]
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
        columns: the columns that are features, in the order in which the model takes them; what was seen so far is
            that of the rows before, in the file's order.
        mean: what is subtracted from each; None is nothing.
        std: what each is then divided by.
        form: how the file is written; its first line names the columns, whatever this says.

    Raises:
        ConfigError: where there is no such column.
        DataError: where the file cannot be read, or a row of it is wrong.
    """

    def __init__(
        self,
        path: Path,
        event: str,
        columns: Sequence[Column | str],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        form: TableForm | None = None,
    ) -> None:
        self._path, self._event, self._form = path, event, form
        self._made = Features(columns, mean, std, (form or TableForm()).missing_values)
        self.schema = self._made.schema
        """Its digest."""
        self.width = self._made.width
        """How many features an event has."""
        self._stamp = _stamp(path)
        self._again = -math.inf
        """When it may be read again, by the monotonic clock: events that no file has may come fast."""
        self._read()

    def _read(self, *, growing: bool = False) -> None:
        reader = _opened(self._path, self._form)
        rules = self._made.columns
        columns = reader.find_all([self._event, *(each.name for each in rules)])[1:]
        names, rows = _events(reader, self._event)
        parts = list(read_rows(reader, columns, rules))
        if not parts:
            raise DataError(f"{self._path}: the file has no rows")
        _, features = self._made.made(self._made.begin(), np.concatenate(parts))
        if (large := self._made.too_large(features)) is not None:
            where = reader.where(large[0] + 1, reader.find(large[1].name))
            raise DataError(f"{where}: the number is larger than float32 holds")
        if growing and _unfinished(self._path):
            del rows[names.pop()]
        self._rows, self._features = rows, features.astype(np.float32)

    def __len__(self) -> int:
        return len(self._features)

    @property
    def events(self) -> list[bytes]:
        """The names of all events, in the file's order."""
        return [*self._rows]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, in order."""
        return self._made.names

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
    """Return whether the last line of a CSV file has no end yet: someone may be writing it."""
    content = content_of(path)
    if content.parquet or content.compression is not None:
        return False
    with naming(path), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return not file.read().rstrip(b"\0").endswith((b"\n", b"\r"))  # in UTF-16 and UTF-32 there are bytes of 0


def _opened(path: Path, form: TableForm | None) -> Reader:
    """Open a party's file, whose errors go to its log."""
    return open_table(path, replace(form or TableForm(), header=True), shown=False)


def _events(reader: Reader, column: str, *others: str) -> tuple[list[bytes], dict[bytes, int]]:
    """Return the events' names, and in which row each is."""
    place = reader.find(column, *others)
    names = [event_name(text) for text in reader.ids(place)]
    rows: dict[bytes, int] = {}
    for i, name in enumerate(names):
        if rows.setdefault(name, i) != i:
            raise DataError(
                f"{reader.where(i + 1, place)}: this event is in row {rows[name] + 1} too, but each has one row"
            )
    return names, rows
