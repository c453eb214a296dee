"""What a person gives to a client in Python, checked: features and events, or a source, columns and a stimulus."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anabranch.checks import unmasked
from anabranch.core.activation import Activation, Full
from anabranch.errors import ConfigError, DataError, counted, nearest
from anabranch.federation.labels import Event
from anabranch.federation.tables import event_name
from anabranch.parties.assemble import decider, stimulus_of
from anabranch.protocol.client.conversation import Decide
from anabranch.sources.activation import ByRound, OnEvent, SendOnDelta, Stimulus
from anabranch.sources.features import Column, Features

_SOURCE = ("begin", "readings", "look", "close", "counts", "slow")
"""What a source has."""


def columns_of(source: Any, columns: Sequence[Column | str], *others: Any) -> Features:
    """What is made of a source's values."""
    if any(others):
        raise ConfigError("a source and its columns say what inputs, features, events and schema say: leave those out")
    if missing := [each for each in _SOURCE if not hasattr(source, each)]:
        raise ConfigError(
            f"source is {source!r:.60}, which has no {missing[0]}: such as PythonSource of anabranch.sources.python is "
            "needed"
        )
    return Features([Column(each) if isinstance(each, str) else each for each in columns])


def decide_of(activation: Any, seed: int, index: int) -> Decide:
    """Return whether a client without a source is activated by what it is asked for."""
    if hasattr(activation, "touches"):
        raise ConfigError(f"activation is {activation!r:.60}, which goes by readings as they happen: give their source")
    activation = Full() if activation is None else activation
    return decider(activation, seed, index) if isinstance(activation, Activation) else activation


def stimulus_or(activation: Any, seed: int, index: int, features: Features) -> Stimulus:
    """Which readings, and which events of others, activate a client with a source."""
    if isinstance(activation, SendOnDelta) and (unknown := activation.unknown(features.columns)):
        raise ConfigError(
            f"activation is of the column '{unknown}', which is no number of columns.{nearest(unknown, features.names)}"
        )
    if activation is None:
        return OnEvent()
    if isinstance(activation, Activation):
        return stimulus_of(activation, seed, index)
    return activation if hasattr(activation, "touches") else ByRound(activation)


class CheckedFeatures:
    """A person's features, checked."""

    def __init__(self, features: Callable[[bytes], ArrayLike | None], inputs: int) -> None:
        self._features, self._inputs = features, inputs

    def __call__(self, event: bytes) -> NDArray[Any] | None:
        found = self._features(event)
        if found is None:
            return None
        x = unmasked(found)
        if x.shape != (self._inputs,) or x.dtype.kind not in "fiub":
            raise DataError(
                f"the features of an event are {x.dtype} of shape {x.shape}, and not {counted(self._inputs, 'number')}"
            )
        if not np.isfinite(x).all():
            raise DataError("a feature of an event is not finite: return None where there are no features")
        return x


async def names_of(events: AsyncIterable[Event]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event_name(event)
