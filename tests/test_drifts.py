"""Drift is noticed when it is there, and what follows is what was asked for."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from functools import cache
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from rich.console import Console

import anabranch as ab
from anabranch.display import summary
from anabranch.simulation.detectors import restored, state_of
from anabranch.simulation.drift_detection import Detect, Detection, Watch
from problems import bits

RNG = np.random.default_rng(0)
CHANGE = 3000
RISING = RNG.random(6000) < np.where(np.arange(6000) < CHANGE, 0.1, 0.5)


def watched(detect, errors=RISING, embeddings=None, chunk=6000):
    watch = Watch(detect, clients=2, seed=0)
    for start in range(0, len(errors), chunk):
        rows = slice(start, start + chunk)
        watch.add(errors[rows], None if embeddings is None else embeddings[rows])
    assert watch.rounds == len(errors)
    return watch


@pytest.mark.parametrize("detector", ["ADWIN", "PageHinkley", "DDM", "HDDMA", "HDDMW"])
def test_an_error_that_rises_is_noticed(detector):
    delays = [each.round - CHANGE for each in watched(Detect(detector)).detections]
    assert any(0 < delay < 200 for delay in delays)


def test_the_means_before_and_after_are_those_of_the_detector():
    first = watched(Detect()).detections[0]
    assert (first.what, first.client) == ("error", None)
    assert first.before == pytest.approx(0.1, abs=0.02)
    assert first.after > first.before
    page = watched(Detect("PageHinkley")).detections[0]
    assert page.after is None
    assert page.before == pytest.approx(RISING[: page.round].mean())


def test_an_error_that_falls_is_learning():
    assert watched(Detect(), ~RISING).detections == []


def test_an_embedding_that_changes_is_noticed_whichever_way_and_whose_it_is():
    sizes = RNG.normal(size=(6000, 2)) + np.where(np.arange(6000) < CHANGE, 0, 1)[:, None] * [0, -1]
    noticed = watched(Detect(watch=("error", "embedding")), np.zeros(6000, bool), sizes).detections
    assert [(each.what, each.client) for each in noticed] == [("embedding", 2)]
    assert 0 < noticed[0].round - CHANGE < 200
    assert noticed[0].after < noticed[0].before


@pytest.mark.parametrize("detector", ["ADWIN", "KSWIN"])
def test_chunks_do_not_matter(detector):
    sizes = RNG.normal(size=(600, 2))
    sizes[300:, 0] += 3
    whole, cut = (
        watched(Detect(detector, watch=("embedding",)), RISING[:600], sizes, chunk).detections for chunk in (600, 7)
    )
    assert whole == cut != []


def test_a_boost_begins_with_a_detection_and_ends():
    watch = Watch(Detect(on_drift="boost", boost=5, boost_rounds=150), clients=2, seed=0)
    factors = []
    for start in range(0, 6000, 100):
        watch.begin(start)
        factors.append(watch.factor)
        watch.add(RISING[start : start + 100])
    begun = -(-watch.detections[0].round // 100)
    assert factors[:begun] == [1.0] * begun
    assert factors[begun : begun + 2] == [5, 5]
    assert watch.factor == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"detector": "Adwin"}, "detector is 'Adwin'; known are ADWIN, .*KSWIN.* DDM"),
        ({"detector": "DriftRetrainingClassifier"}, "known are ADWIN"),
        ({"watch": "errors"}, "watch is 'errors'; known are 'error', 'embedding'. Did you mean 'error'?"),
        ({"watch": ()}, "watch is ()"),
        ({"on_drift": "boots"}, "on_drift is 'boots'; .* Did you mean 'boost'?"),
        ({"boost": 0}, "boost is 0"),
        ({"boost": True}, "boost is True"),
        ({"boost_rounds": 0.5}, "boost_rounds is 0.5"),
        ({"every": 0}, "every is 0"),
        ({"every": 10**12}, "every is 1000000000000: must be a whole number from 1 to 100000"),
        ({"boost": 10**400}, "boost is 1000"),
        ({"options": {"clock": 0}}, "ADWIN does not work with {'clock': 0}"),
        ({"options": {"detla": 1}}, "ADWIN has no setting 'detla'; it has delta, .* Did you mean 'delta'?"),
        ({"options": {"delta": "small"}}, "ADWIN does not take {'delta': 'small'}"),
        ({"detector": "DDM", "watch": ("error", "embedding")}, "DDM takes true and false only"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ab.ConfigError, match=words.replace("()", r"\(\)").replace("?", r"\?")):
        Detect(**settings)


def test_without_river_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(ab.ConfigError, match=r"pip install '\.\[river\]'"):
        Detect()


ROUNDS = 3000
X = RNG.normal(size=(ROUNDS, 4)).astype(np.float32)
Y = np.where(np.arange(ROUNDS) < 1500, X[:, 0] > 0, X[:, 2] > 0).astype(int)
WIDTHS = (2, 2)
FIRST, SECOND = slice(2000), slice(2000, None)
STREAM = ab.streams.from_arrays([X[:, :2], X[:, 2:]], Y)


@cache
def model():
    return ab.models.mlp(WIDTHS, 2)


def simulated(detect=None, stream=STREAM, **settings):
    return ab.simulate(
        model(), stream, **{"update": ab.DLR(4, 0.9), "learning_rate": 0.02, "detect": detect, **settings}
    )


@pytest.fixture(scope="module")
def plain():
    return simulated(keep_errors=True)


@pytest.mark.parametrize("watch", [("error",), ("embedding",), ("error", "embedding")])
def test_what_is_only_reported_changes_no_bit(plain, watch):
    result = simulated(Detect(watch=watch))
    assert bits(result.model) == bits(plain.model)
    assert (plain.detections, plain.describe()["detections"]) == (None, None)
    assert "detect" not in plain.settings
    assert result.settings["detect"]["watch"] == watch
    assert [each for each in result.detections if each.what == "error"] == (
        watched(Detect(), plain.errors).detections if "error" in watch else []
    )
    described = result.describe()["detections"]
    assert json.loads(json.dumps(described)) == [each._asdict() for each in result.detections]


def test_the_change_is_noticed_soon():
    noticed = simulated(Detect()).detections
    assert [0 < each.round - 1500 < 200 for each in noticed] == [True] * len(noticed) != []


@pytest.mark.parametrize("update", [ab.DLR(4, 0.9), ab.SLR(3)])
@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_embeddings_are_watched_as_they_arrive(update, wire):
    """The rate is 0, so each embedding is that of the first model."""
    stream = ab.streams.from_arrays([X[:50, :2], X[:50, 2:]], Y[:50])
    seen = []

    class Noting(Watch):
        def add(self, errors, embeddings=None):
            seen.append(embeddings)
            return super().add(errors, embeddings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch.simulation.run_setup.Watch", Noting)
        simulated(Detect(watch=("embedding",)), stream, update=update, learning_rate=0.0, wire_dtype=wire, chunk=20)
    assert [len(each) for each in seen] == [20, 20, 10]
    for m, x in enumerate((X[:50, :2], X[:50, 2:])):
        embeddings = np.asarray(jax.vmap(model().clients[m])(x))
        expected = np.sqrt((embeddings**2).mean(axis=1))
        np.testing.assert_allclose(np.concatenate(seen)[:, m], expected, rtol=2e-3 if wire == "float16" else 1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"activation": ab.Random(0.5)}, {"learning_rate_power": 0.1}, {"label_delay": 30}, {"seed": 4}],
    ids=str,
)
@pytest.mark.parametrize("on_drift", ["reset", "boost"])
def test_until_something_follows_all_is_as_without(on_drift, settings):
    detect = Detect(on_drift=on_drift, boost=3, boost_rounds=250, every=64)
    a = simulated(detect, chunk=33, **settings)
    assert a.detections != []
    # Before the first detection, and to the end of its 64 samples, all is as without.
    same = -(-a.detections[0].round // 64) * 64 - 64
    assert bits(a.model) != bits(simulated(None, **settings).model)
    short = {**settings, "rounds": same}
    assert bits(simulated(detect, **short).model) == bits(simulated(None, **short).model)


@pytest.mark.parametrize(
    ("on_drift", "update", "factor"),
    [("reset", ab.DLR(4, 0.9), 1), ("reset", ab.DLR(4, 0.9, client_window=False), 1), ("boost", ab.OGD(), 3)],
    ids=["reset", "reset of the server alone", "boost"],
)
def test_what_follows_is_a_run_that_begins_anew_from_the_model(on_drift, update, factor):
    """With a detector that fires once. A boost is such a run where there is no window that would go on."""
    detect = Detect(
        "DummyDriftDetector",
        on_drift=on_drift,
        boost=factor,
        every=40,
        options={"t_0": 1970, "trigger_method": "fixed"},
    )
    result = simulated(detect, update=update)
    assert [each.round for each in result.detections] == [1970]
    first, second = (ab.streams.from_arrays([X[rows, :2], X[rows, 2:]], Y[rows]) for rows in (FIRST, SECOND))
    before = simulated(None, first, update=update)
    after = ab.simulate(before.model, second, update=update, learning_rate=0.02 * factor)
    # Where a gradient stands in its ring goes by the round's number, and its value does not.
    assert bits(result.model) == bits(after.model)


def test_what_cannot_follow_is_refused():
    reset, boost = Detect(on_drift="reset"), Detect(on_drift="boost")
    for update in (ab.SLR(3), ab.OGD()):
        with pytest.raises(ab.ConfigError, match=f"the update {type(update).__name__} keeps none"):
            simulated(reset, update=update)
    with pytest.raises(ab.ConfigError, match="which has rates of its own"):
        simulated(boost, learning_rate=optax.adam(0.001))
    with pytest.raises(ab.ConfigError, match="measure_regret"):
        simulated(reset, measure_regret=True)
    with pytest.raises(ab.ConfigError, match="detect is the class Detect: make one of it"):
        simulated(Detect)


def test_rounds_that_were_not_predicted_lie_between():
    watch = Watch(Detect(), clients=2, seed=0)
    watch.add(RISING, numbers=range(2, 12_002, 2))
    assert [each.round for each in watch.detections] == [2 * each.round for each in watched(Detect()).detections]


def test_a_checkpoint_keeps_what_was_noticed():
    watch, other = watched(Detect()), Watch(Detect(), clients=2, seed=0)
    other.restore(json.loads(json.dumps(watch.state())))
    assert (other.detections, other.rounds) == (watch.detections, 6000)
    assert str(other.detections[0]).startswith("error, from 0.1")
    assert str(Detection(3, "embedding", 2, 0.5, None)) == "embedding of client 2"


ALL = ("ADWIN", "DummyDriftDetector", "KSWIN", "NoDrift", "PageHinkley", "DDM", "EDDM", "FHDDM", "HDDMA", "HDDMW")
OPTIONS = {
    "DummyDriftDetector": {"trigger_method": "random", "t_0": 300, "w": 50},
    "KSWIN": {"alpha": 0.01},
    "FHDDM": {"short_window_size": 20},
    "HDDMA": {"two_sided_test": True},
}


@pytest.mark.parametrize("name", ALL)
def test_a_detector_goes_on_from_its_checkpoint(name):
    detect = Detect(detector=name, options=OPTIONS.get(name, {}))
    errors = np.random.default_rng(0).random(3000) < np.where(np.arange(3000) < 1500, 0.1, 0.6)
    undisturbed, disturbed = Watch(detect, clients=2, seed=3), Watch(detect, clients=2, seed=3)
    undisturbed.add(errors)
    for block in np.split(errors, range(97, 3000, 97)):
        disturbed.add(block)
        state = json.loads(json.dumps(disturbed.state(), allow_nan=False))
        disturbed = Watch(detect, clients=2, seed=3)
        disturbed.restore(state)
    assert disturbed.detections == undisturbed.detections
    assert undisturbed.detections or name == "NoDrift"
    assert not disturbed.began_anew


@pytest.mark.parametrize("other", [Detect("DDM"), Detect(options={"delta": 0.1}), Detect(watch=("error", "embedding"))])
def test_other_detectors_begin_anew_and_that_is_known(other):
    watch = Watch(other, clients=2, seed=0)
    watch.restore(watched(Detect()).state())
    assert watch.began_anew


def test_what_is_none_of_a_detectors_state_is_refused():
    like = Detect("DDM").make(0)
    with pytest.raises(ValueError, match="the state of a detector has"):
        restored(state_of(Detect("EDDM").make(0)), like)
    with pytest.raises(TypeError, match="which cannot be kept"):
        state_of({"a": memoryview(b"")})


def test_a_person_sees_how_often_and_where():
    def shown(detections):
        text = io.StringIO()
        result = dataclasses.replace(
            simulated(rounds=10), detections=detections, settings={"model": {"features": [2, 2]}}
        )
        summary(Console(file=text, width=200), result, "a run", tmp := Path("somewhere"))
        assert f"{tmp}/" in text.getvalue()
        return [line.rstrip() for line in text.getvalue().splitlines() if line.startswith("drift noticed")]

    assert shown(None) == []
    assert [line.split("  ")[-1] for line in shown([])] == ["nowhere"]
    many = [Detection(1000, "error", None, 0.1, 0.2)] + [
        Detection(t, "embedding", 2, 0.1, 0.2) for t in range(2000, 2005)
    ]
    (line,) = shown(many)
    assert line.split()[2] == "6"
    assert line.endswith(
        "after round 1,000 (error), 2,000 (embedding of client 2), 2,001 (embedding of client 2), "
        "2,002 (embedding of client 2), …"
    )
