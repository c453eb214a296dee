"""Which readings a client tells of."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError
from anabranch.sources.activation import ByRound, OnEvent, SendOnDelta
from anabranch.sources.base import Reading

NOTHING = np.zeros(1)


def touched(rule: SendOnDelta, *readings: tuple[str, Any]) -> list[bool]:
    return [rule.touches(Reading(who, t, {"a": a}), NOTHING) for t, (who, a) in enumerate(readings)]


def test_every_reading_and_only_ones_own() -> None:
    rule = OnEvent()
    assert (rule.touches(Reading("x", 0, {}), NOTHING), rule.decide(0, NOTHING), rule.entities) == (True, False, 0)


def test_a_rule_of_rounds_is_asked_about_ones_own_readings_too_or_not() -> None:
    rule = ByRound(lambda t, x: t % 2 == 0 and bool(np.mean(x) > 0.5))
    for x, expected in (([0.4, 0.6], False), ([0.4, 0.7], True)):
        features = np.array(x)
        assert rule.touches(Reading("x", 0, {}), features) is rule.decide(8, features) is expected
        assert not rule.decide(7, features)
    assert rule.entities == 0
    assert not ByRound(lambda t, x: True, of_readings=False).touches(Reading("x", 0, {}), NOTHING)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.floats(0, 5))
def test_what_is_not_sent_is_within_the_threshold_of_what_was(values: list[float], threshold: float) -> None:
    rule = SendOnDelta(threshold, ["a"])
    last = math.nan
    for a, sent in zip(values, touched(rule, *(("x", a) for a in values)), strict=True):
        assert sent == (not abs(a - last) <= threshold)
        last = a if sent else last


def test_it_moves_from_the_last_that_was_sent_and_not_from_the_last() -> None:
    assert touched(SendOnDelta(1.0, ["a"]), *(("x", a) for a in (0, 0.9, 1.8, 2.7, 0.9))) == [
        True, False, True, False, False,
    ]  # fmt: skip


def test_entities_are_each_by_themselves_and_bounded() -> None:
    assert touched(SendOnDelta(1, ["a"]), ("x", 0), ("y", 5), ("x", 1), ("y", 6.5)) == [True, True, False, True]
    assert touched(SendOnDelta(1, ["a"], 1), ("x", 0), ("y", 0), ("x", 0), ("x", 0)) == [True, True, True, False]


def test_missing_and_there_again_is_a_move() -> None:
    values = [1, None, "", float("nan"), "1", "1.5", "words", math.inf, 1.5]
    assert touched(SendOnDelta(1, ["a"]), *(("x", a) for a in values)) == [
        True, True, False, False, True, False, True, False, True,
    ]  # fmt: skip


def test_a_flag_that_is_a_text_moves() -> None:
    values = ["true", "false", "False", " yes", True, "no", 10**400, "no"]
    assert touched(SendOnDelta(0.5, ["a"]), *(("x", a) for a in values)) == [
        True, True, False, True, False, True, True, True,
    ]  # fmt: skip


def test_each_column_may_have_its_own_threshold() -> None:
    rule = SendOnDelta([1, 100], ["light", "co2"])
    rows = [(0, 0), (1, 90), (1, 101), (2.5, 101), (2.5, 300)]
    found = [rule.touches(Reading("", t, {"light": a, "co2": b}), NOTHING) for t, (a, b) in enumerate(rows)]
    assert found == [True, False, True, True, True]
    assert not rule.decide(0, NOTHING)


def test_it_goes_on_after_a_restart() -> None:
    rule = SendOnDelta(1, ["a"])
    touched(rule, ("x", 5), ("y", None))
    states = json.loads(json.dumps({entity: rule.state(entity) for entity in ("x", "y")}))
    again = SendOnDelta(1, ["a"])
    again.restore(states)
    assert touched(again, ("x", 5.5), ("y", None), ("x", 7), ("z", 0)) == [False, False, True, True]
    for other in (SendOnDelta(1, ["a", "b"]), SendOnDelta(1, ["a"], 1)):
        other.restore(states)
        assert other.touches(Reading("x", 9, {"a": 5, "b": None}), NOTHING)
    assert not other.touches(Reading("x", 9, {"a": 5}), NOTHING)


@pytest.mark.parametrize(("threshold", "columns"), [(-1, ["a"]), (math.inf, ["a"]), ([1, 2], ["a"]), (1, [])])
def test_wrong_thresholds_are_refused(threshold: Any, columns: list[str]) -> None:
    with pytest.raises(ConfigError, match="threshold"):
        SendOnDelta(threshold, columns)


def test_a_value_that_means_none_has_not_moved_far() -> None:
    rule = SendOnDelta(1.0, ["a"], missing_values=("-200",))
    values = [5.0, -200.0, "-200", 5.5, -201.0]
    assert [rule.touches(Reading("x", t, {"a": a}), np.zeros(1)) for t, a in enumerate(values)] == [
        True, True, False, True, True,
    ]  # fmt: skip
