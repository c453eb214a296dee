"""A run that goes on is the run that never stopped, to the bit; what cannot go on is refused."""

from __future__ import annotations

import pickle
import signal
from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.errors import CheckpointError
from problems import bits

ROWS = 240
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 3] > 0).astype(int)
STREAM = ab.streams.from_arrays([X[:, :2], X[:, 2:]], Y)
MODEL = ab.models.mlp(STREAM.widths, 2, hidden=[4], embedding=3, server=[5])
RUNS: dict[str, dict[str, Any]] = {
    "a window": {"update": ab.DLR(10, 0.9), "activation": ab.Random(0.5), "keep_errors": True},
    "remembered inputs": {"update": ab.SLR(3), "activation": ab.Fixed(1), "measure_regret": True},
    "an optimiser's state": {"update": ab.OGD(), "learning_rate": optax.sgd(0.05, momentum=0.9)},
    "falling rates": {"learning_rate": [0.1, 0.2, 0.3], "learning_rate_power": 0.5, "measure_regret": True},
    "a record": {"activation": ab.Recorded(np.random.default_rng(1).random((ROWS, 2)) < 0.5)},
}
WHOLE: dict[str, ab.Result] = {}


def run(name: str, **more: Any) -> ab.Result:
    return ab.simulate(MODEL, STREAM, **{"report_every": 7, "chunk": 32, **RUNS[name], **more})


def numbers(result: ab.Result) -> list[Any]:
    """All that does not depend on the clock."""
    described = result.describe()
    for name in ("seconds", "timed_rounds", "compile_seconds", "rounds_per_second", "client_seconds"):
        described.pop(name)
    described["settings"] = {**described["settings"], "rounds": None}
    kept = [None if each is None else each.tolist() for each in (result.errors, result.predictions)]
    return [bits(result.model), [column.tolist() for column in result.curve], kept, described]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_the_same_bits(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab.Result, "client_times", None)
    monkeypatch.setattr(ab.Result, "client_seconds", 0.0)
    whole = WHOLE.setdefault(name, run(name))
    part = run(name, rounds=101)
    folder = ab.save(part, tmp_path / "part")
    for begun in (part, folder, str(folder)):
        on = run(name, resume=begun)
        assert numbers(on) == numbers(whole)
        assert on.timed_rounds == ROWS - 101


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, ROWS - 1), min_size=1, max_size=4, unique=True), chunk=st.sampled_from([7, 32]))
@example(cuts=[1, 2, 3], chunk=32)
@example(cuts=[32, 64], chunk=32)
def test_it_may_stop_anywhere_and_often(cuts: list[int], chunk: int) -> None:
    whole = WHOLE.setdefault("a window", run("a window"))
    result = None
    for rounds in [*sorted(cuts), None]:
        result = run("a window", rounds=rounds, resume=result, chunk=chunk)
    assert result is not None
    assert bits(result.model) == bits(whole.model)
    assert result.error_rate == whole.error_rate
    np.testing.assert_array_equal(result.errors, whole.errors)


def test_what_ctrl_c_has_stopped_goes_on() -> None:
    def press(progress: ab.Progress) -> None:
        if progress.rounds == 64:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(ab.Interrupted) as stopped:
        run("a window", progress=press)
    assert 64 <= stopped.value.result.rounds < ROWS
    on = run("a window", resume=stopped.value.result)
    assert bits(on.model) == bits(WHOLE.setdefault("a window", run("a window")).model)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"seed": 4}, "seed is 4, but the run to go on with has 0"),
        ({"update": ab.OGD()}, r"update is 'OGD\(\)', but"),
        ({"rounds": 101}, "the run has done 101 rounds, and rounds is 101 in all: ask for more"),
        ({"label_delay": 3}, "a run with label_delay cannot go on"),
        ({"detect": ab.Detect()}, "a run with detect cannot go on"),
        ({"resume": 3}, "resume is 3, but a Result is needed"),
        ({"resume": "nowhere"}, "nowhere has no folder 'state'"),
    ],
)
def test_what_is_another_run_is_refused(more: dict[str, Any], words: str) -> None:
    part = run("a window", rounds=101)
    with pytest.raises(ab.ConfigError, match=words):
        run("a window", **{"resume": part, **more})


def test_another_stream_or_model_is_refused_and_so_is_what_has_no_state() -> None:
    part = run("a window", rounds=101)
    options = {"report_every": 7, "chunk": 32, **RUNS["a window"]}
    other = ab.streams.from_arrays([X[:, :2], X[:, 2:]], 1 - Y)
    with pytest.raises(ab.ConfigError, match="resume: stream is"):
        ab.simulate(MODEL, other, resume=part, **options)
    with pytest.raises(ab.ConfigError, match="resume: model is"):
        ab.simulate(ab.models.mlp(STREAM.widths, 2), STREAM, resume=part, **options)
    with pytest.raises(ab.ConfigError, match="this result has no state"):
        run("a window", resume=pickle.loads(pickle.dumps(part)))
    late = ab.simulate(MODEL, STREAM, rounds=32, chunk=32, label_delay=2)
    with pytest.raises(ab.ConfigError, match="this result has no state"):
        ab.simulate(MODEL, STREAM, resume=late)


def test_a_stream_without_more_samples_is_said() -> None:
    whole = WHOLE.setdefault("a window", run("a window"))
    with pytest.raises(
        ab.DataError, match="the stream has no sample after the first 240, which the run has learnt from"
    ):
        run("a window", resume=whole)


def test_errors_that_were_not_kept_cannot_be_kept_later() -> None:
    part = run("a window", rounds=101, keep_errors=False)
    with pytest.raises(ab.ConfigError, match="keep_errors is True, but the run that goes on has not kept those"):
        run("a window", resume=part)


def test_a_damaged_state_is_refused(tmp_path: Any) -> None:
    folder = ab.save(run("a window", rounds=101), tmp_path / "part")
    (arrays,) = (folder / "state").glob("*.safetensors")
    damaged = bytearray(arrays.read_bytes())
    damaged[-1] ^= 1
    arrays.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"damaged|checksum"):
        run("a window", resume=folder)
