"""A federation of real processes over a real nats-server: what kills, damage, full disks and Ctrl-C do to it."""

from __future__ import annotations

import re
import resource
import shutil
import signal
from pathlib import Path

import numpy as np

from real_federations import (
    PATIENCE,
    SERVER,
    RealFederation,
    damage,
    damage_all,
    same,
    simulate,
    wait_for,
    write_run,
)


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
            parties = [name for name in each if name != "broker"]
            if "broker" in each:
                federation.broker.kill()
            federation.kill(*parties)
            if "broker" in each:
                federation.start_broker()
            federation.start(*parties)
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
    for counts in result.settings["federation"]["missing"]:
        assert {how: count for how, count in counts.items() if count} == {"answered": 4000}


def test_what_is_damaged_or_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path / "data", clients=2, rounds=4000)
    with RealFederation(tmp_path / "fed", run) as federation:
        federation.start(*federation.names)
        wait_for(lambda: all(len(federation.checkpoints(name)) == 2 for name in federation.names), "two checkpoints")

        # Another process in the same folder.
        second = federation.process("client-1")
        assert second.wait(PATIENCE) == 2
        assert f"is in use by the process {federation.processes['client-1'].pid}" in _flat(federation.log("client-1"))

        # The newest checkpoint is damaged, of the server and of a client.
        federation.kill(*federation.names)
        newest = {name: federation.checkpoints(name)[-1] for name in federation.names}
        damage(newest[SERVER], "flipped")
        damage(newest["client-1"], "cut")
        federation.start(*federation.names)
        federation.wait_for_rounds(federation.rounds + 1)
        for name in (SERVER, "client-1"):
            assert f"{newest[name].name}" in federation.log(name)
            assert "going on from the one before" in federation.log(name)
        assert "going on from" not in federation.log("client-2")

        # No room for the server's log, then none for a client's checkpoint.
        _limit(federation, SERVER)
        assert federation.wait(SERVER) == [2]
        assert "Error: cannot write the round log into" in _flat(federation.log(SERVER))
        federation.start(SERVER)
        federation.wait_for_rounds(federation.rounds + 1)
        _limit(federation, "client-2")
        assert federation.wait("client-2") == [2]
        assert "Error: cannot write the checkpoint into" in _flat(federation.log("client-2"))

        # None that can be used.
        federation.kill(SERVER, "client-1")
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


def _limit(federation: RealFederation, name: str) -> None:
    """From now on, a file of the party may not grow, which a process sees as it sees a full disk."""
    resource.prlimit(federation.processes[name].pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def _flat(text: str) -> str:
    """Without the line breaks that a narrow terminal makes."""
    return re.sub(r"\s+", " ", text)
