"""Connections of HTTP, none of which can hold its place for long, or fill the memory.

It needs the extra ``http``, so nothing else imports this module before predictions are wanted.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS = 512
"""So many there are at a time; the next one is hung up."""
HEAD_SECONDS, ANSWER_SECONDS, IDLE_SECONDS = 10.0, 60.0, 30.0
"""A connection has so long for the head of a request; then until the answer is written; then until the next one."""
HEAD_BYTES = 32 * 1024
"""Of the head of a request."""
AHEAD = 100
"""So many requests may be sent before the answer to an earlier one."""


class Listening(socket.socket):
    """A socket that takes `CONNECTIONS` at a time.

    Uvicorn hears of a connection only after TLS's handshake, which nobody who connects has to begin.
    """

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._taken: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        taken, address = super().accept()
        if sum(each.fileno() >= 0 for each in self._taken) >= CONNECTIONS:
            taken.close()
            raise ConnectionAbortedError
        self._taken.add(taken)
        return taken, address


class _TooMuchError(Exception):
    """Ends the parsing of a request; uvicorn answers with 400, and hangs up."""


class Bounded(HttpToolsProtocol):
    """Uvicorn's protocol of HTTP, which by itself waits for ever, and takes a head of any length."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head: int | None = None
        """Bytes of the head of a request, while there is one that has begun, but for what came with its beginning."""
        self._timer = self._hang_up_after(HEAD_SECONDS)
        if len(self.connections) > CONNECTIONS:  # in a loop that does not ask `Listening`
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _hang_up_after(self, seconds: float) -> asyncio.TimerHandle:
        # To close it would wait until the other side has read everything.
        return self.loop.call_later(seconds, self.transport.abort)

    def _has(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._hang_up_after(seconds)

    def data_received(self, data: bytes) -> None:
        self._began = False
        super().data_received(data)
        if self._head is None or self._began or self.transport.is_closing():
            return
        self._head += len(data)  # the parser keeps a field to itself until it is whole
        if self._head > HEAD_BYTES:
            self.send_400_response(f"the head of a request has at most {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._fields, self._began = 0, 0, True
        self._has(HEAD_SECONDS)

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def _count(self, part: bytes) -> None:
        self._fields += len(part)
        if self._fields > HEAD_BYTES:
            raise _TooMuchError

    def on_headers_complete(self) -> None:
        self._head = None
        if len(self.pipeline) >= AHEAD:
            raise _TooMuchError
        super().on_headers_complete()
        self._has(ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        if self._head is None:  # else its time runs
            self._has(ANSWER_SECONDS if self.pipeline else IDLE_SECONDS)
        super().on_response_complete()
