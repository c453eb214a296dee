"""A party's connection to its broker: messages out, messages in, and the bytes of both counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import CONNECTION, Credentials
from anabranch.errors import ConfigError, ConnectError
from anabranch.protocol.codec import LARGEST, encode
from anabranch.protocol.messages import Message

RETRY = 0.5
"""Seconds between two attempts to connect for the first time."""
ASKED, SHARE = 1024, 64
"""So many questions are answered at a time, of all askers together and of one of them."""
BUSY = b'{"error": "%s at a time: ask again in a moment", "status": 429}'
MANY, YOURS = BUSY % b"too many ask", BUSY % b"you ask too much"
FLUSH = 5
"""Seconds in which a broker has to have taken the subscriptions."""


class Counted(NamedTuple):
    """What is counted apart."""

    direction: str
    """``"out"`` or ``"in"``."""
    kind: str
    """Of the message, such as ``"Embeddings"``."""
    client: int
    """Which client it goes to or comes from; 0 is all of them."""


class Link:
    """Carries the messages of one party.

    Args:
        credentials: of the party.
        receive: called with each message's bytes, and from which client it is (0 is the server).
        back: called whenever the connection came back after it was lost: messages may be lost.
        lost: called with why, whenever it is lost, or cannot be made yet.
        failed: called with why, where it was made once and the broker does not take the party any more.
    """

    def __init__(
        self,
        credentials: Credentials,
        receive: Callable[[int, bytes], None],
        back: Callable[[], None],
        lost: Callable[[str], None],
        failed: Callable[[ConfigError | ConnectError], None],
    ) -> None:
        self.credentials = credentials
        self.bytes: Counter[Counted] = Counter()
        """On the wire, without the broker's own frames."""
        self.messages: Counter[Counted] = Counter()
        self._receive, self._back, self._lost, self._failed = receive, back, lost, failed
        self._nats: Client | None = None
        self.reconnections = 0
        """How often the connection came back."""
        self._again: asyncio.Task[None] | None = None
        self._subject = credentials.federation
        self.answer: Callable[[bytes], Awaitable[bytes]] | None = None
        """Answers whoever may ask the server; set before `open`. None: nobody may."""
        self._answering: dict[asyncio.Task[None], str] = {}
        """Whose question each of them answers."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker."""
        return self._nats is not None and self._nats.is_connected

    async def open(self) -> None:
        """Connect, however long that takes while trying again may help, and subscribes.

        Raises:
            ConfigError: where a file of the credentials is wrong.
            ConnectError: where the broker refuses the party.
        """
        told, refused = "", False
        while self._nats is None:
            try:
                self._nats = await self._subscribed()
            except ConnectError as error:
                # One that is killed just then may look like one that refuses: it has to do so twice.
                if not error.temporary and refused:
                    raise
                refused = not error.temporary
                if not refused and str(error) != told:
                    told = str(error)
                    self._lost(told)
                await asyncio.sleep(RETRY)

    async def _subscribed(self) -> Client:
        """Return a connection whose broker has taken the subscriptions."""
        client = await connect(
            self.credentials,
            reconnected_cb=self._reconnected,
            disconnected_cb=self._disconnected,
            closed_cb=self._closed,
            error_cb=self._error,
            pending_size=64 * 2**20,
        )
        if self.credentials.index:
            subjects = [f"{self._subject}.down.{self.credentials.index}", f"{self._subject}.query"]
        else:
            subjects = [f"{self._subject}.up.*"]
        try:
            for subject in subjects:
                await client.subscribe(
                    subject, cb=self._arrived, pending_msgs_limit=2**20, pending_bytes_limit=256 * 2**20
                )
            if self.answer is not None:
                await client.subscribe(f"{self._subject}.ask.*", cb=self._asked)
            for _ in range(2):  # the first ping of nats-py overtakes what waits to be written, the second one does not
                await client.flush(FLUSH)
            if client.is_closed:  # for good, and `_closed` did not know it yet
                raise errors.ConnectionClosedError
        except BaseException as error:
            await disconnect(client)
            if not isinstance(error, errors.Error | OSError):
                raise
            lost = ConnectError(
                f"the broker at {self.credentials.address} was lost before it had taken the subscriptions "
                f"({str(error) or type(error).__name__})"
            )
            lost.temporary = True
            raise lost from error
        return client

    async def send(self, message: Message, client: int | None = None) -> None:
        """Send a message: the server to one client or to all (None), a client to the server.

        While the connection is away it is lost, as one that was under way would be.

        Raises:
            ConnectError: where it is larger than what the other side reads, or than the broker's limit.
        """
        if self._nats is None or not self._nats.is_connected:
            return
        raw = encode(message)
        if len(raw) > LARGEST:
            raise ConnectError(
                f"a message ({type(message).__name__}) has {len(raw):,} bytes, and no party reads one of more than "
                f"{LARGEST:,}: make the window of SLR, the embedding or in_flight smaller"
            )
        own = self.credentials.index
        if own:
            subject = f"{self._subject}.up.{own}"
        else:
            subject = f"{self._subject}.query" if client is None else f"{self._subject}.down.{client}"
        try:
            await self._nats.publish(subject, raw)
        except errors.MaxPayloadError:
            raise ConnectError(
                f"a message ({type(message).__name__}) has {len(raw):,} bytes, and the broker takes at most "
                f"{self._nats.max_payload:,}: raise max_payload in its configuration"
            ) from None
        except (errors.Error, OSError) as error:
            self._lost(f"a message was lost: {error}")
        else:
            self._count(Counted("out", type(message).__name__, own or client or 0), len(raw))

    def count(self, kind: str, client: int, size: int) -> None:
        """Count a message that arrived."""
        self._count(Counted("in", kind, client), size)

    def _count(self, counted: Counted, size: int) -> None:
        self.bytes[counted] += size
        self.messages[counted] += 1

    def state(self) -> list[list[Any]]:
        """What is counted, as JSON values: direction, kind, client, bytes and messages of each."""
        return [[*counted, size, self.messages[counted]] for counted, size in sorted(self.bytes.items())]

    def restore(self, state: list[list[Any]]) -> None:
        """Go on counting from there; the inverse of `state`."""
        for *counted, size, messages in state:
            self.bytes[Counted(*counted)], self.messages[Counted(*counted)] = size, messages

    async def close(self) -> None:
        """Send what is still to be sent, and hang up."""
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait({self._again})
        for task in [*self._answering]:
            task.cancel()
        if self._nats is not None:
            client, self._nats = self._nats, None
            await disconnect(client)

    async def _arrived(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        client = 0 if self.credentials.index else int(name) if name.isdecimal() and len(name) < 6 else -1
        self._receive(client, message.data)

    async def _asked(self, message: Msg) -> None:
        """Somebody asks; the answer goes to who it was, and to no other subject that the server may publish to."""
        asker = message.subject.rpartition(".")[2]
        if not message.reply.startswith(f"{self._subject}.answer.{asker}."):
            return
        if list(self._answering.values()).count(asker) >= SHARE:
            await self._reply(message, YOURS)
        elif len(self._answering) >= ASKED:
            await self._reply(message, MANY)
        else:
            task = asyncio.ensure_future(self._answer(message))
            self._answering[task] = asker
            task.add_done_callback(self._answering.pop)

    async def _answer(self, message: Msg) -> None:
        assert self.answer is not None
        await self._reply(message, await self.answer(message.data))

    async def _reply(self, message: Msg, answer: bytes) -> None:
        if self._nats is not None and self._nats.is_connected:
            try:
                await self._nats.publish(message.reply, answer)
            except (errors.Error, OSError) as error:
                self._lost(f"an answer was lost: {error}")

    async def _reconnected(self) -> None:
        self.reconnections += 1
        self._back()

    async def _disconnected(self) -> None:
        if self._nats is not None:  # else it was this party that hung up
            self._lost("the connection to the broker is lost; waiting for it")

    async def _closed(self) -> None:
        """nats-py has given up for good, as it does where a broker says that something is wrong: connects anew."""
        if self._nats is not None and self._nats.is_closed:
            self._nats = None
            self._again = asyncio.ensure_future(self._open_again())

    async def _open_again(self) -> None:
        try:
            await self.open()
            await self._reconnected()
        except (ConfigError, ConnectError) as error:
            self._failed(error)
        except Exception as error:  # else nobody would hear of it
            wrong = ConnectError(f"the connection to the broker cannot be made again: {error!r}")
            wrong.__cause__ = error
            self._failed(wrong)

    async def _error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if "permissions violation" in text.lower():
            text += (
                f": the broker lets this party use other subjects only. Are federation ({self.credentials.federation}) "
                f"and index ({self.credentials.index}) in {CONNECTION} those that its key was made for?"
            )
        self._lost(text)
