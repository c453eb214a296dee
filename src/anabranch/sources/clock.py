"""The machine's clock, without its jumps."""

from __future__ import annotations

import time
from collections.abc import Callable

LASTS = 60.0
"""Seconds after which a jump ahead is believed."""
JUMP = 1.0
"""Seconds between two looks that are no jump."""


class SteadyClock:
    """Seconds since 1970. A jump ahead counts once it has lasted; until then time passes as it did before.

    Args:
        wall: the machine's clock.
        waited: a clock that never jumps.

    >>> wall, waited = [100.0], [0.0]
    >>> clock = SteadyClock(lambda: wall[0], lambda: waited[0])
    >>> clock()
    100.0
    >>> wall[0], waited[0] = 5000.0, 1.0; clock()
    101.0
    >>> wall[0], waited[0] = 50.0, 2.0; clock()
    50.0
    >>> wall[0], waited[0] = 5061.0, 62.0; clock(), clock()
    (110.0, 110.0)
    >>> wall[0], waited[0] = 5121.0, 122.0; clock()
    5121.0
    """

    def __init__(self, wall: Callable[[], float] = time.time, waited: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._waited = wall, waited
        self._ahead: float | None = None
        """How far the machine's clock is ahead of the other, as far as that is believed."""
        self._jumped: float | None = None
        """When it was further ahead for the first time."""

    def __call__(self) -> float:
        now = self._waited()
        ahead = self._wall() - now
        if self._ahead is None or ahead <= self._ahead + JUMP:
            self._ahead, self._jumped = ahead, None
        elif self._jumped is None:
            self._jumped = now
        elif now - self._jumped >= LASTS:
            self._ahead, self._jumped = ahead, None
        return now + self._ahead
