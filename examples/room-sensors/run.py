"""Seven sensor nodes in a room that wake when something has moved: how many people will be there in five minutes?"""

from __future__ import annotations

import asyncio
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nats
import numpy as np
import tomli_w
from nats.js.api import StorageType, StreamConfig
from numpy.typing import NDArray

from anabranch.sources.activation import SendOnDelta
from anabranch.sources.base import Reading
from baselines import Panel, baselines, draw, features, table
from datasets import Table, load
from processes import Federation, command, in_folder

HERE = Path(__file__).parent
MOVES = {"Temp": 0.2, "Light": 10.0, "Sound": 0.2, "CO2": 20.0, "CO2_Slope": 0.5, "PIR": 0.5}
"""By how much each kind of reading must have moved to be told of: °C, lux, V, ppm, ppm a reading, and 0 or 1."""
AHEAD, CLASSES = 300, 4
"""Seconds ahead of which is predicted, and how many counts there are: 0 to 3 people."""
NEAR = 20
"""Seconds by which a row may miss that moment; where all miss it by more, there is no label."""
APART = 0.02
"""Seconds between two rows, so that all nodes have a reading before the next one."""
AT_ONCE = 8
"""Rows, each of half a minute, that may pass while the federation is busy: fewer than a count is late."""


class Room(NamedTuple):
    """What is in the table."""

    at: NDArray[np.int64]
    """(T,): seconds since 1970."""
    nodes: dict[str, dict[str, NDArray]]
    """Of each node its columns (T,)."""
    people: NDArray[np.int64]
    """(T,): who is there."""

    @property
    def then(self) -> NDArray[np.int64]:
        """(T,): the row five minutes later; −1 where there is none."""
        place = np.searchsorted(self.at, self.at + AHEAD - NEAR)
        found = np.minimum(place, len(self.at) - 1)
        return np.where(np.abs(self.at[found] - self.at - AHEAD) <= NEAR, found, -1)

    def moved(self, node: str) -> NDArray[np.bool_]:
        """(T,): whether it has moved by then since it was told of last."""
        columns = self.nodes[node]
        rule = SendOnDelta([MOVES[name] for name in columns], [*columns])
        rows = ({name: values[i] for name, values in columns.items()} for i in range(len(self.at)))
        return np.array([rule.touches(Reading("", i, row), np.zeros(0)) for i, row in enumerate(rows)])


def room(rows: Table, nodes: int) -> Room:
    """The columns of each node, and the rest."""
    names = [f"node{i}" for i in range(1, nodes + 1)]
    own = {
        name: {key.removeprefix(f"S{i}_"): column for key, column in rows.items() if key.startswith(f"S{i}_")}
        for i, name in enumerate(names, 1)
    }
    return Room(rows["at"], own, rows["Room_Occupancy_Count"].astype(int))


def write(federation: Federation, of: Room, every_reading: bool) -> None:
    """The parties' files."""
    server = tomllib.loads((HERE / "server.toml").read_text())
    server["labels"]["url"] = federation.broker.url
    server["clients"] = [{"name": name, "embedding": 8, "missing": "last 1000"} for name in of.nodes]
    (federation.folder / "server.toml").write_text(tomli_w.dumps(server))
    for name, columns in of.nodes.items():
        node = tomllib.loads((HERE / "node.toml").read_text())
        node |= {"connection": f"{name}/connection.toml", "folder": f"state/{name}", "clients": len(of.nodes)}
        node["features"] |= {"url": federation.broker.url, "subject": f"room.{name}"}
        node["features"]["columns"] = [
            {"name": each, "missing": "mean", "standardise": each != "PIR"} for each in columns
        ]
        moves = {"name": "SendOnDelta", "threshold": [MOVES[each] for each in columns]}
        node["activation"] = {"name": "OnEvent"} if every_reading else moves
        (federation.folder / f"{name}.toml").write_text(tomli_w.dumps(node))


