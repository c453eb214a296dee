"""What the checks of many settings share."""

from __future__ import annotations

from typing import Any

import numpy as np

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
