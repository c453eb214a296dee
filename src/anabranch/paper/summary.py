"""The files of an experiment: ``summary.json``, a CSV file for each table and a PNG file for each picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.paper.experiment import Picture, Presentation, Run, Table
from anabranch.paper.study import ROUNDS, Study
from anabranch.simulation.output import png
from anabranch.simulation.result import machine, versions
from anabranch.storage.files import json_values, replace_file, to_json, writing
from anabranch.sweep.trial import Record

SUMMARY = "summary.json"
KEPT = (
    "key",
    "data",
    "rounds",
    "accumulated_error",
    "run_time_error",
    "diverged",
    "activation_rate",
    "bytes_up",
    "bytes_down",
    "regret",
    "cpu_seconds",
    "curve",
    "machine",
)
"""Of a trial's record, what the summary has; its versions are those of the summary."""


def write(
    folder: Path,
    name: str,
    paper: str,
    study: Study,
    shown: Presentation,
    runs: Sequence[Run],
    records: Sequence[Record],
    made_by: str | None = None,
) -> dict[str, Any]:
    """Write the files of an experiment into ``folder / name``, and return the summary.

    Args:
        made_by: the experiments to name for making it again, where that is not its own name.

    Raises:
        OutputError: where a file cannot be written.
    """
    place = folder / name
    summary = json_values(
        {
            "name": name,
            "paper": paper,
            "command": command(made_by or name, study),
            "scale": {"rounds": study.rounds, "seeds": study.seeds, "text": scale_text(study)},
            "tables": [_table(table, study) for table in shown.tables],
            "pictures": [_picture(each, study) for each in shown.pictures],
            "notes": shown.notes,
            "versions": versions(),
            "machine": machine(),
            "runs": [
                {"labels": run.labels, "seed": run.config.seed, **{key: record.get(key) for key in KEPT}}
                for run, record in zip(runs, records, strict=True)
            ],
        }
    )
    with writing("results", place):
        place.mkdir(parents=True, exist_ok=True)
        (place / SUMMARY).unlink(missing_ok=True)  # where it is there, the others are complete
        for table in shown.tables:
            replace_file(place / f"{table.name}.csv", _csv(table).encode())
        for picture in shown.pictures:
            replace_file(place / f"{picture.name}.png", png(picture.figure))
        replace_file(place / SUMMARY, to_json(summary).encode())
    return summary


def scale_text(study: Study, *, one_seed: bool = False, own_rounds: bool = False) -> str:
    """What is added to each caption where an experiment has not the usual rounds or seeds.

    Args:
        one_seed: whether there is one, whatever the study says.
        own_rounds: whether the rounds are not the study's.

    >>> scale_text(Study(rounds=20_000, seeds=1))
    ' (20,000 rounds where the paper has 2,000,000; 1 seed)'
    """
    parts = []
    if study.rounds != ROUNDS and not own_rounds:
        parts.append(f"{study.rounds:,} rounds where the paper has {ROUNDS:,}")
    if study.seeds is not None:
        seeds = 1 if one_seed else study.seeds
        parts.append(f"{seeds} seed{'s' if seeds != 1 else ''}")
    return f" ({'; '.join(parts)})" if parts else ""


def command(name: str, study: Study) -> str:
    """Return the command that makes it again; data files are named by the person.

    >>> command("drift", Study(seeds=1))
    'anabranch reproduce drift --seeds 1'
    >>> command("susy", Study(files={"susy": Path("SUSY.csv")}))
    'anabranch reproduce susy --susy FILE'
    """
    words = ["anabranch reproduce", name, *(f"--{each} FILE" for each in name.split() if each in study.files)]
    if study.rounds != ROUNDS:
        words.append(f"--rounds {study.rounds}")
    if study.seeds is not None:
        words.append(f"--seeds {study.seeds}")
    return " ".join(words)


def _table(table: Table, study: Study) -> dict[str, Any]:
    scale = scale_text(study, one_seed=table.one_seed, own_rounds=table.own_rounds) if table.measured else ""
    return {
        "name": table.name,
        "caption": table.caption + scale,
        "scale": scale,
        "columns": [column._asdict() for column in table.columns],
        "rows": [{column.key: row.get(column.key) for column in table.columns} for row in table.rows],
    }


def _picture(picture: Picture, study: Study) -> dict[str, Any]:
    scale = scale_text(study, own_rounds=picture.own_rounds)
    return {"file": f"{picture.name}.png", "caption": picture.caption + scale, "scale": scale}


def _csv(table: Table) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([column.key for column in table.columns])
    for row in table.rows:
        lines.writerow([_cell(row, column.key) for column in table.columns])
    return text.getvalue()


def _cell(row: Mapping[str, Any], key: str) -> Any:
    return "" if row.get(key) is None else row[key]
