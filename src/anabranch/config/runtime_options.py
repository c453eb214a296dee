"""The options of a running federation, from a party's file, the command line or Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.protocol.server.missing import Policy, Wait

MOST_LOST = 0.1
"""The share of its events that a party may lose by default."""


@dataclass(frozen=True)
class RuntimeOptions:
    """The options of a running federation. They change when things happen, and never what a round is."""

    in_flight: int = 1
    """Rounds that may be open at a time."""
    deadline: float = 1.0
    """Seconds after which a client that has not answered is replaced, or asked again."""
    missing: Sequence[Policy] = field(default_factory=lambda: (Wait(),))
    """What stands in for a client's embedding: one policy for all, or one for each."""
    checkpoint_every: int = 5000
    """Rounds between two checkpoints of the server, and steps between two of a client."""
    durable: bool = False
    """Whether each round is on the disk before its derivatives are sent."""
    most_lost: float = MOST_LOST
    """The share of a party's events that may be lost. If more are lost, the party's ending is a failure."""