async def pass_by(of: Room, happens: NDArray[np.bool_], federation: Federation) -> None:
    """The days pass in the room, as fast as the federation goes: its nodes measure, and then somebody has counted."""
    then = of.then
    events = np.cumsum(happens)
    learnt = np.cumsum(np.bincount(then[happens & (then >= 0)], minlength=len(then)))
    broker = await nats.connect(federation.broker.url)
    for row, at in enumerate(of.at.tolist()):
        if row >= AT_ONCE:
            await federation.keep_up(events[row - AT_ONCE], learnt[row - AT_ONCE])
        for name, columns in of.nodes.items():
            measured = {key: float(values[row]) for key, values in columns.items()}
            reading = {"at": at} | {key: None if math.isnan(value) else value for key, value in measured.items()}
            await broker.publish(f"room.{name}", json.dumps(reading).encode())
        for event in np.flatnonzero(then == row).tolist():
            label = {"at": int(of.at[event]), "known": at, "people": int(of.people[row])}
            await broker.publish("people", json.dumps(label).encode())
        await asyncio.sleep(APART)
    await broker.close()
    await federation.keep_up(events[-1], learnt[-1])


async def open_streams(url: str) -> None:
    """Where the nodes' messages and the counts are kept until they are used."""
    broker = await nats.connect(url)
    for name, subject in (("room", "room.>"), ("people", "people")):
        await broker.jetstream().add_stream(StreamConfig(name=name, subjects=[subject], storage=StorageType.MEMORY))
    await broker.close()


async def play(folder: Path, of: Room, happens: NDArray[np.bool_], every_reading: bool, start: Any) -> Federation:
    """What came of a federation whose nodes tell of every reading, or of those that have moved.

    Args:
        happens: (T,), at which rows one of them does.
    """
    folder.mkdir()
    async with Federation(folder, [*of.nodes], start=start) as federation:
        await open_streams(federation.broker.url)
        write(federation, of, every_reading)
        federation.begin()
        await federation.all_here()
        await pass_by(of, happens, federation)
    return federation


def main(folder: Path, part: slice = slice(None), start: Any = command, nodes: int = 7) -> str:
    """Plays it in a folder of its own; the tables of results."""
    rows, note = load("room")
    of = room({name: column[part] for name, column in rows.items()}, nodes)
    moved = {name: of.moved(name) for name in of.nodes}
    texts, played, panels = [], {}, []
    for name, happens in (("every reading", np.full(len(of.at), True)), ("what moved", np.any([*moved.values()], 0))):
        events = np.flatnonzero(happens & (of.then >= 0))  # those that there is a label of
        federation = asyncio.run(play(folder / name.replace(" ", "-"), of, happens, name == "every reading", start))
        played[name] = federation
        parts = {node: features(federation.folder / f"{node}.toml", of.nodes[node])[events] for node in of.nodes}
        labels, delays = of.people[of.then[events]], np.searchsorted(events, of.then[events], side="right") - 1
        found = {"the federation": federation.errors()}
        found |= baselines(parts, labels, CLASSES, delays - np.arange(len(events)))
        shown = {key: each for key, each in found.items() if " alone" not in key and "frequent" not in key}
        panels.append(Panel(f"How many people will there be in five minutes? {name}", shown, len(events)))
        counts = federation.last()["labels"]
        texts.append(
            f"**{name}**\n\n{table(found, len(events))}\n{counts['happened']:,} events, {counts['learnt']:,} of them "
            f"learnt from; {counts['early']:,} labels came before an event of theirs, or without one.\n"
        )
    draw(folder / "picture.png", *panels)
    text = "\n".join([*texts, costs(played, moved), note])
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


def costs(played: Mapping[str, Federation], moved: Mapping[str, NDArray]) -> str:
    """How often each node woke, and how many bytes it sent and received."""
    lines = [
        "| node | readings that it told of | | kB sent and received | |",
        "|---|---:|---:|---:|---:|",
        "| | every reading | what moved | every reading | what moved |",
    ]
    for node in moved:
        told, sizes = [], []
        for federation in played.values():
            wire = federation.last(node)["bytes"]
            told.append(sum(n for direction, kind, _, _, n in wire if (direction, kind) == ("out", "Happened")))
            sizes.append(sum(size for _, _, _, size, _ in wire) / 1000)
        lines.append(f"| {node} | {told[0]:,} | {told[1]:,} | {sizes[0]:,.0f} | {sizes[1]:,.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    in_folder(main)
