"""A party seen from outside: what its metrics say, whether it is ready, and who asks how."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.broker import keys
from anabranch.broker.credentials import Credentials
from anabranch.broker.local import LocalBroker
from anabranch.config import party as partyfile
from anabranch.errors import ConfigError
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties import build_party as own
from anabranch.serving import metrics
from anabranch.serving.metrics import CONNECTIONS, HttpServer, Metrics, serving
from patience import PATIENCE, until

NAMES = ("bank", "shop")
ROUNDS = 40
KINDS = ("flood", "garbage")
FEATURE, EVENT = "4711.8125", "zebra-cross"
"""What must not be seen from outside."""


def write_tables(folder: Path, rounds: int = ROUNDS) -> None:
    """The labels of the server and the features of the clients; the shop lacks every tenth event."""
    labels, rows = ["event,label"], {name: ["event,x,y"] for name in NAMES}
    for t in range(rounds):
        labels.append(f"{EVENT}-{t},{t % 2}")
        for name in NAMES:
            if name == "bank" or t % 10:
                rows[name].append(f"{EVENT}-{t},{FEATURE},{t % 3}")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    for name in NAMES:
        (folder / f"{name}.csv").write_text("\n".join(rows[name]) + "\n")


def server_settings(**more: Any) -> dict[str, Any]:
    return {
        "connection": "connection.toml",
        "folder": "server",
        "labels": {"path": "labels.csv", "event": "event", "label": "label", "follow": True},
        "model": {"name": "linear", "classes": 2},
        "clients": [
            {"name": "bank", "embedding": 2},
            {"name": "shop", "embedding": 2, "missing": "zero"},
        ],
        "learning_rate": 1e-6,
        "checkpoint_every": 15,
        **more,
    }


def client_settings(name: str, **more: Any) -> dict[str, Any]:
    return {
        "connection": f"{name}.toml",
        "folder": name,
        "clients": 2,
        "features": {"path": f"{name}.csv", "event": "event", "columns": ["x", "y"]},
        "model": {"name": "linear", "classes": 2},
        "learning_rate": 1e-6,
        **more,
    }


def server_of(folder: Path, url: str, **more: Any) -> ServerParty:
    file = partyfile.check(server_settings(**more), folder / "server.toml")
    assert isinstance(file, partyfile.ServerFile)
    return own.server_party(file, Credentials((url,), "test", "server", 0, clients=NAMES), folder / "server")


def client_of(folder: Path, url: str, index: int) -> ClientParty:
    name = NAMES[index - 1]
    file = partyfile.check(client_settings(name), folder / f"{name}.toml")
    assert isinstance(file, partyfile.ClientFile)
    return own.client_party(file, Credentials((url,), "test", name, index), folder / name)


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def get(port: int, path: str) -> tuple[int, str]:
    answer = await ask(port, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert f"Content-Length: {len(body.encode())}" in head
    return int(head.split()[1]), body


async def ready(port: int) -> list[str]:
    """Why a party is not ready."""
    status, body = await get(port, "/ready")
    values = json.loads(body)
    assert values["ready"] == (status == 200) == (not values["reasons"])
    assert status in (200, 503)
    return values["reasons"]


async def values_of(port: int) -> dict[tuple[str, ...], float]:
    """Each sample by its name and its labels' values."""
    status, text = await get(port, "/metrics")
    assert status == 200
    assert FEATURE not in text
    assert EVENT not in text
    return samples(text)


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_a_federation_seen_from_outside(tmp_path):
    write_tables(tmp_path)

    async def play() -> None:
        async with LocalBroker(tmp_path / "broker") as broker:
            server = server_of(tmp_path, broker.url)
            async with serving(server, 0) as port:
                assert port
                assert json.loads((await get(port, "/health"))[1]) == {"alive": True, "party": "server"}
                # The first round waits for the shop too, which later ones could do without.
                waiting = "waiting for bank, shop"
                assert await ready(port) == ["there is no connection to the broker", waiting]
                running = [asyncio.ensure_future(server.run())]
                await until(lambda: server.link.connected, "a connection")
                assert await ready(port) == [waiting]
                await with_clients(broker, server, port, running)

    async def with_clients(
        broker: LocalBroker, server: ServerParty, port: int, running: list[asyncio.Future[Any]]
    ) -> None:
        bank, shop = (client_of(tmp_path, broker.url, index) for index in (1, 2))
        async with serving(bank, 0) as own_port, serving(shop, 0) as shop_port:
            assert own_port is not None
            assert shop_port is not None
            assert "the server has not said welcome" in await ready(own_port)
            shops = asyncio.ensure_future(shop.run())
            await until(lambda: server.conversation.seats[1].present, "the shop")
            assert await ready(port) == ["waiting for bank"]
            banks = asyncio.ensure_future(bank.run())
            await until(lambda: server.conversation.rounds == ROUNDS, "all rounds")
            await until(lambda: server.checkpoint_time is not None, "a checkpoint")
            assert await ready(port) == await ready(own_port) == await ready(shop_port) == []
            seen = await values_of(port)
            check_server(seen)
            await until(lambda: bank.conversation.applied == ROUNDS - 1, "the last derivative")
            check_client(await values_of(own_port), bank)
            broker.kill()
            await until(lambda: not server.link.connected, "a loss")
            assert await ready(port) == ["there is no connection to the broker"]
            await broker.start()
            await until(lambda: is_ready(port, own_port, shop_port), "all of them again")
            assert (await values_of(port))["anabranch_broker_reconnections_total",] >= 1
            bank.leave()
            await banks
        await until(lambda: not server.conversation.seats[0].present, "a goodbye")
        assert await ready(port) == ["waiting for bank"]
        assert (await values_of(port))["anabranch_notes_total", "bank", "left"] == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("anabranch.federation.engine.INBOX", 1000)
            for client in (2, 2, 2, 1):  # each has a share of its own
                server._received(client, bytes(400))
        seen = await values_of(port)
        notes = {(of, kind): seen.get(("anabranch_notes_total", of, kind), 0) for of in NAMES for kind in KINDS}
        assert notes == {("bank", "flood"): 0, ("bank", "garbage"): 1, ("shop", "flood"): 2, ("shop", "garbage"): 1}
        for party in (server, shop):
            party.leave()
        await asyncio.gather(shops, *running)

    async def is_ready(*ports: int) -> bool:
        return not any([await ready(each) for each in ports])

    asyncio.run(play())


