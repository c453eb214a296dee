"""Names of events show nothing without the key, and are the same wherever they are made."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError, OutputError
from anabranch.storage.event_ids import NAME_BYTES, Names, entity_text, read_key, write_key
from anabranch.storage.times import micros, text_of

KEY = bytes(range(32))
TIMES = st.integers(-(2**62), 2**62)


@given(st.text(), TIMES)
def test_a_name_is_the_keyed_hash_and_the_time(entity: str, time: int) -> None:
    name = Names(KEY).of(entity, time)
    assert len(name) == NAME_BYTES <= 32
    assert name[:16] == hmac.new(KEY, entity.encode(), hashlib.sha256).digest()[:16]
    assert Names.read(name) == (name[:16], time)


def test_names_that_are_no_entity_at_a_time_are_told_apart() -> None:
    assert Names.read(b"order 17") is None
    assert Names(KEY).hash("a") != Names(bytes(32)).hash("a")


@given(TIMES, st.integers(1, 10**12))
def test_a_grain_moves_a_time_to_the_next_multiple(time: int, grain: int) -> None:
    moment = Names(KEY, grain).moment(time)
    assert moment % grain == 0
    assert 0 <= moment - time < grain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("  x\t", "x"),
        (17, "17"),
        (np.int64(17), "17"),
        (17.0, "17"),
        (np.float32(17), "17"),
        (Decimal("17.0"), "17"),
        (Decimal("1.7E+1"), "17"),
        ("e\u0301", "\u00e9"),
        ("A", "A"),
        ("007", "007"),
    ],
)
def test_an_entity_is_the_same_text_wherever_it_comes_from(value: Any, text: str) -> None:
    assert entity_text(value) == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "  ",
        1.5,
        float("nan"),
        np.float32(1.5),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("1.5"),
        Decimal("1E+100000000"),
        pandas.NA,
        pandas.NaT,
        True,
        b"x",
        "\ud83d",
        pytest.param(10**5000, id="long"),
    ],
)
def test_what_is_no_entity_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="the entity is"):
        entity_text(value)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("2026-11-28T13:05:00Z", "s", 1_795_871_100_000_000),
        ("2026-11-28 13:05:00", "s", 1_795_871_100_000_000),
        ("2026-11-28T14:05:00.5+01:00", "s", 1_795_871_100_500_000),
        ("2017/1/2 03:04:05", "s", 1_483_326_245_000_000),
        ("2026-11-28", "s", 1_795_824_000_000_000),
        (date(2026, 11, 28), "s", 1_795_824_000_000_000),
        (datetime(1970, 1, 1, 0, 0, 1), "ms", 1_000_000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "s", 0),
        (np.int64(7), "us", 7),
        (np.datetime64("1970-01-01T00:00:02", "us"), "s", 2_000_000),
        (-1.25, "s", -1_250_000),
    ],
)
def test_times_are_microseconds_since_1970(value: Any, unit: str, expected: int) -> None:
    assert micros(value, unit) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        None,
        True,
        float("nan"),
        "2026-13-01",
        "1_000",
        1e300,
        1e308,
        b"1",
        10**400,
        pytest.param(-(10**5000), id="long"),
        "1" * 400,
        "1" * 5000,
    ],
)
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="no time"):
        micros(value)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="unit"):
        micros(1, "hours")


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)))
def test_a_time_comes_back_from_its_text(moment: datetime) -> None:
    whole = moment.replace(microsecond=0)
    assert text_of(micros(whole)) == f"{whole.replace(tzinfo=UTC):%Y-%m-%d %H:%M:%S} UTC"


def test_a_time_beyond_any_calendar_has_a_text() -> None:
    assert "µs" in text_of(2**62)


def test_a_key_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "entity.key"
    write_key(path)
    key = read_key(path)
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="is there already"):
        write_key(path)
    assert read_key(path) == key
    with pytest.raises(OutputError, match="cannot write the entity key"):
        write_key(tmp_path / "none" / "entity.key")


def test_a_key_that_could_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entity.key"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left"):
            write_key(path)
    write_key(path)
    assert len(read_key(path)) == 32


def test_a_key_that_is_missing_open_or_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "entity.key"
    with pytest.raises(ConfigError, match="anabranch keys entity"):
        read_key(path)
    path.write_bytes(bytes(31))
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="has 31 bytes"):
        read_key(path)
    with pytest.raises(ConfigError, match="has 5 bytes"):
        Names(bytes(5))


def test_nanoseconds_of_numpy_are_a_time() -> None:
    assert micros(np.datetime64("1970-01-01T00:00:00.000002", "ns")) == 2
