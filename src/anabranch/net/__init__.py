"""The conversation over NATS: keys, the broker, connections, and what drives a party.

A federation in Python is made of `Server` and `Client`; see `anabranch.net.api`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.net.api import Client, Round, Server, Step
    from anabranch.net.broker import LocalBroker
    from anabranch.net.credentials import Credentials
    from anabranch.net.tables import event_name
    from anabranch.protocol.missing import Last, Mean, Skip, Wait, Zero
    from anabranch.protocol.seat import Expected

_HOMES = {
    "Client": "anabranch.net.api",
    "Credentials": "anabranch.net.credentials",
    "Expected": "anabranch.protocol.seat",
    "Last": "anabranch.protocol.missing",
    "LocalBroker": "anabranch.net.broker",
    "Mean": "anabranch.protocol.missing",
    "Round": "anabranch.net.api",
    "Server": "anabranch.net.api",
    "Skip": "anabranch.protocol.missing",
    "Step": "anabranch.net.api",
    "Wait": "anabranch.protocol.missing",
    "Zero": "anabranch.protocol.missing",
    "event_name": "anabranch.net.tables",
}

__all__ = [
    "Client",
    "Credentials",
    "Expected",
    "Last",
    "LocalBroker",
    "Mean",
    "Round",
    "Server",
    "Skip",
    "Step",
    "Wait",
    "Zero",
    "event_name",
]


def __getattr__(name: str) -> Any:
    """What is public is imported when it is first asked for, since keys and brokers need no JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
