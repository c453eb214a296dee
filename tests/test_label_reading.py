"""Labels are read from a source ahead of what is taken, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.errors import DataError
from anabranch.federation import source_client as sourced
from anabranch.federation.source_client import SourceHappenings
from anabranch.sources.base import Reading
from anabranch.sources.labels import SourceLabels
from anabranch.sources.python import PythonSource
from anabranch.storage.event_ids import Names
from anabranch.storage.place import Place
from source_playing import run

NAMES = Names(bytes(32))


class Given:
    """Readings as a test gives them, and how many were read."""

    def __init__(self, n: int, fails: bool = False) -> None:
        self.n, self.fails, self.read, self.more = n, fails, 0, asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Reading]:
        for i in range(self.n):
            self.read += 1
            yield Reading("", i, {"y": i % 2})
        if self.fails:
            raise DataError("no more can be read")
        await self.more.wait()
        yield Reading("", self.n, {"y": 0})


def labels_of(given: Given) -> SourceHappenings:
    return SourceHappenings(SourceLabels(PythonSource(NAMES, given), "y", 2))


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_all_that_is_there_is_read_and_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourced, "READ_AHEAD", 20)

    async def main() -> None:
        given = Given(50)
        labels = labels_of(given)
        await labels.more()
        await settle()
        assert given.read == 20
        first = labels.take(99)
        assert [each.time for each in first] == [*range(20)]
        assert [each.label for each in first] == [i % 2 for i in range(20)]
        await settle()
        assert given.read == 40
        taken: list[Any] = []
        while len(taken) < 30:
            await labels.more()
            taken += labels.take(7)
        waits = asyncio.ensure_future(labels.more())
        await settle()
        assert not waits.done()
        given.more.set()
        await waits
        assert len(labels.take(9)) == 1
        await labels.more()
        assert labels.over
        await labels.close()

    run(main())


def test_what_ends_the_reading_is_raised_once_all_before_it_was_taken() -> None:
    async def main() -> None:
        labels = labels_of(Given(3, fails=True))
        await labels.more()
        await settle()
        assert len(labels.take(9)) == 3
        assert not labels.over
        with pytest.raises(DataError, match="no more can be read"):
            await labels.more()
        await labels.close()

    run(main())


def test_what_an_earlier_process_has_sorted_in_is_left_out() -> None:
    async def main() -> None:
        labels = labels_of(Given(3))
        await labels.more()
        await settle()
        labels._here.extend(
            each._replace(happening=type(each.happening)(each.name, each.happening.reading, None, Place("a", [i])))
            for i, each in enumerate([labels._here.popleft() for _ in range(3)])
        )
        labels.sorted_in = Place("a", [1])
        assert [each.time for each in labels.take(9)] == [2]
        await labels.close()

    run(main())
