"""The part of a page that shows what ``anabranch reproduce`` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, FiniteFloat

from anabranch.display import duration
from anabranch.paper.registry import EXPERIMENTS
from anabranch.paper.summary import SUMMARY
from anabranch.paper.tuning import NAME as TUNING
from anabranch.report.formats import is_number, joined, machine_text, machines_text, text
from anabranch.report.page import Fact, Fold, Heading, Part, Picture, Row, Section, Table
from anabranch.report.places import relative
from anabranch.report.reading import damaged, read_json, read_picture
from anabranch.sweep.record import Value, Whole

WRITER = "anabranch reproduce"
LEGEND = "Columns in italics are the paper's own numbers. A difference with a sign is ours less the paper's."


class ColumnFile(BaseModel):
    """A column, as `anabranch.paper.summary` writes it."""

    key: str
    heading: str
    format: str = ""

    @property
    def of_paper(self) -> bool:
        """Whether its numbers are the paper's."""
        return self.key.startswith("paper")


class TableFile(BaseModel):
    """A table, likewise."""

    name: str
    caption: str
    scale: str | None = None
    """What was added to its caption; None in files that say so for all tables only."""
    columns: list[ColumnFile]
    rows: list[dict[str, Value]]


class PictureFile(BaseModel):
    """A picture, likewise."""

    file: str
    caption: str
    scale: str | None = None
    """Likewise."""


class ScaleFile(BaseModel):
    """How large an experiment was, likewise."""

    rounds: Whole
    seeds: Whole | None
    text: str
    """What is added to captions."""


class RunFile(BaseModel):
    """What the page takes of a trial, likewise."""

    cpu_seconds: FiniteFloat | None = None
    machine: dict[str, Value] | None = None


class SummaryFile(BaseModel):
    """A ``summary.json``, likewise."""

    name: str
    paper: str
    command: str
    scale: ScaleFile
    tables: list[TableFile]
    pictures: list[PictureFile]
    notes: list[str]
    versions: dict[str, Value]
    machine: dict[str, Value]
    runs: list[RunFile]

    @property
    def caption(self) -> str:
        """The paper's, where the experiment is known."""
        if self.name in EXPERIMENTS:
            return EXPERIMENTS[self.name].caption
        captions = [*(table.caption for table in self.tables), *(each.caption for each in self.pictures)]
        return captions[0].removesuffix(self.scale.text) if captions else self.name


def reproduction_part(folder: Path, place: Path, places: Sequence[Path]) -> Part:
    """Return all experiments of one folder, in the paper's order.

    Args:
        folder: what the page is about.
        place: that folder.
        places: the folder of each experiment.

    Raises:
        DataError: where a summary or a picture is damaged.
    """
    summaries = {each: read_json(each / SUMMARY, SummaryFile, WRITER) for each in places}
    order = [*EXPERIMENTS, *sorted({each.name for each in summaries.values()} - {*EXPERIMENTS, TUNING}), TUNING]
    sorted_places = sorted(places, key=lambda each: (order.index(summaries[each].name), each))
    everywhere, apart = _environments(list(summaries.values()))
    notes = [everywhere] if everywhere else []
    if any(column.of_paper for each in summaries.values() for table in each.tables for column in table.columns):
        notes.append(LEGEND)
    absent = [name for name in EXPERIMENTS if name not in {each.name for each in summaries.values()}]
    if absent and list(places) != [folder]:
        notes.append(f"Not in this folder: {', '.join(absent)}.")
    title = "The paper's experiments" + (f": {relative(place, folder)}" if folder in place.parents else "")
    sections = [_section(each, summaries[each], apart) for each in sorted_places]
    return Part("experiments", title, notes=notes, sections=sections)


def _environments(summaries: Sequence[SummaryFile]) -> tuple[str, bool]:
    """What is said once of the versions and machines, and whether each experiment must say its own."""
    first = summaries[0]
    if any((each.versions, each.machine) != (first.versions, first.machine) for each in summaries):
        return "Versions or machines differ between the experiments: each says its own.", True
    return f"With {joined(first.versions)}; on {machine_text(first.machine)}.", False


def _section(place: Path, summary: SummaryFile, apart: bool) -> Section:
    facts = [Fact("command", summary.command, code=True), Fact("trials", _trials(summary))]
    if apart:
        facts += [Fact("versions", joined(summary.versions)), Fact("machine", machine_text(summary.machine))]
    facts.append(Fact("trials ran on", machines_text(run.machine for run in summary.runs)))
    files = [SUMMARY, *(f"{table.name}.csv" for table in summary.tables)]
    facts.append(Fact("all digits", ", ".join(f"{place.resolve().name}/{file}" for file in files)))
    tuning = summary.name == TUNING
    title = "the learning rates, and which were chosen" if tuning else summary.caption
    return Section(
        summary.name,
        title,
        lead="Tuning" if tuning else summary.paper,
        notes=summary.notes,
        blocks=_blocks(place, summary, title),
        folds=[Fold("How it was made", facts)],
    )


def _trials(summary: SummaryFile) -> str:
    spent = [run.cpu_seconds for run in summary.runs if run.cpu_seconds is not None]
    seconds = f", {duration(sum(spent))} of computing" if spent else ""
    return f"{len(summary.runs)}{seconds}"


def _blocks(place: Path, summary: SummaryFile, title: str) -> list[Table | Picture]:
    """Return each table after the picture of the same name; pictures by themselves come first."""
    pictures = {each.file: _picture(place, summary, each) for each in summary.pictures}
    paired: list[Table | Picture] = []
    for table in summary.tables:
        if f"{table.name}.png" in pictures:
            paired.append(pictures.pop(f"{table.name}.png"))
        paired.append(_table(table, summary.scale.text))
    blocks = [*pictures.values(), *paired]
    above = [title, *(block.caption for block in blocks)]
    return [replace(block, said=block.caption == said) for block, said in zip(blocks, above, strict=False)]


def _picture(place: Path, summary: SummaryFile, each: PictureFile) -> Picture:
    if Path(each.file).name != each.file:  # a page that is passed on must not hold files from elsewhere
        raise damaged(place / SUMMARY, WRITER, f"the picture '{each.file}' is not in its folder")
    caption, aside = _split(each.caption, summary.scale.text if each.scale is None else each.scale)
    return read_picture(place / each.file, caption, aside, WRITER)


def _table(table: TableFile, scale: str) -> Table:
    columns = table.columns
    headings = [Heading(column.heading, _kind(column, table.rows)) for column in columns]
    rows = [Row([text(row.get(column.key), column.format) for column in columns]) for row in table.rows]
    caption, aside = _split(table.caption, scale if table.scale is None else table.scale)
    return Table(caption, headings, rows, aside)


def _kind(column: ColumnFile, rows: Sequence[dict[str, Value]]) -> str:
    values = [row.get(column.key) for row in rows]
    kinds = {
        "number": bool(column.format) or any(map(is_number, values)),
        "paper": column.of_paper,
        "difference": column.key.endswith("difference"),
    }
    return " ".join(kind for kind, holds in kinds.items() if holds)


def _split(caption: str, scale: str) -> tuple[str, str]:
    """Return a caption, and what was added to say that the experiment is smaller than the paper's."""
    shorter = caption.removesuffix(scale)
    return shorter, caption[len(shorter) :].strip()
