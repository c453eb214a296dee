"""What the server asks without a round: predictions that change nothing, of events whose labels come late or never.

A question is open from the moment that it is asked until all clients have replied or are replaced; then the top model
predicts at its parameters of that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Predicted, Send
from anabranch.protocol.server.client_session import Seat
from anabranch.protocol.server.missing import HOPELESS, SKIPPED, Stand, Wait, unknown
from anabranch.protocol.server.pending_rounds import runs, touches
from anabranch.protocol.server.training import Training


class _Reply(NamedTuple):
    """What a client sent for a question."""

    steps: int
    """How many derivatives were in the parameters."""
    activated: bool
    values: NDArray[Any]


@dataclass
class _Question:
    """An event that a prediction is wanted for."""

    asked: int
    event: bytes
    number: int
    """Of the event, where a round will follow once its label is there; else `NONE`."""
    stored: bool
    rounds: int
    """How many were played when it was asked."""
    deadline: float
    activated: NDArray[np.bool_] | None
    """(M,) where the server decides."""
    replies: dict[int, _Reply] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Who has no features for the event, or sent something that cannot be used."""
    hopeless: set[int] = field(default_factory=set)
    """Who of these has values of the event that cannot be used: nobody waits for them."""
    unheard: set[int] = field(default_factory=set)
    """Who was asked again since, and has not said anything of this event."""
    again: set[int] = field(default_factory=set)
    """Who was asked again since a deadline passed, having replied with parameters that are too old."""
    overdue: bool = False

    @property
    def learns(self) -> bool:
        """Whether a round will follow."""
        return self.number != m.NONE


