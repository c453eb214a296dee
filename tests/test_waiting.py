"""Labels that wait for events that do not come."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anabranch.federation.late_labels import Happening, WaitingRoom
from anabranch.protocol.codec import LARGEST, encode
from anabranch.protocol.messages import Record
from anabranch.storage.event_ids import Names
from anabranch.storage.pending_labels import Ready, Waiting

NAMES = Names(bytes(32))


def at(second: int, entity: str = "") -> bytes:
    return NAMES.of(entity, second * 1_000_000)


def opened(folder: Path, expiry: float | None = 50.0) -> Waiting:
    return Waiting(folder / "waiting", most=10, expiry=expiry)


def test_labels_of_moments_that_the_events_have_passed(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    for second in (1, 2, 3, 300, 70_000):
        assert waiting.label(at(second), 0, now=0.0) == "early"
    assert waiting.passed() == 0  # nothing has happened
    waiting.add(at(3), 0, b"", now=1.0)
    assert waiting.passed() == 2
    waiting.add(at(2, "of an entity"), 1, b"", now=2.0)  # one that comes late
    assert waiting.passed() == 2
    waiting.add(at(256), 2, b"", now=3.0)
    assert waiting.passed() == 2
    waiting.learnt([at(3), at(256)])
    waiting.close()
    waiting = opened(tmp_path)  # it is known of those that are over, too
    assert waiting.passed() == 2
    waiting.add(at(301), 3, b"", now=4.0)
    assert waiting.passed() == 3
    waiting.add(at(2), 4, b"", now=5.0)  # its event comes after all
    assert waiting.passed() == 2
    assert waiting.expire(now=50.5) == []
    assert (waiting.passed(), waiting.early, waiting.counts["unknown"]) == (0, 0, 3)
    waiting.close()


def test_names_of_another_kind_say_nothing_of_times(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    waiting.add(b"zzzz", 0, b"", now=0.0)
    waiting.label(at(1), 0, now=0.0)
    assert waiting.passed() == 0
    waiting.close()


def counted(waiting: Waiting) -> dict[str, int]:
    return {what: n for what, n in waiting.counts.items() if n}


def test_events_that_wait_too_long_or_are_too_many_go(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    assert [waiting.add(event, i, b"", now=float(i)) for i, event in enumerate([b"a", b"b"])] == [[], []]
    assert waiting.label(b"b", 1, now=2.0) == "ready"
    assert waiting.add(b"c", 2, b"", now=2.0) == [b"a"]  # the oldest without a label
    assert [waiting.label(event, 1, now=3.0) for event in (b"a", b"a", b"b")] == ["expired", "expired", "duplicate"]
    assert counted(waiting) == {"happened": 3, "labelled": 1, "crowded out": 1, "expired label": 2, "duplicate": 1}
    waiting.close()
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    assert waiting.expire(now=51.9) == []
    assert waiting.expire(now=52.0) == [b"c"]  # that with a label stays until it is learnt from
    assert (waiting.label(b"c", 1, now=53.0), len(waiting)) == ("expired", 1)
    assert [each.event for each in waiting.ready(9)] == [b"b"]
    waiting.learnt([b"b"])
    assert waiting.label(b"b", 1, now=54.0) == "duplicate"
    assert waiting.add(b"d", 3, b"", now=54.0) == []
    assert counted(waiting) == {
        "happened": 4, "labelled": 1, "learnt": 1, "crowded out": 1, "expired": 1, "expired label": 3, "duplicate": 2,
    }  # fmt: skip
    waiting.close()


def test_labels_that_wait_too_long_or_are_too_many_go(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=2, expiry=50.0)
    found = [waiting.label(event, 1, now=float(i)) for i, event in enumerate([b"a", b"b", b"b", b"c"])]
    assert found == ["early", "early", "duplicate", "early"]
    assert waiting.early == 2  # the one of a, which waits for the longest, is gone
    waiting.add(b"a", 0, b"", now=4.0)
    assert waiting.ready(9) == []
    waiting.add(b"b", 1, b"", now=4.0)
    assert [each.event for each in waiting.ready(9)] == [b"b"]
    assert waiting.expire(now=53.0) == []
    assert waiting.early == 0
    assert counted(waiting) == {"happened": 2, "labelled": 1, "early": 3, "duplicate": 1, "unknown": 2}
    waiting.close()


class Nothing:
    """Where nothing happens."""

    over = False

    def take(self, n: int) -> list[Happening]:
        return []

    async def more(self) -> None:
        raise NotImplementedError

    def go_on(self, happened: int, labelled: int) -> None:
        pass


def test_a_room_counts_them_where_names_bear_times(tmp_path: Path) -> None:
    waiting = opened(tmp_path, expiry=None)
    waiting.label(at(1), 0, now=0.0)
    waiting.add(at(2), 0, b"", now=0.0)
    for tell_times in (False, True):
        room = WaitingRoom(waiting, Nothing(), stored=False)
        room.tell_times = tell_times
        room.expired(now=1e9)
        assert room.without_event == int(tell_times)
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
