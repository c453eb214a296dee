"""What a client can use of what the server sends: an empty text, or what is wrong with a message."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party_programs import ClientCompute
from anabranch.protocol import messages as m


def wrong_query(query: m.Query, clients: int) -> str:
    """Of a query to this many clients."""
    n = len(query.events)
    if not 0 <= query.first <= m.LAST + 1 - n:
        return f"its first round is {query.first}"
    return _wrong_chosen(query.activated, (n, clients))


def wrong_ask(ask: m.Ask, clients: int) -> str:
    """Of questions to this many clients."""
    n = len(ask.events)
    if ask.first != m.NONE and not 0 <= ask.first <= m.LAST + 1 - n:
        return f"its first event has the number {ask.first}"
    return _wrong_chosen(ask.activated, (n, clients))


def wrong_derivatives(message: m.Derivatives, compute: ClientCompute) -> str:
    """Of derivatives for this client."""
    rounds, values, n = message.rounds, message.values, len(message.rounds)
    rows = compute.rule.update.rows
    shape = (n, compute.width) if rows is None else (n, rows, compute.width)
    in_order = bool(rounds) and list(rounds) == sorted({*rounds}) and rounds[0] >= 0 and rounds[-1] <= m.LAST
    if not in_order or len(message.applied) != n:
        return f"its rounds are {rounds[:5]}"
    if message.factors and len(message.factors) != n:
        return f"{n} rounds have {len(message.factors)} factors"
    if message.emptied is not None and message.emptied.shape != (n,):
        return f"it says for {list(message.emptied.shape)} whether windows were emptied, not for {[n]}"
    if not all(0 < factor < math.inf for factor in message.factors):
        return f"its learning rates are to be multiplied by {message.factors[:5]}"
    if (message.events or m.MOMENT in message.applied) and len(message.events) != n:
        return f"{n} rounds have {len(message.events)} events"
    if values.dtype != compute.rule.wire or values.shape != shape:
        return f"they are {values.dtype}{list(values.shape)}, not {compute.rule.wire}{list(shape)}"
    return "" if np.isfinite(values).all() else "one is not finite"


def _wrong_chosen(activated: NDArray[np.bool_] | None, shape: tuple[int, int]) -> str:
    if activated is not None and activated.shape != shape:
        return f"it says for {list(activated.shape)} who is activated, not for {list(shape)}"
    return ""
