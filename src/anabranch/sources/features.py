"""From the values of a reading to the features of a model, by rules that are declared for each column.

Numbers may be imputed and standardised by what was seen so far, so that nothing looks ahead: state in, state out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch import checks
from anabranch.errors import ConfigError, DataError, counted, kind_of, nearest
from anabranch.storage.event_ids import as_whole

Kind: TypeAlias = Literal["number", "flag", "category"]
State: TypeAlias = NDArray[np.float64]
"""(4, d): of each feature how many values there were, the first of them, and the sums of the differences from it and of
their squares. A sum of differences keeps its digits where a mean is far from 0."""

_FLAGS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "t": 1.0, "f": 0.0, "1": 1.0, "0": 0.0}
_FLAGS |= {"1.0": 1.0, "0.0": 0.0}
_LARGEST = float(np.finfo(np.float32).max)
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Column:
    """One column, and what is made of it.

    Args:
        name: as the values have it.
        kind: ``"number"``; ``"flag"``, which is yes or no (1 or 0); or ``"category"``, which becomes a feature for each
            of its values and one more for all others, of which one is 1 and the rest 0.
        missing: what stands in for a value that is not there: ``"refuse"``, ``"zero"``, ``"mean"`` (of what was seen so
            far; 0 before the first) or a number. Of a category ``"unknown"``, which counts as another value, or
            ``"refuse"``. None is ``"refuse"``, and of a category ``"unknown"``.
        standardise: of a number, by the mean and standard deviation of what was seen so far.
        values: of a category.

    Raises:
        ConfigError: where these do not go together.
    """

    name: str
    kind: Kind = "number"
    missing: str | float | None = None
    standardise: bool = False
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"column '{self.name}'"
        if not self.name:
            raise ConfigError("a column has an empty name")
        if self.kind not in ("number", "flag", "category"):
            raise ConfigError(f"{where}: kind is {self.kind!r}, but it must be number, flag or category")
        category = self.kind == "category"
        rules = ("refuse", UNKNOWN) if category else ("refuse", "zero", "mean")
        number = isinstance(self.missing, int | float) and not isinstance(self.missing, bool)
        if self.missing is not None and self.missing not in rules and (category or not number):
            also = "" if category else " or a number"
            raise ConfigError(f"{where}: missing is {self.missing!r}, but it must be {', '.join(rules)}{also}")
        if number and not abs(float(self.missing or 0)) <= _LARGEST:
            raise ConfigError(f"{where}: missing is {self.missing}, which float32 does not hold")
        if self.standardise and self.kind != "number":
            raise ConfigError(f"{where}: a {self.kind} is 0 or 1 and not standardised: leave standardise out")
        if category and not self.values:
            raise ConfigError(f"{where}: a category needs its values, such as values = ['retail', 'farming']")
        if self.values and not category:
            raise ConfigError(f"{where}: has values, so its kind must be category")
        if len({*self.values}) < len(self.values):
            raise ConfigError(f"{where}: names a value twice")

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return len(self.values) + 1 if self.kind == "category" else 1

    @property
    def rule(self) -> str | float:
        """What stands in for a missing value."""
        if self.missing is None:
            return UNKNOWN if self.kind == "category" else "refuse"
        return self.missing

    @property
    def plain(self) -> bool:
        """Whether it is a number as it is."""
        return self == Column(self.name)


class Features:
    """Makes a model's features of a reading's values.

    Args:
        columns: in the order in which the model takes them; a text is a number that must be there.
        mean: what is subtracted from each, where all are plain numbers; None is nothing.
        std: what each is then divided by.

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
        self._mean, self._std = mean, std
        self.width = sum(each.width for each in self.columns)
        """How many features there are."""
        rules = None if plain else [_described(each) for each in self.columns]
        self.schema = schema_digest(names, mean, std, rules)
        """A digest of what they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, in order."""
        return tuple(
            name
            for column in self.columns
            for name in (
                [*(f"{column.name}={value}" for value in column.values), f"{column.name}=?"]
                if column.kind == "category"
                else [column.name]
            )
        )

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
        state = state.copy()
        x: list[float] = []
        for i, column in enumerate(self.columns):
            if column.name not in values:
                known = nearest(column.name, values)
                raise DataError(f"there is no column '{column.name}': it has vanished or been renamed.{known}")
            value = values[column.name]
            if column.kind == "category":
                x += _one_hot(column, value)
                continue
            number = _number(column, value)
            if number is not None:
                _add(state[:, i], number)
                if not math.isfinite(state[3, i]):
                    raise DataError(f"column '{column.name}': a number is too large to standardise")
            else:
                number = _imputed(column, state[:, i])
            if column.standardise:
                number = _standardised(state[:, i], number)
            if self._mean is not None and self._std is not None:
                number = (number - self._mean[i]) / self._std[i]
            if not abs(number) <= _LARGEST:
                raise DataError(f"column '{column.name}': a number is larger than float32 holds")
            x.append(number)
        return state, np.array(x, np.float32)


