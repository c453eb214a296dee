"""One suite that every update, every activation and every stream must pass, a person's own among them."""

from __future__ import annotations

import json
from itertools import islice

import equinox as eqx
import jax
import numpy as np
import pytest

import anabranch as ab
import anabranch.net
from anabranch.core.activation import Activation
from anabranch.core.updates import Update
from anabranch.streams.base import Block, Stream
from anabranch.streams.digits import make_digits
from problems import bits, filled

ROUNDS = 120


class Momentum(Update):
    """An update that a person might write: each party steps along an exponential mean of its gradients."""

    beta: float

    def init_window(self, gradient, *, server):
        return gradient

    def smooth(self, window, gradient, t):
        beta = self.beta.astype("float32")
        mean = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, window, gradient)
        return mean, mean


class Sign(ab.DLR):
    """Another: each party steps along the signs of the weighted mean, which it takes from a plain gradient."""

    def smooth(self, window, gradient, t):
        window, direction = super().smooth(window, jax.tree.map(lambda g: g[...], gradient), t)
        return window, jax.tree.map(jax.numpy.sign, direction)


class Frugal(ab.DLR):
    """Another, which knows of outer products: DLR as it is."""

    outer_products = True

    def smooth(self, window, gradient, t):
        return super().smooth(window, gradient, t)


class EveryOther(Activation):
    """An activation that a person might write: odd clients in odd rounds, even ones in even rounds."""

    def mask(self, seed, t, x, widths):
        rounds = t + np.arange(len(x))[:, None]
        return (rounds + np.arange(len(widths))[None, :]) % 2 == 0

    def decide(self, seed, client, t, x_m):
        return (t + client - 1) % 2 == 0

    def __repr__(self):
        return "EveryOther()"


class Larger(Stream):
    """A stream that a person might write: which of two numbers is larger? It uses the same arrays for each block."""

    widths, classes, endless = (1, 1), 2, True

    def blocks(self):
        rng, x = np.random.default_rng(0), np.zeros((33, 2))
        while True:
            x[:] = rng.normal(size=x.shape)
            yield Block(x, (x[:, 0] > x[:, 1]).astype(int))


def few_digits():
    rng = np.random.default_rng(0)
    return make_digits(
        rng.integers(0, 256, (40, 28, 28), np.uint8), np.arange(40) % 10, name="noise", source="made in a test"
    )


@pytest.fixture(scope="session")
def table_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    rows = np.column_stack([(x[:, 0] > x[:, 4]).astype(int), x])
    path = tmp_path_factory.mktemp("table") / "table.csv"
    np.savetxt(path, rows, delimiter=",", fmt=["%d"] + ["%.6f"] * 5, header="label,a,b,c,d,e", comments="")
    for name, features in (("SUSY.csv", 18), ("HIGGS.csv.gz", 28)):  # as the UCI has them: no header, label first
        np.savetxt(
            path.with_name(name), np.column_stack([np.arange(200) % 2, rng.normal(size=(200, features))]), delimiter=","
        )
    return path


STREAMS = {
    "arrays": lambda path: ab.streams.from_arrays(
        [np.random.default_rng(m).normal(size=(200, m + 1)) for m in range(3)], np.arange(200) % 3
    ),
    "imnist": lambda path: ab.streams.imnist(seed=1, clients=3, digits=few_digits()),
    "table": lambda path: ab.streams.table(path, label="first", split=2, classes=2),
    "table by names": lambda path: ab.streams.table(path, label="label", split=[["a", "e"], ["b"], ["c", "d"]]),
    "susy": lambda path: ab.streams.susy(path.with_name("SUSY.csv")),
    "higgs": lambda path: ab.streams.higgs(path.with_name("HIGGS.csv.gz")),
    "drift": lambda path: ab.streams.Drift(ab.streams.imnist(seed=1, clients=3, digits=few_digits()), every=20),
    "a person's own": lambda path: Larger(),
    "drift of a person's own": lambda path: ab.streams.Drift(Larger(), every=10, seed=2),
}
UPDATES = [ab.OGD(), ab.DLR(4, 0.8), ab.DLR(4, 0.8, client_window=False), ab.SLR(3), Momentum(0.9), Sign(4, 0.8)]
RECORD = np.random.default_rng(3).random((200, 3)) < 0.5
ACTIVATIONS = [ab.Full(), ab.Random(0.4), ab.Event(0.1), ab.Fixed(1), ab.Recorded(RECORD), EveryOther()]


def read(stream, rounds):
    """The first rounds, whatever the blocks."""
    rows = []
    for block in stream.blocks():
        rows += [(x.copy(), int(label)) for x, label in zip(block.x, block.y, strict=True)]
        if len(rows) >= rounds:
            break
    return np.array([x for x, _ in rows[:rounds]]), np.array([label for _, label in rows[:rounds]])


@pytest.mark.parametrize("name", STREAMS)
class TestStream:
    def test_it_says_what_it_gives(self, name, table_file):
        stream = STREAMS[name](table_file)
        x, y = read(stream, ROUNDS)
        assert x.shape == (ROUNDS, sum(stream.widths))
        assert np.isfinite(x).all()
        assert y.min() >= 0
        assert y.max() < stream.classes

    def test_it_gives_the_same_samples_each_time(self, name, table_file):
        stream = STREAMS[name](table_file)
        first, again, anew = read(stream, ROUNDS), read(stream, ROUNDS), read(STREAMS[name](table_file), ROUNDS)
        for other in (again, anew):
            np.testing.assert_array_equal(first[0], other[0])
            np.testing.assert_array_equal(first[1], other[1])

    def test_it_goes_on_when_it_is_endless(self, name, table_file):
        stream = STREAMS[name](table_file)
        blocks = sum(1 for _ in islice(stream.blocks(), 50))
        assert blocks == 50 or not stream.endless

    def test_its_description_is_json(self, name, table_file):
        described = STREAMS[name](table_file).describe()
        assert json.loads(json.dumps(described, allow_nan=False)) == described
        assert described["name"]


