"""When a client's process says hello: once where something was lost, and again where nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch.broker.credentials import Credentials
from anabranch.errors import RefusedError
from anabranch.federation import client as net_client
from anabranch.federation.client import HELLO_EVERY, ClientParty
from anabranch.protocol import messages as m
from anabranch.protocol.client.conversation import OTHERS
from anabranch.protocol.codec import encode
from anabranch.storage import checkpoint
from conversations import answered, heard, joined
from federations import Setting, name, sent


class Alone:
    """A client's process with no broker, on a clock of its own; what it says is kept until `answered`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.said = 1000.0, list[m.Message]()
        monkeypatch.setattr(net_client, "time", SimpleNamespace(monotonic=lambda: self.now))
        credentials = Credentials(("nats://127.0.0.1:1",), "test", "client 1", 1)
        self.setting = Setting()
        self.party = ClientParty(self.setting.client(1), credentials, folder)
        self.party.link.send = self._say  # type: ignore[method-assign]

    async def _say(self, message: m.Message, client: int | None = None) -> None:
        self.said.append(message)

    def hear(self, *messages: m.Message) -> None:
        for each in messages:
            self.party._received(0, encode(each))

    async def turn(self) -> int:
        """How many hellos it says now."""
        before = len(self.said)
        await self.party._turn()
        return sum(isinstance(each, m.Hello) for each in self.said[before:])

    async def join(self) -> None:
        """A server welcomes it, and long after that all is as it was."""
        await self.party._do(self.party._begin())
        self.server = joined(self.setting)
        self.hear(*heard(self.server.receive(1, self.said[-1], 0.0), 1))
        assert await self.turn() == 0
        self.now += 100.0

    async def check_is_repeated(self) -> None:
        """Of hellos that nobody answers each has its time."""
        for _ in range(3):
            assert await self.turn() == 0
            self.now += HELLO_EVERY / 2
            assert await self.turn() == 0
            assert self.party._due() == self.now + HELLO_EVERY / 2
            self.now = self.party._due()
            assert await self.turn() == 1


def another_server(alone: Alone) -> None:
    alone.hear(*heard(alone.setting.server(2).begin(), 1))


def another_server_while_messages_are_dropped(alone: Alone) -> None:
    another_server(alone)
    alone.party._dropped.add(0)


def another_server_that_calls_twice(alone: Alone) -> None:
    """As for each message that it gets from before it began."""
    another_server(alone)
    another_server(alone)


def another_broker(alone: Alone) -> None:
    """The client's connection is back, and the server's, which does not know of the hello yet."""
    alone.party._came_back()
    alone.hear(*heard(alone.server.begin(), 1))


def another_broker_that_the_server_finds_first(alone: Alone) -> None:
    alone.hear(*heard(alone.server.begin(), 1))


def something_lost(alone: Alone) -> None:
    """The end comes before the last derivative."""
    session = alone.party.conversation._session
    alone.hear(m.End(session, 5, 4, "it is over"))


@pytest.mark.parametrize(
    "happens",
    [
        another_server,
        another_server_while_messages_are_dropped,
        another_server_that_calls_twice,
        another_broker,
        another_broker_that_the_server_finds_first,
        something_lost,
    ],
    ids=lambda each: each.__name__.replace("_", " "),
)
def test_one_hello_is_under_way_at_a_time(
    happens: Callable[[Alone], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would be a new session, which the server catches up once more, half a second later."""

    async def main() -> None:
        alone = Alone(tmp_path, monkeypatch)
        await alone.join()
        happens(alone)
        assert await alone.turn() == 1
        await alone.check_is_repeated()

    asyncio.run(main())


def test_a_server_that_is_known_calls_in_vain_while_it_is_greeted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        alone = Alone(tmp_path, monkeypatch)
        await alone.join()
        alone.party._came_back()
        assert await alone.turn() == 1
        alone.hear(*heard(alone.server.begin(), 1))
        assert await alone.turn() == 0
        alone.hear(*heard(alone.server.receive(1, alone.said[-1], 0.0), 1))
        assert await alone.turn() == 0
        assert alone.party.conversation.joined
        alone.hear(*heard(alone.server.begin(), 1))
        assert await alone.turn() == 1, "it has told in this session what may be lost"

    asyncio.run(main())


def another_process(alone: Alone, i: int) -> None:
    """The server knows a session of it."""
    alone.hear(m.Call(alone.server._epoch, 10**6 + i))


def two_servers(alone: Alone, i: int) -> None:
    """Both welcome it."""
    (hello,) = sent(alone.party.conversation.hello(), m.Hello)
    welcome, *more = heard(alone.server.receive(1, hello, 0.0), 1)
    assert isinstance(welcome, m.Welcome)
    alone.hear(welcome, *more, replace(welcome, epoch=2))


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (another_process, r"another process takes part as client 1: end one of them \(this one ends now"),
        (two_servers, "two servers of this federation answer"),
    ],
    ids=["another process", "two servers"],
)
def test_what_a_client_has_is_kept_where_two_processes_are_where_one_belongs(
    happens: Callable[[Alone, int], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, and nothing is wrong with its parameters."""

    async def main() -> None:
        alone = Alone(tmp_path, monkeypatch)
        await alone.join()
        talk = alone.party.conversation
        await alone.party._do(talk.happened(name(0)))
        alone.server.receive(1, alone.said[-1], 0.0)
        alone.server.open([name(0)], [0], 0.0)
        alone.hear(*heard(answered(alone.server, (2, 3, 4), 0), 1))
        await alone.turn()
        assert talk.applied == 0
        assert checkpoint.load(alone.party.folder) is None
        for i in range(OTHERS):
            assert alone.party._stop is None
            happens(alone, i)
            if await alone.turn():
                alone.hear(*heard(alone.server.receive(1, alone.said[-1], 0.0), 1))
                await alone.turn()
        with pytest.raises(RefusedError, match=said):
            await alone.party._finish()
        found = checkpoint.load(alone.party.folder)
        assert found is not None
        assert found.state["applied"] == 0

    asyncio.run(main())
