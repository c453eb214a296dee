"""What one party needs to connect: its files, read and checked before anything is sent."""

from __future__ import annotations

import hashlib
import ssl
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from anabranch.broker.nats_conf import MOST_CLIENTS, PORT, check_federation, is_loopback
from anabranch.errors import ConfigError, nearest
from anabranch.storage.files import check_private

CONNECTION = "connection.toml"
SERVER = "server"
ASKER = -1
"""In place of a client's number: one that only asks for predictions."""


@dataclass(frozen=True)
class Credentials:
    """Who a party is, where its broker is, and what it shows there.

    Args:
        urls: of the broker, ``tls://HOST:PORT``; several where it is a cluster. ``nats://`` where it is plaintext.
        federation: its name.
        party: this party's name.
        index: 1 to M for a client, 0 for the server, -1 for who only asks for predictions.
        ca: certificates of whoever signs the broker's; None, and no certificate and key, is plaintext.
        certificate: of this party.
        key: its private key.
        seed: the file of its NKey; None where the broker asks for none.
        insecure: plaintext to another machine is what is wanted.
        clients: the names of all clients, in order; the server has them.

    Raises:
        ConfigError: where these do not go together, or it would be plaintext to another machine unasked.

    >>> Credentials(("nats://10.0.0.5:4222",), "demo", "bank", 1)
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: nats://10.0.0.5:4222 is another machine, and plaintext lets others read along: give
    the files of TLS (ca, certificate, key), or write insecure = true
    """

    urls: tuple[str, ...]
    federation: str
    party: str
    index: int
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    seed: Path | None = None
    insecure: bool = False
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_federation(self.federation)
        if not self.party or not self.party.isprintable():
            raise ConfigError(f"party is {self.party!r}, but it must be a name that a log can have in a line")
        if not ASKER <= self.index <= MOST_CLIENTS:
            raise ConfigError(
                f"index is {self.index}, but it must be 1 to M for a client, and at most {MOST_CLIENTS:,}, 0 for the "
                "server, or -1 for who only asks"
            )
        if not self.urls:
            raise ConfigError("url is empty, but it must say where the broker is, such as tls://nats.example.org:4222")
        tls = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        if any(tls.values()) and not all(tls.values()):
            missing = ", ".join(name for name, path in tls.items() if path is None)
            raise ConfigError(f"TLS needs ca, certificate and key, and there is no {missing}")
        for url in self.urls:
            _check_url(url, self.tls, self.insecure)

    @property
    def tls(self) -> bool:
        """Whether the connection is TLS."""
        return self.ca is not None

    @property
    def address(self) -> str:
        """Where the broker is, for people."""
        return " or ".join(self.urls)

    @classmethod
    def load(cls, path: str | Path) -> Credentials:
        """Return those of a ``connection.toml``, whose files are relative to itself; they are checked too.

        Raises:
            ConfigError: where a file is missing, damaged or open to others, or a certificate is expired or not signed
                by the authority.
        """
        path = Path(path)
        table = _read_toml(path)

        def file(name: str) -> Path | None:
            value = table.get(name)
            return None if value is None else path.parent / value

        url = table["url"]
        try:
            credentials = cls(
                urls=(url,) if isinstance(url, str) else tuple(url),
                federation=table["federation"],
                party=table["party"],
                index=table["index"],
                ca=file("ca"),
                certificate=file("certificate"),
                key=file("key"),
                seed=file("seed"),
                insecure=table.get("insecure", False),
                clients=tuple(table.get("clients", ())),
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        credentials.check()
        return credentials

    def check(self) -> None:
        """Look at the files, as a broker would at what is in them.

        Raises:
            ConfigError: where one is missing, damaged or open to others, or a certificate is expired or not signed by
                the authority.
        """
        for private in (self.key, self.seed):
            if private is not None:
                _read(private)  # says where it is missing
                check_private(private)
        if self.seed is not None:
            _read_seed(self.seed)
        if self.ca is not None and self.certificate is not None:
            authorities, chain = read_certificates(self.ca), read_certificates(self.certificate)
            for path, certificates in ((self.ca, authorities), (self.certificate, chain[:1])):
                for certificate in certificates:
                    _check_dates(path, certificate)
            _check_signed(self.certificate, chain, self.ca, authorities)
            self._context()

    def expires(self) -> datetime | None:
        """When the party's certificate expires; None without one."""
        return None if self.certificate is None else read_certificates(self.certificate)[0].not_valid_after_utc

    def connect_options(self) -> dict[str, Any]:
        """What ``nats.connect`` is told: where, with which TLS and which NKey.

        TLS is 1.2 or later, begins before the greeting (so that nobody in between can leave it out), and the broker's
        certificate must name its host.

        Raises:
            ConfigError: as ``check`` says.
        """
        self.check()
        options: dict[str, Any] = {"servers": list(self.urls), "name": f"{self.federation}.{self.party}"}
        if self.tls:
            options |= {"tls": self._context(), "tls_handshake_first": True}
        if self.seed is not None:
            options["nkeys_seed_str"] = _read_seed(self.seed)
            if self.tls:  # the broker that maps certificates to users asks for this, and for no signature of the NKey
                options |= {"user": self.party, "password": proof(self.seed, self.party)}
        return options

    def _context(self) -> ssl.SSLContext:
        assert self.ca is not None
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the host's name too
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self.ca)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"{self.key}: is not the key of {self.certificate}: use one pair") from None
            raise ConfigError(f"{self.key}: is not a private key in PEM's form without a password ({error})") from None
        return context


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one.

    Raises:
        ConfigError: where it is missing or damaged.
    """
    content = _read(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise ConfigError(f"{path}: is not a certificate in PEM's form: it was edited or is damaged") from None


def public_nkey(seed: Path) -> str:
    """Return the public half of the NKey of a seed's file, which is no secret.

    Raises:
        ConfigError: where it is missing or damaged.
    """
    return str(nkeys.from_seed(bytearray(_read_seed(seed).encode())).public_key.decode())


def proof(seed: Path, party: str) -> str:
    """Return the password that a party shows beside its certificate: only who has its NKey can work it out.

    It is a hash of the NKey's signature of the party's name, so it tells nothing of the NKey. The broker has it in its
    configuration, and lets nobody in with another party's.

    Raises:
        ConfigError: if the seed is missing or damaged.
    """
    signed = nkeys.from_seed(bytearray(_read_seed(seed).encode())).sign(f"anabranch party {party}".encode())
    return hashlib.sha256(signed).hexdigest()


def _read_toml(path: Path) -> dict[str, Any]:
    content = _read(path)
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    text: tuple[type, ...] = (str,)
    known: dict[str, tuple[type, ...]] = {
        "federation": text, "party": text, "index": (int,), "url": (str, list), "ca": text, "certificate": text,
        "key": text, "seed": text, "insecure": (bool,), "clients": (list,),
    }  # fmt: skip
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{path}: there is no setting '{name}'.{nearest(name, known)}")
        items: Iterable[Any] = value if isinstance(value, list) else ()
        if type(value) not in known[name] or not all(isinstance(item, str) for item in items):
            expected = {"index": "a whole number", "insecure": "true or false", "clients": "a list of names"}
            raise ConfigError(f"{path}: {name} is {value!r}, but it must be {expected.get(name, 'a text in quotes')}")
    for name in ("federation", "party", "index", "url"):
        if name not in table:
            raise ConfigError(f"{path}: {name} is missing: use the file that 'anabranch keys init' made")
    return table


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file: use the folder that 'anabranch keys init' made, whole"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _read_seed(path: Path) -> str:
    seed = _read(path).decode(errors="replace").strip()
    try:
        prefix, _ = nkeys.decode_seed(bytearray(seed.encode()))
        public = nkeys.from_seed(bytearray(seed.encode())).public_key
    except Exception:  # nkeys raises many kinds, and none may show the seed
        prefix, public = None, b""
    if prefix != nkeys.PREFIX_BYTE_USER or not public.startswith(b"U"):
        raise ConfigError(f"{path}: is not the seed of a user's NKey (SU...): it was edited or is damaged")
    return seed


def _no_password() -> str:
    return ""  # else OpenSSL asks in the terminal


def _check_url(url: str, tls: bool, insecure: bool) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    scheme = "tls" if tls else "nats"
    if not host or parts.scheme not in ("tls", "nats"):
        raise ConfigError(f"url is '{url}', but it must be like {scheme}://nats.example.org:{PORT}")
    if parts.username or parts.password:
        raise ConfigError(f"url names a user (before {host}), but a party shows its NKey: leave the user out")
    if tls:
        if parts.scheme == "nats":
            raise ConfigError(
                f"{url} is plaintext, and ca, certificate and key are for TLS: write tls:// where the broker has TLS, "
                "or leave the three out"
            )
        return
    if parts.scheme == "tls":
        raise ConfigError(f"{url} is TLS, and that needs ca, certificate and key")
    if not insecure and not is_loopback(host):
        raise ConfigError(
            f"{url} is another machine, and plaintext lets others read along: give the files of TLS (ca, certificate, "
            "key), or write insecure = true"
        )


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise ConfigError(
            f"{path}: this certificate expired on {end:%Y-%m-%d %H:%M} UTC: ask whoever has the authority for a new "
            "one ('anabranch keys renew')"
        )
    if now < begin:
        raise ConfigError(
            f"{path}: this certificate is valid from {begin:%Y-%m-%d %H:%M} UTC only, and here it is "
            f"{now:%Y-%m-%d %H:%M} UTC: is this machine's clock right?"
        )


def _check_signed(path: Path, chain: list[x509.Certificate], ca: Path, authorities: list[x509.Certificate]) -> None:
    """The first certificate is signed by an authority, or by one of the others, which is."""
    current, others = chain[0], chain[1:]
    while not any(_signed_by(current, authority) for authority in authorities):
        above = next((other for other in others if _signed_by(current, other)), None)
        if above is None:
            raise ConfigError(f"{path}: this certificate is not signed by {ca}: use files of one authority")
        current, others = above, [other for other in others if other is not above]


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
