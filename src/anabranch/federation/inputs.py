"""A client's kept features, in a file that is made when there is something to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from anabranch.sources.base import Notes
from anabranch.sources.inputs import note_crowded_out
from anabranch.storage.feature_store import KeptInputs

MOST = 100_000
"""Events whose features are kept, where nothing else is said."""


class LazyInputs:
    """As `KeptInputs`, for a client that learns from its server whether labels come late.

    Args:
        path: of the file.
        durable: whether what is kept is on the disk at once.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._path, self._durable = path, durable
        self._kept = self._opened() if path.exists() else None
        self._notes = Notes(Counter(), "features")

    def _opened(self) -> KeptInputs:
        return KeptInputs(self._path, most=MOST, durable=self._durable)

    def get(self, event: bytes) -> tuple[NDArray[Any], bool | None] | None:
        """Return the features, and whether the event has activated the client; None where it is not kept."""
        return None if self._kept is None else self._kept.get(event)

    def put(self, event: bytes, x: NDArray[Any], activated: bool | None, number: int) -> None:
        """Keep an event's features."""
        if self._kept is None:
            self._kept = self._opened()
        self._kept.put(event, x, activated, number)
        note_crowded_out(self._notes, self._kept, f"at most {MOST:,} are kept: let the server's `most` be no more")

    def was_asked(self, event: bytes) -> None:
        """The server knows of an event."""
        if self._kept is not None:
            self._kept.was_asked(event)

    def learnt(self, rounds: Sequence[tuple[int, bytes, bool]], gone: Iterable[bytes]) -> None:
        """Note the rounds of events, and lets go of some others."""
        if self._kept is not None:
            self._kept.learnt(rounds, gone)

    def were_learnt(self) -> list[tuple[int, bytes, bool]]:
        """What was noted of events that are kept."""
        return [] if self._kept is None else self._kept.were_learnt()

    def recent(self, n: int) -> list[bytes]:
        """Return the last ``n`` of the events that have activated the client, in their order."""
        return [] if self._kept is None else self._kept.recent(n)

    def drop(self, events: Iterable[bytes]) -> None:
        """Let go of some events."""
        if self._kept is not None:
            self._kept.drop(events)
