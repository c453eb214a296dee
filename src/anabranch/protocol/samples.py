"""A client's window of samples under SLR, made again where the client has begun again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party_programs import ClientCompute
from anabranch.protocol.messages import NONE, Events


class SampleWindow:
    """Which rounds' samples are in the window; under other updates it does nothing.

    Args:
        compute: has the window, and is moved on here where samples are lacking.
        features: (d_m,) of an event; None where there are none.
    """

    def __init__(self, compute: ClientCompute, features: Callable[[bytes], NDArray[Any] | None]) -> None:
        self._compute, self._features = compute, features
        self._events: dict[int, bytes] = {}
        """Of the rounds that the window may still lack."""
        self.newest = NONE
        """The last round whose sample is in the window."""

    def recall(self, first: int, events: Events) -> None:
        """The server has said which events the rounds from ``first`` on had."""
        self._events |= {first + i: event for i, event in enumerate(events)}

    def catch_up(self, t: int) -> bool:
        """Make the window what it was before round ``t``; false where a sample is not known."""
        rows = self._compute.rule.update.rows
        if rows is None:
            return True
        first = max(0, t - rows + 1)
        if self.newest <= t:  # else newer samples have taken the places of older ones
            first = max(first, self.newest + 1)
        for lacking in range(first, t):
            event = self._events.get(lacking)
            x = None if event is None else self._features(event)
            if x is None:
                return False
            self._compute.encode(np.array([lacking], np.int32), x[None])
            self.newest = lacking
        return True

    def push(self, t: int, event: bytes) -> None:
        """The sample of round ``t`` is the newest in the window."""
        rows = self._compute.rule.update.rows
        if rows is not None:
            self.newest, self._events[t] = t, event
            self._events = {each: event for each, event in self._events.items() if each > t - rows}
