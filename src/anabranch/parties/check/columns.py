"""What the columns of a table have, read some rows at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.parties.check.findings import ColumnFinding

FEW = 12
"""So many different texts of a column are counted."""
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class ColumnSeen:
    """What a column has so far.

    Args:
        missing_values: the texts that mean no value.

    >>> seen = ColumnSeen(["NA"])
    >>> seen.add(pa.array(["1", "2.5", "NA", None]))
    >>> seen.finding("a", "not used")
    ColumnFinding(name='a', kind='number', missing=0.5, low='1', high='2.5', values=None, use='not used')
    """

    def __init__(self, missing_values: Sequence[str]) -> None:
        self._missing_values = pa.array([*missing_values, ""], pa.string())
        self.rows = self._missing = self._numbers = self._texts = 0
        self._low, self._high, self._whole = math.inf, -math.inf, True
        self._typed: str | None = None
        self._ends: tuple[Any, Any] | None = None
        self._values: Counter[str] | None = Counter()

    def add(self, cells: Any) -> None:
        """Look at some more cells, an Arrow array."""
        self.rows += len(cells)
        cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
        kind = cells.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._add_texts(cells)
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            self._add_numbers(pc.cast(cells, pa.float64(), safe=False))
        else:
            self._add_others(cells)

    def _add_texts(self, cells: Any) -> None:
        texts = pc.utf8_trim_whitespace(cells)
        there = texts.filter(pc.invert(pc.is_in(pc.fill_null(texts, ""), value_set=self._missing_values)))
        self._missing += len(cells) - len(there)
        are_numbers = pc.match_substring_regex(there, _NUMBER)
        self._add_numbers(pc.cast(there.filter(are_numbers), pa.float64()))
        words = there.filter(pc.invert(are_numbers))
        self._texts += len(words)
        self._count(words)

    def _add_numbers(self, numbers: Any) -> None:
        there = numbers.drop_null().filter(pc.invert(pc.is_nan(numbers.drop_null())))
        self._missing += len(numbers) - len(there)
        self._numbers += len(there)
        if len(there):
            ends = pc.min_max(there).as_py()
            self._low, self._high = min(self._low, ends["min"]), max(self._high, ends["max"])
            self._whole = self._whole and bool(pc.all(pc.equal(there, pc.floor(there))).as_py())

    def _add_others(self, cells: Any) -> None:
        self._typed = str(cells.type)
        there = cells.drop_null()
        self._missing += len(cells) - len(there)
        if pa.types.is_temporal(cells.type) and not pa.types.is_duration(cells.type) and len(there):
            ends = pc.min_max(there)
            low, high = (str(pc.cast(ends[name], pa.string())) for name in ("min", "max"))
            self._ends = (low, high) if self._ends is None else (min(self._ends[0], low), max(self._ends[1], high))
        elif pa.types.is_boolean(cells.type):
            self._count(pc.cast(there, pa.string()))

    def _count(self, texts: Any) -> None:
        if self._values is not None and len(texts):
            for each in pc.value_counts(texts):
                self._values[each["values"].as_py()] += each["counts"].as_py()
                if len(self._values) > FEW:
                    self._values = None
                    return

    def finding(self, name: str, use: str) -> ColumnFinding:
        """Return what the column has."""
        low, high = (_shown(self._low), _shown(self._high)) if self._numbers else (self._ends or (None, None))
        return ColumnFinding(
            name,
            self._kind,
            self._missing / self.rows if self.rows else 0.0,
            low,
            high,
            dict(self._values.most_common()) if self._values else None,
            use,
        )

    @property
    def _kind(self) -> str:
        if self._typed is not None:
            return self._typed
        if self._numbers and self._texts:
            return f"{self._numbers:,} numbers, {self._texts:,} texts"
        if self._numbers:
            return "whole number" if self._whole else "number"
        return "text" if self._texts else "empty"


def _shown(number: float) -> str:
    return f"{number:.15g}" if number.is_integer() else f"{number:.6g}"
