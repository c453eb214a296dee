"""What a drift detector of River's holds, as JSON values: it survives the process without pickle.

A detector is restored into a new one of the same settings and the same version of River. Numbers come back as they
were to the last bit.
"""

from __future__ import annotations

import base64
import math
import random
from collections import deque
from typing import Any

import numpy as np

_PLAIN = (bool, int, str, type(None))


def state_of(value: Any, owner: Any = None) -> Any:
    """Return what a detector holds, or a part of it, as JSON values.

    Args:
        value: the detector or the part.
        owner: of the part; one of its methods may be a part too.

    Raises:
        TypeError: if there is something in it that has no such form.

    >>> state_of({"a": deque([1, 2.5])})
    {'pairs': [['a', [1, 2.5]]]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple | deque):
        return [state_of(each, owner) for each in value]
    if isinstance(value, dict):
        return {"pairs": [[state_of(name), state_of(each, owner)] for name, each in value.items()]}
    if isinstance(value, random.Random):
        return {"random": state_of(value.getstate())}
    if owner is not None and getattr(value, "__self__", None) is owner:
        return {"method": value.__name__}
    if type(value).__module__.split(".")[0] in ("river", "builtins") or hasattr(value, "__dict__"):
        held = value.__getstate__()
        if isinstance(held, dict | bytes | tuple):
            return {"class": type(value).__qualname__, "state": state_of(held, value)}
        if held is None and type(value).__module__ != "builtins":  # it has no attributes
            return {"class": type(value).__qualname__, "state": None}
    raise TypeError(f"a detector holds {type(value).__qualname__}, which cannot be kept")


def restored(state: Any, like: Any, owner: Any = None) -> Any:
    """Return the value of a state; it is the inverse of `state_of`.

    Args:
        state: of the detector or of a part.
        like: the same of a new detector; what has parts is changed in place.
        owner: of the part.

    Raises:
        ValueError: if the state is not of such a detector.

    >>> restored(state_of(deque([1, 2.5], maxlen=2)), deque(maxlen=2))
    deque([1, 2.5], maxlen=2)
    """
    if isinstance(state, list):
        return _sequence([restored(each, None, owner) for each in state], like)
    if not isinstance(state, dict):
        return state
    match state:
        case {"float": text}:
            return float(text)
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"method": name}:
            return getattr(owner, name)
        case {"pairs": pairs}:
            known = like if isinstance(like, dict) else {}
            return {restored(name, None): restored(each, known.get(_key(name)), owner) for name, each in pairs}
        case {"random": held} if isinstance(like, random.Random):
            version, numbers, gauss = held
            like.setstate((version, tuple(numbers), gauss))
            return like
        case {"class": name, "state": held} if type(like).__qualname__ == name:
            _fill(like, held)
            return like
    raise ValueError(f"the state of a detector has {state!s:.60}, where there is {type(like).__qualname__} now")


def _fill(like: Any, held: Any) -> None:
    """Give an object what it held."""
    if held is None:
        return
    before = like.__getstate__()
    found = restored(held, before, like)
    if isinstance(found, bytes):
        like.__setstate__(found)
        return
    for each in found if isinstance(found, list | tuple) else [found]:  # with slots there are two
        for name, value in (each or {}).items():
            setattr(like, name, value)


def _sequence(values: list[Any], like: Any) -> Any:
    match like:
        case deque():
            return deque(values, like.maxlen)
        case tuple():
            return tuple(values)
    return values


def _key(name: Any) -> Any:
    return name if isinstance(name, _PLAIN) else None
