"""A client's side of the conversation, without I/O: messages go in, actions come out.

The client answers queries with embeddings at its parameters of that moment, and keeps what a step will need of every
round in which an event has activated it. When the derivative comes it pushes 0 for each round in between, and steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party_programs import ClientCompute, Pending
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Send, Stop
from anabranch.protocol.client.inputs import Inputs, InputsInMemory
from anabranch.protocol.client.pending_steps import REMEMBERED, Keeping
from anabranch.protocol.samples import SampleWindow
from anabranch.protocol.terms import Terms, difference
from anabranch.protocol.validation import wrong_ask, wrong_derivatives, wrong_query

Look = Callable[[bytes], NDArray[Any] | None]
"""The client's features (d_m,) for an event; None where it has none."""
Decide = Callable[[int, NDArray[Any]], bool]
"""Whether an event activates the client, given the number of the round and its features."""


LATER = 100
"""So many events are looked up again at a time."""
OTHERS, LATELY = 8, 1000
"""So many signs of another process in so many rounds are no messages that came late."""
REFUSALS = 3
"""After so many refusals in a row a client stops that was welcome before: one may be of a server that should not be
there."""
LONG = 4096
"""After so many rounds more, nobody asks for a round again: several times as many as may be open together."""


class _Asked(NamedTuple):
    """A round that the server asks for."""

    t: int
    event: bytes
    x: NDArray[Any]
    activated: bool | None
    """Where the server decides, or where it was decided when the event happened."""


