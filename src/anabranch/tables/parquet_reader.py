"""Parquet, plain or compressed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from anabranch.tables.content import Content
from anabranch.tables.form import TableForm
from anabranch.tables.reader import Reader

ROWS = 1024
"""Rows that are read at a time."""


class ParquetReader(Reader):
    """Parquet; a compressed one goes through a temporary file, as Parquet is read from its end."""

    def __init__(self, content: Content, form: TableForm, *, shown: bool) -> None:
        super().__init__(content.path, form, shown=shown)
        self._content = content
        with self._open() as file:
            self.names = list(file.schema_arrow.names)
            self.rows = file.metadata.num_rows
            self.index = frozenset(i for i, name in enumerate(self.names) if name in _index_of(file.schema_arrow))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self._content.compression is None:
            with self.path.open("rb") as file:
                yield pa.parquet.ParquetFile(file)
        else:
            with tempfile.TemporaryFile() as unpacked:
                with self._content.open() as packed:
                    shutil.copyfileobj(packed, unpacked)
                unpacked.seek(0)
                yield pa.parquet.ParquetFile(unpacked)

    def _pieces(self, columns: Sequence[int]) -> Iterator[list[Any]]:
        wanted = [self.names[i] for i in columns]
        with self._open() as file:
            for batch in file.iter_batches(ROWS, columns=list(dict.fromkeys(wanted)), use_threads=False):
                yield [_plain(batch.column(name)) for name in wanted]


def _index_of(schema: Any) -> set[str]:
    """Return the columns that pandas wrote of a table's index, as the file's metadata says."""
    try:
        described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        return {each for each in described.get("index_columns", ()) if isinstance(each, str)}
    except (ValueError, AttributeError, TypeError):  # of another program
        return set()


def _plain(column: Any) -> Any:
    """Return a column without Arrow's ways to save space: a category is its texts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    texts = pa.types.is_large_string(kind) or getattr(pa.types, "is_string_view", lambda kind: False)(kind)
    column = column.cast(pa.string()) if texts else column
    if pa.types.is_string(column.type):
        column.validate(full=True)  # else what is no UTF-8 fails wherever it is used
    return column
