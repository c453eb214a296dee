"""The server's round log: records with consecutive numbers, appended to files and never changed.

A segment, ``rounds-000000000001.log``, is named by its first record's number. Its head is the form's name, four random
bytes (its mark), that number and a CRC-32; a record is the mark, the payload's length, the number, a CRC-32 over all
of it, and the payload. The mark finds the next record behind a damaged one. It is random, since a payload comes from
other organisations, and nobody should be able to send what looks like a record.

A record goes out in one write. So what was appended is there after ``kill -9``, which the page cache survives; after
a power cut, what was synced is. A segment begins once the disk has the one before it, so only the last can end early.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

from anabranch.errors import CheckpointError, OutputError
from anabranch.storage.disk import PRIVATE, make_folder, sync, write_all
from anabranch.storage.files import writing

NAME = re.compile(r"rounds-(\d{12,20})\.log")
FORM = b"ANBRLOG1"
HEAD = struct.Struct("<8s4sQ")
RECORD = struct.Struct("<4sIQ")
CRC = struct.Struct("<I")
MARK, HEAD_BYTES, RECORD_BYTES = 4, HEAD.size + CRC.size, RECORD.size + CRC.size
MAX_NUMBER, MAX_PAYLOAD = 2**63 - 1, 2**30


class RoundLog:
    """An append-only log in a folder, which must not be in use by another process (`locked` sees to that).

    Opening reads all of it. A record at the end that was written in part is cut off; `cut` says how many bytes.

    Args:
        folder: made where it is not there. It may hold other files.
        segment_bytes: a new file begins before one would grow larger; only whole files are trimmed.
        durable: a record is on the disk when its append returns, and so survives a power cut too. Else `sync` sees to
            that when it is called.

    Raises:
        CheckpointError: where it is damaged, other than at its end; file and offset are named.
        OutputError: where the folder or its files cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, RoundLog(Path(folder)) as log:
    ...     log.append(7, b"seven")
    ...     log.append_many(8, [b"eight", b"nine"])
    ...     log.last, list(log.records(8))
    (9, [(8, b'eight'), (9, b'nine')])
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 8 * 2**20, durable: bool = False) -> None:
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes is {segment_bytes}, but must be 1 or more")
        self.folder = folder
        self.cut = 0
        """Bytes of an incomplete record that opening found at the end, and cut off."""
        self._segment_bytes, self._durable = segment_bytes, durable
        self._sizes: dict[int, int] = {}  # of each segment, by its first record's number, in order
        self._last: int | None = None
        self._next: int | None = None  # None: any number may come
        self._unsynced = self._names_unsynced = False  # the last segment; the folder
        self._descriptor: int | None = None  # of the last segment
        self._mark = b""
        self._torn = False  # a write failed, and what it left is still at the end of the last segment,
        self._stray: Path | None = None  # or is this file
        self._closed = False
        with writing("round log", folder):
            make_folder(folder)
        self._open()

    @property
    def first(self) -> int | None:
        """The number of the oldest record that is held, or None where there is none."""
        return next(iter(self._sizes), None)

    @property
    def last(self) -> int | None:
        """The number of the newest record that is held, or None where there is none."""
        return self._last

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(self._sizes.values())

    def append(self, number: int, payload: bytes) -> None:
        """Append a record.

        Args:
            number: the last one and 1; in a log that is empty, any.
            payload: at most 2^30 bytes.

        Raises:
            ValueError: where it is another record's turn, or the log is closed.
            OutputError: where it cannot be written; the log is as it was before, and can be used further.
        """
        self._check(number, 1)
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"record {number} has {len(payload):,} bytes, and may have {MAX_PAYLOAD:,}")
        if self._descriptor is None or self._sizes[self._newest] + len(payload) + RECORD_BYTES > self._segment_bytes:
            self._begin(number)
        self._write(_record(self._mark, number, payload), number)

    def append_many(self, first: int, payloads: Sequence[bytes]) -> None:
        """Append records in one write, the first of them numbered ``first``: all of them, or none where it fails.

        Raises:
            ValueError, OutputError: as for `append`.
        """
        if not payloads:
            return
        self._check(first, len(payloads))
        if (longest := max(map(len, payloads))) > MAX_PAYLOAD:
            raise ValueError(f"a record has {longest:,} bytes, and may have {MAX_PAYLOAD:,}")
        total = sum(map(len, payloads)) + len(payloads) * RECORD_BYTES
        if self._descriptor is None or self._sizes[self._newest] + total > self._segment_bytes:
            self._begin(first)
        data = b"".join(_record(self._mark, first + place, payload) for place, payload in enumerate(payloads))
        self._write(data, first + len(payloads) - 1)

    def records(self, start: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Return numbers and payloads from the record ``start`` on, or from the oldest.

        It ends with what is there when it comes to the end. A log must not be trimmed past a place where somebody
        still reads.

        Raises:
            CheckpointError: where older records than ``start`` were trimmed away along with it, or what is on the disk
                is not what was written.
        """
        if start is not None and self.first is not None and start < self.first:
            raise CheckpointError(
                f"{self.folder}: the round log begins with record {self.first:,}, and record {start:,} is asked for: "
                "what lies before was trimmed away, or files are missing"
            )
        return self._records(0 if start is None else start)

    def trim(self, before: int) -> None:
        """Remove the files whose records are all older than ``before``.

        Where nothing is left, the next record is number ``before``.

        Raises:
            OutputError: where a file cannot be removed.
        """
        self._check_open()
        with writing("round log", self.folder):
            for first, following in self._segments():
                last = self._last if following is None else following - 1
                if last is None or last >= before:
                    break
                if following is None:
                    self._let_go()
                    self._last, self._next = None, before
                self._path(first).unlink(missing_ok=True)
                del self._sizes[first]

    def sync(self) -> None:
        """Return once the disk has every record.

        Raises:
            OutputError: where it cannot be written.
        """
        self._check_open()
        with writing("round log", self.folder):
            self._sync()

    def close(self) -> None:
        """Let go of the files. It does not sync; a second time, it does nothing."""
        self._let_go()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _newest(self) -> int:
        return next(reversed(self._sizes))

    def _segments(self) -> list[tuple[int, int | None]]:
        """Return each segment's first number, and the one of the segment that follows."""
        firsts = list(self._sizes)
        return [*itertools.pairwise(firsts), *((first, None) for first in firsts[-1:])]

    def _path(self, first: int) -> Path:
        return self.folder / f"rounds-{first:012d}.log"

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the round log in {self.folder} is closed")

    def _check(self, number: int, count: int) -> None:
        self._check_open()
        if self._next is not None and number != self._next:
            raise ValueError(f"record {number} is appended to {self.folder}, where it is the turn of {self._next}")
        if not 0 <= number <= MAX_NUMBER - count:
            raise ValueError(f"a record's number is {number}, but must be a whole number of 0 or more, below 2^63")

    def _sync(self) -> None:
        if self._unsynced and self._descriptor is not None:
            os.fsync(self._descriptor)
        if self._names_unsynced:
            sync(self.folder)
        self._unsynced = self._names_unsynced = False

    def _begin(self, first: int) -> None:
        """Begin a segment, after the one before is on the disk."""
        path, mark = self._path(first), os.urandom(MARK)
        head = HEAD.pack(FORM, mark, first)
        head += CRC.pack(crc32(head))
        with writing("round log", self.folder):
            self._heal()
            self._sync()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
            try:
                write_all(descriptor, head)
                if self._durable:
                    sync(self.folder)
            except BaseException:
                os.close(descriptor)
                self._stray = path
                with suppress(OSError):
                    self._heal()
                raise
        self._let_go()
        self._descriptor, self._mark = descriptor, mark
        self._sizes[first] = len(head)
        self._names_unsynced = not self._durable

    def _write(self, data: bytes, last: int) -> None:
        assert self._descriptor is not None
        first = self._newest
        try:
            self._heal()
            write_all(self._descriptor, data)
            if self._durable:
                os.fsync(self._descriptor)
        except BaseException as error:
            self._undo()
            if isinstance(error, OSError):
                raise OutputError(
                    f"cannot write the round log into {self.folder}: {error.strerror or error}"
                ) from error
            raise
        self._sizes[first] += len(data)
        self._last, self._next = last, last + 1
        self._unsynced = not self._durable

    def _undo(self) -> None:
        """Cut off what a failed write left. A segment that began with it goes, so that its number is free again."""
        first = self._newest
        if self._sizes[first] == HEAD_BYTES:
            del self._sizes[first]
            self._let_go()
            self._stray = self._path(first)
        else:
            self._torn = True
        with suppress(OSError):  # then the next append tries again, or else the next opening
            self._heal()

    def _heal(self) -> None:
        if self._stray is not None:
            self._stray.unlink(missing_ok=True)
            self._stray = None
        if self._torn and self._descriptor is not None:
            os.ftruncate(self._descriptor, self._sizes[self._newest])
        self._torn = False

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        """Read what is there, cut off what was written in part, and open the last segment."""
        with writing("round log", self.folder):
            names = [path.name for path in self.folder.iterdir()]
        firsts = sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))
        for first in firsts:
            path, is_last = self._path(first), first == firsts[-1]
            data = _content(path)
            if self._next is not None and first != self._next:
                raise CheckpointError(
                    f"{path}: begins with record {first:,}, and the file before ends with record {self._last:,}: "
                    "a file of the round log is missing or was renamed. Put it back, or name another folder"
                )
            end, number = _scan(path, data, first, is_last)
            if end < len(data):
                self.cut = len(data) - end
            if number == first:  # not one record, so it is the last: killed when it had just begun
                with writing("round log", self.folder):
                    path.unlink()
                    sync(self.folder)  # its number goes into the segment before now
                break
            if end < len(data):
                with writing("round log", self.folder):
                    os.truncate(path, end)
            self._sizes[first], self._last, self._next = end, number - 1, number
        self._unsynced = self._names_unsynced = bool(self._sizes)  # who wrote it may have been killed before it synced
        if self._sizes:
            with writing("round log", self.folder):
                self._resume()

    def _resume(self) -> None:
        path = self._path(self._newest)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._mark = os.pread(self._descriptor, HEAD_BYTES, 0)[len(FORM) :][:MARK]

    def _records(self, start: int) -> Iterator[tuple[int, bytes]]:
        for number, following in self._segments():
            if following is not None and following <= start:
                continue
            path, size = self._path(number), self._sizes[number]
            data = _content(path)[:size]
            if len(data) < size:
                raise CheckpointError(f"{path}: has {len(data):,} bytes, and {size:,} were written")
            mark, offset = data[len(FORM) :][:MARK], HEAD_BYTES
            while offset < len(data):
                end = _end(data, mark, offset, number)
                if end is None:
                    raise _damage(path, offset, number)
                if number >= start:
                    yield number, data[offset + RECORD_BYTES : end]
                offset, number = end, number + 1