class Questions:
    """The questions that are open.

    Args:
        training: the server's parameters.
        seats: of the clients, in order.
        epoch: of the server.
        in_flight: how many rounds may be open at a time.
        deadline: seconds after which a client that has not replied is replaced, or asked again.
        send_again: the derivatives that a client lacks, having those up to a round.
    """

    def __init__(
        self,
        training: Training,
        seats: Sequence[Seat],
        epoch: int,
        in_flight: int,
        deadline: float,
        send_again: Callable[[int, Seat, int, float], list[Action]],
    ) -> None:
        self._training, self._seats = training, seats
        self._epoch, self._in_flight, self._deadline = epoch, in_flight, deadline
        self._send_again = send_again
        self.patient = False
        """Whether a client that has not replied is always waited for, where rounds will follow."""
        self._open: dict[int, _Question] = {}
        self._next = 0

    @property
    def asked(self) -> int:
        """How many were asked: the number of the next."""
        return self._next

    @property
    def learning(self) -> int:
        """How many of those are open that rounds will follow."""
        return sum(each.learns for each in self._open.values())

    def ask(
        self,
        events: Sequence[bytes],
        now: float,
        *,
        first: int = m.NONE,
        stored: bool = False,
        activated: NDArray[np.bool_] | None = None,
    ) -> list[Action]:
        """Ask all clients.

        Args:
            first: the number of the first event, where rounds will follow once the labels are there.
            stored: whether those rounds will go by the embeddings that are sent now.
            activated: (n, M) where the server decides who is activated; else each client decides.
        """
        begin = self._next
        for i, event in enumerate(events):
            chosen = None if activated is None else activated[i]
            number = m.NONE if first == m.NONE else first + i
            rounds, deadline = self._training.rounds, now + self._deadline
            each = _Question(begin + i, event, number, stored, rounds, deadline, chosen)
            if not each.learns:  # nobody who is away is waited for
                each.unknown = {client for client, seat in enumerate(self._seats, 1) if not seat.present}
            self._open[each.asked] = each
        self._next += len(events)
        ask = m.Ask(self._epoch, begin, first, stored, tuple(events), activated)
        return [Send(ask), *self._conclude(list(self._open.values())[-len(events) :])]

    def hello(self, client: int) -> list[Action]:
        """Return a client that has begun a session is asked what it has not replied to."""
        lacking = [each for each in self._open.values() if client not in each.replies]
        for each in lacking:
            each.unknown.discard(client)
            each.hopeless.discard(client)
        return self._ask(client, lacking)

    def hopeless(self, client: int, events: Collection[bytes]) -> list[Action]:
        """A client has values of these events that cannot be used."""
        lacking = [each for each in self._open.values() if each.event in events and client not in each.replies]
        new = sum(client not in each.hopeless for each in lacking if each.learns)
        for each in lacking:
            each.unknown.add(client)
            each.hopeless.add(client)
            each.unheard.discard(client)
        note = [Note("unknown", f"client {client}: {HOPELESS}", client, new)] if new else []
        return [*note, *self._conclude(lacking)]

    def reply(self, client: int, seat: Seat, reply: m.Reply, now: float) -> list[Action]:
        """Return a client's reply to some questions."""
        n = len(reply.asked)
        width = (n, seat.expected.width)
        problem = ""
        if n:
            problem = seat.unusable(reply.values, width, reply.activated)
        if reply.applied > seat.before:
            problem = f"its parameters have a derivative of round {reply.applied:,}, which it was never sent"
        if not problem:
            seat.forget(min(reply.safe, reply.applied, seat.before))
        if n and not problem and seat.full:
            known = [(self._open.get(asked), flag) for asked, flag in zip(reply.asked, reply.activated, strict=True)]
            if any(each is not None and each.learns and touches(each, client, bool(flag)) for each, flag in known):
                problem = seat.full
        wrong = [*reply.unknown, *(reply.asked if problem else ())]
        actions: list[Action] = []
        if problem:
            actions.append(Note("unusable", f"client {client}: {problem}", client))
        if reply.unknown:
            lacking = [self._open[each] for each in reply.unknown if each in self._open]
            new = sum(
                client not in each.unknown for each in lacking if each.learns
            )  # it says so as often as it is asked
            if new:
                actions.append(Note("unknown", f"client {client}: {unknown(seat.expected.missing)}", client, new))
            if not any(each.learns for each in lacking):
                text = f"client {client} was asked for a prediction, and has no features for its event"
                actions.append(Note("unknown question", text, client))
        seat.present = True
        stale: list[_Question] = []
        touched: dict[int, _Question] = {}
        for i, asked in enumerate(reply.asked if not problem else ()):
            each = self._open.get(asked)
            if each is None or client in each.replies:
                continue
            if each.learns and seat.stale(reply.applied, each.rounds, self._in_flight):
                stale.append(each)
                continue
            activated = bool(reply.activated[i])
            each.replies[client] = _Reply(seat.steps(reply.applied), activated, reply.values[i])
            each.unknown.discard(client)
            touched[asked] = each
        for asked in wrong:
            each = self._open.get(asked)
            if each is not None and client not in each.replies:
                each.unknown.add(client)
                each.unheard.discard(client)
                touched[asked] = each
        if stale:
            text = f"client {client} replied with parameters of round {reply.applied:,}: a derivative was lost"
            actions += [Note("stale", text, client), *self._send_again(client, seat, reply.applied, now)]
            anew = [each for each in stale if client not in each.again]
            for each in anew:
                each.again.add(client)
            actions += self._ask(client, anew)
        return actions + self._conclude([*touched.values()])

    def unknowing(self) -> set[int]:
        """Return the clients that do not know an event that rounds will follow of, since its deadline at least."""
        late = [each for each in self._open.values() if each.learns and each.overdue]
        return {client for each in late for client in each.unknown if self._seats[client - 1].present}

    def due(self) -> float:
        """When `tick` has something to do."""
        return min((each.deadline for each in self._open.values()), default=math.inf)

    def tick(self, now: float) -> list[Action]:
        """Deal with what is missing after its deadline."""
        late = [each for each in self._open.values() if each.deadline <= now]
        actions: list[Action] = []
        for client, seat in enumerate(self._seats, 1):
            # Nobody's question says that a client is away: only rounds, and what rounds will follow, ask it again.
            lacking = [each for each in late if client not in each.replies and each.learns]
            if not lacking:
                continue
            if seat.present and any(client not in each.unknown or client in each.unheard for each in lacking):
                text = f"client {client} has not replied for a prediction in {self._deadline:g} s"
                actions.append(Note("missed", text, client, len(lacking)))
                seat.present = False
            for each in lacking:
                each.unheard.add(client)
            actions += self._ask(client, lacking)
        for each in late:
            each.deadline, each.overdue = now + self._deadline, True
            each.again.clear()
        return actions + self._conclude(late)

    def _ask(self, client: int, questions: Iterable[_Question]) -> list[Action]:
        """Ask one client for questions of which it may know nothing, those that follow one another together."""
        return [
            Send(m.Ask(self._epoch, run[0].asked, run[0].number, run[0].stored, events, chosen), client)
            for run, events, chosen in runs(questions, _follows)
        ]

    def _stand(self, each: _Question, client: int, seat: Seat) -> Stand | None:
        """What stands in for a client that has not replied; None while it is waited for."""
        if client not in each.unknown:
            waited_for = seat.present if each.learns else not each.overdue
            if each.learns and not any(other.present for other in self._seats):
                waited_for = not each.overdue  # all are away: else the events would be gone before one is back
            if waited_for or (each.learns and self.patient):
                return None
        if isinstance(seat.expected.missing, Wait):
            return None if each.learns and client not in each.hopeless else SKIPPED
        return seat.history.stand(seat.expected.missing, self._training.rounds)

    def _conclude(self, questions: Sequence[_Question]) -> list[Action]:
        """Predict for those that nothing is lacking for any more, in their order."""
        done: list[tuple[_Question, list[Stand]]] = []
        for each in sorted(questions, key=lambda each: each.asked):
            stands = []
            for client, seat in enumerate(self._seats, 1):
                reply = each.replies.get(client)
                stand = self._stand(each, client, seat) if reply is None else Stand(0, reply.values)
                if stand is None:
                    break
                stands.append(stand)
            if len(stands) == len(self._seats) and self._open.pop(each.asked, None) is not None:
                done.append((each, stands))
        actions: list[Action] = []
        looks = self._training.compute.looks
        for start in range(0, len(done), looks):
            actions += self._predict(done[start : start + looks])
        return actions

    def _predict(self, done: Sequence[tuple[_Question, list[Stand]]]) -> list[Action]:
        whole = [i for i, (_, stands) in enumerate(done) if all(stand.values is not None for stand in stands)]
        found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        if whole:
            rows = np.stack([np.concatenate([s.values for s in done[i][1] if s.values is not None]) for i in whole])
            logits = self._training.compute.predict(rows)
            found = {i: (logits[place], rows[place]) for place, i in enumerate(whole)}
        actions: list[Action] = []
        for i, (each, stands) in enumerate(done):
            logits_of, row = found.get(i, (None, None))
            replies = [each.replies.get(client) for client in range(1, len(self._seats) + 1)]
            said = np.array([reply is not None and reply.activated for reply in replies])
            if each.activated is not None:
                said = each.activated & np.array([reply is not None for reply in replies])
            actions.append(
                Predicted(
                    asked=each.asked,
                    event=each.event,
                    number=each.number,
                    round=self._training.rounds,
                    logits=logits_of,
                    embeddings=row,
                    activated=said,
                    missing=tuple(stand.how for stand in stands),
                    steps=tuple(0 if reply is None else reply.steps for reply in replies),
                )
            )
        return actions


def _follows(one: _Question, other: _Question) -> bool:
    """Return whether both can be asked in one message, one after the other."""
    number = one.number + 1 if one.learns else m.NONE
    return (other.asked, other.number, other.stored) == (one.asked + 1, number, one.stored)
