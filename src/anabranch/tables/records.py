"""Reads the rows of a CSV file as UTF-8, a piece at a time.

A quoted cell may have line breaks in it, and a row may be long. So a piece ends where a row ends by the grammar of
CSV, and not after a number of bytes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from anabranch.tables.content import Content
from anabranch.tables.form import AUTO, TableForm

PIECE = 1 << 18
"""Bytes that are read at a time."""
_QUOTE = ord('"')
_LONGEST = 1 << 28
"""Bytes that a row may have."""


class RowError(Exception):
    """The row after those that were given cannot be read, and why."""


@lru_cache(maxsize=8)
def _rows(separator: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of all whole rows at the beginning of some bytes, and of the first row.

    A cell that begins with a quotation mark is quoted. Another one ends at a separator or a line break, and a quotation
    mark in it is a character like any other.
    """
    s = re.escape(separator).encode()
    cell = rb'(?:"(?:[^"]++|"")*+"[^%s\r\n]*+|(?:[^"%s\r\n][^%s\r\n]*+)?)' % (s, s, s)
    row = rb"%s(?:%s%s)*+(?:\r\n|\r|\n)" % (cell, s, cell)
    return re.compile(rb"(?:%s)*+" % row), re.compile(row)


def first_row(piece: bytes, separator: str) -> bytes:
    """Return the first row of a piece with its end, or nothing if there is none."""
    found = _rows(separator)[1].match(piece)
    return b"" if found is None else found[0]


def whole_rows(piece: bytes, separator: str) -> int:
    """Return how many bytes the whole rows at the beginning of a piece have."""
    if b'"' not in piece:
        return max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
    text = np.frombuffer(piece, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    # If each odd quotation mark begins a cell, or follows one and is the second of two that stand for one, then what is
    # after it is quoted, and what is after each even one is not.
    begins = np.zeros(256, np.bool_)
    begins[[ord(separator), _QUOTE, *b"\r\n"]] = True
    if begins[text[quotes[0 if quotes[0] else 2 :: 2] - 1]].all():
        before = len(quotes) - len(quotes) % 2  # quotation marks before the last stretch that is not quoted
        while before >= 0:
            start = int(quotes[before - 1]) + 1 if before else 0
            end = int(quotes[before]) if before < len(quotes) else len(piece)
            if cut := max(piece.rfind(b"\n", start, end), piece.rfind(b"\r", start, end)) + 1:
                return cut
            before -= 2
        return 0
    found = _rows(separator)[0].match(piece)
    return 0 if found is None else found.end()


def pieces(content: Content, form: TableForm) -> Iterator[bytes]:
    """Yield the rows of a CSV file as UTF-8, some at a time. The last one ends with a line break too.

    Raises:
        RowError: the row after those that were given cannot be decoded or has no end.
    """
    rest, due = b"", 0
    for text, wrong in _decoded(content, form):
        rest += text
        if len(rest) < due and not wrong:  # a long row is looked through each time that it has doubled
            continue
        cut = whole_rows(rest, form.separator)
        due = 0 if cut else 2 * len(rest)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
        if wrong:
            raise RowError(wrong)
        if len(rest) > _LONGEST:
            raise RowError(f"has more than {_LONGEST >> 20} MiB: is a quotation mark not closed?")
    if rest:
        rest += b"\n"
        if whole_rows(rest, form.separator) < len(rest):
            raise RowError("ends with the file inside a quoted cell: a quotation mark is not closed")
        yield rest


def _decoded(content: Content, form: TableForm) -> Iterator[tuple[bytes, str]]:
    """Yield the text as UTF-8, some at a time, and what is wrong with the bytes after it."""
    encoding, skip = content.mark
    declared = form.encoding != AUTO and not skip
    if declared:
        encoding = form.encoding
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    size = PIECE
    with content.open() as stream:
        stream.read(skip)
        while raw := stream.read(size):
            try:
                # Bytes of ASCII alone are UTF-8 as they are, if none of a character before them are left over.
                plain = encoding == "utf-8" and raw.isascii() and not decoder.getstate()[0]
                yield raw if plain else decoder.decode(raw).encode(), ""
            except UnicodeDecodeError as error:
                yield error.object[: error.start].decode(encoding, "ignore").encode(), _undecodable(encoding, declared)
            except UnicodeEncodeError:
                yield b"", _undecodable(encoding, declared)
        try:
            decoder.decode(b"", True)
        except UnicodeDecodeError:
            yield b"", _undecodable(encoding, declared)


def _undecodable(encoding: str, declared: bool) -> str:
    said = f"is not text in {encoding.upper()}"
    if declared:
        return f"{said}, which encoding says: give the encoding that the file was written in"
    return f"{said}: if it was written in another encoding, say which, such as encoding = 'latin-1' or 'cp1252'"
