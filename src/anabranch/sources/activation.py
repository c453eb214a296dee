"""Which of its own readings activate a client, and which of the events that others told of."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError, counted
from anabranch.sources.base import Reading
from anabranch.tables.columns import Column, flag_of
from anabranch.tables.form import MISSING_VALUES
from anabranch.tables.values import is_missing


class Stimulus(Protocol):
    """A rule of a client that has events of its own."""

    of_readings: bool
    """Whether a reading may activate the client; else none is looked at."""
    entities: int
    """Of how many entities something has to survive a restart, of those that have activated the client last; where it
    is 0, nobody calls `state` or `restore`."""

    def touches(self, reading: Reading, x: NDArray[Any]) -> bool:
        """Return whether a reading activates the client; ``x`` (d,) is its features, made of its values."""
        ...

    def decide(self, t: int, x: NDArray[Any]) -> bool:
        """Return whether round ``t``, of an event that it has not told of, activates it; ``x`` (d,) is its features."""
        ...

    def state(self, entity: str) -> list[Any]:
        """What has to survive a restart of an entity whose reading has just activated the client, of JSON's values."""
        ...

    def restore(self, states: Mapping[str, list[Any]]) -> None:
        """The inverse, for all entities; the one that has activated the client last is the last."""
        ...


def check_stimulus(made: Any, name: str) -> Stimulus:
    """Return a stimulus of a person's own.

    Args:
        made: the object.
        name: the place of its class, for the error.

    Raises:
        ConfigError: if it lacks something that a stimulus has.
    """
    needed = ("of_readings", "entities", "touches", "decide", "state", "restore")
    if missing := [each for each in needed if not hasattr(made, each)]:
        raise ConfigError(
            f"activation.name = {name!r} gives a {type(made).__name__} without {', '.join(missing)}: an activation or "
            "a stimulus is needed. Derive your class from anabranch.Activation, or see anabranch.sources.activation"
        )
    return made


class OnEvent:
    """Every reading of this client activates it, and nothing else does.

    >>> import numpy as np
    >>> OnEvent().touches(Reading("x", 0, {}), np.zeros(1)), OnEvent().decide(0, np.zeros(1))
    (True, False)
    """

    of_readings = True
    entities = 0

    def touches(self, reading: Reading, x: NDArray[Any]) -> bool:
        """Ye."""
        return True

    def decide(self, t: int, x: NDArray[Any]) -> bool:
        """No: it is the event of others."""
        return False

    def state(self, entity: str) -> list[Any]:
        """Nothing."""
        return []

    def restore(self, states: Mapping[str, list[Any]]) -> None:
        """Nothing."""


class ByRound:
    """A rule that goes by a round and the client's features, whoever told of the event: as the simulator's do.

    Args:
        rule: whether a round of this number activates the client, by its features; it holds nothing.
        of_readings: whether the client's own readings are asked about as well; else it tells of none.

    >>> import numpy as np
    >>> above = ByRound(lambda t, x: bool(np.mean(x) > 0.2))
    >>> above.touches(Reading("x", 0, {}), np.float32([0.1, 0.5])), above.decide(7, np.float32([0.1, 0.2]))
    (True, False)
    """

    entities = 0

    def __init__(self, rule: Callable[[int, NDArray[Any]], bool], *, of_readings: bool = True) -> None:
        self._rule, self.of_readings = rule, of_readings

    def touches(self, reading: Reading, x: NDArray[Any]) -> bool:
        """By the features."""
        return self.of_readings and self._rule(0, x)

    def decide(self, t: int, x: NDArray[Any]) -> bool:
        """By the round and the features."""
        return self._rule(t, x)

    def state(self, entity: str) -> list[Any]:
        """Nothing."""
        return []

    def restore(self, states: Mapping[str, list[Any]]) -> None:
        """Nothing."""


class SendOnDelta:
    """A reading activates the client where it has moved by more than a threshold since the last one that did.

    The first reading of an entity does. Of a column that is missing now or was then, a change between missing and there
    counts as a move. Each entity is by itself.

    Args:
        threshold: by how much a column must have moved, in its own unit; one number, or one a column.
        columns: those that are looked at.
        entities: of how many the last one is held; the one that moved longest ago is then taken for new.
        missing_values: the texts that mean no value.

    Raises:
        ConfigError: where a threshold is negative, or there is not one a column.

    >>> import numpy as np
    >>> rule = SendOnDelta(1.0, ["a"])
    >>> [rule.touches(Reading("x", t, {"a": a}), np.zeros(1)) for t, a in enumerate([5, 5.5, 6, 6.5, 7, 5.9])]
    [True, False, False, True, False, False]
    """

    of_readings = True

    def __init__(
        self,
        threshold: float | Sequence[float],
        columns: Sequence[str],
        entities: int = 1_000_000,
        missing_values: Sequence[str] = MISSING_VALUES,
    ) -> None:
        self._columns, self._missing_values = tuple(columns), frozenset(missing_values)
        given = list(threshold) if isinstance(threshold, Sequence) else [threshold] * len(self._columns)
        if not self._columns or len(given) != len(self._columns):
            numbers, names = counted(len(given), "number"), counted(len(self._columns), "column")
            raise ConfigError(f"threshold has {numbers} for {names}")
        if not all(0 <= each < math.inf for each in given):
            raise ConfigError(f"threshold is {threshold}: must be 0 or more")
        self._thresholds = tuple(given)
        self.entities = whole("entities", entities, 1)
        self._sent: OrderedDict[str, tuple[float | None, ...]] = OrderedDict()

    def unknown(self, columns: Sequence[Column]) -> str | None:
        """Return the first column that it looks at and that is no number of these; else None."""
        return next((each for each in self._columns if each not in numbers_of(columns)), None)

    def touches(self, reading: Reading, x: NDArray[Any]) -> bool:
        """Return whether it has moved; it is then the last one that did."""
        now = tuple(_number(reading.values, name, self._missing_values) for name in self._columns)
        before = self._sent.get(reading.entity)
        if before is not None and not any(map(_moved, before, now, self._thresholds)):
            return False
        self._sent[reading.entity] = now
        self._sent.move_to_end(reading.entity)
        if len(self._sent) > self.entities:
            self._sent.popitem(last=False)
        return True

    def decide(self, t: int, x: NDArray[Any]) -> bool:
        """No: it is the event of others."""
        return False

    def state(self, entity: str) -> list[Any]:
        """Return the values of its last reading that did."""
        return [*self._sent[entity]]

    def restore(self, states: Mapping[str, list[Any]]) -> None:
        """The inverse; what was held of other columns is left out."""
        held = [(entity, tuple(values)) for entity, values in states.items() if len(values) == len(self._columns)]
        self._sent = OrderedDict(held[-self.entities :])


def numbers_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of those that may move."""
    return [each.name for each in columns if each.kind != "category"]


def _moved(before: float | None, now: float | None, threshold: float) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > threshold


def _number(values: Mapping[str, Any], name: str, missing_values: Container[str]) -> float | None:
    """Return a value as a number; None where it is missing or none: the rules of the features have their say about
    that.
    """
    value = values.get(name)
    if is_missing(value, missing_values):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return flag_of(value)  # "true", which moves to "false"
    return number if math.isfinite(number) else None
