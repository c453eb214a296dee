"""What strangers can do to the server of predictions over HTTP, with real connections."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker import keys
from anabranch.serving import app as asgi
from anabranch.serving import connections
from anabranch.serving.http import HttpSettings, serving_predictions

PATIENCE = 60.0
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
SOON = 0.2


class Answers:
    """Answers questions, once it may."""

    def __init__(self) -> None:
        self.party = SimpleNamespace(say=lambda text: None)
        self.may = asyncio.Event()
        self.may.set()

    async def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        await self.may.wait()
        return question


METRICS: Any = SimpleNamespace(reasons=list, text=lambda: "")


class Stranger:
    """A connection on which anything may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, raw: bytes) -> None:
        """Sends it, also where nobody is there any more."""
        try:
            self.writer.write(raw)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def status(self) -> int:
        """Of the next answer, which it reads."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-len"))
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def hung_up(self) -> bytes:
        """What comes until the server hangs up."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def served(settings: HttpSettings | None = None) -> AsyncIterator[tuple[Answers, Callable[..., Any]]]:
    """The server, and what connects to it."""
    made: list[asyncio.StreamWriter] = []
    answers: Any = Answers()
    async with (
        asyncio.timeout(PATIENCE),
        serving_predictions(answers, METRICS, settings or HttpSettings(0)) as port,
    ):

        async def come(**options: Any) -> Stranger:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
            made.append(writer)
            return Stranger(reader, writer)

        try:
            yield answers, come
        finally:
            answers.may.set()
            for each in made:
                each.transport.abort()


async def is_there(come: Callable[..., Awaitable[Stranger]], **options: Any) -> None:
    """Comes until the server takes one more."""
    while True:
        try:
            stranger = await come(**options)
            await stranger.send(HEALTH)
            assert await stranger.status() == 200
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.02)
        else:
            return


def test_no_more_connections_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 3)

    async def main() -> None:
        async with served() as (_, come):
            held = [await come() for _ in range(3)]
            for each in held:
                await each.send(HEALTH)
                assert await each.status() == 200
            assert await (await come()).hung_up() == b""
            await held[0].send(HEALTH)  # whoever is there stays
            assert await held[0].status() == 200
            held[1].writer.close()
            await is_there(come)

    asyncio.run(main())


def test_those_that_do_not_begin_tls_are_counted_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 3)
    keys.init(tmp_path / "made", "test", "127.0.0.1", ["bank"])
    own = tmp_path / "made" / "broker"
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    settings = HttpSettings(0, token=token, certificate=own / "cert.pem", key=own / "key.pem")
    trusted = ssl.create_default_context(cafile=own / "ca.pem")

    async def main() -> None:
        async with served(settings) as (_, come):
            silent = [await come() for _ in range(3)]
            assert await (await come()).hung_up() == b""
            silent[0].writer.close()
            await is_there(come, ssl=trusted)

    asyncio.run(main())


@pytest.mark.parametrize("begin", [b"", b"GET /hea", HEALTH + b"GET /hea", b"\r\n"])
def test_a_head_that_does_not_come(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, half of one, half of a second one, and what is none."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            await stranger.send(begin)
            if begin.startswith(HEALTH):
                assert await stranger.status() == 200
            assert await stranger.hung_up() == b""

    asyncio.run(main())


def test_a_head_that_comes_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            await stranger.send(b"GET /health HTTP/1.1\r\nX: ")

            async def drip() -> None:
                while True:
                    await stranger.send(b"x")
                    await asyncio.sleep(SOON / 10)

            dripping = asyncio.ensure_future(drip())
            assert await stranger.hung_up() == b""
            dripping.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health?" + b"a" * connections.HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"a" * connections.HEAD_BYTES + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * connections.HEAD_BYTES,
        b"GET /health HTTP/1.1\r\nX: " + b"a" * 2**22,  # never whole
    ],
    ids=["address", "field", "fields", "endless"],
)
def test_a_head_without_end(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2 * PATIENCE)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            sending = asyncio.ensure_future(stranger.send(head))
            answer = await stranger.hung_up()  # it may not be heard over what is still being sent
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
            await sending
            await is_there(come)

    asyncio.run(main())


def test_a_large_head_that_is_none_too_large() -> None:
    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            for _ in range(3):
                await stranger.send(b"GET /health HTTP/1.1\r\nX: " + b"a" * 30_000 + b"\r\n\r\n")
                assert await stranger.status() == 200

    asyncio.run(main())


def test_a_question_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            await stranger.send(b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"event"')
            assert await stranger.status() == 408

    asyncio.run(main())


def test_a_question_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at once, and not listened to for ever."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            await stranger.send(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")

            async def go_on() -> None:
                while True:
                    await stranger.send(b"1000\r\n" + b"a" * 4096 + b"\r\n")
                    await asyncio.sleep(SOON / 100)

            going = asyncio.ensure_future(go_on())
            assert await stranger.status() == 400
            assert await stranger.hung_up() == b""
            going.cancel()

    asyncio.run(main())


def test_a_connection_on_which_nothing_is_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            await stranger.send(HEALTH)
            assert await stranger.status() == 200
            assert await stranger.hung_up() == b""

    asyncio.run(main())


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", SOON)

    async def main() -> None:
        async with served() as (answers, come):
            answers.may.clear()
            stranger = await come()
            await stranger.send(b"GET /predict?event=a HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await stranger.hung_up() == b""

    asyncio.run(main())


def test_answers_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 1)
    monkeypatch.setattr(connections, "AHEAD", 10**9)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", SOON)
    monkeypatch.setattr(connections, "IDLE_SECONDS", SOON)

    async def main() -> None:
        async with served() as (_, come):
            stranger = await come(limit=1024)  # it reads no more than that, and then leaves the rest to the system
            sending = asyncio.ensure_future(stranger.send(HEALTH.replace(b"health", b"openapi.json") * 5000))
            await is_there(come)
            sending.cancel()

    asyncio.run(main())


def test_no_more_requests_ahead_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "AHEAD", 3)
    ask = b"GET /predict?event=%d HTTP/1.1\r\nHost: x\r\n\r\n"

    async def main() -> None:
        async with served() as (answers, come):
            answers.may.clear()
            patient, hasty = await come(), await come()
            await patient.send(b"".join(ask % i for i in range(4)))
            await hasty.send(b"".join(ask % i for i in range(5)))
            assert (await hasty.hung_up()).startswith(b"HTTP/1.1 400 ")
            answers.may.set()
            assert [await patient.status() for _ in range(4)] == [200] * 4

    asyncio.run(main())


def test_nobody_may_speak_another_protocol() -> None:
    async def main() -> None:
        async with served() as (_, come):
            stranger = await come()
            upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            await stranger.send(HEALTH.removesuffix(b"\r\n") + upgrade + b"Sec-WebSocket-Version: 13\r\n\r\n")
            assert await stranger.status() == 200
            await stranger.send(b"what is no HTTP\r\n\r\n")
            assert (await stranger.hung_up()).startswith(b"HTTP/1.1 400 ")

    asyncio.run(main())


def test_many_at_the_same_time_are_answered() -> None:
    async def main() -> None:
        async with served() as (_, come):

            async def ask(number: int) -> Any:
                stranger = await come()
                body = json.dumps({"event": str(number)}).encode()
                await stranger.send(
                    b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
                )
                await stranger.send(body)
                return json.loads((await stranger.hung_up()).partition(b"\r\n\r\n")[2])

            found = await asyncio.gather(*(ask(number) for number in range(100)))
            assert found == [{"event": str(number)} for number in range(100)]

    asyncio.run(main())