def check_server(seen: dict[tuple[str, ...], float]) -> None:
    prefix = "anabranch_"
    assert seen[prefix + "party_info", "test", "server", own_version()] == 1
    assert seen[prefix + "rounds_total",] == ROUNDS
    assert seen[prefix + "rounds_in_flight",] == 0
    assert seen[prefix + "ready",] == seen[prefix + "broker_connected",] == 1
    assert seen[prefix + "broker_reconnections_total",] == 0
    assert seen[prefix + "activations_total", "bank"] == ROUNDS
    assert seen[prefix + "activations_total", "shop"] == seen[prefix + "answers_total", "shop"] == ROUNDS - 4
    assert seen[prefix + "replaced_total", "shop", "zero"] == 4
    assert seen[prefix + "replaced_total", "bank", "zero"] == 0
    assert seen[prefix + "notes_total", "shop", "unknown"] == 4
    assert seen[prefix + "notes_total", "bank", "garbage"] == seen[prefix + "notes_total", "", "stranger"] == 0
    assert seen[prefix + "round_trip_seconds_count", "bank"] > 0
    assert (
        seen[prefix + "round_trip_seconds_bucket", "bank", "+Inf"] == seen[prefix + "round_trip_seconds_count", "bank"]
    )
    assert 0 <= seen[prefix + "run_time_error",] <= 1
    assert seen[prefix + "accumulated_error",] == seen[prefix + "run_time_error",]
    assert 0 <= seen[prefix + "checkpoint_age_seconds",] < PATIENCE
    assert seen[prefix + "round_log_bytes",] > 0
    assert seen[prefix + "messages_total", "bank", "in", "Embeddings"] == ROUNDS
    assert seen[prefix + "messages_total", "all", "out", "Query"] >= ROUNDS
    assert seen[prefix + "message_bytes_total", "bank", "out", "Derivatives"] > ROUNDS
    assert seen["process_resident_memory_bytes",] > 0


