"""The clocks that late labels expire by: a label that is there is never expired unseen, whatever the machine's says."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.federation.expiry import DataTime, Uptime
from anabranch.federation.late_labels import Happening, WaitingRoom
from anabranch.protocol.actions import Predicted
from anabranch.storage.event_ids import Names
from anabranch.storage.pending_labels import Waiting

NAMES = Names(bytes(32))
S = 1_000_000
FAR = 1e15
"""A machine's clock that is ahead of all data."""


def at(second: float) -> bytes:
    return NAMES.of("", round(second * S))


class Source:
    """Labels that are there when a test says so."""

    def __init__(self) -> None:
        self.here: deque[Happening] = deque()
        self.over, self.found_none = False, 0

    def take(self, n: int) -> list[Happening]:
        return [self.here.popleft() for _ in range(min(n, len(self.here)))]

    def go_on(self, *taken: int) -> None:
        pass


def room_of(folder: Path, *, expiry: float, wall: float = FAR, most: int = 1000) -> tuple[WaitingRoom, Source]:
    source = Source()
    waiting = Waiting(folder / "waiting", most=most, expiry=expiry)
    return WaitingRoom(waiting, source, stored=False, clock=DataTime(lambda: wall)), source


def happens(room: WaitingRoom, *events: bytes, client: int = 1) -> None:
    """Has a client announce events, and predicts them."""
    for event in events:
        room.announced(event, [client])
        assert room.arrived([event]) == [event]
        nothing = np.zeros(1, bool)
        room.predicted(Predicted(0, event, room.number(1), 0, None, None, nothing, (0,), (0,)))


def learnt(room: WaitingRoom) -> list[bytes]:
    """Sorts in all labels that are there, and learns from each."""
    found: list[bytes] = []
    while True:
        room.sort_in(5)
        ready = [each.event for each in room.ready(5)]
        if not ready:
            return found
        room.learnt(ready)
        found += ready


def test_a_busy_server_expires_nothing(tmp_path: Path) -> None:
    """Its events are old by every other clock when their labels are read."""
    room, source = room_of(tmp_path, expiry=3.0)
    happens(room, *(at(s) for s in range(100)))
    for look in range(10):
        assert room.expired(1e6 * look, [1], idle=False) == []
    source.here += [Happening(at(s), 1, (s + 3) * S) for s in range(100)]
    assert learnt(room) == [at(s) for s in range(100)]


def test_a_label_that_became_known_too_late_is_not_learnt_from(tmp_path: Path) -> None:
    room, source = room_of(tmp_path, expiry=3.0)
    happens(room, at(1), at(2), at(3))
    source.here += [Happening(at(3), 1, 4 * S), Happening(at(2), 1, 5 * S), Happening(at(1), 1, 5 * S)]
    assert learnt(room) == [at(3), at(2)]
    assert room.expired(0.0, [1], idle=True) == [at(1)]
    counts = room.waiting.counts
    assert (counts["expired"], counts["expired label"]) == (1, 1)
    assert counts["learnt"] + counts["expired"] + counts["crowded out"] + len(room.waiting) == counts["happened"]


def test_labels_wait_for_the_events_of_the_slowest_client(tmp_path: Path) -> None:
    """One client is far ahead of another, or has said nothing yet."""
    room, source = room_of(tmp_path, expiry=3.0)
    source.here += [Happening(at(s), 1, s * S) for s in range(50)]
    learnt(room)
    happens(room, at(40), client=1)
    room.expired(0.0, [1, 2], idle=True)
    happens(room, at(5), client=2)
    assert learnt(room) == [at(40), at(5)]
    assert room.waiting.counts["unknown"] == 0
    room.expired(10.0, [1, 2], idle=True)
    assert room.waiting.counts["unknown"] == 2  # those of before 2
    room.expired(20.0, [1], idle=True)  # the other announces none any more
    assert room.waiting.counts["unknown"] == 37 - 1


def test_events_expire_by_later_events_once_no_label_was_found_since(tmp_path: Path) -> None:
    room, source = room_of(tmp_path, expiry=3.0)
    happens(room, at(1))
    happens(room, at(9))
    looks = iter(range(1000))
    for source.found_none in (1, 2, 2, 3):  # the second look may have been begun before the event was there
        assert room.expired(2.0 * next(looks), [1], idle=True) == []
    assert room.expired(2.0 * next(looks), [1], idle=False) == []
    source.found_none = 4
    assert room.expired(2.0 * next(looks), [1], idle=False) == []
    assert room.expired(2.0 * next(looks), [1], idle=True) == [at(1)]


