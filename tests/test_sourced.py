"""Two worlds, with a real broker: sensors that sample at a time, and companies that look an entity up."""

from __future__ import annotations

import asyncio
import csv
import json
import logging
import math
import signal
import sqlite3
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import nats
import numpy as np
import pytest
import tomli_w

from anabranch.broker.credentials import Credentials
from anabranch.broker.local import LocalBroker
from anabranch.config import party as partyfile
from anabranch.config.party import Predictions
from anabranch.errors import AnabranchError, AwayError, CheckpointError, ConfigError
from anabranch.federation import client as net_client
from anabranch.federation import source_client as sourced
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties import build_party as own
from anabranch.parties.predict_service import predicting
from anabranch.protocol import messages as m
from anabranch.protocol.codec import encode
from anabranch.serving.client import ask_http
from anabranch.serving.metrics import Metrics
from anabranch.serving.status import server_status
from anabranch.sources.base import Happening, Reading
from anabranch.sources.features import Column, Features
from anabranch.sources.file import FileSource
from anabranch.sources.python import PythonSource
from anabranch.sources.sql import source as sql
from anabranch.sources.sql.source import SqlSource
from anabranch.storage.event_ids import Names, read_key, write_key
from anabranch.storage.place import Place
from databases import Postgresql, Sqlite, postgresql
from federations import sent
from forks import Forked
from message_brokers import message_broker
from patience import until
from private import open_to_others
from source_playing import play, run

UPDATE = {"name": "DLR", "window": 2, "decay": 0.5}
SOURCE: dict[str, Any] = {"entity_key": "entity.key", "years": [1970, 2100]}
"""What the sources have, of which some have times of the first hours of 1970."""
SERVER_MODEL = {"name": "mlp", "hidden": [8], "classes": 2}
CLIENT_MODEL = {"name": "mlp", "hidden": [8], "embedding": 4}


class World:
    """A folder with the parties' files and data."""

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        self.folder, self.clients = folder, list(clients)
        write_key(folder / "entity.key")
        self.names = Names(read_key(folder / "entity.key"))
        self._texts: dict[str, dict[str, Any]] = {}

    def table(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return name

    def server(self, labels: dict[str, Any], missing: Mapping[str, str] = MappingProxyType({}), **more: Any) -> None:
        self._texts["server"] = {
            "connection": "connection.toml", "folder": "state-server", "learning_rate": 0.1, "seed": 5,
            "labels": {**SOURCE, **labels}, "model": SERVER_MODEL, "update": UPDATE,
            "clients": [{"name": name, "embedding": 4, "missing": missing.get(name, "wait")} for name in self.clients],
        } | more  # fmt: skip

    def client(self, name: str, features: dict[str, Any], activation: dict[str, Any], **more: Any) -> None:
        self._texts[name] = {
            "connection": "connection.toml", "folder": f"state-{name}", "learning_rate": 0.1, "seed": 5,
            "clients": len(self.clients), "features": {**SOURCE, **features}, "model": CLIENT_MODEL,
            "update": UPDATE, "activation": activation,
        } | more  # fmt: skip

    def party(self, name: str, url: str) -> Any:
        text = tomli_w.dumps(self._texts[name])
        file = partyfile.check(tomllib.loads(text), self.folder / f"{name}.toml")
        index = 0 if name == "server" else self.clients.index(name) + 1
        party = Credentials((url,), "demo", name, index, clients=() if index else tuple(self.clients))
        folder = Path(file.folder)
        folder.mkdir(exist_ok=True)
        return own.client_party(file, party, folder) if index else own.server_party(file, party, folder)  # type: ignore[arg-type]

    def play(self, until: Any = None, *, kill: bool = False) -> tuple[ServerParty, list[ClientParty], bytes]:
        """Plays it; ``until`` says when all are to leave, or to be killed. Also everything that was on the wire."""
        return run(self.played(until, kill=kill), 300.0)  # most of it is compiling

    async def played(self, until: Any = None, *, kill: bool = False) -> tuple[ServerParty, list[ClientParty], bytes]:
        """The same."""
        heard = bytearray()
        async with LocalBroker(self.folder / "broker") as broker:
            spy = await nats.connect(broker.url)

            async def hear(message: Any) -> None:
                heard.extend(message.subject.encode() + message.data)

            await spy.subscribe(">", cb=hear)
            server, *clients = parties = [self.party(name, broker.url) for name in ("server", *self.clients)]
            running = [asyncio.ensure_future(party.run()) for party in parties]
            while until is not None and not until(server) and not running[0].done():
                await asyncio.sleep(0.01)
            if until is not None:
                for party, task in zip(parties, running, strict=True):
                    if kill:
                        task.cancel()
                    else:
                        party.leave()
            await asyncio.gather(*running, return_exceptions=kill)
            await spy.close()
            return server, clients, bytes(heard)


def missed(server: ServerParty) -> list[int]:
    """In how many rounds each client was replaced."""
    return [sum(each.values()) - each["answered"] for each in server.ledger.missing]


def lights(folder: Path) -> list[float]:
    with (folder / "room1.csv").open() as file:
        return [float(row["light"]) for row in csv.DictReader(file)]


def sounds(folder: Path) -> list[float]:
    with (folder / "room2.csv").open() as file:
        return [float(row["sound"]) for row in csv.DictReader(file)]


def companies(folder: Path, n: int = 150, **labels: Any) -> World:
    """The bank's applications are events; the shop knows two of three customers; labels come at some later time."""
    world = World(folder, ["bank", "shop"])
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 2))
    who = [f"customer-{i:03}" for i in range(n)]
    with sqlite3.connect(folder / "bank.db") as database:
        database.execute("CREATE TABLE applications (id INTEGER PRIMARY KEY, who TEXT, at INTEGER, amount REAL)")
        rows = [(i, who[i], 1000 + i, x[i, 0]) for i in range(n)]
        database.executemany("INSERT INTO applications VALUES (?, ?, ?, ?)", rows)
    database.close()
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE customers (who TEXT PRIMARY KEY, changed INTEGER, spent REAL, kind TEXT)")
        known = [(who[i], 10, x[i, 1], ["a", "b", "c"][i % 3]) for i in range(n) if i % 3]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", known)
    database.close()
    y = (x[:, 0] > 0).astype(int)
    order = rng.permutation(n)
    known_at = sorted([(1000 + i + 30, who[i], 1000 + i, y[i]) for i in order], key=lambda row: row[0])
    world.table("labels.csv", ["known", "who", "at", "default"], known_at)
    world.server(
        {
            "source": "csv", "path": "labels.csv", "entity": "who", "time": "known", "event_time": "at",
            "label": "default", "late": "fresh", **labels,
        },
        missing={"shop": "zero"},
    )  # fmt: skip
    world.client(
        "bank",
        {
            "source": "sql", "url": "sqlite:///bank.db", "table": "applications", "entity": "who", "time": "at",
            "id": "id", "follow": False, "columns": [{"name": "amount", "standardise": True}],
        },
        {"name": "OnEvent"},
    )  # fmt: skip
    world.client(
        "shop",
        {
            "source": "sql", "url": "sqlite:///shop.db", "table": "customers", "entity": "who", "time": "changed",
            "id": "who", "as_of": "now",
            "columns": ["spent", {"name": "kind", "kind": "category", "values": ["a", "b"]}],
        },
        {"name": "Event", "threshold": 1e9},
    )  # fmt: skip
    return world