def check_client(seen: dict[tuple[str, ...], float], bank: ClientParty) -> None:
    prefix = "anabranch_client_"
    assert seen["anabranch_party_info", "test", "bank", own_version()] == 1
    assert seen[prefix + "joined",] == 1
    assert seen[prefix + "applied_round",] == ROUNDS - 1
    assert seen[prefix + "answers_total",] == seen[prefix + "steps_total",] == ROUNDS
    assert seen[prefix + "encode_seconds_count",] >= ROUNDS
    assert 0 < seen[prefix + "step_seconds_count",] <= ROUNDS
    assert seen[prefix + "step_seconds_sum",] > 0
    assert seen["anabranch_notes_total", "", "unusable"] == 0
    assert ("anabranch_rounds_total",) not in seen


def own_version() -> str:
    return version("anabranch")


class Stub:
    """Metrics of no party."""

    party = SimpleNamespace(name="stub")

    def text(self) -> bytes:
        return b"one 1\n"

    def reasons(self) -> list[str]:
        return ["it is a stub"]


def served(test: Callable[[int], Any]) -> None:
    async def play() -> None:
        stub: Any = Stub()
        server = HttpServer(stub)
        port = await server.start("127.0.0.1", 0)
        try:
            await test(port)
        finally:
            await server.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", 200, b"one 1\n"),
        (b"GET /metrics?name=one HTTP/1.0\r\n\r\n", 200, b"one 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /ready HTTP/1.1\r\n\r\n", 503, b'{"ready": false, "reasons": ["it is a stub"]}\n'),
        (b"GET / HTTP/1.1\r\n\r\n", 404, b'{"error": "there are /metrics, /health and /ready"}\n'),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, b'{"error": "only GET and HEAD are answered"}\n'),
        (b"\x16\x03\x01\x02\r\n\r\n", 400, b'{"error": "this is no request of HTTP/1.1"}\n'),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400, b'{"error": "this is no request of HTTP/1.1"}\n'),
    ],
)
def test_each_request_has_its_answer(request_, status, body):
    async def test(port: int) -> None:
        answer = await ask(port, request_)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.partition(b"\r\n\r\n")[2] == body

    served(test)


def test_who_says_nothing_or_half_a_request_is_hung_up(monkeypatch):
    monkeypatch.setattr(metrics, "SECONDS", 0.05)

    async def test(port: int) -> None:
        for begin in (b"", b"GET /metrics HTTP/1.1\r\nHost: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
        assert (await get(port, "/health"))[0] == 200

    served(test)


def test_too_many_at_a_time_are_hung_up_and_the_first_ones_are_answered():
    async def test(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        with contextlib.suppress(ConnectionResetError):
            assert await ask(port, b"GET /health HTTP/1.1\r\n\r\n") == b""
        for reader, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()
        await until(lambda: answered(port), "room again")

    async def answered(port: int) -> bool:
        try:
            return bool(await ask(port, b"GET /health HTTP/1.1\r\n\r\n"))
        except ConnectionResetError:
            return False

    served(test)


def test_a_port_that_is_taken_is_named(tmp_path):
    write_tables(tmp_path)

    async def play() -> None:
        server = server_of(tmp_path, "nats://127.0.0.1:1")
        async with serving(server, None) as port:
            assert port is None
        async with serving(server, 0) as port:
            with pytest.raises(ConfigError, match=rf"metrics: port {port} of 127.0.0.1 cannot be had \(.*name another"):
                async with serving(client_of(tmp_path, "nats://127.0.0.1:1", 1), port):
                    pass
        server._log_file.close()

    asyncio.run(play())


def test_the_end_of_a_certificate_is_told(tmp_path):
    write_tables(tmp_path)
    keys.init(tmp_path / "keys", "test", "127.0.0.1", NAMES, days=30)
    credentials = Credentials.load(tmp_path / "keys" / "bank" / "connection.toml")
    file = partyfile.check(client_settings("bank"), tmp_path / "bank.toml")
    assert isinstance(file, partyfile.ClientFile)
    seen = samples(Metrics(own.client_party(file, credentials, tmp_path / "bank")).text().decode())
    left = seen["anabranch_certificate_expiry_timestamp_seconds",] - time.time()
    assert 29 * 86400 < left < 31 * 86400
