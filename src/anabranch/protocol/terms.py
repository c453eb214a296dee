"""What all parties of a federation must agree on before the first round."""

from __future__ import annotations

from dataclasses import dataclass, fields

import jax
import numpy as np

from anabranch.core.party import Rule

VERSION = 5
"""Of the protocol: parties of other versions do not understand one another."""


@dataclass(frozen=True)
class Terms:
    """Said by each side when it says hello."""

    federation: str
    """Its name."""
    clients: int
    """``M``"""
    update: str
    """Such as ``DLR(window=10, decay=0.95, client_window=True)``."""
    wire: str
    """The dtype of embeddings and derivatives."""

    def differences(self, other: Terms) -> list[str]:
        """Return each field that differs, with both values, this side's first.

        >>> Terms("a", 4, "OGD()", "float32").differences(Terms("a", 5, "OGD()", "float16"))
        ['clients is 4 here and 5 there', 'wire is float32 here and float16 there']
        """
        return [
            difference(each.name, getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if getattr(self, each.name) != getattr(other, each.name)
        ]


def difference(name: str, here: object, there: object) -> str:
    """What is said of a field that differs."""
    return f"{name} is {here} here and {there} there"


def terms_of(federation: str, clients: int, rule: Rule) -> Terms:
    """Return the terms of a federation whose parties update by this rule."""
    update = jax.tree.map(lambda leaf: leaf.item() if isinstance(leaf, np.ndarray) else leaf, rule.update)
    return Terms(federation, clients, repr(update), rule.wire.name)