def test_companies_look_an_entity_up_and_may_not_know_it(tmp_path: Path) -> None:
    world = companies(tmp_path)
    server, (bank, shop), wire = world.play()
    assert server.conversation.rounds == 150
    assert server.late is not None
    assert {what: n for what, n in server.late.waiting.counts.items() if n and what != "early"} == {
        "happened": 150, "labelled": 150, "learnt": 150,
    }  # fmt: skip
    totals = server.ledger
    assert totals.activations.tolist() == [150, 0]
    assert missed(server) == [0, 50]
    assert b"customer" not in wire
    assert len(wire) > 10_000
    assert bank.conversation.activations == 150
    assert shop.conversation.activations == 0
    assert shop.notes["input: unknown", None] >= 50


def kept(folder: Path, names: Names, numbers: Iterable[int]) -> list[int]:
    """Of which customers' events a client has kept the features."""
    with closing(sqlite3.connect(folder / "inputs.sqlite")) as database:
        there = {name for (name,) in database.execute("SELECT event FROM kept")}
    return [i for i in numbers if names.of(f"customer-{i:03}", (1000 + i) * 1_000_000) in there]


def test_events_without_a_label_go_and_the_clients_forget_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = [0]
    world = companies(tmp_path, 30)
    database = Sqlite(tmp_path / "labels.db")
    database.run("CREATE TABLE labels (id INTEGER PRIMARY KEY, who TEXT, known INTEGER, at INTEGER, label INTEGER)")
    known = {
        "source": "sql", "url": "sqlite:///labels.db", "table": "labels", "entity": "who", "id": "id", "time": "known",
        "event_time": "at", "label": "label", "poll": 0.02, "late": "fresh", "expiry": 100.0, "most": 25,
    }  # fmt: skip
    world.server(known, missing={"shop": "zero"})

    def known_of(*numbers: int, later: int = 0) -> None:
        for i in numbers:
            database.run(
                "INSERT INTO labels (who, known, at, label) SELECT :who, :begin + count(*), :at, 1 FROM labels",
                who=f"customer-{i:03}", begin=1000 + later, at=1000 + i,
            )  # fmt: skip

    def goes_on(server: ServerParty) -> bool:
        counts = server.late.waiting.counts if server.late is not None else {}
        if stage[0] == 0 and counts["happened"] == 30:
            stage[0] = 1
            known_of(*range(5, 20))
        if stage[0] == 1 and counts["learnt"] == 15:
            stage[0] = 2
            assert kept(tmp_path / "state-bank", world.names, range(20, 30)) == [*range(20, 30)]
            known_of(130, later=130)  # of an event that nobody announces
        if stage[0] == 2 and counts["expired"] == 10:
            stage[0] = 3
            known_of(0, 25, later=130)
        done = counts["expired label"] == 2
        return done and not kept(tmp_path / "state-bank", world.names, [*range(5), *range(20, 30)])

    server, _, _ = world.play(goes_on)
    assert server.late is not None
    assert {what: n for what, n in server.late.waiting.counts.items() if n} == {
        "happened": 30, "labelled": 15, "learnt": 15, "crowded out": 5, "expired": 10, "expired label": 2,
        "early": 1,
    }  # fmt: skip
    assert server.conversation.rounds == 15
    for kind in (
        "more than `most` waited, and the oldest had to go",
        "waited too long for their labels (expired: 10 by now)",
    ):
        assert kind in caplog.text
    assert "a label has come whose event has gone" in caplog.text


def test_an_entity_that_a_client_does_not_know_is_waited_for_unless_it_may_be_missing(tmp_path: Path) -> None:
    world = companies(tmp_path, 6)
    world._texts["server"]["clients"][1]["missing"] = "wait"
    said: list[str] = []

    def waits(server: ServerParty) -> bool:
        if server.waiting_for == [2] and server.conversation.seats[1].present:
            said[:] = Metrics(server).reasons()
        return bool(said)

    server, _, _ = world.play(waits)
    assert said == [
        "waiting for shop to know an event, or to send what can be used: each round waits for those whose missing is "
        "'wait'"
    ]
    assert server.conversation.rounds < 6


def test_another_database_is_not_gone_on_with(tmp_path: Path) -> None:
    world = companies(tmp_path, 10)
    party = world.party("bank", "nats://127.0.0.1:1")
    for each in run(play(party._source)):
        run(each.safe())
    run(party._source.close())
    (tmp_path / "bank.db").rename(tmp_path / "bank2.db")
    world._texts["bank"]["features"]["url"] = "sqlite:///bank2.db"
    with pytest.raises(CheckpointError, match=r"how far table 'applications' of 'bank.db' was read, but the source is"):
        world.party("bank", "nats://127.0.0.1:1")


