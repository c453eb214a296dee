"""Predictions of a server that is learning, over HTTP and NATS: what they say, and that they change nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from nats import errors
from nats.aio.msg import Msg
from typer.testing import CliRunner

from anabranch.broker import keys
from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import ASKER, Credentials, public_nkey
from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf, Tls, party_users
from anabranch.cli import app
from anabranch.config.party import Predictions
from anabranch.errors import AnabranchError, ConfigError, ConnectError
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties.predict_service import predicting
from anabranch.serving import client as asking
from anabranch.serving.client import ANSWER, ask_http, ask_nats, hidden
from anabranch.serving.http import HttpSettings
from anabranch.serving.metrics import Metrics
from anabranch.serving.predictor import Predictor
from anabranch.storage.event_ids import Names
from patience import until
from test_metrics import EVENT, FEATURE, ROUNDS, client_of, server_of, write_tables

TOKEN = "0123456789abcdef0123"


def run(
    folder: Path,
    main: Callable[..., Awaitable[None]],
    settings: Predictions,
    *,
    away: bool = False,
    names: Names | None = None,
    of_times: bool = False,
    clients: list[ClientParty] | None = None,
) -> None:
    """A test that is given the server, the port of its predictions and the broker's URL, once all rounds are played.

    ``clients`` are put where they are wanted.
    """
    write_tables(folder)
    clients = [] if clients is None else clients

    async def play() -> None:
        async with LocalBroker(folder / "broker") as broker:
            server = server_of(folder, broker.url, deadline=60.0)  # who is here answers, however busy the machine is
            clients.extend(client_of(folder, broker.url, index) for index in (1, 2))
            running = [asyncio.ensure_future(party.run()) for party in (server, *clients)]
            async with predicting(server, settings, Metrics(server), names, of_times=of_times) as port:
                await until(lambda: server.conversation.rounds == ROUNDS, "all rounds")
                if away:
                    clients[0].leave()
                    await until(lambda: not server.conversation.seats[0].present, "a client that has left")
                await main(server, port, broker.url)
            for party in (server, *clients):
                party.leave()
            await asyncio.gather(*running)

    asyncio.run(play())


def get(port: int | None, path: str, token: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status, body = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read().decode()
    return status, json.loads(body) if body.startswith("{") else body


def test_what_is_predicted_and_that_nothing_changes(tmp_path: Path) -> None:
    clients: list[ClientParty] = []

    def bits(server: ServerParty) -> list[bytes]:
        arrays = [server.conversation.compute.arrays(), *(each.conversation.compute.arrays({}) for each in clients)]
        return [each.tobytes() for of_one in arrays for each in of_one.values()]

    async def main(server: ServerParty, port: int, url: str) -> None:
        steps = [each.before for each in server.conversation.seats]
        await until(lambda: [each.conversation.applied for each in clients] == steps, "the last steps")
        before = bits(server)
        status, answer = await asyncio.to_thread(get, port, f"/predict?event={EVENT}-3")
        assert status == 200, answer
        assert answer["round"] == ROUNDS
        assert answer["answered"] == ["bank", "shop"]
        assert answer["replaced"] == {}
        assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert answer["prediction"] == int(np.argmax(answer["probabilities"]))
        # The shop lacks every tenth event.
        status, lacking = await asyncio.to_thread(get, port, f"/predict?event={EVENT}-10")
        assert (status, lacking["answered"], lacking["replaced"]) == (200, ["bank"], {"shop": "zero"})
        posted = await asyncio.to_thread(ask_http, f"http://127.0.0.1:{port}", {"event": f"{EVENT}-3"})
        assert {**posted, "milliseconds": 0} == {**answer, "milliseconds": 0}
        assert before == bits(server)
        assert server.conversation.rounds == server.conversation.opened == ROUNDS

    run(tmp_path, main, Predictions(port=0), clients=clients)


def test_the_numbers_are_those_of_the_models(tmp_path: Path) -> None:
    async def main(server: ServerParty, port: int, url: str) -> None:
        seen: list[Any] = []
        told = server.conversation.questions
        conclude = told._predict
        told._predict = lambda done: seen.extend(conclude(done)) or seen[-len(done) :]  # type: ignore[method-assign,assignment]
        answer = await asyncio.to_thread(ask_http, f"http://127.0.0.1:{port}", {"event": f"{EVENT}-5"})
        embeddings = seen[-1].embeddings
        model = server.conversation.compute.party.model
        logits = np.asarray(jax.device_get(model(embeddings)), np.float64)
        shifted = np.exp(logits - logits.max())
        np.testing.assert_allclose(answer["probabilities"], shifted / shifted.sum(), atol=1e-5)

    run(tmp_path, main, Predictions(port=0))


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/predict", 400, "it has neither"),
        ("/predict?event=a&entity=b", 400, "it has two of them"),
        ("/predict?entity_hash=a7&entity=b", 400, "it has two of them"),
        ("/predict?entity_hash=" + "a" * 32, 400, "this federation has no entity key"),
        ("/predict?event=%20", 400, "must have 1 to 1,000"),
        ("/predict?entity=7", 400, "this federation has no entity key"),
        ("/predict?time=now", 400, "this federation has no entity key"),
        ("/predict?event=a&time=2026-01-01T00:00:00Z", 400, "a time goes with an entity"),
        ("/predict?event=%ED%A0%80", 404, "no client has features for this event"),
        ("/predict?event=" + "a" * 1001, 400, "must have 1 to 1,000"),
        ("/predict?evnt=a", 400, "there is no 'evnt'"),
        ("/predict?event=nobody-knows-it", 404, "no client has features for this event"),
        ("/nothing", 404, "Not Found"),
    ],
)
def test_a_question_that_has_no_answer_says_why(path: str, status: int, said: str, shared: int) -> None:
    found, answer = get(shared, path)
    assert found == status
    assert said in answer["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "an object of JSON"),
        (b"[" * 5000, "an object of JSON"),
        (b'{"event": "\\ud800"}', "half a letter"),
        (b'{"event": 1.5}', "must be a text"),
        (b'{"\\ud800": "1"}', "there is no '\\ud800'"),
        (b'{"event": "' + b"a" * 20_000 + b'"}', "at most 16,384 bytes"),
    ],
)
def test_a_body_that_is_no_question_says_why(body: bytes, said: str, shared: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{shared}/predict", body)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    assert error.value.code == 400
    assert said in json.loads(error.value.read())["error"]


def test_the_page_for_programs_and_health(shared: int) -> None:
    status, openapi = get(shared, "/openapi.json")
    assert status == 200
    assert {"/predict", "/health", "/metrics"} == set(openapi["paths"])
    assert get(shared, "/health") == (200, {"alive": True, "ready": True})
    status, metrics = get(shared, "/metrics")
    assert status == 200
    assert f"anabranch_rounds_total {ROUNDS}.0" in metrics
    assert FEATURE not in metrics
    assert EVENT not in metrics


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    """The port of a server that goes on while several tests ask it."""
    folder, ready, over = tmp_path_factory.mktemp("shared"), threading.Event(), threading.Event()
    held: list[int] = []

    async def main(server: ServerParty, port: int, url: str) -> None:
        held.append(port)
        ready.set()
        await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=run, args=(folder, main, Predictions(port=0)))
    thread.start()
    assert ready.wait(60)
    yield held[0]
    over.set()
    thread.join()


def test_a_client_that_the_model_cannot_do_without(tmp_path: Path) -> None:
    async def main(server: ServerParty, port: int, url: str) -> None:
        status, answer = await asyncio.to_thread(get, port, f"/predict?event={EVENT}-3")
        said = "there is no prediction without bank, who is away or does not know this event"
        assert (status, answer) == (503, {"error": said})

    run(tmp_path, main, Predictions(port=0), away=True)


def test_the_token_is_needed_for_all_but_health(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)

    async def main(server: ServerParty, port: int, url: str) -> None:
        path = f"/predict?event={EVENT}-3"
        for token in (None, "wrong", TOKEN[:-1]):
            assert (await asyncio.to_thread(get, port, path, token))[0] == 401
            assert (await asyncio.to_thread(get, port, "/metrics", token))[0] == 401
        assert (await asyncio.to_thread(get, port, path, TOKEN))[0] == 200
        assert (await asyncio.to_thread(get, port, "/health"))[0] == 200
        command = ["predict", f"http://127.0.0.1:{port}", "--event", f"{EVENT}-3", "--token", str(tmp_path / "token")]
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert done.exit_code == 0, done.output
        assert "bank, shop" in done.output
        refused = await asyncio.to_thread(CliRunner().invoke, app, command[:-2])
        assert refused.exit_code == 2
        assert "show the token" in refused.stderr
        assert "--token FILE" in refused.stderr

    run(tmp_path, main, Predictions(port=0, token=str(tmp_path / "token")))


def test_https_where_who_asks_needs_a_certificate(tmp_path: Path) -> None:
    made = tmp_path / "made"
    keys.init(made, "test", "127.0.0.1", ["bank"], askers=["app"])
    own, ca = made / "broker", made / "app" / "ca.pem"
    settings = Predictions(
        port=0, certificate=str(own / "cert.pem"), key=str(own / "key.pem"), clients_ca=str(own / "ca.pem")
    )

    async def main(server: ServerParty, port: int, url: str) -> None:
        where, question = f"https://127.0.0.1:{port}", {"event": f"{EVENT}-3"}
        shown = {"certificate": made / "app" / "cert.pem", "key": made / "app" / "key.pem"}
        answer = await asyncio.to_thread(ask_http, where, question, ca=ca, **shown)
        assert answer["answered"] == ["bank", "shop"]
        for wrong in ({"ca": ca}, shown):
            with pytest.raises(ConnectError, match="there is no answer"):
                await asyncio.to_thread(ask_http, where, question, **wrong)

    run(tmp_path, main, settings)


def test_by_an_entity_and_over_nats(tmp_path: Path) -> None:
    """What is on the wire shows no entity: whoever asks hashes it with the entity key."""
    key = tmp_path / "entity.key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)

    async def main(server: ServerParty, port: int | None, url: str) -> None:
        assert port is None
        wire = bytearray()
        spy = await connect(Credentials((url,), "test", "app", ASKER), inbox_prefix=b"test.answer.app")

        async def heard_all(message: Msg) -> None:
            wire.extend(message.subject.encode() + message.data)

        await spy.subscribe(">", cb=heard_all)
        await spy.flush()
        asker = Credentials((url,), "test", "app", ASKER)
        answer = await ask_nats(asker, {"event": f"{EVENT}-3"})
        assert answer["answered"] == ["bank", "shop"]
        asked: list[bytes] = []
        predict = server.predict

        async def heard(event: bytes):
            asked.append(event)
            return await predict(event)

        server.predict = heard  # type: ignore[method-assign]
        question = {"entity": " A-17", "time": "1970-01-01T00:00:01Z"}
        with pytest.raises(ConfigError, match="the broker would see the entity's id"):
            await ask_nats(asker, question)
        with pytest.raises(AnabranchError, match="no client has features"):
            await ask_nats(asker, hidden(question, key))
        assert asked == [Names(bytes(32)).of("A-17", 1_000_000)]
        file = tmp_path / "app.toml"
        file.write_text(f'url = "{url}"\nfederation = "test"\nparty = "app"\nindex = {ASKER}\n')
        command = ["predict", str(file), "--entity", "A-17", "--time", question["time"]]
        for more, said in (([], "--entity-key FILE"), (["--entity-key", str(key)], "no client has features")):
            done = await asyncio.to_thread(CliRunner().invoke, app, [*command, *more])
            assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
        assert asked == [Names(bytes(32)).of("A-17", 1_000_000)] * 2
        await spy.flush()
        assert b"A-17" not in wire
        assert Names(bytes(32)).hash("A-17").hex().encode() in wire
        refused = await spy.request("test.ask.app", b'{"entity": "A-18"}', timeout=30)
        assert json.loads(refused.data)["status"] == 400
        assert "send its keyed hash as 'entity_hash'" in json.loads(refused.data)["error"]
        await disconnect(spy)
        for wrong, said in (("A-17", "32 digits"), ("ab", "32 digits"), ("A" * 32, "32 digits")):
            with pytest.raises(AnabranchError, match=said):
                await ask_nats(asker, {"entity_hash": wrong})
        with pytest.raises(AnabranchError, match="with its offset"):
            await ask_nats(asker, hidden({"entity": "A-17", "time": "yesterday"}, key))
        with pytest.raises(AnabranchError, match="events are of entities here: ask for an entity"):
            await ask_nats(asker, {"time": "now"})
        with pytest.raises(ConfigError, match="which takes part"):
            await ask_nats(Credentials((url,), "test", "bank", 1), {"event": "a"})

    run(tmp_path, main, Predictions(askers=True), names=Names(bytes(32)))


def test_by_a_time_alone(tmp_path: Path) -> None:
    """Over NATS, over HTTP, and on the command line."""

    async def main(server: ServerParty, port: int, url: str) -> None:
        asker = Credentials((url,), "test", "app", ASKER)
        asked: list[bytes] = []
        predict = server.predict

        async def heard(event: bytes):
            asked.append(event)
            return await predict(name_on_the_wire)

        name_on_the_wire = f"{EVENT}-3".encode()
        server.predict = heard  # type: ignore[method-assign]
        there = f"http://127.0.0.1:{port}"
        for answer in (
            await ask_nats(asker, {"time": "1970-01-01T00:00:01Z"}),
            await asyncio.to_thread(ask_http, there, {"time": "1970-01-01T00:00:01Z"}),
            (await asyncio.to_thread(get, port, "/predict?time=1970-01-01T01:00:01%2B01:00"))[1],
        ):
            assert answer["answered"] == ["bank", "shop"]
        command = ["predict", there, "--at", "1970-01-01T00:00:01Z"]
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert done.exit_code == 0, done.output
        names = Names(bytes(32))
        assert asked == [names.of("", 1_000_000)] * 4
        before = time.time_ns() // 1000
        await ask_nats(asker, {"time": "now"})
        assert names.of("", before) <= asked[-1] <= names.of("", time.time_ns() // 1000)
        with pytest.raises(AnabranchError, match="have no entity: ask for a time"):
            await ask_nats(asker, {"entity_hash": "a" * 32})
        with pytest.raises(AnabranchError, match="it has neither"):
            await ask_nats(asker, {})

    run(tmp_path, main, Predictions(port=0, askers=True), names=Names(bytes(32)), of_times=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "one of them"),
        (["--at", "now", "--entity", "A-17"], "one of them"),
        (["--event", "a", "--time", "now"], "--time goes with --entity"),
        (["--at", "now", "--time", "now"], "--time goes with --entity"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["predict", "http://127.0.0.1:9", *options])
    assert done.exit_code == 2
    assert said in done.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path / "broker") as broker:
            with pytest.raises(ConnectError, match="no server answers"):
                await ask_nats(Credentials((broker.url,), "test", "app", ASKER), {"event": "a"}, timeout=0.5)

    asyncio.run(main())
    with pytest.raises(ConnectError, match="there is no answer"):
        ask_http("http://127.0.0.1:9", {"event": "a"})
    with pytest.raises(ConfigError, match="plaintext shows the token"):
        ask_http("http://10.0.0.5:80", {"event": "a"}, token=tmp_path / "token")


def test_a_question_to_this_machine_passes_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = dict.fromkeys(ANSWER, 0)

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    (tmp_path / "token").write_text("secret")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert ask_http(url, {"event": "a"}, token=tmp_path / "token") == answer
        finally:
            server.socket.shutdown(socket.SHUT_RDWR)  # where nobody has asked
            asked.join()


def test_what_is_no_http_is_said_in_a_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path / "broker") as broker:
            with pytest.raises(ConnectError, match="there is no answer"):
                await asyncio.to_thread(ask_http, broker.url.replace("nats://", "http://"), {"event": "a"})

    asyncio.run(main())


def test_an_asker_may_ask_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the permissions of 'keys init', at a real nats-server."""
    made = tmp_path / "made"
    keys.init(made, "test", "127.0.0.1", ["bank"], askers=["app", "other"])
    text = (made / "broker" / keys.CONF).read_text()
    assert '"test.ask.app"' in text
    public = {name: _public(made / name) for name in ("server", "bank", "app", "other")}
    users = party_users(
        "test", public["server"], [("bank", public["bank"])], [(name, public[name]) for name in ("app", "other")]
    )
    tls = Tls(*(made / "broker" / each for each in ("cert.pem", "key.pem", "ca.pem")))

    async def main() -> None:
        async with LocalBroker(tmp_path / "broker", ServerConf(port=-1, tls=tls, users=users)) as broker:
            for name in public:
                path = made / name / "connection.toml"
                path.write_text(path.read_text().replace("tls://127.0.0.1:4222", broker.url))
            told: list[str] = []

            async def hear(error: Exception) -> None:
                told.append(str(error))

            one = await connect(Credentials.load(made / "app" / "connection.toml"), error_cb=hear)
            for subject in ("test.down.1", "test.up.1", "test.query", "test.ask.other", "test.answer.other.x"):
                told.clear()
                await one.publish(subject, b"x")
                await one.flush()
                await until(lambda: told, f"a refusal of {subject}")
                assert "permissions violation for publish" in told[0].lower(), subject
            for subject in ("test.>", "test.down.1", "test.answer.other.>", "test.ask.*"):
                told.clear()
                await one.subscribe(subject)
                await one.flush()
                await until(lambda: told, f"a refusal of {subject}")
                assert "permissions violation for subscription" in told[0].lower(), subject
            whole = dict.fromkeys(asking.ANSWER, 1)
            server = await connect(Credentials.load(made / "server" / "connection.toml"))

            async def answer(message: Any) -> None:
                await server.publish(message.reply, json.dumps(whole).encode())

            await server.subscribe("test.ask.*", cb=answer)
            await server.flush()
            got = await ask_nats(Credentials.load(made / "app" / "connection.toml"), {"event": "a"})
            assert got == whole
            caplog.clear()
            whole |= {"probabilities": [1.0], "answered": ["bank"], "replaced": {}}
            command = ["predict", str(made / "app" / "connection.toml"), "--event", "a"]
            done = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert done.exit_code == 0, done.output
            assert "eof_received" not in caplog.text  # asyncio warns of how each connection with TLS ends
            del whole["round"]
            with pytest.raises(AnabranchError, match="has no 'round' in its answer"):
                await ask_nats(Credentials.load(made / "app" / "connection.toml"), {"event": "a"})
            with pytest.raises((errors.Error, AnabranchError)):
                await ask_nats(Credentials.load(made / "bank" / "connection.toml"), {"event": "a"})
            await disconnect(one)
            await disconnect(server)

    asyncio.run(main())


