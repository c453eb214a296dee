"""Labels that wait for events that do not come."""

from __future__ import annotations

from pathlib import Path

from anabranch.net.waitingroom import Happening, WaitingRoom
from anabranch.sources.names import Names
from anabranch.store.waiting import Waiting

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
    for of_times in (False, True):
        room = WaitingRoom(waiting, Nothing(), stored=False)
        room.of_times = of_times
        room.expired(now=1e9)
        assert room.without_event == int(of_times)
    waiting.close()
