"""What a page is made of, and how it becomes HTML."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined

TEMPLATE = "report.html.j2"
MOST_ROWS = 50
"""So many rows of a table are shown; the others are in a fold."""


@dataclass(frozen=True)
class Heading:
    """The head of a column."""

    text: str
    kind: str = ""
    """Classes of its cells: ``number``, ``paper``, ``difference``."""


@dataclass(frozen=True)
class Row:
    """Cells as they are read; the first is the row's title."""

    cells: Sequence[str]
    badge: str = ""
    """A word beside the title of a row that stands out."""


@dataclass(frozen=True)
class Table:
    """A table with its caption."""

    kind: ClassVar[str] = "table"
    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Row]
    aside: str = ""
    """What the caption says in small letters."""
    said: bool = False
    """Whether the page has the caption just above: then it is only for who hears the page."""


@dataclass(frozen=True)
class Picture:
    """A picture with its caption."""

    kind: ClassVar[str] = "picture"
    caption: str
    aside: str
    uri: str
    """The picture itself, as a data URI."""
    width: int
    height: int
    said: bool = False


@dataclass(frozen=True)
class Fact:
    """A name and what it is."""

    name: str
    text: str
    code: bool = False


@dataclass(frozen=True)
class Fold:
    """Facts that are shown when they are asked for."""

    title: str
    facts: Sequence[Fact]


@dataclass(frozen=True)
class Section:
    """An experiment or a run."""

    name: str
    """Short, for links to it."""
    title: str
    lead: str = ""
    """What the title begins with, such as the paper's number for it."""
    notes: Sequence[str] = ()
    blocks: Sequence[Table | Picture] = ()
    folds: Sequence[Fold] = ()
    id: str = ""
    """Unique on the page; `render` gives it."""


@dataclass(frozen=True)
class Part:
    """All that came of one command."""

    name: str
    title: str
    notes: Sequence[str] = ()
    blocks: Sequence[Table | Picture] = ()
    folds: Sequence[Fold] = ()
    sections: Sequence[Section] = ()
    id: str = ""


@dataclass(frozen=True)
class Page:
    """The whole."""

    title: str
    made: str
    """When and by what."""
    parts: Sequence[Part] = field(default_factory=list)


def picture(png: bytes, caption: str, aside: str = "") -> Picture:
    """Return the content of a PNG file as it goes into the page; its size stands at its beginning."""
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    return Picture(caption, aside, f"data:image/png;base64,{base64.b64encode(png).decode()}", width, height)


def render(page: Page) -> str:
    """Return the page's HTML, with everything in it."""
    environment = Environment(
        loader=PackageLoader("anabranch"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(page=_with_ids(page), most_rows=MOST_ROWS)


def _with_ids(page: Page) -> Page:
    taken = {"contents"}

    def unique(name: str) -> str:
        slug = re.sub(r"\W+", "-", name.lower()).strip("-") or "part"
        candidate, number = slug, 2
        while candidate in taken:
            candidate, number = f"{slug}-{number}", number + 1
        taken.add(candidate)
        return candidate

    parts = [
        replace(
            part,
            id=unique(part.name),
            sections=[replace(section, id=unique(section.name)) for section in part.sections],
        )
        for part in page.parts
    ]
    return replace(page, parts=parts)
