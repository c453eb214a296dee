"""What one party would read: its file's settings are those of a start, and its data are read once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from anabranch.config import party as partyfile
from anabranch.config.run import form_of
from anabranch.config.source import FeaturesOf, FileLabels, FileSection, JetStreamSection, LabelsOf, SqlSection
from anabranch.errors import DataError
from anabranch.federation.source_client import SourcedClient, SourcedServer
from anabranch.parties import build_party as own
from anabranch.parties import run_party as serve
from anabranch.parties.check.columns import ColumnSeen
from anabranch.parties.check.findings import Findings, Sample
from anabranch.sources.base import Happening, Source
from anabranch.sources.features import Column, Features
from anabranch.storage.times import text_of
from anabranch.tables import Reader, open_table
from anabranch.tables.columns import Classes
from anabranch.tables.values import is_missing

SAMPLES = 20
"""Rows that are shown as features."""
MOST, MOST_OF_A_DATABASE = 1_000_000, 20_000
"""Rows that are looked at as events."""
MOST_CELLS = 20_000_000
"""Cells of a file that are looked at for what its columns have."""


@dataclass
class Checked:
    """A party's findings, and what it takes to compare it with others."""

    findings: Findings
    is_server: bool = False
    names: list[bytes] = field(default_factory=list)
    """Of its events, or of the events of its labels."""
    key: tuple[str, int] | None = None
    """What tells its entity key, and its grain; None where events have names of their own."""
    is_slow: bool = False
    """Whether each look-up is a query."""
    look: Callable[[bytes], Any] = lambda event: None
    """The values of an event; None where the party has none."""


def check_party(path: Path, stack: ExitStack) -> Checked:
    """Look at a party's file and its data.

    Args:
        path: of the party's file.
        stack: what is to be closed once the data are no longer asked for.

    Raises:
        AnabranchError: as starting the party does.
    """
    is_server = isinstance(partyfile.load(path), partyfile.ServerFile)
    settings, credentials = serve.load(path, server=is_server)
    assert isinstance(settings, partyfile.ServerFile | partyfile.ClientFile)
    folder = Path(stack.enter_context(TemporaryDirectory()))  # a check leaves the party's own folder alone
    name = "server" if is_server else f"client {credentials.index}"
    findings = Findings(str(path), f"{name}, {credentials.party}", "")
    checked = Checked(findings, is_server)
    with _said(findings):
        party = serve.party_of(path, _at_rest(settings), credentials, folder)
        section: Any = settings.labels if isinstance(settings, partyfile.ServerFile) else settings.features
        if isinstance(party, SourcedServer | SourcedClient):
            stack.callback(lambda: asyncio.run(party.source.close()))
            names = section.names_of_events()
            checked.key, checked.look = (names.hash("").hex(), names.grain), party.source.look
            checked.is_slow = party.source.slow
            _look_at_source(checked, section, party.source, settings)
        else:
            _look_at_table(checked, settings)
    return checked


def _at_rest(settings: Any) -> Any:
    """Return the settings, but for those that make a source wait."""
    which = "labels" if isinstance(settings, partyfile.ServerFile) else "features"
    section = getattr(settings, which)
    if isinstance(section, FileSection) and (section.origin is None or section.speed is not None):
        section = section.model_copy(update={"speed": None, "origin": None})
    if isinstance(section, SqlSection):
        section = section.model_copy(update={"follow": False, "lag": 0.0})
    return settings.model_copy(update={which: section})


