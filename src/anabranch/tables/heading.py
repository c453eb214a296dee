"""Whether the first line of a CSV file names its columns or is a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from anabranch.tables.form import MISSING_VALUES
from anabranch.tables.values import is_number

_MANY = 5
"""So many numbers that only rise or only fall are seldom a row, and often wavelengths or times that name columns."""


def named_by(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool | None:
    """Return whether the first line names the columns; None if it could be a heading and a row.

    Args:
        first: the cells of the first line.
        rows: those of some rows after it.

    ======================================================================  =======
    the first line                                                          is
    ======================================================================  =======
    only numbers and missing values, but for the next two                   a row
    distinct whole numbers, as pandas names the columns of an array         unclear
    five or more numbers that only rise or only fall                        unclear
    nothing but missing values                                              unclear
    numbers and texts                                                       unclear
    texts, one of them above a number                                       heading
    texts, all different                                                    heading
    texts, two of them the same                                             unclear
    ======================================================================  =======

    >>> named_by(["a", "b"], [["1", "2"]]), named_by(["0.5", "1"], []), named_by(["0", "1"], [["0.5", "1"]])
    (True, False, None)
    """
    cells = [cell.strip() for cell in first]
    there = [cell for cell in cells if cell not in MISSING_VALUES]
    numbers = [cell for cell in there if is_number(cell)]
    if not there or 0 < len(numbers) < len(there):
        return None
    if numbers:
        values = [float(cell) for cell in numbers]
        whole = len({*values}) == len(values) and all(value.is_integer() for value in values)
        steps = [b - a for a, b in pairwise(values)]
        sorted_ = len(values) >= _MANY and (min(steps) > 0 or max(steps) < 0)
        return None if whole or sorted_ else False
    above = any(cell and any(is_number(row[i]) for row in rows if i < len(row)) for i, cell in enumerate(cells))
    return True if above or len({*there}) == len(there) else None