@pytest.mark.parametrize("clock", [FAR, 20.0, 0.0], ids=["ahead", "right", "behind"])
def test_a_reading_from_the_future_expires_no_event_of_today(tmp_path: Path, clock: float) -> None:
    room, source = room_of(tmp_path, expiry=30.0, wall=clock)
    happens(room, at(10), at(1e9))
    source.here.append(Happening(at(1e9), 1, int(1e9) * S))
    assert learnt(room) == [at(1e9)]
    assert room.expired(0.0, [1], idle=True) == ([at(10)] if clock == FAR else [])


def test_events_without_times_expire_by_the_time_that_the_server_was_up_and_idle(tmp_path: Path) -> None:
    def opened() -> tuple[WaitingRoom, Waiting]:
        waiting = Waiting(tmp_path / "waiting", most=9, expiry=3.0)
        return WaitingRoom(waiting, Source(), stored=False), waiting

    room, waiting = opened()
    happens(room, b"a")
    for now, idle in ((0.0, True), (1.0, True), (500.0, False), (1000.0, True), (1001.0, True)):
        assert room.expired(now, [1], idle=idle) == []
    assert waiting.uptime == 2 * S
    assert room.expired(9000.0, [1], idle=True) == [b"a"]  # a process that was stopped counts for little
    assert waiting.uptime == 4 * S
    happens(room, b"b")
    waiting.close()
    room, waiting = opened()  # after a restart it goes on from there
    assert waiting.uptime == 4 * S
    assert room.expired(9001.0, [1], idle=True) == []
    waiting.close()


def test_labels_are_left_out_once_labels_have_ended_and_nothing_happens_for_long(tmp_path: Path) -> None:
    """A client that is there and says nothing keeps no server open without end; a process that was stopped is quiet."""
    room, source = room_of(tmp_path, expiry=3.0)
    happens(room, at(1))
    source.here += [Happening(at(1), 1, 2 * S), Happening(at(9), 1, 9 * S)]
    assert learnt(room) == [at(1)]
    for now in (0.0, 500.0):
        room.expired(now, [1], idle=True)
    source.over = True
    for now in (600.0, 601.0):
        room.expired(now, [1], idle=True)
    happens(room, at(5))
    for now in (602.0, 603.0, 900.0):
        room.expired(now, [1], idle=True)
        assert (room.waiting.early, room.waiting.counts["unknown"]) == (1, 0)
    room.expired(901.0, [1], idle=True)
    assert (room.waiting.early, room.waiting.counts["unknown"]) == (0, 1)


def test_uptime_is_counted_by_looks_of_the_monotonic_clock(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "waiting", most=9, expiry=3.0)
    clock = Uptime(waiting)
    for now in (5.0, 5.5, 5.75):
        clock.look(now, [], idle=True, found_none=0)
    assert clock.now == clock.passed == waiting.uptime == 0.75 * S
    waiting.close()


@settings(max_examples=60, deadline=None)
@given(
    delays=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    expiry=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_event_is_learnt_from_or_has_expired_at_any_load(
    tmp_path_factory: pytest.TempPathFactory, delays: list[int], expiry: int, seed: int
) -> None:
    """Event i is of second i, its label becomes known so much later; reading and predicting take turns at random."""
    random = np.random.default_rng(seed)
    room, source = room_of(tmp_path_factory.mktemp("room"), expiry=float(expiry))
    known = sorted((i + delay, i) for i, delay in enumerate(delays))
    source.here += [Happening(at(i), 1, moment * S) for moment, i in known]
    left, found = deque(range(len(delays))), list[bytes]()
    looks = 0.0
    while left or source.here:
        looks += 2.0
        if left and random.random() < 0.7:
            happens(room, at(left.popleft()))
        elif random.random() < 0.5:
            found += learnt(room)
        room.expired(looks, [1], idle=not source.here)
    found += learnt(room)
    room.expired(looks + 2.0, [1], idle=True)
    counts = room.waiting.counts
    assert {*found} == {at(i) for i, delay in enumerate(delays) if delay <= expiry}
    assert counts["learnt"] + counts["expired"] + len(room.waiting) == counts["happened"] == len(delays)
    assert counts["labelled"] + counts["expired label"] == len(delays)
    room.waiting.close()
