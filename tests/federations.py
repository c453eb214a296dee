"""Small federations for the tests: the same run in the simulator and in a conversation, and a world that harms it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import anabranch as ab
from anabranch.core.layers import MLP
from anabranch.core.party import Rule
from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from anabranch.protocol.actions import Action, Played, Send
from anabranch.protocol.client.conversation import ClientConversation
from anabranch.protocol.memory import InMemory
from anabranch.protocol.messages import Record
from anabranch.protocol.server.client_session import Expected
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.missing import Policy, Wait
from anabranch.protocol.terms import Terms, terms_of
from anabranch.simulation.drift_detection import Detect, Watch
from problems import bits

CLASSES = 3
EQUAL = ((8, 5),) * 4
"""Features and elements of an embedding of each client."""
UNEQUAL = ((8, 5), (3, 2), (3, 2), (8, 5))
LONGEST = 5000
UPDATES = (ab.OGD(), ab.DLR(4, 0.9), ab.DLR(4, 0.9, client_window=False), ab.SLR(3))


@cache
def _model(shapes: tuple[tuple[int, int], ...]) -> ab.SplitModel:
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
    clients = [MLP(list(shape), relu_last=False, key=key) for shape, key in zip(shapes, keys, strict=False)]
    return ab.SplitModel(clients, MLP([sum(e for _, e in shapes), 6, CLASSES], relu_last=False, key=keys[-1]))


@cache
def _samples(shapes: tuple[tuple[int, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(LONGEST, sum(d for d, _ in shapes))).astype(np.float32)
    return x, (np.digitize(x[:, 0] + x[:, -1], (-0.6, 0.6))).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Setting:
    """A run, and how a federation plays it."""

    update: ab.Update = field(default_factory=ab.OGD)
    activation: Any = field(default_factory=lambda: ab.Random(0.5))
    rounds: int = 300
    shapes: tuple[tuple[int, int], ...] = EQUAL
    wire: str = "float32"
    power: float = 0.0
    rate: float = 0.1
    in_flight: int = 1
    missing: tuple[Policy, ...] = (Wait(),) * 4
    detect: Detect | None = None

    @property
    def model(self) -> ab.SplitModel:
        return _model(self.shapes)

    @cached_property
    def rule(self) -> Rule:
        return Rule(jax.tree.map(np.asarray, self.update), None, jnp.dtype(self.wire))

    @property
    def terms(self) -> Terms:
        return terms_of("test", len(self.shapes), self.rule)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(d for d, _ in self.shapes)

    @cached_property
    def labels(self) -> list[int]:
        return _samples(self.shapes)[1][: self.rounds].tolist()

    @cached_property
    def features(self) -> list[np.ndarray]:
        """(T, d_m) of each client."""
        ends = np.cumsum(self.widths)
        return np.split(_samples(self.shapes)[0][: self.rounds], ends[:-1], axis=1)

    @cached_property
    def mask(self) -> np.ndarray:
        """(T, M): who is activated."""
        return self.activation.mask(0, 0, _samples(self.shapes)[0][: self.rounds], self.widths)

    def simulated(self, **options: Any) -> ab.Result:
        stream = ab.streams.from_arrays(self.features, self.labels, classes=CLASSES)
        return ab.simulate(
            self.model,
            stream,
            update=self.update,
            activation=self.activation,
            learning_rate=self.rate,
            learning_rate_power=self.power,
            wire_dtype=self.wire,
            keep_errors=True,
            chunk=100,
            detect=self.detect,
            **options,
        )

    def samples(self, first: int = 0) -> Iterator[tuple[bytes, int]]:
        return ((name(t), self.labels[t]) for t in range(first, self.rounds))

    def choose(self, first: int, n: int) -> np.ndarray | None:
        """Who is activated where the server decides."""
        return self.mask[first : first + n] if isinstance(self.activation, ab.Fixed) else None

    def server(self, epoch: int = 1, **options: Any) -> ServerConversation:
        width = sum(e for _, e in self.shapes)
        compute = ServerCompute(self.rule, self.model.server, width, Rate(self.rate, self.power), self.in_flight)
        expected = [
            Expected(e, f"schema {m}", missing)
            for m, ((_, e), missing) in enumerate(zip(self.shapes, self.missing, strict=True), 1)
        ]
        watch = None if self.detect is None else Watch(self.detect, len(self.shapes), seed=0)
        options = {"in_flight": self.in_flight, "epoch": epoch, "watch": watch, **options}
        return ServerConversation(self.terms, expected, compute, **options)

    def client(self, m: int, sessions: Iterator[int] | None = None) -> ClientConversation:
        d = self.widths[m - 1]
        rate = Rate(self.rate, self.power)
        compute = ClientCompute(self.rule, self.model.clients[m - 1], d, rate, self.in_flight)
        draw = itertools.count(100 * m) if sessions is None else sessions
        return ClientConversation(
            self.terms, m, f"schema {m}", compute, self.look(m), self.decide(m), lambda: next(draw)
        )

    def look(self, m: int) -> Any:
        """The client's features for an event; none for one that is no round's."""
        features = self.features[m - 1]
        return lambda event: features[int(event)] if event.isdigit() and int(event) < len(features) else None

    def decide(self, m: int) -> Any:
        return lambda t, x: bool(self.mask[t, m - 1])

    def clients(self, sessions: Iterator[int] | None = None) -> list[ClientConversation]:
        draw = itertools.count(1) if sessions is None else sessions
        return [self.client(m, draw) for m in range(1, len(self.shapes) + 1)]

    def in_memory(self, **options: Any) -> InMemory:
        return InMemory(self.server(), self.clients(), self.samples(), choose=self.choose, **options)


def name(t: int) -> bytes:
    """Of the event of a round."""
    return b"%d" % t


def trained(server: ServerConversation, clients: list[ClientConversation]) -> dict[str, bytes]:
    """All parties' parameters, to the last bit."""
    parties = [each.compute.party.model for each in clients]
    return bits(ab.SplitModel(parties, server.compute.party.model))


