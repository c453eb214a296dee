"""What the server knows of one client."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol.messages import MOMENT, NONE, Derivatives
from anabranch.protocol.server.missing import History, Policy, Wait

LARGEST = 1e6
"""What an element of an embedding may be, where nothing else is said."""
KEPT = 2**26
"""Elements of derivatives that are kept for a client."""


class Sent(NamedTuple):
    """A derivative that the client may not have in a checkpoint yet."""

    before: int
    """The round of the derivative before it."""
    applied: int
    """The parameters that it belongs to."""
    event: bytes
    value: NDArray[Any]
    stored: bool = False
    """Whether it goes by an embedding of long ago."""
    factor: float = 1.0
    """What the learning rate is multiplied by."""
    emptied: bool = False
    """Whether the windows of gradients were emptied since the derivative before."""


class Told(NamedTuple):
    """An event that the client has told of."""

    number: int
    """How many it had told of before."""
    session: int | None
    """In which it has told of it last."""


@dataclass(frozen=True)
class Expected:
    """What the server expects of a client."""

    width: int
    """``e_m``"""
    schema: str = ""
    """The digest of its features; empty where any will do."""
    missing: Policy = field(default_factory=Wait)
    """What stands in for its embedding where it does not answer in time."""
    largest: float = LARGEST
    """No element of its embeddings is larger, whatever its sign."""


class Seat:
    """One client's place at the server.

    Args:
        expected: of the client.
        wire: the dtype of embeddings and derivatives.
        rows: how many embeddings a round has under SLR; else None.
    """

    def __init__(self, expected: Expected, wire: np.dtype[Any], rows: int | None) -> None:
        self.expected = expected
        self.shape = (expected.width,) if rows is None else (rows, expected.width)
        self.wire = wire
        self.session: int | None = None
        """Of the client's last hello; None before the first since the server began."""
        self.present = False
        """Whether a round waits for it until the deadline."""
        self.ended = False
        """Whether it has left since the end was told, and has no derivative to come."""
        self.left = False
        """Whether it has said goodbye since its last hello, though something is to come."""
        self.history = History(expected.width, wire)
        self.before = NONE
        """The last round in which it was activated."""
        self.safe = NONE
        """The last round whose derivative is in its checkpoint."""
        self.outbox: dict[int, Sent] = {}
        """The derivatives of the rounds after that, in order."""
        self._rounds: list[int] = []
        """The keys of the outbox."""
        self.sent_again = -math.inf
        """When derivatives were last sent again."""
        self.applied = NONE
        """The last round whose derivative it had at its last hello, by its word."""
        self.owed = False
        """Whether what it lacked then is yet to be sent, since it has to wait a moment."""
        self.told: dict[bytes, Told] = {}
        """The events that it has told of and that wait for their rounds, in the order in which they came first."""
        self.tells = 0
        """How many events it has told of."""
        self.announced = 0
        """How many events it has announced in this session."""
        self.upcoming: int | None = None
        """The time of its next reading, by its word in this session; `NEVER` if it announces no event any more."""
        self.granted: int | None = None
        """Up to which time it may announce events, where the server goes by the data's clock."""
        self.advanced = math.inf
        """When it was last told so, if it has not answered since."""
        self.missed = False
        """Whether it may have told of an event that is not here, and should tell of all again."""
        self.called = -math.inf
        """When it was last asked to."""
        self.pushed = 0
        """In how many rounds it was activated."""
        self.max_delay = 0
        """The most steps between an embedding's parameters and those that its derivative was applied to."""

    @property
    def called_for(self) -> bool:
        """Whether it has to say hello: of two processes that were this client one has left, and the other may think
        that it takes part."""
        return self.session is None or self.left

    def tell(self, event: bytes) -> None:
        """It has told of an event that waits for its round; a second time perhaps, in a new session."""
        known = self.told.get(event)
        self.told[event] = Told(self.tells if known is None else known.number, self.session)
        self.tells += known is None

    def waits_for(self, event: bytes) -> bool:
        """Return whether it has told of an event in this session. Of one of another session it tells again, if it
        has to wait: a word that the event is given up would cross that.
        """
        return event in self.told and self.told[event].session == self.session

    def push(self, t: int, sent: Sent) -> None:
        """The client was activated in round ``t``, with the parameters that have the derivatives up to ``applied``.

        Where it goes by a stored embedding, ``applied`` is how many derivatives those were; see `steps`.
        """
        delay = self.pushed - sent.applied if sent.stored else len(self.after(sent.applied))
        self.max_delay = max(self.max_delay, delay)
        self.pushed += 1
        self.outbox[t] = sent
        self._rounds.append(t)
        self.before, self.ended = t, False

    def steps(self, applied: int) -> int:
        """Return how many derivatives are in the parameters that have those up to ``applied``."""
        return self.pushed - len(self.after(applied))

    def forget(self, safe: int) -> None:
        """The client's checkpoint has the derivatives up to this round."""
        if safe <= self.safe:
            return
        self.safe = safe
        held = bisect_right(self._rounds, safe)
        for t in self._rounds[:held]:
            del self.outbox[t]
        del self._rounds[:held]

    def after(self, applied: int) -> list[int]:
        """Return the rounds whose derivatives it lacks, where it has those up to ``applied``."""
        return self._rounds[bisect_right(self._rounds, applied) :]

    def chain(self, applied: int) -> int:
        """Return the round whose derivative it must have before the first that it lacks."""
        lacking = self.after(applied)
        return self.outbox[lacking[0]].before if lacking else self.before

    def derivatives(self, rounds: list[int], *, named: bool) -> Derivatives:
        """Return the message that sends the derivatives of these rounds, which follow one another in the outbox.

        It has their events where it is ``named``, for a client that may not know what it keeps by the rounds' numbers.
        """
        sent = [self.outbox[t] for t in rounds]
        return Derivatives(
            session=self.session or 0,
            before=sent[0].before,
            rounds=tuple(rounds),
            applied=tuple(MOMENT if each.stored else each.applied for each in sent),
            events=tuple(each.event for each in sent) if named or any(each.stored for each in sent) else (),
            values=np.stack([each.value for each in sent]),
            factors=tuple(each.factor for each in sent) if any(each.factor != 1 for each in sent) else (),
            emptied=np.array([each.emptied for each in sent]) if any(each.emptied for each in sent) else None,
        )

    def problem(self, values: NDArray[Any], n: int, activated: NDArray[np.bool_]) -> str:
        """What is wrong with its embeddings for ``n`` rounds, or an empty text."""
        return self.unusable(values, (n, *self.shape), activated)

    def unusable(self, values: NDArray[Any], shape: tuple[int, ...], activated: NDArray[np.bool_]) -> str:
        """What is wrong with embeddings that should be of this shape, or an empty text."""
        n, largest = shape[0], self.expected.largest
        if values.dtype != self.wire:
            return f"embeddings are {values.dtype}, not {self.wire}"
        if values.shape != shape or activated.shape != (n,) or not n:
            return f"embeddings have the shape {list(values.shape)} for {n} rounds, not {list(shape)}"
        if not np.isfinite(values).all():
            return "an embedding is not finite"
        if float(np.abs(values).max()) > largest:
            return f"an element of an embedding is larger than {largest:g}"
        return ""

    @property
    def full(self) -> str:
        """Why no more derivatives are kept for it; an empty text where there is room."""
        if len(self.outbox) * math.prod(self.shape) < KEPT:
            return ""
        return f"{len(self.outbox):,} of its derivatives are in no checkpoint of it: no more are kept for it"

    def stale(self, applied: int, t: int, in_flight: int) -> bool:
        """Return whether parameters with the derivatives up to ``applied`` are too old for an embedding of round
        ``t``.
        """
        sent = bisect_right(self._rounds, t - in_flight)
        newest = self._rounds[sent - 1] if sent else NONE
        return applied < max(newest, self.safe)  # what its checkpoint has is in the outbox no longer

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint."""
        arrays = {"last": self.history.last, "total": self.history.total.copy()}
        if self.outbox:  # it may be long, so nothing of it is among the JSON values
            sent = self.outbox.values()
            arrays |= {
                "outbox": np.stack([each.value for each in sent]),
                "outbox rounds": np.array([(t, s.before, s.applied) for t, s in self.outbox.items()], np.int64),
                "outbox lengths": np.array([len(each.event) for each in sent]),
                "outbox events": np.frombuffer(b"".join(each.event for each in sent), np.uint8),
                "outbox factors": np.array([each.factor for each in sent]),
                "outbox flags": np.array([(each.stored, each.emptied) for each in sent]),
            }
        values = {
            "round": self.history.round,
            "count": self.history.count,
            "before": self.before,
            "safe": self.safe,
            "max_delay": self.max_delay,
            "pushed": self.pushed,
            "ended": self.ended,
        }
        return arrays, values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`.

        Raises:
            ValueError: where its embeddings had another width.
        """
        here, there = self.history.last.shape, arrays["last"].shape
        if here != there:
            raise ValueError(f"an embedding has {there[0]} elements there and {here[0]} here")
        self.history.last, self.history.total = arrays["last"], arrays["total"].copy()
        self.history.round, self.history.count = values["round"], values["count"]
        self.before, self.safe, self.max_delay = values["before"], values["safe"], values["max_delay"]
        self.pushed, self.ended = values["pushed"], values["ended"]
        self.outbox = {}
        if "outbox" in arrays:
            names = iter(arrays["outbox events"].tobytes())
            columns = (arrays[f"outbox {name}"].tolist() for name in ("rounds", "lengths", "factors", "flags"))
            for value, rounds, length, factor, (stored, emptied) in zip(arrays["outbox"], *columns, strict=True):
                t, before, applied = rounds
                event = bytes(islice(names, length))
                self.outbox[t] = Sent(before, applied, event, value, stored, factor, emptied)
        self._rounds = list(self.outbox)
