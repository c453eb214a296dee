"""Each party's own random key: whoever decides, draws."""

from __future__ import annotations

import jax
from jaxtyping import PRNGKeyArray

from anabranch.core.compiling import check_devices

SEEDS = 2**31
"""Seeds are whole numbers below this."""
INITIAL = 2**32 - 1
"""Folded into a party's key for its initial parameters. No round has this number, so no draw is used twice."""
LABELS = 2**32 - 1
"""In place of a party's number, for how late labels come in a simulation. No client has this number."""


def party_key(seed: int, index: int) -> PRNGKeyArray:
    """Return a party's own random key: index 0 is the server, ``m`` is client ``m``.

    >>> bool((party_key(0, 1) == party_key(0, 2)).all())
    False
    """
    return jax.random.fold_in(jax.random.key(seed), index)


def initial_key(seed: int, index: int) -> PRNGKeyArray:
    """Where a party draws its initial parameters from."""
    check_devices()
    return jax.random.fold_in(party_key(seed, index), INITIAL)
