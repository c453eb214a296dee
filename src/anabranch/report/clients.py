"""The part of a page that shows what ``anabranch client`` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anabranch.report.formats import joined, megabytes, text
from anabranch.report.page import Fact, Fold, Heading, Part, Row, Section, Table
from anabranch.report.places import relative
from anabranch.report.reading import flat, read_json
from anabranch.simulation.output import RESULT
from anabranch.sweep.record import Value, Whole

WRITER = "anabranch client"
MEANINGS = {
    "announced": "events of its own that the client announced",
    "answered": "events that it sent an embedding for",
    "learnt": "steps, each in a round of an event that activated it",
    "expired": "events whose features were kept for too long",
    "dropped": "events that it gave up",
    "unknown": "events that it was asked for and had no features of",
    "refused": "readings and events with values that could not be used",
    "happened": "events",
    "waiting": "events whose labels had not come",
}


class EndingFile(BaseModel):
    """How a party has ended, as `anabranch.net` writes it."""

    reason: str
    problem: str | None
    counts: dict[str, Whole]

    @property
    def note(self) -> str:
        """One sentence."""
        counts = ", ".join(f"{what} {n:,}" for what, n in self.counts.items())
        return f"Ended: {self.problem or self.reason}. Events: {counts}."


class ClientFile(BaseModel):
    """A ``result.json`` of a client."""

    party: str
    federation: str
    rounds: Whole
    bytes_up: Whole
    bytes_down: Whole
    ending: EndingFile
    settings: dict[str, Any]
    versions: dict[str, Value]


class _Kind(BaseModel):
    """The entry of a ``result.json`` that only a client's has."""

    party: str | None = None


def is_client(place: Path) -> bool:
    """Return whether the result in a folder is that of a client.

    Raises:
        DataError: if it cannot be read.
    """
    return read_json(place / RESULT, _Kind, "anabranch run").party is not None


def clients_part(folder: Path, places: Sequence[Path]) -> Part:
    """Return a part with a section for each client.

    Args:
        folder: what the page is about.
        places: the folder of each client.

    Raises:
        DataError: if a file is damaged or missing.
    """
    sections = [_section(read_json(place / RESULT, ClientFile, WRITER), relative(place, folder)) for place in places]
    return Part("clients", "Clients" if len(places) > 1 else "Client", sections=sections)


def _section(result: ClientFile, name: str) -> Section:
    rows = [Row([what, f"{n:,}", MEANINGS.get(what, "")]) for what, n in result.ending.counts.items()]
    for way, size in (("MB out", result.bytes_up), ("MB in", result.bytes_down)):
        rows.append(Row([way, f"{megabytes(size):,.2f}", "messages, 2^20 bytes each"]))
    headings = [Heading("what"), Heading("value", "number"), Heading("meaning")]
    facts = [Fact(key, text(value)) for key, value in flat(result.settings).items()]
    facts.append(Fact("versions", joined(result.versions)))
    title = f"{result.party} of {result.federation}"
    return Section(
        name,
        title,
        lead=name,
        notes=[result.ending.note],
        blocks=[Table(f"What became of the events of {result.party}", headings, rows)],
        folds=[Fold("Settings and versions", facts)],
    )
