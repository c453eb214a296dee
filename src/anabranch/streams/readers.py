"""Reads chosen columns of a CSV or Parquet file (gzipped too) as numbers, a piece at a time, and names what is wrong.

Rows are counted from 1; a header and empty lines do not count. Columns of a file without a header are named '1', '2'
and so on.
"""

from __future__ import annotations

import csv
import gzip
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError

_CSV_BYTES = 1 << 18  # of a piece; it is parsed as text first, so several times this much is held
_PARQUET_ROWS = 1024
_SNIFF = 1 << 20


def open_table(path: Path, header: Literal["auto"] | bool, *, shown: bool = True) -> Reader:
    """Return the reader for ``path``: Parquet where the name says so, else CSV. Raises DataError where it cannot be
    one.

    Where its errors may be logged, ``shown`` is false: they name the place of a wrong value, and not the value.
    """
    if header not in ("auto", True, False):
        raise ConfigError(f"header is {header!r}: must be 'auto', True or False")
    with _naming(path):
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():
            raise DataError(f"{path}: is not a file")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty")
        name = path.name.lower().removesuffix(".gz")
        reader = ParquetReader(path) if name.endswith((".parquet", ".pq")) else CsvReader(path, header)
    reader.shown = shown
    return reader


class Reader(ABC):
    """A table file. It keeps nothing open between calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        """The columns' names, in the file's order."""
        self.rows: int | None = None
        """How many rows, once that is known."""
        self.shown = True
        """Whether errors show the value that is wrong."""

    @abstractmethod
    def _pieces(self, columns: Sequence[int], *, numbers: bool = True) -> Iterator[list[Any]]:
        """Return the chosen columns as Arrow arrays, a piece of the file at a time; refused where ``numbers``
        cannot be.
        """

    def where(self, row: int, column: int) -> str:
        """How messages name a cell."""
        return f"{self.path}: row {row}, column '{self.names[column]}'"

    def read(self, columns: Sequence[int]) -> Iterator[NDArray[np.float64]]:
        """Yield the chosen columns as finite numbers ``(n, len(columns))``, a piece at a time, from the first row on.

        Raises :class:`~anabranch.errors.DataError` at the first cell that is missing, infinite or not a number, after
        the rows before it were given.
        """
        done = 0
        with _naming(self.path):
            for piece in self._pieces(columns):
                x = np.empty((len(piece[0]), len(columns)))
                for j, column in enumerate(piece):
                    x[:, j] = _numbers(column)
                bad = ~np.isfinite(x)
                if bad.any():
                    row, j = (int(i) for i in np.argwhere(bad)[0])
                    if row:
                        yield x[:row]
                    what = _complaint(piece[j][row].as_py(), shown=self.shown)
                    raise DataError(f"{self.where(done + row + 1, columns[j])}: {what}")
                done += len(x)
                if len(x):
                    yield x
        self.rows = done

    def cells(self, columns: Sequence[int]) -> Iterator[list[Any]]:
        """The chosen columns as they are, as Arrow arrays, a piece at a time; those of a CSV file are texts."""
        with _naming(self.path):
            yield from self._pieces(columns, numbers=False)

    def texts(self, column: int) -> list[str]:
        """Return a column as texts without the space around them, whole.

        Raises :class:`~anabranch.errors.DataError` at the first cell that is empty.
        """
        found: list[str] = []
        with _naming(self.path):
            for (piece,) in self._pieces([column], numbers=False):
                for cell in pa.compute.cast(piece, pa.string()).to_pylist():
                    if cell is None or not cell.strip():
                        raise DataError(f"{self.where(len(found) + 1, column)}: the cell is empty")
                    found.append(cell.strip())
        self.rows = len(found)
        return found


class CsvReader(Reader):
    """Comma-separated values, plain or gzipped."""

    def __init__(self, path: Path, header: Literal["auto"] | bool) -> None:
        super().__init__(path)
        with pa.input_stream(str(path)) as stream:
            head = stream.read(_SNIFF)
        text = head.decode("utf-8-sig", errors="replace")
        body = text.lstrip("\r\n")
        blank = text[: len(text) - len(body)].count("\n")
        first = next(csv.reader(body.splitlines(keepends=True)), None)
        if not first:
            raise DataError(f"{path}: the file is empty")
        named = not all(_is_number(cell) for cell in first) if header == "auto" else header
        self.names = [cell.strip() for cell in first] if named else [str(i + 1) for i in range(len(first))]
        self._skip = blank + 1 if named else 0  # lines before the first row

    def _pieces(self, columns: Sequence[int], *, numbers: bool = True) -> Iterator[list[Any]]:
        # Columns go by their position here: names may occur twice. They are read as text, and turned into numbers by
        # us, because Arrow's own conversion does not say which row it failed at.
        names = [str(i) for i in range(len(self.names))]
        wanted = [names[i] for i in columns]
        ragged: list[Any] = []

        def note(row: Any) -> str:
            ragged.append(row)
            return "skip"

        done = 0
        with (
            pa.input_stream(str(self.path)) as stream,
            pa.csv.open_csv(
                stream,
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=_CSV_BYTES, column_names=names, skip_rows=self._skip
                ),
                parse_options=pa.csv.ParseOptions(invalid_row_handler=note),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.string()), include_columns=list(dict.fromkeys(wanted))
                ),
            ) as reader,
        ):
            for batch in reader:
                # Arrow may have parsed further than this batch, so the first ragged row may still be to come.
                here = ragged[0].number - self._skip - 1 - done if ragged else len(batch)
                batch = batch.slice(0, here)
                yield [batch.column(name) for name in wanted]
                done += len(batch)
                if ragged and done == ragged[0].number - self._skip - 1:
                    break
        if ragged:
            row = ragged[0]
            raise DataError(
                f"{self.path}: row {row.number - self._skip} has {row.actual_columns} cells, "
                f"expected {row.expected_columns}"
            )


class ParquetReader(Reader):
    """Parquet, plain or gzipped; a gzipped one goes through a temporary file, as Parquet is read from its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._open() as file:
            self.names = list(file.schema_arrow.names)
            self.rows = file.metadata.num_rows
            self._types = list(file.schema_arrow.types)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with tempfile.TemporaryFile() if self.path.suffix.lower() == ".gz" else self.path.open("rb") as file:
            if self.path.suffix.lower() == ".gz":
                with gzip.open(self.path) as packed:
                    shutil.copyfileobj(packed, file)
                file.seek(0)
            yield pa.parquet.ParquetFile(_plain(file))

    def _pieces(self, columns: Sequence[int], *, numbers: bool = True) -> Iterator[list[Any]]:
        for i in columns:
            kind = self._types[i]
            if numbers and not any(is_a(kind) for is_a in _NUMERIC):
                raise DataError(f"{self.path}: column '{self.names[i]}' is of type {kind}, not numbers")
        wanted = [self.names[i] for i in columns]
        with self._open() as file:
            for batch in file.iter_batches(_PARQUET_ROWS, columns=list(dict.fromkeys(wanted)), use_threads=False):
                yield [batch.column(name) for name in wanted]


_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_string)


def _plain(file: IO[bytes]) -> Any:
    """Return an Arrow file over ``file``; mypy and Arrow both want to be told."""
    return pa.PythonFile(file, mode="r")


def _numbers(column: Any) -> NDArray[np.float64]:
    """Return a column as float64; NaN stands for whatever is not a number."""
    cast = pa.compute.cast
    try:
        return cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return np.array([float(cell) if _is_number(cell) else np.nan for cell in column.to_pylist()])


def _is_number(cell: str | None) -> bool:
    try:
        float(cell or "")
    except ValueError:
        return False
    return "_" not in (cell or "")  # Python reads 1_000 as a number; a table does not.


def _complaint(cell: Any, *, shown: bool) -> str:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "the cell is empty"
    if isinstance(cell, str) and not _is_number(cell):
        return f"'{cell}' is not a number" if shown else "the cell is not a number"
    return f"{cell if shown else 'the cell'} is not a finite number"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what Arrow, gzip and the system raise into a DataError that names ``path``."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken or truncated gzip file ({error})") from error
    except (pa.ArrowException, OSError) as error:
        # Arrow reports a broken gzip stream as an OSError without a number.
        reason = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read ({reason})") from error
