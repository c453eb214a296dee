"""docs/deploy.md and examples/two-companies: their commands are run, their configurations are tried."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nats.aio.client import Client
from safetensors.numpy import load_file

from anabranch.broker import keys
from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import Credentials, proof
from anabranch.broker.local import find_binary
from anabranch.config import build as runner
from anabranch.config.load import load
from patience import until

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "two-companies"
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
SECONDS = 120.0
RUN = """
learning_rate = 0.03
[stream]
name = "table"
path = "joined.csv"
label = "fraud"
split = {bank = ["amount", "balance", "account_age"], shop = ["items", "distance"]}
standardise = {mean = [80.0, 1500.0, 0.0, 4.0, 0.0], std = [25.0, 400.0, 1.0, 1.5, 1.0]}
[model]
name = "mlp"
hidden = [16]
embedding = 8
server = [16]
[update]
name = "DLR"
window = 10
decay = 0.95
[activation]
name = "Event"
threshold = -0.2
"""


def blocks(language: str, begin: str = "", end: str = "\n## ") -> list[str]:
    """The page's code blocks in one language, those of a section only."""
    text = PAGE[PAGE.index(begin) + len(begin) :] if begin else PAGE
    text = text[: text.index(end)] if begin else text
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(title: str) -> str:
    """The code block with a title."""
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}


class Processes:
    """Processes that end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: str, log: str) -> subprocess.Popen[str]:
        with (self._folder / log).open("w") as file:
            process = subprocess.Popen(
                ["sh", "-c", command], cwd=self._folder, env=environment(), stdout=file, stderr=file, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    held = Processes(tmp_path)
    yield held
    held.end()


def messages(text: str) -> list[str]:
    """The messages of a log, without what depends on the order in which parties come."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    said = [re.sub(r"result is in \S*(state/\w+)", r"result is in …/\1", json.loads(line)["message"]) for line in lines]
    return [each for each in said if not re.match(r"waiting for (bank|shop)$|client \d ", each)]


