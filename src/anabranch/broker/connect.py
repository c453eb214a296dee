"""Connecting a party to its broker, and saying why where that fails."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from nats import errors
from nats.aio.client import Client

from anabranch.broker.credentials import Credentials, public_nkey
from anabranch.errors import ConnectError

OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "max_reconnect_attempts": -1,  # a party waits for its broker, however long
    "reconnect_time_wait": 0.25,
    "ping_interval": 3,  # a broker whose machine has fallen silent is left at the third that is not answered
    "max_outstanding_pings": 2,
}
"""What ``connect`` tells nats-py beside the credentials, in seconds."""

# OpenSSL's numbers of what is wrong with a certificate.
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS, _PURPOSE = 10, 9, 62, 64, 26

_CANCEL_AGAIN = 0.1
"""Seconds."""

_log = logging.getLogger(__name__)


async def connect(credentials: Credentials, **options: Any) -> Client:
    """Connect a party; afterwards nats-py reconnects by itself, for as long as it takes.

    The first attempt decides: one that fails raises, once each of the URLs was tried. Where the error is ``temporary``,
    the caller may try again.

    Args:
        credentials: of the party.
        options: of ``nats.connect``; they have the last word.

    Raises:
        ConfigError: where a file of the credentials is missing, damaged, open to others or expired.
        ConnectError: where the party cannot connect; it says why.
    """
    told = OPTIONS | credentials.connect_options() | options
    urls: list[str] = list(credentials.urls)
    random.shuffle(urls)  # so that the parties spread over a cluster
    why: list[ConnectError] = []
    for begin, url in enumerate(urls):
        # nats-py knows all of them, and begins with this one.
        told |= {"servers": urls[begin:] + urls[:begin], "dont_randomize": True}
        client, error = await _try_first(told)
        if error is None:
            return client
        why.append(explain(error, replace(credentials, urls=(url,))))
    raise next((each for each in why if not each.temporary), why[0])


async def disconnect(client: Client, seconds: float = 2.0) -> None:
    """Close a connection, what is still to be sent first, and never hangs.

    ``close`` of nats-py waits for ever where the last handshake failed, as after a broker's certificate expired.

    Args:
        client: as ``connect`` returned it.
        seconds: how long that may take.
    """
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait({closing}, timeout=seconds)
    await _end(closing, seconds)


def explain(error: BaseException, credentials: Credentials) -> ConnectError:
    """What an error of a connection means, for people.

    Args:
        error: as nats-py raised it, or gave it to its error callback.
        credentials: with which the connection was tried.

    >>> print(explain(ConnectionRefusedError(), Credentials(("nats://localhost:4222",), "demo", "bank", 1)))
    there is no broker at nats://localhost:4222: start it, or wait until it is there
    """
    text, temporary = _reason(error, credentials)
    why = ConnectError(text)
    why.temporary = temporary
    why.__cause__ = error
    return why


async def _logged(error: Exception) -> None:
    _log.warning("connection: %s", error or type(error).__name__)


async def _end(task: asyncio.Future[Any], seconds: float = math.inf) -> None:
    """Cancel it and wait for that; an error that it had is not of interest.

    ``asyncio.wait_for``, which nats-py uses, loses a cancellation that comes just when what it waits for is done
    (before Python 3.12): so it is cancelled again and again.
    """
    deadline = time.monotonic() + seconds
    while not task.done() and (left := deadline - time.monotonic()) > 0:
        task.cancel()
        await asyncio.wait({task}, timeout=min(left, _CANCEL_AGAIN))
    if task.done() and not task.cancelled():
        task.exception()  # else asyncio says that nobody asked for it


async def _try_first(told: dict[str, Any]) -> tuple[Client, Exception | None]:
    """Return one attempt at the first URL: a client that is connected, or the error of one that is not and never
    will be.
    """
    theirs: Callable[[Exception], Awaitable[None]] = told.get("error_cb") or _logged
    first: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    connected = False

    async def error_cb(error: Exception) -> None:
        if connected:
            await theirs(error)
        elif not first.done():
            first.set_result(error)
            await asyncio.Event().wait()  # until it is cancelled: else nats-py tries again, for ever

    client = Client()
    connecting: asyncio.Future[Any] = asyncio.ensure_future(client.connect(**{**told, "error_cb": error_cb}))
    try:
        await asyncio.wait([connecting, first], return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return client, first.result()
        if (error := connecting.exception()) is not None:
            if not isinstance(error, OSError | errors.Error | asyncio.TimeoutError):
                raise error  # an option that nats-py does not know, for one
            return client, error
        # nats-py takes it for a success where the broker hangs up instead of answering.
        connected = client.is_connected
        return client, None if connected else errors.UnexpectedEOF()
    finally:
        if not connected:
            await _end(connecting)
            await disconnect(client, 0.25)


def _reason(error: BaseException, credentials: Credentials) -> tuple[str, bool]:
    """Return the message, and whether trying again may help."""
    where = credentials.address
    if isinstance(error, ssl.SSLCertVerificationError):
        return _broker_certificate(error, credentials), False
    if isinstance(error, ssl.SSLError):
        return _tls(error, credentials)
    if isinstance(error, socket.gaierror):
        return f"{where}: there is no host of this name: is the url right, and is there a network?", True
    if isinstance(error, ConnectionRefusedError):
        return f"there is no broker at {where}: start it, or wait until it is there", True
    if isinstance(error, asyncio.TimeoutError):
        return f"the broker at {where} does not answer: is the url right, and does a firewall let it through?", True
    text = str(error)
    lower = text.lower()
    if isinstance(error, errors.AuthorizationError) or "authorization violation" in lower:
        return _unknown_party(credentials), False
    if "secure connection required" in lower or (not credentials.tls and "empty response" in lower):
        return (
            f"the broker at {where} closed the connection without a greeting, since it wants TLS: use tls://, with ca, "
            "certificate and key",
            False,
        )
    hung_up = isinstance(error, errors.UnexpectedEOF | ConnectionResetError | BrokenPipeError)
    if hung_up or "empty response" in lower:
        return (
            f"the broker at {where} closed the connection before it was made: it is stopping, or it refuses this party "
            "(its log says why)",
            True,
        )
    if isinstance(error, errors.Error):
        return f"the broker at {where} refuses the connection: {text.removeprefix('nats: ')}", False
    return f"cannot connect to the broker at {where}: {text or type(error).__name__}", isinstance(error, OSError)


def _broker_certificate(error: ssl.SSLCertVerificationError, credentials: Credentials) -> str:
    whose = f"the certificate of the broker at {credentials.address}"
    if error.verify_code == _EXPIRED:
        return f"{whose} has expired: whoever runs it makes a new one with 'anabranch keys renew'"
    if error.verify_code == _NOT_YET:
        return f"{whose} is not valid yet: is this machine's clock right?"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return f"{whose} is for another host ({error.verify_message}): use a name that is in the certificate"
    if error.verify_code == _PURPOSE:
        return f"{whose} is a party's, not a broker's: someone else may be answering there"
    return f"{whose} is not signed by {credentials.ca} ({error.verify_message}): use files of one authority"


def _tls(error: ssl.SSLError, credentials: Credentials) -> tuple[str, bool]:
    where, reason = credentials.address, error.reason or ""
    mine = credentials.certificate
    if "ALERT_CERTIFICATE_REQUIRED" in reason:
        return f"the broker at {where} wants a certificate, and this party showed none: give certificate and key", False
    if "ALERT_CERTIFICATE_EXPIRED" in reason:
        return (
            f"the broker at {where} refuses {mine}, which has expired: ask for a new one ('anabranch keys renew')",
            False,
        )
    if "ALERT_UNKNOWN_CA" in reason:
        return (
            f"the broker at {where} refuses {mine}, whose authority it does not know: use files of one authority",
            False,
        )
    if "CERTIFICATE" in reason and "ALERT" in reason:
        return f"the broker at {where} refuses {mine} ({reason}): its log says why", False
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return (
            f"the broker at {where} speaks plaintext first: it has no TLS, or needs 'handshake_first: true' in the tls "
            "section of its configuration",
            False,
        )
    return f"no TLS with the broker at {where}: {reason or error} (its log says more)", "EOF" in reason


def _unknown_party(credentials: Credentials) -> str:
    where = credentials.address
    if credentials.seed is None:
        return f"the broker at {where} wants an NKey, and this party has none: give seed"
    pair = f", or {credentials.certificate} is not of the same party" if credentials.tls else ""
    return (
        f"the broker at {where} does not know the NKey {public_nkey(credentials.seed)} of {credentials.seed}{pair}: "
        f"is it of this federation, {credentials.federation}, and is the user in the broker's configuration?"
    )
