"""What parties log: lines of JSON, no floods, and nothing of a sample."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import math
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pytest
import tomli_w

from anabranch.broker.local import LocalBroker
from anabranch.federation.logs import LONGEST, NOISE, JsonLines, Repeats, name_party, structured
from anabranch.protocol.codec import FORMS, MAGIC, decode
from patience import PATIENCE, wait_for
from test_metrics import EVENT, FEATURE, NAMES, ROUNDS, client_settings, server_settings, write_tables

FLOOD = 3000
LABEL = "271828"
"""One that is not to be seen either."""


@pytest.fixture
def stderr(monkeypatch):
    """What is logged, after `structured`; the loggers are afterwards as they were."""
    loggers = [logging.getLogger(name) for name in ("anabranch", "asyncio", "nats")]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    structured(logging.INFO)
    yield text
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_line_has_the_party_the_round_and_the_message(stderr):
    logging.getLogger("anabranch.bank").info("%d rows", 3, extra={"party": "bank", "round": 7})
    line = json.loads(stderr.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {"level": "info", "party": "bank", "round": 7, "message": "3 rows"}


def test_a_line_that_does_not_say_whose_it_is_has_the_party_of_the_process(stderr):
    name_party("shop")
    logging.getLogger("anabranch.federation.tables").warning("gone")
    logging.getLogger("anabranch.bank").warning("gone", extra={"party": "bank"})
    assert [json.loads(line)["party"] for line in stderr.getvalue().splitlines()] == ["shop", "bank"]


def test_what_others_say_stays_one_line_of_bounded_length(stderr):
    for text in ("a\nb\r\x1b[2J\x9b\u2028", "x" * 70_000):
        logging.getLogger("anabranch").warning("%s", text)
    first, second = stderr.getvalue().splitlines()
    assert json.loads(first)["message"] == r"a\nb\r\x1b[2J\x9b\u2028"
    assert len(json.loads(second)["message"]) < LONGEST + 50
    assert json.loads(second)["message"].endswith("(70,000 characters)")


def test_a_traceback_is_in_its_line(stderr):
    try:
        raise ValueError("too much")
    except ValueError:
        logging.getLogger("asyncio").exception("a task failed")
    line = json.loads(stderr.getvalue())
    assert line["message"] == "a task failed"
    assert line["traceback"].endswith("ValueError: too much\n")


def test_what_nobody_can_do_anything_about_is_not_said(stderr):
    logging.getLogger("asyncio").warning(NOISE)
    logging.getLogger("asyncio").info("using a selector")
    logging.getLogger("nats.aio").debug("ping")
    assert stderr.getvalue() == ""
    logging.getLogger("asyncio").warning("socket.send() raised exception.")
    assert "raised exception" in stderr.getvalue()


def said(*events: tuple[float, str, str], until: float = math.inf) -> list[str]:
    """What is said of things (when, kind, text), looked after as an engine does."""
    lines: list[str] = []
    repeats = Repeats(lambda level, text: lines.append(text), 10.0)
    for now, kind, text in events:
        if repeats.due() <= now:
            repeats.flush(now)
        repeats.tell(kind, logging.WARNING, text, now)
    repeats.flush(until)
    return lines


def test_a_flood_is_said_once_and_then_counted():
    assert said((0.0, "a", "a1"), (1.0, "b", "b1"), (2.0, "a", "a2"), (3.0, "a", "a3")) == [
        "a1",
        "b1",
        "a3 (2 like this in 10 s)",
    ]
    flood = [(t / 100, "a", f"a{t}") for t in range(2500)]
    assert said(*flood) == [
        "a0",
        "a999 (999 like this in 10 s)",
        "a1999 (1,000 like this in 10 s)",
        "a2499 (500 like this in 10 s)",
    ]


def test_the_first_few_may_be_said_at_once():
    lines: list[str] = []
    repeats = Repeats(lambda level, text: lines.append(text), 10.0)
    for t in range(6):
        repeats.tell("joined", logging.INFO, f"here {t}", float(t), at_once=3)
    repeats.flush(10.0)
    repeats.tell("joined", logging.INFO, "here again", 11.0, at_once=3)
    assert lines == ["here 0", "here 1", "here 2", "here 5 (3 like this in 10 s)"]


def test_what_comes_now_and_then_is_said_each_time():
    assert said((0.0, "a", "a1"), (10.0, "a", "a2"), (30.0, "a", "a3")) == ["a1", "a2", "a3"]
    assert said((0.0, "a", "a1"), (1.0, "a", "a2"), until=5.0) == ["a1"], "not yet"
    assert said((0.0, "a", "a1"), (1.0, "a", "a2")) == ["a1", "a2 (1 like this in 10 s)"], "it is not of just now"


def test_what_was_said_long_ago_is_forgotten():
    repeats = Repeats(lambda level, text: None, 10.0)
    for t in range(1000):
        repeats.tell(("broker", t), logging.WARNING, "", float(t))
    assert len(repeats._held) <= 11
    assert repeats.due() == math.inf


def start(folder: Path, name: str, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    path = folder / f"{name}.party.toml"
    path.write_text(tomli_w.dumps(settings))
    command = [sys.executable, "-m", "anabranch", "server" if name == "server" else "client", str(path)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a log, without the last words to a person."""
    return [json.loads(line) for line in (folder / f"{name}.log").read_text().splitlines() if line.startswith("{")]


