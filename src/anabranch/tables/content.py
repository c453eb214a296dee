"""Tells CSV and Parquet, plain and compressed, by a file's first bytes and never by its name."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from anabranch.errors import DataError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_PARQUET = b"PAR1"
_OTHERS = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"ARROW1": "an Arrow or Feather file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format 3": "a SQLite database",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"%PDF": "a PDF document",
    b"<!DOCTYPE": "a web page",
    b"<!doctype": "a web page",
    b"<html": "a web page",
}
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before that of UTF-16, which is its beginning
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_FIRST = 4096


class Content(NamedTuple):
    """The kind of a file."""

    path: Path
    compression: str | None
    parquet: bool
    first: bytes
    """Its first bytes, decompressed."""

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file's bytes, decompressed, as a file of Arrow's."""
        with pa.OSFile(str(self.path)) as file:
            if self.compression is None:
                yield file
            else:
                with pa.CompressedInputStream(file, self.compression) as stream:
                    yield stream

    @property
    def mark(self) -> tuple[str, int]:
        """The encoding that a byte order mark says, and its bytes; ``"utf-8"`` and 0 without one."""
        for mark, encoding in _MARKS.items():
            if self.first.startswith(mark):
                return encoding, len(mark)
        return "utf-8", 0


def content_of(path: Path) -> Content:
    """Look at the beginning of a file.

    Raises:
        DataError: it is no file, is empty, or is neither a table nor a compressed one.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():
        raise DataError(f"{path}: is not a file")
    with path.open("rb") as file:
        first = file.read(_FIRST)
    if not first:
        raise DataError(f"{path}: the file is empty")
    compression = next((name for magic, name in _COMPRESSED.items() if first.startswith(magic)), None)
    content = Content(path, compression, False, first)
    if compression is not None:
        with content.open() as stream:
            content = content._replace(first=stream.read(_FIRST))
        if not content.first:
            raise DataError(f"{path}: the file is empty")
    content = content._replace(parquet=content.first.startswith(_PARQUET))
    name = path.name.lower().removesuffix(".gz")
    if not content.parquet and name.endswith((".parquet", ".pq")):
        raise DataError(f"{path}: cannot be read (its name says Parquet, but its content does not: correct the name)")
    for magic, what in _OTHERS.items():
        if content.first.startswith(magic):
            raise DataError(f"{path}: cannot be read (it is {what}, not CSV or Parquet: save it as one of these)")
    return content
