"""Labels come from the same sources, each for its event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.federation.source_client import SourceSamples
from anabranch.sources.base import Happening, Reading
from anabranch.sources.file import FileSource
from anabranch.sources.labels import LateLabel, SourceLabels
from anabranch.sources.python import PythonSource
from anabranch.sources.sql.source import SqlSource
from anabranch.storage.cursor import Cursor
from anabranch.storage.event_ids import Names
from anabranch.storage.times import TimeRule
from databases import Sqlite
from source_playing import run

NAMES = Names(bytes(32))
EARLY = TimeRule(years=(1970, 2100))


async def all_of(labels: SourceLabels) -> list[LateLabel]:
    return [each async for each in labels.labels()]


def test_a_label_of_a_file_is_of_the_event_that_its_row_tells_of(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("who,bought,known,back\nx,1,100,1\ny,5,100,0\nx,7,200,\n")
    cursor = Cursor(tmp_path / "cursor", "labels.csv")
    source = FileSource(path, NAMES, "known", ["back"], entity="who", event_time="bought", cursor=cursor, times=EARLY)
    labels = SourceLabels(source, "back", 2)
    found = run(all_of(labels))
    assert [(each.name, each.label, each.time) for each in found] == [
        (NAMES.of("x", 1_000_000), 1, 1_000_000), (NAMES.of("y", 5_000_000), 0, 5_000_000),
    ]  # fmt: skip
    assert labels.counts == {"without a label": 1}
    for each in found:
        run(each.safe())
    assert cursor.position[0] == 3


def test_a_label_of_a_table_comes_when_its_row_is_changed(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "orders.db")
    database.run(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, at INTEGER, changed INTEGER, back INTEGER)",
        "INSERT INTO orders VALUES (1, 'x', 1, 1, NULL), (2, 'y', 2, 2, 0)",
    )

    def again() -> list[tuple[int, int]]:
        source = SqlSource(
            database.url, "orders", NAMES, ["back"], time="changed", id="id", entity="who", event_time="at",
            follow=False, cursor=Cursor(tmp_path / "cursor", "orders"), times=EARLY,
        )  # fmt: skip

        async def main() -> list[tuple[int, int]]:
            found = []
            for each in await all_of(SourceLabels(source, "back", 2)):
                found.append((each.time // 1_000_000, each.label))
                await each.safe()
            await source.close()
            return found

        return run(main())

    assert again() == [(2, 0)]
    database.run("UPDATE orders SET back = 1, changed = 30 WHERE id = 1")
    assert again() == [(1, 1)]
    assert again() == []


def test_a_label_that_is_no_class_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def readings() -> AsyncIterator[Reading]:
        for time, value in enumerate([0, "2", 3, -1, 1.5, "yes", 1e400, "0_1", True, 2.0]):
            yield Reading("x", time, {"y": value})

    labels = SourceLabels(PythonSource(NAMES, readings()), "y", 3)
    assert [each.label for each in run(all_of(labels))] == [0, 2, 1, 2]
    assert labels.counts == {"no class": 6}
    assert (
        "column 'y': the label of a row of 1970-01-01 00:00:00 UTC is left out: a value of type int is no label from "
        in (caplog.text)
    )


def test_rows_without_a_label_leave_time_for_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("known,back\n" + "".join(f"{second},\n" for second in range(100)) + "100,1\n")
    labels = SourceLabels(FileSource(path, NAMES, "known", ["back"], times=EARLY), "back", 2)

    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        assert len(await all_of(labels)) == 1
        beside.cancel()
        return turns

    assert run(main()) >= 100
    assert labels.counts == {"without a label": 100}


def test_a_second_label_of_an_event_opens_no_second_round(caplog: pytest.LogCaptureFixture) -> None:
    """Whether the round is still to come or over; each is safe once the round is."""
    safe: list[int] = []
    over: set[bytes] = set()

    class Told(PythonSource):
        async def readings(self) -> AsyncIterator[Happening]:
            for i, time in enumerate([1, 2, 1, 2]):

                async def acknowledge(i: int = i) -> None:
                    safe.append(i)

                yield Happening(NAMES.of("x", time), Reading("x", time, {"y": i % 2}), acknowledge)

    labels = SourceLabels(Told(NAMES), "y", 2)

    async def main() -> list[tuple[bytes, int]]:
        samples = SourceSamples(labels)
        samples.played = over.__contains__
        taken = []
        for i in range(4):
            if i == 3:  # the round of the second is over
                over.add(NAMES.of("x", 2))
                samples.taken.is_safe(NAMES.of("x", 2))
            await samples.more()
            taken += samples.take(9)
        await samples.taken.end()
        return taken

    assert run(main()) == [(NAMES.of("x", 1), 0), (NAMES.of("x", 2), 1)]
    assert labels.counts == {"second label": 2}
    assert sorted(safe) == [1, 3]
    assert "a label of an event that has its round already is left out" in caplog.text


def test_a_message_may_tell_of_an_event_of_before() -> None:
    from anabranch.sources.jetstream import JetStreamSource

    async def connect() -> Any:
        raise AssertionError

    source = JetStreamSource(connect, NAMES, ["y"], stream="s", entity="who", time="at", event_time="of", times=EARLY)
    reading, event = source._reading(b'{"who": "x", "at": 9, "of": 2, "y": 1}', None, None)
    assert (reading.time, event, reading.values) == (9_000_000, 2_000_000, {"y": 1})
