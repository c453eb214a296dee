"""Values as a person reads them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from anabranch.simulation.traffic import MB

NONE = "–"
INFINITE = {"inf": "∞", "-inf": "−∞"}  # as JSON has them here


def text(value: object, how: str = "") -> str:
    """Return a value in a table's cell.

    Args:
        how: as Python's `format` takes it; text that stands among numbers is left as it is.

    >>> text(0.061751, ".4f"), text(-0.00432, "+.4f"), text(None, ".4f"), text("3 diverged", ".4f"), text("-inf")
    ('0.0618', '−0.0043', '–', '3 diverged', '−∞')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return INFINITE.get(str(value), str(value))
    try:
        shown = format(value, how or ("d" if isinstance(value, int) else ".6g"))
    except ValueError:  # the column's format is for something else
        shown = str(value)
    return INFINITE.get(shown, shown.replace("-", "−"))


def is_number(value: object) -> bool:
    """Return whether it stands at the right of its column."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the arithmetic mean of those that are there; None of nothing.

    >>> mean([1, None, 2]), mean([])
    (1.5, None)
    """
    held = [value for value in values if value is not None]
    return sum(held) / len(held) if held else None


def megabytes(count: float) -> float:
    """Return bytes in the unit of all tables, 2^20."""
    return count / MB


def joined(values: Mapping[str, object]) -> str:
    """Name and values in one line.

    >>> joined({"jax": "0.10.2", "cores": 2})
    'jax 0.10.2, cores 2'
    """
    return ", ".join(f"{name} {text(value)}" for name, value in values.items())


def machine_text(machine: Mapping[str, object] | None) -> str:
    """Return a processor and its cores, as results have them.

    >>> machine_text({"processor": "Xeon", "cores": 2}), machine_text(None)
    ('Xeon, 2 cores', 'not recorded')
    """
    if machine is None:
        return "not recorded"
    held = dict(machine)
    processor, cores = held.pop("processor", None), held.pop("cores", None)
    parts = [text(processor) if processor else "an unnamed processor"]
    if cores is not None:
        parts.append(f"{text(cores)} core{'s' if cores != 1 else ''}")
    return ", ".join([*parts, *([joined(held)] if held else [])])


def machines_text(machines: Iterable[Mapping[str, object] | None]) -> str:
    """Where trials ran, with how many each where that is not one machine.

    >>> machines_text([{"processor": "Xeon", "cores": 2}, None, None])
    'Xeon, 2 cores (1 trial); not recorded (2 trials)'
    """
    counts = Counter(map(machine_text, machines))
    if len(counts) < 2:
        return "".join(counts)
    return "; ".join(f"{name} ({count} trial{'s' if count > 1 else ''})" for name, count in counts.items())
