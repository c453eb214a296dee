"""The keys of a federation: an authority, and for each party a certificate, an NKey and where to connect."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import nkeys  # type: ignore[import-untyped]
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from anabranch.broker.credentials import ASKER, CONNECTION, SERVER, proof, read_certificates
from anabranch.broker.nats_conf import PORT, ServerConf, Tls, check_federation, party_users
from anabranch.errors import ConfigError
from anabranch.storage.files import replace_file, writing

AUTHORITY, BROKER = "authority", "broker"
CA, CERTIFICATE, KEY, SEED, CONF = "ca.pem", "cert.pem", "key.pem", "party.nk", "nats-server.conf"
DAYS, AUTHORITY_DAYS = 365, 3650


class _Signer(NamedTuple):
    """An authority: its certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def init(
    folder: str | Path,
    federation: str,
    hosts: str | Sequence[str],
    clients: Sequence[str],
    *,
    askers: Sequence[str] = (),
    port: int = PORT,
    listen: str = "0.0.0.0",
    days: int = DAYS,
) -> None:
    """Make the keys of a federation, a folder for each party to be handed over.

    ``authority/`` stays with whoever runs this: its key signs. ``broker/`` is the nats-server's, with its
    configuration, to be started in it; ``server/`` and one folder named after each client are the parties'. Private
    files can be read by their owner only. Nothing is overwritten, and no key is left of what fails.

    Args:
        folder: made where it is not there.
        federation: its name.
        hosts: names or addresses by which the parties reach the nats-server.
        clients: their names, in order: the first is client 1.
        askers: the names of those that may ask the server for predictions, and do nothing else.
        port: of the nats-server.
        listen: the address that it listens on.
        days: how long the certificates are valid; the authority's is for ten years.

    Raises:
        ConfigError: where a name or number is wrong, or something is there already.
        OutputError: where the folder cannot be written.
    """
    folder, hosts = Path(folder), [hosts] if isinstance(hosts, str) else list(hosts)
    check_federation(federation)
    _check_names(clients, askers)
    _check_hosts(hosts)
    _check_host(listen)
    _check_days(days)
    if not 1 <= port <= 65535:
        raise ConfigError(f"the port is {port}, but it must be 1 to 65535")
    if there := [name for name in (AUTHORITY, BROKER, SERVER, *clients, *askers) if (folder / name).exists()]:
        raise ConfigError(f"{folder} has {', '.join(f'{name}/' for name in there)} already: name another folder")
    with writing("keys", folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=".keys-"))
        try:
            signer = _make_authority(made / AUTHORITY, federation)
            public = {}
            indices = {name: index for index, name in enumerate((SERVER, *clients))} | dict.fromkeys(askers, ASKER)
            for name, index in indices.items():
                _make_party(made / name, signer, _issue_party(name, days))
                public[name] = _make_nkey(made / name / SEED)
                about = {"federation": federation, "party": name, "index": index, "url": _urls(hosts, port)}
                about |= {"ca": CA, "certificate": CERTIFICATE, "key": KEY, "seed": SEED}
                about |= {"clients": list(clients)} if name == SERVER else {}
                replace_file(made / name / CONNECTION, tomli_w.dumps(about).encode())
            _make_party(made / BROKER, signer, _issue_broker(hosts, days))
            users = party_users(
                federation,
                public[SERVER],
                [(name, public[name]) for name in clients],
                [(name, public[name]) for name in askers],
                passwords={name: proof(made / name / SEED, name) for name in indices},
            )
            conf = ServerConf(host=listen, port=port, tls=Tls(CERTIFICATE, KEY, CA), users=users)
            head = f"# Start it in this folder, since its files are relative to it: nats-server -c {CONF}\n\n"
            _write_private(made / BROKER / CONF, (head + conf.text()).encode())
            for name in (AUTHORITY, BROKER, *indices):
                (made / name).rename(folder / name)
        finally:
            shutil.rmtree(made)


def renew(folder: str | Path, party: str, *, days: int = DAYS) -> Path:
    """Make a new certificate for the key of the old one, so that only ``cert.pem`` is to be handed over again.

    Args:
        folder: the one that ``init`` made, with its authority.
        party: ``server``, ``broker`` or a client's name.
        days: how long it is valid from now.

    Returns:
        The file of the certificate, which took the place of the old one.

    Raises:
        ConfigError: where there is no such party or authority, or its files are damaged.
        OutputError: where it cannot be written.
    """
    folder = Path(folder)
    path = folder / party / CERTIFICATE
    _check_days(days)
    if party == AUTHORITY or not path.is_file():
        parties = sorted(each.parent.name for each in folder.glob(f"*/{CERTIFICATE}"))
        known = f"there are {', '.join(parties)}" if parties else "'anabranch keys init' makes them"
        raise ConfigError(f"{folder} has no certificate of '{party}': {known}")
    signer = _read_authority(folder / AUTHORITY)
    left = signer.certificate.not_valid_after_utc - datetime.now(UTC)
    if left < timedelta(days=days):
        raise ConfigError(
            f"days is {days}, but {folder / AUTHORITY / CA} is itself valid for {max(left.days, 0)} more: "
            "choose fewer, or make new keys"
        )
    old = read_certificates(path)[0]
    builder = _leaf(old.subject, days)
    for extension in (x509.ExtendedKeyUsage, x509.SubjectAlternativeName):
        with suppress(x509.ExtensionNotFound):
            builder = builder.add_extension(old.extensions.get_extension_for_class(extension).value, critical=False)
    key = old.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: is not a certificate that 'anabranch keys init' made")
    with writing("certificate", path.parent):
        replace_file(path, _signed(builder, key, signer))
    return path


