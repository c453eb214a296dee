"""Reads the rows of a table as numbers, by the rules of its columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from anabranch.errors import DataError, kind_of
from anabranch.tables.columns import Classes, Rule, Said
from anabranch.tables.reader import Reader
from anabranch.tables.values import MissingValues, is_missing, is_number, missing_numbers, plain_text, value_of

MOST_CLASSES = 1000
"""More classes than this are declared and not found."""


@dataclass(frozen=True)
class OrMissing:
    """A rule that takes a missing value too, whatever it does with one."""

    rule: Rule

    @property
    def numeric(self) -> bool:
        return self.rule.numeric

    def number(self, value: Any, missing_values: MissingValues, said: Said = kind_of) -> float:
        try:
            return self.rule.number(value, missing_values, said)
        except DataError:
            if is_missing(value, missing_values):
                return math.nan
            raise

    def refused(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        return self.rule.refused(numbers) & ~np.isnan(numbers)


def read_rows(reader: Reader, columns: Sequence[int], rules: Sequence[Rule]) -> Iterator[NDArray[np.float64]]:
    """Yield the chosen columns as numbers (n, len(columns)), some rows at a time; NaN if something else stands in.

    Raises:
        DataError: a cell is no value of its column; the rows before it were given.
    """
    done = 0
    for piece in reader.cells(columns):
        x, wrong = numbers_of(reader, columns, rules, piece, done)
        done += len(x)
        if len(x):
            yield x
        if wrong is not None:
            raise wrong


def numbers_of(
    reader: Reader, columns: Sequence[int], rules: Sequence[Rule], cells: Sequence[Any], done: int = 0
) -> tuple[NDArray[np.float64], DataError | None]:
    """Return the rows of some cells up to the first that is wrong, and what is wrong with that.

    Args:
        reader: whose cells they are.
        columns: which ones.
        rules: of each column.
        cells: of each column, as an Arrow array.
        done: how many rows are before these.
    """
    x = np.empty((len(cells[0]), len(columns)))
    good, wrong = len(x), -1
    for j, (rule, column) in enumerate(zip(rules, cells, strict=True)):
        x[:, j], bad = _parsed(rule, column, reader.form.missing_values)
        first = int(np.argmax(bad)) if bad.any() else len(x)
        if first < good:
            good, wrong = first, j
    if wrong < 0:
        return x, None
    value, where = value_of(cells[wrong][good]), reader.where(done + good + 1, columns[wrong])
    try:
        rules[wrong].number(value, reader.form.missing_values, reader.quoted)
    except DataError as error:
        return x[:good], DataError(f"{where}: {error}")
    return x[:good], DataError(f"{where}: {reader.quoted(value)} is no value of it")  # pragma: no cover


def find_classes(reader: Reader, column: int) -> Classes:
    """Return the classes of a column of labels, which is read through once.

    Whole numbers from 0 on are classes, at least two. Texts are classes in the order of their letters' numbers.

    Raises:
        DataError: there are numbers and texts, a label is missing or no class, there are more than a thousand classes,
            or there is no row.
    """
    any_number = Classes(2**31)
    texts: set[str] = set()
    done, largest = 0, 1
    for (cells,) in reader.cells([column]):
        if not done and pa.types.is_string(cells.type):
            first = cells[0].as_py()
            if not is_missing(first, reader.form.missing_values) and not is_number(first):
                texts.add(plain_text(first))
        if texts:
            for row, cell in enumerate(cells.to_pylist()):
                texts.add(_text_label(reader, column, done + row + 1, cell))
        else:
            x, wrong = numbers_of(reader, [column], [any_number], [cells], done)
            if wrong is not None:
                raise wrong
            largest = max(largest, int(x.max()))
        done += len(cells)
        if max(len(texts), largest + 1) > MOST_CLASSES:
            name = reader.names[column]
            raise _advised(f"{reader.path}: column '{name}' has labels of more than {MOST_CLASSES:,} classes")
    if not done:
        raise DataError(f"{reader.path}: the file has no rows")
    return Classes(largest + 1) if not texts else Classes.named(sorted(texts))


def _text_label(reader: Reader, column: int, row: int, cell: Any) -> str:
    """Return a label that is a text, in a column of which the first is one."""
    if is_missing(cell, reader.form.missing_values):
        why = "the label is missing" if not cell or not cell.strip() else f"the label {reader.quoted(cell)} is missing"
    elif is_number(cell):
        why = f"the label {reader.quoted(cell)} is a number, but the first is a text"
    else:
        return plain_text(cell)
    raise _advised(f"{reader.where(row, column)}: {why}")


def _advised(what: str) -> DataError:
    return DataError(
        f"{what}: if it is the label, name the classes, such as classes = ['low', 'high'], or say how many there are, "
        "such as classes = 2000"
    )


def _parsed(rule: Rule, cells: Any, missing_values: MissingValues) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a column as numbers, and which of them are none."""
    if rule.numeric:
        numbers = _cast(cells)
        if numbers is None and pa.types.is_string(cells.type):
            texts = pa.compute.utf8_trim_whitespace(cells)
            absent = pa.compute.is_in(texts, pa.array({"", *missing_values}, pa.string()))
            numbers = _cast(pa.compute.if_else(absent, pa.scalar(None, pa.string()), texts))
        if numbers is not None:
            if absent := missing_numbers(missing_values):
                numbers = np.where(np.isin(numbers, [*absent]), np.nan, numbers)
            return numbers, rule.refused(numbers)
    try:
        encoded = cells.dictionary_encode()
    except pa.ArrowNotImplementedError:  # such as of lists
        values, places = [value_of(cell) for cell in cells], np.arange(len(cells))
    else:
        values = [*(value_of(each) for each in encoded.dictionary), None]
        places = encoded.indices.fill_null(len(values) - 1).to_numpy()
    found = np.array([_number(rule, value, missing_values) for value in values])
    return found[places, 0], found[places, 1] > 0


def _cast(cells: Any) -> NDArray[np.float64] | None:
    """Return cells as float64, with NaN for nulls, or None if they are no numbers."""
    kind = cells.type
    if not any(is_a(kind) for is_a in _NUMERIC):
        return None
    try:
        return pa.compute.cast(cells, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None


_NUMERIC = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_string,
    pa.types.is_null,
)  # fmt: skip


def _number(rule: Rule, value: Any, missing_values: MissingValues) -> tuple[float, float]:
    """Return a value as a number, and 1 if it is none."""
    try:
        return rule.number(value, missing_values), 0.0
    except DataError:
        return np.nan, 1.0
