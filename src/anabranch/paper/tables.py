"""The paper's table of a trial's performance, with the paper's own numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from anabranch.paper.experiment import Column, Row, Table, Value
from anabranch.paper.paper import number
from anabranch.simulation.traffic import MB

PAPER_BYTES = 2
"""The paper's totals are those of two bytes an element."""


def performance(name: str, caption: str, rows: Sequence[Row], label: str, paper: str) -> Table:
    """Error, computing time and traffic of each row, and the paper's.

    Args:
        rows: one line each, in this order.
        label: which of a row's labels heads its line.
        paper: under which experiment the paper's numbers are.
    """
    columns = [
        Column("row", label),
        Column("rate", "learning rate", "g"),
        Column("error", "accumulated error", ".4f"),
        Column("spread", "min–max over seeds"),
        Column("paper_error", "paper", ".4f"),
        Column("difference", "difference", "+.4f"),
        Column("last_error", "last run-time error", ".4f"),
        Column("activated", "activated", ".3f"),
        Column("seconds", "client s", ".1f"),
        Column("paper_seconds", "paper", ".0f"),
        Column("megabytes", "MB at 2 bytes", ",.2f"),
        Column("paper_megabytes", "paper", ",.2f"),
        Column("megabytes_difference", "difference", "+,.2f"),
    ]
    lines = [_line(row, str(row.labels[label]), paper) for row in rows]
    kept = [column for column in columns if any(line[column.key] is not None for line in lines)]
    return Table(name, caption, kept, lines)


def _line(row: Row, title: str, paper: str) -> dict[str, Value]:
    error, paper_error = error_of(row), number(paper, title, "error")
    paper_megabytes = number(paper, title, "megabytes")
    megabytes = fmean(PAPER_BYTES / 4 * (sum(r["bytes_up"]) + sum(r["bytes_down"])) / MB for r in row.records)
    return {
        "row": title,
        "rate": row.records[0]["config"]["learning_rate"],
        "error": error,
        "spread": spread(row),
        "paper_error": paper_error,
        "difference": _minus(error, paper_error),
        "last_error": None if error is None else fmean(record["run_time_error"] for record in row.records),
        "activated": fmean(fmean(record["activation_rate"]) for record in row.records),
        "seconds": row.client_seconds,
        "paper_seconds": number(paper, title, "seconds"),  # of another machine: their difference says nothing
        "megabytes": megabytes,
        "paper_megabytes": paper_megabytes,
        "megabytes_difference": _minus(megabytes, paper_megabytes),
    }


def _minus(ours: float | None, papers: float | None) -> float | None:
    return None if ours is None or papers is None else ours - papers


def error_of(row: Row) -> float | None:
    """Return the mean accumulated error over the seeds, or None where any of them diverged."""
    if any(record["diverged"] is not None for record in row.records):
        return None
    return fmean(record["accumulated_error"] for record in row.records)


def spread(row: Row) -> str:
    """Return the least and the greatest accumulated error over the seeds, or where they diverged."""
    diverged = [record["diverged"] for record in row.records if record["diverged"] is not None]
    if diverged:
        return f"{len(diverged)} of {len(row.records)} diverged, first in round {min(diverged):,}"
    errors = [record["accumulated_error"] for record in row.records]
    return "one seed" if len(errors) == 1 else f"{min(errors):.4f}–{max(errors):.4f}"