def test_a_database_is_asked_beside_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client goes on with what it has to do while the database takes its time."""
    here, look, asked, passed = threading.get_ident(), SqlSource.look, Counter[bytes](), [0]

    def slow(self: SqlSource, name: bytes) -> Mapping[str, Any] | None:
        asked[name] += 1
        assert threading.get_ident() != here
        begun, deadline = passed[0], time.monotonic() + 60
        while passed[0] == begun:  # nobody would count where it stood in the way
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return look(self, name)

    async def main() -> ServerParty:
        async def counts() -> None:
            while True:
                passed[0] += 1
                await asyncio.sleep(0.001)

        counting = asyncio.ensure_future(counts())
        server, _, _ = await companies(tmp_path, 30).played()
        counting.cancel()
        return server

    monkeypatch.setattr(SqlSource, "look", slow)
    server = run(main(), 300.0)
    assert server.conversation.rounds == 30
    assert missed(server) == [0, 10]
    # The shop's readings; what both know; what the shop does not know, for its prediction and its round.
    times = sorted(asked.values())
    assert times[:40] == [1] * 20 + [2] * 20
    assert len(times[40:]) == 10
    assert min(times[40:]) >= 3


def test_a_client_leaves_though_its_database_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, close, asked, closed = SqlSource.look, SqlSource.close, threading.Event(), threading.Event()

    def silent(self: SqlSource, name: bytes) -> Mapping[str, Any] | None:
        if self._where.endswith("'customers'") and self._names.read(name)[1] >= 1_000_000_000:  # type: ignore[index]
            asked.set()
            assert closed.wait(60)
            return None
        return look(self, name)

    async def closes(self: SqlSource) -> None:
        if self._where.endswith("'customers'"):
            closed.set()
        await close(self)

    monkeypatch.setattr(SqlSource, "look", silent)
    monkeypatch.setattr(SqlSource, "close", closes)
    monkeypatch.setattr(sourced, "SLOW", 0.01)
    said = "a look-up takes more than 0.01 s: the rounds wait for its source"
    server, (_, shop), _ = companies(tmp_path, 30).play(lambda server: asked.is_set() and said in caplog.text)
    assert server.conversation.rounds == 0
    assert shop._stop is None


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "cancelled"])
def test_a_party_that_is_gone_for_a_while_goes_on_and_loses_nothing(tmp_path: Path, kill: bool) -> None:
    world = companies(tmp_path)
    for reached in (40, 90, None):
        until = None if reached is None else lambda server, reached=reached: server.conversation.rounds >= reached
        server, _, _ = world.play(until, kill=kill and reached is not None)
    assert server.conversation.rounds == 150
    assert server.late is not None
    counts = server.late.waiting.counts
    assert (counts["happened"], counts["learnt"]) == (150, 150)
    assert server.ledger.activations.tolist() == [150, 0]


def test_a_client_with_a_database_that_is_killed_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    """A process of its own, by SIGKILL."""
    world = companies(tmp_path)
    killed: list[int] = []

    async def main() -> ServerParty:
        async with LocalBroker(tmp_path / "broker") as broker:
            connection = {"url": broker.url, "federation": "demo", "party": "bank", "index": 1}
            (tmp_path / "connection.toml").write_text(tomli_w.dumps(connection))
            (tmp_path / "bank.toml").write_text(tomli_w.dumps(world._texts["bank"]))
            server, shop = (world.party(name, broker.url) for name in ("server", "shop"))
            running = [asyncio.ensure_future(party.run()) for party in (server, shop)]
            for reached in (40, 90, 150):
                with (tmp_path / "bank.log").open("ab") as log:
                    bank = Forked(["client", str(tmp_path / "bank.toml")], log)
                while server.conversation.rounds < reached and not running[0].done():
                    assert bank.poll() is None, (tmp_path / "bank.log").read_text()
                    await asyncio.sleep(0.01)
                if reached < 150:
                    bank.kill()
                    killed.append(server.conversation.rounds)
                await asyncio.gather(*(running if reached == 150 else ()))
                assert await asyncio.to_thread(bank.wait, 60.0) == (0 if reached == 150 else -signal.SIGKILL)
                bank.stdout.close()
            return server

    server = run(main(), 300.0)
    assert killed[-1] < 150, "all was over before the last was killed"
    assert server.conversation.rounds == 150
    assert server.late is not None
    counts = server.late.waiting.counts
    assert (counts["happened"], counts["learnt"]) == (150, 150)
    assert server.ledger.activations.tolist() == [150, 0]
    assert "Traceback" not in (tmp_path / "bank.log").read_text()
    for name in ("bank", "server"):
        state = tmp_path / f"state-{name}"
        assert not open_to_others(state, but=() if name == "bank" else [state])  # which this test has made


def test_a_database_that_starts_after_its_party_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, ["bank"])

    async def main(database: Postgresql) -> int:
        database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, who VARCHAR(20), at BIGINT, a DOUBLE PRECISION)")
        rows = {"source": "sql", "url": database.url, "table": "orders", "entity": "who", "time": "at", "id": "id"}
        world.client("bank", rows | {"columns": ["a"]}, {"name": "OnEvent"})
        async with LocalBroker(tmp_path / "broker") as broker:
            connection = {"url": broker.url, "federation": "demo", "party": "bank", "index": 1}
            (tmp_path / "connection.toml").write_text(tomli_w.dumps(connection))
            (tmp_path / "bank.toml").write_text(tomli_w.dumps(world._texts["bank"]))
            database.stop()
            with (tmp_path / "bank.log").open("wb") as log:
                bank = Forked(["client", str(tmp_path / "bank.toml")], log)
            said = (tmp_path / "bank.log").read_text
            await until(lambda: "; waiting for it" in said(), said)
            bank.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(bank.wait, 60.0) == 0
            bank.stdout.close()
            with (tmp_path / "bank.log").open("wb") as log:
                bank = Forked(["client", str(tmp_path / "bank.toml")], log)
            await until(lambda: "; waiting for it" in said(), said)
            database.start()
            await until(lambda: "waiting for the server" in said(), said)
            bank.send_signal(signal.SIGTERM)
            bank.stdout.close()
            return await asyncio.to_thread(bank.wait, 60.0)

    with postgresql() as database:
        assert run(main(database), 300.0) == 0
    assert (tmp_path / "bank.log").read_text().count("; waiting for it") <= 3, "said at each attempt"


@pytest.mark.parametrize("leaves", [False, True])
def test_readings_of_a_database_that_goes_away_before_they_are_looked_up_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """They were fetched together; one that was looked up in vain is not safe."""
    monkeypatch.setattr(sourced, "AGAIN", 0.01)
    monkeypatch.setattr(sql, "AGAIN", 0.01)
    world = companies(tmp_path, 9)

    async def main() -> None:
        party = world.party("bank", "nats://127.0.0.1:1")
        source, database = party._source, Sqlite(tmp_path / "bank.db")
        events = [await anext(party._events)]
        database.stop()
        waiting = asyncio.ensure_future(anext(party._events))
        await until(lambda: waiting.done() or source.counts["away"])
        assert not waiting.done()
        if leaves:
            waiting.cancel()
            await asyncio.wait({waiting})
        else:
            database.start()
            events += [await waiting, *[event async for event in party._events]]
            assert events == [world.names.of(f"customer-{i:03}", (1000 + i) * 1_000_000) for i in range(9)]
            assert source._cursor.waiting == 9
        assert source._cursor.position is None
        assert party._inputs.noted() == {"away": 1}
        await source.close()

    run(main())


def test_readings_that_wait_for_a_function_that_cannot_say_are_counted_and_said_once_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sourced, "AGAIN", 0.0)
    names, tries = Names(bytes(32)), Counter[int]()

    def look(entity: str, moment: int) -> Mapping[str, Any]:
        tries[moment] += 1
        if moment != 2 and tries[moment] < 3:
            raise AwayError("the plant's historian restarts")
        return {"light": moment}

    async def readings() -> Any:
        for moment in (1, 2, 3):
            yield Reading("", moment, {})

    monkeypatch.setattr(own, "open_source", lambda *_: PythonSource(names, readings(), look))
    world = sensors(tmp_path)
    world._texts["room1"]["features"]["columns"] = ["light"]

    async def main() -> None:
        party = world.party("room1", "nats://127.0.0.1:1")
        assert len([event async for event in party._events]) == 3
        assert party._inputs.noted() == {"away": 2}

    run(main())
    assert caplog.text.count("readings wait for their source: the plant's historian restarts") == 2


def test_a_database_that_is_back_is_asked_however_long_its_last_failure_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its clock nothing passes but what a failure takes."""
    monkeypatch.setattr(sourced, "AGAIN", 0.01)
    monkeypatch.setattr(sql, "AGAIN", 0.01)
    world = companies(tmp_path, 3)

    async def main() -> None:
        party = world.party("bank", "nats://127.0.0.1:1")
        source, database, now = party._source, Sqlite(tmp_path / "bank.db"), [1e9]
        look = source._look

        def slow(*event: Any) -> Any:
            try:
                return look(*event)
            except sql.FAILED:
                now[0] += 20.0
                raise

        monkeypatch.setattr(source, "_clock", lambda: now[0])
        monkeypatch.setattr(source, "_look", slow)
        first = await anext(party._events)
        database.stop()
        waiting = asyncio.ensure_future(anext(party._events))
        await until(lambda: source.counts["away"])
        assert party._inputs.peek(world.names.of("customer-002", 1_002_000_000)) is None
        assert not waiting.done()
        database.start()
        assert await waiting != first
        assert party._inputs.peek(world.names.of("customer-002", 1_002_000_000)) is not None
        assert source.counts["back"] >= 1
        await source.close()

    run(main())


