"""What a conversation asks its carrier to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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


Action: TypeAlias = Send | Played | Note | Stop
