"""What an experiment is: the runs of its grid, and the tables and pictures that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.config.run import Config
from anabranch.paper.study import Method, Problem, Study
from anabranch.sweep.trial import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | float | int | None


class Run(NamedTuple):
    """One trial of an experiment."""

    labels: Mapping[str, Value]
    """What tells it from the others in tables and pictures; those that differ by seed have the same."""
    config: Config


class Row(NamedTuple):
    """The trials that differ by seed only."""

    labels: Mapping[str, Value]
    records: tuple[Record, ...]
    client_seconds: float
    """Computing time of all clients together, mean over the seeds; NaN where the experiment is not timed."""


class Column(NamedTuple):
    """A column of a table."""

    key: str
    heading: str
    format: str = ""
    """As Python's `format` takes it, such as ``.4f``; the file has all digits."""


class Table(NamedTuple):
    """A table of results; a row has a value for each column's key, or None."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Value]]
    measured: bool = True
    """Whether it is made from trials, so that its caption says how many rounds and seeds they have."""
    one_seed: bool = False
    """Whether they have one seed, however many the others have."""
    own_rounds: bool = False
    """Whether their rounds are not the study's, so that the caption or the rows say them."""


class Picture(NamedTuple):
    """A figure of results."""

    name: str
    caption: str
    figure: Figure
    own_rounds: bool = False
    """Whether its trials' rounds are not the study's, so that the caption or the figure says them."""


@dataclass
class Presentation:
    """What an experiment shows."""

    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader must know to read them rightly."""


@dataclass(frozen=True)
class Experiment:
    """One or more of the paper's tables and figures."""

    name: str
    paper: str
    """Which of the paper's tables and figures."""
    caption: str
    """What the paper's caption says."""
    runs: Callable[[Study], list[Run]]
    present: Callable[[Study, list[Row]], Presentation]
    tunes: Sequence[tuple[Problem, Sequence[Method]]] = ()
    """Whose learning rates must be chosen before."""
    timed: bool = True
    """Whether its tables have the clients' computing time."""

    def problems(self) -> set[str]:
        """Return the names of the problems that it needs data for."""
        return {problem.name for problem, _ in self.tunes}


def rows_of(runs: Iterable[Run], records: Iterable[Record], seconds: Iterable[float]) -> list[Row]:
    """Return the runs and what came of each, those with the same labels together."""
    rows: dict[tuple, list[tuple[Run, Record, float]]] = {}
    for run, record, client in zip(runs, records, seconds, strict=True):
        rows.setdefault(tuple(run.labels.items()), []).append((run, record, client))
    return [
        Row(dict(labels), tuple(record for _, record, _ in row), sum(client for *_, client in row) / len(row))
        for labels, row in rows.items()
    ]


def the_row(rows: Iterable[Row], **labels: Any) -> Row:
    """Return the only row that has these labels."""
    (row,) = select(rows, **labels)
    return row


def select(rows: Iterable[Row], **labels: Any) -> list[Row]:
    """Return the rows that have these labels."""
    return [row for row in rows if all(row.labels.get(key) == value for key, value in labels.items())]
