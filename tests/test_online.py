"""One sample at a time: the simulator's bits, River's own checks, and a stated outcome for every sample."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import equinox as eqx
import jax
import numpy as np
import pandas
import pyarrow
import pytest
from river import checks, compose, datasets, evaluate, linear_model, metrics, preprocessing

import anabranch as ab
from anabranch.simulation import online
from problems import bits, filled

NAMES = ["a", "b", "c", "d", "e"]
SPLIT = {"one": ["a", "b"], "two": ["c", "d"], "three": ["e"]}
WIDTHS = (2, 2, 1)
ROUNDS = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROUNDS, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 4] > 0).astype(int) + (X[:, 2] > 1)
SAMPLES = [dict(zip(NAMES, row.tolist(), strict=True)) for row in X]


def stream():
    return ab.streams.from_arrays([X[:, :2], X[:, 2:4], X[:, 4:]], Y)


def taught(rounds=5, **settings):
    model = ab.OnlineVFL(SPLIT, **{"classes": [0, 1, 2], "learning_rate": 0.1, **settings})
    for x, y in zip(SAMPLES[:rounds], Y.tolist(), strict=False):
        model.learn_one(x, y)
    return model


def linears(widths, classes):
    """A person's own models, each client's another."""
    key = jax.random.key(0)
    clients = [
        filled(lambda m=m, width=width: eqx.nn.Linear(width, 2 + m, key=key), m) for m, width in enumerate(widths)
    ]
    return ab.SplitModel(clients, filled(lambda: eqx.nn.MLP(9, classes, 8, 1, key=key), len(widths)))


SETTINGS = {
    "OGD": {"update": ab.OGD()},
    "DLR": {"update": ab.DLR(4, 0.9), "activation": ab.Event(0.1)},
    "the server's window": {"update": ab.DLR(4, 0.9, client_window=False), "activation": ab.Fixed(2)},
    "SLR": {"update": ab.SLR(3), "activation": ab.Random(0.5), "seed": 5},
    "recorded": {"activation": ab.Recorded(RNG.random((ROUNDS, 3)) < 0.5)},
    "rates that fall": {"learning_rate": [0.3, 0.2, 0.1, 0.05], "learning_rate_power": 0.5},
    "short messages": {"wire_dtype": "bfloat16", "activation": ab.Random(0.5)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_bits_are_the_simulators(name):
    settings = {"learning_rate": 0.1, **SETTINGS[name]}
    model = taught(0, **settings)
    predictions = []
    for x, y in zip(SAMPLES, Y.tolist(), strict=True):
        predictions.append(model.predict_one(x))
        model.learn_one(x, y)
    start = ab.models.mlp(WIDTHS, 3, seed=settings.get("seed", 0))
    result = ab.simulate(start, stream(), keep_errors=True, **settings)
    assert bits(model.trained) == bits(result.model) != bits(start)
    assert predictions == result.predictions.tolist()
    assert model.rounds == ROUNDS


@pytest.mark.parametrize("made", [False, True], ids=["a function", "a model"])
def test_a_model_of_ones_own(made):
    model = taught(ROUNDS, model=linears(WIDTHS, 3) if made else linears)
    assert bits(model.trained) == bits(ab.simulate(linears(WIDTHS, 3), stream(), learning_rate=0.1).model)


def test_predictions_change_nothing():
    model = taught(update=ab.SLR(3))
    before = pickle.dumps(model)
    proba = model.predict_proba_one(SAMPLES[7])
    assert model.predict_one(SAMPLES[7]) == max(proba, key=proba.get)
    assert sum(proba.values()) == pytest.approx(1)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_goes_on_alone(copied):
    model = taught(20, update=ab.DLR(4, 0.9), activation=ab.Random(0.5))
    other, before = copied(model), bits(model.trained)
    for x, y in zip(SAMPLES[20:], Y[20:].tolist(), strict=True):
        other.learn_one(x, y)
    assert bits(model.trained) == before
    assert bits(other.trained) == bits(taught(ROUNDS, update=ab.DLR(4, 0.9), activation=ab.Random(0.5)).trained)


def test_what_was_trained_stays_while_it_learns_on():
    model = taught(20)
    trained = model.trained
    model.learn_one(SAMPLES[20], 0)
    assert bits(trained) == bits(taught(20).trained)


def test_missing_features_count_as_a_number_and_unknown_ones_as_nothing():
    model, x = taught(missing=0.5), SAMPLES[9]
    whole = model.predict_proba_one({**x, "b": 0.5, "e": 0.5})
    for other in ({"b": None, "e": np.nan}, {"b": np.float64("nan"), "e": None, "unknown": "text"}):
        assert model.predict_proba_one({**x, **other}) == whole
    assert model.predict_proba_one({name: x[name] for name in "dca"}) == whole
    assert model.predict_proba_one({}) == model.predict_proba_one(dict.fromkeys(NAMES))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"a": "3"}, "feature 'a' of client 'one' is '3', but a number is needed"),
        ({"e": np.inf}, "feature 'e' of client 'three' is inf; a number that float32 holds is needed"),
        ({"d": 1e300}, "feature 'd' of client 'two' is 1e\\+300"),
        ({"d": 10**400}, "feature 'd' of client 'two' is a whole number of very many digits"),
        ({"A": 1.0}, "none of the features in split: it has 'A', and split names 'a', 'b', 'c', 'd', 'e'"),
        ([1.0], "a dictionary of named features is needed"),
    ],
)
def test_a_wrong_sample_is_refused_and_nothing_changes(x, words):
    model = taught()
    before = pickle.dumps(model)
    for use in (model.predict_one, model.predict_proba_one, lambda x: model.learn_one(x, 0)):
        with pytest.raises(ab.DataError, match=words):
            use(x)
    assert pickle.dumps(model) == before


def test_missing_features_are_refused_where_that_is_asked_for():
    model = taught(missing=None)
    with pytest.raises(ab.DataError, match="feature 'e' of client 'three' is missing"):
        model.learn_one(dict.fromkeys("abcd", 1), 0)


def test_classes_become_known_as_they_are_seen():
    model = ab.OnlineVFL(SPLIT, classes=2, learning_rate=0.1)
    assert model.predict_one(SAMPLES[0]) is None
    assert model.predict_proba_one(SAMPLES[0]) == {}
    model.learn_one(SAMPLES[0], "yes")
    assert model.predict_proba_one(SAMPLES[0]) == {"yes": 1.0}
    model.learn_one(SAMPLES[0], ("any", "hash"))
    assert list(model.predict_proba_one(SAMPLES[0])) == ["yes", ("any", "hash")]
    before = pickle.dumps(model)
    with pytest.raises(ab.DataError, match="class 3 is one too many: there may be 2, and known are 'yes'"):
        model.learn_one(SAMPLES[0], 3)
    with pytest.raises(ab.DataError, match="class is None"):
        model.learn_one(SAMPLES[0], None)
    with pytest.raises(ab.DataError, match="no hash"):
        model.learn_one(SAMPLES[0], ["a list"])
    assert pickle.dumps(model) == before


NO_LABELS = [
    None,
    float("nan"),
    np.float16("nan"),
    pandas.NA,
    pandas.NaT,
    np.datetime64("NaT"),
    np.timedelta64("NaT"),
    Decimal("NaN"),
    Decimal("sNaN"),
    np.ma.masked,
    pyarrow.scalar(None, pyarrow.int64()),
    "",
]


@pytest.mark.parametrize("label", NO_LABELS, ids=repr)
def test_a_label_that_is_not_there_is_no_class(label):
    model = taught(0, classes=3)
    model.learn_one(SAMPLES[0], 0)
    before = pickle.dumps(model)
    with pytest.raises(ab.DataError, match="which says that there is none"):
        model.learn_one(SAMPLES[1], label)
    assert pickle.dumps(model) == before
    assert list(model.predict_proba_one(SAMPLES[0])) == [0]


@pytest.mark.parametrize("value", NO_LABELS[:-1], ids=repr)
def test_a_feature_that_is_not_there_counts_as_missing(value):
    model, x = taught(missing=0.5), SAMPLES[9]
    assert model.predict_proba_one({**x, "b": value}) == model.predict_proba_one({**x, "b": 0.5})


def test_values_of_other_libraries_are_numbers_and_times_are_not():
    model, x = taught(), {**SAMPLES[9], "b": 0.5}
    for value in (np.float32(0.5), np.array(0.5), jax.numpy.float32(0.5), pyarrow.scalar(0.5), Decimal("0.5")):
        assert model.predict_proba_one({**x, "b": value}) == model.predict_proba_one(x)
    for value in ("", np.datetime64(5, "ns"), np.timedelta64(5), 1j):
        with pytest.raises(ab.DataError, match=r"feature 'b' of client 'one' is .*, but a number is needed"):
            model.predict_one({**x, "b": value})


@pytest.mark.parametrize(
    ("labels", "known"),
    [
        ([1, 1.0, True, np.int64(1), np.float32(1), np.bool_(True), np.array(1), Decimal(1), pyarrow.scalar(1)], 1),
        (["a", np.str_("a"), np.array("a"), pyarrow.scalar("a")], "a"),
        ([jax.numpy.int32(1), 1], 1),
    ],
)
def test_equal_labels_are_one_class_in_pythons_own_type(labels, known):
    model = taught(0, classes=2)
    for label in labels:
        model.learn_one(SAMPLES[0], label)
    assert model.predict_proba_one(SAMPLES[0]) == {known: 1.0}
    assert type(model.predict_one(SAMPLES[0])) is type(known)


def test_the_empty_text_is_a_class_where_it_is_listed_and_a_missing_value_never():
    model = taught(0, classes=["", "a"])
    model.learn_one(SAMPLES[0], "")
    assert model.rounds == 1
    with pytest.raises(ab.ConfigError, match="a missing value is no class"):
        taught(0, classes=["a", pandas.NA])


@pytest.fixture
def eager():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
def test_while_one_thread_teaches_others_see_whole_rounds_only():
    settings = {"classes": 3, "update": ab.DLR(4, 0.9)}
    reference = taught(0, **settings)
    odds, states = [reference.predict_proba_one(SAMPLES[0])], [bits(reference.trained)]
    for x, y in zip(SAMPLES, Y.tolist(), strict=True):
        reference.learn_one(x, y)
        odds.append(reference.predict_proba_one(SAMPLES[0]))
        states.append(bits(reference.trained))

    model = taught(0, **settings)
    asked, done = threading.Event(), threading.Event()

    def ask():
        found = []
        while not done.is_set() or not found:
            found.append(model.predict_proba_one(SAMPLES[0]))
            asked.set()
        return found

    def copies():
        found = []
        while not done.is_set() or not found:
            found.append(pickle.loads(pickle.dumps(model)))
        return found

    with ThreadPoolExecutor() as threads:
        asking, copying = threads.submit(ask), threads.submit(copies)
        asked.wait()
        try:
            for x, y in zip(SAMPLES, Y.tolist(), strict=True):
                model.learn_one(x, y)
        finally:
            done.set()
        assert all(each in odds for each in asking.result())
        assert all(bits(each.trained) == states[each.rounds] for each in copying.result())
    assert bits(model.trained) == states[-1]


@pytest.mark.usefixtures("eager")
def test_what_two_threads_teach_is_learnt_once():
    model = taught(0)

    def teach(_):
        for _ in range(20):
            model.learn_one(SAMPLES[0], 1)

    with ThreadPoolExecutor() as threads:
        list(threads.map(teach, range(2)))
    once = taught(0)
    for _ in range(40):
        once.learn_one(SAMPLES[0], 1)
    assert (model.rounds, bits(model.trained)) == (40, bits(once.trained))


def test_a_class_that_is_not_listed_is_refused():
    with pytest.raises(ab.DataError, match="class 'maybe' is one too many: classes lists 2, and known are 'no', 'yes'"):
        taught(0, classes=["no", "yes"]).learn_one(SAMPLES[0], "maybe")


def test_after_a_loss_that_is_not_finite_it_still_predicts_and_refuses_to_learn():
    model = taught(0, learning_rate=1e30)

    def learn_all():
        for x, y in zip(SAMPLES, Y.tolist(), strict=True):
            model.learn_one(x, y)

    with pytest.raises(ab.Diverged, match="not finite in round"):
        learn_all()
    assert 0 < model.rounds < ROUNDS
    for each in (model, pickle.loads(pickle.dumps(model))):
        assert each.predict_one(SAMPLES[0]) in (0, 1, 2)
        with pytest.raises(ab.Diverged, match=f"not finite in round {model.rounds + 1}"):
            each.learn_one(SAMPLES[0], 0)
    assert model.clone().rounds == 0


def test_ctrl_c_in_the_middle_of_a_round_loses_nothing(monkeypatch):
    model, program = taught(20, update=ab.DLR(4, 0.9)), online._learn

    def pressed(*numbers):
        moved = program(*numbers)
        signal.raise_signal(signal.SIGINT)  # the old arrays are gone, and nobody has the new ones yet
        return moved

    monkeypatch.setattr(online, "_learn", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.learn_one(SAMPLES[20], int(Y[20]))
    monkeypatch.undo()
    assert model.rounds == 21
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for x, y in zip(SAMPLES[21:], Y[21:].tolist(), strict=True):
        model.learn_one(x, y)
    assert bits(model.trained) == bits(taught(ROUNDS, update=ab.DLR(4, 0.9)).trained)


def test_a_record_of_activations_ends():
    model = taught(2, activation=ab.Recorded([[True, False, True]] * 2))
    with pytest.raises(ab.DataError, match="the recorded activations ended after 2 rounds"):
        model.learn_one(SAMPLES[0], 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": {}}, "split is {}, but it says which features each client holds"),
        ({"split": {"one": "ab"}}, "client 'one' has 'ab', but a list of names is needed"),
        ({"split": {"one": ["a", "a"]}}, "client 'one' holds 'a' twice"),
        ({"classes": 0}, "classes is 0"),
        ({"classes": ["a", "a"]}, "a list of different classes"),
        ({"classes": "ab"}, "a list of different classes"),
        ({"missing": np.nan}, "missing is nan"),
        ({"missing": 10**400}, "missing is a whole number of very many digits"),
        ({"learning_rate": [1, 2]}, "there are 4 parties"),
        ({"model": 3}, "model is 3"),
        ({"update": ab.OGD}, "update is the class OGD"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ab.ConfigError, match=words):
        ab.OnlineVFL(**{"split": SPLIT, **settings})


def test_numbers_that_no_message_could_hold_are_named():
    model = ab.OnlineVFL({"one": ["a"], "other": ["b"]}, classes=2, missing=np.float32(0))
    with pytest.raises(ab.DataError, match="feature 'a' of client 'one' is a whole number of very many digits"):
        model.learn_one({"a": 10**5000, "b": 1.0}, 0)
    for y in (0, 1):
        model.learn_one({"a": 1.0}, y)
    with pytest.raises(ab.DataError, match="class a whole number of very many digits is one too many"):
        model.learn_one({"a": 1.0}, 10**5000)
    with pytest.raises(ab.DataError, match="class is nan"):
        model.learn_one({"a": 1.0}, np.float32("nan"))


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(ab.ModelError, match="2 clients"):
        ab.OnlineVFL(SPLIT, model=ab.models.mlp((2, 3), 10))


PHISHING = list(next(iter(datasets.Phishing()))[0])
SEGMENTS = list(next(iter(datasets.ImageSegments()))[0])
CHECKED = {
    "any classes": lambda: ab.OnlineVFL({"one": PHISHING[:5] + SEGMENTS[:9], "other": PHISHING[5:] + SEGMENTS[9:]}),
    "two classes": lambda: ab.OnlineVFL({"one": PHISHING[:5], "other": PHISHING[5:]}, classes=[False, True]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_rivers_own_checks(name):
    """All that River has for such a classifier; the traceback names the one that fails."""
    model = CHECKED[name]()
    found = [*checks.yield_checks(model)]
    assert len(found) > 10
    for check in found:
        random.seed(0)
        check(model.clone())


def phishing_model():
    return ab.OnlineVFL({"one": PHISHING[:5], "other": PHISHING[5:]}, learning_rate=0.03, classes=[False, True])


def test_it_learns_in_a_pipeline_of_rivers():
    metric = metrics.Accuracy()
    baseline = metrics.Accuracy()
    model = preprocessing.StandardScaler() | phishing_model()
    assert isinstance(model, compose.Pipeline)
    evaluate.progressive_val_score(datasets.Phishing(), model, metric)
    evaluate.progressive_val_score(
        datasets.Phishing(), preprocessing.StandardScaler() | linear_model.LogisticRegression(), baseline
    )
    assert metric.get() > 0.87
    assert metric.get() > baseline.get() - 0.02
    assert model["OnlineVFL"].rounds == 1250


def test_river_asks_for_probabilities_and_may_keep_labels_back():
    metric = metrics.ROCAUC()
    model = preprocessing.StandardScaler() | phishing_model()
    evaluate.progressive_val_score(datasets.Phishing().take(600), model, metric, delay=20, moment=None)
    assert metric.get() > 0.85


def test_it_needs_no_river(monkeypatch):
    monkeypatch.setitem(sys.modules, "river.base", None)
    spec = importlib.util.spec_from_file_location("online_alone", online.__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert alone.OnlineVFL.__mro__[1:] == (object,)
    model = alone.OnlineVFL(SPLIT, classes=[0, 1, 2], learning_rate=0.1)
    for x, y in zip(SAMPLES, Y.tolist(), strict=True):
        model.learn_one(x, y)
    assert bits(copy.deepcopy(model).trained) == bits(taught(ROUNDS).trained)