def schema_digest(
    columns: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    rules: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """What a client's features are, in 16 characters: their names, order, scaling and rules, and none of their values.

    >>> schema_digest(["amount", "balance"], None, None)
    '1f528171e7a73f71'
    """
    described: dict[str, Any] = {"columns": list(columns), "mean": None if mean is None else list(mean)}
    described |= {"std": None if std is None else list(std)}
    if rules is not None:
        described |= {"rules": list(rules)}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _described(column: Column) -> dict[str, Any]:
    rule = column.rule
    return {
        "kind": column.kind,
        "missing": rule if isinstance(rule, str) else float(rule),
        "standardise": column.standardise,
        "values": list(column.values),
    }


def is_missing(value: Any) -> bool:
    """Return whether there is no value: a missing one of any library, or an empty text."""
    return not value.strip() if isinstance(value, str) else checks.is_missing(value)


def flag_of(value: Any) -> float | None:
    """1 or 0 of what means yes or no; None where it is neither."""
    return _FLAGS.get(str(value).strip().lower())


def _number(column: Column, value: Any) -> float | None:
    """Return a value as a number; None where it is missing."""
    if is_missing(value):
        return None
    where = f"column '{column.name}'"
    if column.kind == "flag":
        flag = flag_of(value)
        if flag is None:
            raise DataError(f"{where}: {kind_of(value)} is neither true nor false")
        return flag
    if isinstance(value, date | datetime | time | np.datetime64):
        raise DataError(
            f"{where}: {kind_of(value)} is a time, which a model cannot take: make a number of it, such as the hour or "
            "the days since something"
        )
    try:
        if isinstance(value, bytes) or (isinstance(value, str) and "_" in value):  # Python reads 1_000 as a number
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"{where}: {kind_of(value)} is not a number: has the column changed its type? A column of words is of "
            "kind = 'category'"
        ) from None
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise DataError(f"{where}: {kind_of(value)} is not a finite number")
    return number


def _one_hot(column: Column, value: Any) -> list[float]:
    hot = [0.0] * column.width
    if is_missing(value):
        if column.rule == "refuse":
            raise _refused(column)
        hot[-1] = 1.0
        return hot
    text = str(as_whole(value)).strip()  # a database and a file have 3.0 and 3 of the same thing
    hot[column.values.index(text) if text in column.values else -1] = 1.0
    return hot


def _imputed(column: Column, state: State) -> float:
    rule = column.rule
    if rule == "refuse":
        raise _refused(column)
    if rule == "zero":
        return 0.0
    if rule == "mean":
        count, first, total, _ = state
        return float(first + total / count) if count else 0.0
    return float(rule)


def _refused(column: Column) -> DataError:
    other = "'unknown'" if column.kind == "category" else "'mean', 'zero' or a number"
    return DataError(f"column '{column.name}': the value is missing; with missing = {other} something stands in for it")


def _add(state: State, number: float) -> None:
    """One more value of a column, into its part of the state."""
    if not state[0]:
        state[1] = number
    away = number - state[1]
    with np.errstate(over="ignore"):
        state += (1.0, 0.0, away, np.square(away))


def _standardised(state: State, number: float) -> float:
    """Return ``(x − μ) / σ`` of the values so far; 0 where they were all the same. As `streams.standardise`, to the
    bit.
    """
    count, first, total, squares = state
    if not count:
        return 0.0
    mean = total / count
    variance = squares / count - np.square(mean)
    return float((number - first - mean) / np.sqrt(variance)) if variance > 0 else 0.0
