"""The rules of columns: numbers of the values of a number, a flag, a category or a label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError, DataError, kind_of
from anabranch.tables.values import MissingValues, is_missing, is_number, missing_numbers, plain_text

Kind: TypeAlias = Literal["number", "flag", "category"]
Said: TypeAlias = Callable[[Any], str]
"""How a message calls a value."""

UNKNOWN = "unknown"
LARGEST = float(np.finfo(np.float32).max)
_FLAGS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "t": 1.0, "f": 0.0, "1": 1.0, "0": 0.0}
_FLAGS |= {"1.0": 1.0, "0.0": 0.0}


_ADVICE = (
    ": has the column changed its type? A column of words is of kind = 'category', and a text that means no value "
    "belongs into missing_values"
)


class Rule(Protocol):
    """A way to make a number of each value of a column."""

    @property
    def numeric(self) -> bool:
        """Whether values that are numbers are taken as they are."""
        ...

    def number(self, value: Any, missing_values: MissingValues, said: Said = kind_of) -> float:
        """Return what a value is as a number; NaN if there is none and something else stands in for it.

        Raises:
            DataError: it is no value of the column; the message does not name that.
        """
        ...

    def refused(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which numbers, NaN for a missing one, are no values of a column that takes numbers as they are."""
        ...


