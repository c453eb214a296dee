"""What a run sends: payload bytes of embeddings and derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.core.updates import Update

MB = 2**20
"""One megabyte, as the paper counts them."""


class Traffic(NamedTuple):
    """Payload bytes of embeddings and derivatives over a whole run. A simulator sends no queries and no frames."""

    up: NDArray[np.int64]
    """(M,): each client's embeddings, activated or passive."""
    down: NDArray[np.int64]
    """(M,): the derivatives returned to each client when it was activated."""

    @property
    def total(self) -> int:
        """Both directions, all clients, in bytes."""
        return int(self.up.sum() + self.down.sum())

    @property
    def megabytes(self) -> float:
        """Both directions, all clients, in MB of 2^20 bytes.

        >>> Traffic(np.array([2**20, 2**20]), np.array([2**19, 0])).megabytes
        2.5
        """
        return self.total / MB


def no_traffic(clients: int) -> Traffic:
    """Before round 0."""
    return Traffic(np.zeros(clients, np.int64), np.zeros(clients, np.int64))


def add_rounds(
    traffic: Traffic, update: Update, widths: Sequence[int], itemsize: int, t: int, active: NDArray[np.bool_]
) -> Traffic:
    """Return the traffic with the rounds ``t .. t + n − 1`` added.

    A client sends ``r_t · e_m · itemsize`` bytes up in each round and gets as many down when it is activated, with
    ``r_t = 1`` for OGD and DLR, and ``r_t = min(t + 1, l)`` for SLR.

    Args:
        widths: ``e_m``, the elements of each client's embedding.
        itemsize: bytes of an element on the wire.
        active: (n, M), who was activated.
    """
    rows = update.sent_rows(np.arange(t, t + len(active), dtype=np.int64))
    size = np.asarray(widths, np.int64) * itemsize
    return Traffic(traffic.up + rows.sum() * size, traffic.down + (active * rows[:, None]).sum(axis=0) * size)
