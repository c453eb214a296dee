"""Three regions of an electricity market, one of which joins late: a federation, and what it is compared with."""

from __future__ import annotations

import asyncio
import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from baselines import Errors, Panel, baselines, draw, features, table
from datasets import Table, load
from processes import Federation, command, in_folder

HERE = Path(__file__).parent
CLIENTS = {
    "nsw": ["day", "period", "nswprice", "nswdemand"],
    "victoria": ["vicprice", "vicdemand"],
    "transfer": ["transfer"],
}
BEGIN, PERIOD = np.datetime64("1996-05-07T00:00"), np.timedelta64(30, "m")
"""The dates of the table are scaled beyond recognition; a row is half an hour."""
JOINS = 17_424
"""Rows of the table without Victoria."""


def joins(rows: Table) -> int:
    """The row from which on Victoria is there: before, the table repeats one price and one demand of it."""
    changes = np.flatnonzero(np.diff(rows["vicprice"]))
    if not len(changes):
        raise SystemExit(
            f"Victoria is not there yet in the first {len(rows['vicprice']):,} rows: play more than {JOINS:,}"
        )
    return int(changes[0]) + 1


def write(folder: Path, rows: Table) -> None:
    """What each party has of the same half hours."""
    times = np.datetime_as_string(BEGIN + PERIOD * np.arange(len(rows["class"])))
    for name, columns in [*CLIENTS.items(), ("labels", ["class"])]:
        header = ["at", *(columns if name in CLIENTS else ["up"])]
        lines = list(zip(times, *(rows[each] for each in columns), strict=True))
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *lines[joins(rows) if name == "victoria" else 0 :]])


async def play(folder: Path, rows: int, start: Any) -> tuple[Errors, dict[str, Any]]:
    """The federation's errors, and the server's last status."""
    async with Federation(folder, [*CLIENTS], start=start) as federation:
        federation.begin()
        await federation.until(lambda said: said.get("rounds") == rows and said["ended"] is not None)
    return federation.errors(), federation.last()


def main(folder: Path, part: slice = slice(None), start: Any = command) -> str:
    """Plays it in a folder of its own; the table of results."""
    rows, note = load("electricity")
    rows = {name: column[part] for name, column in rows.items()}
    n, late = len(rows["class"]), joins(rows)
    for path in HERE.glob("*.toml"):
        shutil.copy(path, folder)
    write(folder, rows)
    errors, status = asyncio.run(play(folder, n, start))
    there = {"victoria": np.arange(n) >= late}
    parts = {name: features(folder / f"{name}.toml", rows, there.get(name)) for name in CLIENTS}
    found = {"the federation": errors} | baselines(parts, rows["class"].astype(int), 2, np.zeros(n, int))
    shown = {
        name: each for name, each in found.items() if name not in ("the most frequent label so far", "transfer alone")
    }
    draw(folder / "picture.png", Panel("Will the price be above its mean?", shown, n, {"Victoria joins": late}))
    answered = status["clients"][[*CLIENTS].index("victoria")]["answered"]
    text = f"{table(found, n)}\nVictoria answered in {answered:,} of {n:,} rounds, from round {late:,} on.\n{note}"
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    in_folder(main)