def test_an_event_that_is_asked_for_before_it_is_read_again_activates_its_client(tmp_path: Path) -> None:
    world = companies(tmp_path, 3)

    async def main() -> None:
        killed = world.party("bank", "nats://127.0.0.1:1")
        event = await anext(killed._events)
        await killed._source.close()
        again = world.party("bank", "nats://127.0.0.1:1")
        talk = again.conversation
        (hello,) = sent(talk.hello(), m.Hello)
        (said,) = sent(talk.receive([m.Welcome(hello.session, 7, talk.terms, 4, hello.schema, 0)]), m.Happened)
        (reply,) = sent(talk.receive([m.Ask(7, 0, 0, False, (event,), None)]), m.Reply)
        assert (said.event, reply.activated.tolist()) == (event, [True])
        again._let_go()  # it is kept with its round's input, and so is safe
        assert again._own.own() == {}
        await again._source.close()

    run(main())


class Greeted:
    """A client on a clock of its own, whose hellos a server answers at once, and asks it for an event with that.

    What the server sends is there after ``arrive``: a look-up takes ten seconds, within which it is called.
    """

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.said = 1000.0, list[m.Message]()
        monkeypatch.setattr(net_client, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.party = world.party("bank", "nats://127.0.0.1:1")
        self._coming: list[m.Message] = []
        self.events = [world.names.of(f"customer-{i:03}", (1000 + i) * 1_000_000) for i in range(3)]
        self.looked: list[bytes] = []
        look, loop = self.party._inputs._look, asyncio.get_running_loop()

        def slow(event: bytes) -> Any:
            self.looked.append(event)
            self.now += 10.0
            loop.call_soon_threadsafe(self.arrive)
            return look(event)

        monkeypatch.setattr(self.party._inputs, "_look", slow)
        monkeypatch.setattr(self.party.link, "send", self._say)

    async def _say(self, message: m.Message, client: int | None = None) -> None:
        self.said.append(message)
        if isinstance(message, m.Hello):
            welcome = m.Welcome(message.session, 7, self.party.conversation.terms, 4, message.schema, 0)
            self._coming += [welcome, m.Query(7, 0, (self.events[0],), None)]

    def arrive(self) -> None:
        self.hear(*self._coming)
        self._coming.clear()

    def hear(self, *messages: m.Message) -> None:
        for each in messages:
            self.party._received(0, encode(each))

    async def turn(self) -> list[str]:
        """What it says now."""
        before = len(self.said)
        await self.party._turn()
        return [type(each).__name__ for each in self.said[before:]]

    async def join(self) -> None:
        await self.party._hello()
        self.arrive()
        await self.turn()
        assert self.party.conversation.joined
        self.looked.clear()


def test_what_a_look_up_takes_is_no_reason_for_another_hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the answer, which comes meanwhile, would be one of an old session, and so would the next."""

    async def main() -> None:
        greeted = Greeted(companies(tmp_path, 3), monkeypatch)
        await greeted.join()
        greeted.hear(m.Call(7, 0))
        assert await greeted.turn() == ["Hello"]
        greeted.hear(m.Query(7, 1, (greeted.events[1],), None))
        assert await greeted.turn() == []
        assert greeted.looked == [], "it is asked in no session"
        greeted.arrive()
        greeted.hear(m.Query(7, 1, (greeted.events[1],), None))
        assert await greeted.turn() == ["Embeddings", "Embeddings"]
        assert greeted.looked == [greeted.events[1]]
        assert greeted.party.conversation.joined
        await greeted.party._source.close()

    run(main())


def test_no_hello_is_said_again_where_its_answer_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        greeted = Greeted(companies(tmp_path, 3), monkeypatch)
        await greeted.join()
        say = greeted.party.link.send

        async def slow(message: m.Message, client: int | None = None) -> None:
            await say(message, client)
            greeted.now += 10.0
            greeted.arrive()

        monkeypatch.setattr(greeted.party.link, "send", slow)
        greeted.party._came_back()
        assert await greeted.turn() == ["Hello"]
        assert await greeted.turn() == ["Embeddings"]
        # One that is lost is repeated.
        monkeypatch.setattr(greeted.party.link, "send", say)
        greeted.party._came_back()
        assert await greeted.turn() == ["Hello"]
        assert await greeted.turn() == []
        greeted.now += net_client.HELLO_EVERY
        assert await greeted.turn() == ["Hello"]
        await greeted.party._source.close()

    run(main())


def test_labels_are_learnt_from_while_more_events_wait_than_can_be_predicted(tmp_path: Path) -> None:
    """All events are told of at once; labels come after."""
    world = companies(tmp_path, 300, speed=1000.0, coalesce=0.0)
    server, _, _ = world.play(lambda server: server.late.waiting.counts["happened"] >= 250)
    assert server.late is not None
    assert server.late.waiting.counts["learnt"] >= 50


def sensors(folder: Path, n: int = 120, **labels: Any) -> World:
    """Two rooms report at times of their own, one when its light has moved; each label is of a time."""
    world = World(folder, ["room1", "room2"])
    rng = np.random.default_rng(3)
    light = np.repeat(rng.choice([0.0, 1.0], size=n // 4), 4) + rng.normal(size=n) / 100
    sound = rng.normal(size=n)
    stamps = [f"2026/01/01,{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}".split(",") for i in range(n)]
    world.table("room1.csv", ["Date", "Time", "light"], [[*stamps[i], light[i]] for i in range(n)])
    world.table("room2.csv", ["at", "sound"], [[f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z", sound[i]]
                                               for i in range(0, n, 10)])  # fmt: skip
    world.table("labels.csv", ["at", "present"], [[" ".join(stamps[i]), int(light[i] > 0.5)] for i in range(n)])
    world.server({"source": "csv", "path": "labels.csv", "time": "at", "label": "present", "late": "fresh"} | labels)
    world.client(
        "room1",
        {"source": "csv", "path": "room1.csv", "time": ["Date", "Time"],
         "columns": [{"name": "light", "standardise": True}]},
        {"name": "SendOnDelta", "threshold": 0.2},
    )  # fmt: skip
    world.client(
        "room2",
        {"source": "csv", "path": "room2.csv", "time": "at", "columns": ["sound"]},
        {"name": "OnEvent"},
    )
    return world


def moved_of(folder: Path) -> list[int]:
    """The seconds at which the light has moved."""
    moved: list[int] = []
    last = math.inf
    for i, value in enumerate(lights(folder)):
        if abs(value - last) > 0.2:
            moved.append(i)
            last = value
    return moved


def test_sensors_sample_their_latest_reading_when_any_of_them_is_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = sensors(tmp_path, expiry=2.0, coalesce=0.5)
    moved = moved_of(tmp_path)
    touched = {*moved, *range(0, 120, 10)}
    server, clients, _ = world.play()
    assert server.conversation.rounds == len(touched) < 80
    assert missed(server) == [0, 0]
    assert server.ledger.activations.tolist() == [len(moved), 12]
    assert [client.conversation.activations for client in clients] == [len(moved), 12]
    assert server.late is not None
    assert server.late.waiting.counts["unknown"] == 120 - len(touched)  # labels of times at which nothing happened
    assert caplog.text.count("the labels have ended; ") <= 1


@pytest.mark.parametrize("behind", [False, True], ids=["moved", "a clock that is hours behind"])
def test_labels_of_moments_at_which_nothing_happened_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, behind: bool
) -> None:
    caplog.set_level(logging.INFO)  # such labels are usual, and no warning
    world = sensors(tmp_path)
    if behind:
        text = (tmp_path / "room1.csv").read_text()
        (tmp_path / "room1.csv").write_text(text.replace("2026/01/01,00:", "2025/12/31,22:"))
        world._texts["server"]["clients"][1]["missing"] = "zero"
    server, _, _ = world.play(lambda server: server.late.waiting.counts["happened"] and server.late.without_event > 50)
    assert server.late is not None
    waiting = server.late.waiting
    # Of each second there is a label, and the last event is that of second 110 or later.
    assert 50 < server.late.without_event <= 120 - waiting.counts["labelled"]
    assert (waiting.counts["labelled"] < waiting.counts["happened"]) == behind
    assert server_status(server, 0.0)["labels"]["without event"] == server.late.without_event
    assert waiting.counts["unknown"] in (0, 120 - waiting.counts["labelled"])  # all have ended by then, or not
    assert "are of moments without an event so far" in caplog.text
    assert "Otherwise look at clocks, time zones and grain" in caplog.text


def test_sensors_are_asked_for_what_they_showed_at_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = sensors(tmp_path)
    looked: list[Mapping[str, Any] | None] = []
    look = FileSource.look

    def recorded(self: FileSource, name: bytes) -> Mapping[str, Any] | None:
        looked.append(look(self, name))
        return looked[-1]

    def held(party: Any) -> tuple[bytes, int, dict[str, int], bytes]:
        """Its running means, how many inputs it keeps, what it has counted, and its parameters."""
        parameters = [each.tobytes() for each in own.own_arrays(party).values()]
        return (
            party._inputs._state.tobytes(),
            len(party._inputs._kept),
            dict(party._inputs.counts),
            b"".join(parameters),
        )

    def still(party: Any, seat: Any) -> bool:
        """Whether it has read all, and has its last derivative."""
        return party._listening.done() and not party._taken and party.conversation.applied == seat.before

    monkeypatch.setattr(FileSource, "look", recorded)
    monkeypatch.setattr(sourced.SourcedRoom, "expect_no_event", lambda self: None)  # the server goes on, to be asked
    touched = len({*moved_of(tmp_path), *range(0, 120, 10)})

    async def main() -> None:
        async with LocalBroker(world.folder / "broker") as broker:
            server, *clients = parties = [world.party(name, broker.url) for name in ("server", *world.clients)]
            async with predicting(server, Predictions(port=0), Metrics(server), world.names, of_times=True) as port:
                running = [asyncio.ensure_future(party.run()) for party in parties]
                while not (
                    server.conversation.rounds == touched and all(map(still, clients, server.conversation.seats))
                ):
                    await asyncio.sleep(0.01)
                before = [held(party) for party in clients]
                for at, light, sound in (("00:00:13.5Z", 13, 1), ("01:00:27.5+01:00", 27, 2)):
                    looked.clear()
                    answer = await asyncio.to_thread(ask_http, f"http://127.0.0.1:{port}", {"time": f"2026-01-01T{at}"})
                    assert answer["answered"] == ["room1", "room2"]
                    assert {"light": str(lights(tmp_path)[light])} in looked
                    assert {"sound": str(sounds(tmp_path)[sound])} in looked
                with pytest.raises(AnabranchError, match="no client has features"):
                    await asyncio.to_thread(ask_http, f"http://127.0.0.1:{port}", {"time": "1999-01-01T00:00:00Z"})
                assert [held(party) for party in clients] == before  # nothing is learnt of a question
                for party in parties:
                    party.leave()
                await asyncio.gather(*running)

    run(main(), 300.0)


@pytest.mark.parametrize("activation", [{"name": "SendOnDelta", "threshold": 1e9}, {"name": "Random", "p": 0.5}])
def test_readings_that_touch_nobody_leave_time_for_everything_else(tmp_path: Path, activation: dict[str, Any]) -> None:
    world = sensors(tmp_path)
    world._texts["room1"]["activation"] = activation

    async def main() -> int:
        party = world.party("room1", "nats://127.0.0.1:1")
        passed = 0

        async def counts() -> None:
            nonlocal passed
            while True:
                passed += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(counts())
        await party._source.begin()
        events = [each async for each in party._events]
        counting.cancel()
        await party._source.close()
        assert len(events) == (activation["name"] == "SendOnDelta")
        return passed

    assert run(main()) >= 119  # once a reading


def told_of(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    *light: tuple[float, float],
    table: dict[int, float] | None = None,
    places: bool = True,
) -> tuple[Any, Any]:
    """A client whose light is read at these seconds, and its events of a minute each, as it is to tell of them.

    With a ``table`` readings go there, and look-ups are of what it has. With ``places`` it has a place for each, which
    one that is given again has as before.
    """
    names = Names(bytes(32), 60_000_000)
    given = vars(world).setdefault("given", [])

    async def readings() -> Any:
        for seconds, value in light:
            time = round(seconds * 1e6)
            if table is not None:
                table[time] = value
            yield Reading("", time, {"light": value})

    def look(entity: str, moment: int) -> Any:
        assert table is not None
        return {"light": table[max(time for time in table if time <= moment)]}

    source = PythonSource(names, readings(), *([] if table is None else [look, lambda key: ""]))
    plain = source.readings

    async def placed() -> Any:
        async for each in plain():
            moment = each.reading.time
            if moment not in given:
                given.append(moment)
            yield replace(each, place=Place("the room", [given.index(moment)]))

    if places:
        monkeypatch.setattr(source, "readings", placed)
    monkeypatch.setattr(own, "open_source", lambda *_: source)
    world._texts["room1"]["features"]["columns"] = ["light"]
    party = world.party("room1", "nats://127.0.0.1:1")

    async def send(*message: Any) -> None:
        """To nobody."""

    monkeypatch.setattr(party.link, "send", send)

    async def events() -> Any:
        async for name in party._events:
            await party._do(party.conversation.happened(name))
            read = names.read(name)
            assert read is not None
            yield read[1] // 60_000_000, party._own.get(name)[0].tolist()

    return party, events()


def settle(party: Any, *minutes: int) -> None:
    """Nothing can be lost of these events any more."""
    for minute in minutes:
        party.conversation._keeping.settle(Names(bytes(32), 60_000_000).of("", minute * 60_000_000))
    party._let_go()


def activated_by(party: Any, event: bytes, *, stored: bool = False) -> bool:
    """Whether a client is activated by an event that the server has just asked it for."""
    talk = party.conversation
    (hello,) = sent(talk.hello(), m.Hello)
    talk.receive([m.Welcome(hello.session, 7, talk.terms, 4, hello.schema, 0)])
    (reply,) = sent(talk.receive([m.Ask(7, 0, 0, stored, (event,), None)]), m.Reply)
    return bool(reply.activated[0])


def test_what_has_moved_within_a_grain_is_in_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    light = [(5, 0), (65, 0), (90, 100), (110, 0), (125, 0), (190, 0.1)]
    _, events = told_of(monkeypatch, sensors(tmp_path), *light)

    async def main() -> None:
        assert [each async for each in events] == [(1, [0.0]), (2, [100.0]), (3, [0.0])]

    run(main())


def test_what_has_moved_in_a_moment_that_the_server_has_asked_for_is_told_of_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = [(5, 0), (65, 0), (70, 0.1), (90, 100), (125, 100), (185, 0)]
    party, events = told_of(monkeypatch, sensors(tmp_path), *light)
    reading = party._source.readings

    async def asked() -> Any:
        async for happening in reading():
            if happening.reading.time == 90_000_000:
                assert not activated_by(party, happening.name)
                found.append(party._own.get(happening.name)[0].tolist())
            yield happening

    found: list[Any] = []
    monkeypatch.setattr(party._source, "readings", asked)

    async def main() -> None:
        assert [each async for each in events] == [(1, [0.0]), (3, [100.0]), (4, [0.0])]

    run(main())
    assert found == [pytest.approx([0.1])]  # the last reading before it was asked for
    assert party.notes["late", None] == 1


@pytest.mark.parametrize("stored", [False, True])
def test_after_a_restart_what_has_moved_in_a_moment_that_was_asked_for_is_still_told_of_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    world = sensors(tmp_path)

    async def main() -> None:
        party, events = told_of(monkeypatch, world, (5, 0), (65, 0))
        assert [each async for each in events] == [(1, [0.0])]
        second = Names(bytes(32), 60_000_000).of("", 120_000_000)
        assert not activated_by(party, second, stored=stored)
        if not stored:  # then a passive client has no part in the round
            party._own.learnt([(0, second, False)], [])
        again, events = told_of(monkeypatch, world, (5, 0), (65, 0), (90, 100), (125, 100))
        assert [each async for each in events] == [(1, [0.0]), (3, [100.0])]
        assert again.notes["late", None] > 0

    run(main())


@pytest.mark.parametrize(
    ("then", "told"),
    [([(65, 100)], [(2, [100.0])]), ([(65, 0.1), (125, 100)], [(3, [100.0])])],
    ids=["still", "only later again"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_what_has_moved_in_a_moment_whose_round_is_over_is_told_of_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool, then: list[tuple[float, float]], told: list[Any]
) -> None:
    world = sensors(tmp_path)
    light = [(5, 0), (30, 100), *then]
    first = Names(bytes(32), 60_000_000).of("", 60_000_000)

    async def main() -> None:
        party, events = told_of(monkeypatch, world, *(light[:1] if restart else light))
        assert await anext(events) == (1, [0.0])
        settle(party, 1)
        if restart:
            await party._save()
            party, events = told_of(monkeypatch, world, *light[1:])
        assert [each async for each in events] == told
        assert party._own.get(first)[0].tolist() == [0.0]
        assert party.notes["late", None] == 1

    run(main())


@pytest.mark.parametrize("asked", [False, True])
def test_a_client_that_was_killed_tells_of_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    world = sensors(tmp_path)

    async def main() -> None:
        _, events = told_of(monkeypatch, world, (5, 0), (90, 100))
        assert [each async for each in events] == [(1, [0.0]), (2, [100.0])]
        again, events = told_of(monkeypatch, world, (5, 0), (95, 99.9), (90, 100), (125, 100), (185, 0))
        if asked:
            assert activated_by(again, [*again._own.own()][1])
        assert [each async for each in events] == [(1, [0.0]), (2, [100.0]), (4, [0.0])]

    run(main())


def test_a_client_that_was_killed_tells_of_what_moves_after_what_it_has_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stimulus knows the reading that is given again: it is no move, and its event's input stays."""
    world = sensors(tmp_path)

    async def main() -> None:
        party, events = told_of(monkeypatch, world, (5, 0), (90, 100))
        assert [each async for each in events] == [(1, [0.0]), (2, [100.0])]
        party._are_safe([Names(bytes(32), 60_000_000).of("", 60_000_000)])
        await party._save()
        _, events = told_of(monkeypatch, world, (90, 100), (110, 200), (125, 200))
        assert [each async for each in events] == [(2, [100.0]), (3, [200.0])]

    run(main())


@pytest.mark.parametrize(
    ("first", "saved", "settled", "again", "new"),
    [
        ([(5, 0), (90, 100), (125, 0)], 3, [1, 3], 1, [(185, 100), (245, 100)]),
        ([(5, 0), (90, 100), (150, 100.1)], 2, [2], 0, [(190, 0)]),
        ([(5, 0), (90, 100)], 1, [1, 2], 2, [(125, 0)]),
        ([(5, 0), (90, 100), (150, 100.1), (200, 0)], 3, [2, 4], 0, [(245, 100)]),
        ([(5, 0), (400, 100)], 2, [1], 1, [(125, 0), (185, 100)]),
        ([(5, 0), (400, 100)], 2, [1, 7], 2, [(125, 0), (185, 100), (250, 0)]),
    ],
    ids=["an event waits for its label", "an event is safe before an older one", "an event is safe before a checkpoint",
         "a reading moved nothing", "times go back", "times go back and all is safe"],
)  # fmt: skip
def test_a_client_that_was_killed_tells_of_what_it_would_have_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[tuple[float, float]], saved: int, settled: list[int],
    again: int, new: list[tuple[float, float]],
) -> None:  # fmt: skip
    """It saves after so many events, some are settled, and readings are given again from one on."""

    async def main() -> None:
        (tmp_path / "whole").mkdir()
        _, events = told_of(monkeypatch, sensors(tmp_path / "whole"), *first, *new)
        whole = [each async for each in events]
        world, told = sensors(tmp_path), []
        party, events = told_of(monkeypatch, world, *first)
        async for each in events:
            told.append(each)
            if len(told) == saved:
                await party._save()
        settle(party, *settled)
        unsafe = len(party._own.own())
        _, events = told_of(monkeypatch, world, *first[again:], *new)
        later = [each async for each in events]
        assert [*told, *later[unsafe:]] == whole
        assert all(each in told for each in later[:unsafe])

    run(main())