def _check_names(clients: Sequence[str], askers: Sequence[str]) -> None:
    if not clients:
        raise ConfigError("there are no clients: name each, such as --clients bank,shop")
    names = [*clients, *askers]
    for place, name in enumerate(names):
        what = "a client" if place < len(clients) else "an asker"
        if not re.fullmatch(r"[a-z0-9-]{1,64}", name):
            raise ConfigError(f"{what}'s name is '{name}', but it must be 1 to 64 of a-z, 0-9 and -")
        if name in (SERVER, BROKER, AUTHORITY):
            raise ConfigError(f"{what}'s name is '{name}', which is another folder's: choose another name")
        if names.count(name) > 1:
            who = "two clients" if clients.count(name) > 1 else "two of those that take part or ask"
            raise ConfigError(f"{who} have the name '{name}': each needs its own")


def _check_hosts(hosts: Sequence[str]) -> None:
    if not hosts:
        raise ConfigError("there is no host: name the one by which the parties reach the nats-server")
    for host in hosts:
        _check_host(host)


def _check_host(host: str) -> None:
    if _address(host) is None and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise ConfigError(f"'{host}' is neither a host's name nor an address: leave out a scheme, a port or brackets")


def _check_days(days: int) -> None:
    if not 1 <= days <= AUTHORITY_DAYS:
        raise ConfigError(f"days is {days}, but it must be 1 to {AUTHORITY_DAYS}, as long as the authority is valid")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _urls(hosts: Sequence[str], port: int) -> str | list[str]:
    urls = [f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}" for host in hosts]
    return urls if len(urls) > 1 else urls[0]


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _valid(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    # Another machine's clock may be behind this one's.
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))


def _leaf(subject: x509.Name, days: int) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    builder = _valid(x509.CertificateBuilder().subject_name(subject), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.add_extension(usage, critical=True)


def _issue_party(name: str, days: int) -> x509.CertificateBuilder:
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])  # so that no party can pass for the broker
    return _leaf(_name(name), days).add_extension(usage, critical=False)


def _issue_broker(hosts: Sequence[str], days: int) -> x509.CertificateBuilder:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"]):
        address = _address(host)
        names.append(x509.DNSName(host) if address is None else x509.IPAddress(address))
    # Nats-servers of a cluster, and leaf nodes, are clients of one another.
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _leaf(_name(BROKER), days).add_extension(usage, critical=False)
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False)


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePublicKey, signer: _Signer) -> bytes:
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    builder = builder.add_extension(above, critical=False)
    builder = builder.issuer_name(signer.certificate.subject).public_key(key)
    certificate = builder.serial_number(x509.random_serial_number()).sign(signer.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


def _make_authority(folder: Path, federation: str) -> _Signer:
    folder.mkdir(mode=0o700)
    key, name = _make_key(folder / KEY), _name(f"{federation} authority")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _valid(x509.CertificateBuilder().subject_name(name).issuer_name(name), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    certificate = builder.sign(key, hashes.SHA256())
    replace_file(folder / CA, certificate.public_bytes(serialization.Encoding.PEM))
    return _Signer(certificate, key)


def _read_authority(folder: Path) -> _Signer:
    certificate = read_certificates(folder / CA)[0]
    path = folder / KEY
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}), and only the authority's key can sign") from None
    except (ValueError, TypeError):
        raise ConfigError(f"{path}: is not a private key in PEM's form without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{path}: is not the key of {folder / CA}: use the pair that 'anabranch keys init' made")
    return _Signer(certificate, key)


def _make_party(folder: Path, signer: _Signer, builder: x509.CertificateBuilder) -> None:
    folder.mkdir(mode=0o700)
    key = _make_key(folder / KEY)
    replace_file(folder / CERTIFICATE, _signed(builder, key.public_key(), signer))
    replace_file(folder / CA, signer.certificate.public_bytes(serialization.Encoding.PEM))


def _make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write_private(path, key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return key


def _make_nkey(path: Path) -> str:
    """Write the seed of a new NKey; return the public half."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    _write_private(path, seed + b"\n")
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