class _Died(Exception):  # noqa: N818 (it is no error)
    pass


class Chaos(InMemory):
    """Messages are lost, doubled and overtake one another, and parties die: all as a seed says.

    A party dies between two steps or between two of its actions, with or without the messages that are under way to
    it and from it. It starts again from what would be on its disk: the server from its checkpoint and the log of
    rounds, a client from one of its last two checkpoints. Whoever is given a checkpoint is not the one who made it.

    Args:
        setting: of the federation.
        seed: of all that happens to it.
        lost, doubled, late: in which share of the messages.
        kills: how many parties die.
        every: steps between two deaths, about.
    """

    def __init__(
        self,
        setting: Setting,
        seed: int,
        *,
        lost: float = 0.03,
        doubled: float = 0.03,
        late: float = 0.1,
        kills: int = 0,
        every: int = 50,
    ) -> None:
        self.setting, self.random = setting, np.random.default_rng(seed)
        self._shares = lost, doubled, late
        self._sessions, self._epochs = itertools.count(1), itertools.count(1)
        self._left, self._every = kills, every
        self._next_death = self._soon()
        self.deaths: list[int] = []
        """Which parties died; the server is 0."""
        self.log: list[Record] = []
        self.predictions: list[int | None] = []
        self._server_saved: Any = None
        self._saved: list[list[Any]] = [[] for _ in setting.shapes]
        """A client's last two checkpoints, the older first."""
        self._dying: tuple[int, int] | None = None
        """Who dies, and after how many of its next actions."""
        super().__init__(
            setting.server(next(self._epochs)),
            setting.clients(self._sessions),
            setting.samples(),
            fate=self._of_a_message,
            played=self._write,
            choose=setting.choose,
        )

    def step(self) -> None:
        if self.random.random() < 0.05:
            self._save(int(self.random.integers(len(self.clients) + 1)))
        if self._left:
            self._next_death -= 1
        if self._left and self._next_death <= 0 and self._dying is None and not self.server.ended:
            party, actions = int(self.random.integers(len(self.clients) + 1)), int(self.random.integers(3))
            self._dying = party, actions
            if self.random.random() < 0.5:
                self._die(party)
        super().step()

    def do(self, party: int, actions: Any) -> None:
        actions = list(actions)
        if self._dying is not None and self._dying[0] == party and actions:
            super().do(party, actions[: self._dying[1]])
            self._die(party)
        else:
            super().do(party, actions)

    def _of_a_message(self, raw: bytes) -> list[float]:
        lost, doubled, late = self._shares
        if self.random.random() < lost:
            return []
        copies = 1 + (self.random.random() < doubled)
        return [float(self.random.exponential(0.5)) if self.random.random() < late else 0.001 for _ in range(copies)]

    def _write(self, played: Played) -> None:
        assert played.first == len(self.log), "a round was played twice or left out"
        assert len(played.records) == len(played.predictions)
        self.log += played.records
        self.predictions += played.predictions

    def _save(self, party: int) -> None:
        if party == 0:
            if self.server.rounds == len(self.log):
                self._server_saved = self.server.state()
            return
        client, kept = self.clients[party - 1], self._saved[party - 1]
        kept.append(client.state())
        del kept[:-2]
        if len(kept) == 2:
            client.saved(kept[0][1]["applied"])

    def _soon(self) -> int:
        return int(self.random.integers(1, 2 * self._every))

    def _die(self, party: int) -> None:
        self._dying, self._left, self._next_death = None, self._left - 1, self._soon()
        self.deaths.append(party)
        if self.random.random() < 0.5:  # what is under way from it and to it may be lost with it
            self._under_way = [each for each in self._under_way if party not in each[2:4]]
        self.stopped.pop(party, None)
        if party == 0:
            self._restart_server()
        else:
            self._restart_client(party)

    def _restart_server(self) -> None:
        server = self.setting.server(next(self._epochs))
        if self._server_saved is not None:
            server.restore(*self._server_saved)
        begin = server.rounds
        if self.log[begin:]:
            again = server.replay(self.log[begin:])
            assert again.first == begin
            assert list(again.predictions) == self.predictions[begin:], "the log gives another run"
        assert server.rounds == len(self.log)
        self.server, self._over = server, False
        self._samples = self.setting.samples(server.rounds)
        self.do(0, server.begin())

    def _restart_client(self, party: int) -> None:
        client, kept = self.setting.client(party, self._sessions), self._saved[party - 1]
        if kept:
            if self.random.random() < 0.3:  # the newest one is damaged
                del kept[1:]
            client.restore(*kept[-1])
            client.saved(kept[0][1]["applied"] if len(kept) == 2 else client.safe)
        self.clients[party - 1] = client
        self.do(party, client.hello())