def test_a_client_that_was_killed_goes_by_what_it_has_told_of_though_its_table_has_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the same event has come after the one that was told of."""
    world, table = sensors(tmp_path), dict[int, float]()

    async def main() -> None:
        party, events = told_of(monkeypatch, world, (5, 0), (90, 100), (110, 200), table=table)
        assert [each async for each in events] == [(1, [0.0]), (2, [100.0])]
        settle(party, 1)
        await party._save()
        _, events = told_of(monkeypatch, world, (90, 100), (110, 200), (125, 200), table=table)
        assert [each async for each in events] == [(2, [100.0]), (3, [200.0])]

    run(main())


@pytest.mark.parametrize("places", [False, True])
def test_of_a_source_that_gives_nothing_again_that_is_safe_every_reading_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: bool
) -> None:
    world = sensors(tmp_path)

    async def main() -> None:
        party, events = told_of(monkeypatch, world, (5, 0), (65, 0.125), (125, 100), places=places)
        assert [each async for each in events] == [(1, [0.0]), (3, [100.0])]
        settle(party, 1, 3)
        _, events = told_of(monkeypatch, world, (65, 0.125), (190, 0), places=places)
        assert [each async for each in events] == [(4, [0.0]) if places else (2, [0.125])]

    run(main())


def test_readings_of_the_time_of_the_one_that_was_told_of_last_are_told_apart(tmp_path: Path) -> None:
    """As of rows that were written together; those of another table are told of."""
    party = sensors(tmp_path).party("room1", "nats://127.0.0.1:1")
    party._told = {"x": Place("a table", [5, "b"])}
    places = [*(Place("a table", [5, id]) for id in "abc"), Place("another", [5, "a"]), None]
    happenings = [Happening(b"", Reading("x", 5, {}), place=place) for place in places]
    assert [party._was_before(each) for each in happenings] == [True, True, False, False, False]
    run(party._source.close())


@pytest.mark.parametrize("saved", [False, True])
def test_readings_before_the_one_that_a_killed_client_told_of_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    world = sensors(tmp_path)
    light = [(5, 0), (70, 0.1), (90, 100), (125, 0)]
    told = [(1, [0.0]), (2, [100.0]), (3, [0.0])]

    async def main() -> None:
        party, events = told_of(monkeypatch, world, *light[:3])
        assert [each async for each in events] == told[:2]
        if saved:
            await party._save()
        _, events = told_of(monkeypatch, world, *light)
        assert [each async for each in events] == told

    run(main())


def test_a_file_is_as_its_last_row_of_a_grain_and_moves_by_that(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    light = [(5, 0), (65, 0), (90, 100), (125, 100), (190, 100), (200, 0), (250, 0)]
    world.table("minutes.csv", ["at", "light"], light)
    features = {"source": "csv", "path": "minutes.csv", "time": "at", "grain": 60.0, "columns": ["light"]}
    world.client("room1", features, {"name": "SendOnDelta", "threshold": 10.0})
    party = world.party("room1", "nats://127.0.0.1:1")

    async def main() -> None:
        events = [name async for name in party._events]
        minutes = [Names.read(name)[1] // 60_000_000 for name in events]  # type: ignore[index]
        found = [party._own.get(name)[0].tolist() for name in events]
        assert [*zip(minutes, found, strict=True)] == [(1, [0.0]), (2, [100.0]), (4, [0.0])]
        await party._source.close()

    run(main())


def test_a_round_may_begin_with_each_label(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    world.server({"source": "csv", "path": "labels.csv", "time": "at", "label": "present"})
    world.client(
        "room1",
        {"source": "csv", "path": "room1.csv", "time": ["Date", "Time"], "columns": ["light"]},
        {"name": "Event", "threshold": 0.5},
    )
    for reached in (50, None):
        until = None if reached is None else lambda server: server.conversation.rounds >= 50
        server, _, _ = world.play(until)
    assert server.conversation.rounds == 120
    assert server.ledger.activations[0] == sum(each > 0.5 for each in lights(tmp_path))
    assert server.ledger.activations[1] <= 12  # what is told of after its round is no activation
    assert server.ledger.error_rate < 0.35  # 0.4 by always saying the same


def test_a_room_may_send_messages_that_are_acknowledged(tmp_path: Path) -> None:
    world = sensors(tmp_path, expiry=2.0, coalesce=0.5)
    with (tmp_path / "room2.csv").open() as file:
        rows = list(csv.DictReader(file))

    async def body(url: str, playing: asyncio.Future[Any]) -> None:
        client = await nats.connect(url)
        js = client.jetstream()
        await js.add_stream(name="rooms", subjects=["rooms.>"])
        for row in [*rows, {"at": "soon"}]:
            await js.publish("rooms.2", json.dumps(row).encode())
        await playing
        async with asyncio.timeout(60):
            while (await js.consumer_info("rooms", "demo-room2")).num_ack_pending:
                await asyncio.sleep(0.01)
        await client.close()

    async def main() -> tuple[ServerParty, list[ClientParty], bytes]:
        async with message_broker(tmp_path / "messages") as messages:
            features = {"source": "jetstream", "url": messages.url, "stream": "rooms", "time": "at"}
            world.client("room2", features | {"columns": ["sound"]}, {"name": "OnEvent"})
            playing = asyncio.ensure_future(world.played())
            await body(messages.url, playing)
            return await playing

    server, clients, _ = run(main(), 300.0)
    assert server.ledger.activations[1] == 12
    assert clients[1].conversation.activations == 12
    assert missed(server) == [0, 0]
    assert len((tmp_path / "state-room2" / "aside.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": {"source": "xlsx"}}, 'features.source is "xlsx", but it must be "csv" or "parquet" or "sql"'),
        ({"features": {"speed": 0.0}}, "features.speed is 0.0, but it must be a number above 0"),
        ({"features": {"time": None}}, "features.time is missing"),
        ({"features": {"speed": 1.0, "origin": ["2026-01-01", "now"]}}, r"'now'\]: a text is no time"),
        ({"features": {"origin": ["2026-01-01"]}}, "features.origin"),
        ({"features": {"tme": "at"}}, "features: there is no setting 'tme'. Did you mean 'time'"),
        ({"features": {"columns": []}}, r"features.columns is \[\], but it must be a list of columns"),
        ({"features": {"columns": [{"name": "a", "kind": "date"}]}}, r'features.columns\[1\].kind is "date"'),
        ({"features": {"columns": [{"nam": "a"}]}}, r"features.columns\[1\]: there is no setting 'nam'"),
        ({"activation": {"name": "SendOnDelta"}}, "activation.threshold is missing"),
        ({"activation": {"name": "SendOnDelta", "threshold": 1.0, "columns": ["b"]}}, "names 'b', which is no number"),
        ({"features": {"columns": [{"name": "sound", "missing": "median"}]}}, "missing is 'median'"),
        ({"features": {"columns": ["noise"]}}, "has no column 'noise'"),
        ({"features": {"entity_key": "none.key"}}, "there is no such file: make one"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, change: dict[str, dict[str, Any]], said: str) -> None:
    world = sensors(tmp_path)
    for section, values in change.items():
        held = world._texts["room2"]
        merged = held[section] | values if section == "features" else values
        held[section] = {key: value for key, value in merged.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        world.party("room2", "nats://127.0.0.1:1")


def test_features_of_a_plain_table_have_no_readings(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    world._texts["room2"]["features"] = {"path": "room2.csv", "event": "at", "columns": ["sound"]}
    with pytest.raises(ConfigError, match="OnEvent, which goes by readings as they happen: name a source"):
        world.party("room2", "nats://127.0.0.1:1")


def test_a_decay_that_is_1_in_the_models_precision_is_refused(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    world._texts["room1"]["update"] = UPDATE | {"decay": 1 - 1e-9}
    with pytest.raises(ConfigError, match="which is 1 in float32"):
        world.party("room1", "nats://127.0.0.1:1")


@pytest.mark.parametrize("late", ["fresh", "stored"])
def test_slr_learns_from_no_events_that_clients_tell_of(tmp_path: Path, late: str) -> None:
    world = sensors(tmp_path, late=late)
    world._texts["server"]["update"] = {"name": "SLR", "window": 3}
    with pytest.raises(ConfigError, match=f"labels.late is '{late}', so clients tell of events, which they cannot"):
        world.party("server", "nats://127.0.0.1:1")


def test_events_of_its_own_whose_rounds_are_in_the_checkpoint_are_not_resumed(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    party = world.party("room2", "nats://127.0.0.1:1")
    for t, event in enumerate([b"before", b"after"], party.conversation.applied):
        party._inputs._kept.put(event, np.zeros(1, np.float32), None)
        party._own.add_own(event)
        party._own.learnt([(t, event, True)], [])
    party._own.add_own(b"no round")
    party._own.close()
    run(party._source.close())
    party = world.party("room2", "nats://127.0.0.1:1")
    assert [*party._own.own()] == [*party.conversation._keeping.own] == [b"after", b"no round"]
    run(party._source.close())


def test_a_party_leaves_though_its_source_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    party = sensors(tmp_path).party("room2", "nats://127.0.0.1:1")
    began, ended = asyncio.Event(), asyncio.Event()

    async def begin() -> None:
        began.set()
        try:
            await asyncio.Event().wait()  # as for a broker that answers without JetStream
        finally:
            ended.set()

    monkeypatch.setattr(party._source, "begin", begin)

    async def main() -> str:
        running = asyncio.ensure_future(party.run())
        await began.wait()
        party.leave()
        return (await running).reason

    assert run(main()) == "left"
    assert ended.is_set()


def test_under_slr_a_file_is_read_no_further_ahead_than_its_events_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more rows than either: none of them is dropped before its round."""
    monkeypatch.setattr("anabranch.federation.client.AHEAD", 10)
    monkeypatch.setattr("anabranch.protocol.client.conversation.REMEMBERED", 30)
    server, clients = slr(sensors(tmp_path))
    assert server.ledger.activations.tolist() == [120, 12]
    assert [client.conversation.activations for client in clients] == [120, 12]
    assert clients[0].notes["event dropped", None] == 0


