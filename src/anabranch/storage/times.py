"""When something happened, in whole microseconds since 1970 in UTC, from what files, databases and messages have."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from anabranch.errors import ConfigError, DataError, kind_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""How many microseconds each unit of a number has."""
_SLASHES = re.compile(r"^(\d{4})/(\d{1,2})/(\d{1,2})")
_LONGEST = 64
_EARLIEST, _LATEST = -(2**62), 2**62


def micros(value: Any, unit: str = "s") -> int:
    """Return a time, in microseconds since 1970.

    Args:
        value: a date and time (without a time zone it is UTC), a text of ISO 8601 (``2026-11-28 13:05:00+01:00``, also
            with slashes in the date), or a number of units since 1970.
        unit: of a number: ``"s"``, ``"ms"`` or ``"us"``.

    Raises:
        ConfigError: where there is no such unit.
        DataError: where it is no time.

    >>> micros("1970-01-01 00:00:01"), micros(1.5), micros("1970-01-01T01:00:00+01:00"), micros("2", "ms")
    (1000000, 1500000, 0, 2000)
    """
    if unit not in UNITS:
        raise ConfigError(f"the unit of times is {unit!r}: must be one of {', '.join(UNITS)}")
    if isinstance(value, str):
        value = _of_text(value.strip())
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return (datetime(value.year, value.month, value.day, tzinfo=UTC) - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _no_time(value)
    if not isinstance(value, int) and not math.isfinite(value):  # of an int too large for a float it cannot say
        raise _no_time(value)
    if _EARLIEST <= value <= _LATEST:  # else its product may be more than a float or a decimal can be
        exact = value * UNITS[unit] if isinstance(value, int) else round(value * UNITS[unit])
        if _EARLIEST <= exact <= _LATEST:
            return int(exact)
    raise DataError(f"{_shown(value)} is no time in {unit} since 1970: is the unit another?")


def _of_text(text: str) -> Any:
    if "_" in text:  # Python reads 1_000 as a number
        return text
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        pass
    if len(text) > _LONGEST:  # Python takes thousands of digits for a date and a time
        return text
    iso = _SLASHES.sub(lambda found: f"{found[1]}-{int(found[2]):02}-{int(found[3]):02}", text)
    try:
        return datetime.fromisoformat(iso)
    except ValueError:
        return text


def _no_time(value: Any) -> DataError:
    return DataError(f"{_shown(value)} is no time: use ISO 8601, such as 2026-11-28T13:05:00Z, or a number")


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:  # Python writes no more than some thousands of digits
        return "a number of more than 60 digits"
    return "an empty cell" if value in (None, "") else kind_of(value)


def text_of(time: int) -> str:
    """Return a time for people, in UTC.

    >>> text_of(1_000_000)
    '1970-01-01 00:00:01 UTC'
    """
    try:
        return f"{_EPOCH + time * _MICROSECOND:%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time} µs since 1970"
