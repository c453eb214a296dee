"""Readings and look-ups from Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import DataError
from anabranch.sources.base import Reading
from anabranch.sources.python import PythonSource
from anabranch.sources.recent_readings import Latest
from anabranch.storage.event_ids import Names
from source_playing import play, run

NAMES = Names(bytes(32))


async def gives(*readings: Any) -> AsyncIterator[Any]:
    for each in readings:
        yield each


def test_readings_are_events_and_known_from_then_on() -> None:
    source = PythonSource(NAMES, gives((17, "2026-01-01", {"a": 1}), ("x", 5, {"a": 2}), ("", 6, {"a": 3})))
    events = run(play(source))
    assert [each.reading for each in events] == [
        ("17", 1_767_225_600_000_000, {"a": 1}), ("x", 5, {"a": 2}), ("", 6, {"a": 3}),
    ]  # fmt: skip
    assert [source.look(each.name) for each in events] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert source.look(b"order 17") is None


def test_a_function_looks_up_entities_that_had_a_reading_or_are_in_the_list() -> None:
    asked: list[tuple[str, int]] = []

    def look(entity: str, time: int) -> Mapping[str, Any]:
        asked.append((entity, time))
        return {"a": len(asked)}

    listed = {NAMES.hash("y"): "y"}
    source = PythonSource(NAMES, gives(("x", 5, {})), look, listed.get)
    run(play(source))
    assert [source.look(NAMES.of(who, 9)) for who in ("x", "y", "z", "")] == [{"a": 1}, {"a": 2}, None, {"a": 3}]
    assert asked == [("x", 9), ("y", 9), ("", 9)]
    assert run(play(PythonSource(NAMES, None, look))) == []


def test_what_is_no_reading_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    source = PythonSource(NAMES, gives((None, 1, {}), ("x", "soon", {}), ("x", 7, {"a": 1})))
    assert [each.reading.time for each in run(play(source))] == [7]
    assert source.counts == {"unusable": 2}
    assert "the readings: a reading is left out: the entity is None" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "the readings gave what is of type int, but each is an entity, a time and a mapping"),
        (("x", 5), "a tuple of str, int, but"),
        (("x", 5, [1.0]), "a tuple of str, int, list, but"),
        ({"a": 1, "b": 2, "c": 3}, "of type dict, but"),
    ],
)
def test_what_is_no_reading_at_all_is_an_error(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        run(play(PythonSource(NAMES, gives(given))))


def test_times_that_go_back_or_are_the_same_are_counted() -> None:
    source = PythonSource(NAMES, gives(("x", 5, {}), ("x", 2, {}), ("y", 1, {}), ("x", 5, {}), ("x", 6, {})))
    assert len(run(play(source))) == 5
    assert source.counts == {"back in time": 1, "duplicate": 1}


def test_a_clock_that_is_hours_ahead_is_noted_and_the_reading_counts(caplog: pytest.LogCaptureFixture) -> None:
    now = 1_000_000.0
    readings = gives(("x", int((now + 3600) * 1e6), {"a": 1}), ("x", int((now + 7201) * 1e6), {"a": 2}))
    source = PythonSource(NAMES, readings, clock=lambda: now)
    events = run(play(source))
    assert [source.look(each.name) for each in events] == [{"a": 1}, {"a": 2}]
    assert source.counts == {"ahead of the clock": 1}
    assert "a reading of 1970-01-12 15:46:41 UTC is 7,201 s ahead of this machine's clock" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 9)), max_size=30), st.integers(0, 9))
def test_latest_is_the_last_at_or_before_a_time(rows: list[tuple[str, int]], when: int) -> None:
    latest = Latest(NAMES, history=1000)
    for i, (who, then) in enumerate(rows):
        latest.add(Reading(who, then, {"i": i}))
    for who in "xy":
        known = [(then, i) for i, (whose, then) in enumerate(rows) if whose == who and then <= when]
        assert latest.look(NAMES.of(who, when)) == ({"i": max(known)[1]} if known else None)


def test_a_reading_that_is_given_again_takes_the_place_of_the_one_before() -> None:
    latest = Latest(NAMES, history=3)
    assert [latest.add(Reading("x", time, {"i": time})) for time in (1, 2, 3)] == ["last"] * 3
    assert [latest.add(Reading("x", 2, {"i": i})) for i in range(20, 30)] == ["again"] * 10
    assert [latest.look(NAMES.of("x", time)) for time in (1, 2, 3)] == [{"i": 1}, {"i": 29}, {"i": 3}]


def test_latest_is_bounded() -> None:
    latest = Latest(NAMES, entities=2, history=2)
    for i, who in enumerate("aabac"):
        latest.add(Reading(who, i, {"i": i}))
    assert len(latest) == 2
    assert latest.look(NAMES.of("b", 9)) is None
    assert latest.look(NAMES.of("a", 9)) == {"i": 3}
    assert (latest.look(NAMES.of("a", 2)), latest.look(NAMES.of("a", 0))) == ({"i": 1}, None)
    assert (latest.entity(NAMES.hash("c")), latest.entity(NAMES.hash("b"))) == ("c", None)
    latest.remove("a")
    assert latest.look(NAMES.of("a", 9)) is None
