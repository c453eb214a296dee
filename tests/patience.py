"""Waiting for a state, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 120.0
"""Seconds until a state that does not come about is a failure."""


def wait_for(state: Callable[[], Any], what: Any = "that state", seconds: float = PATIENCE) -> Any:
    """Returns what ``state`` does, once that is true; ``what`` it is may be worked out where it fails."""
    deadline = time.monotonic() + seconds
    while not (found := state()):
        assert time.monotonic() < deadline, _failure(what, seconds)
        time.sleep(0.02)
    return found


async def until(state: Callable[[], Any], what: Any = "that state", seconds: float = PATIENCE) -> None:
    """Returns once ``state`` does, or what it promises, is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = state()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < deadline, _failure(what, seconds)
        await asyncio.sleep(0.005)


def _failure(what: Any, seconds: float) -> str:
    return f"in {seconds:g} s there was not: {what() if callable(what) else what}"
