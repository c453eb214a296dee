"""Real processes whose labels come late, killed now and then: what waits is on their disks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from patience import wait_for
from real_federations import SERVER, RealFederation, same, simulate, write_run

ROUNDS = 900
ALL_LEARNT = {
    "waiting": 0,
    "without event": 0,
    "happened": ROUNDS,
    "labelled": ROUNDS,
    "learnt": ROUNDS,
} | dict.fromkeys(("early", "duplicate", "unknown", "expired", "expired label", "crowded out"), 0)


@pytest.mark.parametrize("learning", ["fresh", "stored"])
def test_nothing_that_waits_for_its_label_is_lost(tmp_path: Path, learning: str) -> None:
    delay = {"name": "uniform", "least": 0, "most": 60}
    run = write_run(tmp_path / "data", clients=2, rounds=ROUNDS, label_delay=delay, label_learning=learning)
    with RealFederation(tmp_path / "fed", run, checkpoint_every=100) as federation:
        federation.start(*federation.names)
        for victims in ([SERVER], ["client-1"], ["client-2", SERVER]):
            federation.wait_for_rounds(federation.rounds + 100)
            federation.kill(*victims)
            federation.start(*victims)
        federation.wait_for_rounds(federation.rounds + 100)
        federation.broker.kill()
        federation.start_broker()
        assert federation.rounds < ROUNDS, "the run was over before the last was killed"
        assert federation.wait() == [0, 0, 0]
        assert "Traceback" not in "".join(map(federation.log, federation.names))
        labels = wait_for(lambda: federation.status().get("labels"), "what became of the labels")
        result = federation.result()
    assert labels == ALL_LEARNT
    same(result, simulate(run))


def test_ctrl_c_while_labels_wait_loses_none(tmp_path: Path) -> None:
    """Of the server, of a client, of all; each goes on where it was."""
    run = write_run(tmp_path / "data", clients=2, rounds=ROUNDS, label_delay=60)
    with RealFederation(tmp_path / "fed", run, checkpoint_every=100) as federation:
        federation.start(*federation.names)
        for pressed in ([SERVER], ["client-1"], federation.names):
            federation.wait_for_rounds(federation.rounds + 100)
            federation.kill(*pressed, how=signal.SIGINT)
            assert federation.wait(*pressed) == [0] * len(pressed)
            if SERVER in pressed:
                said = federation.status()
                assert (said["ended"], said["labels"]["waiting"] >= 60) == ("left", True)
                assert said["labels"]["happened"] == said["rounds"] + said["labels"]["waiting"]
            federation.start(*pressed)
        assert federation.rounds < ROUNDS, "the run was over before the last was stopped"
        assert federation.wait() == [0, 0, 0]
        assert "Traceback" not in "".join(map(federation.log, federation.names))
        assert federation.status()["labels"] == ALL_LEARNT
        result = federation.result()
    same(result, simulate(run))
