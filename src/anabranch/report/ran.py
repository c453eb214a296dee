"""The part of a page that shows what ``anabranch run`` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anabranch.report.clients import EndingFile
from anabranch.report.drawing import MOST_LINES, draw_curves
from anabranch.report.formats import is_number, joined, mean, megabytes, text
from anabranch.report.page import Fact, Fold, Heading, Part, Picture, Row, Section, Table
from anabranch.report.places import relative
from anabranch.report.reading import flat, read_curve, read_json, read_picture
from anabranch.simulation.output import CURVE, PICTURE, RESULT
from anabranch.sweep.record import Value, Whole

WRITER = "anabranch run"
MOST_RUNS = 30
"""So many runs have a section of their own: each has a picture, and a page of hundreds would not open."""
CHOSEN = ("learning_rate", "seed")
"""Settings that stand beside the numbers."""
MEANINGS = {
    "accumulated error": (".4f", "mean 0/1 error of all rounds"),
    "run-time error": (".4f", "mean of the last 20,000 rounds, or of all where there are fewer"),
    "rounds": (",", "done"),
    "activated": (".3f", "share of rounds, mean over the clients"),
    "MB": (",.2f", "payload up and down, 2^20 bytes each"),
    "client s": (",.1f", "estimate: functions timed one by one × rounds"),
    "rounds a second": (",.0f", "the stream included, compiling excluded"),
}


class ResultFile(BaseModel):
    """A ``result.json``, as `anabranch.simulation.output` writes it."""

    name: str | None = None
    run_again: str | None = None
    rounds: Whole
    stopped: str | None
    accumulated_error: float | None
    run_time_error: float | None
    activation_rate: list[float | None]
    bytes_up: list[Whole]
    bytes_down: list[Whole]
    client_seconds: float | None
    rounds_per_second: float | None
    settings: dict[str, Any]
    versions: dict[str, Value]
    config: dict[str, Any] | None = None
    """None where a result was saved from Python."""
    data: dict[str, Any] | None = None
    ending: EndingFile | None = None
    """Of a federation alone."""

    @property
    def title(self) -> str:
        """The run in a few words."""
        stream = self.settings.get("stream")
        base = stream.get("stream", stream) if isinstance(stream, dict) else {}  # of a drift
        name = base.get("file") or base.get("name") if isinstance(base, dict) else None
        drift = ", drifting" if base is not stream else ""
        parts = [self.settings.get("update"), self.settings.get("activation"), f"{name or 'stream'}{drift}"]
        return " · ".join(text(each) for each in parts if each)

    @property
    def rank(self) -> float:
        """The least is best."""
        return math.inf if self.accumulated_error is None else self.accumulated_error

    def numbers(self) -> dict[str, Value]:
        """By their names in `MEANINGS`."""
        return {
            "accumulated error": self.accumulated_error,
            "run-time error": self.run_time_error,
            "rounds": self.rounds,
            "activated": mean(self.activation_rate),
            "MB": megabytes(sum(self.bytes_up) + sum(self.bytes_down)),
            "client s": self.client_seconds,
            "rounds a second": self.rounds_per_second,
        }


def runs_part(folder: Path, places: Sequence[Path]) -> Part:
    """Return a table of all runs and their curves together, then each by itself.

    Args:
        folder: what the page is about.
        places: the folder of each run.

    Raises:
        DataError: where a file is damaged or missing.
    """
    results = {place: read_json(place / RESULT, ResultFile, WRITER) for place in places}
    names = {place: relative(place, folder) for place in places}
    notes: list[str] = []
    blocks: list[Table | Picture] = []
    if len(places) > 1:
        drawn = _curves(results, names)
        blocks = [_comparison(results, names), *([drawn] if drawn else [])]
    shown = list(places)[:MOST_RUNS]
    if len(shown) < len(places):
        notes.append(f"The first {len(shown)} of {len(places)} runs have a section of their own below.")
    sections = [_section(place, results[place], names[place]) for place in shown]
    return Part("runs", "Runs" if len(places) > 1 else "Run", notes=notes, blocks=blocks, sections=sections)


def _comparison(results: Mapping[Path, ResultFile], names: Mapping[Path, str]) -> Table:
    lines: list[dict[str, Value]] = []
    for place, result in results.items():
        settings = {name.replace("_", " "): flat(result.settings.get(name), name).get(name) for name in CHOSEN}
        last = {"method and stream": result.title, "ended early": result.stopped}
        lines.append({"run": names[place], **result.numbers(), **settings, **last})
    kept = [key for key in lines[0] if any(line[key] is not None for line in lines)]
    headings = [Heading(key, "number" if any(is_number(line[key]) for line in lines) else "") for key in kept]
    rows = [Row([text(line[key], MEANINGS[key][0] if key in MEANINGS else "") for key in kept]) for line in lines]
    return Table("All runs", headings, rows)


def _curves(results: Mapping[Path, ResultFile], names: Mapping[Path, str]) -> Picture | None:
    """Of the runs with the least accumulated errors."""
    ranked = sorted(results, key=lambda place: results[place].rank)[:MOST_LINES]
    curves = {names[place]: read_curve(place / CURVE, WRITER) for place in results if place in ranked}
    which = "all runs" if len(curves) == len(results) else f"the {len(curves)} runs with the least accumulated error"
    return draw_curves(curves, f"Error rates of {which}")


def _section(place: Path, result: ResultFile, name: str) -> Section:
    shown = _numbers(result), _clients(result)
    picture = read_picture(place / PICTURE, f"Error rates of {name} as the rounds went by", "", WRITER)
    settings = flat(result.settings if result.config is None else result.config)
    facts = [Fact("run again", result.run_again, code=True)] if result.run_again else []
    facts += [Fact(key, text(value)) for key, value in settings.items()]
    facts += [Fact(f"data: {key}", text(value)) for key, value in flat(result.data or {}).items() if key]
    facts.append(Fact("versions", joined(result.versions)))
    return Section(
        name,
        result.title,
        lead=name,
        notes=_notes(result),
        blocks=[picture, *shown],
        folds=[Fold("Settings, data and versions", facts)],
    )


def _notes(result: ResultFile) -> list[str]:
    if result.ending is not None:
        return [result.ending.note]
    return [f"Ended early: {result.stopped}."] if result.stopped else []


def _numbers(result: ResultFile) -> Table:
    headings = [Heading("what"), Heading("value", "number"), Heading("meaning")]
    numbers = result.numbers()
    rows = [Row([name, text(numbers[name], how), meaning]) for name, (how, meaning) in MEANINGS.items()]
    return Table("Numbers of the run", headings, rows)


def _clients(result: ResultFile) -> Table:
    headings = [Heading("client", "number")]
    headings += [Heading(each, "number") for each in ("features", "activated", "MB up", "MB down")]
    model = result.settings.get("model")
    features = model.get("features") if isinstance(model, dict) else None
    known = features if isinstance(features, list) else []
    rows = []
    for m, rate in enumerate(result.activation_rate):
        up, down = (each[m] if m < len(each) else None for each in (result.bytes_up, result.bytes_down))
        megabytes_each = [text(None if each is None else megabytes(each), ",.2f") for each in (up, down)]
        width = known[m] if m < len(known) else None
        rows.append(Row([str(m + 1), text(width), text(rate, ".4f"), *megabytes_each]))
    return Table("Its clients", headings, rows)
