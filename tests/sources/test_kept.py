"""Kept inputs stay what they were, are bounded, and survive a process that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anabranch.errors import CheckpointError, ConfigError, OutputError
from anabranch.storage.event_ids import Names
from anabranch.storage.feature_store import KeptInputs, Told
from anabranch.storage.place import Place


def at(n: int) -> Place:
    return Place("a table", [n, "id"])


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_an_input_stays_the_one_that_was_kept_first(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "own" / "inputs", most=10)
    kept.put(b"a", row(1, 2), None, 0)
    kept.put(b"a", row(3, 4), True, 1)
    kept.put(b"a", row(5, 6), False, 2)
    x, activated = kept.get(b"a") or pytest.fail("it is gone")
    assert (x.tolist(), x.dtype, activated, len(kept)) == ([1, 2], np.float32, True, 1)
    assert kept.get(b"b") is None
    x[0] = 9  # a copy
    assert (kept.get(b"a") or pytest.fail("it is gone"))[0].tolist() == [1, 2]


def test_there_are_never_more_than_most_and_the_lowest_numbers_go(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=3)
    for number in (5, 1, 4, 2, 3):
        kept.put(bytes([number]), row(number), number == 4, number)
    assert [kept.get(bytes([number])) is not None for number in range(1, 6)] == [False, False, True, True, True]
    assert (len(kept), kept.crowded_out) == (3, 2)


def test_what_is_decided_of_goes_last(tmp_path: Path) -> None:
    """Readings of which no event came push out no input that may wait for a label, nor the other way about."""
    kept = KeptInputs(tmp_path / "inputs", most=4)
    for number in range(100):
        kept.put(bytes([number]), row(number), None)
        if number in (10, 20):
            kept.put(bytes([number]), row(number), number == 10, number // 10)
    there = [number for number in range(100) if kept.get(bytes([number])) is not None]
    assert there == [10, 20, 96, 97, 98, 99]
    assert (kept.crowded_out, len(kept)) == (0, 6)
    for number, event in enumerate([b"x1", b"x2", b"x3"], 3):
        kept.put(event, row(number), False, number)
    there = [number for number in range(100) if kept.get(bytes([number])) is not None]
    assert (there, kept.crowded_out) == ([20, 96, 97, 98, 99], 1)


def test_events_of_its_own_stay_until_they_are_safe(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=2)
    for number in range(20):
        kept.put(bytes([number]), row(number), None)
        if number < 3:
            kept.add_own(bytes([number]))
    there = [number for number in range(20) if kept.get(bytes([number])) is not None]
    assert (there, len(kept)) == ([0, 1, 2, 18, 19], 5)
    kept.drop_own([b"\0", b"\1"])
    kept.put(b"x", row(1), None)
    there = [number for number in range(20) if kept.get(bytes([number])) is not None]
    assert (there, kept.crowded_out) == ([2, 19], 0)


def test_what_is_learnt_takes_no_room_and_is_known_after_a_restart(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=2)
    for number in range(6):
        kept.put(bytes([number]), row(number), number % 2 == 0, number)
        kept.learnt([(10 - number, bytes([number]), number % 2 == 0)], [])
    kept.learnt([(3, b"nobody", True)], [b"\1", b"nobody"])
    expected = [(10 - number, bytes([number]), number % 2 == 0) for number in (5, 4, 3, 2, 0)]
    assert (kept.were_learnt(), len(kept), kept.crowded_out, kept.recent(9)) == (expected, 5, 0, [])
    kept.close()
    kept = KeptInputs(tmp_path / "inputs", most=2)
    for number in range(6, 9):
        kept.put(bytes([number]), row(number), True, number)
    assert (kept.were_learnt(), len(kept), kept.crowded_out) == (expected, 7, 1)
    kept.drop(event for _, event, _ in expected)
    assert (kept.were_learnt(), len(kept), kept.recent(9)) == ([], 2, [b"\7", b"\10"])


def test_what_is_old_goes(tmp_path: Path) -> None:
    now = [500.0]
    kept = KeptInputs(tmp_path / "inputs", most=9, expiry=10, clock=lambda: now[0])
    a, b, c, d = (Names(bytes(32)).of("", second * 1_000_000) for second in (100, 101, 110, 10**9))
    assert kept.expire() == 0
    kept.put(a, row(1), None, 0)
    kept.put(b, row(2), None, 1)
    for event in (a, b):
        kept.add_own(event, at(7))
    now[0] = 1e9  # a machine's clock that jumps makes nothing old
    kept.put(c, row(3), None, 2)
    kept.put(b"of no time", row(4), None, 3)
    assert kept.expire() == 0
    now[0] = 110.5
    kept.put(d, row(5), None, 4)  # nor does a reading from the future make others older than the clock says
    assert kept.expire() == 1
    assert (kept.get(a), len(kept), kept.own()) == (None, 4, {b: at(7)})
    assert KeptInputs(tmp_path / "other", most=9).expire() == 0


def test_dropped_events_are_gone_and_unknown_ones_do_not_matter(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=9)
    for name in (b"a", b"b", b"c"):
        kept.put(name, row(1), None, 0)
    kept.drop([b"a", b"x", b"c"])
    kept.drop([])
    assert (len(kept), kept.get(b"a"), kept.get(b"b") is None) == (1, None, False)
    kept.close()
    assert len(KeptInputs(tmp_path / "inputs", most=9)) == 1


def test_events_of_its_own_are_held_until_they_are_safe(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=1)
    for place, event in zip([at(0), at(1), None, at(3)], [b"b", b"a", b"c", b"b"], strict=True):
        kept.add_own(event, place)
    kept.drop_own([b"a", b"x"])
    kept.close()
    assert [*KeptInputs(tmp_path / "inputs", most=1).own().items()] == [(b"b", at(0)), (b"c", None)]


def test_what_was_told_of_entities_is_held_with_the_events_and_bounded(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=1)
    for n, (event, entity) in enumerate([(b"a", "x"), (b"b", "y"), (b"c", "x"), (b"d", "z")]):
        kept.add_own(event, None if n == 3 else at(n), entity, [n, None], 2)
    kept.add_own(b"e", at(9))
    kept.close()
    kept = KeptInputs(tmp_path / "inputs", most=1)
    assert [*kept.told().items()] == [("x", Told(at(2), [2, None])), ("z", Told(None, [3, None]))]
    with pytest.raises(TypeError):
        kept.add_own(b"f", at(10), "x", [object()], 2)
    assert b"f" not in kept.own()
    kept.add_own(b"g", at(11), "z", [], 1)
    assert kept.told() == {"z": Told(at(11), [])}
    for table, column, text, read in (("told", "state", "[", kept.told), ("own", "read_at", "[1]", kept.own)):
        kept._database.execute(f"UPDATE {table} SET {column} = '{text}'")
        with pytest.raises(CheckpointError, match="is damaged: put back a copy"):
            read()


def test_it_survives_kill_9(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from anabranch.storage.feature_store import KeptInputs\n"
        "kept = KeptInputs(Path(sys.argv[1]), most=1000)\n"
        "for i in range(100):\n"
        "    kept.put(i.to_bytes(2, 'big'), np.full(3, i, np.float32), i % 2 == 0, i)\n"
        "kept.drop([b'\\0\\0'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "inputs")], env=os.environ, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    kept = KeptInputs(tmp_path / "inputs", most=1000)
    assert len(kept) == 99
    for i in range(1, 100):
        x, activated = kept.get(i.to_bytes(2, "big")) or pytest.fail("it is gone")
        assert (x.tolist(), activated) == ([i] * 3, i % 2 == 0)


def test_a_state_is_kept_with_an_input(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path / "inputs", most=1)
    assert kept.state() is None
    kept.put(b"a", row(1), None, 0, b"one")
    kept.put(b"b", row(2), None, 1)
    kept.put(b"c", row(3), None, 2, b"two")
    kept.close()
    again = KeptInputs(tmp_path / "inputs", most=1)
    assert (again.state(), len(again), again.get(b"c") is None) == (b"two", 1, False)


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "inputs"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 100)
    with pytest.raises(CheckpointError, match=r"inputs: is damaged .*put back a copy"):
        KeptInputs(path, most=9)


def test_a_page_that_is_damaged_later_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "inputs"
    kept = KeptInputs(path, most=10_000)
    for i in range(500):
        kept.put(i.to_bytes(2, "big"), np.full(20, i, np.float32), None, i)
    kept.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        KeptInputs(path, most=10_000).get(b"\0\1")


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id)")
    database.close()
    with pytest.raises(CheckpointError, match="another kind"):
        KeptInputs(path, most=9)


def test_a_file_of_an_earlier_version_is_said_to_be_one_and_what_is_lost_with_it(tmp_path: Path) -> None:
    path = tmp_path / "inputs"
    with sqlite3.connect(path) as database:
        database.executescript("CREATE TABLE kept (event); PRAGMA application_id = 1634626359")  # "ank7"
    database.close()
    with pytest.raises(CheckpointError, match=r"an earlier version .* Lost with it: the inputs of"):
        KeptInputs(path, most=9)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be used"):
        KeptInputs(tmp_path / "file" / "inputs", most=9)


@pytest.mark.parametrize("arguments", [{"most": 0}, {"most": 1, "expiry": 0.0}])
def test_bounds_are_checked(tmp_path: Path, arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        KeptInputs(tmp_path / "inputs", **arguments)  # type: ignore[arg-type]
