"""A client in Python whose readings and look-ups are a program's own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.core.updates import SLR
from anabranch.errors import ConfigError
from anabranch.net import Client
from anabranch.sources.activation import OnEvent, SendOnDelta
from anabranch.sources.base import Reading
from anabranch.sources.features import Column
from anabranch.sources.python import PythonSource
from anabranch.storage.event_ids import Names
from test_net_api import bottom, credentials, features, run, server, steps


def sourced(url: str, folder: Path, m: int, **options: Any) -> Client:
    return Client(credentials(url, m), folder / f"client {m}", model=bottom(m), learning_rate=0.1, clients=2, **options)


def test_readings_in_python_are_events(tmp_path: Path) -> None:
    """One client tells of what has moved, and the other looks up what it had at that time."""
    keys = Names(bytes(32))
    light = [0.0, 0.1, 3.0, 3.2, 0.4, 0.6, 0.2, 5.0]
    moved = [0, 2, 4, 7]

    async def readings() -> AsyncIterator[Any]:
        for i, value in enumerate(light):
            yield Reading("", 1_000_000 * i, {"light": value, "dark": value < 1})

    def sound(entity: str, time: int) -> dict[str, Any]:
        return {"sound": time / 1e6, "voice": 1.0}

    async def main(url: str) -> None:
        one = PythonSource(keys, readings())
        other = PythonSource(keys, look=sound)
        at = {keys.of("", 1_000_000 * i): int(value > 1) for i, value in enumerate(light)}
        own = server(url, tmp_path, labels=at.get)
        light_and_dark = ["light", Column("dark", "flag")]
        clients = [
            sourced(url, tmp_path, 1, source=one, columns=light_and_dark,
                   activation=SendOnDelta(0.5, ["light"])),
            sourced(url, tmp_path, 2, source=other, columns=["sound", "voice"]),
        ]  # fmt: skip
        taking = [asyncio.ensure_future(steps(each)) for each in clients]
        rounds = []
        async with own:
            async for each in own:
                rounds.append(each)
                if len(rounds) == len(moved):
                    own.end()
        assert [each.event for each in rounds] == [keys.of("", 1_000_000 * i) for i in moved]
        assert {each.activated for each in rounds} == {("bank",)}
        assert [each.replaced for each in rounds] == [{}] * len(moved)
        told, asked = await asyncio.gather(*taking)
        assert (len(told), len(asked)) == (len(moved), 0)
        found = [pytest.approx([light[i], float(light[i] < 1)]) for i in moved]
        with closing(sqlite3.connect(tmp_path / "client 1" / "inputs.sqlite")) as database:
            kept = dict(database.execute("SELECT event, x FROM kept"))
        assert [np.frombuffer(kept[each.event], np.float32).tolist() for each in rounds] == found

    run(main, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"source": PythonSource(Names(bytes(32))), "columns": ["a", "b"]},
            "say what inputs, features, events and",
        ),
        ({"source": [1, 2], "inputs": None, "features": None}, r"source is \[1, 2\], which has no begin"),
        ({"inputs": None}, "inputs and features, or a source and its columns"),
        ({"activation": OnEvent()}, "goes by readings as they happen: give their source"),
        ({"columns": ["a"]}, "columns and kept are for a source"),
        ({"kept": 10}, "columns and kept are for a source"),
        (
            {
                "source": PythonSource(Names(bytes(32))),
                "columns": ["light", "dark"],
                "inputs": None,
                "features": None,
                "activation": SendOnDelta(1.0, ["ligth"]),
            },
            "the column 'ligth', which is no number of columns. Did you mean 'light'",
        ),
    ],
)
def test_what_does_not_go_with_a_source(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sourced("nats://127.0.0.1:1", tmp_path, 1, **{"inputs": 2, "features": features(1)} | options)


@pytest.mark.parametrize(("late", "said"), [("fresh", "Give the events, or"), ("stored", "or 'fresh' with events")])
def test_slr_learns_from_no_late_events_that_clients_tell_of(tmp_path: Path, late: str, said: str) -> None:
    async def labels() -> AsyncIterator[tuple[str, int]]:
        yield "x", 1

    with pytest.raises(ConfigError, match=said):
        server("nats://127.0.0.1:1", tmp_path, labels=labels(), late=late, update=SLR(3))