def _record(mark: bytes, number: int, payload: bytes) -> bytes:
    head = RECORD.pack(mark, len(payload), number)
    return b"".join((head, CRC.pack(crc32(payload, crc32(head))), payload))


def _end(data: bytes, mark: bytes, offset: int, number: int | None = None) -> int | None:
    """Where the record that begins at the offset ends, or None where there is no whole one of this number."""
    body = offset + RECORD_BYTES
    if body > len(data):
        return None
    found, length, its = RECORD.unpack_from(data, offset)
    end = body + length
    if found != mark or end > len(data) or (number is not None and its != number):
        return None
    view = memoryview(data)
    crc = crc32(view[body:end], crc32(view[offset : offset + RECORD.size]))
    return end if crc == CRC.unpack_from(data, offset + RECORD.size)[0] else None


def _scan(path: Path, data: bytes, first: int, is_last: bool) -> tuple[int, int]:
    """Where the whole records of a segment end, and the number that would come next.

    Raises:
        CheckpointError: where whole records follow a damaged one, in this segment or in another.
    """
    if len(data) < HEAD_BYTES or not data.strip(b"\0"):  # a disk that lost its power may leave zeros
        if is_last:
            return 0, first
        raise _damage(path, 0, first)
    head, (crc,) = data[: HEAD.size], CRC.unpack_from(data, HEAD.size)
    form, mark, named = HEAD.unpack(head)
    if form == FORM and crc32(head) == crc and named != first:
        raise CheckpointError(f"{path}: was renamed: it begins with record {named:,}. Give it its name back")
    if form != FORM or crc32(head) != crc:
        raise _damage(path, 0, first)
    offset, number = HEAD_BYTES, first
    while (end := _end(data, mark, offset, number)) is not None:
        offset, number = end, number + 1
    if (offset < len(data) or number == first) and not is_last:
        raise _damage(path, offset, number)
    place = data.find(mark, offset + 1)
    while place >= 0:
        if _end(data, mark, place) is not None:
            raise _damage(path, offset, number)
        place = data.find(mark, place + 1)
    return offset, number


def _damage(path: Path, offset: int, number: int) -> CheckpointError:
    return CheckpointError(
        f"{path}: is damaged at byte {offset:,}, where record {number:,} should be. "
        "Put back a copy of the folder, or name another one to begin anew"
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