def test_the_commands_on_one_machine_do_what_the_page_shows(tmp_path: Path, processes: Processes) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    port = free_port()
    waiting: list[subprocess.Popen[str]] = []
    shown = blocks("console", "\n## On one machine\n")
    for each in shown:
        line, _, expected = each.removeprefix("$ ").partition("\n")
        command = line.replace("keys init", f"keys init --port {port}")
        words = shlex.split(command.strip("()"))
        if "nats-server" in words:
            processes.start(command, "broker.log")
            continue
        if words[:2] != ["anabranch", "client"] and words[:2] != ["anabranch", "server"]:
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SECONDS
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
            continue
        process = processes.start(f"exec {command}", f"{words[2]}.log")
        waiting.append(process)
    assert len(waiting) == 3
    deadline = time.monotonic() + SECONDS
    # kill -9, and the same command again.
    while "the server is here" not in (tmp_path / "bank.toml.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(waiting[0].pid, signal.SIGKILL)
    waiting[0].wait()
    waiting[0] = processes.start("exec anabranch client bank.toml", "bank.toml.log")
    for process in waiting:
        process.wait(max(0.1, deadline - time.monotonic()))
    logs = {name: (tmp_path / f"{name}.toml.log").read_text() for name in ("bank", "shop", "server")}
    assert [process.returncode for process in waiting] == [0, 0, 0], logs
    # The same files, joined, in one process.
    join(tmp_path)
    result = runner.run(load(tmp_path / "run.toml"))
    theirs = result.model.to_arrays()
    arrays: dict[str, np.ndarray] = {}
    for name in ("server", "bank", "shop"):
        arrays |= load_file(tmp_path / "state" / name / "model.safetensors")
    assert arrays.keys() == theirs.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    # What the page shows of the logs is what they say; another processor may round the error in another way.
    error = f"{result.error_rate:.4f}"
    for each in shown[-3:]:
        line, _, expected = each.partition("\n")
        name = shlex.split(line)[-1].removesuffix(".toml")
        expected = re.sub(r"error 0\.\d{4}", f"error {error}", expected)
        said = messages(logs[name])
        assert [message for message in messages(expected) if message not in said] == []
        assert "Traceback" not in logs[name]


def join(folder: Path) -> None:
    """One table of the three files."""
    columns = ["amount", "balance", "account_age", "items", "distance"]
    parts: dict[str, dict[str, str]] = {}
    for name in ("bank", "shop"):
        with (folder / "data" / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                parts.setdefault(row["order"], {}).update(row)
    with (folder / "data" / "labels.csv").open() as file, (folder / "joined.csv").open("w") as out:
        rows = [[*(parts[row["order"]][name] for name in columns), row["fraud"]] for row in csv.DictReader(file)]
        csv.writer(out).writerows([[*columns, "fraud"], *rows])
    (folder / "run.toml").write_text(RUN)


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = [tomllib.loads(each) for each in blocks("toml", "\n## On one machine\n")]
    assert shown == [tomllib.loads((EXAMPLE / name).read_text()) for name in ("server.toml", "bank.toml")]


def test_the_example_needs_no_more_than_a_shell() -> None:
    assert subprocess.run(["sh", "-n", EXAMPLE / "demo.sh"], check=False).returncode == 0
    steps = (EXAMPLE / "demo.sh").read_text()
    for command in ("make_data.py", "anabranch keys init", "nats-server -c", "anabranch client", "anabranch server"):
        assert command in steps


def test_the_other_key_commands_are_accepted(tmp_path: Path) -> None:
    commands = [line[2:] for each in blocks("console") for line in each.splitlines() if "$ anabranch keys" in line]
    commands += re.findall(r"`(anabranch keys [^`]+)`", PAGE)
    assert len(commands) >= 4
    for i, command in enumerate(commands):
        if "init" in command:
            subprocess.run(command.replace("init keys", f"init {i}"), shell=True, cwd=tmp_path, env=environment(),
                           check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    for command in commands:
        if "renew" in command:
            subprocess.run(command.replace("renew keys", "renew 0"), shell=True, cwd=tmp_path, env=environment(),
                           check=True, stdout=subprocess.DEVNULL)  # fmt: skip


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_units_are_right(tmp_path: Path) -> None:
    units = blocks("ini")
    assert len(units) == 2
    for i, unit in enumerate(units):
        path = tmp_path / f"anabranch-{i}.service"
        path.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/sh", unit))
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
        assert (done.returncode, [line for line in done.stderr.splitlines() if path.name in line]) == (0, [])


def test_what_the_image_is_made_of_is_in_the_repository() -> None:
    (image,) = blocks("dockerfile")
    assert "/source/constraints.txt" in image
    assert (ROOT / "constraints.txt").exists()


# -- clusters and leaf nodes ------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.init(tmp_path / "keys", "orders", "localhost", ["bank", "shop"], listen="127.0.0.1", port=free_port())
    return tmp_path / "keys"


def tried(folder: Path, conf: str, **more: str) -> None:
    """The nats-server itself says that a configuration is right."""
    done = subprocess.run(
        [find_binary(), "-t", "-c", conf], cwd=folder, env={**os.environ, **more}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_configurations_as_they_stand(made: Path) -> None:
    for folder, name in (("broker", "cluster.conf"), ("broker", "hub.conf"), ("bank", "leaf.conf")):
        (made / folder / name).write_text(block(name))
        tried(made / folder, name, URL="tls://bank:secret@nats.example.org:7422")
    path = made / "bank" / "loopback.toml"
    path.write_text(block("connection.toml"))
    assert Credentials.load(path) == Credentials(("nats://127.0.0.1:4222",), "orders", "bank", 1)


@asynccontextmanager
async def broker(folder: Path, conf: str, **more: str) -> AsyncIterator[Path]:
    """A nats-server with this configuration; gives its log."""
    log = folder / f"{conf}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [find_binary(), "-c", conf], cwd=folder, env={**os.environ, **more}, stdout=file, stderr=file
        )
    try:
        await until(lambda: "Server is ready" in log.read_text(), log.read_text)
        yield log
    finally:
        process.kill()
        process.wait()


async def reader(client: Client, *subjects: str) -> list[tuple[str, bytes]]:
    """Subscribes; gives what has arrived."""
    arrived: list[tuple[str, bytes]] = []

    async def note(message: Any) -> None:
        arrived.append((message.subject, message.data))

    for subject in subjects:
        await client.subscribe(subject, cb=note)
    await client.flush()
    return arrived


async def until_it_arrives(sender: Client, subject: str, arrived: list[tuple[str, bytes]], log: Path) -> None:
    """Sends until it arrives: interest takes a moment to spread."""
    deadline = time.monotonic() + 30
    while (subject, b"there") not in arrived:
        assert time.monotonic() < deadline, log.read_text()
        await sender.publish(subject, b"there")
        await sender.flush()
        await asyncio.sleep(0.02)


def test_a_leaf_node_carries_what_its_party_may_say_and_nothing_else(made: Path) -> None:
    port, inside = free_port(), free_port()
    hub = block("hub.conf").replace("0.0.0.0:7422", f"127.0.0.1:{port}")
    leaf = block("leaf.conf").replace("127.0.0.1:4222", f"127.0.0.1:{inside}")
    (made / "broker" / "hub.conf").write_text(hub)
    (made / "bank" / "leaf.conf").write_text(leaf)

    async def main() -> None:
        url = f"tls://bank:{proof(made / 'bank' / 'party.nk', 'bank')}@localhost:{port}"
        async with broker(made / "broker", "hub.conf"), broker(made / "bank", "leaf.conf", URL=url) as log:
            server = await connect(Credentials.load(made / "server" / "connection.toml"))
            bank = await connect(Credentials((f"nats://127.0.0.1:{inside}",), "orders", "bank", 1))
            up = await reader(server, "orders.up.*")
            down = await reader(bank, "orders.down.1", "orders.down.2", "orders.query")
            await until_it_arrives(bank, "orders.up.1", up, log)
            await until_it_arrives(server, "orders.down.1", down, log)
            await bank.publish("orders.up.2", b"forged")
            await bank.flush()
            await server.publish("orders.down.2", b"the shop's")
            await server.flush()
            up.clear()
            await until_it_arrives(bank, "orders.up.1", up, log)
            await until_it_arrives(server, "orders.query", down, log)
            assert {subject for subject, _ in up} == {"orders.up.1"}
            assert {subject for subject, _ in down} == {"orders.down.1", "orders.query"}
            await disconnect(bank)
            await disconnect(server)

    asyncio.run(main())


def test_a_cluster_goes_on_without_one_of_its_three_and_takes_no_party_for_a_broker(made: Path) -> None:
    ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(4)]
    (made / "broker" / "nats-server.conf").write_text(
        re.sub(r"^port: .*$", "", (made / "broker" / "nats-server.conf").read_text(), flags=re.MULTILINE)
    )
    for i, name in enumerate("abc"):
        others = [f"tls://localhost:{routes[j]}" for j in range(3) if j != i]
        text = block("cluster.conf").replace("server_name: a", f"server_name: {name}\nport: {ports[i]}")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{routes[i]}")
        text = re.sub(r"routes: .*", f"routes: {json.dumps(others)}", text)
        (made / "broker" / f"{name}.conf").write_text(text)
    (made / "bank" / "evil.conf").write_text(
        f'listen: "127.0.0.1:{free_port()}"\nserver_name: evil\ncluster {{\n  name: orders\n'
        f'  listen: "127.0.0.1:{routes[3]}"\n'
        '  tls { cert_file: "cert.pem", key_file: "key.pem", ca_file: "ca.pem" }\n'
        f'  routes: ["tls://localhost:{routes[1]}"]\n}}\n'
    )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes: dict[int, AsyncExitStack] = {}
            for port, name in zip(ports, "abc", strict=True):
                nodes[port] = await stack.enter_async_context(AsyncExitStack())
                log = await nodes[port].enter_async_context(broker(made / "broker", f"{name}.conf"))
            urls = tuple(f"tls://localhost:{port}" for port in ports)
            server = await connect(replace(Credentials.load(made / "server" / "connection.toml"), urls=urls))
            own = server.connected_url
            assert own is not None
            assert own.port is not None
            there = next(url for port, url in zip(ports, urls, strict=True) if port != own.port)
            bank = await connect(replace(Credentials.load(made / "bank" / "connection.toml"), urls=(there,)))
            down = await reader(bank, "orders.down.1")
            await until_it_arrives(server, "orders.down.1", down, log)
            async with broker(made / "bank", "evil.conf") as evil:
                await until(lambda: "Authorization Violation" in evil.read_text(), evil.read_text)
            await nodes[own.port].aclose()
            await until(lambda: server.is_connected and server.connected_url.port != own.port, log.read_text)
            down.clear()
            await until_it_arrives(server, "orders.down.1", down, log)
            await disconnect(bank)
            await disconnect(server)

    asyncio.run(main())
