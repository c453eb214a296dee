"""The configuration of the nats-server of a federation: where it listens, who may connect, and what each may do."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.errors import ConfigError

MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes of the largest message; a nats-server warns of more than this."""

MOST_PAYLOAD = 64 * 1024 * 1024
"""A nats-server takes no larger one: it is what it keeps for a connection that is slow."""

PORT = 4222
MOST_CLIENTS = 65_535
"""A message has two bytes for a client's number."""


def check_federation(name: str) -> str:
    """Return the name, where it can be part of a subject.

    Raises:
        ConfigError: where it has other characters than letters, digits, ``_`` and ``-``, or none, or more than 64.

    >>> check_federation("two.banks")
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: the federation's name is 'two.banks', but it must be 1 to 64 letters, digits, _ or -
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ConfigError(f"the federation's name is '{name}', but it must be 1 to 64 letters, digits, _ or -")
    return name


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine and nobody else's way to it.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "nats.example.org")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class User:
    """Who may connect, and the only subjects that it may publish and subscribe.

    Args:
        name: for people, in a comment.
        nkey: the public half of its NKey.
        publish: subjects; ``*`` stands for one token.
        subscribe: likewise.
    """

    name: str
    nkey: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    password: str = ""
    """What it shows beside a certificate of its name; empty where its NKey is all that it shows."""


def party_users(
    federation: str,
    server: str,
    clients: Iterable[tuple[str, str]],
    askers: Iterable[tuple[str, str]] = (),
    passwords: Mapping[str, str] | None = None,
) -> tuple[User, ...]:
    """Return the users of a federation: the server, and the clients 1 to M; and who may ask the server for predictions.

    Client m publishes as itself and reads what is for it, and the queries. An asker asks as itself and reads its own
    answers. Nobody has another inbox, and nobody reaches JetStream or the system's subjects.

    Args:
        federation: its name.
        server: the server's public NKey.
        clients: the name and the public NKey of each, in order.
        askers: the name and the public NKey of each.
        passwords: by name, what each shows beside its certificate; see `anabranch.broker.credentials.proof`.

    >>> for user in party_users("demo", "UAAA", [("bank", "UBBB")]):
    ...     print(user.name, user.publish, user.subscribe)
    server ('demo.down.*', 'demo.query') ('demo.up.*',)
    bank ('demo.up.1',) ('demo.down.1', 'demo.query')
    """
    check_federation(federation)
    askers = list(askers)
    asked = (f"{federation}.ask.*",) if askers else ()
    answers = (f"{federation}.answer.*.>",) if askers else ()
    told = (f"{federation}.down.*", f"{federation}.query", *answers)
    users = [User("server", server, told, (f"{federation}.up.*", *asked))]
    for m, (name, nkey) in enumerate(clients, 1):
        users.append(User(name, nkey, (f"{federation}.up.{m}",), (f"{federation}.down.{m}", f"{federation}.query")))
    for name, nkey in askers:
        users.append(User(name, nkey, (f"{federation}.ask.{name}",), (f"{federation}.answer.{name}.>",)))
    return tuple(replace(user, password=(passwords or {}).get(user.name, "")) for user in users)


@dataclass(frozen=True)
class Tls:
    """The files of a nats-server's TLS; relative ones are relative to the folder that it is started in."""

    certificate: str | Path = "cert.pem"
    key: str | Path = "key.pem"
    ca: str | Path = "ca.pem"


@dataclass(frozen=True)
class ServerConf:
    """What a nats-server is told; ``text()`` is its configuration file.

    Args:
        host: where it listens.
        port: likewise; -1 is any free one.
        tls: its files; who connects needs a certificate of the same authority. None is plaintext.
        users: who may connect; none at all means everybody.
        max_payload: bytes of the largest message.
        jetstream: the folder of JetStream; None is without.
        monitoring: the port of its monitoring page, on loopback only; -1 is any free one, None is without.
        insecure: plaintext, or everybody, on other addresses than loopback too.

    Raises:
        ConfigError: where it would be open to others and is not said to be insecure, or a number is out of range.

    >>> ServerConf(host="0.0.0.0")
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: a nats-server at 0.0.0.0 without TLS lets others read along: give it certificates
    ('anabranch keys init' makes them), let it listen on 127.0.0.1, or say that it may be insecure
    """

    host: str = "127.0.0.1"
    port: int = PORT
    tls: Tls | None = None
    users: tuple[User, ...] = ()
    max_payload: int = MAX_PAYLOAD
    jetstream: str | Path | None = None
    monitoring: int | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("monitoring port", self.monitoring)):
            if port is not None and port != -1 and not 1 <= port <= 65535:
                raise ConfigError(f"the {name} is {port}, but it must be 1 to 65535, or -1 for any free one")
        if not 1 <= self.max_payload <= MOST_PAYLOAD:
            raise ConfigError(f"max_payload is {self.max_payload}, but it must be 1 to {MOST_PAYLOAD} bytes")
        if self.insecure or is_loopback(self.host):
            return
        remedy = "('anabranch keys init' makes them), let it listen on 127.0.0.1, or say that it may be insecure"
        if self.tls is None:
            raise ConfigError(
                f"a nats-server at {self.host} without TLS lets others read along: give it certificates {remedy}"
            )
        if not self.users:
            raise ConfigError(
                f"a nats-server at {self.host} without users lets each party read and write all: give it keys {remedy}"
            )

    @property
    def _by_certificate(self) -> bool:
        """Whether a user needs the certificate and the NKey of the same party."""
        return self.tls is not None and bool(self.users) and all(user.password for user in self.users)

    def text(self) -> str:
        """Return the configuration file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"host: {_quoted(self.host)}"
        yield f"port: {self.port}"
        yield f"max_payload: {self.max_payload}"
        if self.monitoring is not None:
            yield f'http: "127.0.0.1:{self.monitoring}"'
        if self.jetstream is not None:
            yield from ("", "jetstream {", f"  store_dir: {_quoted(self.jetstream)}", "}")
        if self.tls is not None:
            yield from ("", "tls {")
            yield f"  cert_file: {_quoted(self.tls.certificate)}"
            yield f"  key_file: {_quoted(self.tls.key)}"
            yield f"  ca_file: {_quoted(self.tls.ca)}"
            # Who connects is who its certificate names, and nobody else, where users have passwords.
            yield "  verify_and_map: true" if self._by_certificate else "  verify: true"
            yield '  min_version: "1.2"'
            # Else the greeting is plaintext, and whoever sits in between could leave out that TLS is wanted.
            yield "  handshake_first: true"
            yield "}"
        if self.users:
            yield from ("", "authorization {", "  users: [")
            for user in self.users:
                yield f"    {{ # {user.name}"
                if self._by_certificate:
                    yield f"      # {user.nkey}"
                    yield f"      user: {_quoted(f'CN={user.name}')}"
                    yield f"      password: {_quoted(user.password)}"
                else:
                    yield f"      nkey: {_quoted(user.nkey)}"
                yield "      permissions: {"
                yield f"        publish: {{ allow: {_list(user.publish)} }}"
                yield f"        subscribe: {{ allow: {_list(user.subscribe)} }}"
                yield "      }"
                yield "    }"
            yield from ("  ]", "}")


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _list(subjects: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_quoted, subjects))}]"
