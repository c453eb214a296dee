"""A party's connection to its broker: lost at bad moments, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nats import errors
from nats.aio.client import Client

from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import Credentials
from anabranch.broker.local import LocalBroker
from anabranch.errors import ConnectError
from anabranch.federation import link as module
from anabranch.federation.link import Counted, Link
from anabranch.protocol.codec import encode
from anabranch.protocol.messages import Bye, Call, Happened

SECONDS = 30.0


class Ends:
    """The two ends of a federation's messages, and what their links said."""

    def __init__(self, url: str) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost: list[str] = []
        self.failed: asyncio.Queue[Exception] = asyncio.Queue()
        self.server, self.bank = (self._link(url, index) for index in (0, 1))

    def _link(self, url: str, index: int) -> Link:
        return Link(
            Credentials((url,), "demo", ("server", "bank")[index], index),
            lambda client, raw: self.received.put_nowait(raw),
            lambda: None,
            self.lost.append,
            self.failed.put_nowait,
        )


@asynccontextmanager
async def ends(tmp_path: Path) -> AsyncIterator[Ends]:
    async with asyncio.timeout(SECONDS), LocalBroker(tmp_path / "broker") as broker:
        held = Ends(broker.url)
        try:
            yield held
        finally:
            await held.bank.close()
            await held.server.close()


def spoil(monkeypatch: pytest.MonkeyPatch, method: str, spoiled: Any) -> list[Client]:
    """The connections that links make from now on; a method of the first one is another."""
    made: list[Client] = []

    async def connect_and_spoil(*args: Any, **options: Any) -> Client:
        client = await connect(*args, **options)
        made.append(client)
        if len(made) == 1:
            monkeypatch.setattr(client, method, spoiled)
        return client

    monkeypatch.setattr(module, "connect", connect_and_spoil)
    return made


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("subscribe", errors.ConnectionClosedError()),
        ("flush", errors.FlushTimeoutError()),
        ("flush", ConnectionResetError()),
    ],
)
def test_a_broker_that_is_lost_before_it_has_the_subscriptions_is_tried_again(
    method: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)

    async def fails(*args: Any, **options: Any) -> None:
        raise error

    async def main() -> None:
        async with ends(tmp_path) as held:
            await held.server.open()
            made = spoil(monkeypatch, method, fails)
            await held.bank.open()
            assert [client.is_closed for client in made] == [True, False]
            (lost,) = held.lost
            assert "was lost before it had taken the subscriptions" in lost
            for call in (Call(1, 2), Call(1, 3)):
                await held.server.send(call, 1)
                assert await held.received.get() == encode(call)
            assert held.received.empty()

    asyncio.run(main())


def test_a_party_that_leaves_while_it_connects_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing = asyncio.Event()

    async def hangs(*args: Any) -> None:
        flushing.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with ends(tmp_path) as held:
            made = spoil(monkeypatch, "flush", hangs)
            opening = asyncio.ensure_future(held.bank.open())
            await flushing.wait()
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            assert opening.cancelled()
            assert [client.is_closed for client in made] == [True]

    asyncio.run(main())


def test_whatever_hinders_a_new_connection_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **options: Any) -> Client:
        raise RuntimeError("a mistake in the program")

    async def main() -> None:
        async with ends(tmp_path) as held:
            made = spoil(monkeypatch, "drain", None)
            await held.bank.open()
            monkeypatch.setattr(module, "connect", broken)
            await made[0].close()  # as nats-py does where it gives up
            wrong = await held.failed.get()
            assert isinstance(wrong, ConnectError)
            assert "cannot be made again: RuntimeError('a mistake in the program')" in str(wrong)
            assert isinstance(wrong.__cause__, RuntimeError)

    asyncio.run(main())


def test_what_was_not_sent_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: Any) -> None:
        raise problems.pop()

    async def main() -> None:
        async with ends(tmp_path) as held:
            made = spoil(monkeypatch, "publish", fails)
            await held.bank.open()
            await held.bank.send(Bye(1, -1, "so"))
            assert held.lost == ["a message was lost: nats: outbound buffer limit exceeded"]
            with pytest.raises(ConnectError, match="raise max_payload"):
                await held.bank.send(Bye(1, -1, "so"))
            with pytest.raises(ConnectError, match="bytes, and no party reads one of more than 8,388,608"):
                await held.bank.send(Happened(1, -1, -1, b"e", np.zeros(3_000_000, np.float32)))
            assert not held.bank.bytes
            assert not held.bank.messages
            monkeypatch.setattr(made[0], "publish", Client.publish.__get__(made[0]))
            await held.bank.send(Bye(1, -1, "so"))
            counted = Counted("out", "Bye", 1)
            assert (held.bank.bytes, held.bank.messages) == ({counted: len(encode(Bye(1, -1, "so")))}, {counted: 1})

    problems: list[Exception] = [errors.MaxPayloadError(), errors.OutboundBufferLimitError()]
    asyncio.run(main())


def test_an_asker_takes_no_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE", 3)
    monkeypatch.setattr(module, "ASKED", 7)

    async def main() -> None:
        released, begun = asyncio.Event(), list[bytes]()

        async def answer(raw: bytes) -> bytes:
            begun.append(raw)
            await released.wait()
            return raw

        async with ends(tmp_path) as held:
            held.server.answer = answer
            await held.server.open()
            asker = await connect(held.bank.credentials)
            answers: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

            async def hear(message: Any) -> None:
                answers.put_nowait((message.subject.split(".")[2], message.data))

            await asker.subscribe("demo.answer.>", cb=hear)
            for name, times in (("greedy", 10), ("app", 1), ("third", 4), ("fourth", 1)):
                for _ in range(times):
                    await asker.publish(f"demo.ask.{name}", name.encode(), reply=f"demo.answer.{name}.x")
            refused = [await answers.get() for _ in range(9)]
            assert refused == [("greedy", module.YOURS)] * 7 + [("third", module.YOURS), ("fourth", module.MANY)]
            assert begun == [b"greedy"] * 3 + [b"app"] + [b"third"] * 3
            released.set()
            given = [await answers.get() for _ in range(7)]
            assert given == [(raw.decode(), raw) for raw in begun]
            await asker.publish("demo.ask.greedy", b"again", reply="demo.answer.greedy.x")
            assert await answers.get() == ("greedy", b"again")
            await disconnect(asker)

    asyncio.run(main())
