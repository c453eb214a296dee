"""When something happened, in whole microseconds since 1970 in UTC, from what files, databases and messages have."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np

from anabranch.errors import ConfigError, DataError, counted, kind_of
from anabranch.storage.time_formats import check_format, has_order, strptime
from anabranch.tables.values import as_whole

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 86_400_000_000
_EXCEL_EPOCH = 25_569
"""The serial day of Excel's that 1970 began with."""
_FACTORS = {"s": 1_000_000, "ms": 1_000, "us": 1}
UNITS = (*_FACTORS, "ns", "excel")
"""What a number may count since 1970; Excel's serial days count since the end of 1899."""
YEARS = (1980, 2100)
"""The first and the last year that a time may lie in, unless the settings give others. They leave out what numbers of
another unit or form come to: dates in digits are times of 1970 in seconds, and of 1976 in milliseconds."""
_SLASHES = re.compile(r"^(\d{4})/(\d{1,2})/(\d{1,2})")
_LONGEST = 64
_EARLIEST, _LATEST = -(2**62), 2**62

_PARTS = {"year": "%Y", "month": "%m", "day": "%d", "hour": "%H", "minute": "%M", "second": "%S"}
"""The directive that a column of this name suggests."""
_DIGITS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""How a number of so many digits may be a date."""
_SERIAL_DAYS = (20_000, 80_000)
"""Excel's serial days of the years 1954 to 2119."""
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


class ImplausibleError(DataError):
    """A time outside the years that are allowed: its unit or its format is probably another."""