def _public(folder: Path) -> str:
    return public_nkey(folder / keys.SEED)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "are for everybody who can reach it"),
        ({"host": "0.0.0.0", "token": Path("t")}, "without TLS show the token"),
        ({"certificate": Path("c")}, "certificate and key belong together"),
        ({"clients_ca": Path("c")}, "clients_ca is for TLS"),
    ],
)
def test_what_would_be_open_to_others_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HttpSettings(8080, **settings)


def test_an_id_over_nats_is_refused_and_counted_and_none_is_no_id() -> None:
    async def predict(event: bytes) -> None:
        raise ConnectError(f"the server is asked for {event!r}")

    async def main() -> list[str]:
        raw = [b'{"entity": "A-18"}', b'{"event": "x", "entity": null}']
        return [json.loads(await predictor.answer_json(each))["error"] for each in raw]

    predictor = Predictor(SimpleNamespace(predict=predict))  # type: ignore[arg-type]
    first, second = asyncio.run(main())
    assert "send its keyed hash as 'entity_hash'" in first
    assert second == "the server is asked for b'x'"
    assert predictor.refused == 2


@pytest.mark.parametrize(("content", "mode"), [("short", 0o600), (TOKEN, 0o644), (None, 0o600)])
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: str | None, mode: int) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
        (tmp_path / "token").chmod(mode)
    with pytest.raises(ConfigError, match="token"):
        HttpSettings(0, token=tmp_path / "token").read_token()
