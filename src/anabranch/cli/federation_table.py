"""The live table of a federation."""

from __future__ import annotations

from collections import deque
from typing import Any

from rich.table import Table

SPAN = 5.0
"""Rounds a second are those of so many last seconds."""


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


def table(status: dict[str, Any], rounds: int | None, rates: Rates) -> Table:
    """Return the server's status as a table."""
    error = status["run_time_error"]
    total = "" if rounds is None else f" of {rounds:,}"
    title = f"round {status['rounds']:,}{total} · {rates.now:,.0f} rounds/s"
    if error is not None:
        title += f" · run-time error {error:.4f}"
    waiting = [status["clients"][m - 1]["name"] for m in status["waiting_for"]]
    if not status["connected"] and status["ended"] is None:
        waiting = ["the broker"]
    caption = f"waiting for {', '.join(waiting)}" if waiting else None
    shown = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    shown.add_column("client")
    for name in ("activations", "answers", "misses", "p50 ms", "p99 ms"):
        shown.add_column(name, justify="right")
    for each in status["clients"]:
        trip = each["round_trip_ms"]
        shown.add_row(
            each["name"] if each["present"] else f"{each['name']} (away)",
            f"{each['activations']:,}",
            f"{each['answered']:,}",
            f"{each['missed']:,}",
            *("" if trip[q] is None else f"{trip[q]:.2f}" for q in ("p50", "p99")),
        )
    return shown