def test_under_slr_a_client_goes_on_to_the_events_that_rounds_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first events have no label, and are more than it reads ahead."""
    monkeypatch.setattr("anabranch.federation.client.AHEAD", 10)
    world = sensors(tmp_path)
    header, *rows = (tmp_path / "labels.csv").read_text().splitlines()
    (tmp_path / "labels.csv").write_text("\n".join([header, *rows[60:]]) + "\n")
    server, clients = slr(world)
    assert server.conversation.rounds == 60
    assert server.ledger.activations[0] > 0
    assert clients[0].notes["event dropped", None] > 0


def slr(world: World) -> tuple[ServerParty, list[ClientParty]]:
    """Plays it under SLR, with a round for each label and each reading of a room an event of its own."""
    world.server({"source": "csv", "path": "labels.csv", "time": "at", "label": "present"})
    world._texts["room1"]["activation"] = {"name": "OnEvent"}
    for text in world._texts.values():
        text["update"] = {"name": "SLR", "window": 3}
    server, clients, _ = world.play()
    return server, clients


def test_a_source_that_waits_for_a_checkpoint_that_is_being_saved_makes_nobody_busy(tmp_path: Path) -> None:
    world = sensors(tmp_path)

    async def main() -> None:
        party = world.party("room2", "nats://127.0.0.1:1")
        (reading,) = await play(party._source, 1)
        party.conversation.joined = True
        party._taken.add(reading.name, reading)
        party._save_again = 0.0
        assert party._due() == 0.0
        party._saving = asyncio.ensure_future(asyncio.sleep(0))
        assert party._due() == math.inf
        await party._saving
        await party._source.close()

    run(main())


def test_other_features_need_another_folder(tmp_path: Path) -> None:
    world = sensors(tmp_path)
    party = world.party("room2", "nats://127.0.0.1:1")
    (hello,) = sent(party.conversation.hello(), m.Hello)
    assert hello.schema == Features([Column("sound")]).schema != Features([Column("sound", missing="zero")]).schema
    party._inputs.look(world.names.of("", 1_767_225_600_000_000))
    run(party._source.close())
    world._texts["room2"]["features"]["columns"] = [{"name": "sound", "missing": "zero"}]
    with pytest.raises(CheckpointError, match="kept with other features"):
        world.party("room2", "nats://127.0.0.1:1")
