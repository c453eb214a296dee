"""Where the labels of a server in Python come from: an iterable, an async one, or a function of an event."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from anabranch.checks import is_missing
from anabranch.errors import ConfigError, DataError
from anabranch.federation.late_labels import Happening
from anabranch.federation.tables import event_name

Event: TypeAlias = str | bytes
"""An event's name; a text is what `anabranch.net.event_name` makes of it."""
LabelOf: TypeAlias = Callable[[bytes], int | None]
"""The label of an event; None where there is none."""


class Labels:
    """What the sources of labels have in common."""

    told = False
    """Whether rounds begin with the events that clients tell of."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._over = False

    @property
    def over(self) -> bool:
        """Whether no event follows."""
        return self._over

    def end(self) -> None:
        """No event follows."""
        self._over = True

    def _checked(self, item: tuple[Event, int]) -> tuple[bytes, int]:
        name, label = item
        if not isinstance(label, int | np.integer) or not 0 <= label < self._classes:
            raise DataError(
                f"the label of an event is none of the {self._classes} classes that the model tells apart: 0 to "
                f"{self._classes - 1}"
            )
        return event_name(name), int(label)

    def label(self, event: bytes) -> int | None:
        """None: events come from here."""
        return None

    def go_on(self, rounds: int) -> None:
        """Nothing: the source goes on by itself."""

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """None are there at once."""
        return []

    async def more(self) -> None:
        """Rows are there at once."""
        await asyncio.sleep(0)


class _Listed(Labels):
    """From an iterable."""

    def __init__(self, items: Iterable[tuple[Event, int]], classes: int) -> None:
        super().__init__(classes)
        self._items = iter(items)

    def take(self, n: int) -> list[tuple[bytes, int]]:
        taken: list[tuple[bytes, int]] = []
        while len(taken) < n and not self._over:
            try:
                taken.append(self._checked(next(self._items)))
            except StopIteration:
                self._over = True
        return taken

    def go_on(self, rounds: int) -> None:
        for done in range(rounds):
            if next(self._items, None) is None:
                raise DataError(f"labels ended after {done:,}, but {rounds:,} rounds were played of them")


class _Streamed(Labels):
    """From an async iterable."""

    def __init__(self, items: AsyncIterable[tuple[Event, int]], classes: int) -> None:
        super().__init__(classes)
        self._items = aiter(items)
        self._here: deque[tuple[bytes, int]] = deque()

    @property
    def over(self) -> bool:
        return self._over and not self._here

    def take(self, n: int) -> list[tuple[bytes, int]]:
        return [self._here.popleft() for _ in range(min(n, len(self._here)))]

    async def more(self) -> None:
        try:
            self._here.append(self._checked(await anext(self._items)))
        except StopAsyncIteration:
            self._over = True


class _Told(Labels):
    """From a function, for the events that clients tell of."""

    told = True

    def __init__(self, label: LabelOf, classes: int) -> None:
        super().__init__(classes)
        self._label = label
        self._ended = asyncio.Event()

    def end(self) -> None:
        super().end()
        self._ended.set()

    def label(self, event: bytes) -> int | None:
        found = self._label(event)
        return None if found is None or is_missing(found) else self._checked((event, found))[1]

    async def more(self) -> None:
        await self._ended.wait()


class LateLabels(Labels):
    """Labels of events that happened before, and the events, where they do not come from the clients alone.

    Args:
        labels: each with its event's name, in any order.
        events: as they happen; None where clients tell of them.
        classes: how many the model tells apart.
    """

    told = True
    found_none = 0

    def __init__(
        self, labels: AsyncIterable[tuple[Event, int]], events: AsyncIterable[Event] | None, classes: int
    ) -> None:
        super().__init__(classes)
        sources: list[AsyncIterator[Any]] = [aiter(labels), *([] if events is None else [aiter(events)])]
        self._next: dict[int, asyncio.Future[Any]] = {}
        """The next item of each source that has not ended: the labels' is 0, the events' 1."""
        self._sources = dict(enumerate(sources))
        self._here: deque[Happening] = deque()
        self._ended = asyncio.Event()

    @property
    def over(self) -> bool:
        return not self._here and (self._over or not self._sources)

    def end(self) -> None:
        super().end()
        self._ended.set()

    def take(self, n: int) -> list[Any]:
        return [self._here.popleft() for _ in range(min(n, len(self._here)))]

    async def more(self) -> None:
        for which, source in self._sources.items():
            if which not in self._next:
                self._next[which] = asyncio.ensure_future(anext(source, None))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({ended, *self._next.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        for which in [which for which, coming in self._next.items() if coming.done()]:
            item = self._next.pop(which).result()
            if item is None:
                del self._sources[which]
            elif which:
                self._here.append(Happening(event_name(item)))
            else:
                self._here.append(Happening(*self._checked(item)))

    def go_on(self, *taken: int) -> None:
        """Nothing: the sources go on by themselves."""

    def close(self) -> None:
        """Wait for nothing any more."""
        for coming in self._next.values():
            coming.cancel()


def labels_of(labels: Any, classes: int) -> Labels:
    """Return the server's events and labels, from what a person has.

    Args:
        labels: as `anabranch.net.Server` takes it.
        classes: how many the model tells apart.

    Raises:
        ConfigError: where it is nothing of the kind.
    """
    if isinstance(labels, AsyncIterable):
        return _Streamed(labels, classes)
    if isinstance(labels, Iterable):
        return _Listed(labels, classes)
    if callable(labels):
        return _Told(labels, classes)
    raise ConfigError(
        f"labels is {labels!r:.60}, but it is an iterable of (event, label), an async one, or a function of an event"
    )
