"""The table of an experiment that compares arms: each with its mean, and its difference from others, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from anabranch.paper.experiment import Column, Row, Table, Value
from anabranch.paper.paired import paired_difference
from anabranch.sweep.trial import Record

LAST_SHARE = 10
"""The last error is that of a tenth of the rounds."""


def errors(row: Row) -> dict[int, float]:
    """Return the accumulated error of each seed that did not diverge."""
    return {
        record["config"]["seed"]: record["accumulated_error"] for record in row.records if record["diverged"] is None
    }


def last_error(record: Record) -> float:
    """Return the error rate of the last tenth of a trial's rounds, or of as much as the curve's last points have.

    A point of the curve is the mean error since at most 20,000 rounds, so this is the mean of the last points.
    """
    late = record["curve"]["run_time_error"]
    return fmean(late[-max(1, len(late) // LAST_SHARE) :])


def arm_table(
    name: str, caption: str, rows: Sequence[Row], seeds: int, references: Sequence[str], label: str = "arm"
) -> Table:
    """Return a table with a line for each row, grouped by learning rate.

    Args:
        name: the table's name.
        caption: what it shows.
        rows: they have the labels ``rate`` and ``label``; one without records is a cell that was not run yet.
        seeds: how many each row should have.
        references: the arms that each arm of the same rate is compared with.
        label: the label that names an arm.
    """
    columns = [
        Column("rate", "learning rate", "g"),
        Column("row", label),
        Column("seeds", "seeds"),
        Column("error", "accumulated error", ".4f"),
        Column("last", "error of the last tenth", ".4f"),
    ]
    columns += [Column(f"minus {each}", f"minus {each}, 95 %") for each in references]
    columns.append(Column("remark", "remark"))
    lines: list[dict[str, Value]] = []
    for row in sorted(rows, key=lambda row: float(row.labels["rate"] or 0)):
        held = errors(row)
        line: dict[str, Value] = {
            "rate": row.labels["rate"],
            "row": row.labels[label],
            "seeds": f"{len(row.records)} of {seeds}",
            "error": fmean(held.values()) if len(held) == len(row.records) > 0 else None,
            "last": fmean(map(last_error, row.records)) if row.records else None,
            "remark": _remark(row, seeds),
        }
        for each in references:
            other = [there for there in rows if there.labels == {**row.labels, label: each}]
            found = paired_difference(held, errors(other[0])) if other and row.labels[label] != each else None
            line[f"minus {each}"] = None if found is None else str(found)
        lines.append(line)
    if not any(line["remark"] for line in lines):
        columns.pop()
    return Table(name, caption, columns, lines)


def _remark(row: Row, seeds: int) -> str | None:
    diverged = [record["diverged"] for record in row.records if record["diverged"] is not None]
    if diverged:
        return f"{len(diverged)} diverged, first in round {min(diverged):,}"
    if not row.records:
        return "not run yet"
    return f"{seeds - len(row.records)} not run yet" if len(row.records) < seeds else None
