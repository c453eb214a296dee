"""Parties for the search through all interleavings: the real conversations, numbers that can be checked, a disk.

An embedding is the number of its event and the number of steps in the parameters that made it. The derivative is the
embedding again, so that a step can check that it goes with what the client kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anabranch.core.party import Rule
from anabranch.core.party_programs import Stepped
from anabranch.core.updates import OGD
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Played, Predicted, Send, Stop
from anabranch.protocol.client.conversation import ClientConversation
from anabranch.protocol.client.inputs import InputsInMemory
from anabranch.protocol.server.client_session import Expected
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.pending_rounds import Late, Stored
from anabranch.protocol.terms import Terms

CLIENTS = 2
WIDTH = 2
DEADLINE, COALESCE = 1.0, 0.25
RULE = Rule(OGD(), None, np.dtype(np.float32))
TERMS = Terms("small", CLIENTS, "OGD()", "float32")
SESSIONS, EPOCHS = 1000, 9000
"""Sessions of client 1 begin at 1000, those of client 2 at 2000; epochs at 9000."""
LIVES = 100
"""So many numbers of sessions belong to one process."""


class Wrong(AssertionError):  # noqa: N818 (it reads as what was found)
    """A promise that was broken."""


def check(holds: bool, promise: str) -> None:
    """Raise where a promise does not hold."""
    if not holds:
        raise Wrong(promise)


@dataclass(frozen=True)
class Play:
    """What is gone through."""

    labels: str
    """``"at once"``: rounds begin with the server's samples. ``"told"``: with what clients announce. ``"fresh"`` and
    ``"stored"``: labels come after their events, and rounds go by new embeddings or by those of the event."""
    touched: tuple[tuple[int, ...], ...]
    """The clients that each event activates."""
    in_flight: int = 1
    announced: bool = True
    """Whether clients announce the events that activate them."""
    losses: int = 0
    """So many messages are lost."""
    overtakes: int = 0
    """So many times a message overtakes those of the server's other subject."""
    restarts: int = 0
    """So many times a party dies."""
    saves: int = 0
    """So many times a party saves a checkpoint before the end."""
    hurries: int = 0
    """So many times a deadline passes though messages are under way."""

    @property
    def late(self) -> bool:
        """Whether labels come after their events."""
        return self.labels in ("fresh", "stored")

    def event(self, i: int) -> bytes:
        """The name of event ``i``."""
        return b"%c" % (65 + i)

    def number(self, event: bytes) -> int:
        """The inverse of `event`."""
        return event[0] - 65

    def events(self, client: int) -> list[bytes]:
        """Those that activate a client."""
        return [self.event(i) for i, clients in enumerate(self.touched) if client in clients]


class _Compute:
    def __init__(self, play: Play) -> None:
        self.rule, self.block, self.looks, self.play = RULE, play.in_flight, 2, play
        self.rounds, self.width = 0, WIDTH

    def empty_window(self) -> None:
        raise Wrong("nothing empties a window here")


class _Top(_Compute):
    """In place of `anabranch.core.party_programs.ServerCompute`."""

    def step(self, embeddings: Any, labels: Any, factor: float = 1.0) -> Stepped:
        self.rounds += len(labels)
        return Stepped(np.zeros(len(labels), np.int32), np.array(embeddings), 0)

    def predict(self, embeddings: Any) -> Any:
        return np.zeros((len(embeddings), 2), np.float32)

    def skip(self, label: int) -> None:
        raise Wrong("a round was dropped, though every client is waited for")

    def arrays(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any], rounds: int) -> None:
        self.rounds = rounds


class _Bottom(_Compute):
    """In place of `anabranch.core.party_programs.ClientCompute`."""

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        self.steps: list[tuple[int, int]] = []
        """The rounds that it stepped in, and the numbers of their events."""

    def encode(self, rounds: Any, x: Any) -> tuple[Any, list[Any]]:
        values = self.embed(x)
        return values, [(row.copy(),) for row in values]

    def embed(self, x: Any) -> Any:
        return np.array([(row[0], len(self.steps)) for row in x], np.float32)

    def step(self, rounds: Any, pending: Any, derivatives: Any, factor: float = 1.0) -> None:
        for t, (kept,), derivative in zip(rounds.tolist(), pending, derivatives, strict=True):
            same = kept[0] == derivative[0] and (self.play.labels == "stored" or kept[1] == derivative[1])
            check(same, f"the derivative of round {t} goes with {derivative.tolist()}, and {kept.tolist()} was kept")
            check(t >= self.rounds, f"round {t} was stepped in before")
            self.steps.append((t, int(kept[0])))
            self.rounds = t + 1

    def arrays(self, pending: dict[int, Any] | None = None) -> dict[str, Any]:
        kept = {f"{i}": leaf for i, (leaf,) in (pending or {}).items()}
        return {"steps": np.array(self.steps, np.int64).reshape(-1, 2), **kept}

    def restore(self, arrays: dict[str, Any], rounds: int) -> dict[int, Any]:
        self.rounds = rounds
        self.steps = [(int(t), int(event)) for t, event in arrays["steps"]]
        return {int(name): (leaf,) for name, leaf in arrays.items() if name != "steps"}