@contextmanager
def _said(findings: Findings) -> Iterator[None]:
    """Within it, what would go to a log is among the findings."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                findings.notes.append(record.getMessage())

    log, kept = logging.getLogger("anabranch"), Kept()
    passes_on = log.propagate
    log.addHandler(kept)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(kept)
        log.propagate = passes_on


# -- a source -----------------------------------------------------------------------------------------------------


def _look_at_source(checked: Checked, section: Any, source: Source, settings: Any) -> None:
    findings = checked.findings
    if isinstance(section, JetStreamSection):
        findings.data = f"messages of {section.stream or section.bucket}"
        findings.notes.append("messages are not looked at: a check needs no broker")
        return
    seen = _Seen(checked, settings)
    most = MOST_OF_A_DATABASE if isinstance(section, SqlSection) else MOST
    asyncio.run(_read(source, seen.take, most))
    seen.end(most)
    findings.notes += [f"{kind}: {n:,}" for kind, n in source.counts.items() if n > 1 and kind != "no index"]
    uses = _uses(section, settings)
    if isinstance(section, FileSection):
        findings.data = section.path
        reader = open_table(Path(section.path), form_of(section), shown=False)
        look_at_columns(findings, reader, uses)
    else:
        findings.data = f"table '{section.table}'"
        findings.columns = [column.finding(name, uses.get(name, "")) for name, column in seen.columns.items()]


async def _read(source: Source, take: Callable[[Happening], None], most: int) -> None:
    readings = source.readings()
    async for happening in readings:
        take(happening)
        most -= 1
        if not most:
            break
    await readings.aclose()  # type: ignore[attr-defined]


class _Seen:
    """What the readings of a source have so far."""

    def __init__(self, checked: Checked, settings: Any) -> None:
        self._checked, self._settings = checked, settings
        self._entities: set[bytes] = set()
        self._times = (math.inf, -math.inf)
        self._delays = (math.inf, -math.inf)
        self.columns: dict[str, ColumnSeen] = {}
        self._waiting: dict[str, list[str | None]] = {}
        self._state: Any = None
        self._features: Features | None = None
        self._classes: Classes | None = None
        section = settings.labels if checked.is_server else settings.features
        self._missing_values = form_of(section).missing_values
        self._has_entities = section.entity is not None
        self._is_sql, self._label = isinstance(section, SqlSection), ""
        if checked.is_server:
            self._label, self._classes = section.label, own.classes_of(settings)
            checked.findings.classes = {}
        else:
            columns = [each.column for each in section.columns]
            self._features = Features(columns, missing_values=self._missing_values)
            self._state = self._features.begin()
            checked.findings.features = [*self._features.names]

    def take(self, happening: Happening) -> None:
        """One more reading."""
        checked, findings, reading = self._checked, self._checked.findings, happening.reading
        checked.names.append(happening.name)
        self._entities.add(happening.name[:16])
        self._times = _wider(self._times, reading.time)
        findings.rows += 1
        if self._is_sql:
            self._add(reading.values)
        if self._classes is not None:
            _count(findings, self._classes, reading.values.get(self._label), self._missing_values)
            self._delays = _wider(self._delays, reading.time - int.from_bytes(happening.name[16:], "big", signed=True))
        elif len(findings.samples) < SAMPLES and self._features is not None:
            when = text_of(reading.time)
            try:
                self._state, x = self._features(self._state, reading.values)
                findings.samples.append(Sample(when, reading.entity, x.tolist()))
            except DataError as error:
                findings.samples.append(Sample(when, reading.entity, None, str(error)))

    def _add(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._waiting.setdefault(name, []).append(None if value is None else str(value))
        if sum(map(len, self._waiting.values())) >= 100_000:
            self._look()

    def _look(self) -> None:
        for name, texts in self._waiting.items():
            self.columns.setdefault(name, ColumnSeen(self._missing_values)).add(pa.array(texts, pa.string()))
        self._waiting.clear()

    def end(self, most: int) -> None:
        """No more follows."""
        findings = self._checked.findings
        self._look()
        findings.complete = findings.rows < most
        findings.events = len({*self._checked.names})
        findings.entities = len(self._entities) if self._has_entities else None
        if findings.rows:
            findings.first, findings.last = (text_of(int(each)) for each in self._times)
        if self._checked.is_server and findings.rows:
            findings.label_delay = self._delays[0] / 1e6, self._delays[1] / 1e6


def _wider(ends: tuple[float, float], value: int) -> tuple[float, float]:
    return min(ends[0], value), max(ends[1], value)


def _count(findings: Findings, classes: Classes, value: Any, missing_values: tuple[str, ...]) -> None:
    """Count a row by its label."""
    assert findings.classes is not None
    try:
        number = int(classes.number(value, missing_values))
        kind = classes.names[number] if classes.names else str(number)
    except DataError:
        kind = "without a label" if is_missing(value, missing_values) else "no class"
    findings.classes[kind] = findings.classes.get(kind, 0) + 1


# -- a plain table ------------------------------------------------------------------------------------------------


def _look_at_table(checked: Checked, settings: Any) -> None:
    findings = checked.findings
    if checked.is_server:
        section = settings.labels
        labels = own.table_labels(settings, section)
        taken = labels.take(len(labels))
        checked.names = [event for event, _ in taken]
        classes = own.classes_of(settings)
        counts = Counter(label for _, label in taken)
        findings.classes = {
            (classes.names[label] if classes.names else str(label)): n for label, n in sorted(counts.items())
        }
        uses = {section.event: "the event's name", section.label: f"the label, {len(counts)} classes"}
    else:
        section = settings.features
        features = own.table_features(section)
        checked.names, checked.look = features.events, features.look
        findings.features = [*features.names]
        shown = [(event, features.look(event)) for event in checked.names[:SAMPLES]]
        findings.samples = [
            Sample("", event.decode(errors="replace"), None if x is None else x.tolist()) for event, x in shown
        ]
        uses = {section.event: "the event's name"} | {each.name: use_of(each.column) for each in section.columns}
    findings.data, findings.rows, findings.events = section.path, len(checked.names), len(checked.names)
    look_at_columns(findings, open_table(Path(section.path), form_of(section), shown=False), uses)


# -- columns ------------------------------------------------------------------------------------------------------


def look_at_columns(findings: Findings, reader: Reader, uses: Mapping[str, str]) -> None:
    """Put what the columns of a file have among the findings."""
    seen = [ColumnSeen(reader.form.missing_values) for _ in reader.names]
    most = max(SAMPLES, MOST_CELLS // len(seen))
    for piece in reader.cells([*range(len(seen))]):
        for column, cells in zip(seen, piece, strict=True):
            column.add(cells)
        if seen[0].rows >= most:
            findings.notes.append(f"columns: the first {seen[0].rows:,} rows were looked at")
            break
    names = [name or f"column {i + 1}, without a name" for i, name in enumerate(reader.names)]
    findings.columns = [
        column.finding(name, uses.get(name, "not used")) for name, column in zip(names, seen, strict=True)
    ]
    findings.rows = max(findings.rows, seen[0].rows)


def use_of(column: Column, refused: str = "the event is unknown") -> str:
    """Return what is made of a column, and what is refused if a value is missing."""
    if column.kind == "category":
        missing = refused if column.rule == "refuse" else "another value"
        return f"one of {len(column.values)} values, or another; if missing, {missing}"
    what = "yes or no" if column.kind == "flag" else "a number"
    stands = {"refuse": refused, "zero": "0", "mean": "the mean so far"}
    missing = stands.get(str(column.rule), str(column.rule))
    return f"{what}{', standardised' if column.standardise else ''}; if missing, {missing}"


def _uses(section: Any, settings: Any) -> dict[str, str]:
    """What is done with each column that a source names."""
    uses: dict[str, str] = {}

    def use(given: str | Sequence[str] | None, text: str) -> None:
        names = [given] if isinstance(given, str) else list(given or ())
        for name in names:
            joined = f"{text}, with {len(names) - 1} more columns" if len(names) > 1 else text
            uses[name] = f"{uses[name]}; {joined}" if name in uses else joined

    use(section.entity, "the entity")
    use(section.time, "the time at which the label is known" if isinstance(section, LabelsOf) else "the time")
    use(section.event_time, "the time of the event")
    if isinstance(section, SqlSection):
        use(section.id, "the row's id")
    if isinstance(section, FileLabels):
        use(section.start, "the start of the interval")
        use(section.end, "the end of the interval")
    if isinstance(section, LabelsOf):
        use(section.label, f"the label, {settings.model.classes} classes")
    if isinstance(section, FeaturesOf):
        for each in section.columns:
            use(each.name, use_of(each.column))
    return uses
