"""A carrier in memory: a server and its clients in one process, in an order that is the same in every run."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol.actions import Action, Note, Played, Predicted, Send, Stop
from anabranch.protocol.client.conversation import ClientConversation
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.server.conversation import ServerConversation

Fate = Callable[[bytes], Sequence[float]]
"""How many seconds a message takes: none where it is lost, more than one where it arrives more than once."""
Choose = Callable[[int, int], NDArray[np.bool_] | None]
"""Who is activated (n, M) in ``n`` rounds from the one of this number; None where the clients decide."""


class InMemory:
    """Carries messages, as bytes, between conversations; time goes on when nothing else does.

    Args:
        server: the server's conversation.
        clients: the clients'.
        samples: the events with their labels, in order.
        fate: of each message; by default all arrive at once.
        played: called with what was played, before any message that follows from it is carried.
        choose: who is activated, where the server decides.
        predicted: called with what was predicted without a round, likewise.
    """

    def __init__(
        self,
        server: ServerConversation,
        clients: Sequence[ClientConversation],
        samples: Iterator[tuple[bytes, int]],
        fate: Fate = lambda raw: (0.0,),
        played: Callable[[Played], None] = lambda played: None,
        choose: Choose = lambda first, n: None,
        predicted: Callable[[Predicted], None] = lambda predicted: None,
    ) -> None:
        self.server, self.clients = server, list(clients)
        self.now = 0.0
        self.notes: list[Note] = []
        self.stopped: dict[int, Stop] = {}
        """Why each party has stopped; the server is 0."""
        self._samples, self._fate, self._choose = samples, fate, choose
        self._played, self._predicted = played, predicted
        self._under_way: list[tuple[float, int, int, int, bytes]] = []
        self._number = count()
        self._over = False

    def run(self, limit: int = 100_000) -> None:
        """Until the samples end and every client has left, or a party has stopped.

        Raises:
            RuntimeError: where that takes more steps than ``limit``, which only a wrong conversation does.
        """
        self.do(0, self.server.begin())
        for client, conversation in enumerate(self.clients, 1):
            self.do(client, conversation.hello())
        for _ in range(limit):
            if 0 in self.stopped or self.server.done:
                return
            self.step()
        raise RuntimeError(f"no end after {limit:,} steps; the server waits for {self.server.lacking()}")

    def take(self, room: int) -> list[tuple[bytes, int]]:
        """Return the next events with their labels, as many as there is room for."""
        samples = list(islice(self._samples, room))
        self._over = len(samples) < room
        return samples

    def step(self) -> None:
        """Open rounds, carries the next message, or lets time go on."""
        room = self.server.room
        if room and not self._over:
            samples = self.take(room)
            if samples:
                events, labels = zip(*samples, strict=True)
                chosen = self._choose(self.server.opened, len(samples))
                self.do(0, self.server.open(events, labels, self.now, chosen))
                return
        if self._over and self.server.opened == self.server.rounds and not self.server.ended:
            self.do(0, self.server.end("the stream has ended", self.now))
            return
        if self._under_way and self._under_way[0][0] <= self.server.due():
            time, _, source, target, raw = heapq.heappop(self._under_way)
            self.now = max(self.now, time)
            message = decode(raw)
            if target == 0:
                self.do(0, self.server.receive(source, message, self.now))
            else:
                conversation = self.clients[target - 1]
                self.do(target, conversation.receive([message]))
                if conversation.over is not None:
                    self.do(target, conversation.bye(conversation.over))
            return
        before, due = self.now, self.server.due()
        self.now = max(self.now, due) if due < float("inf") else self.now + 1.0
        self.do(0, self.server.tick(self.now))
        for client, conversation in enumerate(self.clients, 1):
            if not conversation.joined and client not in self.stopped and self.now > before:
                self.do(client, conversation.hello())

    def do(self, party: int, actions: Sequence[Action]) -> None:
        """Do what a party's conversation asks for."""
        left = deque(actions)
        while left:
            match left.popleft():
                case Send(message, client):
                    targets = [0] if party else [client] if client else range(1, len(self.clients) + 1)
                    raw = encode(message)
                    for target in targets:
                        for delay in self._fate(raw):
                            entry = (self.now + delay, next(self._number), party, target, raw)
                            heapq.heappush(self._under_way, entry)
                case Played() as played:
                    self._played(played)
                case Predicted() as predicted:
                    self._predicted(predicted)
                case Note() as note:
                    self.notes.append(note)
                case Stop() as stop:
                    self.stopped[party] = stop