def small_model(widths, classes):
    shapes, key = [*[(width, 3) for width in widths], (3 * len(widths), classes)], jax.random.key(0)
    *clients, server = [filled(lambda shape=shape: eqx.nn.Linear(*shape, key=key), i) for i, shape in enumerate(shapes)]
    return ab.SplitModel(clients, server)


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_every_update_trains_under_every_activation(update):
    stream = STREAMS["arrays"](None)
    model = small_model(stream.widths, stream.classes)
    x, _ = read(stream, ROUNDS)
    for activation in ACTIVATIONS:
        options = {"update": update, "activation": activation, "learning_rate": 0.05, "rounds": ROUNDS}
        result = ab.simulate(model, stream, chunk=50, **options)
        assert bits(ab.simulate(model, stream, chunk=50, **options).model) == bits(result.model) != bits(model)
        mask = activation.mask(0, 0, x.astype(np.float32), stream.widths)
        np.testing.assert_allclose(result.activation_rate, mask.mean(axis=0), err_msg=repr(activation))


def test_an_update_of_ones_own_is_given_what_the_others_are():
    class Gradient(Update):
        def init_window(self, gradient, *, server):
            return None

        def smooth(self, window, gradient, t):
            return None, gradient

    class Plain(ab.DLR):
        def smooth(self, window, gradient, t):
            return super().smooth(window, gradient, t)

    stream = STREAMS["arrays"](None)
    model = small_model(stream.widths, stream.classes)

    def trained(update):
        return bits(ab.simulate(model, stream, update=update, activation=ab.Random(0.5), chunk=50).model)

    assert trained(Gradient()) == trained(ab.OGD())
    assert trained(Plain(4, 0.8)) == trained(Frugal(4, 0.8)) == trained(ab.DLR(4, 0.8))
    assert (Plain.outer_products, Frugal.outer_products) == (False, True)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda w, g: g, r"(?s:.*), but \(window, direction\) is needed"),
        (lambda w, g: (w, jax.tree.map(lambda a: a.sum(), g)), r"a direction .* than the gradient: .*float32\[\] for "),
        (
            lambda w, g: (jax.tree.map(lambda a: a.astype("int32"), w), g),
            r"a window .* the one of init_window: .*int32",
        ),
        (lambda w, g: (None, g), "a window of other shapes or types than the one of init_window: 0 arrays for 2"),
    ],
)
def test_an_update_that_returns_something_else_is_named(returned, words):
    class Wrong(Update):
        def init_window(self, gradient, *, server):
            return gradient

        def smooth(self, window, gradient, t):
            return returned(window, gradient)

    stream = STREAMS["arrays"](None)
    with pytest.raises(ab.ConfigError, match="update Wrong: smooth returns " + words):
        ab.simulate(small_model(stream.widths, stream.classes), stream, update=Wrong())


@pytest.mark.parametrize("activation", [each for each in ACTIVATIONS if not isinstance(each, ab.Fixed)], ids=repr)
def test_every_client_decides_alone_what_the_mask_says(activation):
    stream = STREAMS["arrays"](None)
    x, _ = read(stream, ROUNDS)
    x, starts = x.astype(np.float32), np.cumsum([0, *stream.widths])
    mask = activation.mask(3, 7, x, stream.widths)
    for m in range(3):
        own = [activation.decide(3, m + 1, 7 + i, x[i, starts[m] : starts[m + 1]]) for i in range(0, ROUNDS, 11)]
        np.testing.assert_array_equal(mask[::11, m], own)


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_trains(name, table_file):
    stream = STREAMS[name](table_file)
    model = small_model(stream.widths, stream.classes)
    result = ab.simulate(model, stream, update=ab.DLR(4, 0.8), activation=ab.Random(0.5), rounds=ROUNDS)
    assert result.rounds == ROUNDS
    assert bits(result.model) != bits(model)


PUBLIC = (
    "Activation AnabranchError ConfigError DLR DataError Delay Detect Diverged Event Fixed Full GeometricDelay "
    "Interrupted ModelError OGD OnlineVFL OutputError Progress Random Recorded Result SLR SplitModel SweepResult "
    "UniformDelay Update models run_sweep save simulate streams"
)
PUBLIC_STREAMS = (
    "Arrays Block Column Digits DigitsNotice Drift IMnist Stream Table from_arrays higgs imnist load_digits "
    "make_digits split_widths susy table"
)
PUBLIC_MODELS = "Dense MLP SplitModel higgs imnist linear mlp susy"
PUBLIC_NET = "Client Credentials Expected Last LocalBroker Mean Round Server Skip Step Wait Zero event_name"


def test_the_public_names():
    modules = (ab, PUBLIC), (ab.streams, PUBLIC_STREAMS), (ab.models, PUBLIC_MODELS), (anabranch.net, PUBLIC_NET)
    for module, names in modules:
        assert sorted(module.__all__) == sorted(names.split())
        assert all(getattr(module, name) is not None for name in module.__all__)
    assert sorted(dir(ab)) == sorted(ab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'simulator'"):
        _ = ab.simulator
