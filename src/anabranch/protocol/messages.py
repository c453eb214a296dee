"""What the server and a client say to one another: one frozen type for each kind of message.

==============  ================  ===========================================================================
type            from → to         what it says
==============  ================  ===========================================================================
`Hello`         client → server   who I am, what I take part in, and how far I am
`Welcome`       server → client   you take part; so many rounds are played
`Refused`       server → client   you cannot take part, and why
`Call`          server → clients  I have begun, or may have lost something: say hello, and tell all again
`Happened`      client → server   an event has activated me; here is my embedding for it
`Query`         server → clients  send your embeddings for these rounds, if you have not
`Embeddings`    client → server   here they are, and in which of the rounds an event has activated me
`Unknown`       client → server   I have no features for the events of these rounds
`Unusable`      client → server   a value of these events cannot be used: wait no longer for my embeddings
`Ask`           server → clients  send your embeddings for these events: nobody learns from them now
`Reply`         client → server   here they are
`Derivatives`   server → client   ``v_m`` of the rounds in which you were activated
`Void`          server → client   nothing comes for these rounds, and these events: forget them
`Recall`        server → client   the events of the last rounds, so that a window of samples can be made again
`Upcoming`      client → server   my next reading is of this time, and I have announced all events before it
`Advance`       server → client   announce what happens up to this time
`Bye`           either            I leave; the server says it at the end: that you have all is kept, so leave too
`End`           server → client   the stream has ended, or training has
==============  ================  ===========================================================================

Rounds are counted from 0. An event's name is 0 to 32 bytes that say nothing to anyone but the parties. A *session* is
a number that a client draws when it says hello: whatever it sent before, perhaps before a crash, is known by another.
An *epoch* is the same for the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol.terms import Terms

Rounds = tuple[int, ...]
Events = tuple[bytes, ...]

NONE = -1
"""In place of the number of a round: none yet."""
MOMENT = -2
"""In place of the round that says to which of a client's parameters a derivative belongs: those that it then has."""
NOTHING = -2
"""In place of a class that was predicted: none was, since a client was away."""
NEVER = 2**63 - 1
"""In place of the time of a client's next reading: it announces no event any more."""
EARLIEST = -(2**63)
"""A time before all others."""
LAST = 2**31 - 2
"""No round has a greater number: the programs count in 32 bits."""


@dataclass(frozen=True)
class Message:
    """Any of them. Two are equal where all their fields are, arrays to the bit."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(value, other.__dict__[name]) for name, value in self.__dict__.items())

    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    return bool(one == other)


@dataclass(frozen=True, eq=False)
class Hello(Message):
    """A client begins a session, at its start or after its connection broke."""

    session: int
    terms: Terms
    client: int
    """``m``, from 1."""
    width: int
    """``e_m``"""
    schema: str
    """A digest of what its features are."""
    applied: int
    """The last round whose derivative is in its parameters; `NONE` before the first."""


@dataclass(frozen=True, eq=False)
class Welcome(Message):
    session: int
    epoch: int
    terms: Terms
    width: int
    """``e_m``, as the server expects it."""
    schema: str
    """As the server expects it; empty where it expects none."""
    rounds: int
    """How many rounds are played."""


@dataclass(frozen=True, eq=False)
class Refused(Message):
    session: int
    reason: str
    """Each field that differs, with both values."""


@dataclass(frozen=True, eq=False)
class Call(Message):
    epoch: int
    session: int
    """The session of the client that the server knows; 0 where it knows none."""


@dataclass(frozen=True, eq=False)
class Happened(Message):
    session: int
    applied: int
    """The last round whose derivative is in the parameters that made the embedding."""
    safe: int
    """The last round whose derivative is in its checkpoint: who tells of all its events sends nothing else."""
    event: bytes
    embedding: NDArray[Any]
    """(e_m,), or (l, e_m) under SLR."""


@dataclass(frozen=True, eq=False)
class Query(Message):
    epoch: int
    first: int
    """The number of the first of these consecutive rounds."""
    events: Events
    """One a round."""
    activated: NDArray[np.bool_] | None
    """(n, M) where the server decides who is activated; else each client decides."""


@dataclass(frozen=True, eq=False)
class Embeddings(Message):
    session: int
    applied: int
    """The last round whose derivative is in the parameters that made them; `NONE` before the first."""
    safe: int
    """The last round whose derivative is in its checkpoint: the server need not keep it any longer."""
    rounds: Rounds
    activated: NDArray[np.bool_]
    """(n,): in which of them an event has activated the client."""
    values: NDArray[Any]
    """(n, e_m), or (n, l, e_m) under SLR, in the dtype of the wire."""


@dataclass(frozen=True, eq=False)
class Unknown(Message):
    session: int
    rounds: Rounds


@dataclass(frozen=True, eq=False)
class Unusable(Message):
    session: int
    events: Events
    """The client has a row of each, and cannot make features of it."""


@dataclass(frozen=True, eq=False)
class Ask(Message):
    """The events are those of late labels, or somebody's who wants a prediction and nothing more."""

    epoch: int
    asked: int
    """The number of the first of these consecutive questions; `NONE` where the server knows of the events already, and
    wants no reply."""
    first: int
    """The number of the first event, where rounds will follow once the labels are there; else `NONE`."""
    stored: bool
    """Whether those rounds will go by the embeddings that are sent now."""
    events: Events
    """One a question."""
    activated: NDArray[np.bool_] | None
    """(n, M) where the server decides who is activated; else each client decides."""


