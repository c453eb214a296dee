"""Keys: what is made, what is refused before anything is sent, and what a nats-server refuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats.errors
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nats.aio.client import Client

from anabranch.broker import keys
from anabranch.broker.connect import _end, connect, disconnect, explain
from anabranch.broker.credentials import Credentials, proof, public_nkey, read_certificates
from anabranch.broker.local import LocalBroker, find_binary
from anabranch.broker.nats_conf import MAX_PAYLOAD, ServerConf, Tls, party_users
from anabranch.errors import ConfigError, ConnectError
from anabranch.federation.link import Link
from patience import until

CLIENTS = ("bank", "shop")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two federations of the same name, with authorities of their own: ``ours`` and ``theirs``."""
    folder = tmp_path_factory.mktemp("keys")
    for each in ("ours", "theirs"):
        keys.init(folder / each, "demo", "localhost", CLIENTS)
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A copy of the first, to be damaged."""
    return Path(shutil.copytree(made / "ours", tmp_path / "ours"))


def conf(folder: Path) -> ServerConf:
    nkeys = {name: public_nkey(folder / name / keys.SEED) for name in (*CLIENTS, "server")}
    passwords = {name: proof(folder / name / keys.SEED, name) for name in nkeys}
    users = party_users("demo", nkeys["server"], [(name, nkeys[name]) for name in CLIENTS], passwords=passwords)
    files = Tls(*(folder / "broker" / name for name in ("cert.pem", "key.pem", "ca.pem")))
    return ServerConf(port=-1, tls=files, users=users)


def credentials(folder: Path, party: str, broker: LocalBroker) -> Credentials:
    return replace(Credentials.load(folder / party / "connection.toml"), urls=(broker.url,))


def context(ca: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        made.load_cert_chain(certificate, key)
    return made


def issue(folder: Path, party: str, begin: float, end: float, names: list[str] | None = None) -> None:
    """Another certificate for the key of a party, valid between two numbers of days from now."""
    old = read_certificates(folder / party / "cert.pem")[0]
    ca = read_certificates(folder / "authority" / "ca.pem")[0]
    signing = serialization.load_pem_private_key((folder / "authority" / "key.pem").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(ca.subject).public_key(old.public_key())
    builder = builder.not_valid_before(now + timedelta(days=begin)).not_valid_after(now + timedelta(days=end))
    builder = builder.serial_number(x509.random_serial_number())
    for extension in old.extensions:
        value = extension.value
        if names is not None and isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(value, extension.critical)
    pem = builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / party / "cert.pem").write_bytes(pem)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_each_party_has_its_folder_and_private_files_are_private(made: Path) -> None:
    found = modes(made / "ours")
    party = {"ca.pem", "cert.pem", "key.pem", "party.nk", "connection.toml"}
    folders = dict.fromkeys(("server", *CLIENTS), party)
    folders |= {"broker": {"ca.pem", "cert.pem", "key.pem", "nats-server.conf"}, "authority": {"ca.pem", "key.pem"}}
    assert set(found) == set(folders) | {f"{folder}/{file}" for folder, files in folders.items() for file in files}
    for name, mode in found.items():
        if name in folders:
            assert mode == 0o700, name
        elif name.endswith(("key.pem", "party.nk")):
            assert mode == 0o600, name


def test_certificates_say_whose_they_are_for_what_and_how_long(tmp_path: Path) -> None:
    keys.init(tmp_path, "demo", ["nats.example.org", "10.0.0.5", "fd00::5"], CLIENTS, port=4223, days=30)
    bank, broker = (read_certificates(tmp_path / name / "cert.pem")[0] for name in ("bank", "broker"))
    authority = read_certificates(tmp_path / "authority" / "ca.pem")[0]
    assert bank.subject.rfc4514_string() == "CN=bank"
    days = [(each.not_valid_after_utc - datetime.now(UTC)).days for each in (bank, broker, authority)]
    assert days == [29, 29, 3649]
    names = broker.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["nats.example.org", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "fd00::5", "127.0.0.1"]
    loaded = Credentials.load(tmp_path / "bank" / "connection.toml")
    assert loaded.urls == ("tls://nats.example.org:4223", "tls://10.0.0.5:4223", "tls://[fd00::5]:4223")
    assert (loaded.federation, loaded.party, loaded.index, loaded.clients) == ("demo", "bank", 1, ())
    assert loaded.expires() == bank.not_valid_after_utc
    server = Credentials.load(tmp_path / "server" / "connection.toml")
    assert (server.index, server.clients) == (0, CLIENTS)


def test_nothing_is_overwritten_and_nothing_stays_of_what_fails(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    with pytest.raises(ConfigError, match=r"has bank/ already: name another folder"):
        keys.init(tmp_path, "demo", "localhost", CLIENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["bank"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"federation": "two.banks"}, "'two.banks', but it must be 1 to 64 letters"),
        ({"clients": ()}, "there are no clients"),
        ({"clients": ("Bank",)}, "'Bank', but it must be 1 to 64 of a-z"),
        ({"clients": ("../bank",)}, "'../bank', but it must"),
        ({"clients": ("bank", "bank")}, "two clients have the name 'bank'"),
        ({"clients": ("broker",)}, "'broker', which is another folder's"),
        ({"hosts": ()}, "there is no host"),
        ({"hosts": "tls://here:4222"}, "'tls://here:4222' is neither"),
        ({"listen": "0.0.0.0:4222"}, "'0.0.0.0:4222' is neither"),
        ({"listen": "all of them"}, "'all of them' is neither"),
        ({"listen": ""}, "'' is neither"),
        ({"days": 0}, "days is 0"),
        ({"port": 0}, "the port is 0"),
    ],
)
def test_wrong_names_and_numbers_are_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    given = {"federation": "demo", "hosts": "localhost", "clients": CLIENTS} | change
    with pytest.raises(ConfigError, match=message):
        keys.init(tmp_path / "new", **given)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("new/*"))


def test_a_renewed_certificate_is_of_the_same_key_and_names(copied: Path) -> None:
    for party in ("bank", "broker"):
        issue(copied, party, -20, -10)
        old = read_certificates(copied / party / "cert.pem")[0]
        before = {path: path.read_bytes() for path in copied.rglob("*.*")}
        path = keys.renew(copied, party, days=7)
        new = read_certificates(path)[0]
        assert [each for each in before if each.read_bytes() != before[each]] == [path]
        assert (new.public_key(), new.subject) == (old.public_key(), old.subject)
        assert (new.not_valid_after_utc - datetime.now(UTC)).days == 6
        kinds = (x509.ExtendedKeyUsage, x509.SubjectAlternativeName) if party == "broker" else (x509.ExtendedKeyUsage,)
        for kind in kinds:
            assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    Credentials.load(copied / "bank" / "connection.toml")
    with pytest.raises(ConfigError, match="no certificate of 'pub': there are bank, broker, server, shop"):
        keys.renew(copied, "pub")
    with pytest.raises(ConfigError, match=r"is itself valid for 36\d\d more"):
        keys.renew(copied, "bank", days=3650)
    shutil.copy(copied / "bank" / "key.pem", copied / "authority" / "key.pem")
    with pytest.raises(ConfigError, match="is not the key of"):
        keys.renew(copied, "bank")


def unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "bank" / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "bank" / name).write_text(text) and None


def edit(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "bank" / "connection.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unlink("connection.toml"), r"/connection.toml: there is no such file"),
        (unlink("key.pem"), r"key.pem: there is no such file"),
        (unlink("ca.pem"), r"ca.pem: there is no such file"),
        (lambda f: (f / "bank" / "party.nk").chmod(0o640), r"run 'chmod 600 .*bank/party.nk'"),
        (lambda f: (f / "bank" / "key.pem").chmod(0o604), r"run 'chmod 600 .*bank/key.pem'"),
        (write("cert.pem", "nonsense"), r"cert.pem: is not a certificate"),
        (write("key.pem", "nonsense"), r"key.pem: is not a private key"),
        (write("party.nk", "SUNONSENSE"), r"party.nk: is not the seed"),
        (lambda f: shutil.copy(f / "shop" / "key.pem", f / "bank"), r"key.pem: is not the key of .*bank/cert.pem"),
        (
            lambda f: issue(f, "bank", -20, -10),
            r"bank/cert.pem: this certificate expired on 20\d\d-\d\d-\d\d \d\d:\d\d UTC",
        ),
        (lambda f: issue(f, "bank", 10, 20), r"bank/cert.pem: this certificate is valid from 20.* clock right"),
        (lambda f: shutil.copy(f.parent / "ca.pem", f / "bank"), r"bank/cert.pem: .* not signed by .*bank/ca.pem"),
        (edit("index", "indx"), r"no setting 'indx'. Did you mean 'index'\?"),
        (edit("index = 1", "index = '1'"), r"index is '1', but it must be a whole number"),
        (edit("index = 1", "index = -2"), r"index is -2"),
        (edit('party = "bank"', 'party = ""'), r"party is '', but it must be a name"),
        (edit('url = "tls://localhost:4222"', ""), r"url is missing"),
        (edit('"tls://localhost:4222"', "[]"), r"url is empty"),
        (edit("tls://", "https://"), r"url is 'https://localhost:4222', but it must be like tls://"),
        (edit("tls://", "nats://"), r"nats://localhost:4222 is plaintext, and ca, certificate and key are for TLS"),
        (edit("tls://", "tls://me:secret@"), r"url names a user \(before localhost\)"),
        (edit('key = "key.pem"', ""), r"TLS needs ca, certificate and key, and there is no key"),
        (edit("federation = ", "federation is "), r"connection.toml: is not TOML"),
    ],
)
def test_bad_files_are_refused_before_anything_is_sent(
    made: Path, copied: Path, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copy(made / "theirs" / "bank" / "ca.pem", copied.parent)
    damage(copied)
    with pytest.raises(ConfigError, match=message) as caught:
        Credentials.load(copied / "bank" / "connection.toml")
    assert str(caught.value).count(": is not TOML") == ("is not TOML" in message)
    assert "SUNONSENSE" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_message_has_room_for_a_clients_number() -> None:
    Credentials(("nats://localhost",), "demo", "bank", 65_535)
    with pytest.raises(ConfigError, match="index is 65536, but it must be 1 to M for a client, and at most 65,535"):
        Credentials(("nats://localhost",), "demo", "bank", 65_536)


def test_plaintext_to_another_machine_needs_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write insecure = true"):
        Credentials(("nats://10.0.0.5:4222",), "demo", "bank", 1)
    with pytest.raises(ConfigError, match="is TLS, and that needs"):
        Credentials(("tls://10.0.0.5:4222",), "demo", "bank", 1)
    path = tmp_path / "connection.toml"
    text = 'federation = "demo"\nparty = "bank"\nindex = 1\nurl = "nats://10.0.0.5:4222"\n'
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"connection.toml: .* write insecure = true"):
        Credentials.load(path)
    path.write_text(f"{text}insecure = true\n")
    assert not Credentials.load(path).tls
    assert "tls" not in Credentials(("nats://10.0.0.5:4222",), "demo", "bank", 1, insecure=True).connect_options()
    with pytest.raises(ConfigError, match="lets others read along"):
        ServerConf(host="0.0.0.0", users=party_users("demo", "U1", []))
    with pytest.raises(ConfigError, match="lets each party read and write all"):
        ServerConf(host="0.0.0.0", tls=Tls())
    assert 'host: "0.0.0.0"' in ServerConf(host="0.0.0.0", insecure=True).text()


class Heard:
    """A connection of a party, its errors and what it heard."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.messages: list[tuple[str, bytes]] = []

    async def open(self, folder: Path, party: str, broker: LocalBroker) -> Client:
        async def error_cb(error: Exception) -> None:
            self.errors.append(str(error))

        return await connect(credentials(folder, party, broker), error_cb=error_cb)

    async def message(self, message: object) -> None:
        self.messages.append((message.subject, message.data))  # type: ignore[attr-defined]


