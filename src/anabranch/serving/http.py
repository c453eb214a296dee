"""Predictions over HTTP: a small ASGI app, and the server that runs it beside a party.

It needs the extra ``http`` (Starlette and uvicorn).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.broker.nats_conf import is_loopback
from anabranch.errors import ConfigError, with_extra
from anabranch.serving.metrics import Metrics
from anabranch.serving.predictor import Predictor
from anabranch.storage.files import check_private

SHORTEST_TOKEN = 16
"""Letters of a token."""
START = 30.0
"""Seconds in which the server has to be there."""


@dataclass(frozen=True)
class HttpSettings:
    """Where predictions are to be had, and by whom.

    Args:
        port: 0 for any that is free.
        host: an address of this machine.
        token: a file with what who asks must show as ``Authorization: Bearer ..``; None is nothing.
        certificate: with ``key`` for TLS; None is plaintext.
        key: its private key.
        clients_ca: who asks needs a certificate signed by these; None asks for none.

    Raises:
        ConfigError: where these do not go together, or everybody on the network could ask.

    >>> HttpSettings(port=8080, host="0.0.0.0")
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: predictions at 0.0.0.0 are for everybody who can reach it: give a token, or
    certificate, key and clients_ca, or let it listen on 127.0.0.1
    """

    port: int
    host: str = "127.0.0.1"
    token: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    clients_ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("predictions: certificate and key belong together: give both or none")
        if self.clients_ca is not None and self.certificate is None:
            raise ConfigError("predictions: clients_ca is for TLS: give certificate and key too")
        if is_loopback(self.host):
            return
        if self.token is None and self.clients_ca is None:
            raise ConfigError(
                f"predictions at {self.host} are for everybody who can reach it: give a token, or certificate, key and "
                "clients_ca, or let it listen on 127.0.0.1"
            )
        if self.certificate is None:
            raise ConfigError(
                f"predictions at {self.host} without TLS show the token to whoever reads along: give certificate and "
                "key, or let it listen on 127.0.0.1 behind a proxy that has them"
            )

    def read_token(self) -> str | None:
        """What is in the token's file.

        Raises:
            ConfigError: where it is missing, open to others or short.
        """
        if self.token is None:
            return None
        check_private(self.token)
        try:
            token = self.token.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.token}: cannot be read ({error})") from error
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"{self.token}: a token has at least {SHORTEST_TOKEN} printable ASCII letters; "
                "'openssl rand -hex 32' makes one"
            )
        return token


@asynccontextmanager
async def serving_predictions(predictor: Predictor, metrics: Metrics, settings: HttpSettings) -> AsyncIterator[int]:
    """While it is entered, predictions can be asked for over HTTP; in the loop that the party runs in.

    Returns:
        The port.

    Raises:
        ConfigError: where it cannot be had, a file is wrong, or the extra is not installed.
    """
    try:
        import uvicorn

        from anabranch.serving.app import app
        from anabranch.serving.connections import Bounded, Listening
    except ImportError as error:
        raise ConfigError(f"predictions over HTTP need {error.name}: {with_extra('http')}") from None
    token = settings.read_token()
    config = uvicorn.Config(
        app(predictor, metrics, token),
        http=Bounded,
        ws="none",
        log_config=None,
        log_level="error",  # what strangers send is nobody's concern
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=3600,  # `Bounded` has a shorter one
    )
    _load_tls(config, settings)
    listening = _listen(settings, Listening)
    port = int(listening.getsockname()[1])

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:  # the party has its own
            yield

    server = Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(START):
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
        scheme = "http" if settings.certificate is None else "https"
        where = f"[{settings.host}]" if ":" in settings.host else settings.host
        predictor.party.say(f"predictions are at {scheme}://{where}:{port}/predict; see also /openapi.json")
        yield port
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait({task})
        listening.close()


def _listen(settings: HttpSettings, kind: type[socket.socket]) -> socket.socket:
    listening = kind(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(128)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"predictions: port {settings.port} of {settings.host} cannot be had ({error.strerror or error}): name "
            "another one, or 0 for any that is free"
        ) from error
    return listening


def _load_tls(config: Any, settings: HttpSettings) -> None:
    if settings.certificate is None or settings.key is None:
        return
    check_private(settings.key)
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.certificate, settings.key, password="")  # nobody is there to be asked
        if settings.clients_ca is not None:
            context.load_verify_locations(settings.clients_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"predictions: the certificate, key or clients_ca cannot be used ({error})") from error
    config.load()
    config.ssl = context