class NoneFree(Exception):  # noqa: N818 (it is no error)
    """A session is drawn, and none was given to be drawn."""


class _Sessions:
    """Draws the smallest number that nobody knows any more; it stands for one that nobody ever knew.

    It also stands in for the sessions that a process remembers: those are its own.
    """

    def __init__(self, client: Client, first: int) -> None:
        self.client, self.first = client, first

    def __call__(self) -> int:
        if not self.client.free:
            raise NoneFree
        return self.client.free.pop(0)

    def append(self, session: int) -> None:
        """Nothing: a process knows its own by their numbers."""

    def __contains__(self, session: object) -> bool:
        return isinstance(session, int) and self.first <= session < self.first + LIVES


@dataclass
class _Look:
    play: Play

    def __call__(self, event: bytes) -> Any:
        return np.full(1, self.play.number(event), np.float32)


@dataclass
class _Decide:
    play: Play
    client: int

    def __call__(self, number: int, x: Any) -> bool:
        return self.client in self.play.touched[int(x[0])]


Mail = list[tuple[int, bool, m.Message]]
"""What a party sends: to which client (0 is the server), whether to all together, and the message."""


class Client:
    """A client and its disk."""

    def __init__(self, play: Play, client: int) -> None:
        self.play, self.client, self.life = play, client, 0
        self.inputs = InputsInMemory()
        self.own: dict[bytes, None] = {}
        """On the disk: events of its own that are not safe yet."""
        self.asked: dict[bytes, None] = {}
        """On the disk: those that are."""
        self.happened = 0
        self.saved: list[Any] = []
        """On the disk: the last two checkpoints."""
        self.stopped = self.leaving = False
        self.free: list[int] = []
        """Sessions that may be drawn."""
        self.begin()

    def begin(self) -> None:
        """Begins a process."""
        sessions: Any = _Sessions(self, SESSIONS * self.client + LIVES * self.life)
        self.life += 1
        compute: Any = _Bottom(self.play)
        look, decide = _Look(self.play), _Decide(self.play, self.client)
        self.talk = ClientConversation(TERMS, self.client, "", compute, look, decide, sessions, inputs=self.inputs)
        self.talk._sessions = sessions
        if self.saved:
            self.talk.restore(*self.saved[-1])
            self.talk.saved(self.saved[0][1]["applied"] if len(self.saved) == 2 else m.NONE)
        if self.play.announced:
            self.talk.resume([*self.own])
            self.talk.was_asked([*self.asked])

    def restart(self) -> Mail:
        """Dies and begins again, unless it has left for good."""
        if self.stopped:
            return []
        self.begin()
        return self.do(self.talk.hello())

    def receive(self, message: m.Message) -> Mail:
        """Reads a message, unless it has left for good."""
        return [] if self.stopped else self.do(self.talk.receive([message]))

    def hello(self) -> Mail:
        """Says hello."""
        return self.do(self.talk.hello())

    def wait(self) -> Mail:
        """Lets its own timers ring."""
        if self.stopped:
            return []
        if not self.talk.joined:
            return self.hello()
        return [(0, False, each) for each in self._goodbye()]

    def happen(self) -> Mail:
        """An event activates it."""
        event = self.play.events(self.client)[self.happened]
        self.happened += 1
        if self.talk.is_late(event):
            self.asked[event] = None
            self.talk.was_asked([event])
            return self.do(self.talk.happened(event))
        self.own[event] = None
        return self.do(self.talk.happened(event))

    def save(self) -> Mail:
        """Saves a checkpoint."""
        self.saved = [*self.saved[-1:], self.talk.state()]
        self.talk.saved(self.saved[0][1]["applied"] if len(self.saved) == 2 else m.NONE)
        return self.do([])

    def do(self, actions: list[Action]) -> Mail:
        mail: Mail = []
        for action in actions:
            match action:
                case Send(message):
                    mail.append((0, False, message))
                case Stop(reason, failed):
                    check(not failed, f"client {self.client} gives up: {reason}")
                    self.stopped = True
                case Note(what, text):
                    check(what not in ("unusable", "features gone", "unexpected"), text)
        if self.talk.over is None:
            self.leaving = False
        elif not self.leaving:
            self.leaving = True
            mail += [(0, False, each) for each in self._goodbye()]
        for event in self.talk.settled:
            self.own.pop(event, None)
            self.asked[event] = None
        if self.talk.settled:
            self.talk.was_asked([*self.talk.settled])
        self.talk.settled.clear()
        self.talk.answers = self.talk.activations = 0
        return mail

    def _goodbye(self) -> list[m.Message]:
        if self.talk.over is None or self.stopped:
            return []
        if not self.saved or self.saved[-1][1]["applied"] != self.talk.applied:
            self.save()
        return [each.message for each in self.talk.bye("it has all its derivatives") if isinstance(each, Send)]


