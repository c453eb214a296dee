"""What `anabranch check` found, as records that a table or JSON is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ColumnFinding:
    """What a column has, and what is done with it."""

    name: str
    kind: str
    missing: float
    """The share of the rows that have no value."""
    low: str | None
    """The smallest number, or the first date."""
    high: str | None
    values: dict[str, int] | None
    """How often each text is there, if there are few."""
    use: str


@dataclass(frozen=True)
class Sample:
    """A row as the model gets it."""

    time: str
    entity: str
    features: list[float] | None
    problem: str = ""
    """Why there are no features."""


@dataclass
class Findings:
    """What one file says and its data have."""

    file: str
    party: str
    """Whose it is, such as ``client bank``."""
    data: str
    """The file or the table of the data."""
    rows: int = 0
    """How many rows were looked at."""
    complete: bool = True
    """Whether these are all."""
    events: int = 0
    entities: int | None = None
    first: str | None = None
    """The first time."""
    last: str | None = None
    label_delay: tuple[float, float] | None = None
    """The fewest and the most seconds from an event to its label."""
    columns: list[ColumnFinding] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    classes: dict[str, int] | None = None
    """How many rows have each label."""
    notes: list[str] = field(default_factory=list)
    """What a start would write to the log."""


@dataclass(frozen=True)
class Shared:
    """How much of the labels a client has readings for."""

    client: str
    labels: int
    same_event: int
    """Labels whose event is one of the client's own."""
    looked_up: int
    """Labels that were looked up at the client, evenly spread over all."""
    found: int
    """How many of them the client had values for."""
    entities: int | None
    """Entities that both have."""
    problem: str = ""
    """Why nothing can be shared."""
