"""The meaning of single cells: numbers, ids, missing values."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Container
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from anabranch import checks
from anabranch.errors import DataError, kind_of

MissingValues: TypeAlias = frozenset[str] | tuple[str, ...]
_DIGITS = 1000
"""Of the longest Decimal that is taken for a whole number."""
_EXACT = 2**53
"""Up to here a float has each whole number."""
_WHOLE_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.0+|-?[1-9](\.[0-9]+)?[eE]\+[0-9]{2,3}", re.ASCII)
"""Whole numbers as programs write floats: 17.0, 1.5e+10."""


def as_whole(value: Any) -> Any:
    """Return a whole number of any type as an int, and everything else as it is."""
    if isinstance(value, Decimal):
        whole_number = value.is_finite() and value.adjusted() < _DIGITS and value == value.to_integral_value()
        return int(value) if whole_number else value
    return int(value) if isinstance(value, float | np.floating) and value.is_integer() else value


def plain_text(value: Any) -> str:
    """Return a value as a text without the space around it.

    A whole number is its digits, also if it is written as a float.

    Raises:
        DataError: it is a float above 2**53, which has lost its last digits.

    >>> plain_text(" A-17 "), plain_text(17.0), plain_text("17.0"), plain_text("1e+05"), plain_text("007.0")
    ('A-17', '17', '17', '100000', '007.0')
    """
    if isinstance(value, str):
        text = value.strip()
        if not _WHOLE_FLOAT.fullmatch(text):
            return text
        exact = Decimal(text)
        if exact != exact.to_integral_value():
            return text
        value = float(text)
    if isinstance(value, float | np.floating) and _EXACT < abs(float(value)) < math.inf:
        raise DataError(
            "a number above 2**53 is written as a float, so its last digits are lost: write the column as whole "
            "numbers or as texts"
        )
    return str(as_whole(value)).strip()


def entity_text(value: Any) -> str:
    """Return an id as a text in Unicode's form NFC; see `plain_text`.

    Raises:
        DataError: there is none, or it is no id, such as a broken number.

    >>> entity_text(" A-17 "), entity_text(17), entity_text(17.0), entity_text(Decimal("17.0")), entity_text("17.0")
    ('A-17', '17', '17', '17', '17')
    """
    whole = as_whole(value)
    if checks.is_missing(whole) or isinstance(whole, float | np.floating | Decimal | bool | bytes):
        found = "None" if whole is None else kind_of(whole)
        raise DataError(f"the entity is {found}, but it must be a text or a whole number")
    try:
        text = unicodedata.normalize("NFC", plain_text(value))
        text.encode()
    except DataError as error:
        raise DataError(f"the entity is no id: {error}") from None
    except ValueError:  # half a surrogate, or more digits than Python writes
        raise DataError("the entity is no text that Unicode can write, or a number of too many digits") from None
    if not text:
        raise DataError("the entity is empty")
    return text


@lru_cache(maxsize=64)
def missing_numbers(missing_values: MissingValues) -> frozenset[float]:
    """Return the finite numbers among the texts that mean no value."""
    return frozenset(float(text) for text in missing_values if is_number(text) and math.isfinite(float(text)))


def is_missing(value: Any, missing_values: Container[str] = ()) -> bool:
    """Return whether there is no value: null, NaN, an empty text, or one of the texts that mean so.

    >>> missing_values = {"NA", "-200"}
    >>> [is_missing(value, missing_values) for value in ("NA", " -200.0 ", -200, -200.0, "None", float("nan"))]
    [True, True, True, True, False, True]
    """
    if isinstance(value, str):
        text = value.strip()
        return not text or text in missing_values or _written(text) in missing_values
    if checks.is_missing(value):
        return True
    return isinstance(value, int | float | np.number | Decimal) and (
        not isinstance(value, bool) and _written(value) in missing_values
    )


def _written(value: Any) -> str:
    """Return a value as `plain_text` does, also if it has lost its last digits."""
    try:
        return plain_text(value)
    except (DataError, ValueError):
        return str(value)


def is_number(cell: str) -> bool:
    """Return whether a text is a number, perhaps an infinite one."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.isascii()  # Python reads 1_000 and digits of other scripts; a table does not.


def value_of(cell: Any) -> Any:
    """Return an Arrow scalar as Python has it, or a text of it if Python has no such time."""
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        return f"{cell.type} {getattr(cell, 'value', '')}"
