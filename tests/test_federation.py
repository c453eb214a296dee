"""A federation of real processes over a real nats-server: what kills, damage, full disks and Ctrl-C do to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nats.aio.msg import Msg
from safetensors.numpy import load_file
from typer.testing import CliRunner

from anabranch.broker.connect import connect, disconnect
from anabranch.broker.local import LocalBroker
from anabranch.cli import app
from anabranch.protocol import messages as m
from anabranch.protocol.codec import LARGEST, decode, encode
from anabranch.simulation.output import FILES
from anabranch.storage.checkpoint import load
from anabranch.storage.lock import locked
from patience import PATIENCE, wait_for
from private import open_to_others
from real_federations import (
    SERVER,
    RealFederation,
    damage,
    damage_all,
    processes_of,
    same,
    simulate,
    write_run,
)
from small_runs import SMALL_MODEL, write_digits


def test_ten_parties_are_killed_and_the_result_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """Each party, the broker, and two at once, at seeded moments; the parties come in another order than usual."""
    run = write_run(tmp_path / "data", rounds=4000)
    rng = np.random.default_rng(11)
    federation = RealFederation(tmp_path / "fed", run)
    victims = [[name] for name in (*federation.names, "broker")]
    victims += [[SERVER, "client-3"], ["broker", "client-1"], ["client-2", "client-4"], ["broker", SERVER]]
    rng.shuffle(victims)
    with federation:
        federation.broker.kill()
        federation.start("client-3", "client-1")
        wait_for(lambda: "there is no broker" in federation.log("client-1"), "a client that says what it waits for")
        federation.start(SERVER)
        federation.start_broker()
        wait_for(lambda: "waiting for client-2, client-4" in federation.log(SERVER), "a server that says for whom")
        federation.start("client-2", "client-4")
        federation.wait_for_rounds(1)
        for each in victims:
            # Now and then while others are still coming back.
            federation.wait_for_rounds(federation.rounds + int(rng.choice([0, 50, 150, 250])))
            _kill_and_start(federation, each)
        # One that leaves, and comes back.
        wait_for(lambda: federation.status("client-4").get("joined"), "the client that is to leave")
        federation.kill("client-4", how=signal.SIGTERM)
        assert federation.processes["client-4"].returncode == 0
        assert federation.rounds < 4000, "the run was over before the last was killed"
        federation.start("client-4")
        assert federation.wait() == [0] * 5
        assert "Traceback" not in "".join(map(federation.log, federation.names))
        result, undisturbed = federation.result(), simulate(run)
    same(result, undisturbed)
    for counts in result.settings["federation"]["clients"]:
        assert {how: count for how, count in counts.items() if count} == {"answered": 4000}


def test_windows_of_samples_are_made_again(tmp_path: Path) -> None:
    """Under SLR, where a client needs the samples of past rounds, those that it was passive in among them."""
    slr = {"name": "SLR", "window": 5}
    run = write_run(tmp_path / "data", clients=2, rounds=1500, update=slr, wire_dtype="bfloat16")
    with RealFederation(tmp_path / "fed", run) as federation:
        federation.start(*federation.names)
        for victims in (["client-1"], [SERVER, "client-2"], ["broker"], ["broker", "client-1"], [SERVER]):
            federation.wait_for_rounds(federation.rounds + 100)
            _kill_and_start(federation, victims)
        assert federation.rounds < 1500, "the run was over before the last was killed"
        assert federation.wait() == [0] * 3
        same(federation.result(), simulate(run))


def test_what_is_damaged_or_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path / "data", clients=2, rounds=4000)
    with RealFederation(tmp_path / "fed", run) as federation:
        federation.start(*federation.names)
        wait_for(lambda: all(len(federation.checkpoints(name)) == 2 for name in federation.names), "two checkpoints")

        # Another process in the same folder.
        second = federation.process("client-1")
        assert federation.end(second) == 2
        assert f"is in use by the process {federation.processes['client-1'].pid}" in _flat(federation.log("client-1"))

        # The newest checkpoint is damaged, of the server and of a client.
        federation.kill(*federation.names)
        newest = {name: federation.checkpoints(name)[-1] for name in federation.names}
        damage(newest[SERVER], "flipped")
        damage(newest["client-1"], "cut")
        federation.start(*federation.names)
        federation.wait_for_rounds(federation.rounds + 1)
        for name in (SERVER, "client-1"):
            # The rounds of the server's log may be played again before the client is there.
            wait_for(lambda name=name: newest[name].name in federation.log(name), "the one that is damaged")
            assert "going on from the one before" in federation.log(name)
        assert "going on from" not in federation.log("client-2")

        # No room for the server's log, then none for a client's checkpoint.
        _limit(federation, SERVER)
        assert federation.wait(SERVER) == [2]
        assert re.match("cannot write the (round log|checkpoint) into", federation.status()["error"])
        federation.start(SERVER)
        federation.wait_for_rounds(federation.rounds + 1)
        _limit(federation, "client-2")
        assert federation.wait("client-2") == [2]
        assert federation.status("client-2")["error"].startswith("cannot write the checkpoint into")

        # Another update, whose state looks the same.
        federation.kill(SERVER, "client-1")
        whole = run.read_text()
        run.write_text(whole.replace("decay = 0.9", "decay = 0.8"))
        federation.start(SERVER)
        assert federation.wait(SERVER) == [2]
        assert "was made with other settings (update is DLR(window=5, decay=0.8" in federation.status()["error"]
        run.write_text(whole)

        # None that can be used.
        for name in (SERVER, "client-2"):
            kept = shutil.copytree(federation.folder / name / "checkpoints", tmp_path / name)
            damage_all(federation.checkpoints(name))
            federation.start(name)
            assert federation.wait(name) == [2]
            assert "has no checkpoint that can be used" in _flat(federation.log(name))
            shutil.rmtree(federation.folder / name / "checkpoints")
            kept.rename(federation.folder / name / "checkpoints")

        federation.start(*federation.names)
        assert federation.wait() == [0, 0, 0]
        assert "Traceback" not in "".join(map(federation.log, federation.names))
        same(federation.result(), simulate(run))


def test_others_go_on_without_a_client_and_it_comes_back(tmp_path: Path) -> None:
    run = write_run(tmp_path / "data", rounds=100_000)
    policies = ("last 20", "zero", "mean", "skip")
    with RealFederation(tmp_path / "fed", run, missing=policies, deadline=0.5) as federation:
        federation.start(SERVER, "client-1", "client-2", "client-3")

        def told(what: str) -> list[Any]:
            return [each[what] for each in federation.status().get("clients", [])]

        # The first round waits for all, also for those that others could do without.
        wait_for(lambda: "waiting for client-4" in federation.log(SERVER), "a server that waits for the last")
        federation.start("client-4")
        federation.wait_for_rounds(100)

        federation.kill("client-1", "client-2", "client-3")
        ways = ({"last", "zero"}, {"zero"}, {"mean"})
        wait_for(
            lambda: all(way <= each.keys() for way, each in zip(ways, told("replaced"), strict=False)),
            "clients that are replaced, each by its policy",
        )
        federation.start("client-1", "client-2", "client-3")
        wait_for(lambda: all(told("present")), "all clients")

        federation.kill("client-4")
        wait_for(lambda: told("replaced")[3].get("skip", 0) > 50, "rounds that are dropped")
        federation.start("client-4")
        wait_for(lambda: all(told("present")), "all clients")

        # A server that comes back gives its clients a moment.
        federation.kill(SERVER)
        missed = told("missed")
        federation.start(SERVER)
        federation.wait_for_rounds(federation.rounds + 500)
        assert all(after - before < 100 for before, after in zip(missed, told("missed"), strict=True))

        federation.kill(*federation.names, how=signal.SIGTERM)
        assert federation.wait() == [0] * 5
        result = federation.result()
    missing = result.settings["federation"]["clients"]
    assert [sum(counts.values()) for counts in missing] == [result.rounds] * 4
    assert missing[0]["last"] >= 20
    assert all(counts["answered"] for counts in missing)


def test_nothing_of_what_a_client_makes_up_reaches_the_model(tmp_path: Path) -> None:
    """TLS, NKeys and permissions; somebody has client 2's keys while the real one is away."""
    run = write_run(tmp_path / "data", clients=2, rounds=2000)
    with RealFederation(tmp_path / "fed", run, secure=True) as federation:
        federation.start(*federation.names)
        federation.wait_for_rounds(500)
        wait_for(lambda: federation.checkpoints("client-2"), "a checkpoint")
        federation.kill("client-2")
        asyncio.run(_make_up(federation))
        notes = wait_for(
            lambda: (found := federation.status()["notes"]).get("unexpected") and found, "that the server has seen all"
        )
        assert notes["garbage"] == 3
        assert notes["unusable"] == 4
        assert {"late", "no such round", "old session"} <= notes.keys()
        federation.start("client-2")
        assert federation.wait() == [0, 0, 0]
        same(federation.result(), simulate(run))


