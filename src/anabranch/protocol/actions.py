"""What a conversation asks its carrier to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol.messages import Message, Record


@dataclass(frozen=True)
class Send:
    """Send a message: the server to one client, or to all; a client to the server."""

    message: Message
    client: int | None = None
    """From 1; None is all clients, or the server."""


@dataclass(frozen=True)
class Played:
    """Rounds were played. Their records must be safe before anything that follows is done."""

    first: int
    records: tuple[Record, ...]
    predictions: tuple[int | None, ...]
    """The class predicted in each, before its update; None where the round was dropped."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """A question was answered, and nothing else has changed.

    That of an event whose label comes late must be safe before anything that follows is done.
    """

    asked: int
    """The number of the question."""
    event: bytes
    number: int
    """Of the event, where a round will follow once its label is there; else -1."""
    round: int
    """How many rounds are in the parameters."""
    logits: NDArray[Any] | None
    """(c,); None where a client that is not replaced was away."""
    embeddings: NDArray[Any] | None
    """(e,), of all clients, in the dtype of the wire; None likewise."""
    activated: NDArray[np.bool_]
    """(M,): whom the event has activated."""
    missing: tuple[int, ...]
    """(M,): 0 where the client replied, else how it was replaced; see `anabranch.protocol.server.missing`."""
    steps: tuple[int, ...]
    """(M,): how many derivatives were in the parameters of each embedding; 0 where the client was replaced."""

    @property
    def prediction(self) -> int | None:
        """The class; None where there is no prediction."""
        return None if self.logits is None else int(self.logits.argmax())

    @property
    def probabilities(self) -> NDArray[np.float64] | None:
        """(c,): of the classes; None where there is no prediction."""
        if self.logits is None:
            return None
        shifted = np.exp(self.logits.astype(np.float64) - float(self.logits.max()))
        return np.asarray(shifted / shifted.sum())


@dataclass(frozen=True)
class Note:
    """Something that a person or a counter should know of."""

    what: str
    """A short name that does not vary, such as ``late``."""
    text: str
    client: int | None = None
    count: int = 1


@dataclass(frozen=True)
class Stop:
    """The conversation is over."""

    reason: str
    failed: bool = False
    diverged: bool = False
    """Whether it has failed since something of this party is not finite any more."""
    sound: bool = False
    """Whether it has failed for what others do: what this party has is kept in a checkpoint."""


Action: TypeAlias = Send | Played | Predicted | Note | Stop
