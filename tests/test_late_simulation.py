"""Late labels in the simulator, and what may come meanwhile: Ctrl-C, and drift."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch.simulation.drift_detection import Detect, Watch
from problems import bits, small_problem
from problems import run as run_problem

INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from problems import Waiting, bits, small_problem
import anabranch as ab

def press(progress):
    if progress.rounds >= 14:
        os.kill(os.getpid(), signal.SIGINT)

options = {
    "learning_rate": 0.1, "chunk": 7, "label_delay": 20, "label_learning": sys.argv[3], "keep_errors": True,
}
model, stream, _ = small_problem(rounds=60)
progress, stream = (None, Waiting(stream)) if sys.argv[2] == "waiting" else (press, stream)
try:
    ab.simulate(model, stream, progress=progress, **options)
except ab.Interrupted as error:
    result = error.result
    assert result.stopped == f"interrupted after {result.rounds} rounds"
    same = ab.simulate(*small_problem(rounds=60)[:2], rounds=result.rounds, **options)
    assert bits(same.model) == bits(result.model)
    assert result.predictions.tolist() == same.predictions.tolist()
    print(result.rounds, result.late_labels.events, result.late_labels.most_waiting)
"""


@pytest.mark.parametrize("learning", ["fresh", "stored"])
@pytest.mark.parametrize(("when", "least", "most"), [("training", 14, 39), ("waiting", 36, 36)])
def test_ctrl_c_while_labels_wait_keeps_the_rounds_that_were_done(
    when: str, least: int, most: int, learning: str
) -> None:
    """Events whose labels have not come were predicted, and are learnt from by nobody.

    Where a stream is waited for, that ends with the last full chunk, as without a delay.
    """
    here = Path(__file__).parent
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, here, when, learning],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    rounds, events, waiting = map(int, process.stdout.split())
    assert least <= rounds <= most
    assert events == rounds + 20
    assert waiting == 21


# Drift: a detector that notices every error makes much follow in few rounds.

RATES = {"update": ab.DLR(4, 0.9), "learning_rate_power": 0.25, "rounds": 60}


@pytest.fixture
def every_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from river.base import BinaryDriftDetector

    class EveryError(BinaryDriftDetector):
        def update(self, x):
            self._drift_detected = bool(x)

    monkeypatch.setattr("anabranch.simulation.drift_detection._named", lambda name: EveryError)


@pytest.mark.parametrize("learning", ["fresh", "stored"])
def test_the_error_that_is_watched_is_that_of_the_predictions_at_the_events(learning: str) -> None:
    late = {"label_delay": ab.UniformDelay(0, 7), "label_learning": learning, **RATES}
    plain = run_problem(small_problem(), **late)
    detect = Detect("PageHinkley", options={"min_instances": 5, "delta": 0.0, "threshold": 0.2})
    watched = run_problem(small_problem(), **late, detect=detect)
    assert bits(watched.model) == bits(plain.model)
    by_hand = Watch(detect, clients=len(watched.model.clients), seed=0)
    by_hand.add(plain.errors)
    assert watched.detections == by_hand.detections != []
    at_once = run_problem(small_problem(), **RATES)
    assert plain.errors.tolist() != at_once.errors.tolist()


@pytest.mark.parametrize("learning", ["fresh", "stored"])
@pytest.mark.parametrize(
    "detect",
    [{"on_drift": "reset", "every": 6}, {"on_drift": "boost", "boost": 1.5, "boost_rounds": 4, "every": 6}],
    ids=["reset", "boost"],
)
def test_what_follows_goes_by_rounds_whatever_the_chunk(detect: dict, learning: str, every_error: None) -> None:
    late = {"label_delay": ab.UniformDelay(0, 7), "label_learning": learning, **RATES}
    runs = [run_problem(small_problem(), **late, detect=Detect(**detect), chunk=chunk) for chunk in (1, 7, 32)]
    first = runs[0]
    assert len(first.detections) > 4
    assert bits(first.model) != bits(run_problem(small_problem(), **late).model)
    for each in runs[1:]:
        assert bits(each.model) == bits(first.model)
        assert each.detections == first.detections
        np.testing.assert_array_equal(each.predictions, first.predictions)


def test_what_follows_with_fresh_labels_is_what_follows_without_a_delay() -> None:
    """With a fixed delay rounds are those without one, and so is what follows in the same round."""
    twice = Detect("DummyDriftDetector", on_drift="reset", every=10, options={"t_0": 25, "trigger_method": "fixed"})
    runs = [run_problem(small_problem(), **RATES, detect=twice, label_delay=delay) for delay in (0, 9)]
    assert [[each.round for each in run.detections] for run in runs] == [[25, 50], [25, 50]]
    assert bits(runs[0].model) == bits(runs[1].model)
    assert bits(runs[0].model) != bits(run_problem(small_problem(), **RATES).model)
