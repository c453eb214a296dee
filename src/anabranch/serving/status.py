"""How a party is doing, as JSON values: what `--json` prints, the live table shows and the metrics count."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty


def server_status(party: ServerParty, started: float) -> dict[str, Any]:
    """Return how far the server is; rates and times are of this process.

    Args:
        started: when it began, by the monotonic clock.
    """
    talk, ledger = party.conversation, party.ledger
    names = party.link.credentials.clients
    missing = ledger.missing
    clients = [
        {
            "name": names[i] if i < len(names) else f"client {i + 1}",
            "present": seat.present,
            "ended": seat.ended,
            "activations": int(ledger.activations[i]),
            "answered": missing[i]["answered"],
            "missed": sum(count for how, count in missing[i].items() if how != "answered"),
            "replaced": {how: count for how, count in missing[i].items() if how != "answered" and count},
            "round_trip_ms": {q: _ms(party.round_trips[i], share) for q, share in (("p50", 0.5), ("p99", 0.99))},
            "max_delay": seat.max_delay,
        }
        for i, seat in enumerate(talk.seats)
    ]
    return {
        "party": "server",
        "rounds": talk.rounds,
        "in_flight": talk.opened - talk.rounds,
        "run_time_error": _number(ledger.run_time_error),
        "accumulated_error": _number(ledger.error_rate),
        "seconds": round(time.monotonic() - started, 3),
        "waiting_for": party.waiting_for,
        "drifts": None if party.watch is None else party.watch.counts.total(),
        "clients": clients,
        "labels": None
        if (late := party.late) is None
        else {"waiting": len(late.waiting), "without event": late.without_event, **late.waiting.counts},
        **_common(party),
    }


def client_status(party: ClientParty, started: float) -> dict[str, Any]:
    """Return how far a client is."""
    talk = party.conversation
    return {
        "party": party.name,
        "applied": talk.applied,
        "answers": talk.answers,
        "activations": talk.activations,
        "announced": talk.announced,
        "joined": talk.joined,
        "seconds": round(time.monotonic() - started, 3),
        **_common(party),
    }


def _common(party: ServerParty | ClientParty) -> dict[str, Any]:
    notes: dict[str, int] = {}
    for (what, _), count in party.notes.items():
        notes[what] = notes.get(what, 0) + count
    return {
        "connected": party.link.connected,
        "notes": notes,
        "bytes": party.link.state(),
    }


def _ms(seconds: Sequence[float], share: float) -> float | None:
    if not seconds:
        return None
    return round(1000 * sorted(seconds)[min(len(seconds) - 1, math.floor(share * len(seconds)))], 3)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
