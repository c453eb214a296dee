"""From the values of a reading to the features of a model, by rules that are declared for each column.

Numbers may be imputed and standardised by what was seen so far, so that nothing looks ahead: state in, state out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError, DataError, counted, nearest
from anabranch.tables.columns import LARGEST, Column
from anabranch.tables.form import MISSING_VALUES

State: TypeAlias = NDArray[np.float64]
"""(4, d): of each feature how many values there were, the first of them, and the sums of the differences from it and of
their squares. A sum of differences keeps its digits where a mean is far from 0."""


class Features:
    """Makes a model's features of a reading's values.

    Args:
        columns: in the order in which the model takes them; a text is a number that must be there.
        mean: what is subtracted from each, where all are plain numbers; None is nothing.
        std: what each is then divided by.
        missing_values: the texts that mean no value; an empty one always does.

    Raises:
        ConfigError: where a column is named twice, or these do not go together.

    >>> sector = Column("sector", "category", values=("farming", "retail"))
    >>> features = Features([Column("age", standardise=True), sector])
    >>> features.names
    ('age', 'sector=farming', 'sector=retail', 'sector=?')
    >>> state, x = features(features.begin(), {"age": 40, "sector": "retail"})
    >>> state, x = features(state, {"age": "60", "sector": "mining"})
    >>> x
    array([1., 0., 0., 1.], dtype=float32)
    """

    def __init__(
        self,
        columns: Sequence[Column | str],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        missing_values: Sequence[str] = MISSING_VALUES,
    ) -> None:
        self.columns = tuple(Column(each) if isinstance(each, str) else each for each in columns)
        if not self.columns:
            raise ConfigError("columns is empty: name at least one")
        names = [each.name for each in self.columns]
        if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
            raise ConfigError(f"columns names '{twice}' twice")
        plain = all(each.plain for each in self.columns)
        if (mean is None) != (std is None):
            raise ConfigError("mean and std belong together: give both or none")
        if mean is not None and not plain:
            raise ConfigError("mean and std are for columns without rules: use standardise = true of a column instead")
        for name, given in (("mean", mean), ("std", std)):
            if given is not None and len(given) != len(names):
                raise ConfigError(f"{name} has {counted(len(given), 'number')} for {counted(len(names), 'column')}")
        self._mean = None if mean is None else np.asarray(mean, np.float64)
        self._std = None if std is None else np.asarray(std, np.float64)
        self._missing_values = frozenset(missing_values)
        self._categories = np.array([column.kind == "category" for column in self.columns])
        self._means = np.array([column.rule == "mean" for column in self.columns])
        self._scaled = np.array([column.standardise for column in self.columns])
        self._constants = np.array([0.0 if isinstance(each.rule, str) else each.rule for each in self.columns])
        self._places = np.arange(len(self.columns))
        self.width = sum(each.width for each in self.columns)
        """How many features there are."""
        rules = None if plain else [_described(each) for each in self.columns]
        usual = self._missing_values == frozenset(MISSING_VALUES)
        self.schema = schema_digest(names, mean, std, rules, None if usual else sorted(self._missing_values))
        """A digest of what they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    def begin(self) -> State:
        """The state before any value was seen."""
        return np.zeros((4, len(self.columns)))

    def __call__(self, state: State, values: Mapping[str, Any]) -> tuple[State, NDArray[np.float32]]:
        """Return the features (d,) of a reading's values, and the state with these in it; a refused reading changes
        none.

        Raises:
            DataError: where a value is missing and its rule refuses that, or it is no value of its column; the message
                names the column, and what is wrong without the value.
        """
        numbers = np.empty((1, len(self.columns)))
        for i, column in enumerate(self.columns):
            if column.name not in values:
                known = nearest(column.name, values)
                raise DataError(f"there is no column '{column.name}': it has vanished or been renamed.{known}")
            try:
                numbers[0, i] = column.number(values[column.name], self._missing_values)
            except DataError as error:
                raise DataError(f"column '{column.name}': {error}") from None
        state, x = self.made(state, numbers)
        if not np.isfinite(state[3]).all():
            name = self.columns[int(np.argmin(np.isfinite(state[3])))].name
            raise DataError(f"column '{name}': a number is too large to standardise")
        if (large := self.too_large(x)) is not None:
            raise DataError(f"column '{large[1].name}': a number is larger than float32 holds")
        return state, x[0].astype(np.float32)

    def made(self, state: State, numbers: NDArray[np.float64]) -> tuple[State, NDArray[np.float64]]:
        """Return the features (n, d) of consecutive readings, and the state after them.

        Args:
            state: before the first of them.
            numbers: (n, columns), as `Column.number` makes them of each value.

        Cutting the readings into other pieces, or giving them one at a time, returns the same bits.
        """
        if not len(numbers):
            return state, np.zeros((0, self.width))
        there = ~(np.isnan(numbers) | self._categories)
        seen = state[0] > 0
        first = np.where(seen, state[1], numbers[there.argmax(axis=0), self._places])
        first[~(seen | there.any(axis=0))] = 0.0
        with np.errstate(all="ignore"):
            away = np.where(there, numbers - first, 0.0)
            # cumsum adds row by row, unlike sum, which adds in pairs.
            count, total, squares = (
                np.cumsum(np.concatenate([before[None], each]), axis=0)[1:]
                for before, each in ((state[0], there), (state[2], away), (state[3], np.square(away)))
            )
            mean = np.where(count > 0, total / count, 0.0)
            x = np.where(np.isnan(numbers), np.where(self._means & (count > 0), first + mean, self._constants), numbers)
            if self._scaled.any():
                variance = squares / count - np.square(mean)
                scaled = np.where(variance > 0, (x - first - mean) / np.sqrt(variance), 0.0)
                x = np.where(self._scaled, scaled, x)
            if self._mean is not None and self._std is not None:
                x = (x - self._mean) / self._std
        state = np.stack([count[-1], first, total[-1], squares[-1]])
        return state, self._one_hot(x) if self._categories.any() else x

    def _one_hot(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = [
            np.eye(column.width)[x[:, i].astype(np.int64)] if column.kind == "category" else x[:, i : i + 1]
            for i, column in enumerate(self.columns)
        ]
        return np.concatenate(parts, axis=1)

    def too_large(self, x: NDArray[np.float64]) -> tuple[int, Column] | None:
        """Return the row and the column of the first feature that float32 does not hold; None if it holds all."""
        bad = ~(np.abs(x) <= LARGEST)
        if not bad.any():
            return None
        row, feature = (int(i) for i in np.argwhere(bad)[0])
        columns = [column for column in self.columns for _ in column.features]
        return row, columns[feature]


def schema_digest(
    columns: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    rules: Sequence[Mapping[str, Any]] | None = None,
    missing_values: Sequence[str] | None = None,
) -> str:
    """What a client's features are, in 16 characters: their names, order, scaling and rules, and none of their values.

    >>> schema_digest(["amount", "balance"], None, None)
    '1f528171e7a73f71'
    """
    described: dict[str, Any] = {"columns": list(columns), "mean": None if mean is None else list(mean)}
    described |= {"std": None if std is None else list(std)}
    if rules is not None:
        described |= {"rules": list(rules)}
    if missing_values is not None:
        described |= {"missing_values": list(missing_values)}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _described(column: Column) -> dict[str, Any]:
    rule = column.rule
    return {
        "kind": column.kind,
        "missing": rule if isinstance(rule, str) else float(rule),
        "standardise": column.standardise,
        "values": list(column.values),
    }
