"""Times of every type, precision, unit and format are read as they are meant, or refused with the setting to write."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.storage.times import UNITS, ImplausibleError, TimeRule, micros, number_at, shape

UTC = dt.UTC
SECONDS = st.integers(int(dt.datetime(1980, 1, 1, tzinfo=UTC).timestamp()), 4_102_444_799)


@pytest.mark.parametrize(
    ("unit", "value", "advice"),
    [
        ("s", 1711846800000, 'milliseconds, so write time_unit = "ms"'),
        ("s", "1711846800000", 'milliseconds, so write time_unit = "ms"'),
        ("s", 1711846800123456, 'microseconds, so write time_unit = "us"'),
        ("s", 1711846800123456789, 'nanoseconds, so write time_unit = "ns"'),
        ("s", 45382.10417, 'one of Excel\'s serial days, so write time_unit = "excel"'),
        ("s", "45382", 'one of Excel\'s serial days, so write time_unit = "excel"'),
        ("s", 20240331, 'format = "%Y%m%d"'),
        ("s", 20240331.0, 'format = "%Y%m%d"'),
        ("s", 202403310230, 'format = "%Y%m%d%H%M"'),
        ("s", 20240331023059, 'format = "%Y%m%d%H%M%S"'),
        ("ms", 20240331, 'format = "%Y%m%d"'),
        ("ms", 202403310230, 'format = "%Y%m%d%H%M"'),
        ("ms", 1711846800, 'seconds, so write time_unit = "s"'),
        ("us", 1711846800000, 'milliseconds, so write time_unit = "ms"'),
        ("ns", 1711846800, 'seconds, so write time_unit = "s"'),
        ("excel", Decimal("1711846800.5"), 'seconds, so write time_unit = "s"'),
        ("s", 100, "write years = [1970, 2100]"),
        ("s", "1962-10-27", "write years = [1962, 2100]"),
        ("s", dt.date(9999, 12, 31), "write years = [1980, 9999]"),
        ("s", 10**80, "more than 60 digits"),
        ("s", 1e300, "a far year"),
    ],
)
def test_an_implausible_time_is_refused_with_the_setting_to_write(unit: str, value: Any, advice: str) -> None:
    with pytest.raises(ImplausibleError) as refused:
        TimeRule(unit).micros(value)
    assert advice in str(refused.value)
    assert str(value) not in str(refused.value).partition(" lies")[0]


def test_other_years_are_taken_where_they_are_given() -> None:
    rule = TimeRule(years=(1960, 1970))
    assert rule.micros(100) == 100_000_000
    assert rule.micros("1970-12-31T23:59:59.999999") == micros("1971-01-01") - 1
    for outside in ("1971-01-01", "1959-12-31T23:59:59.999999"):
        with pytest.raises(ImplausibleError):
            rule.micros(outside)


@given(SECONDS, st.integers(0, 999_999))
def test_each_unit_says_the_same_time(seconds: int, fraction: int) -> None:
    time = seconds * 1_000_000 + fraction
    exact = Decimal(time) / 1_000_000
    for unit, value in [
        ("s", exact),
        ("ms", exact * 1000),
        ("us", time),
        ("ns", time * 1000 + 999),
        ("s", float(exact)),
    ]:
        assert TimeRule(unit).micros(value) == time
    stamp = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=time)
    for written in (stamp, stamp.isoformat(), f"{stamp.isoformat()}Z", np.datetime64(stamp), str(exact)):
        assert TimeRule().micros(written) == time
    days = (stamp - dt.datetime(1899, 12, 30)) / dt.timedelta(days=1)
    assert TimeRule("excel").micros(days) == (time + 500) // 1000 * 1000 or fraction % 1000 == 500


@given(st.sampled_from(UNITS), SECONDS, st.integers(-3, 3), st.floats(-2e-6, 2e-6))
def test_no_number_up_to_a_time_exceeds_its_bound(unit: str, seconds: int, near: int, little: float) -> None:
    factors = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "excel": 1 / 86_400}
    value = (seconds + near * 1e-6 + little) * factors[unit] + (25_569 if unit == "excel" else 0)
    for number in (value, int(value), Decimal(value)):
        assert number <= np.nextafter(float(number_at(micros(number, unit), unit)), np.inf)


def test_ten_digits_that_all_read_as_an_hour_are_no_seconds() -> None:
    hours = [2024033101, 2024033102]
    assert TimeRule().micros(hours[0]) > micros("2033-01-01")
    with pytest.raises(ImplausibleError, match=r'format = "%Y%m%d%H"'):
        TimeRule().check(hours)
    TimeRule().check([*hours, 2024036002])
    TimeRule().check([1711846800, "soon", None])
    assert TimeRule(format="%Y%m%d%H").micros(hours[1]) == micros("2024-03-31 02:00")


@pytest.mark.parametrize(
    ("form", "parts", "time"),
    [
        ("%Y %m %d %H", [2013, 3, 1, 0], "2013-03-01"),
        ("%Y %m %d %H", ["2013", " 3 ", "1.0", np.float64(5.0)], "2013-03-01 05:00"),
        ("%Y%m%d %H%M", ["20240331", "30"], "2024-03-31 00:30"),
        ("%Y%m%d %H%M", [20240331, 130], "2024-03-31 01:30"),
        ("%Y%m%d%H%M", [202403310130], "2024-03-31 01:30"),
        ("%d/%m/%Y", ["1/3/2013"], "2013-03-01"),
        ("%d-%b-%Y %I %p", ["3-Mar-2013", 5, "PM"], "2013-03-03 17:00"),
        ("%Y%m%d%H%M%S.%f", ["20130301000102.5"], "2013-03-01 00:01:02.5"),
        ("%Y-%m-%d %H:%M %z", ["2013-03-01", "02:00", "+0200"], "2013-03-01"),
        ("%Y %j", [2013, 60], "2013-03-01"),
        ("%Y-%m-%d %H", [dt.date(2013, 3, 1), 5], "2013-03-01 05:00"),
    ],
)
def test_columns_make_a_time_together_by_a_format(form: str, parts: list[Any], time: str) -> None:
    assert TimeRule(format=form).joined(parts) == micros(time)


@pytest.mark.parametrize(
    ("form", "parts", "said"),
    [
        (None, [2013, 3, 1, 0], r"4 columns joined with spaces read like '9999 9 9 9'.*format = \"%Y %m %d %H\""),
        ("%Y %m %d", [2013, 3, 1, 0], r"'9999 9 9 9' does not fit format = \"%Y %m %d\""),
        ("%Y %m %d", [2013, 13, 1], "'9999 99 9' does not fit"),
        ("%Y-%m-%dT%H%M", ["2024-03-31T130"], "'9999-99-99a999' does not fit"),
        ("%Y %m %d", [2013, None, 1], "an empty cell"),
        ("%Y %m %d", ["2013", "March", "1"], "'9999 aaaaa 9' does not fit"),
        (None, ["31/03/2024"], "a text is no time .it reads like '99/99/9999'.*or a format"),
        ("%y %m %d", [1913, 3, 1], "does not fit"),
    ],
)
def test_parts_that_make_no_time_are_shown_by_their_shape(form: str | None, parts: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        TimeRule(format=form).joined(parts, ["year", "month", "day", "hour"][: len(parts)])


@pytest.mark.parametrize("form", ["%Q %Y", "%Y %Y", "%m", "", "%"])
def test_what_is_no_format_is_refused(form: str) -> None:
    with pytest.raises(ConfigError, match="format is"):
        TimeRule(format=form)


def test_what_is_no_unit_or_no_years_is_refused() -> None:
    with pytest.raises(ConfigError, match="the unit of times is 'h'"):
        TimeRule("h")
    for years in ((2000, 1999), (0, 2000), (1, 10_000)):
        with pytest.raises(ConfigError, match="years is"):
            TimeRule(years=years)


def test_a_shape_shows_no_data() -> None:
    assert shape("Ärger 7.5") == "aaaaa 9.9"
    assert len(shape("7" * 1000)) < 80
