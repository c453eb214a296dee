"""Times as a table writes them, beside what they say: a table that compares texts is asked by one of its own texts."""

from __future__ import annotations

from bisect import bisect_left, insort
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from anabranch.checks import whole

_MOST = 20_000
_SECONDS = len("2026-11-28T10:59:59")


def next_second(written: Any) -> str | None:
    """Return a text that comes after all times of the second of one; None where it has no seconds.

    >>> next_second("2026-11-28T10:59:59.5Z"), next_second("2026-11-28"), next_second(17)
    ('2026-11-28T11:00:00', None, None)
    """
    if not isinstance(written, str) or len(written) < _SECONDS:
        return None
    second, between = written[:_SECONDS], written[len("2026-11-28")]
    try:
        moment = datetime.fromisoformat(second)
        return None if moment.isoformat(between) != second else (moment + timedelta(seconds=1)).isoformat(between)
    except (ValueError, OverflowError):
        return None


class Marks:
    """Times that were read in a column; any thread may add and ask.

    Args:
        most: where there would be more, every other one goes.

    >>> marks = Marks()
    >>> marks.add(30, "30th"); marks.add(10, "10th")
    >>> marks.at_or_after(10), marks.at_or_after(11), marks.at_or_after(31)
    ('10th', '30th', None)
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = whole("most", most, 1)
        self._moments: list[int] = []
        self._written: dict[int, Any] = {}
        self._lock = Lock()

    def add(self, moment: int, written: Any) -> None:
        """A time, in microseconds since 1970, and how the column has it."""
        with self._lock:
            if moment not in self._written:
                insort(self._moments, moment)
            self._written[moment] = written
            if len(self._moments) > self._most:
                for each in self._moments[::2]:
                    del self._written[each]
                del self._moments[::2]

    def at_or_after(self, moment: int) -> Any:
        """How the first known time is written that is not before a moment; None where there is none."""
        with self._lock:
            place = bisect_left(self._moments, moment)
            return None if place == len(self._moments) else self._written[self._moments[place]]
