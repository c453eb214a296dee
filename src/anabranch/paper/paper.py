"""The paper's own numbers, which stand beside ours."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def numbers() -> dict[tuple[str, str, str], float]:
    """By experiment, row and metric."""
    text = (resources.files("anabranch.paper") / "paper.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    return {(line["experiment"], line["row"], line["metric"]): float(line["value"]) for line in lines}


def number(experiment: str, row: str, metric: str) -> float | None:
    """Return the paper's number, or None where it has none.

    >>> number("drift", "DLR-Event", "error")
    0.0681
    """
    return numbers().get((experiment, row, metric))
