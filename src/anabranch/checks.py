"""What the checks of many settings share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import ConfigError


def plain(value: Any) -> Any:
    """Return a number of NumPy as Python's own, and anything else as it is: settings often come out of NumPy.

    >>> plain(np.float32(0.5)), plain(np.int64(1)), plain("0.5")
    (0.5, 1, '0.5')
    """
    return value.item() if isinstance(value, np.number) else value


def whole(name: str, value: Any, least: int, most: int | None = None, what: str = "") -> int:
    """Return ``value`` as an int, or a :class:`~anabranch.errors.ConfigError` unless it is whole and in
    ``least..most``.

    >>> whole("every", 50, 1)
    50
    >>> whole("every", 0.5, 1)
    Traceback (most recent call last):
    anabranch.errors.ConfigError: every is 0.5: must be a whole number, at least 1
    """
    # np.integer, because seeds and counts often come out of NumPy; a bool is an int to Python, but not to a reader.
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if least <= number and (most is None or number <= most):
            return number
    allowed = f", at least {least}" if most is None else f" from {least} to {most}"
    raise ConfigError(f"{name} is {value!r}: must be a whole number{allowed}{what}")


def python_value(value: Any) -> Any:
    """Return a single value of NumPy, JAX or PyArrow as Python's own, and anything else as it is.

    A masked value is None. A time of NumPy stays as it is: Python's number for it would say nothing of its unit.

    >>> python_value(np.int64(1)), python_value(np.array("a")), python_value([1])
    (1, 'a', [1])
    """
    if callable(as_py := getattr(value, "as_py", None)):
        return as_py()
    if getattr(value, "ndim", None) == 0:
        if np.ma.is_masked(value):
            return None
        if value.dtype.kind in "biufUS":
            return value.item()
    return value


def is_missing(value: Any) -> bool:
    """Return whether a single value stands for one that is not there, in any library's way.

    These are None, NaN of any type, NaT, ``pandas.NA`` and NumPy's masked value. pandas need not be installed.

    >>> [is_missing(each) for each in (None, float("nan"), np.datetime64("NaT"), np.ma.masked, 0, "", [None])]
    [True, True, True, True, False, False, False]
    """
    value = python_value(value)
    if value is None:
        return True
    if getattr(value, "ndim", 0):
        return False
    try:
        return bool(value != value)  # NaN and NaT alone differ from themselves
    except (TypeError, ArithmeticError):  # pandas.NA says neither, and a signalling NaN of decimal does not compare
        return True


def unmasked(values: Any) -> NDArray[Any]:
    """Return an array whose masked entries are NaN, or None where its entries are no numbers.

    >>> unmasked(np.ma.array([1, 2], mask=[True, False])), unmasked([1, 2])
    (array([nan,  2.]), array([1, 2]))
    """
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return np.asarray(values)
    if values.dtype.kind in "biuf":
        return np.ma.filled(values.astype(np.promote_types(values.dtype, np.float32)), np.nan)
    return np.ma.filled(values.astype(object), None)
