"""What a client keeps of events whose labels come later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Inputs(Protocol):
    """The features of events that were predicted and whose labels come later, kept until they are learnt from."""

    def get(self, event: bytes) -> tuple[NDArray[Any], bool | None] | None:
        """Return the features (d_m,), and whether the event has activated the client; None where it is not kept."""

    def put(self, event: bytes, x: NDArray[Any], activated: bool | None, number: int) -> None:
        """Keep an event's features, so that no death of the process loses them; what is kept already stays."""

    def was_asked(self, event: bytes) -> None:
        """The server knows of an event: what is kept of it stays as it is."""

    def drop(self, events: Iterable[bytes]) -> None:
        """Let go of some events."""

    def learnt(self, rounds: Sequence[tuple[int, bytes, bool]], gone: Iterable[bytes]) -> None:
        """Note the rounds of events that were played, and which activated the client; lets go of some others."""

    def were_learnt(self) -> list[tuple[int, bytes, bool]]:
        """What was noted of events that are kept, by processes before this one too."""

    def recent(self, n: int) -> list[bytes]:
        """Return the last ``n`` of the events that have activated the client and are not learnt, in their order."""


class InputsInMemory:
    """As long as the process lives."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[NDArray[Any], bool | None]] = {}

    def get(self, event: bytes) -> tuple[NDArray[Any], bool | None] | None:
        return self._held.get(event)

    def put(self, event: bytes, x: NDArray[Any], activated: bool | None, number: int) -> None:
        self._held.setdefault(event, (np.array(x), activated))

    def was_asked(self, event: bytes) -> None:
        """Nothing: nothing renews what is kept here."""

    def drop(self, events: Iterable[bytes]) -> None:
        for event in events:
            self._held.pop(event, None)

    def learnt(self, rounds: Sequence[tuple[int, bytes, bool]], gone: Iterable[bytes]) -> None:
        self.drop(gone)

    def were_learnt(self) -> list[tuple[int, bytes, bool]]:
        return []

    def recent(self, n: int) -> list[bytes]:
        return [event for event, (_, activated) in self._held.items() if activated][-n:]

    def __len__(self) -> int:
        return len(self._held)