async def _make_up(federation: RealFederation) -> None:
    """Says hello as client 2, and then nothing but what is wrong."""
    applied = load(federation.folder / "client-2" / "checkpoints").state["applied"]
    asked: asyncio.Future[m.Query] = asyncio.get_running_loop().create_future()

    async def hear(message: Msg) -> None:
        heard = decode(message.data)
        if isinstance(heard, m.Query) and not asked.done():
            asked.set_result(heard)

    connection = await connect(federation.credentials("client-2"))
    await connection.subscribe("real.query", cb=hear)
    await connection.subscribe("real.down.2", cb=hear)

    async def send(message: m.Message | bytes) -> None:
        await connection.publish("real.up.2", message if isinstance(message, bytes) else encode(message))

    await send(m.Hello(7, federation.terms, 2, 3, "", applied))
    t = (await asyncio.wait_for(asked, PATIENCE)).first

    def answer(values: Any, rounds: tuple[int, ...] = (t,), session: int = 7, of: int = applied) -> m.Embeddings:
        return m.Embeddings(session, of, m.NONE, rounds, np.ones(len(rounds), bool), values)

    good = np.full((1, 3), 0.5, np.float32)
    whole = encode(answer(good))
    for garbage in (b"", b"not a message", whole[:-1]):
        await send(garbage)
    await send(answer(np.full((1, 3), np.nan, np.float32)))
    await send(answer(np.full((1, 4), 0.5, np.float32)))
    await send(answer(good.astype(np.float16)))
    await send(answer(good, of=t + 1))
    await send(answer(good, (t + 1000,)))
    await send(answer(good, (t - 1,)))
    await send(answer(good, session=8))
    await send(m.End(7, 0, 0, "it is over"))
    await connection.flush()
    await connection.close()

    # What is larger than any message does not get past the broker.
    gone, huge = asyncio.Event(), bytes(LARGEST + 1)

    async def closed() -> None:
        gone.set()

    rude = await connect(federation.credentials("client-2"), closed_cb=closed, allow_reconnect=False)
    rude._max_payload = len(huge)  # as whoever writes to the socket by himself
    await rude.publish("real.up.2", huge)
    await asyncio.wait_for(gone.wait(), PATIENCE)
    await disconnect(rude)
    assert f"maximum payload exceeded: {len(huge)} vs {LARGEST}" in federation.broker.log.read_text()


