"""A client's side of the conversation, without I/O: messages go in, actions come out.

The client answers queries with embeddings at its parameters of that moment, and keeps what a step will need of every
round in which an event has activated it. When the derivative comes it pushes 0 for each round in between, and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.compute import ClientCompute, Pending
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Send, Stop
from anabranch.protocol.terms import Terms, difference

Look = Callable[[bytes], NDArray[Any] | None]
"""The client's features (d_m,) for an event; None where it has none."""
Decide = Callable[[int, NDArray[Any]], bool]
"""Whether an event activates the client, given the number of the round and its features."""


class _Kept(NamedTuple):
    """What is kept of a round in which the client was activated."""

    applied: int
    """The last round whose derivative was in the parameters of the embedding."""
    pending: Pending


class ClientConversation:
    """Takes one client's part in the rounds of a federation.

    Args:
        terms: what all parties must agree on.
        client: ``m``, from 1.
        schema: a digest of what its features are.
        compute: the client's parameters, moved on here and nowhere else.
        look: its features for an event.
        decide: whether an event activates it, where the server does not say.
        session: draws a number that it never drew before.
    """

    def __init__(
        self,
        terms: Terms,
        client: int,
        schema: str,
        compute: ClientCompute,
        look: Look,
        decide: Decide,
        session: Callable[[], int],
    ) -> None:
        self.terms, self.client, self.schema = terms, client, schema
        self.compute = compute
        self.applied, self.safe = m.NONE, m.NONE
        """The last round whose derivative is in the parameters, and in the last checkpoint."""
        self.joined = False
        """Whether the server has said welcome since the last hello."""
        self.activations = self.answers = 0
        """Rounds that it stepped in, and rounds that it answered, since this process began."""
        self._look, self._decide, self._draw = look, decide, session
        self._session = 0
        self._epoch: int | None = None
        self._kept: dict[int, _Kept] = {}
        self._events: dict[int, bytes] = {}
        """Of the rounds that SLR's window of samples may still lack."""
        self._remembered = m.NONE
        """The last round whose features are in SLR's window of samples."""
        self._happened: dict[bytes, _Kept | None] = {}
        """Events of its own that no round has come for: what is kept of those that it has told the server of."""

    def hello(self) -> list[Action]:
        """Begins a session: at the start, and whenever the connection may have lost something."""
        self._session, self.joined = self._draw(), False
        width = self.compute.width
        return [Send(m.Hello(self._session, self.terms, self.client, width, self.schema, self.applied))]

    def happened(self, event: bytes) -> list[Action]:
        """An event has activated the client: it sends its embedding, and is not asked."""
        x = self._look(event)
        if not self.joined or x is None or self.compute.rule.update.rows is not None:
            self._happened[event] = None
            return []
        embedding, pending = self.compute.encode(np.zeros(1, np.int32), x[None])
        self._happened[event] = _Kept(self.applied, pending[0])
        return [Send(m.Happened(self._session, self.applied, event, embedding[0]))]

    def bye(self, reason: str) -> list[Action]:
        """Leaves, perhaps to come back."""
        return [Send(m.Bye(self._session, reason))] if self.joined else []

    def saved(self, applied: int) -> None:
        """A checkpoint has the derivatives up to this round."""
        self.safe = applied

    def receive(self, messages: Sequence[m.Message]) -> list[Action]:
        """What to do about messages, in their order; queries that follow one another are answered together."""
        actions: list[Action] = []
        queries: list[m.Query] = []
        for message in messages:
            if isinstance(message, m.Query):
                queries.append(message)
                continue
            actions += self._answer(queries)
            queries = []
            actions += self._receive(message)
        return actions + self._answer(queries)

    def _receive(self, message: m.Message) -> list[Action]:
        if isinstance(message, m.Call):
            known = self.joined and message.epoch == self._epoch and message.session in (0, self._session)
            return [] if known else self.hello()
        handler = _HANDLERS.get(type(message))
        if handler is None:
            return [Note("unexpected", f"the server sent a {type(message).__name__}, which no server does")]
        if message.session != self._session:  # type: ignore[attr-defined]
            return [Note("old session", f"the server sent a {type(message).__name__} of an old session")]
        if not self.joined and not isinstance(message, m.Welcome | m.Refused):
            return []
        return handler(self, message)

    def _welcome(self, message: m.Welcome) -> list[Action]:
        wrong = self.terms.differences(message.terms)
        if message.width != self.compute.width:
            wrong.append(difference("embedding width", self.compute.width, message.width))
        if message.schema and message.schema != self.schema:
            wrong.append(difference("feature schema", self.schema, message.schema))
        if wrong:
            return [Stop("the server takes part in something else: " + "; ".join(wrong), failed=True)]
        self.joined, self._epoch = True, message.epoch
        return [Note("joined", f"the server is here; {message.rounds:,} rounds are played")]

    def _refused(self, message: m.Refused) -> list[Action]:
        return [
            Stop(f"the server refuses client {self.client} (here is the server's side): {message.reason}", failed=True)
        ]

    def _recall(self, message: m.Recall) -> list[Action]:
        self._events = {message.first + i: event for i, event in enumerate(message.events)}
        return []

    def _answer(self, queries: Sequence[m.Query]) -> list[Action]:
        """The embeddings for some queries, in one call where their rounds are in order."""
        if not queries:
            return []
        if any(query.epoch != self._epoch for query in queries) or not self.joined:
            return [] if not self.joined else self.hello()
        rounds = [query.first + i for query in queries for i in range(len(query.events))]
        events = [event for query in queries for event in query.events]
        chosen = [
            None if q.activated is None else bool(q.activated[i, self.client - 1])
            for q in queries
            for i in range(len(q.events))
        ]
        features = [self._look(event) for event in events]
        known = [i for i, x in enumerate(features) if x is not None]
        for i in list(known):
            kept = self._happened.get(events[i])
            if kept is not None:  # the server has the embedding already, and asks once more if it cannot use it
                self._kept[rounds[i]] = kept
                del self._happened[events[i]]
                known.remove(i)
        actions: list[Action] = []
        if len(known) < len(rounds):
            unknown = tuple(t for t, x in zip(rounds, features, strict=True) if x is None)
            actions.append(Send(m.Unknown(self._session, unknown)))
        block = self.compute.block
        for start in range(0, len(known), block):
            part = known[start : start + block]
            actions += self._encode(
                [rounds[i] for i in part],
                [events[i] for i in part],
                [features[i] for i in part],
                [chosen[i] for i in part],
            )
        return actions

    def _encode(
        self, rounds: list[int], events: list[bytes], features: list[Any], chosen: list[bool | None]
    ) -> list[Action]:
        self._catch_up(rounds[0])
        values, pending = self.compute.encode(np.array(rounds, np.int32), np.stack(features))
        self._remembered = max(self._remembered, rounds[-1])
        activated = np.zeros(len(rounds), bool)
        for i, (t, event, x) in enumerate(zip(rounds, events, features, strict=True)):
            told = t in self._kept or event in self._happened
            self._happened.pop(event, None)
            activated[i] = chosen[i] if chosen[i] is not None else told or self._decide(t, x)
            if activated[i]:
                self._kept[t] = _Kept(self.applied, pending[i])
            if self.compute.rule.update.rows is not None:
                self._events[t] = event
        self.answers += len(rounds)
        return [Send(m.Embeddings(self._session, self.applied, self.safe, tuple(rounds), activated, values))]

    def _catch_up(self, t: int) -> None:
        """Under SLR, makes the window of samples what it was before round ``t``."""
        rows = self.compute.rule.update.rows
        if rows is None:
            return
        for lacking in range(max(self._remembered + 1, t - rows + 1), t):
            x = self._look(self._events[lacking])
            assert x is not None
            self.compute.encode(np.array([lacking], np.int32), x[None])
        self._events = {each: event for each, event in self._events.items() if each > t - rows}

    def _derivatives(self, message: m.Derivatives) -> list[Action]:
        problem = self._check(message)
        if problem:
            return [Note("unusable", f"the server sent derivatives that cannot be used: {problem}"), *self.hello()]
        new = [i for i, t in enumerate(message.rounds) if t > self.applied]
        before = message.before if new and new[0] == 0 else (message.rounds[new[0] - 1] if new else self.applied)
        if before != self.applied:
            return [Note("gap", f"a derivative after round {self.applied:,} was lost"), *self.hello()]
        while new:
            # Those that belong to one and the same parameters, or are kept, go together.
            ready = []
            for i in new[: self.compute.block]:
                kept = self._keep(message, i)
                if kept is None:
                    break
                ready.append((message.rounds[i], kept, message.values[i]))
            if not ready:
                return [Note("gap", f"what round {message.rounds[new[0]]:,} needs is lost"), *self.hello()]
            rounds, pending, values = zip(*ready, strict=True)
            self.compute.step(np.array(rounds, np.int32), pending, np.stack(values))
            self.applied = rounds[-1]
            self.activations += len(rounds)
            new = new[len(ready) :]
        self._kept = {t: each for t, each in self._kept.items() if t > self.applied}
        return []

    def _keep(self, message: m.Derivatives, i: int) -> Pending | None:
        """What a step in a round needs: what is kept of it, or the same made again; None where that cannot be."""
        t, applied = message.rounds[i], message.applied[i]
        kept = self._kept.get(t)
        if kept is not None and kept.applied == applied:
            return kept.pending
        if applied != self.applied or not message.events:
            return None
        x = self._look(message.events[i])
        if x is None:
            return None
        # All that belong to these parameters, before they move on.
        self._catch_up(t)
        _, pending = self.compute.encode(np.array([t], np.int32), x[None])
        self._remembered = max(self._remembered, t)
        self._kept[t] = _Kept(applied, pending[0])
        for other in range(i + 1, len(message.rounds)):
            if message.applied[other] == applied and message.rounds[other] not in self._kept:
                x = self._look(message.events[other])
                if x is not None:
                    _, pending_other = self.compute.encode(np.array([message.rounds[other]], np.int32), x[None])
                    self._kept[message.rounds[other]] = _Kept(applied, pending_other[0])
        return pending[0]

    def _check(self, message: m.Derivatives) -> str:
        rounds, values = message.rounds, message.values
        rows = self.compute.rule.update.rows
        shape = (len(rounds), self.compute.width) if rows is None else (len(rounds), rows, self.compute.width)
        if not rounds or list(rounds) != sorted({*rounds}) or rounds[0] < 0 or len(message.applied) != len(rounds):
            return f"its rounds are {rounds[:5]}"
        if message.events and len(message.events) != len(rounds):
            return f"{len(rounds)} rounds have {len(message.events)} events"
        if values.dtype != self.compute.rule.wire or values.shape != shape:
            return f"they are {values.dtype}{list(values.shape)}, not {self.compute.rule.wire}{list(shape)}"
        return "" if np.isfinite(values).all() else "one is not finite"

    def _void(self, message: m.Void) -> list[Action]:
        for t in message.rounds:
            self._kept.pop(t, None)
        return []

    def _end(self, message: m.End) -> list[Action]:
        if self.applied != message.before:
            return self.hello()
        return [Stop(message.reason)]

    # -- checkpoints --------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON values for a checkpoint."""
        pending = {t: kept.pending for t, kept in self._kept.items() if kept.applied < self.applied}
        values = {
            "applied": self.applied,
            "rounds": self.compute.rounds,
            "remembered": self._remembered,
            "kept": {str(t): self._kept[t].applied for t in pending},
        }
        return self.compute.arrays(pending), values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`, before the first hello.

        Raises:
            ValueError: where they are those of another model or update.
        """
        pending = self.compute.restore(arrays, values["rounds"])
        self.applied = self.safe = values["applied"]
        self._remembered = values["remembered"]
        self._kept = {t: _Kept(values["kept"][str(t)], each) for t, each in pending.items()}


_HANDLERS: dict[type[m.Message], Callable[[ClientConversation, Any], list[Action]]] = {
    m.Welcome: ClientConversation._welcome,
    m.Refused: ClientConversation._refused,
    m.Recall: ClientConversation._recall,
    m.Derivatives: ClientConversation._derivatives,
    m.Void: ClientConversation._void,
    m.End: ClientConversation._end,
}
"""What is done about each kind of message of the server."""