@dataclass(frozen=True, eq=False)
class Reply(Message):
    session: int
    applied: int
    """The last round whose derivative is in the parameters that made the embeddings."""
    safe: int
    """The last round whose derivative is in its checkpoint."""
    asked: Rounds
    """The numbers of the questions."""
    unknown: Rounds
    """Questions for whose events it has no features."""
    activated: NDArray[np.bool_]
    """(n,): which of the events have activated the client."""
    values: NDArray[Any]
    """(n, e_m), in the dtype of the wire."""


@dataclass(frozen=True, eq=False)
class Derivatives(Message):
    """The round number says how many rounds lie between two in which the client was activated: it pushes 0 in each."""

    session: int
    before: int
    """The round before the first of these in which the client was activated; `NONE` where there was none."""
    rounds: Rounds
    """In order."""
    applied: Rounds
    """As the client said it with the embedding: which parameters each derivative belongs to. `MOMENT` where it goes by
    an embedding of long ago: the client takes the features that it kept, and its parameters of that moment."""
    events: Events
    """One a round where the client may not know them, or may have lost what it kept; else none."""
    values: NDArray[Any]
    """(n, e_m), or (n, l, e_m) under SLR, in the dtype of the wire."""
    factors: tuple[float, ...] = ()
    """What the learning rates are multiplied by, one a round; none where that is 1 in all of them."""
    emptied: NDArray[np.bool_] | None = None
    """(n,): whether every party has emptied its window of gradients since the derivative before; None where it never
    has."""


@dataclass(frozen=True, eq=False)
class Void(Message):
    session: int
    rounds: Rounds
    events: Events
    """Those whose rounds went without the client, or were dropped, and those that will have none."""


@dataclass(frozen=True, eq=False)
class Recall(Message):
    session: int
    first: int
    events: Events


@dataclass(frozen=True, eq=False)
class Bye(Message):
    session: int
    applied: int
    """The last round whose derivative is in the client's checkpoint; `NONE` where the server says it."""
    reason: str


@dataclass(frozen=True, eq=False)
class End(Message):
    session: int
    rounds: int
    """How many were played."""
    before: int
    """The last round in which the client was activated: its derivative is the last that it steps along."""
    reason: str
    """Why no round follows."""


@dataclass(frozen=True, eq=False)
class Upcoming(Message):
    session: int
    told: int
    """How many events the client has announced in this session before."""
    time: int
    """Of its next reading, in microseconds since 1970; `NEVER` if it announces no event any more."""


@dataclass(frozen=True, eq=False)
class Advance(Message):
    session: int
    time: int | None
    """In microseconds since 1970; None if the server does not go by the data's clock."""


@dataclass(frozen=True, eq=False)
class Record(Message):
    """A round as the server played it: what it needs to play it again. It is written to a log and never sent."""

    event: bytes
    label: int
    activated: NDArray[np.bool_]
    """(M,)"""
    missing: Rounds
    """(M,): 0 where the client answered, else how it was replaced; see `anabranch.protocol.server.missing`."""
    applied: Rounds
    """(M,): which parameters each embedding belongs to; where they are stored, how many derivatives were in those."""
    embeddings: NDArray[Any]
    """(e,), or (l, e) under SLR; empty where the round was skipped."""
    predicted: int = NONE
    """The class predicted when the event happened, where its label came later; `NONE` where the round predicts."""
    stored: bool = False
    """Whether the embeddings are those of the event, and its label came later."""
    factor: float = 1.0
    """What the learning rates were multiplied by."""
    emptied: bool = False
    """Whether every party's window of gradients was emptied before it."""
    noticed: str = ""
    """The drift that was noticed in it, as JSON."""