def test_ctrl_c_ends_all_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """The command line: refused where something else is in the folder, stopped, and in the end the files of a run."""
    run = write_run(tmp_path / "data", clients=2, rounds=5000)
    folder = tmp_path / "fed"

    def up(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "anabranch", "up", str(run), "--out", str(folder), "--quiet", *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=0)

    # While the parties are starting.
    first = up()
    wait_for((folder / "client-2" / "party.toml").exists, "processes that start")
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == 130, said
    assert "goes on" in said
    assert not processes_of(folder)

    # In the middle of the rounds.
    second = up()
    wait_for(lambda: list((folder / "server" / "rounds").glob("*.log")), "rounds")
    second.send_signal(signal.SIGTERM)
    said = second.communicate(timeout=PATIENCE)[1]
    assert second.returncode == 143, said
    assert not processes_of(folder)
    rounds = json.loads((folder / "result.json").read_text())
    assert rounds["stopped"] == "interrupted"
    assert not open_to_others(folder)
    assert 0 < rounds["rounds"] < 5000

    # Another process in the folder.
    with locked(folder):
        third = up()
        assert f"is in use by the process {os.getpid()}" in _flat(third.communicate(timeout=PATIENCE)[1])
    assert third.returncode == 2

    # While the parties are starting again: so much is played as before, and nothing in this call.
    again = up()
    wait_for(lambda: len(processes_of(folder)) >= 2, "a process that it starts")
    again.send_signal(signal.SIGINT)
    said = again.communicate(timeout=PATIENCE)[1]
    assert again.returncode == 130, said
    unmoved = json.loads((folder / "result.json").read_text())
    assert [unmoved[key] for key in ("rounds", "timed_rounds", "rounds_per_second")] == [rounds["rounds"], 0, 0.0]

    # Another update.
    other = up("--set", "update.window=6")
    assert "holds a federation of other settings" in _flat(other.communicate(timeout=PATIENCE)[1])
    assert other.returncode == 2

    # Killed without a word: its parties leave by themselves.
    killed = up()
    wait_for(lambda: len(processes_of(folder)) >= 5, "all processes")
    killed.kill()
    killed.communicate()

    last = up()
    said = last.communicate(timeout=PATIENCE)[1]
    assert (last.returncode, said) == (0, "")
    assert not processes_of(folder)
    done = CliRunner().invoke(app, ["run", str(run), "--quiet", "--out", str(tmp_path / "alone")])
    assert done.exit_code == 0
    for name in ("model.safetensors", "curve.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert {*FILES} <= {each.name for each in folder.iterdir()}
    result = json.loads((folder / "result.json").read_text())
    assert 0 < result["timed_rounds"] < 5000
    assert result["rounds_per_second"] == result["timed_rounds"] / result["seconds"]
    # What is counted on the wire is that of all its processes.
    assert min(_wire(folder, "in", "Embeddings", "messages").values()) >= 5000


def test_a_federation_over_a_broker_that_is_there_already(tmp_path: Path) -> None:
    """Other clients than the preset's, several rounds in flight, and a table of how they are."""
    more = ["--rounds", "300", "--clients", "2", "--in-flight", "8", "--out", str(tmp_path / "fed")]
    more += ["--set", SMALL_MODEL, "--data-dir", str(write_digits(tmp_path / "digits"))]

    async def up() -> tuple[int, str]:
        async with LocalBroker(tmp_path / "broker") as broker:
            command = [sys.executable, "-m", "anabranch", "up", "imnist", *more, "--nats", broker.url]
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
            return process.returncode or 0, said.decode()

    code, said = asyncio.run(up())
    assert code == 0, said
    assert "300" in said
    assert not (tmp_path / "fed" / "broker").exists()
    result = json.loads((tmp_path / "fed" / "result.json").read_text())
    assert (result["rounds"], result["stopped"]) == (300, None)
    of = result["settings"]["federation"]
    assert [counts["answered"] for counts in of["clients"]] == [300, 300]
    assert len(of["clients"]) == 2
    assert all(0 < delay < 8 for delay in of["max_delay"])
    embeddings = _wire(tmp_path / "fed", "in", "Embeddings", "bytes")
    assert min(embeddings.values()) > 300 * 3 * 4
    assert min(_wire(tmp_path / "fed", "in", "Embeddings", "messages").values()) < 300


@pytest.mark.parametrize(
    ("p", "said"),
    [(0.0, "the derivative is not finite"), (1.0, "the embeddings of client 1 are not finite")],
    ids=["at the server", "at a client"],
)
def test_training_that_cannot_go_on_ends_the_command(p: float, said: str, tmp_path: Path) -> None:
    """Nobody but the server takes steps, which are too long, or the client does too."""
    who = {"name": "Random", "p": p}
    run = write_run(tmp_path / "data", clients=1, rounds=300, learning_rate=1e38, activation=who)
    command = [sys.executable, "-m", "anabranch", "up", str(run), "--out", str(tmp_path / "fed"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 3, done.stderr
    assert said in _flat(done.stderr)
    assert "Traceback" not in done.stderr
    result = json.loads((tmp_path / "fed" / "result.json").read_text())
    assert 0 < result["rounds"] < 300
    assert said in result["stopped"]
    assert not processes_of(tmp_path / "fed")


def _wire(folder: Path, direction: str, kind: str, what: str) -> dict[int, int]:
    """What is counted of each client."""
    wire = json.loads((folder / "result.json").read_text())["settings"]["federation"]["wire"]
    return {each["client"]: each[what] for each in wire if (each["direction"], each["kind"]) == (direction, kind)}


def test_what_is_killed_under_up_is_started_again(tmp_path: Path) -> None:
    """A client, the server and the broker by kill -9, a client by SIGTERM; and one that is killed again and again."""
    run = write_run(tmp_path / "data", clients=2, rounds=2000)
    folder = tmp_path / "fed"

    def up() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "anabranch", "up", str(run), "--out", str(folder), "--quiet"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(name: str, what: str = "party.toml", how: int = signal.SIGKILL) -> None:
        """Ends the present process, and waits for that, or for the one that takes its place."""

        def number() -> int:
            found = processes_of(folder / name).items()
            return next((number for number, words in found if what in words and "prctl" not in words), 0)

        before = wait_for(number, f"a process of {name}")
        os.kill(before, how)
        wait_for(lambda: number() != before, f"the end of {name}")

    first = up()
    for name in ("client-1", SERVER):
        kill(name)
    wait_for(lambda: "client-2 is here" in (folder / SERVER / "log.jsonl").read_text(), "a client that has joined")
    kill("client-2", how=signal.SIGTERM)
    kill("broker", "nats-server")
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == 0, said
    for line in (
        "client-1 was killed by SIGKILL: it is started again",
        "server was killed by SIGKILL: it is started again",
        "client-2 was told to leave: it is started again",
        "the nats-server was killed: it is started again",
    ):
        assert line in _flat(said)
    assert not processes_of(folder)
    models = [load_file(folder / "model.safetensors"), simulate(run).model.to_arrays()]
    assert models[0].keys() == models[1].keys()
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])

    folder = tmp_path / "again"
    second = up()
    for _ in range(3):
        kill("client-1")
    said = _flat(second.communicate(timeout=PATIENCE)[1])
    assert second.returncode == 2, said
    assert "client-1 was killed by SIGKILL 3 times, and no round was played in between" in said
    assert f"the same command with --out {folder} goes on" in said
    assert "Traceback" not in said
    assert not processes_of(folder)


def test_a_party_whose_broker_never_comes_can_be_stopped(tmp_path: Path) -> None:
    federation = RealFederation(tmp_path / "fed", write_run(tmp_path / "data", clients=2, rounds=10))
    with federation:
        federation.broker.kill()
        federation.start("client-1")
        wait_for(lambda: "there is no broker" in federation.log("client-1"), "a client that says what it waits for")
        federation.kill("client-1", how=signal.SIGINT)
        assert federation.wait("client-1") == [0]
        assert "Traceback" not in federation.log("client-1")


def _kill_and_start(federation: RealFederation, victims: list[str]) -> None:
    """At once, the broker perhaps among them."""
    parties = [name for name in victims if name != "broker"]
    if "broker" in victims:
        federation.broker.kill()
    federation.kill(*parties)
    if "broker" in victims:
        federation.start_broker()
    federation.start(*parties)


def _limit(federation: RealFederation, name: str) -> None:
    """From now on, a file of the party may not grow, which a process sees as it sees a full disk."""
    resource.prlimit(federation.processes[name].pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def _flat(text: str) -> str:
    """Without the line breaks that a narrow terminal makes."""
    return re.sub(r"\s+", " ", text)
