"""The interface of table files, and how their errors name places."""

from __future__ import annotations

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from anabranch.errors import ConfigError, DataError, counted, kind_of, nearest
from anabranch.tables.form import TableForm
from anabranch.tables.values import entity_text, is_missing, is_number

_SHOWN = 40
_NAMELESS = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")
"""The names of columns that pandas and R write of row numbers, unless these have a name."""


class Reader(ABC):
    """A table file. It keeps nothing open between calls.

    Rows are counted from 1. A heading and empty lines do not count. A column without a name has the name ``""``.
    """

    def __init__(self, path: Path, form: TableForm, *, shown: bool) -> None:
        self.path = path
        self.form = form
        self.names: list[str] = []
        """The columns' names, in the file's order."""
        self.index: frozenset[int] = frozenset()
        """The columns that are an index of pandas, as a Parquet file itself says."""
        self.rows: int | None = None
        """How many rows there are, once that is known."""
        self.shown = shown
        """Whether errors may show what is in a cell. A party's errors go to its log and never do."""

    @abstractmethod
    def _pieces(self, columns: Sequence[int]) -> Iterator[list[Any]]:
        """Yield the chosen columns as Arrow arrays, some rows at a time."""

    def cells(self, columns: Sequence[int]) -> Iterator[list[Any]]:
        """Yield the chosen columns as Arrow arrays, some rows at a time; those of a CSV file are texts.

        Raises:
            DataError: the file cannot be read; the rows before a wrong one were given.
        """
        done = 0
        with naming(self.path):
            for piece in self._pieces(columns):
                done += len(piece[0])
                if len(piece[0]):
                    yield piece
        self.rows = done

    def whole(self, columns: Sequence[int]) -> list[Any]:
        """Return the chosen columns as Arrow arrays, whole."""
        pieces = list(self.cells(columns))
        if not pieces:
            return [pa.array([], pa.string()) for _ in columns]
        return [pa.chunked_array(parts).combine_chunks() for parts in zip(*pieces, strict=True)]

    def ids(self, column: int) -> list[str]:
        """Return a column of ids as texts, whole; `anabranch.tables.values.entity_text` says how an id is written.

        Raises:
            DataError: a row has none.
        """
        (cells,) = self.whole([column])
        return self.ids_of(column, cells)

    def ids_of(self, column: int, cells: Any) -> list[str]:
        """Return the cells of a column of ids as texts.

        Raises:
            DataError: a row has none.
        """
        found: list[str] = []
        for cell in cells.to_pylist():
            try:
                if is_missing(cell):
                    raise DataError("the id is empty")
                if is_missing(cell, self.form.missing_values):
                    raise DataError(
                        f"the id, {self.quoted(cell)}, is one of missing_values: give missing_values without it if it "
                        "is an id"
                    )
                found.append(entity_text(cell))
            except DataError as error:
                raise DataError(f"{self.where(len(found) + 1, column)}: {error}") from None
        return found

    # -- names and places ---------------------------------------------------------------------------------------

    def where(self, row: int, column: int) -> str:
        """Return how messages name a cell."""
        name = self.names[column]
        return f"{self.path}: row {row}, column " + (f"'{name}'" if name else f"{column + 1}, which has no name")

    def quoted(self, cell: Any) -> str:
        """Return a cell for a message, shortened, or its type if errors may not show it."""
        if not self.shown:
            return kind_of(cell)
        text = str(cell).strip()
        text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        text = text if text.isprintable() else repr(text)[1:-1]
        return f"'{text}'" if isinstance(cell, str) and not is_number(cell) else text

    def find(self, name: str, *others: str) -> int:
        """Return the place of the column of this name.

        Args:
            name: of the column.
            others: the names that are looked for with it. If errors may not show what is in the file, they list its
                columns only if one of all these is there: else the first line may be a row.

        Raises:
            ConfigError: there is none, or more than one.
        """
        found = [i for i, known in enumerate(self.names) if known == name and name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"{self.path} has {len(found)} columns named '{name}', so it is not clear which is meant: rename one"
            )
        listed = [each for each in self.names if each]
        if self.shown or any(each in listed for each in others):
            raise ConfigError(
                f"{self.path} has no column '{name}'.{nearest(name, listed)} Its columns: {', '.join(listed)}"
            )
        raise ConfigError(
            f"{self.path} has no column '{name}' among its {counted(len(self.names), 'column')}: is its first line a "
            "heading, and are its cells divided by the separator?"
        )

    def counted(self) -> list[int]:
        """Return the columns that count if none is named: all but an index of pandas and those to ignore.

        Raises:
            ConfigError: a column to ignore is not there.
        """
        for name in self.form.ignore:
            if name and name not in self.names:
                self.find(name, *self.form.ignore)
        return [i for i, name in enumerate(self.names) if name not in self.form.ignore and i not in self.index]

    def check_named(self, columns: Sequence[int]) -> None:
        """Check that columns that were taken by their place are no row numbers, which have no name.

        Raises:
            ConfigError: one has none.
        """
        for i in columns:
            if _NAMELESS.fullmatch(name := self.names[i]):
                raise ConfigError(
                    f"{self.path}: column {i + 1} is named '{name}', as row numbers are: leave it out by ignore = "
                    f"['{name}'], or name the label's column and the clients' columns"
                )

    def find_all(self, names: Sequence[str]) -> list[int]:
        """Return the places of the columns of these names; see `find`."""
        return [self.find(name, *names) for name in names]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what Arrow, gzip and the system raise into a DataError that names ``path``."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken or truncated gzip file ({error})") from error
    except (pa.ArrowException, OSError) as error:
        # Arrow reports a broken gzip stream as an OSError without a number.
        reason = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read ({reason})") from error
