"""``anabranch keys``: what it makes, what it says of it, and what it refuses."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.broker.credentials import Credentials, read_certificates
from anabranch.cli import app


def keys(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["keys", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def init(folder: Path, *more: str) -> tuple[int, str, str]:
    return keys("init", folder, "--server", "nats.example.org", "--clients", "bank,shop", *more)


def test_init_makes_a_folder_for_each_party_and_says_for_whom(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    code, out, err = init(folder, "--federation", "orders", "--port", "4333", "--days", "90")
    assert (code, err) == (0, "")
    assert "a federation of 2 clients, valid for 90 days" in out
    named = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert named == ["authority/", "broker/", "server/", "bank/", "shop/"]
    assert {each.name for each in folder.iterdir()} == {name.rstrip("/") for name in named}
    assert "for shop, client 2: anabranch client shop.toml" in out
    shop = Credentials.load(folder / "shop" / "connection.toml")
    assert (shop.federation, shop.party, shop.index) == ("orders", "shop", 2)
    assert shop.urls == ("tls://nats.example.org:4333",)
    assert Credentials.load(folder / "server" / "connection.toml").clients == ("bank", "shop")
    days = read_certificates(folder / "bank" / "cert.pem")[0].not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=89) < days <= timedelta(days=90)
    for private in (*folder.glob("*/key.pem"), *folder.glob("*/party.nk")):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    conf = (folder / "broker" / "nats-server.conf").read_text()
    assert 'host: "0.0.0.0"' in conf
    assert "port: 4333" in conf


def test_init_says_for_whom_the_folder_of_an_asker_is(tmp_path: Path) -> None:
    code, out, _ = init(tmp_path / "keys", "--askers", "app,desk")
    assert code == 0
    named = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert named == ["authority/", "broker/", "server/", "bank/", "shop/", "app/", "desk/"]
    assert "for desk, who asks: anabranch predict desk/connection.toml" in out


def test_a_cluster_has_several_hosts(tmp_path: Path) -> None:
    code, out, _ = keys(
        "init", tmp_path / "k", "--server", "a.example.org, b.example.org,10.0.0.7", "--clients", "x",
        "--listen", "127.0.0.1",
    )  # fmt: skip
    assert code == 0
    assert "has the keys of a federation of 1 client, valid for 365 days:" in out
    assert "for each of the 3 nats-servers, which need a cluster.conf" in out
    held = Credentials.load(tmp_path / "k" / "x" / "connection.toml")
    assert held.urls == ("tls://a.example.org:4222", "tls://b.example.org:4222", "tls://10.0.0.7:4222")
    assert 'host: "127.0.0.1"' in (tmp_path / "k" / "broker" / "nats-server.conf").read_text()


def test_without_a_folder_the_keys_are_in_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = keys("init", "--server", "nats.example.org", "--clients", "bank,shop")
    assert code == 0
    assert out.startswith("keys/ has the keys")
    assert Credentials.load(tmp_path / "keys" / "bank" / "connection.toml").party == "bank"


def test_renew_changes_the_certificate_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    init(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, _ = keys("renew", folder, "bank", "--days", "30")
    assert code == 0
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert changed == [folder / "bank" / "cert.pem"]
    until = read_certificates(changed[0])[0].not_valid_after_utc
    assert f"cert.pem: valid until {until:%Y-%m-%d}." in out
    assert "restart bank's client" in out
    assert "tell the nats-server (nats-server --signal reload)" in keys("renew", folder, "broker")[1]
    assert "restart the server" in keys("renew", folder, "server")[1]
    Credentials.load(folder / "bank" / "connection.toml")


def test_renewing_needs_no_private_file_of_the_party(tmp_path: Path) -> None:
    """As the summary says, these may be deleted where the authority is."""
    init(tmp_path / "keys")
    for name in ("key.pem", "party.nk"):
        (tmp_path / "keys" / "bank" / name).unlink()
    assert keys("renew", tmp_path / "keys", "bank")[0] == 0


def test_what_is_wrong_is_one_message_and_nothing_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    for words, message in (
        (("--clients", ""), "there are no clients"),
        (("--clients", "Bank"), "a client's name is 'Bank', but it must be 1 to 64 of a-z, 0-9 and -"),
        (("--server", "tls://nats.example.org"), "is neither a host's name nor an address"),
        (("--federation", "two words"), "the federation's name is 'two words'"),
        (("--days", "0"), "days is 0"),
        (("--port", "0"), "the port is 0"),
    ):
        code, out, err = init(folder, *words)
        assert (code, out) == (2, "")
        assert message in err
        assert not folder.exists() or not list(folder.iterdir())
    assert init(folder)[0] == 0
    code, _, err = init(folder)
    assert code == 2
    assert "already: name another folder" in err
    code, _, err = keys("renew", folder, "bnk")
    assert code == 2
    assert "has no certificate of 'bnk': there are bank, broker, server, shop" in err


@pytest.mark.parametrize("command", ["init", "renew"])
def test_help_shows_examples(command: str) -> None:
    code, out, _ = keys(command, "--help")
    assert code == 0
    assert f"anabranch keys {command} keys" in out


def test_entity_makes_a_key_once(tmp_path: Path) -> None:
    path = tmp_path / "entity.key"
    code, out, err = keys("entity", path)
    assert (code, err) == (0, "")
    assert "every client and the server" in out
    assert len(path.read_bytes()) == 32
    code, out, err = keys("entity", path)
    assert (code, out) == (2, "")
    assert "is there already" in err