@dataclass
class Waiting:
    """On the disk: the events that were predicted, and their labels."""

    records: dict[bytes, Predicted] = field(default_factory=dict)
    ready: list[bytes] = field(default_factory=list)
    past: set[bytes] = field(default_factory=set)


class Server:
    """The server, its disk, and what its carrier does."""

    def __init__(self, play: Play) -> None:
        self.play, self.life = play, 0
        self.log: list[m.Record] = []
        self.saved: Any = None
        self.waiting = Waiting()
        self.labelled = 0
        """So many labels have come late."""
        self.begin()

    def begin(self) -> None:
        """Begins a process."""
        late_or_told = self.play.labels != "at once"
        compute: Any = _Top(self.play)
        self.talk = ServerConversation(
            TERMS,
            [Expected(WIDTH)] * CLIENTS,
            compute,
            in_flight=self.play.in_flight,
            deadline=DEADLINE,
            epoch=EPOCHS + self.life,
            **({"coalesce": COALESCE} if late_or_told and self.play.announced else {}),
        )
        self.life += 1
        self.under_way: dict[bytes, None] = {}
        """Events whose predictions are under way."""
        self.taken: set[bytes] = set()
        """Events whose rounds were opened by this process."""
        if self.saved is not None:
            self.talk.restore(*self.saved)
        if records := self.log[self.talk.rounds :]:
            self.talk.replay(records)

    def restart(self) -> Mail:
        """Dies and begins again."""
        self.begin()
        return self.do(self.talk.begin())

    def receive(self, client: int, message: m.Message) -> Mail:
        """Reads a client's message."""
        mail = self.do(self.talk.receive(client, message, 0.0))
        seat = self.talk.seats[client - 1]
        if isinstance(message, m.Bye) and seat.ended:
            self.saved = self.talk.state()
            mail.append((client, False, m.Bye(seat.session or 0, m.NONE, "all is kept")))
        return mail + self.turn()

    def missed(self, client: int) -> Mail:
        """Something of a client was lost here."""
        self.talk.missed_of(client)
        return self.wait(0.0)

    def save(self) -> Mail:
        """Saves a checkpoint."""
        self.saved = self.talk.state()
        return []

    def wait(self, seconds: float) -> Mail:
        """Lets time pass, and its timers ring."""
        self._pass(seconds)
        mail = self.do(self.talk.tick(0.0)) if self.talk.due() <= 0 else []
        return mail + self.turn()

    def label(self) -> Mail:
        """The next label comes."""
        self.waiting.ready.append(self.play.event(self.labelled))
        self.labelled += 1
        return self.turn()

    @property
    def label_is_due(self) -> bool:
        """Whether the event of the next label was predicted."""
        return self.labelled < len(self.play.touched) and self.play.event(self.labelled) in self.waiting.records

    def turn(self) -> Mail:
        """What its carrier does when everything is read."""
        mail = self._open_late() if self.play.late else self._open()
        if len(self.log) == len(self.play.touched) and not self.talk.ended and not self.talk.questions.learning:
            mail += self.do(self.talk.end("the stream has ended", 0.0))
        return mail

    def _open(self) -> Mail:
        mail: Mail = []
        while self.talk.room:
            if self.play.labels == "told":
                events = self.talk.arrived(0.0, self.talk.room)
            else:
                events = [self.play.event(i) for i in range(self.talk.opened, len(self.play.touched))][: self.talk.room]
            if not events:
                break
            mail += self.do(self.talk.open(events, [0] * len(events), 0.0))
        return mail

    def _open_late(self) -> Mail:
        mail: Mail = []
        stored_way = self.play.labels == "stored"
        while self.talk.room:
            room = min(self.talk.room, max(1, self.talk.in_flight // 2))
            ready = [each for each in self.waiting.ready if each not in self.taken][:room]
            if ready:
                lates = []
                for event in ready:
                    self.taken.add(event)
                    each = self.waiting.records[event]
                    stored = Stored(each.embeddings, each.activated, each.missing, each.steps)
                    lates.append(Late(each.prediction, stored if stored_way else None))
                mail += self.do(self.talk.open(ready, [0] * len(ready), 0.0, None, lates))
                continue
            if self.play.announced:
                told = self.talk.arrived(0.0, room)
                events = [each for each in told if not self._knows(each)]
            else:
                told = []
                events = [e for i in range(len(self.play.touched)) if not self._knows(e := self.play.event(i))][:room]
            for event in told:
                if event in events or event in self.under_way:
                    self.talk.take_up(event)
                else:
                    waits = event in self.waiting.records and event not in self.waiting.past
                    number = self.play.number(event) if waits else None
                    mail += self.do(self.talk.known(event, number, stored=stored_way))
            if events:
                first = self.play.number(events[0]) if len(events) == 1 else None
                for event in events:  # each with its own number, which says here which event it is
                    self.under_way[event] = None
                    first = self.play.number(event)
                    mail += self.do(self.talk.questions.ask([event], 0.0, first=first, stored=stored_way))
            elif not told:
                break
        return mail

    def _knows(self, event: bytes) -> bool:
        return event in self.under_way or event in self.waiting.records

    def do(self, actions: list[Action]) -> Mail:
        mail: Mail = []
        for action in actions:
            match action:
                case Send(message, None):
                    mail += [(client, True, message) for client in range(1, CLIENTS + 1)]
                case Send(message, client):
                    mail.append((client, False, message))
                case Played():
                    self._played(action)
                case Predicted():
                    check(action.event not in self.waiting.records, f"{action.event!r} was predicted twice")
                    self.waiting.records[action.event] = replace(action, asked=0, round=0)
                    self.under_way.pop(action.event, None)
                    wanted = [client in self.play.touched[self.play.number(action.event)] for client in (1, 2)]
                    check(action.activated.tolist() == wanted, f"{action.event!r} has not activated whom it should")
                case Stop(reason, failed):
                    check(not failed, f"the server gives up: {reason}")
        return mail

    def _played(self, played: Played) -> None:
        check(played.first == len(self.log), "a round was played twice or left out")
        for t, record in enumerate(played.records, played.first):
            check(all(record.event != each.event for each in self.log), f"{record.event!r} was learnt twice")
            number = self.play.number(record.event)
            wanted = [client in self.play.touched[number] for client in range(1, CLIENTS + 1)]
            check(record.activated.tolist() == wanted, f"round {t} has activated {record.activated}, not {wanted}")
            for c in range(CLIENTS):
                event, steps = record.embeddings[c * WIDTH : (c + 1) * WIDTH].tolist()
                check(event == number, f"the embedding of round {t} is of another event")
                before = [s for s, each in enumerate(self.log) if each.activated[c]]
                has = sum(s <= record.applied[c] for s in before)
                if record.stored:
                    has = record.applied[c]
                check(steps == has, f"the embedding of round {t} has {steps} steps, and says {has}")
                fresh = sum(s <= t - self.play.in_flight for s in before)
                check(record.stored or steps >= fresh, f"the embedding of round {t} is too old")
            self.log.append(record)
            if self.play.late:
                self.waiting.ready.remove(record.event)
                self.waiting.past.add(record.event)

    def _pass(self, seconds: float) -> None:
        """Moves everything that has a time nearer, so that it is always 0 o'clock."""
        talk = self.talk
        talk._end_again -= seconds
        if talk._call_again > -np.inf:
            talk._call_again = max(talk._call_again - seconds, 0.0)
        for each in talk._open:
            each.deadline -= seconds
        for question in talk.questions._open.values():
            question.deadline -= seconds
        for arrival in talk._arrivals.values():
            arrival.due = max(arrival.due - seconds, 0.0)
        for seat in talk.seats:
            for name in ("sent_again", "called"):
                passed = getattr(seat, name) - seconds
                setattr(seat, name, passed if passed > -DEADLINE / 2 else -np.inf)

    def check_end(self, clients: list[Client]) -> None:
        """What must hold once every client has left."""
        learnt = {record.event for record in self.log}
        check(len(learnt) == len(self.log) == len(self.play.touched), f"{len(learnt)} events were learnt")
        for c, client in enumerate(clients):
            wanted = [(t, self.play.number(each.event)) for t, each in enumerate(self.log) if each.activated[c]]
            steps = client.talk.compute.steps  # type: ignore[attr-defined]
            check(steps == wanted, f"client {c + 1} stepped along {steps}, not {wanted}")
            check(self.talk.seats[c].pushed == len(wanted), f"the server counts {self.talk.seats[c].pushed} steps")