def _is_never_unusable(event: bytes) -> bool:
    return False


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
        inputs: keeps the features of events whose labels come later.
        peek: its features for an event that nothing will be learnt of; by default ``look``.
        is_unusable: whether ``look`` has none of an event since a value of it cannot be used.
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
        inputs: Inputs | None = None,
        peek: Look | None = None,
        is_unusable: Callable[[bytes], bool] = _is_never_unusable,
    ) -> None:
        self.terms, self.client, self.schema = terms, client, schema
        self.compute = compute
        self.applied, self.safe = m.NONE, m.NONE
        """The last round whose derivative is in the parameters, and in the last checkpoint."""
        self.joined = False
        """Whether the server has said welcome since the last hello."""
        self.over: str | None = None
        """Why no round follows and nothing is lacking, where the server has said so since the last hello."""
        self.activations = self.answers = 0
        """Rounds that it stepped in, and rounds that it answered, since this process began."""
        self.announced = self.replies = 0
        """Events of its own, and events that it replied for without a round, since this process began."""
        self._look, self._decide, self._draw = look, decide, session
        self._peek = look if peek is None else peek
        self._is_unusable = is_unusable
        self._inputs: Inputs = InputsInMemory() if inputs is None else inputs
        self._learnt: dict[bool, dict[tuple[int, bytes], None]] = {True: {}, False: {}}
        """Rounds of events whose features may be kept, in about their order, by whether they have activated it."""
        for t, event, stepped in self._inputs.were_learnt():
            self._learnt[stepped][t, event] = None
        self._taken_up: dict[bytes, None] = dict.fromkeys(self._inputs.recent(LATELY))
        """The last events of its own that the server has asked for since their labels come later."""
        self._session = 0
        self._sessions: deque[int] = deque(maxlen=1000)
        """The last that it drew."""
        self._parting: dict[int, str] = {}
        """Why no round follows, by the last session in which the server has said so; empty once it has welcomed the
        client in a later one."""
        self._others: dict[int, int] = {}
        """The sessions that were a sign of another process, and the round until then."""
        self._refusals: set[int] = set()
        """The sessions that were refused since the last welcome."""
        self._epoch: int | None = None
        """Of the last server that has welcomed it."""
        self._called: int | None = None
        """The epoch of the last server that was heard of."""
        self._thin_after: tuple[int, int] | None = None
        """How many rounds were played when the session began, and the last one in the parameters then. None once
        nothing is kept any more of what was told in sessions before."""
        self._announced = 0
        """How many events it has announced in this session."""
        self.by_data = False
        """Whether it announces events up to the time that the server says, and no later."""
        self.granted = m.EARLIEST
        """That time, in microseconds since 1970."""
        self.grants = 0
        """How often the server has said it."""
        self._upcoming: int | None = None
        """The time of its next reading, once the carrier has said it."""
        self._gap_at: int | None = None
        """The last round in the parameters when something was lacking."""
        self._samples = SampleWindow(compute, self._features)
        self._keeping = Keeping()
        self._answered: dict[bytes, None] = {}
        """The last events that it was asked for."""

    @property
    def session(self) -> int:
        """That of the last hello."""
        return self._session

    @property
    def settled(self) -> deque[bytes]:
        """Events of its own that nothing can be lost of any more: for whoever tells of them."""
        return self._keeping.settled

    @property
    def sampled(self) -> int:
        """Under SLR, the last round whose sample is in the window; else `NONE`."""
        return self._samples.newest

    @property
    def told(self) -> int:
        """How many of its own events wait for their rounds, or for a server to tell of them."""
        tells = self.joined and self.compute.rule.update.rows is None
        return len(self._keeping.told) if tells else len(self._keeping.own) - len(self._keeping.later)

    def hello(self) -> list[Action]:
        """Begin a session: at the start, and whenever the connection may have lost something."""
        if self.over is not None:
            self._parting = {self._session: self.over}
        self._session, self.joined, self.over = self._draw(), False, None
        self._sessions.append(self._session)
        self._keeping.told.clear()
        self._announced = 0
        width = self.compute.width
        return [Send(m.Hello(self._session, self.terms, self.client, width, self.schema, self.applied))]

    def happened(self, event: bytes) -> list[Action]:
        """An event has activated the client: it sends its embedding, and is not asked."""
        if event in self._keeping.own:
            return []
        if self.is_late(event):
            return [Note("late", "an event has happened here after the server had asked for it")]
        self._keeping.own[event] = {}
        self.announced += 1
        actions = self._tell(event)
        if len(self._keeping.own) > REMEMBERED and (oldest := self._keeping.oldest_unannounced) is not None:
            self._keeping.settle(oldest)
            actions.append(Note("event dropped", f"more than {REMEMBERED:,} events wait here"))
        return actions

    def pass_over(self, is_past: Callable[[bytes], bool]) -> list[Action]:
        """Under SLR, forgets the oldest of its own events where the rounds are past it; returns what it did.

        The server is told of none of them, so it does not say either that one will have no round.
        """
        if self.compute.rule.update.rows is None:
            return []
        asked = {kept.event for kept in self._keeping.rounds.values()}
        waiting = (event for event in self._keeping.own if event not in asked and event not in self._keeping.later)
        oldest = next(waiting, None)
        if oldest is None or not is_past(oldest):
            return []
        self._keeping.settle(oldest)
        text = "more events wait here than are read ahead, and the oldest seems to have no round"
        return [Note("event dropped", text)]

    def is_late(self, event: bytes) -> bool:
        """Return whether the server has asked for an event that has not happened here yet: it can activate no more."""
        return event in self._answered and event not in self._keeping.own

    def was_asked(self, events: Sequence[bytes]) -> None:
        """The server knows of these: since it asked before this process began, or since they were told of."""
        for event in events:
            self._remember_answered(event)

    def resume(self, events: Sequence[bytes]) -> None:
        """These have activated the client before this process began, and nobody knows what became of them."""
        for event in events:
            self._keeping.own.setdefault(event, {})

    def _tell(self, event: bytes) -> list[Action]:
        x, known = self._features(event), event not in self._keeping.later
        self._keeping.later.pop(event, None)
        if x is None:
            self._keeping.later[event] = None
            text = "an event has happened here before its features were there: it is told of when they are"
            return [Note("unknown", text)] if known else []
        if not self.joined or event in self._keeping.told or self.compute.rule.update.rows is not None:
            return []
        embedding, pending = self.compute.encode(np.zeros(1, np.int32), x[None])
        if diverged := self._diverged(embedding, x):
            return diverged
        self._keeping.own[event][self.applied] = pending[0]
        self._keeping.told.add(event)
        self._announced += 1
        return [Send(m.Happened(self._session, self.applied, self.safe, event, embedding[0]))]

    def goes_on_at(self, time: int) -> list[Action]:
        """Tell the server that all events before this time were announced.

        Args:
            time: of the next reading, in microseconds since 1970; `NEVER` if no event follows.
        """
        self._upcoming = time
        return self._say_upcoming()

    def _advance(self, message: m.Advance) -> list[Action]:
        if self.by_data and message.time is None:
            text = (
                'features.clock is "data", but the server goes by the machine\'s clock: give all parties the same '
                "clock, in [labels] and in [features]"
            )
            return [Stop(text, failed=True)]
        if not self.by_data and self._upcoming != m.NEVER:
            text = (
                'the server goes by the data\'s clock (labels.clock = "data"), and this client does not: write '
                'clock = "data" in [features], with a csv or parquet source'
            )
            return [Stop(text, failed=True)]
        if message.time is not None:
            self.granted, self.grants = max(self.granted, message.time), self.grants + 1
        again = self._upcoming is not None and self._upcoming > self.granted  # what was said may be lost
        return self._say_upcoming() if again else []

    def _say_upcoming(self) -> list[Action]:
        if not self.joined or self._upcoming is None:
            return []
        return [Send(m.Upcoming(self._session, self._announced, self._upcoming))]

    @property
    def waits_for_features(self) -> bool:
        """Whether `tell_later` may have something to tell."""
        return self.joined and bool(self._keeping.later)

    def tell_later(self) -> list[Action]:
        """Tell of events whose features are there by now; of some at a time."""
        return [action for event in [*islice(self._keeping.later, LATER)] for action in self._tell(event)]

    def bye(self, reason: str) -> list[Action]:
        """Leave, perhaps to come back; what it has applied is in a checkpoint, unless it has diverged."""
        return [Send(m.Bye(self._session, self.applied, reason))] if self.joined else []

    def saved(self, applied: int) -> None:
        """A checkpoint has the derivatives up to this round."""
        self.safe = applied
        self._keeping.saved(applied)

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
            if message.session == 0:  # a server that may be new, or that may have lost what it was told of
                under_way, self._called = not self.joined and message.epoch == self._called, message.epoch
                # All is told again, in a new session: in this one a message under way may give up what was told before.
                return [] if under_way else self.hello()
            # One that got a message of another session: perhaps only since a hello is under way.
            known = not self.joined or message.session == self._session
            return [] if known else self._take_part_again(message.session)
        if isinstance(message, m.Ask):
            return self._ask(message)
        handler = _HANDLERS.get(type(message))
        if handler is None:
            return [Note("unexpected", f"the server sent {type(message).__name__}, which no server does")]
        if message.session != self._session:  # type: ignore[attr-defined]
            # The server may have let it go before it could hear of the hello since, and be gone; where it is not, it
            # hears of the goodbye after the hello.
            if isinstance(message, m.Bye) and message.session in self._parting and self._called == self._epoch:
                why = self._parting[message.session]
                return [Send(m.Bye(self._session, self.applied, "it has all its derivatives")), Stop(why)]
            note = Note("old session", f"the server sent {type(message).__name__} of an old session")
            if isinstance(message, m.Welcome) and self._refusals and message.session in self._sessions:
                self._refusals.clear()  # those were of another server than this, which is slow
                return [note, *self._another_server(message.session)]
            # Its hellos may have overtaken one another, or a process that took its place was killed; at the end nothing
            # else would tell the server so.
            again = self._take_part_again(message.session) if isinstance(message, m.End) and self.joined else []
            return [note, *again]
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
        if self.joined and message.epoch == self._epoch:  # it came twice, and each event is told of once a session
            return []
        if (self.joined or self._session in self._refusals) and (stop := self._another_server(self._session)):
            return stop
        again = message.epoch != self._epoch
        self.joined, self._epoch, self._called = True, message.epoch, message.epoch
        self._parting.clear()
        self._refusals.clear()
        self._thin_after = message.rounds, self.applied
        # A server that has begun again knows of no event that waits for its round, and may have died just after it
        # had asked for one.
        if again:
            self._keeping.own = {event: {} for event in self._taken_up} | self._keeping.own
            self._taken_up.clear()
            self._keeping.told.clear()
        # Of every event of its own whose round is not over; what the server knows already changes nothing.
        told = [action for event in [*self._keeping.own] for action in self._tell(event)]
        return [
            Note("joined", f"the server is here; {message.rounds:,} rounds are played"),
            *told,
            *self._say_upcoming(),
        ]

    def _take_part_again(self, session: int) -> list[Action]:
        """Return the server knows the client in another session than the last, perhaps of another process."""
        if session not in self._sessions and self._another(session):
            text = (
                f"another process takes part as client {self.client}: end one of them (this one ends now, with a "
                "checkpoint, and the other may go on; the folder that counts is that of whichever went on last)"
            )
            return [Stop(text, failed=True, sound=True)]
        return self.hello()

    def _another(self, session: int) -> bool:
        """Return whether there is another process, by so many sessions: a few may be of one that was killed."""
        self._others = {each: t for each, t in self._others.items() if t >= self.applied - LATELY}
        self._others[session] = self.applied
        return len(self._others) >= OTHERS

    def _another_server(self, session: int) -> list[Action]:
        """Two servers have answered a hello, or one has twice: it ends where that goes on."""
        if not self._another(session):
            return []
        text = "two servers of this federation answer: end the one that should not be there"
        return [Stop(text, failed=True, sound=True)]

    def _refused(self, message: m.Refused) -> list[Action]:
        if self.joined:  # of a hello that came twice, or late; or by a server that should not be there
            note = Note("old session", "the server refused what it had welcomed before")
            return [note, *self._another_server(self._session)]
        self._refusals.add(self._session)
        text = f"the server refuses client {self.client} (here is the server's side): {message.reason}"
        if self._epoch is None or len(self._refusals) >= REFUSALS:
            return [Stop(text, failed=True)]
        return [Note("refused", f"{text}; it was welcome before, and waits for another answer")]  # else it says hello

    def _recall(self, message: m.Recall) -> list[Action]:
        self._samples.recall(message.first, message.events)
        return []

    def _answer(self, queries: Sequence[m.Query]) -> list[Action]:
        """Return the embeddings for some queries, in one call where their rounds are in order."""
        if not queries:
            return []
        if any(query.epoch != self._epoch for query in queries) or not self.joined:
            return [] if not self.joined else self.hello()
        problem = next((problem for query in queries if (problem := wrong_query(query, self.terms.clients))), "")
        if problem:
            return [Note("unusable", f"the server sent a query that cannot be used: {problem}")]
        asked: list[_Asked] = []
        unknown: list[int] = []
        unusable: list[bytes] = []
        for query in queries:
            for i, event in enumerate(query.events):
                t = query.first + i
                self._remember_answered(event)
                if t <= self.applied:  # it is over: the query was late, or says of which round an event of its own was
                    self._keeping.over(t, event)
                    continue
                x, decided = self._kept_or_looked_up(event)
                kept = self._keeping.rounds.get(t)
                if kept is not None and kept.event != event:
                    del self._keeping.rounds[t]  # the server has begun again, and has another event for this round
                if x is None and self._is_unusable(event):
                    unusable.append(event)
                elif x is None:
                    unknown.append(t)
                elif event in self._keeping.told and decided is None:
                    # The server has the embedding, and asks once more if it cannot use it.
                    self._keeping.hold(t, event, self._epoch, {})
                    self._keeping.told.discard(event)
                else:
                    chosen = decided if query.activated is None else bool(query.activated[i, self.client - 1])
                    asked.append(_Asked(t, event, x, chosen))
        actions: list[Action] = [Send(m.Unknown(self._session, tuple(unknown)))] if unknown else []
        actions += self._say_unusable(unusable)
        block = self.compute.block if self.compute.rule.update.rows is None else 1
        for start in range(0, len(asked), block):
            actions += self._encode(asked[start : start + block])
        return actions

    def _say_unusable(self, events: Sequence[bytes]) -> list[Action]:
        return [Send(m.Unusable(self._session, tuple(events)))] if events else []

    def _features(self, event: bytes) -> NDArray[Any] | None:
        return self._kept_or_looked_up(event)[0]

    def _kept_or_looked_up(self, event: bytes, *, peek: bool = False) -> tuple[NDArray[Any] | None, bool | None]:
        """Return the features for an event, and whether it has activated the client where that is decided."""
        kept = self._inputs.get(event)
        if kept is not None:
            return kept
        return (self._peek if peek else self._look)(event), None

    def _ask(self, ask: m.Ask) -> list[Action]:
        """Reply to questions with embeddings of the moment; keep the features of events that rounds will follow."""
        if not self.joined:
            return []
        if ask.epoch != self._epoch:
            return self.hello()
        problem = wrong_ask(ask, self.terms.clients)
        if problem:
            return [Note("unusable", f"the server asks for what cannot be used: {problem}")]
        known: list[int] = []
        unknown: list[int] = []
        unusable: list[bytes] = []
        samples: list[NDArray[Any]] = []
        activated: list[bool] = []
        for i, event in enumerate(ask.events):
            x, decided = self._kept_or_looked_up(event, peek=ask.first == m.NONE)
            if x is None:
                if ask.first != m.NONE and self._is_unusable(event):
                    unusable.append(event)
                else:
                    unknown.append(ask.asked + i)
                continue
            if ask.first != m.NONE:
                if ask.activated is not None:
                    decided = bool(ask.activated[i, self.client - 1])
                elif decided is None:
                    decided = event in self._keeping.own or self._decide(ask.first + i, x)
                if decided or not ask.stored:
                    self._inputs.put(event, x, decided, ask.first + i)
                elif event not in self._answered:
                    self._inputs.was_asked(event)
                self._take_up(event)
            known.append(ask.asked + i)
            samples.append(x)
            activated.append(bool(decided))
        if ask.asked == m.NONE:
            return []
        self.replies += len(known) if ask.first != m.NONE else 0
        looks = self.compute.looks
        rows = [self.compute.embed(np.stack(samples[i : i + looks])) for i in range(0, len(samples), looks)]
        values = np.concatenate(rows) if rows else np.zeros((0, self.compute.width), self.compute.rule.wire)
        if rows and (diverged := self._diverged(values, samples[0])):
            return diverged
        flags = np.array(activated, bool)
        reply = m.Reply(self._session, self.applied, self.safe, tuple(known), tuple(unknown), flags, values)
        return [Send(reply), *self._say_unusable(unusable)]

    def _take_up(self, event: bytes) -> None:
        """The server knows of an event, and its label comes later; what was told of it is not used."""
        if event in self._keeping.own:
            self._taken_up[event] = None
            if len(self._taken_up) > LONG:
                del self._taken_up[next(iter(self._taken_up))]
            self._keeping.settle(event)
        self._remember_answered(event)

    def _remember_answered(self, event: bytes) -> None:
        self._answered[event] = None
        while len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def _are_learnt(self, rounds: Sequence[tuple[int, bytes, bool]]) -> None:
        """The features of these wait for no label; drops those of events whose rounds were long before."""
        rows = self.compute.rule.update.rows  # windows are made again of the events that the server recalls
        long_ago = rounds[-1][0] - (LONG if rows is None else REMEMBERED + rows)
        for t, event, stepped in rounds:
            self._learnt[stepped][t, event] = None
        gone = []
        # Apart, since a step may wait for its checkpoint for as long as the client is not activated again.
        for stepped, held in self._learnt.items():
            until = min(long_ago, self.safe) if stepped else long_ago
            past = len([*takewhile(until.__ge__, (t for t, _ in held))])
            for each in [*islice(held, past)]:
                del held[each]
                gone.append(each[1])
        self._inputs.learnt(rounds, gone)

    def _encode(self, asked: Sequence[_Asked]) -> list[Action]:
        if not self._samples.catch_up(asked[0].t):
            return self._gap(f"the samples before round {asked[0].t:,} are not known")
        rounds = tuple(each.t for each in asked)
        values, pending = self.compute.encode(np.array(rounds, np.int32), np.stack([each.x for each in asked]))
        if diverged := self._diverged(values, asked[0].x):
            return diverged
        activated = np.zeros(len(asked), bool)
        for i, (t, event, x, chosen) in enumerate(asked):
            self._samples.push(t, event)
            kept = self._keeping.rounds.get(t)
            told = event in self._keeping.own or (kept is not None and kept.event == event)
            activated[i] = (told or self._decide(t, x)) if chosen is None else chosen
            if activated[i]:
                self._keeping.hold(t, event, self._epoch, {self.applied: pending[i]})
        self.answers += len(rounds)
        self._are_learnt([(each.t, each.event, bool(activated[i])) for i, each in enumerate(asked)])
        return [Send(m.Embeddings(self._session, self.applied, self.safe, rounds, activated, values))]

    def _diverged(self, values: NDArray[Any], x: NDArray[Any]) -> list[Action]:
        """End where embeddings are not finite since the parameters are not, and not only since an event's ``x`` is."""
        if np.isfinite(values).all() or np.isfinite(self.compute.embed(np.ones_like(x)[None])).all():
            return []
        text = f"the embeddings of client {self.client} are not finite since round {self.applied + 1:,}"
        return [Stop(f"{text}: try a smaller learning rate", failed=True, diverged=True)]

    def _gap(self, text: str, what: str = "gap") -> list[Action]:
        """Begin a session again, so that what is lacking comes; where that has not helped, its carrier waits first."""
        again, self._gap_at = self._gap_at == self.applied, self.applied
        if again:
            self.joined = False
        return [Note(what, text), *([] if again else self.hello())]

    def _derivatives(self, message: m.Derivatives) -> list[Action]:
        problem = wrong_derivatives(message, self.compute)
        if problem:
            return self._gap(f"the server sent derivatives that cannot be used: {problem}", "unusable")
        new = [i for i, t in enumerate(message.rounds) if t > self.applied]
        before = message.before if new and new[0] == 0 else (message.rounds[new[0] - 1] if new else self.applied)
        if before != self.applied:
            return self._gap(f"a derivative after round {self.applied:,} was lost")
        actions: list[Action] = []
        # What is not kept is made again at the parameters that it belongs to: no step may pass them by.
        lacking: dict[int, list[int]] = {}
        for i in new:
            if self._keeping.pending(message, i, self._epoch) is None:
                lacking.setdefault(message.applied[i], []).append(i)
        while new:
            if message.applied[new[0]] == m.MOMENT:
                actions += self._step_late(message, new.pop(0))
                continue
            self._make(message, lacking.get(self.applied, ()))
            ready: list[tuple[int, Pending, Any]] = []
            for i in self._alike(message, new[: self.compute.block]):
                kept = self._keeping.pending(message, i, self._epoch)
                if kept is None:
                    break
                ready.append((message.rounds[i], kept, message.values[i]))
                if message.rounds[i] in lacking:
                    break
            if not ready:
                return self._gap(f"what round {message.rounds[new[0]]:,} needs is lost")
            rounds, pending, values = zip(*ready, strict=True)
            factor = self._adapt(message, new[0])
            self.compute.step(np.array(rounds, np.int32), pending, np.stack(values), factor)
            self.applied = rounds[-1]
            self.activations += len(rounds)
            for i in new[: len(ready)]:
                event = message.events[i] if message.events else self._keeping.rounds[message.rounds[i]].event
                self._keeping.over(message.rounds[i], event)
                self._taken_up.pop(event, None)
            new = new[len(ready) :]
        self._keeping.passed(self.applied)
        self._thin()
        return actions

    def _thin(self) -> None:
        """Drop what sessions before told of events that still wait, once the rounds that may use it are stepped in.

        A server forgets the answers of a session at the next hello; what it had played with them by then comes first.
        """
        if self._thin_after is not None and self.applied >= self._thin_after[0]:
            self._keeping.thin(self._thin_after[1])
            self._thin_after = None

    def _alike(self, message: m.Derivatives, new: Sequence[int]) -> Sequence[int]:
        """Return the first of these derivatives, as many as are stepped along in one call."""
        factors, emptied = message.factors, message.emptied
        for n, (one, other) in enumerate(pairwise(new), 1):
            if (factors and factors[one] != factors[other]) or (emptied is not None and emptied[other]):
                return new[:n]
        return new

    def _adapt(self, message: m.Derivatives, i: int) -> float:
        """Empty the window if every party has since its last step; return what its rate is multiplied by."""
        if message.emptied is not None and message.emptied[i]:
            self.compute.empty_window()
        return message.factors[i] if message.factors else 1.0

    def _step_late(self, message: m.Derivatives, i: int) -> list[Action]:
        """Step along a derivative that goes by an embedding of long ago, with the features that were kept."""
        t, event = message.rounds[i], message.events[i]
        x, factor = self._features(event), self._adapt(message, i)
        actions: list[Action] = []
        if x is None:
            text = f"the features of the event of round {t:,} are not kept any more: it does not step in it"
            actions.append(Note("features gone", text))
        else:
            rounds = np.array([t], np.int32)
            _, pending = self.compute.encode(rounds, x[None])
            self.compute.step(rounds, pending, message.values[i : i + 1], factor)
            self.activations += 1
        self.applied = t
        self._keeping.forget(event)
        self._taken_up.pop(event, None)
        self._are_learnt([(t, event, True)])
        return actions

    def _make(self, message: m.Derivatives, lacking: Sequence[int]) -> None:
        """Make again what is not kept, of those that belong to today's parameters."""
        for i in lacking if message.events else ():
            if self._keeping.pending(message, i, self._epoch) is None:
                t, event = message.rounds[i], message.events[i]
                x = self._features(event)
                if x is not None and self._samples.catch_up(t):
                    _, pending = self.compute.encode(np.array([t], np.int32), x[None])
                    self._samples.push(t, event)
                    self._keeping.hold(t, event, self._epoch, {self.applied: pending[0]})

    def _void(self, message: m.Void) -> list[Action]:
        known = self._keeping.void(message, self._epoch)
        for each in known.items():  # it never steps in them, and no checkpoint would let go of them
            self._learnt[True].pop(each, None)
        for event in message.events:
            self._taken_up.pop(event, None)
        self._inputs.drop({*message.events, *known.values()})
        return []

    def _end(self, message: m.End) -> list[Action]:
        if self.applied != message.before:
            return self.hello()
        self.over = message.reason
        return []

    def _bye(self, message: m.Bye) -> list[Action]:
        """Return the server waits for the client no longer: at the end, that was all."""
        return [] if self.over is None else [Stop(self.over)]

    # -- checkpoints --------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint."""
        pending, kept = self._keeping.state(self.applied)
        values = {
            "schema": self.schema,
            "applied": self.applied,
            "rounds": self.compute.rounds,
            "remembered": self._samples.newest,
            **kept,
        }
        return self.compute.arrays(dict(enumerate(pending))), values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`, before the first hello.

        Raises:
            ValueError: where they are those of another model or update, or of other features.
        """
        there = values["schema"]
        if there and self.schema and there != self.schema:
            raise ValueError(f"the schema of the features is {there} there and {self.schema} here")
        pending = self.compute.restore(arrays, values["rounds"])
        self.applied = self.safe = values["applied"]
        self._samples.newest = values["remembered"]
        self._keeping.restore(pending, values)


_HANDLERS: dict[type[m.Message], Callable[[ClientConversation, Any], list[Action]]] = {
    m.Welcome: ClientConversation._welcome,
    m.Refused: ClientConversation._refused,
    m.Recall: ClientConversation._recall,
    m.Derivatives: ClientConversation._derivatives,
    m.Void: ClientConversation._void,
    m.Advance: ClientConversation._advance,
    m.End: ClientConversation._end,
    m.Bye: ClientConversation._bye,
}
"""What is done about each kind of message of the server."""
