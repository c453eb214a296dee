"""A broker lets a party in with its own certificate and its own NKey together, and with no other pair."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from anabranch.broker import keys
from anabranch.broker.connect import connect
from anabranch.broker.credentials import Credentials, proof, public_nkey
from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf, Tls, party_users
from anabranch.errors import ConnectError

PARTIES = ("server", "bank", "shop", "app")


def users_of(made: Path) -> ServerConf:
    """What `anabranch keys init` tells a nats-server, on a free port."""
    files = Tls(*(made / "broker" / each for each in ("cert.pem", "key.pem", "ca.pem")))
    seeds = {name: made / name / keys.SEED for name in PARTIES}
    clients, askers = ([(name, public_nkey(seeds[name])) for name in names] for names in (["bank", "shop"], ["app"]))
    passwords = {name: proof(seed, name) for name, seed in seeds.items()}
    users = party_users("demo", public_nkey(seeds["server"]), clients, askers, passwords)
    conf = ServerConf(port=-1, tls=files, users=users)
    written = (made / "broker" / keys.CONF).read_text()
    assert written.partition("authorization {")[2] == conf.text().partition("authorization {")[2]
    assert "verify_and_map: true" in written
    return conf


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    keys.init(folder, "demo", "127.0.0.1", ["bank", "shop"], askers=["app"])
    return folder


def of(made: Path, party: str, url: str) -> Credentials:
    return replace(Credentials.load(made / party / "connection.toml"), urls=(url,))


def test_each_pair_but_a_partys_own_is_refused(made: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path, users_of(made)) as broker:
            for certified, signed in product(PARTIES, PARTIES):
                one, other = of(made, certified, broker.url), of(made, signed, broker.url)
                for named in {certified, signed}:
                    mixed = replace(one, party=named, seed=other.seed)
                    if certified == signed:
                        client: Client = await connect(mixed)
                        await client.close()
                        continue
                    with pytest.raises(ConnectError, match="is not of the same party"):
                        await connect(mixed)

    asyncio.run(main())


def test_neither_is_enough_alone(made: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path, users_of(made)) as broker:
            bank = of(made, "bank", broker.url).connect_options()
            for lacking in ({"password": None, "user": None}, {"password": "x"}):
                given = {name: value for name, value in {**bank, **lacking}.items() if value is not None}
                with pytest.raises(nats.errors.Error, match=re.compile("authorization violation", re.IGNORECASE)):
                    await nats.connect(**given, allow_reconnect=False)

    asyncio.run(main())
