"""Plays sources in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from anabranch.sources.base import Happening, Source
from anabranch.storage.place import Place

T = TypeVar("T")
LONG = 120.0
"""Seconds after which a test that waits for something has failed."""


def run(coroutine: Coroutine[Any, Any, T], seconds: float = LONG) -> T:
    """Its result; a test that hangs fails."""

    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, seconds)

    return asyncio.run(bounded())


async def play(source: Source, most: int | None = None) -> list[Happening]:
    """The first readings, or all."""
    found: list[Happening] = []
    async for each in source.readings():
        found.append(each)
        if len(found) == most:
            break
    return found


def placed(events: Sequence[Happening]) -> list[Place | None]:
    """Their places, which follow one another."""
    places = [each.place for each in events]
    for i, place in enumerate(places):
        before = [each is not None and place is not None and each.is_before(place) for each in places]
        assert before == [j < i for j in range(len(places))]
    return places