class Told(Chaos):
    """No one but the clients knows of events: a round begins with what they tell. Its mask says whom it touches.

    What happens to a client is in a record of its own, from which it tells again after it died; a message is never
    lost on its way while all parties live, since no one would tell again, unless the server knows of it: so many times
    it loses its connection for a while.
    """

    def __init__(self, setting: Setting, seed: int, *, outages: int = 0, **options: Any) -> None:
        self.outages, self._out = outages, 0
        super().__init__(setting, seed, lost=0.0, **options)
        self._happening = [t for t in range(setting.rounds) if setting.mask[t].any()]
        self.planned = {name(t): setting.mask[t] for t in self._happening}

    def take(self, room: int) -> list[tuple[bytes, int]]:
        self._over = len(self.log) == len(self.planned)
        return [(event, self.setting.labels[int(event)]) for event in self.server.arrived(self.now)[:room]]

    def step(self) -> None:
        told = len(self.planned) - len(self._happening)
        if self.outages and not self._out and self.random.random() < 0.01:
            self.outages, self._out = self.outages - 1, 30
        elif self._out:
            self._out -= 1
            if not self._out:
                self.do(0, self.server.begin())
        if self._happening and told < len(self.log) + 6 and self.random.random() < 0.2:
            t = self._happening.pop(0)
            for client in np.flatnonzero(self.setting.mask[t]) + 1:
                self.do(int(client), self.clients[client - 1].happened(name(t)))
        super().step()

    def _of_a_message(self, raw: bytes) -> list[float]:
        return [] if self._out else super()._of_a_message(raw)

    def _restart_client(self, party: int) -> None:
        super()._restart_client(party)
        over = {record.event for record in self.log}
        for event, touched in self.planned.items():
            if touched[party - 1] and event not in over and int(event) not in self._happening:
                self.do(party, self.clients[party - 1].happened(event))


def follow(setting: Setting, log: list[Record]) -> dict[str, bytes]:
    """All parties' parameters, worked out from the log alone, with one round under way at a time.

    Each embedding in the log is that of the client at the parameters that it has by then.
    """
    shapes, rate = setting.shapes, Rate(setting.rate, setting.power)
    starts = np.cumsum([0, *(e for _, e in shapes)])
    server = ServerCompute(setting.rule, setting.model.server, int(starts[-1]), rate)
    clients = [
        ClientCompute(setting.rule, model, d, rate) for model, (d, _) in zip(setting.model.clients, shapes, strict=True)
    ]
    for t, record in enumerate(log):
        if not record.embeddings.size:
            assert not record.activated.any()
            server.skip(record.label)
            continue
        held = {}
        for c, client in enumerate(clients):
            own = slice(starts[c], starts[c + 1])
            x = setting.features[c][int(record.event)]
            embedding, held[c] = client.encode(np.array([t], np.int32), x[None])
            if not record.missing[c]:
                assert record.embeddings[..., own].tobytes() == embedding.tobytes(), (t, c + 1)
            else:
                assert not record.activated[c]
        v = server.step(record.embeddings[None], np.array([record.label], np.int32)).derivatives
        for c, client in enumerate(clients):
            if record.activated[c]:
                client.step(np.array([t], np.int32), held[c], v[..., starts[c] : starts[c + 1]])
    return bits(ab.SplitModel([each.party.model for each in clients], server.party.model))


def sent(actions: list[Action], kind: type) -> list[Any]:
    """The messages of this kind that a conversation wants sent."""
    return [each.message for each in actions if isinstance(each, Send) and isinstance(each.message, kind)]


def noted(world: InMemory) -> dict[str, int]:
    """How often something worth a note happened."""
    counts: dict[str, int] = {}
    for note in world.notes:
        counts[note.what] = counts.get(note.what, 0) + note.count
    return counts
