"""A round from the query until it is played, and an event until its round is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol import messages as m
from anabranch.protocol.server.missing import Stand


class Stored(NamedTuple):
    """What was sent when an event happened, for a round without a second embedding."""

    embeddings: NDArray[Any] | None
    """(e,), of all clients; None where one was away that is not replaced."""
    activated: NDArray[np.bool_]
    """(M,)"""
    missing: m.Rounds
    """(M,): 0 where the client had replied, else how it was replaced."""
    steps: m.Rounds
    """(M,): how many derivatives were in the parameters of each embedding."""

    def stands(self, widths: Sequence[int]) -> list[Stand]:
        """What there is of every client, whose embeddings have these widths."""
        if self.embeddings is None:
            return [Stand(how, None) for how in self.missing]
        parts = np.split(self.embeddings, np.cumsum(widths)[:-1], axis=-1)
        return [Stand(how, part) for how, part in zip(self.missing, parts, strict=True)]


class Late(NamedTuple):
    """What is known of an event whose label has come later."""

    predicted: int | None
    """The class that was predicted when it happened; None where none was."""
    stored: Stored | None = None
    """None where the clients are asked again, so that the embeddings are those of today's parameters."""

    @property
    def code(self) -> int:
        """What the round's record says of the prediction."""
        return m.NOTHING if self.predicted is None else self.predicted


@dataclass
class Answer:
    """What a client sent for a round."""

    applied: int
    activated: bool
    values: NDArray[Any]
    told: bool = False
    """Whether it told of the event by itself: it may not have read yet which round that is."""


@dataclass
class Open:
    """A round that waits for its embeddings."""

    t: int
    event: bytes
    label: int
    deadline: float
    activated: NDArray[np.bool_] | None
    """(M,) where the server decides."""
    late: Late | None = None
    """Where the event happened long ago."""
    answers: dict[int, Answer] = field(default_factory=dict)
    overdue: bool = False
    """Whether its deadline has passed."""
    unknown: set[int] = field(default_factory=set)
    """Who has no features for the event, or sent something that cannot be used."""
    hopeless: set[int] = field(default_factory=set)
    """Who of these has values of the event that cannot be used: nobody waits for them."""
    unheard: set[int] = field(default_factory=set)
    """Who was asked again since, and has not said anything of this round."""
    begun: set[int] = field(default_factory=set)
    """Who has said hello since it was opened: each gets time for that once."""
    again: set[int] = field(default_factory=set)
    """Who was asked again since a deadline passed, having answered with parameters that are too old."""

    @property
    def stored(self) -> Stored | None:
        """What its clients have sent long ago, where the round goes by that."""
        return None if self.late is None else self.late.stored

    def record(self, stands: Sequence[Stand], wire: np.dtype[Any]) -> m.Record:
        """Return the round, once there is something of every client."""
        shown = [stand.values for stand in stands if stand.values is not None]
        skipped = len(shown) < len(stands)
        answers = [self.answers.get(client) for client in range(1, len(stands) + 1)]
        answered = np.array([answer is not None for answer in answers])
        said = np.array([answer is not None and answer.activated for answer in answers])
        applied = tuple(m.NONE if answer is None else answer.applied for answer in answers)
        if self.stored is not None:
            said, applied = self.stored.activated, self.stored.steps
        elif self.activated is not None:  # the server decides, and a client that is not here cannot learn
            said = self.activated & answered
        return m.Record(
            event=self.event,
            label=self.label,
            activated=said & (not skipped),
            missing=tuple(stand.how for stand in stands),
            applied=applied,
            embeddings=np.zeros(0, wire) if skipped else np.concatenate(shown, axis=-1),
            predicted=m.NONE if self.late is None else self.late.code,
            stored=self.stored is not None,
        )

    def voided(self, record: m.Record) -> list[int]:
        """Return the clients that keep something for it of which nothing comes, since it was played as the record
        says.
        """
        clients = range(1, len(record.missing) + 1)
        skipped = not record.embeddings.size
        if self.stored is not None:
            return [client for client in clients if skipped and self.stored.activated[client - 1]]
        # Where its label came late, each has kept its features since the event.
        late = [client for client in clients if self.late is not None and client not in self.answers]
        return late + [client for client, answer in self.answers.items() if skipped and answer.activated]


@dataclass
class Arrival:
    """An event that clients have told of, and that no round was opened for yet."""

    due: float
    t: int
    """How many rounds were opened when it came, with those of the events that waited then."""
    answers: dict[int, Answer] = field(default_factory=dict)


class Asked(Protocol):
    """A round, or a question, that clients are asked for."""

    event: bytes
    activated: NDArray[np.bool_] | None
    """(M,) where the server decides."""


def touches(each: Asked, client: int, said: bool) -> bool:
    """Return whether a client's answer leads to a derivative: what it said counts only where the server does not
    decide.
    """
    return said if each.activated is None else bool(each.activated[client - 1])


A = TypeVar("A", bound=Asked)


def runs(
    asked: Iterable[A], follows: Callable[[A, A], bool]
) -> Iterator[tuple[list[A], m.Events, NDArray[np.bool_] | None]]:
    """Yield those that follow one another together, as one message has them: with their events, and who is
    activated.
    """
    run: list[A] = []
    for each in [*asked, None]:
        if run and (each is None or not follows(run[-1], each)):
            masks = [one.activated for one in run if one.activated is not None]
            yield run, tuple(one.event for one in run), np.stack(masks) if masks else None
            run = []
        if each is not None:
            run.append(each)