def test_a_party_publishes_and_reads_only_what_is_its_own(made: Path, tmp_path: Path) -> None:
    # No subject has labels, which never leave the server; what lies beneath a party's own subject is nobody's.
    forbidden_reads = (
        "demo.down.2", "demo.up.2", "demo.up.1", "demo.up.1.x", "demo.down.1.x", "demo.>", "demo.down.*", ">",
        "_INBOX.x", "$SYS.>", "$JS.>", "other.down.1",
    )  # fmt: skip
    forbidden_writes = (
        "demo.up.2", "demo.down.1", "demo.down.2", "demo.query", "demo.up.1.x", "_INBOX.x", "$JS.API.INFO",
        "$SYS.REQ.SERVER.PING", "other.up.1",
    )  # fmt: skip

    async def main() -> None:
        server, bank, shop = Heard(), Heard(), Heard()
        async with LocalBroker(tmp_path, conf(made / "ours")) as broker:
            parties = ((server, "server"), (bank, "bank"), (shop, "shop"))
            connections = [await heard.open(made / "ours", name, broker) for heard, name in parties]
            to_server, to_bank, to_shop = connections
            assert to_bank.max_payload == MAX_PAYLOAD

            await to_server.subscribe("demo.up.*", cb=server.message)
            for connection, heard, m in ((to_bank, bank, 1), (to_shop, shop, 2)):
                await connection.subscribe(f"demo.down.{m}", cb=heard.message)
                await connection.subscribe("demo.query", cb=heard.message)
            stolen: list[str] = []

            async def steal(message: object) -> None:
                stolen.append(message.subject)  # type: ignore[attr-defined]

            for subject in forbidden_reads:
                await to_bank.subscribe(subject, cb=steal)
            for subject in forbidden_writes:
                await to_bank.publish(subject, b"forged")
            await until(lambda: len(bank.errors) >= len(forbidden_reads) + len(forbidden_writes))
            for kind, subjects in (("subscription", forbidden_reads), ("publish", forbidden_writes)):
                for subject in subjects:
                    said = f'permissions violation for {kind} to "{subject}"'.lower()
                    assert any(said in error.lower() for error in bank.errors), subject

            for subject in ("demo.up.1", "demo.up.3", "other.query", "_INBOX.x"):
                await to_server.publish(subject, b"forged")
            await to_server.subscribe("demo.down.1", cb=steal)
            await until(lambda: len(server.errors) >= 5)
            assert all("permissions violation" in error.lower() for error in server.errors)

            for connection in connections:
                await connection.flush()  # whatever is heard is from here on
            await to_shop.publish("demo.up.2", b"embedding")
            await to_bank.publish("demo.up.1", b"embedding")
            await to_server.publish("demo.query", b"query")
            await to_server.publish("demo.down.1", b"derivative")
            await to_server.publish("demo.down.2", b"derivative")
            await until(lambda: all(len(heard.messages) >= 2 for heard, _ in parties))
            for connection in connections:
                await connection.flush()
            assert sorted(server.messages) == [("demo.up.1", b"embedding"), ("demo.up.2", b"embedding")]
            assert bank.messages == [("demo.query", b"query"), ("demo.down.1", b"derivative")]
            assert shop.messages == [("demo.query", b"query"), ("demo.down.2", b"derivative")]
            assert not stolen
            assert not shop.errors
            for connection in connections:
                await connection.close()

    asyncio.run(main())


