"""Comma-separated values, plain or compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from anabranch.errors import ConfigError, DataError
from anabranch.tables.content import Content
from anabranch.tables.form import AUTO, TableForm
from anabranch.tables.heading import named_by
from anabranch.tables.reader import Reader
from anabranch.tables.records import RowError, first_row, pieces

_LOOK = 20
"""Rows after the first line that say whether it is a heading."""


class CsvReader(Reader):
    """Comma-separated values, plain or compressed."""

    def __init__(self, content: Content, form: TableForm, *, shown: bool) -> None:
        super().__init__(content.path, form, shown=shown)
        self._content = content
        if form.encoding == AUTO and not content.mark[1] and b"\0" in content.first:
            raise DataError(
                f"{self.path}: cannot be read (it has bytes of 0, so it is no text in UTF-8: if it is text in UTF-16, "
                "give encoding = 'utf-16-le' or 'utf-16-be')"
            )
        first, *rows = self._beginning()
        self._named = self._is_named(first, rows) if form.header == AUTO else bool(form.header)
        self.names = [cell.strip() for cell in first] if self._named else [str(i + 1) for i in range(len(first))]

    def _beginning(self) -> list[list[str]]:
        """Return the cells of the first line, and of the rows after it that have as many."""
        separator = self.form.separator
        try:
            piece = next(filter(None, (each.lstrip(b"\r\n") for each in pieces(self._content, self.form))), b"")
        except RowError as error:
            raise DataError(f"{self.path}: the first line {error}") from None
        lines = first = first_row(piece, separator)
        for _ in range(_LOOK):
            lines += first_row(piece[len(lines) :], separator)
        if not lines:
            raise DataError(f"{self.path}: the file is empty")
        names = [f"f{i}" for i in range(first.count(separator.encode()) + 1)]  # more than there are, if some are quoted
        found = self._parsed(lines, lambda row: "skip", None, names)
        return [[*map(str, row)] for row in zip(*found.columns, strict=True)]

    def _is_named(self, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        named = named_by(first, rows)
        if named is None:
            raise ConfigError(
                f"{self.path}: header is 'auto', but the first line could be a heading and could be a row: give "
                "header = true if it names the columns, or header = false if it is a row"
            )
        return named

    def _parsed(self, piece: bytes, note: Callable[[Any], str], names: list[str] | None, wanted: list[str]) -> Any:
        return pa.csv.read_csv(
            pa.BufferReader(piece),
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=len(piece) + 1,
                column_names=names,
                autogenerate_column_names=names is None,
            ),
            pa.csv.ParseOptions(delimiter=self.form.separator, newlines_in_values=True, invalid_row_handler=note),
            pa.csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=None if names is None else list(dict.fromkeys(wanted)),
            ),
        )

    def _pieces(self, columns: Sequence[int]) -> Iterator[list[Any]]:
        # Columns go by their position here: names may occur twice. They are read as text, since Arrow's own conversion
        # does not say which row it failed at.
        names = [str(i) for i in range(len(self.names))]
        wanted = [names[i] for i in columns]
        ragged: list[Any] = []

        def note(row: Any) -> str:
            ragged.append(row)
            return "skip"

        done, heading = 0, int(self._named)
        try:
            for piece in pieces(self._content, self.form):
                table = self._parsed(piece, note, names, wanted)
                rows = table.slice(heading, ragged[0].number - 1 - heading if ragged else None)
                heading = 0 if len(table) else heading
                done += len(rows)
                yield [rows.column(name).combine_chunks() for name in wanted]
                if ragged:
                    count, expected = ragged[0].actual_columns, ragged[0].expected_columns
                    raise RowError(f"has {count} cells, expected {expected}")
        except RowError as error:
            raise DataError(f"{self.path}: row {done + 1} {error}") from None
