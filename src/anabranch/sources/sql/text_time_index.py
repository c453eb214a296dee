"""Times as a column of texts has them: how far the order of the texts may differ from that of their times."""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from threading import Lock
from typing import Any

from anabranch.checks import whole

_MOST = 20_000
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_ZONE = re.compile(r"\s*(?:[zZ]|([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?)$")
_DATE, _SECONDS, _NUMBER = "9999-99-99", "9999-99-99T99:99:99", "a number"


class Marks:
    """Times that were read in a column, and the forms in which it has them; any thread may add and ask.

    A database compares texts by their letters. Texts of one form and one time zone have the order of their times.

    Args:
        most: where there would be more, every other one goes.

    >>> marks = Marks()
    >>> marks.add(30, "2026-11-28T10:30Z"); marks.add(10, "2026-11-28T10:10Z")
    >>> marks.after(9), marks.after(10), marks.after(30)
    ('2026-11-28T10:10Z', '2026-11-28T10:30Z', None)
    >>> marks.slack
    0
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = whole("most", most, 1)
        self._moments: list[int] = []
        self._written: dict[int, Any] = {}
        self._lock = Lock()
        self._forms: set[tuple[str, int]] = set()
        """What the texts look like, and how many microseconds their zones are ahead of UTC."""
        self.slack: int | None = 0
        """How many microseconds a time may be later than one that is written after it; None where nobody can say."""

    def add(self, moment: int, written: Any) -> None:
        """Add a time, in microseconds since 1970, and how the column has it."""
        with self._lock:
            if (form := _form(written)) not in self._forms:
                self._forms.add(form)
                self.slack = _slack(self._forms)
            if moment not in self._written:
                insort(self._moments, moment)
            self._written[moment] = written
            if len(self._moments) > self._most:
                for each in self._moments[::2]:
                    del self._written[each]
                del self._moments[::2]

    def after(self, moment: int) -> Any:
        """Return how a time is written that comes after all times up to a moment, in the column's order.

        None where no such time is known.
        """
        with self._lock:
            if self.slack is None:
                return None
            place = bisect_right(self._moments, moment + self.slack)
            return None if place == len(self._moments) else self._written[self._moments[place]]


def _form(written: Any) -> tuple[str, int]:
    """Return what a time looks like, and how many microseconds its zone is ahead of UTC."""
    if not isinstance(written, str):
        return _NUMBER, 0
    zone = _ZONE.search(written, len(_DATE))
    if zone is None:
        return re.sub(r"\d", "9", written), 0
    hours, minutes, seconds = (int(each or 0) for each in zone.groups()[1:])
    ahead = (3600 * hours + 60 * minutes + seconds) * _SECOND * (-1 if zone[1] == "-" else 1)
    return re.sub(r"\d", "9", written[: zone.start()] + zone[0].replace("-", "+")), ahead


def _slack(forms: set[tuple[str, int]]) -> int | None:
    """Return how much later than one that is written after it a time may be, in microseconds; None without a bound."""
    looks = {look for look, _ in forms}
    zones = {ahead for _, ahead in forms}
    spread = max(zones) - min(zones)
    if spread == 0 and _have_order(looks):
        return 0
    if not all(look.startswith(_DATE) for look in looks):
        return None
    if len(looks) == 1:
        return spread
    seconds = {look[: len(_SECONDS)] for look in looks}
    return spread + (_SECOND if len(seconds) == 1 else _DAY)


def _have_order(looks: set[str]) -> bool:
    """Return whether texts that look like these, of one zone, have the order of their times."""
    longest = max(looks, key=len)
    if longest.startswith("-") or "e" in longest.lower():
        return False
    if len(looks) > 1 and _ZONE.search(longest, len(_DATE)) is not None:
        return False
    # A shorter text comes before a longer one that begins with it; digits only go on behind a point.
    return all(longest.startswith(look) and ("." in look or longest[len(look) :][:1] != "9") for look in looks)
