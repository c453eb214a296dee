"""How far a party is: a live table at a terminal, and a line a minute elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch.simulation.traffic import MB

SPAN = 5.0
"""Rounds a second are those of so many last seconds."""
LINE_EVERY = 60.0
"""Seconds between two lines."""


class Rates:
    """How fast a federation is, by the clock of whoever watches it: its server may be killed and started again.

    >>> rates = Rates()
    >>> for second, rounds in [(1, 50), (2, 50), (3, 80), (4, 110), (9, 110)]:
    ...     rates.add(second, rounds)
    >>> rates.seconds, rates.rounds  # of a federation that has gone on after 50 rounds
    (2, 60)
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None
        """The last time at which no round was played yet, and how many were before."""
        self._last: tuple[float, int] = (0.0, 0)
        """The first time at which all were."""

    def add(self, now: float, rounds: int) -> None:
        """So many rounds were played at a time, in seconds."""
        self._seen.append((now, rounds))
        while now - self._seen[0][0] > SPAN:
            self._seen.popleft()
        if self._first is None or rounds == self._first[1]:
            self._first = self._last = (now, rounds)
        elif rounds > self._last[1]:
            self._last = (now, rounds)

    @property
    def now(self) -> float:
        """Rounds a second, of the last seconds."""
        (a, before), (b, after) = self._seen[0], self._seen[-1]
        return (after - before) / (b - a) if b > a else 0.0

    @property
    def seconds(self) -> float:
        """From the first rounds to the last."""
        return 0.0 if self._first is None else self._last[0] - self._first[0]

    @property
    def rounds(self) -> int:
        """How many were played in those seconds."""
        return 0 if self._first is None else self._last[1] - self._first[1]


class MinuteLines:
    """Says how far a party is, once a minute.

    Args:
        say: called with each line.
        clock: gives the time in seconds.

    >>> now = 0.0
    >>> lines = MinuteLines(print, clock=lambda: now)
    >>> for now in (0.0, 30.0, 60.0, 61.0, 120.0):
    ...     lines({"party": "bank", "applied": 10 * int(now), "answers": 7, "activations": 5, "joined": True,
    ...            "connected": True, "ended": None})
    601 rounds · 10 rounds/s · 7 answers, 5 steps
    1,201 rounds · 10 rounds/s · 7 answers, 5 steps
    """

    def __init__(self, say: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._last: tuple[float, int] | None = None
        """When the last line was said, and the number of rounds then."""

    def __call__(self, status: dict[str, Any]) -> None:
        """Take the status of a party, and say a line if one is due."""
        now, rounds = self._clock(), _rounds(status)
        if self._last is None:
            self._last = now, rounds
        elif status["ended"] is None and now - self._last[0] >= LINE_EVERY:
            rate = (rounds - self._last[1]) / (now - self._last[0])
            self._last = now, rounds
            waiting = waited_for(status)
            self._say(progress(status, rate) + (f" · waiting for {waiting}" if waiting else ""))


class LiveTable:
    """Shows how far a party is at a terminal, beneath whatever else is written there.

    Args:
        console: of the terminal.
        rounds: how many there will be, if that is known.
        transient: whether nothing of it stays at the end.
    """

    def __init__(self, console: Console, rounds: int | None = None, *, transient: bool = False) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._rounds, self._rates = rounds, Rates()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, status: dict[str, Any]) -> None:
        """Show the status of a party."""
        self._rates.add(time.monotonic(), _rounds(status))
        self._live.update(table(status, self._rounds, self._rates), refresh=True)

    def say(self, text: str) -> None:
        """Show a text instead of the table."""
        self._live.update(text, refresh=True)

    def write(self, text: str) -> None:
        """Write a text above the table, as a log does."""
        self._live.console.print(text, end="", soft_wrap=True, markup=False, highlight=False)

    def flush(self) -> None:
        """Do nothing: everything is written at once."""


def progress(status: dict[str, Any], rate: float, rounds: int | None = None) -> str:
    """Return how far a party is, in one line.

    Args:
        status: of the party.
        rate: rounds a second.
        rounds: how many there will be, if that is known.
    """
    of = "" if rounds is None else f" of {rounds:,}"
    parts = [f"{_rounds(status):,}{of} rounds", f"{rate:,.0f} rounds/s"]
    if "clients" not in status:
        return " · ".join([*parts, f"{status['answers']:,} answers, {status['activations']:,} steps"])
    if status["run_time_error"] is not None:
        parts.append(f"run-time error {status['run_time_error']:.4f}")
    if status["labels"] is not None:
        parts.append(f"{status['labels']['waiting']:,} wait for labels")
    return " · ".join(parts)


def _rounds(status: dict[str, Any]) -> int:
    return int(status["rounds"] if "clients" in status else status["applied"] + 1)


def waited_for(status: dict[str, Any]) -> str:
    """Return whom a party waits for; empty if for nobody."""
    if not status["connected"] and status["ended"] is None:
        return "the broker"
    if "clients" in status:
        return ", ".join(status["clients"][m - 1]["name"] for m in status["waiting_for"])
    return "" if status["joined"] or status["ended"] is not None else "the server"


def table(status: dict[str, Any], rounds: int | None, rates: Rates) -> Group:
    """Return the status of a party as a line and a table.

    Args:
        status: of a server or of a client.
        rounds: how many there will be, if that is known.
        rates: of its rounds.
    """
    waiting = waited_for(status)
    title = Text(progress(status, rates.now, rounds), "italic")
    shown = Table(caption=f"waiting for {waiting}" if waiting else None, caption_justify="left")
    if "clients" in status:
        _of_server(shown, status)
    else:
        _of_client(shown, status)
    return Group(title, shown)


def _of_server(shown: Table, status: dict[str, Any]) -> None:
    shown.add_column("client")
    for name in ("activations", "answers", "misses", "p50 ms", "p99 ms"):
        shown.add_column(name, justify="right")
    for each in status["clients"]:
        trip = each["round_trip_ms"]
        away = not (each["present"] or each["ended"])  # one that has said goodbye at the end has done its part
        shown.add_row(
            f"{each['name']} (away)" if away else each["name"],
            f"{each['activations']:,}",
            f"{each['answered']:,}",
            f"{each['missed']:,}",
            *("" if trip[q] is None else f"{trip[q]:.2f}" for q in ("p50", "p99")),
        )


def _of_client(shown: Table, status: dict[str, Any]) -> None:
    for name in ("client", "announced", "answers", "steps", "MB out", "MB in"):
        shown.add_column(name, justify="left" if name == "client" else "right")
    sizes = {way: sum(each[3] for each in status["bytes"] if each[0] == way) / MB for way in ("out", "in")}
    counts = (f"{status[what]:,}" for what in ("announced", "answers", "activations"))
    shown.add_row(status["party"], *counts, *(f"{size:,.2f}" for size in sizes.values()))
