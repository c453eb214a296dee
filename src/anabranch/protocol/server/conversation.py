"""The server's side of the conversation, without I/O: messages and the time go in, actions come out.

A round is *open* from the query until all clients have answered or are replaced; then it is played: `ServerCompute`
predicts and steps, the record goes to the log, and the activated clients get their derivatives. Rounds are opened up
to ``in_flight`` at a time, and played in their order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party_programs import ServerCompute
from anabranch.errors import ConfigError
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Played, Send, Stop
from anabranch.protocol.server.client_session import Expected, Seat
from anabranch.protocol.server.missing import HOPELESS, SKIPPED, Stand, Wait, unknown
from anabranch.protocol.server.pending_predictions import Questions
from anabranch.protocol.server.pending_rounds import Answer, Arrival, Late, Open, runs, touches
from anabranch.protocol.server.training import Training
from anabranch.protocol.terms import Terms, difference
from anabranch.simulation.drift_detection import Watch

PIECE = 2**19
"""Bytes, about, of the derivatives in a message that sends them again."""
AGAIN = 1.0
"""Seconds after which the same derivatives are sent once more, to whom asks for them in a new session or with an answer
that lacks them; half the deadline, where that is shorter."""
FORGOTTEN = 10_000
"""So many events are forgotten, or recalled, in one message."""
REMEMBERED = 10_000
"""So many events of the last rounds are remembered, so that one that comes late opens no second round; and as many wait
for their rounds of each client that tells of them."""
FULL = 10.0
"""Seconds between two requests to tell again of what was refused, of a client for which no more is kept."""
OVERTAKEN = 2500
"""An event that a client told of more than so many before one that has its round now is forgotten. They are half of
what may wait before a client listens for no more: else it would, for want of labels."""


class ServerConversation:
    """Runs the rounds of a federation.

    Args:
        terms: what all parties must agree on.
        expected: of each client.
        compute: the server's parameters, moved on here and nowhere else.
        in_flight: how many rounds may be open at a time. With 1 the parameters are the simulator's to the bit.
        deadline: seconds after which a client that has not answered is replaced, or asked again.
        coalesce: seconds for which an event that a client tells of waits for the others that it touched too, before a
            round begins with it; where it is infinite, rounds begin with the server's own events alone.
        by_data: whether clients announce their events up to the time that `advance` says, in the order of the data.
            A client that is slow is then always waited for.
        epoch: a number that no earlier server of this federation had.
        watch: where drift is noticed.

    Raises:
        ConfigError: where these do not go together.
    """

    def __init__(
        self,
        terms: Terms,
        expected: Sequence[Expected],
        compute: ServerCompute,
        *,
        in_flight: int = 1,
        deadline: float = 1.0,
        coalesce: float = math.inf,
        by_data: bool = False,
        epoch: int,
        watch: Watch | None = None,
    ) -> None:
        rows = compute.rule.update.rows
        if rows is not None and (in_flight > 1 or any(not isinstance(each.missing, Wait) for each in expected)):
            raise ConfigError(
                "SLR evaluates a window of the last samples in every round, so all parties must hold the same ones: "
                "it needs in_flight = 1 and missing = 'wait' for every client"
            )
        self.terms, self.in_flight = terms, in_flight
        self.seats = [Seat(each, compute.rule.wire, rows) for each in expected]
        self.training = Training(compute, self.seats, remembered=REMEMBERED + in_flight, watch=watch)
        self.questions = Questions(self.training, self.seats, epoch, in_flight, deadline, self._send_again_soon)
        """Predictions that change nothing."""
        self.questions.patient = self._by_data = by_data
        self._deadline, self._coalesce, self._epoch = deadline, coalesce, epoch
        self._open: deque[Open] = deque()
        self._arrivals: dict[bytes, Arrival] = {}
        self._ended: str | None = None
        self._end_again = math.inf
        """When clients that have not left are told again that no round follows."""
        self._call_again = -math.inf
        """When clients that have to say hello are called again; -inf before the first look at the clock."""

    # -- what the carrier asks and tells ------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many were played."""
        return self.training.rounds

    @property
    def compute(self) -> ServerCompute:
        """The server's parameters."""
        return self.training.compute

    @property
    def opened(self) -> int:
        """How many were opened; the number of the next."""
        return self.rounds + len(self._open)

    @property
    def room(self) -> int:
        """How many rounds may be opened now: none before every client whose policy is to wait has come.

        Events that are only predicted yet, since their labels come late, take as much room.
        """
        if self._ended is not None or self.awaited():
            return 0
        return min(self.in_flight - len(self._open) - self.questions.learning, m.LAST + 1 - self.opened)

    @property
    def full(self) -> bool:
        """Whether no further round has a number."""
        return self.opened > m.LAST

    def awaited(self) -> list[int]:
        """Return the clients that no round can do without, and that are not here.

        Those that have left for good only once something is lacking of them.
        """
        away = [
            (client, seat)
            for client, seat in enumerate(self.seats, 1)
            if not seat.present and (self._by_data or isinstance(seat.expected.missing, Wait))
        ]
        return [client for client, seat in away if not seat.ended or self._open or self.questions.learning]

    def unknowing(self) -> list[int]:
        """Return the clients that are here and waited for, since they do not know an event that has to go on."""
        oldest = self._open[0].unknown if self._open and self._open[0].overdue else ()
        waited = {*oldest, *self.questions.unknowing()}
        seats = {client: self.seats[client - 1] for client in sorted(waited)}
        return [i for i, seat in seats.items() if seat.present and isinstance(seat.expected.missing, Wait)]

    def lacking(self) -> list[int]:
        """Return the clients whose answer the oldest open round lacks."""
        return [] if not self._open else [i for i in range(1, len(self.seats) + 1) if i not in self._open[0].answers]

    def _opened(self, t: int) -> Open | None:
        """Return the round of this number, where it is open."""
        return self._open[t - self.rounds] if 0 <= t - self.rounds < len(self._open) else None

    def begin(self, client: int | None = None) -> list[Action]:
        """Tell the clients, or one, that there is a server: they were there first, or what they sent was lost."""
        return [Send(m.Call(self._epoch, 0), client)]

    def missed_of(self, client: int) -> None:
        """Something that a client sent was lost here: it is to tell once more of the events that have no round yet."""
        if 1 <= client <= len(self.seats):
            self.seats[client - 1].missed = True

    def _advance_again(self, now: float) -> list[Action]:
        """Return the message, or its answer, may be lost."""
        late = [(i, seat) for i, seat in self._here() if seat.advanced + self._deadline <= now]
        return [action for client, seat in late for action in self._advance(client, seat, now)]

    def _call_for_missed(self, now: float) -> list[Action]:
        """Now and then, since what is told again may be too much again."""
        actions: list[Action] = []
        for client, seat in self._here():
            if seat.missed and self._called_again(seat) <= now:
                seat.missed, seat.called = False, now
                actions += self.begin(client)
        return actions

    def _called_again(self, seat: Seat) -> float:
        """When a client may be asked to tell of all again; where there is no room for it, it has to save first."""
        return seat.called + (FULL if seat.full else self._pause)

    def open(
        self,
        events: Sequence[bytes],
        labels: Sequence[int],
        now: float,
        activated: NDArray[np.bool_] | None = None,
        late: Sequence[Late] | None = None,
    ) -> list[Action]:
        """Open a round for each event, at most as many as there is `room` for.

        Args:
            activated: (n, M) where the server decides who is activated; else each client decides.
            late: of each event, where their labels have come later; all of them with what is stored, or none.
        """
        first = self.opened
        asked = self._forget_overtaken(events) if late is None and math.isinf(self._coalesce) else []
        for i, (event, label) in enumerate(zip(events, labels, strict=True)):
            chosen = None if activated is None else activated[i]
            each = Open(first + i, event, label, now + self._deadline, chosen, None if late is None else late[i])
            arrival = self._take(event)
            for client, answer in (arrival.answers if arrival else {}).items():
                if self._takes_announced(each, client, answer):
                    each.answers[client] = answer
                else:
                    asked += self._ask(client, [each])
            self._open.append(each)
            self.training.remember(event, each.t)
        if late is not None and late[0].stored is not None:
            return self._play(now)
        query = m.Query(self._epoch, first, tuple(events), activated)
        return [Send(query), *asked, *self._play(now)]

    def _takes_announced(self, each: Open, client: int, answer: Answer) -> bool:
        """Return whether an announced embedding may be the client's answer for a round.

        It never is if the label came late: the client lets go of what it announced when it is asked for a prediction.
        """
        return each.late is None and not self.seats[client - 1].stale(answer.applied, each.t, self.in_flight)

    def take_up(self, event: bytes) -> None:
        """An event that clients have told of is predicted now: each of them is asked, and replies with its own."""
        self._take(event)

    @property
    def announced(self) -> list[bytes]:
        """The events that clients have announced and that wait: those of the first client in its order, and so on."""
        return [*dict.fromkeys(event for seat in self.seats for event in seat.told)]

    @property
    def tells(self) -> int:
        """How often clients have announced an event that did not wait then."""
        return sum(seat.tells for seat in self.seats)

    @property
    def holds_events(self) -> bool:
        """Whether clients have announced events that wait."""
        return bool(self._arrivals)

    def announcers(self, event: bytes) -> list[int]:
        """Return the clients that have announced an event that waits for its round."""
        return [client for client, seat in enumerate(self.seats, 1) if event in seat.told]

    def announcing(self) -> list[int]:
        """Return the clients that may announce events yet."""
        return [client for client, seat in enumerate(self.seats, 1) if seat.upcoming != m.NEVER]

    def _take(self, event: bytes) -> Arrival | None:
        """What clients have told of an event, which waits no longer; None where none has."""
        if event not in self._arrivals:
            return None
        for seat in self.seats:
            seat.told.pop(event, None)
        return self._arrivals.pop(event)

    def known(self, event: bytes, number: int | None, *, stored: bool) -> list[Action]:
        """Return an event that clients have told of waits for its label already; or has its round behind it.

        Args:
            number: of the event; None where it waits no longer.
            stored: whether its round will go by the embeddings that were sent.
        """
        arrival = self._take(event)
        clients = () if arrival is None else arrival.answers
        if number is None:
            return [self._void(client, events=(event,)) for client in clients]
        return [Send(m.Ask(self._epoch, m.NONE, number, stored, (event,), None), client) for client in clients]

    def forget(self, events: Sequence[bytes]) -> list[Action]:
        """No round will be opened for events that were predicted: the clients need not keep their features."""
        pieces = [tuple(events[i : i + FORGOTTEN]) for i in range(0, len(events), FORGOTTEN)]
        return [self._void(client, events=piece) for client, _ in self._here() for piece in pieces]

    def _here(self) -> list[tuple[int, Seat]]:
        """Return the clients that have said hello to this process."""
        return [(client, seat) for client, seat in enumerate(self.seats, 1) if seat.session is not None]

    def arrived(self, now: float, most: int | None = None) -> list[bytes]:
        """Return the first events that clients have told of and that wait for no other client any longer."""
        waits_no_longer = takewhile(lambda told: told[1].due <= now, self._arrivals.items())  # all wait equally long
        return [event for event, _ in islice(waits_no_longer, most)]

    @property
    def waiting(self) -> bool:
        """Whether there are events that clients have told of, and that a round will begin with."""
        return bool(self._arrivals) and math.isfinite(self._coalesce)

    @property
    def unopened(self) -> int:
        """How many events that clients have announced wait for a round or a prediction."""
        return len(self._arrivals)

    def discard(self, event: bytes) -> list[Action]:
        """No round will be opened for an event that clients have told of."""
        return self._drop(event, "no label is known for an event that clients told of: it opens no round")

    def _drop(self, event: bytes, why: str) -> list[Action]:
        """Forget an event that clients have told of, and has them forget it."""
        told = [client for client, seat in enumerate(self.seats, 1) if seat.waits_for(event)]
        self._take(event)
        return [Note("event dropped", why), *(self._void(client, events=(event,)) for client in told)]

    def _forget_oldest(self, client: int, seat: Seat, n: int, why: str, but: Collection[bytes] = ()) -> list[Action]:
        """Forget the first events that a client has told of, and has it forget them; not those that others told of."""
        events = [event for event in islice(seat.told, max(n, 0)) if event not in but]
        waited_for = tuple(event for event in events if seat.waits_for(event))
        for event in events:
            del seat.told[event]
            self._arrivals[event].answers.pop(client, None)
            if not any(event in other.told for other in self.seats):
                del self._arrivals[event]
        if not events:
            return []
        void = [self._void(client, events=waited_for)] if waited_for else []
        return [Note("event dropped", why, client, len(events)), *void]

    def _forget_overtaken(self, events: Sequence[bytes]) -> list[Action]:
        """Forget what clients have told of long before events that have their rounds now: no label of it comes.

        Else a client many of whose events have no label would soon have told of as many as may wait. Where rounds begin
        with what clients tell of, each such event has its label, or is discarded.
        """
        actions: list[Action] = []
        for client, seat in enumerate(self.seats, 1):
            until = max((seat.told[event].number for event in events if event in seat.told), default=0) - OVERTAKEN
            if until <= 0:
                continue
            overtaken = len([*takewhile(until.__gt__, (told.number for told in seat.told.values()))])
            text = f"client {client} told of events over {OVERTAKEN:,} before one that has its round: no label came"
            actions += self._forget_oldest(client, seat, overtaken, text, but=frozenset(events))
        return actions

    def _void(self, client: int, rounds: m.Rounds = (), events: m.Events = ()) -> Send:
        return Send(m.Void(self.seats[client - 1].session or 0, rounds, events), client)

    def due(self, *, opens: bool = True) -> float:
        """When `tick` or `arrived` has something to say next; an event that there is no `room` for has time.

        So it has where no round is opened for the moment, for whatever reason.
        """
        deadlines = [each.deadline for each in self._open] if self._ended is None else []
        calls = [self._call_again] if any(seat.called_for for seat in self.seats) else []
        first = next(iter(self._arrivals.values()), None) if opens else None  # the others are due later
        arrivals = [first.due] if first is not None and self.room else []
        owed = [seat.sent_again + self._pause for seat in self.seats if seat.owed]
        owed += [seat.advanced + self._deadline for seat in self.seats]
        owed += [self._called_again(seat) for seat in self.seats if seat.missed and seat.session is not None]
        return min([*deadlines, *calls, *arrivals, *owed, self._end_again, self.questions.due()])

    def tick(self, now: float) -> list[Action]:
        """Deal with what is missing after its deadline."""
        actions = [
            *self._call(now),
            *self._call_for_missed(now),
            *self._advance_again(now),
            *self._send_owed(now),
            *self.questions.tick(now),
        ]
        if self._ended is not None:
            return [*actions, *(self.end(self._ended, now) if self._end_again <= now else [])]
        late: dict[int, list[Open]] = {}
        for each in self._open:
            if each.deadline <= now:
                each.deadline, each.overdue = now + self._deadline, True
                each.again.clear()
                for client in range(1, len(self.seats) + 1):
                    if client not in each.answers:
                        late.setdefault(client, []).append(each)
        for client, rounds in late.items():
            seat = self.seats[client - 1]
            silent = [each for each in rounds if client not in each.unknown or client in each.unheard]
            if silent and seat.present:
                text = f"client {client} has not answered for round {silent[0].t:,} in {self._deadline:g} s"
                actions.append(Note("missed", text, client, len(silent)))
                seat.present = False
            for each in rounds:
                each.unheard.add(client)
            actions += self._ask(client, rounds)
        return actions + self._play(now)

    def _send_owed(self, now: float) -> list[Action]:
        due = [(i, seat) for i, seat in self._here() if seat.owed and seat.sent_again + self._pause <= now]
        return [each for client, seat in due for each in self._catch_up(client, seat, now)]

    def end(self, reason: str, now: float) -> list[Action]:
        """Tell every client that no round follows; those that have all their derivatives say goodbye."""
        self._ended, self._end_again = reason, now + self._deadline
        # Whoever is owed something is told with it: without it, it would say hello and be owed it once more.
        told = [Send(self._end(seat), client) for client, seat in self._here() if not (seat.ended or seat.owed)]
        return [*told, *([Stop(reason)] if self.done else [])]

    @property
    def ended(self) -> bool:
        """Whether the end was told."""
        return self._ended is not None

    def lingering(self, *, needed: bool = False) -> list[int]:
        """Return the clients that have not left since the end; where ``needed``, those that no round can do without."""
        return [
            client
            for client, seat in enumerate(self.seats, 1)
            if not seat.ended and not (needed and not isinstance(seat.expected.missing, Wait))
        ]

    @property
    def done(self) -> bool:
        """Whether the end was told and every client has left."""
        return self.ended and not self.lingering()

    def receive(self, client: int, message: m.Message, now: float) -> list[Action]:
        """What to do about a message of client ``client`` (from 1)."""
        seat = self.seats[client - 1]
        if isinstance(message, m.Hello):
            # One that comes twice says nothing new, and may say it too late.
            return [] if message.session == seat.session else self._hello(client, seat, message, now)
        handler = _HANDLERS.get(type(message))
        if handler is None:
            return [Note("unexpected", f"client {client} sent {type(message).__name__}, which no client does", client)]
        if seat.session is None:
            return [Send(m.Call(self._epoch, 0), client)]
        if message.session != seat.session:  # type: ignore[attr-defined]
            text = f"client {client} sent {type(message).__name__} of an old session"
            return [Note("old session", text, client), Send(m.Call(self._epoch, seat.session), client)]
        return handler(self, client, seat, message, now)

    # -- what clients say ---------------------------------------------------------------------------------------

    def _hello(self, client: int, seat: Seat, hello: m.Hello, now: float) -> list[Action]:
        wrong = self.terms.differences(hello.terms)
        if hello.client != client:
            wrong.append(difference("client", client, hello.client))
        if hello.width != seat.expected.width:
            wrong.append(difference("embedding width", seat.expected.width, hello.width))
        if seat.expected.schema and hello.schema != seat.expected.schema:
            wrong.append(difference("feature schema", seat.expected.schema, hello.schema))
        if not wrong and seat.chain(hello.applied) != hello.applied:
            wrong.append(
                f"the client's parameters have the derivatives up to round {hello.applied}, but the server has sent "
                f"them up to round {seat.before} and still keeps those after round {seat.safe}: the client's folder "
                "and the server's are not of the same training (one of them is older, new, or another's)"
            )
        if wrong:
            reason = "; ".join(wrong)
            return [
                Send(m.Refused(hello.session, reason), client),
                Note("refused", f"client {client} was refused: {reason}", client),
            ]
        seat.session, seat.applied, seat.present, seat.ended = hello.session, hello.applied, True, False
        seat.left = False
        seat.announced, seat.upcoming = 0, None
        for each in self._open:  # what it sent before may belong to parameters that are lost
            each.answers.pop(client, None)
            each.unknown.discard(client)
            each.hopeless.discard(client)
            if client not in each.begun:
                each.begun.add(client)
                each.deadline = now + self._deadline
        for arrival in self._arrivals.values():
            arrival.answers.pop(client, None)
        welcome = m.Welcome(
            hello.session, self._epoch, self.terms, seat.expected.width, seat.expected.schema, self.rounds
        )
        note = Note("joined", f"client {client} is here", client)
        goes_on = self._advance(client, seat, now) if self._by_data else []
        return [Send(welcome, client), note, *goes_on, *self._catch_up(client, seat, now)]

    def _catch_up(self, client: int, seat: Seat, now: float) -> list[Action]:
        """Send what a client lacks that has said hello, and ask it then; unless the last time was just now."""
        recall = self.training.recall(seat, seat.applied)
        seat.owed = bool(recall or seat.after(seat.applied)) and seat.sent_again + self._pause > now
        if seat.owed:
            return []
        actions: list[Action] = []
        for i in range(0, len(recall), FORGOTTEN):
            first = self.rounds - len(recall) + i
            actions.append(Send(m.Recall(seat.session or 0, first, recall[i : i + FORGOTTEN]), client))
            seat.sent_again = now
        actions += self._send_again(client, seat, seat.applied, now)
        actions += self._ask(client, [each for each in self._open if client not in each.answers])
        actions += self.questions.hello(client)
        if self._ended is not None:
            actions.append(Send(self._end(seat), client))
        return actions

    def _embeddings(self, client: int, seat: Seat, message: m.Embeddings, now: float) -> list[Action]:
        problem = seat.problem(message.values, len(message.rounds), message.activated)
        if message.applied > seat.before:
            problem = f"its parameters have a derivative of round {message.applied:,}, which it was never sent"
        if problem:
            return self._unusable(client, message.rounds, problem, now)
        seat.forget(min(message.safe, message.applied, seat.before))
        if seat.full:
            known = [(self._opened(t), flag) for t, flag in zip(message.rounds, message.activated, strict=True)]
            if any(each is not None and touches(each, client, bool(flag)) for each, flag in known):
                return self._unusable(client, message.rounds, seat.full, now)
        void: dict[int, None] = {}
        asked: dict[int, Open] = {}
        odd: dict[str, list[int]] = {}  # one note for all rounds of a message, which may name very many
        for i, t in enumerate(message.rounds):
            place = t - self.rounds
            if place >= len(self._open):
                odd.setdefault("no such round", []).append(t)
            elif place < 0:
                odd.setdefault("late", []).append(t)
                if message.activated[i] and t not in seat.outbox:
                    void[t] = None
            elif client in self._open[place].answers:
                odd.setdefault("twice", []).append(t)
            elif seat.stale(message.applied, t, self.in_flight):
                asked[t] = self._open[place]
            else:
                activated = bool(message.activated[i])
                self._open[place].answers[client] = Answer(message.applied, activated, message.values[i])
                self._open[place].unknown.discard(client)
        seat.present = True
        actions: list[Action] = [
            Note(what, f"client {client} answered round {rounds[0]:,}{_ODD[what]}", client, len(rounds))
            for what, rounds in odd.items()
        ]
        if asked:
            text = f"client {client} answered with parameters of round {message.applied:,}: a derivative was lost"
            actions.append(Note("stale", text, client))
            actions += self._send_again_soon(client, seat, message.applied, now)
            anew = [each for each in asked.values() if client not in each.again]
            for each in anew:
                each.again.add(client)
            actions += self._ask(client, anew)
        if void:
            actions.append(self._void(client, tuple(void)))
        return actions + self._play(now)

    def _reply(self, client: int, seat: Seat, message: m.Reply, now: float) -> list[Action]:
        return self.questions.reply(client, seat, message, now)

    def _unknown(self, client: int, seat: Seat, message: m.Unknown, now: float) -> list[Action]:
        seat.present = True
        return self._unusable(client, message.rounds, unknown(seat.expected.missing), now, "unknown")

    def _upcoming(self, client: int, seat: Seat, message: m.Upcoming, now: float) -> list[Action]:
        seat.advanced = math.inf
        if message.told != seat.announced:  # what was lost is told again
            seat.missed = True
            return []
        seat.upcoming = message.time
        goes_alone = message.time != m.NEVER and not self._by_data
        return [Send(m.Advance(message.session, None), client)] if goes_alone else []

    def _advance(self, client: int, seat: Seat, now: float) -> list[Action]:
        seat.upcoming, seat.advanced = None, now
        granted = m.EARLIEST if seat.granted is None else seat.granted
        return [Send(m.Advance(seat.session or 0, granted), client)]

    @property
    def told_until(self) -> int | None:
        """The time before which clients have announced all their events; None while one of them has not said it."""
        upcoming = [seat.upcoming for seat in self.seats]
        known = [each for each in upcoming if each is not None]
        return min(known) if len(known) == len(upcoming) else None

    def advance(self, until: int, now: float, *, together: bool) -> list[Action]:
        """Let clients announce what comes next in the data.

        Args:
            until: no client goes past this time, unless none has a reading before.
            together: whether all go on up to that time; else a client stays behind the next reading of the others.
        """
        if self.told_until is None:
            return []
        actions: list[Action] = []
        upcoming = [m.NEVER if seat.upcoming is None else seat.upcoming for seat in self.seats]
        for client, seat in enumerate(self.seats, 1):
            others = min([*upcoming[: client - 1], *upcoming[client:]], default=m.NEVER)
            granted = max(min(upcoming), until if together else min(others - 1, until))
            if upcoming[client - 1] <= granted and upcoming[client - 1] != m.NEVER:
                seat.granted = granted if seat.granted is None else max(seat.granted, granted)
                actions += self._advance(client, seat, now)
        return actions

    def _happened(self, client: int, seat: Seat, message: m.Happened, now: float) -> list[Action]:
        seat.announced += 1
        problem = seat.problem(message.embedding[None], 1, np.ones(1, bool))
        if message.applied > seat.before:
            problem = f"its parameters have a derivative of round {message.applied:,}, which it was never sent"
        if problem:
            return [Note("unusable", f"client {client}: {problem}", client)]
        seat.present = True
        seat.forget(min(message.safe, message.applied, seat.before))
        answer = Answer(message.applied, True, message.embedding, told=True)
        t = self.training.round_of(message.event)
        if t is not None and t < self.rounds:
            note = Note("late", f"client {client} told of an event when its round {t:,} was over", client)
            if t not in seat.outbox:
                return [note, self._void(client, events=(message.event,))]
            if message.applied < t:  # the derivative is on its way
                return [note]
            # Not all of its checkpoints have it, so it learns which round that was, and lets go of the event in time.
            return [note, Send(m.Query(self._epoch, t, (message.event,), None), client)]
        if seat.full:
            if t is None:  # it is to tell again, and says then how far it has saved
                seat.announced, seat.missed = seat.announced - 1, True
            return self._unusable(client, () if t is None else (t,), seat.full, now)
        if t is None:
            return self._arrives(client, seat, message.event, answer, now)
        each = self._open[t - self.rounds]
        if client in each.answers:
            return []
        if each.stored is not None:
            return []
        if not self._takes_announced(each, client, answer):
            # It thinks that it has answered, and says nothing to the next query. Where it is owed something, that is
            # to be this one, and not the one that follows what it is owed.
            return self._query(client, [each])
        each.answers[client] = answer
        return self._play(now)

    def _arrives(self, client: int, seat: Seat, event: bytes, answer: Answer, now: float) -> list[Action]:
        """A client has told of an event that has no round yet."""
        before = self.opened + len(self._arrivals)
        self._arrivals.setdefault(event, Arrival(now + self._coalesce, before)).answers[client] = answer
        seat.tell(event)
        text = f"client {client} told of more than {REMEMBERED:,} events that wait: the oldest is forgotten"
        return self._forget_oldest(client, seat, len(seat.told) - REMEMBERED, text)

    def _bye(self, client: int, seat: Seat, message: m.Bye, now: float) -> list[Action]:
        if seat.ended:  # it has said so before
            return []
        seat.present, seat.ended = False, self._ended is not None and message.applied == seat.before
        seat.left = not seat.ended
        note = Note("left", f"client {client} has left: {message.reason}", client)
        return [note, *([Stop(self._ended or "")] if self.done else []), *self._play(now)]

    def _unusable(
        self, client: int, rounds: Sequence[int], problem: str, now: float, what: str = "unusable"
    ) -> list[Action]:
        """Treat a client as missing in these rounds, those of them that are open."""
        lacking = [each for t in rounds if (each := self._opened(t)) is not None and client not in each.answers]
        # A client says of the same rounds again and again that it does not know them, as often as it is asked.
        count = 1
        if what != "unusable":  # a round that was never opened is counted each time
            count = sum(client not in each.unknown for each in lacking) + sum(not 0 <= t < self.opened for t in rounds)
        for each in lacking:
            each.unknown.add(client)
            each.unheard.discard(client)
        note = [Note(what, f"client {client}: {problem}", client, count)] if count else []
        return [*note, *self._play(now)]

    def _hopeless(self, client: int, seat: Seat, message: m.Unusable, now: float) -> list[Action]:
        """Wait for a client no longer in the rounds of these events."""
        seat.present = True
        events = {*message.events}
        rounds = [each for each in self._open if each.event in events and client not in each.answers]
        new = [each for each in rounds if client not in each.hopeless]
        for each in rounds:
            each.unknown.add(client)
            each.hopeless.add(client)
            each.unheard.discard(client)
        actions: list[Action] = []
        if count := sum(each.late is None for each in new):  # the others were noted when the event was predicted
            actions.append(Note("unknown", f"client {client}: {HOPELESS}", client, count))
        if new and self.compute.rule.update.rows is not None:
            text = (
                f"client {client}: {HOPELESS}, and under SLR every client needs every sample: mend its row, or "
                "give the column a missing policy"
            )
            return [*actions, *self.end(text, now), Stop(text, failed=True)]
        return [*actions, *self.questions.hopeless(client, events), *self._play(now)]

    # -- what the server does -----------------------------------------------------------------------------------

    def _call(self, now: float) -> list[Action]:
        """Call those again that have to say hello: they may think that the server from before is still there."""
        if self._call_again > now:
            return []
        first, self._call_again = self._call_again == -math.inf, now + self._deadline
        unheard = [client for client, seat in enumerate(self.seats, 1) if seat.called_for and not first]
        return [Send(m.Call(self._epoch, 0), client) for client in unheard]

    def _ask(self, client: int, rounds: Iterable[Open]) -> list[Action]:
        """Query one client for rounds of which it may know nothing; later, where it is owed what they build on."""
        return [] if self.seats[client - 1].owed else self._query(client, rounds)

    def _query(self, client: int, rounds: Iterable[Open]) -> list[Action]:
        return [
            Send(m.Query(self._epoch, run[0].t, events, chosen), client)
            for run, events, chosen in runs(rounds, lambda one, other: other.t == one.t + 1)
        ]

    @property
    def _pause(self) -> float:
        """Seconds between two times that the same derivatives are sent again; an answer has as long after them."""
        return min(self._deadline / 2, AGAIN)

    def _send_again(self, client: int, seat: Seat, applied: int, now: float) -> list[Action]:
        lacking = seat.after(applied)
        if lacking:
            seat.sent_again = now
        size = max(1, PIECE // (math.prod(seat.shape) * seat.wire.itemsize))
        pieces = [lacking[i : i + size] for i in range(0, len(lacking), size)]
        return [Send(seat.derivatives(piece, named=True), client) for piece in pieces]

    def _send_again_soon(self, client: int, seat: Seat, applied: int, now: float) -> list[Action]:
        """As `_send_again`, unless they are under way, or will be."""
        if seat.owed or seat.sent_again + self._pause > now:
            return []
        return self._send_again(client, seat, applied, now)

    def _end(self, seat: Seat) -> m.End:
        return m.End(seat.session or 0, self.rounds, seat.before, self._ended or "")

    def _replacement(self, each: Open, client: int) -> Stand | None:
        """What stands in for a client that has not answered for a round; None while it is waited for."""
        seat = self.seats[client - 1]
        # Where all are away a round takes its time: else the stream would be gone before one of them is back.
        waited_for = seat.present or not (each.overdue or any(other.present for other in self.seats))
        if (waited_for or self._by_data) and client not in each.unknown:
            return None
        if client in each.hopeless and isinstance(seat.expected.missing, Wait):
            return SKIPPED
        return seat.history.stand(seat.expected.missing, each.t)

    def _stands(self, each: Open) -> list[Stand] | None:
        """What there is of every client for a round; None while something is lacking."""
        if each.stored is not None:
            return each.stored.stands([seat.expected.width for seat in self.seats])
        replaced: dict[int, Stand] = {}
        clients = range(1, len(self.seats) + 1)
        for client in clients if len(each.answers) < len(clients) else ():
            if client not in each.answers:
                stand = self._replacement(each, client)
                if stand is None:
                    return None
                replaced[client] = stand
        return [replaced.get(client) or Stand(0, each.answers[client].values) for client in clients]

    def _play(self, now: float) -> list[Action]:
        """Play the rounds that are complete, in their order."""
        actions: list[Action] = []
        while self._open and self._ended is None:
            ready: list[tuple[Open, list[Stand]]] = []
            while len(ready) < min(len(self._open), self.training.together):
                each = self._open[len(ready)]
                stands = self._stands(each)
                if stands is None:
                    break
                skipped = any(stand.values is None for stand in stands)
                replaced = {
                    client for client, stand in enumerate(stands, 1) if stand.how and client not in each.answers
                }
                # What stands in for an embedding may be made of those that are only now played.
                waits = any(client in before.answers for before, _ in ready for client in replaced)
                if ready and (skipped or waits):
                    break
                ready.append((each, stands))
                if skipped:
                    break
            if not ready:
                break
            records = [each.record(stands, self.compute.rule.wire) for each, stands in ready]
            played, trouble = self.training.play(records)
            over: dict[int, list[Open]] = {}
            told: set[int] = set()
            for i, record in enumerate(records[: len(played.records)]):
                for client in self._open[i].voided(record):
                    if self.seats[client - 1].session is not None:
                        over.setdefault(client, []).append(self._open[i])
                told.update(client for client, answer in self._open[i].answers.items() if answer.told)
            for _ in played.records:
                self._open.popleft()
            actions.append(played)
            for client, seat in enumerate(self.seats, 1):
                new = seat.after(played.first - 1)
                if new and seat.session is not None and not seat.owed:
                    actions.append(Send(seat.derivatives(new, named=client in told), client))
            for client, rounds in over.items():  # with the events, since a query may not be read yet
                names = tuple(each.event for each in rounds)
                actions.append(self._void(client, tuple(each.t for each in rounds), names))
            if trouble:
                actions += [*self.end(trouble, now), Stop(trouble, failed=True)]
        while self._arrivals and next(iter(self._arrivals.values())).t < self.rounds - REMEMBERED:
            text = f"{REMEMBERED:,} rounds were played since clients told of an event, and none of them was its own"
            actions += self._drop(next(iter(self._arrivals)), text)
        return actions

    # -- what the rounds leave behind -----------------------------------------------------------------------------

    def replay(self, records: Sequence[m.Record]) -> Played:
        """Play rounds of the log again, after the ones that were played; the clients were sent what came of them."""
        return self.training.replay(records)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint: all that the rounds played have left behind."""
        return self.training.state()

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`, before the first round is opened.

        Raises:
            ValueError: where they are those of another model or update.
        """
        self.training.restore(arrays, values)


_ODD = {"no such round": ", which is not open", "late": " when it was over", "twice": " twice"}
"""What is said of answers that are not used."""
_Handler = Callable[[ServerConversation, int, Seat, Any, float], list[Action]]
_HANDLERS: dict[type[m.Message], _Handler] = {
    m.Embeddings: ServerConversation._embeddings,
    m.Unknown: ServerConversation._unknown,
    m.Unusable: ServerConversation._hopeless,
    m.Reply: ServerConversation._reply,
    m.Happened: ServerConversation._happened,
    m.Upcoming: ServerConversation._upcoming,
    m.Bye: ServerConversation._bye,
}
"""What is done about each kind of message of a client that takes part."""