def counted(where: str, sample: str) -> float:
    """A sample of a party's metrics; 0 before it is there."""
    with urllib.request.urlopen(f"{where}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(sample)]
    return float(found[0]) if found else 0.0


def address(folder: Path, name: str) -> str:
    """Where a party's metrics are, as its log says."""

    def found() -> str:
        text = (folder / f"{name}.log").read_text()
        match = re.search(r"metrics are at (http://127\.0\.0\.1:\d+)/metrics", text)
        return match[1] if match else ""

    return wait_for(found, f"an address in the log of {name}")


async def flood(url: str) -> None:
    """What someone with the shop's rights may send."""
    connection = await nats.connect(url)
    for i in range(FLOOD):
        await connection.publish("test.up.2", b"garbage %d" % i)
        await connection.publish("test.up.99", b"garbage")
    await connection.publish("test.up.x", b"garbage")
    await connection.flush()
    await connection.close()


class Spy:
    """Hears all that goes through a broker without permissions, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._url, self._loop = url, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Spy:
        self._thread.start()
        self._connection = self._do(nats.connect(self._url))
        self._do(self._connection.subscribe(">", cb=self._hear))
        self._do(self._connection.flush())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hear(self, message: Any) -> None:
        self.heard.append((message.subject, message.data))

    def _do(self, doing: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(PATIENCE)


def check_heard(heard: list[tuple[str, bytes]]) -> None:
    """Features stay with the clients, and labels with the server: no message has them."""
    messages = [decode(raw) for _, raw in heard if raw[:2] == MAGIC]
    kinds = Counter(type(each).__name__ for each in messages)
    assert kinds["Embeddings"] >= 2 * ROUNDS - 4
    assert kinds["Query"] >= ROUNDS
    assert kinds["Derivatives"] > 0
    assert not kinds["Record"], "the one that has a label"
    of_labels = [name for kind, forms in FORMS.items() for name in forms if "label" in name]
    assert of_labels == ["label"], "of Record"
    for dtype in (np.float32, np.float64):
        feature = np.array(float(FEATURE), dtype).tobytes()
        assert not any(feature in raw or FEATURE.encode() in raw for _, raw in heard)


def test_real_parties_say_little_and_nothing_of_a_sample(tmp_path):
    def log(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text()

    def add(name: str, row: str) -> None:
        """Gives a table a row more, once: what was added before is gone."""
        first = (tmp_path / name).read_text().splitlines()[: ROUNDS + 1]
        (tmp_path / "new").write_text("\n".join([*first, row]) + "\n")
        (tmp_path / "new").replace(tmp_path / name)

    write_tables(tmp_path)
    broker = LocalBroker(tmp_path / "broker")
    asyncio.run(broker.start())
    processes: dict[str, subprocess.Popen[bytes]] = {}
    spy = Spy(broker.url)
    try:
        with spy:
            for index, name in enumerate(("server", *NAMES)):
                connection: dict[str, Any] = {"url": broker.url, "federation": "test", "party": name, "index": index}
                if not index:
                    connection["clients"] = list(NAMES)
                (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(connection))
                settings = client_settings(name) if index else server_settings(connection="server.toml")
                processes[name] = start(tmp_path, name, settings | {"metrics": 0})
            server = address(tmp_path, "server")
            wait_for(lambda: counted(server, "anabranch_rounds_total") == ROUNDS, "all rounds")
            asyncio.run(flood(broker.url))
            sample = 'anabranch_notes_total{client="shop",kind="garbage"}'
            wait_for(lambda: counted(server, sample) == FLOOD, "the flood")
            wait_for(
                lambda: counted(server, 'anabranch_notes_total{client="",kind="stranger"}') == FLOOD + 1, "strangers"
            )
            add("labels.csv", f"{EVENT}-{ROUNDS},{LABEL}")
            wait_for(lambda: "row 41, column 'label': a text is no label from 0 to 1" in log("server"), "a wrong label")
            add("bank.csv", f"{EVENT}-{ROUNDS},{FEATURE}x,1")
            add("labels.csv", f"{EVENT}-{ROUNDS},1")  # the bank is asked for what its file lacked, and reads it again
            wait_for(lambda: "row 41, column 'x': a text is not a number" in log("bank"), "a wrong feature")
            for name in NAMES:
                assert counted(address(tmp_path, name), "anabranch_client_joined") == 1
            for process in processes.values():
                process.send_signal(signal.SIGTERM)
            assert [process.wait(PATIENCE) for process in processes.values()] == [0, 0, 0]
    finally:
        for process in processes.values():
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
        broker.kill()
    check_heard(spy.heard)
    for name in processes:
        text = log(name)
        for secret in (FEATURE, FEATURE[:6], EVENT, EVENT.encode().hex(), LABEL):
            assert secret not in text
        assert {line["party"] for line in lines(tmp_path, name)} == {name}
        of_files = [line for line in lines(tmp_path, name) if ": row 41, " in line["message"]]  # of no round
        assert all("round" in line for line in lines(tmp_path, name)[1:-1] if line not in of_files)
        assert len(lines(tmp_path, name)) < 25, text
        assert "connection to the broker is lost" not in text
    garbage = [line["message"] for line in lines(tmp_path, "server") if "not a message" in line["message"]]
    assert 1 <= len(garbage) <= 4
    assert garbage[0] == "shop: not a message of Anabranch: it begins with 67 61 72 62"


def test_json_lines_is_what_a_handler_takes():
    record = logging.makeLogRecord({"msg": "%s", "args": ("é",), "levelname": "WARNING"})
    assert json.loads(JsonLines().format(record)) | {"time": ""} == {"time": "", "level": "warning", "message": "é"}