@dataclass(frozen=True)
class Column:
    """One column and its rule.

    Args:
        name: as the values have it.
        kind: ``"number"``; ``"flag"``, which is yes or no (1 or 0); or ``"category"``, which becomes a feature for each
            of its values and one more for all others, of which one is 1 and the rest 0.
        missing: what stands in for a value that is not there: ``"refuse"``, ``"zero"``, ``"mean"`` (of what was seen so
            far; 0 before the first) or a number. Of a category ``"unknown"``, which counts as another value, or
            ``"refuse"``. None is ``"refuse"``, and of a category ``"unknown"``.
        standardise: of a number, by the mean and standard deviation of what was seen so far.
        values: of a category. A text that is one of them is never missing, whatever ``missing_values`` says.

    Raises:
        ConfigError: these do not go together.
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
        if number and not abs(float(self.missing or 0)) <= LARGEST:
            raise ConfigError(f"{where}: missing is {self.missing}, which float32 does not hold")
        if self.standardise and self.kind != "number":
            raise ConfigError(f"{where}: a {self.kind} is 0 or 1 and not standardised: leave standardise out")
        if category and not self.values:
            raise ConfigError(f"{where}: a category needs its values, such as values = ['retail', 'farming']")
        if self.values and not category:
            raise ConfigError(f"{where}: has values, so its kind must be category")
        if len({*self._texts}) < len(self.values):
            raise ConfigError(f"{where}: names a value twice")

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        """The values as they are compared: 1.0 is 1."""
        return tuple(map(plain_text, self.values))

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return len(self.values) + 1 if self.kind == "category" else 1

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features it becomes."""
        if self.kind != "category":
            return (self.name,)
        return (*(f"{self.name}={value}" for value in self.values), f"{self.name}=?")

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

    @property
    def numeric(self) -> bool:
        """Whether values that are numbers are taken as they are."""
        return self.kind == "number"

    def number(self, value: Any, missing_values: MissingValues, said: Said = kind_of) -> float:
        """Return what a value is as a number: of a category the place among its values.

        NaN stands for a missing value, unless the rule refuses that.

        Raises:
            DataError: it is no value of the column; the message does not name that.
        """
        if self.kind == "number":
            return self._plain_number(value, missing_values, said)
        if self.kind == "category":
            text = None if is_missing(value) else plain_text(value)
            if text in self._texts:
                return float(self._texts.index(text))
        if is_missing(value, missing_values):
            return self._missing(value, said)
        if self.kind == "category":
            return float(len(self.values))
        flag = flag_of(value)
        if flag is None:
            raise DataError(f"{said(value)} is neither true nor false")
        return flag

    def _plain_number(self, value: Any, missing_values: MissingValues, said: Said) -> float:
        if value is None or (isinstance(value, str) and (not value.strip() or value.strip() in missing_values)):
            return self._missing(value, said)
        try:
            number = number_of(value, said)
        except DataError as error:
            word = isinstance(value, str) and not is_number(value)
            raise DataError(f"{error}{_ADVICE if word else ''}") from None
        missing = math.isnan(number) or number in missing_numbers(missing_values)
        return self._missing(value, said) if missing else number

    def _missing(self, value: Any, said: Said) -> float:
        category = self.kind == "category"
        if self.rule != "refuse":
            return float(len(self.values)) if category else math.nan
        what = "the value is missing"
        if isinstance(value, str):
            what = f"{said(value)} is one of missing_values" if value.strip() else "the cell is empty"
        other = "'unknown'" if category else "'mean', 'zero' or a number"
        raise DataError(f"{what}; with missing = {other} something stands in for it")

    def refused(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which numbers, NaN for a missing one, are no values of the column."""
        return ~np.isfinite(numbers) if self.rule == "refuse" else np.isinf(numbers)


@dataclass(frozen=True)
class Classes:
    """The classes of labels.

    Args:
        count: how many there are.
        names: how the labels name each, in order; empty if a label is the class's number from 0 on.
    """

    count: int
    names: tuple[str, ...] = ()

    @classmethod
    def named(cls, names: Iterable[Any]) -> Classes:
        """Return the classes that labels name so, in this order.

        Raises:
            ConfigError: they are not texts or whole numbers, or one is there twice.
        """
        given = list(names)
        if not given or not all(isinstance(each, str | int) and not isinstance(each, bool) for each in given):
            raise ConfigError(f"classes is {given!r}: must be a number of classes, or a list of the labels' texts")
        texts = tuple(plain_text(each) for each in given)
        if len({*texts}) < len(texts):
            raise ConfigError(f"classes is {given!r}: names a label twice")
        return cls(len(texts), texts)

    @classmethod
    def of(cls, given: int | Iterable[Any]) -> Classes:
        """So many classes, or the classes that labels name so."""
        if isinstance(given, int | float | str):
            return cls(whole("classes", given, 1))
        return cls.named(given)

    @property
    def numeric(self) -> bool:
        """Whether labels that are numbers are taken as they are."""
        return not self.names

    def number(self, value: Any, missing_values: MissingValues, said: Said = kind_of) -> float:
        """Return the class of a label.

        Raises:
            DataError: it is none.
        """
        if self.names:
            text = None if is_missing(value) else plain_text(value)
            if text in self.names:
                return float(self.names.index(text))
        if is_missing(value, missing_values):
            empty = isinstance(value, str) and not value.strip()
            text_said = f" ({said(value)} is one of missing_values)" if isinstance(value, str) and not empty else ""
            raise DataError("the cell is empty" if empty else f"the label is missing{text_said}")
        if self.names:
            raise DataError(f"{said(value)} is none of the {self.count} labels that classes names")
        try:
            number = number_of(value, said)
        except DataError as error:
            raise DataError(f"{error}: name labels that are texts, such as classes = ['low', 'high']") from None
        if number < 0 or not number.is_integer():
            raise DataError(f"{said(value)} is no whole number from 0 on: name such labels, as in classes = [-1, 1]")
        if number >= self.count:
            raise DataError(f"{said(value)} is no label from 0 to {self.count - 1}: is the number of classes right?")
        return number

    def refused(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which numbers are no class."""
        with np.errstate(invalid="ignore"):
            return ~((numbers >= 0) & (numbers < self.count) & (numbers == np.floor(numbers)))


def flag_of(value: Any) -> float | None:
    """1 or 0 of what means yes or no; None where it is neither."""
    return _FLAGS.get(str(value).strip().lower())


def number_of(value: Any, said: Said = kind_of) -> float:
    """Return a value as a number, NaN included.

    Raises:
        DataError: it is none, or infinite.
    """
    if isinstance(value, date | datetime | time | np.datetime64):
        raise DataError(
            f"{said(value)} is a time, which a model cannot take: make a number of it, such as the hour or the days "
            "since something"
        )
    if not isinstance(value, str) and is_missing(value):
        return math.nan
    try:
        # Python reads 1_000 and digits of other scripts as numbers.
        if isinstance(value, bytes) or (isinstance(value, str) and ("_" in value or not value.isascii())):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{said(value)} is not a number") from None
    if math.isinf(number):
        raise DataError(f"{said(value)} is not a finite number")
    return number
