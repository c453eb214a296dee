"""Opens a table file, whatever its name says."""

from __future__ import annotations

from pathlib import Path

from anabranch.tables.content import content_of
from anabranch.tables.csv_reader import CsvReader
from anabranch.tables.form import TableForm
from anabranch.tables.parquet_reader import ParquetReader
from anabranch.tables.reader import Reader, naming


def open_table(path: str | Path, form: TableForm | None = None, *, shown: bool = True) -> Reader:
    """Return the reader of a file, which goes by the file's first bytes and not by its name.

    Args:
        path: a CSV or Parquet file, perhaps compressed by gzip, bzip2, zstd or lz4.
        form: how it is written; None is the usual.
        shown: whether errors may show what is in the file. Those of a party go to its log, so they never do.

    Raises:
        DataError: it cannot be read.
        ConfigError: its first line could be a heading and could be a row.
    """
    path, form = Path(path), TableForm() if form is None else form
    with naming(path):
        content = content_of(path)
        return (ParquetReader if content.parquet else CsvReader)(content, form, shown=shown)
