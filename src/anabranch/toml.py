"""Writes TOML: Python's tomllib only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, Any]) -> str:
    """The document as TOML: its plain values first, then each table that it holds as a section.

    Reading it back with tomllib gives equal values, tuples as lists. There must be no None.

    >>> print(dumps({"rounds": 10, "activation": {"name": "Event", "threshold": float("-inf")}}))
    rounds = 10
    <BLANKLINE>
    [activation]
    name = "Event"
    threshold = -inf
    <BLANKLINE>
    """
    plain = {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {value_text(value)}" for key, value in plain.items()]
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(inner)} = {value_text(each)}" for inner, each in value.items()]
    return "\n".join(lines) + "\n"


def value_text(value: Any) -> str:
    """One value as TOML writes it, on one line.

    >>> print(value_text({"kitchen": ["light", "co2"], "two words": 1e-05}))
    {kitchen = ["light", "co2"], "two words" = 1e-05}
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {value_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(each) for each in value) + "]"
    return repr(value) if isinstance(value, float) else str(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else value_text(key)
