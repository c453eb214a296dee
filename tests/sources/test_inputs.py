"""An event's features stay what they were when somebody else first knew of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.errors import AwayError, CheckpointError
from anabranch.sources.features import Column, Features
from anabranch.sources.inputs import Inputs
from anabranch.storage.event_ids import Names
from anabranch.storage.feature_store import KeptInputs

FEATURES = Features([Column("a", missing="mean", standardise=True)])


def opened(folder: Path, values: dict[bytes, Any], features: Features = FEATURES, most: int = 100) -> Inputs:
    return Inputs(values.get, features, KeptInputs(folder / "inputs", most=most))


def test_an_entity_that_changes_changes_no_event_that_was_looked_up(tmp_path: Path) -> None:
    values = {b"1": {"a": 1.0}, b"2": {"a": 3.0}}
    inputs = opened(tmp_path, values)
    first = [inputs.look(name).tolist() for name in (b"1", b"2")]  # type: ignore[union-attr]
    assert first == [[0.0], [1.0]]
    values[b"1"] = {"a": 100.0}
    again = opened(tmp_path, values)
    for each in (inputs, again):
        assert [each.look(name).tolist() for name in (b"1", b"2")] == first  # type: ignore[union-attr]


def test_an_event_without_features_counts_once_however_often_the_server_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Names(bytes(32)).of("A-17", 60_000_000)
    values: dict[bytes, Any] = {bad: {"a": "x"}}
    inputs = opened(tmp_path, values)
    with caplog.at_level(logging.WARNING):
        assert [inputs.look(each) for each in (bad, b"2") * 4] == [None] * 8
    assert inputs.counts == {"unusable": 1, "unknown": 1}
    assert (inputs.is_unusable(bad), inputs.is_unusable(b"2")) == (True, False)
    assert [each for each in caplog.messages if "unusable" in each and "1970-01-01 00:01:00" in each] == caplog.messages
    assert len(caplog.messages) == 1
    del values[bad]
    assert inputs.look(bad) is None
    assert not inputs.is_unusable(bad)


@pytest.mark.parametrize("known", ["asked for", "undecided", "of its own", "safe", "learnt"])
def test_readings_renew_an_event_until_somebody_knows_of_it(tmp_path: Path, known: str) -> None:
    values: dict[bytes, Any] = {b"1": {"a": 1.0}, b"2": {"a": 9.0}}
    kept = KeptInputs(tmp_path / "inputs", most=9)
    inputs = Inputs(values.get, Features(["a"]), kept)
    assert inputs.read(b"1") == ({"a": 1.0}, [1.0])
    for a in (2.0, 3.0):
        values[b"1"] = {"a": a}
        assert inputs.read(b"1") == ({"a": a}, [a])
    if known in ("of its own", "safe"):
        kept.add_own(b"1")
    if known == "safe":
        kept.drop_own([b"1"])
    if known == "undecided":
        kept.was_asked(b"1")
    if known in ("asked for", "learnt"):
        kept.put(b"1", np.zeros(1, np.float32), False, 0)
    if known == "learnt":
        kept.learnt([(0, b"1", False)], [])
    assert kept.asked(9) == ([] if known == "of its own" else [b"1"])
    values[b"1"] = {"a": 4.0}
    assert inputs.read(b"1") == ({"a": 4.0}, [3.0])
    assert (inputs.look(b"1"), inputs.read(b"2"), len(kept)) == ([3.0], ({"a": 9.0}, [9.0]), 2)
    del values[b"2"]
    values[b"1"] = {"a": "x"}
    assert (inputs.read(b"1"), inputs.read(b"2"), inputs.look(b"2")) == (None, None, [9.0])
    assert inputs.counts == {"unusable": 1, "unknown": 1}


def test_the_running_means_have_an_event_once(tmp_path: Path) -> None:
    values: dict[bytes, Any] = {b"1": {"a": 1.0}, b"2": {"a": None}}
    inputs = opened(tmp_path, values, Features([Column("a", missing="mean")]))
    for a in (1.0, 100.0):
        values[b"1"] = {"a": a}
        inputs.read(b"1")
    assert inputs.look(b"2") == [1.0]


def test_the_running_mean_goes_on_after_a_restart(tmp_path: Path) -> None:
    values: dict[bytes, Any] = {bytes([i]): {"a": i} for i in range(1, 4)} | {b"x": {"a": None}, b"y": {"a": 10.0}}
    steady = opened(tmp_path / "steady", values)
    expected = [steady.look(name).tolist() for name in values]  # type: ignore[union-attr]
    found = []
    for name in values:
        x = opened(tmp_path / "restarted", values).look(name)
        assert x is not None
        found.append(x.tolist())
    assert found == expected


def test_the_newest_are_kept_after_a_restart_too(tmp_path: Path) -> None:
    values = {bytes([i]): {"a": i} for i in range(6)}
    for name in values:
        opened(tmp_path, values, most=2).look(name)
    kept = KeptInputs(tmp_path / "inputs", most=2)
    assert [name for name in values if kept.get(name) is not None] == [b"\4", b"\5"]


def test_inputs_that_wait_for_a_label_and_had_to_go_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=2)
    inputs = Inputs({bytes([i]): {"a": i} for i in range(5)}.get, FEATURES, kept)
    for i in range(5):  # the first three are events, and the others readings that nothing came of
        x = inputs.look(bytes([i]))
        if x is not None and i < 3:
            kept.put(bytes([i]), x, True, i)
    assert inputs.noted() == {"crowded out": 1}
    assert inputs.noted() is inputs.counts
    assert caplog.text.count("let `kept` be no less than the server's `most`") == 1
    assert [kept.get(bytes([i])) is not None for i in range(5)] == [False, True, True, True, True]


@pytest.mark.parametrize("learnt", [False, True], ids=["waiting", "learnt"])
def test_an_input_is_made_once_however_full_the_file_is(learnt: bool, tmp_path: Path) -> None:
    """Events that wait, or that are learnt and not dropped yet, push out no input that was looked up just now."""
    kept = KeptInputs(tmp_path / "inputs", most=5)
    for i in range(5):
        kept.put(bytes([i]), np.zeros(1, np.float32), False, i)
    if learnt:
        kept.learnt([(i, bytes([i]), False) for i in range(5)], [])
    asked = []

    def look(name: bytes) -> dict[str, float]:
        asked.append(name)
        return {"a": float(len(asked))}

    inputs = Inputs(look, FEATURES, kept)
    events = [bytes([i]) for i in range(10, 15)]
    found = [[inputs.look(event) for _ in range(3)] for event in events]
    assert asked == events
    assert all(x is not None and x.tobytes() == each[0].tobytes() for each in found for x in each)  # type: ignore[union-attr]
    kept.put(events[0], np.zeros(1, np.float32), True, 5)
    assert inputs.noted() == ({} if learnt else {"crowded out": 1})


def test_what_is_unknown_or_unusable_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inputs = opened(tmp_path, {bytes([i]): {"a": "abc"} for i in range(9)})
    with caplog.at_level(logging.WARNING):
        assert inputs.look(b"nobody") is None
        assert [inputs.look(bytes([i])) for i in range(9)] == [None] * 9
    assert inputs.counts == {"unknown": 1, "unusable": 9}
    assert [record.getMessage() for record in caplog.records] == [
        "features: an event counts as unknown here, since a value of it is unusable: column 'a': a text is not a "
        "number: has the column changed its type? A column of words is of kind = 'category', and a text that means no "
        "value belongs into missing_values"
    ]


def test_what_is_old_is_looked_up_anew(tmp_path: Path) -> None:
    old, new, newer = (Names(bytes(32)).of("", second * 1_000_000) for second in (100, 110, 111))
    values = {event: {"a": 1.0} for event in (old, new, newer)}
    kept = KeptInputs(tmp_path / "inputs", most=9, expiry=10)
    inputs = Inputs(values.get, Features(["a"]), kept)
    inputs.look(old)
    values[old] = {"a": 2.0}
    inputs.look(new)
    assert (inputs.expire(), inputs.look(old)) == (0, [1.0])
    inputs.look(newer)
    assert (inputs.expire(), inputs.look(old)) == (1, [2.0])
    assert inputs.counts == {"expired": 1}


def test_what_was_kept_with_other_features_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, {b"1": {"a": 1}}).look(b"1")
    with pytest.raises(CheckpointError, match="kept with other features"):
        opened(tmp_path, {}, Features(["a", "b"]))


def test_what_was_looked_up_before_is_not_asked_for_again(tmp_path: Path) -> None:
    asked: list[bytes] = []
    values: dict[bytes, Any] = {b"1": {"a": 1.0}, b"2": {"a": 3.0}, b"3": {"a": 5.0}}

    def look(name: bytes) -> Any:
        asked.append(name)
        return values.get(name)

    inputs = Inputs(look, FEATURES, KeptInputs(tmp_path / "inputs", most=100))
    steady = opened(tmp_path / "steady", values)
    assert inputs.lacking([b"1", b"2", b"1", b"?"]) == [b"1", b"2", b"?"]
    ahead = inputs.look_ahead([b"1", b"2", b"?"])
    assert asked == [b"1", b"2", b"?"]
    with inputs.knowing(ahead):
        for name in (b"1", b"2", b"?", b"3"):
            found, expected = inputs.look(name), steady.look(name)
            assert (None if found is None else found.tolist()) == (None if expected is None else expected.tolist())
        assert inputs.peek(b"?") is None
    assert asked == [b"1", b"2", b"?", b"3"]
    assert inputs.counts == steady.counts == {"unknown": 1}
    assert inputs.lacking([b"1", b"?"]) == [b"?"]
    inputs.look(b"?")  # it may have come since
    assert asked[-1:] == [b"?"]
    assert len(asked) == 5


def test_a_source_that_is_away_is_not_one_that_does_not_know(tmp_path: Path) -> None:
    away = [True]

    def look(name: bytes) -> dict[str, float] | None:
        if away[0]:
            raise AwayError("the database is away")
        return {"a": 1.0} if name == b"1" else None

    inputs = Inputs(look, Features(["a"]), KeptInputs(tmp_path / "inputs", most=9))
    for ahead in ({}, inputs.look_ahead([b"1", b"2"])):
        with inputs.knowing(ahead):
            assert (inputs.look(b"1"), inputs.peek(b"1")) == (None, None)
            for name in (b"1", b"2"):
                with pytest.raises(AwayError):
                    inputs.read(name)
    away[0] = False
    assert (inputs.read(b"1"), inputs.read(b"2")) == (({"a": 1.0}, [1.0]), None)
    assert inputs.counts == {"away": 2, "unknown": 1}