def micros(value: Any, unit: str = "s") -> int:
    """Return a time in microseconds since 1970.

    Digits beyond the microsecond are cut; a number that is not whole is rounded to the nearest microsecond, and one of
    Excel's days to the nearest millisecond, which is as exact as Excel is.

    Args:
        value: a date and time (without a time zone it is UTC), a text of ISO 8601 (``2026-11-28 13:05:00+01:00``, also
            with slashes in the date), or a number of units since 1970.
        unit: of a number: ``"s"``, ``"ms"``, ``"us"``, ``"ns"``, or ``"excel"`` for Excel's serial days.

    Raises:
        ConfigError: where there is no such unit.
        DataError: where it is no time.

    >>> micros("1970-01-01 00:00:01"), micros(1.5), micros("1970-01-01T01:00:00+01:00"), micros("2", "ms")
    (1000000, 1500000, 0, 2000)
    >>> micros(45382.5, "excel") == micros("2024-03-31 12:00")
    True
    """
    _check_unit(unit)
    value = parsed(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return (datetime(value.year, value.month, value.day, tzinfo=UTC) - EPOCH) // _MICROSECOND
    if not _is_number(value):
        raise _no_time(value)
    if _EARLIEST <= value <= _LATEST:  # else its product may be more than a float or a decimal can be
        exact = _of_number(value, unit)
        if _EARLIEST <= exact <= _LATEST:
            return exact
    raise ImplausibleError(f"{_shown(value)} is no time in {unit} since 1970: is the unit another?")


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise ConfigError(f"the unit of times is {unit!r}: must be one of {', '.join(UNITS)}")


def _of_number(value: Any, unit: str) -> int:
    if unit == "ns":
        return int(value // 1000 if isinstance(value, int) else round(value / 1000))
    if unit == "excel":
        return round((value - _EXCEL_EPOCH) * (_DAY // 1000)) * 1000
    exact = value * _FACTORS[unit]
    return exact if isinstance(value, int) else round(exact)


def number_at(moment: int, unit: str) -> Decimal:
    """Return a number of units since 1970 that no number of an earlier or the same time exceeds.

    >>> number_at(1_500_000, "s"), number_at(1, "ns")
    (Decimal('1.500001'), Decimal('2000'))
    """
    if unit == "excel":
        return Decimal(moment + 1000) / _DAY + _EXCEL_EPOCH
    return Decimal(moment + 1) * 1000 if unit == "ns" else Decimal(moment + 1) / _FACTORS[unit]


def parsed(value: Any) -> Any:
    """Return what a text says, as a number or a date with the time; everything else as one of Python's own types."""
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    return value.item() if isinstance(value, np.generic) else value


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


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return isinstance(value, int) or math.isfinite(value)  # of an int too large for a float it cannot say


def _no_time(value: Any) -> DataError:
    like = f" (it reads like '{shape(value)}')" if isinstance(value, str) and value else ""
    return DataError(
        f"{_shown(value)} is no time{like}: use ISO 8601, such as 2026-11-28T13:05:00Z, a number, or a format"
    )


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:  # Python writes no more than some thousands of digits
        return "a number of more than 60 digits"
    return "an empty cell" if value in (None, "") else kind_of(value)


def shape(text: str) -> str:
    """Return a text with a 9 for each digit and an a for each letter, so that it shows no data.

    >>> shape("2013 3 1 0"), shape("3-Mar-2013 5 PM")
    ('9999 9 9 9', '9-aaa-9999 9 aa')
    """
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return "".join("9" if each.isdigit() else "a" if each.isalpha() else each for each in cut)


@dataclass(frozen=True)
class TimeRule:
    """How the times of a column are read, and which of them are plausible.

    Args:
        unit: of a number.
        format: of a text, a number or several columns that make the time together, as `datetime.strptime` takes it;
            None is ISO 8601, or a number of units since 1970.
        years: the first and the last year that a time may lie in.

    Raises:
        ConfigError: where one of them is none.

    >>> TimeRule(format="%Y %m %d %H").joined([2013, 3, 1, 0]) == micros("2013-03-01")
    True
    >>> TimeRule().micros(1711846800000)
    Traceback (most recent call last):
        ...
    anabranch.storage.times.ImplausibleError: a number of 13 digits under time_unit = "s" lies in a far year, but
    years = [1980, 2100]: it looks like milliseconds, so write time_unit = "ms"
    """

    unit: str = "s"
    format: str | None = None
    years: tuple[int, int] = YEARS

    def __post_init__(self) -> None:
        _check_unit(self.unit)
        first, last = self.years
        if not 1 <= first <= last <= 9999:
            raise ConfigError(f"years is {[first, last]}: must be two years from 1 to 9999, the first one first")
        if self.format is not None:
            check_format(self.format)

    def micros(self, value: Any) -> int:
        """Return a time in microseconds since 1970.

        Raises:
            DataError: where it is no time; an `ImplausibleError` where it lies outside the years.
        """
        first, end = _span(self.years)
        try:
            time = micros(value, self.unit) if self.format is None else self._by_format(self.format, value)
        except ImplausibleError:
            time = None
        if time is not None and first <= time < end:
            return time
        raise self._implausible(time, parsed(value) if self.format is None else None)

    def joined(self, parts: Sequence[Any], names: Sequence[str] = ()) -> int:
        """Return the time that several columns make together, joined with spaces.

        Args:
            parts: the cells.
            names: the names of the columns, for the error.

        Raises:
            DataError: where they make no time; the error shows their shape and no value.
        """
        if len(parts) == 1:
            return self.micros(parts[0])
        if any(each is None or str(each).strip() == "" for each in parts):
            raise DataError("an empty cell is no time, nor part of one")
        text = " ".join(_text(each) for each in parts)
        if self.format is None and isinstance(parsed(text), str):
            suggested = [_PARTS.get(name.lower()) for name in names]
            known = " ".join(each for each in suggested if each) if all(suggested) and names else "%Y %m %d %H"
            raise DataError(
                f"{counted(len(parts), 'column')} joined with spaces read like '{shape(text)}', which is no time in "
                f'ISO 8601: give a format, such as format = "{known}"'
            )
        return self.micros(text)

    @property
    def has_order(self) -> bool:
        """Whether times as they are written have the order in which they happened."""
        return self.format is None or has_order(self.format)

    def check(self, values: Sequence[Any]) -> None:
        """Look at times of a column, of which any may be no time at all.

        Raises:
            ImplausibleError: where one is implausible, or all together are.
        """
        for value in values:
            try:
                self.micros(value)
            except ImplausibleError:
                raise
            except DataError:
                continue
        self.check_together(values)

    def check_together(self, values: Iterable[Any]) -> None:
        """Look at a whole column for numbers that are plausible each, and together are something else.

        Raises:
            ImplausibleError: where all of them read as a date in digits.
        """
        form = None
        for value in values:
            found = _as_date(parsed(value))
            if self.format is not None or found is None or form not in (None, found):
                return
            form = found
        if form is not None:
            raise ImplausibleError(f'every number looks like a date in digits, so write format = "{form}"')

    def _by_format(self, form: str, value: Any) -> int:
        if isinstance(value, datetime | date | np.datetime64):
            return micros(value)
        if value is None or str(value).strip() == "":
            raise _no_time(None)
        text = _text(value)
        try:
            return micros(strptime(text, form))
        except ValueError:
            raise DataError(f"'{shape(text)}' does not fit format = \"{form}\"") from None

    def _implausible(self, time: int | None, value: Any) -> ImplausibleError:
        what, advice = "the time", ""
        if _is_number(value):
            what, advice = f'{_counted_digits(value)} under time_unit = "{self.unit}"', _advice(value, self.years)
        year = _year(time)
        if not advice and year is not None:
            advice = f" if that is right, write years = [{min(year, self.years[0])}, {max(year, self.years[1])}]"
        where = "a far year" if year is None else f"the year {year}"
        return ImplausibleError(f"{what} lies in {where}, but years = {[*self.years]}{advice and ':' + advice}")


def _year(time: int | None) -> int | None:
    """Return the year of a time; None where Python has no date for it."""
    try:
        return None if time is None else (EPOCH + time * _MICROSECOND).year
    except OverflowError:
        return None


@cache
def _span(years: tuple[int, int]) -> tuple[int, int]:
    """Return the times with which the first year begins and the last one ends."""
    first, last = datetime(years[0], 1, 1, tzinfo=UTC), datetime(years[1], 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    return (first - EPOCH) // _MICROSECOND, (last - EPOCH) // _MICROSECOND + 1


def _counted_digits(value: Any) -> str:
    whole = int(abs(value))
    return f"a number of {counted(len(str(whole)), 'digit')}" if whole < 10**60 else _shown(whole)


def _as_date(value: Any) -> str | None:
    """Return the format by which a whole number reads as a date; None where it does not."""
    value = as_whole(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**14 * 10:
        return None
    text = str(value)
    form = _DIGITS.get(len(text)) if text[:2] in ("19", "20") else None
    try:
        return form if form is None or datetime.strptime(text, form) else None
    except ValueError:
        return None


def _advice(value: Any, years: tuple[int, int]) -> str:
    """Return what a number looks like and which setting reads it so; nothing where it looks like nothing."""
    if (form := _as_date(value)) is not None:
        return f' it looks like a date in digits, so write format = "{form}"'
    if _SERIAL_DAYS[0] <= value <= _SERIAL_DAYS[1]:
        return ' it looks like one of Excel\'s serial days, so write time_unit = "excel"'
    first, end = _span(years)
    for unit, name in _UNIT_NAMES.items():
        if abs(value) <= _LATEST and first <= _of_number(value, unit) < end:
            return f' it looks like {name}, so write time_unit = "{unit}"'
    return ""


def _text(value: Any) -> str:
    """Return a part of a time as a text; a number that is whole as its digits."""
    return str(as_whole(value)).strip()


def text_of(time: int) -> str:
    """Return a time for people, in UTC.

    >>> text_of(1_000_000)
    '1970-01-01 00:00:01 UTC'
    """
    try:
        return f"{EPOCH + time * _MICROSECOND:%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time} µs since 1970"