def test_a_party_of_another_federation_is_told_what_to_look_at(made: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path, conf(made / "ours")) as broker:
            own = replace(credentials(made / "ours", "bank", broker), federation="orders")
            said: list[str] = []
            link = Link(own, lambda client, raw: None, lambda: None, said.append, lambda error: None)
            await link.open()
            await until(lambda: len(said) == 2)
            await link.close()
        for text, subject in zip(said, ("orders.down.1", "orders.query"), strict=True):
            assert f'permissions violation for subscription to "{subject}"' in text.lower()
            assert "Are federation (orders) and index (1) in connection.toml those that its key was made for?" in text

    asyncio.run(main())


async def refused(credentials: Credentials, **options: object) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        await connect(credentials, **options)
    return caught.value


def test_whoever_is_refused_is_told_why(made: Path, copied: Path, tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = made / "ours", made / "theirs"
        issue(copied, "bank", -20, -10)
        async with LocalBroker(tmp_path / "broker", conf(ours)) as broker:
            bank, other = credentials(ours, "bank", broker), credentials(theirs, "bank", broker)
            theirs_nkey = public_nkey(other.seed or Path())
            ca, where = ours / "bank" / "ca.pem", broker.url
            plain = replace(bank, ca=None, certificate=None, key=None, urls=(where.replace("tls:", "nats:"),))
            expired = context(ca, copied / "bank" / "cert.pem", copied / "bank" / "key.pem")
            unknown = context(ca, other.certificate, other.key)
            cases = [
                (await refused(other), f"broker at {where} is not signed by {other.ca}"),
                (await refused(bank, tls=context(ca)), "wants a certificate, and this party showed none"),
                (await refused(bank, tls=unknown), "refuses .*bank/cert.pem, whose authority it does not know"),
                (await refused(bank, tls=expired), "refuses .*bank/cert.pem, which has expired"),
                (
                    await refused(replace(bank, seed=other.seed)),
                    f"does not know the NKey {theirs_nkey} of ",
                ),
                (await refused(replace(bank, seed=None)), "wants an NKey, and this party has none"),
                (await refused(plain), "closed the connection without a greeting, since it wants TLS"),
            ]
            for error, message in cases:
                with pytest.raises(ConnectError, match=message):
                    raise error
                assert not error.temporary
            with pytest.raises(ConfigError, match="expired on"):
                await connect(replace(bank, certificate=copied / "bank" / "cert.pem", key=copied / "bank" / "key.pem"))

            with pytest.raises(TypeError, match="nonsense"):
                await connect(bank, nonsense=1)
            broker.kill()
            error = await refused(bank)
            assert str(error) == f"there is no broker at {where}: start it, or wait until it is there"
            assert error.temporary
            error = await refused(replace(bank, urls=("tls://nowhere.invalid:4222",)))
            assert "there is no host of this name" in str(error)

        async with LocalBroker(tmp_path / "plain") as broker:
            error = await refused(replace(bank, urls=(broker.url.replace("nats:", "tls:"),)))
            assert "speaks plaintext first" in str(error)
            assert not error.temporary

    asyncio.run(main())


def test_a_broker_with_a_wrong_certificate_is_refused(made: Path, copied: Path, tmp_path: Path) -> None:
    async def attempt(name: str, host: str = "127.0.0.1") -> str:
        bad = conf(copied)
        async with LocalBroker(tmp_path / name, bad) as broker:
            bank = credentials(made / "ours", "bank", broker)
            error = await refused(replace(bank, urls=(broker.url.replace("127.0.0.1", host),)))
            assert not error.temporary
            return str(error)

    async def main() -> None:
        issue(copied, "broker", -20, -10)
        assert "has expired" in await attempt("expired")
        issue(copied, "broker", 10, 20)
        assert "is not valid yet" in await attempt("early")
        issue(copied, "broker", -1, 1, names=["nats.example.org"])
        assert "is for another host" in await attempt("host", "localhost")
        assert "is for another host" in await attempt("address")
        for name in ("cert.pem", "key.pem"):
            shutil.copy(copied / "shop" / name, copied / "broker" / name)
        assert "is a party's, not a broker's" in await attempt("party")

    asyncio.run(main())


def test_the_made_configuration_is_one_that_a_nats_server_takes(tmp_path: Path) -> None:
    """As it is, and, on a free port of loopback, for a party of the same keys."""

    async def main() -> None:
        keys.init(tmp_path, "demo", "localhost", CLIENTS)
        folder = tmp_path / "broker"
        made = (folder / "nats-server.conf").read_text()
        users = conf(tmp_path).users
        assert ServerConf(host="0.0.0.0", tls=Tls(), users=users).text() in made
        command = [find_binary(), "-t", "-c", "nats-server.conf"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
        assert told.returncode == 0, told.stderr
        async with LocalBroker(folder, ServerConf(port=-1, tls=Tls(), users=users)) as broker:
            connection = await connect(credentials(tmp_path, "server", broker))
            assert connection.is_connected
            await connection.close()

    asyncio.run(main())


def test_several_urls_are_tried_and_the_telling_error_is_told(made: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path, conf(made / "ours")) as broker:
            bank = credentials(made / "ours", "bank", broker)
            nobody = "tls://127.0.0.1:1"
            for urls in ((nobody, broker.url), (broker.url, nobody)):
                connection = await connect(replace(bank, urls=urls))
                assert connection.is_connected
                assert {url.netloc for url in connection.servers} == {url.removeprefix("tls://") for url in urls}
                await disconnect(connection)
                lost = replace(bank, urls=urls, seed=made / "theirs" / "bank" / "party.nk")
                assert f"the broker at {broker.url} does not know the NKey" in str(await refused(lost))
                error = await refused(replace(bank, urls=urls), tls=context(made / "theirs" / "bank" / "ca.pem"))
                assert f"the broker at {broker.url} is not signed" in str(error)
                assert (await refused(replace(bank, urls=(nobody, "tls://localhost:1")))).temporary

    asyncio.run(main())


def test_a_party_comes_back_after_its_broker(made: Path, tmp_path: Path) -> None:
    async def main() -> None:
        back, server = asyncio.Event(), Heard()

        async def reconnected() -> None:
            back.set()

        async def ignore(error: Exception) -> None: ...

        async with LocalBroker(tmp_path, conf(made / "ours")) as broker:
            to_server = await server.open(made / "ours", "server", broker)
            await to_server.subscribe("demo.up.*", cb=server.message)
            bank = credentials(made / "ours", "bank", broker)
            to_bank = await connect(bank, error_cb=ignore, reconnected_cb=reconnected)
            broker.kill()
            await broker.restart()
            await asyncio.wait_for(back.wait(), 10)
            await until(lambda: to_server.is_connected and to_server.stats["reconnects"] == 1)
            await to_server.flush()
            await to_bank.publish("demo.up.1", b"after")
            await until(lambda: server.messages == [("demo.up.1", b"after")])
            for connection in (to_server, to_bank):
                await disconnect(connection)

    asyncio.run(main())


def test_a_connection_whose_broker_turned_bad_can_be_closed(made: Path, tmp_path: Path) -> None:
    """nats-py itself hangs there."""

    async def main() -> None:
        seen: list[Exception] = []

        async def error_cb(error: Exception) -> None:
            seen.append(error)

        async with LocalBroker(tmp_path, conf(made / "ours")) as broker:
            bank = credentials(made / "ours", "bank", broker)
            connection = await connect(bank, error_cb=error_cb)
            broker.kill()
            broker.conf = conf(made / "theirs")
            await broker.restart()
            await until(lambda: any(isinstance(error, ssl.SSLCertVerificationError) for error in seen))
            error = next(error for error in seen if isinstance(error, ssl.SSLCertVerificationError))
            assert "is not signed by" in str(explain(error, bank))
            await asyncio.wait_for(disconnect(connection, 0.3), 5)
            assert connection.is_closed

    asyncio.run(main())


def test_a_party_may_have_a_certificate_of_an_intermediate(copied: Path) -> None:
    """Whoever has a public key infrastructure of their own signs with one below the authority."""
    path = copied / "bank" / "cert.pem"
    old, ca = path.read_bytes(), read_certificates(copied / "authority" / "ca.pem")[0]
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root, middle = x509.Name.from_rfc4514_string("CN=root"), x509.Name.from_rfc4514_string("CN=middle")
    now = datetime.now(UTC)

    def sign(
        of: x509.Name, public: ec.EllipticCurvePublicKey, by: x509.Name, signer: ec.EllipticCurvePrivateKey
    ) -> bytes:
        builder = x509.CertificateBuilder().subject_name(of).issuer_name(by).public_key(public).serial_number(7)
        builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    leaf = x509.load_pem_x509_certificate(old)
    public = leaf.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    signed = sign(leaf.subject, public, middle, key)
    (copied / "bank" / "ca.pem").write_bytes(
        ca.public_bytes(serialization.Encoding.PEM) + sign(root, root_key.public_key(), root, root_key)
    )
    path.write_bytes(signed + sign(middle, key.public_key(), root, root_key))
    Credentials.load(copied / "bank" / "connection.toml")
    path.write_bytes(signed)
    with pytest.raises(ConfigError, match="is not signed by"):
        Credentials.load(copied / "bank" / "connection.toml")


def test_any_error_has_an_explanation() -> None:
    here = Credentials(("nats://localhost:4222",), "demo", "bank", 1)
    for error, message, temporary in (
        (TimeoutError(), "does not answer", True),
        (ConnectionResetError(), "closed the connection before it was made", True),
        (nats.errors.AuthorizationError(), "wants an NKey", False),
        (nats.errors.Error("nats: 'maximum connections exceeded'"), "refuses the connection: 'maximum conn", False),
        (OSError(os.strerror(24)), "Too many open files", True),
        (ValueError(), "ValueError", False),
    ):
        told = explain(error, here)
        assert message in str(told)
        assert told.temporary is temporary
        assert told.__cause__ is error


def test_a_cancellation_that_is_lost_is_said_again():
    async def main() -> None:
        async def loses_one() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(loses_one())
        await asyncio.sleep(0)
        await asyncio.wait_for(_end(task), 10)
        assert task.cancelled()

    asyncio.run(main())
