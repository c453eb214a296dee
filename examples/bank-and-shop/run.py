"""A bank and a shop that know the same people, and labels that come thirty days late, on a simulated clock."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines import Errors, Panel, baselines, draw, features, table
from datasets import CREDIT, Table, load
from processes import Federation, command, in_folder

HERE = Path(__file__).parent
SHOP = [name for name in CREDIT if name.startswith("PAY_")]
BANK = [name for name in CREDIT[1:-1] if name not in SHOP]
DAY = 86_400
BEGIN = 1_128_124_800
"""2005-10-01, after the months that the columns are of."""
A_DAY, LATE = 100, 30
"""Applications a day, and how many days later it is known who has paid."""


def known(n: int) -> NDArray[np.bool_]:
    """(n,): whom of the applicants the shop knows: four of five."""
    return np.arange(n) % 5 != 0


class Database:
    """A SQLite database with one table, which somebody writes while a party reads."""

    def __init__(self, path: Path, name: str, columns: Sequence[str], indexed: Sequence[str]) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = WAL")  # who writes does not keep others from reading
        self._database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        for each in indexed:
            self._database.execute(f"CREATE INDEX {name}_{each} ON {name} ({each})")
        self._insert = f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Some rows, all at once."""
        with self._database:
            self._database.executemany(self._insert, rows)

    def close(self) -> None:
        """Nothing more will be written."""
        self._database.close()


class World:
    """People apply at the bank as time passes, and thirty days later it is known whether they have paid."""

    def __init__(self, folder: Path, rows: Table) -> None:
        n, self._days = len(rows["ID"]), 0
        self._people = [f"customer-{int(number):05}" for number in rows["ID"]]
        self._at = (BEGIN + DAY // A_DAY * np.arange(n)).tolist()
        self._rows = {name: rows[name].tolist() for name in CREDIT}
        whose = ["id INTEGER PRIMARY KEY", "customer TEXT"]
        self._bank = Database(
            folder / "bank.db", "applications", [*whose, "at INTEGER", *_reals(BANK)], ["customer", "at"]
        )
        self._outcomes = Database(
            folder / "outcomes.db", "outcomes", [*whose, "applied INTEGER", "known INTEGER", "unpaid INTEGER"],
            ["customer", "known"],
        )  # fmt: skip
        shop = Database(
            folder / "shop.db", "customers", ["customer TEXT PRIMARY KEY", "changed INTEGER", *_reals(SHOP)],
            ["changed"],
        )  # fmt: skip
        with closing(shop):
            shop.add([self._people[i], BEGIN - DAY, *self._of(SHOP, i)] for i in np.flatnonzero(known(n)).tolist())

    def _of(self, names: Sequence[str], i: int) -> list[float]:
        return [self._rows[name][i] for name in names]

    async def go_on(self, federation: Federation) -> None:
        """Day after day, each as soon as the federation has seen the day before, until all that will be known is."""
        n, applied, told = len(self._at), 0, 0
        with closing(self._bank), closing(self._outcomes):
            while told < n:
                await federation.keep_up(applied - A_DAY, told - A_DAY)
                first, applied = applied, min(n, applied + A_DAY)
                self._bank.add([i, self._people[i], self._at[i], *self._of(BANK, i)] for i in range(first, applied))
                self._days += 1
                first, told = told, max(0, min(n, (self._days - LATE) * A_DAY))
                self._outcomes.add(
                    [i, self._people[i], self._at[i], self._at[i] + LATE * DAY, int(self._rows["default"][i])]
                    for i in range(first, told)
                )
            await federation.keep_up(n, n)


def _reals(names: Iterable[str]) -> list[str]:
    return [f"{name} REAL" for name in names]


async def play(folder: Path, rows: Table, start: Any) -> tuple[Errors, dict[str, Any]]:
    """The federation's errors, and the server's last status."""
    world = World(folder, rows)
    async with Federation(folder, ["bank", "shop"], start=start) as federation:
        federation.begin()
        await federation.all_here()
        await world.go_on(federation)
    return federation.errors(), federation.last()


def main(folder: Path, part: slice = slice(None), start: Any = command) -> str:
    """Plays it in a folder of its own; the table of results."""
    rows, note = load("credit")
    rows = {name: column[part] for name, column in rows.items()}
    n = len(rows["ID"])
    for path in HERE.glob("*.toml"):
        shutil.copy(path, folder)
    errors, status = asyncio.run(play(folder, rows, start))
    parts = {"bank": features(folder / "bank.toml", rows), "shop": features(folder / "shop.toml", rows, known(n))}
    delays = np.full(n, LATE * A_DAY)
    found = {"the federation": errors} | baselines(parts, rows["default"].astype(int), 2, delays)
    shown = {name: each for name, each in found.items() if name != "the last label repeated"}
    draw(folder / "picture.png", Panel("Who will not pay?", shown, n, {"the first label comes": LATE * A_DAY}))
    counts = status["labels"]
    text = (
        f"{table(found, n)}\n{counts['happened']:,} applications were predicted, {counts['learnt']:,} labels learnt "
        f"from, {counts['early']:,} of them early; the shop was asked for {status['clients'][1]['missed']:,} people "
        f"that it does not know.\n{note}"
    )
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    in_folder(main)
