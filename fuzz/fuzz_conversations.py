"""Throws messages at both sides of the conversation: `python fuzz/fuzz_conversations.py 1000000`.

Each input is a play: real parties that talk to one another, with messages in between that are real ones with some of
their fields changed, or made up, or bytes of the input that happen to be a message. Nothing that arrives may raise,
make an action that cannot be written, leave a state that cannot be kept, or give the parameters something that they
cannot take. Needs ``atheris``.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=[
        f"anabranch.protocol.{name}"
        for name in ("server", "questions", "opened", "client", "samples", "seat", "missing")
    ]
):
    from anabranch.protocol import messages as m
    from anabranch.protocol.actions import Note, Played, Predicted, Send, Stop
    from anabranch.protocol.client.conversation import ClientConversation
    from anabranch.protocol.codec import LARGEST, decode, encode
    from anabranch.protocol.server.client_session import Expected
    from anabranch.protocol.server.conversation import ServerConversation
    from anabranch.protocol.server.missing import Last, Mean, Skip, Wait, Zero
    from anabranch.protocol.server.pending_rounds import Late, Stored
    from anabranch.protocol.terms import Terms

import ml_dtypes
import numpy as np
from fuzz_codec import seeds
from standins import CLIENTS, ROWS, WIDTH, Client, Server

from anabranch.core.party import Rule
from anabranch.core.updates import OGD, SLR
from anabranch.errors import MessageError

DTYPES = [np.bool_, np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
NUMBERS = [-(2**63), -2, -1, 0, 1, 2, 3, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
POLICIES = [Wait(), Zero(), Mean(), Skip(), Last(2)]
LONGEST = 1024


class Play:
    """A server and its clients, and what the input does to them."""

    def __init__(self, data: atheris.FuzzedDataProvider) -> None:
        self.data, self.now, self.mail = data, 0.0, []
        update = SLR(ROWS) if data.ConsumeBool() else OGD()
        self.in_flight = 1 if update.rows else data.PickValueInList([1, 3])
        self.rule = Rule(update, None, np.dtype(data.PickValueInList(DTYPES[1:4])))
        self.terms = Terms("fuzz", CLIENTS, repr(update), self.rule.wire.name)
        self.missing = [Wait() if update.rows else data.PickValueInList(POLICIES) for _ in range(CLIENTS)]
        self.decides = data.ConsumeBool()
        self.coalesce = data.PickValueInList([0.0, 0.1, math.inf])
        self.stored = not update.rows and data.ConsumeBool()
        self.foretold: list[Predicted] = []
        self.sessions, self.names = itertools.count(1), itertools.count()
        self.server = self._server()
        self.clients = [self._client(client) for client in (1, 2)]

    def _server(self) -> ServerConversation:
        expected = [Expected(WIDTH, "", missing) for missing in self.missing]
        compute: Any = Server(self.rule, self.in_flight)
        return ServerConversation(
            self.terms, expected, compute, in_flight=self.in_flight, coalesce=self.coalesce, epoch=next(self.sessions)
        )

    def _client(self, client: int) -> ClientConversation:
        compute: Any = Client(self.rule, self.in_flight)
        return ClientConversation(
            self.terms,
            client,
            "schema",
            compute,
            lambda event: None if event.startswith(b"-") else np.ones(2, np.float32),
            lambda t, x: bool((t + client) % 3),
            lambda: next(self.sessions),
        )

    def run(self) -> None:
        """All that the input says."""
        self.do(0, self.server.begin())
        for client in (1, 2):
            self.do(client, self.clients[client - 1].hello())
        while self.data.remaining_bytes():
            self.step()
        self.keep()

    def step(self) -> None:
        data, server = self.data, self.server
        kind = data.ConsumeIntInRange(0, 34)
        if kind < 14:
            for _ in range(min(len(self.mail), data.ConsumeIntInRange(1, 8))):
                self.deliver(*self.mail.pop(0))
        elif kind < 18 and self.mail:
            source, target, message = self.mail.pop(data.ConsumeIntInRange(0, len(self.mail) - 1))
            self.deliver(source, target, self.changed(message))
        elif kind < 24 and server.room and not server.ended:
            n = data.ConsumeIntInRange(1, server.room)
            events = server.arrived(self.now)[:n] or [b"%d" % next(self.names) for _ in range(n)]
            chosen = np.ones((len(events), CLIENTS), bool) if self.decides else None
            self.do(0, server.open(events, [0] * len(events), self.now, chosen))
        elif kind == 24:
            self.now += 1.1
            self.do(0, server.tick(self.now))
        elif kind == 25:
            client, up = data.ConsumeIntInRange(1, CLIENTS), data.ConsumeBool()
            message = data.PickValueInList(SEEDS)
            session = self.server.seats[client - 1].session
            if session is not None and hasattr(message, "session"):
                message = replace(message, session=session)
            self.deliver(*((client, 0) if up else (0, client)), self.changed(message))
        elif kind == 26:
            try:
                message = decode(data.ConsumeBytes(data.ConsumeIntInRange(0, 200)))
            except MessageError:
                return
            self.deliver(0, data.ConsumeIntInRange(1, CLIENTS), message)
            self.deliver(data.ConsumeIntInRange(1, CLIENTS), 0, message)
        elif kind < 29:
            client = data.ConsumeIntInRange(1, CLIENTS)
            self.do(client, self.clients[client - 1].happened(b"%d" % data.ConsumeIntInRange(0, 8)))
        elif kind == 29:
            self.keep()
        elif kind == 30 and server.opened == server.rounds and data.ConsumeIntInRange(0, 7) == 7:
            self.do(0, server.end("the end", self.now))
        elif kind == 32 and not server.ended:
            first = next(self.names) if server.room and data.ConsumeBool() else m.NONE
            chosen = np.ones((1, CLIENTS), bool) if self.decides else None
            event = b"%d" % data.ConsumeIntInRange(0, 8) if first == m.NONE else b"%d" % first
            stored = self.stored and first != m.NONE
            self.do(0, server.questions.ask([event], self.now, first=first, stored=stored, activated=chosen))
        elif kind == 33 and self.foretold and server.room and not server.ended:
            told = self.foretold.pop(0)
            stored = Stored(told.embeddings, told.activated, told.missing, told.steps)
            chosen = np.ones((1, CLIENTS), bool) if self.decides and not self.stored else None
            late = Late(told.prediction, stored if self.stored else None)
            self.do(0, server.open([told.event], [0], self.now, chosen, [late]))
        elif kind == 34 and self.foretold:
            self.do(0, server.forget([self.foretold.pop().event]))
        elif kind == 31:
            client = data.ConsumeIntInRange(1, CLIENTS)
            self.do(client, self.clients[client - 1].hello())

    def deliver(self, source: int, target: int, message: m.Message) -> None:
        if target:
            before = self.clients[target - 1].applied
            self.do(target, self.clients[target - 1].receive([message]))
            assert self.clients[target - 1].applied >= before
        else:
            self.do(0, self.server.receive(source, message, self.now))

    def do(self, party: int, actions: Sequence[Any]) -> None:
        assert len(actions) < 200, "one message leads to very many actions"
        for action in actions:
            match action:
                case Send(message, client):
                    raw = encode(message)
                    assert len(raw) <= LARGEST
                    for target in [0] if party else [client] if client else [1, 2]:
                        self.mail.append((party, target, decode(raw)))
                case Played(_, records):
                    for record in records:
                        assert decode(encode(record)) == record
                case Predicted():
                    if action.number != m.NONE:
                        self.foretold.append(action)
                case Note(what, text, _, count):
                    assert what
                    assert count > 0
                    assert len(text) < 100_000
                case Stop(reason):
                    assert isinstance(reason, str)
        del self.mail[:-50]

    def keep(self) -> None:
        """A state goes into a checkpoint, and another party can go on from it."""
        parties: list[tuple[Any, Any]] = [(self._server(), self.server)]
        parties += [(self._client(i), each) for i, each in enumerate(self.clients, 1)]
        for made, party in parties:
            arrays, values = party.state()
            made.restore(arrays, json.loads(json.dumps(values)))
            assert made.state()[1] == values

    def changed(self, message: m.Message) -> m.Message:
        """The message as it arrives, up to three of its fields changed."""
        values = dict(message.__dict__)
        for _ in range(self.data.ConsumeIntInRange(0, 3)):
            name = self.data.PickValueInList(sorted(values))
            values[name] = self.other(values[name])
        try:
            return decode(encode(type(message)(**values)))
        except (struct.error, MessageError, ValueError, AttributeError):  # no such message can be written
            return message

    def other(self, value: Any) -> Any:
        data = self.data
        match value:
            case bool() | None:
                return np.ones((data.ConsumeIntInRange(0, 3), data.ConsumeIntInRange(0, 3)), bool)
            case int():
                step = data.ConsumeIntInRange(-3, 3)
                return value + step if step else data.PickValueInList(NUMBERS)
            case str():
                return data.ConsumeUnicodeNoSurrogates(8)
            case bytes():
                return data.ConsumeBytes(data.ConsumeIntInRange(0, 33))
            case tuple():
                return self.sequence(value)
            case Terms():
                name = data.PickValueInList(["federation", "clients", "update", "wire"])
                return Terms(**{**value.__dict__, name: self.other(value.__dict__[name])})
        return self.array(value)

    def sequence(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        data, items = self.data, list(value)
        kind = data.ConsumeIntInRange(0, 4)
        if kind == 0 or not items:
            return (*items, *items)
        place = data.ConsumeIntInRange(0, len(items) - 1)
        if kind == 1:
            items[place] = self.other(items[place])
        elif kind == 2:
            del items[place]
        elif kind == 3:
            items.insert(place, self.other(items[place]))
        else:
            items.reverse()
        return tuple(items)

    def array(self, value: Any) -> Any:
        data, kind = self.data, self.data.ConsumeIntInRange(0, 6)
        value = np.array(value)
        if kind == 0:
            return value.astype(data.PickValueInList(DTYPES))
        if kind == 1 and value.size and value.dtype != np.bool_:
            value.flat[data.ConsumeIntInRange(0, value.size - 1)] = data.PickValueInList([np.nan, np.inf, -np.inf])
            return value
        if kind == 2:
            return value[:-1] if value.ndim else value
        if kind == 3:
            return np.concatenate([value, value]) if value.ndim else value
        if kind == 4:
            return value[None] if value.ndim < 3 else value.reshape(-1)
        if kind == 5:
            return value.reshape(-1)
        return np.zeros((0,) * data.ConsumeIntInRange(0, 3), value.dtype)


SEEDS = seeds()


def one(raw: bytes) -> None:
    """Plays one input."""
    Play(atheris.FuzzedDataProvider(raw)).run()


def fuzz(one: Callable[[bytes], None]) -> None:
    """Takes the number of inputs, and any options of libFuzzer."""
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("how many inputs? For example: python fuzz/fuzz_conversations.py 1000000")
    runs, options = sys.argv[1], sys.argv[2:]
    given = any(Path(option).is_file() for option in options)  # those are tried, and nothing else
    with tempfile.TemporaryDirectory(prefix="anabranch-fuzz-") as folder:
        for seed in range(50):  # long plays from the beginning
            Path(folder, f"seed-{seed}").write_bytes(random.Random(seed).randbytes(LONGEST // 2))
        atheris.Setup(
            [sys.argv[0], f"-runs={runs}", f"-max_len={LONGEST}", *options, *([] if given else [folder])], one
        )
        atheris.Fuzz()


if __name__ == "__main__":
    fuzz(one)
