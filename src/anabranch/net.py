"""The conversation over NATS: keys, the broker, connections, and what drives a party.

A federation in Python is made of `Server` and `Client`; see `anabranch.parties.api`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.broker.credentials import Credentials
    from anabranch.broker.local import LocalBroker
    from anabranch.federation.tables import event_name
    from anabranch.parties.api import Client, Round, Server, Step
    from anabranch.protocol.server.client_session import Expected
    from anabranch.protocol.server.missing import Last, Mean, Skip, Wait, Zero

_HOMES = {
    "Client": "anabranch.parties.api",
    "Credentials": "anabranch.broker.credentials",
    "Expected": "anabranch.protocol.server.client_session",
    "Last": "anabranch.protocol.server.missing",
    "LocalBroker": "anabranch.broker.local",
    "Mean": "anabranch.protocol.server.missing",
    "Round": "anabranch.parties.api",
    "Server": "anabranch.parties.api",
    "Skip": "anabranch.protocol.server.missing",
    "Step": "anabranch.parties.api",
    "Wait": "anabranch.protocol.server.missing",
    "Zero": "anabranch.protocol.server.missing",
    "event_name": "anabranch.federation.tables",
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
