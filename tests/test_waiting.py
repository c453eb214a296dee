"""Labels that wait for events that do not come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anabranch.errors import CheckpointError
from anabranch.federation.expiry import DataTime, Uptime
from anabranch.federation.late_labels import Happening, WaitingRoom
from anabranch.protocol.codec import LARGEST, encode
from anabranch.protocol.messages import Record
from anabranch.storage.event_ids import Names
from anabranch.storage.pending_labels import Ready, Waiting
from anabranch.storage.place import Place

NAMES = Names(bytes(32))


def at(second: int, entity: str = "") -> bytes:
    return NAMES.of(entity, second * 1_000_000)


def opened(folder: Path, expiry: float | None = 50.0) -> Waiting:
    return Waiting(folder / "waiting", most=10, expiry=expiry)


def second_of(event: bytes) -> int:
    """Of its name, in microseconds."""
    read = NAMES.read(event)
    assert read is not None
    return read[1]


def test_labels_of_moments_that_the_events_have_passed(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    for second in (1, 2, 3, 300, 70_000):
        assert waiting.label(at(second), 0, second_of(at(second))) == "early"
    assert waiting.passed() == 0  # nothing has happened
    waiting.add(at(3), 0, b"", 0)
    assert waiting.passed() == 2
    waiting.add(at(2, "of an entity"), 1, b"", 0)  # one that comes late
    assert waiting.passed() == 2
    waiting.add(at(256), 2, b"", 0)
    assert waiting.passed() == 2
    waiting.learnt([at(3), at(256)])
    waiting.close()
    waiting = opened(tmp_path)  # it is known of those that are over, too
    assert waiting.passed() == 2
    waiting.add(at(301), 3, b"", 0)
    assert waiting.passed() == 3
    waiting.add(at(2), 4, b"", 0)  # its event comes after all
    assert waiting.passed() == 2
    assert waiting.expire(None, 51_000_000) == []
    assert (waiting.early, waiting.counts["unknown"]) == (3, 0)
    waiting.expire(None, 51_000_001)
    assert (waiting.early, waiting.counts["unknown"]) == (2, 1)
    waiting.give_up_early()
    assert (waiting.passed(), waiting.early, waiting.counts["unknown"]) == (0, 0, 3)
    waiting.close()


def test_names_of_another_kind_say_nothing_of_times(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    waiting.add(b"zzzz", 0, b"", 0)
    waiting.label(at(1), 0, 0)
    assert waiting.passed() == 0
    waiting.close()


def counted(waiting: Waiting) -> dict[str, int]:
    return {what: n for what, n in waiting.counts.items() if n}


S = 1_000_000
"""Microseconds of a second."""


def test_events_that_wait_too_long_or_are_too_many_go(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    assert [waiting.add(event, i, b"", i * S) for i, event in enumerate([b"a", b"b"])] == [[], []]
    assert waiting.label(b"b", 1, 1 * S) == "ready"
    assert waiting.add(b"c", 2, b"", 2 * S) == [b"a"]  # the oldest without a label
    assert [waiting.label(event, 1, 3 * S) for event in (b"a", b"a", b"b")] == ["expired", "expired", "duplicate"]
    assert counted(waiting) == {"happened": 3, "labelled": 1, "crowded out": 1, "expired label": 2, "duplicate": 1}
    waiting.close()
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    assert waiting.expire(None, None) == waiting.expire(52 * S, None) == []
    assert waiting.expire(52 * S + 1, None) == [b"c"]  # that with a label stays until it is learnt from
    assert (waiting.label(b"c", 1, 53 * S), len(waiting)) == ("expired", 1)
    assert [each.event for each in waiting.ready(9)] == [b"b"]
    waiting.learnt([b"b"])
    assert waiting.label(b"b", 1, 54 * S) == "duplicate"
    assert waiting.add(b"d", 3, b"", None) == []
    assert waiting.expire(2**62, None) == []  # of a moment that nobody knows
    assert counted(waiting) == {
        "happened": 4, "labelled": 1, "learnt": 1, "crowded out": 1, "expired": 1, "expired label": 3, "duplicate": 2,
    }  # fmt: skip
    waiting.close()


def test_labels_that_wait_too_long_or_are_too_many_go(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    found = [waiting.label(event, 1, i * S) for i, event in enumerate([b"a", b"b", b"b", b"c"])]
    assert found == ["early", "early", "duplicate", "early"]
    assert waiting.early == 2  # the one of a, the oldest, is gone
    waiting.add(b"a", 0, b"", 4 * S)
    assert waiting.ready(9) == []
    waiting.add(b"b", 1, b"", 4 * S)
    assert [each.event for each in waiting.ready(9)] == [b"b"]
    assert waiting.expire(None, 53 * S) == []
    assert waiting.early == 1
    waiting.expire(None, 54 * S)
    assert waiting.early == 0
    assert counted(waiting) == {"happened": 2, "labelled": 1, "early": 3, "duplicate": 1, "unknown": 2}
    waiting.close()


def test_labels_that_are_ahead_of_all_events_wait_in_their_source(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    assert waiting.label(at(10), 0, 10 * S) == "early"
    assert waiting.has_room(None)
    assert waiting.label(at(20), 0, 20 * S) == "early"
    assert [waiting.has_room(reached) for reached in (None, 10 * S, 11 * S)] == [False, False, True]
    assert waiting.label(at(30), 0, 30 * S) == "early"
    assert [waiting.add(at(s), s, b"", s * S) for s in (10, 20, 30)][-1] == [at(10)]
    assert [each.event for each in waiting.ready(9)] == [at(20), at(30)]  # the oldest label went
    waiting.close()


def test_up_to_where_labels_were_sorted_in_is_known_after_a_restart(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    for i, event in enumerate([b"a", b"b"]):
        waiting.label(event, 0, 0, place=Place("labels.csv", [i]))
    waiting.close()
    waiting = opened(tmp_path)
    assert waiting.sorted_in == Place("labels.csv", [1])
    waiting._database.execute("UPDATE sorted_in SET place = '[1'")
    waiting.close()
    with pytest.raises(CheckpointError, match="up to where labels were read is damaged"):
        opened(tmp_path)


def test_events_are_learnt_from_in_their_own_order_if_wanted(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    for number, event in enumerate([b"a", b"b", b"c"]):
        waiting.add(event, number, b"", 0)
    for event in (b"c", b"a"):
        waiting.label(event, 0, 0)
    ready = waiting.ready(9)
    assert [each.event for each in ready] == [b"c", b"a"]
    waiting.put_back(ready)
    assert [each.event for each in waiting.ready(9, "events")] == [b"a", b"c"]
    waiting.close()


class Nothing:
    """Where nothing happens."""

    over = False
    found_none = 0

    def take(self, n: int) -> list[Happening]:
        return []

    async def more(self) -> None:
        raise NotImplementedError

    def go_on(self, happened: int, labelled: int) -> None:
        pass


def test_a_room_counts_them_where_names_bear_times(tmp_path: Path) -> None:
    waiting = opened(tmp_path, expiry=None)
    waiting.label(at(1), 0, 0)
    waiting.add(at(2), 0, b"", 0)
    for clock, without in ((Uptime(waiting), 0), (DataTime(), 1)):
        room = WaitingRoom(waiting, Nothing(), stored=False, clock=clock)
        room.expired(1e9, [1], idle=True)
        assert room.without_event == without
    waiting.close()


def test_what_waits_is_read_again_however_much_its_clients_have_sent(tmp_path: Path) -> None:
    waiting, values = opened(tmp_path), np.ones(LARGEST // 4, np.float32)
    record = Record(b"e", 0, np.ones(1, bool), (0,), (3,), values, predicted=1, stored=True)
    ready = Ready(b"e", 1, encode(record))
    room = WaitingRoom(waiting, Nothing(), stored=True)
    found = room.late(ready).stored
    assert found is not None
    assert np.array_equal(found.embeddings, values)
    assert room.activated([ready]).tolist() == [[True]]
    waiting.close()
