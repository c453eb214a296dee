"""The party functions: alone they give the simulator's bits, and their derivatives are the true ones."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import anabranch as ab
from anabranch.core.compiling import compiled
from anabranch.core.gradients import Outer, dense, forward, is_outer
from anabranch.core.layers import MLP, Dense
from anabranch.core.party import TROUBLES, Rule, client_step, encode, init_client, init_server, server_step
from problems import Plain, bits, filled, small_problem

ENCODE, SERVER_STEP, CLIENT_STEP = map(compiled, (encode, server_step, client_step))
INIT_CLIENT, INIT_SERVER = map(compiled, (init_client, init_server))  # by themselves they compile one for each array


class Alone:
    """A federation of separately jitted party functions, as its processes will call them."""

    def __init__(self, model, widths, update, learning_rate):
        self.rule = Rule(jax.tree.map(np.asarray, update), None, jnp.dtype("float32"))
        self.rate = jnp.asarray(learning_rate, jnp.float32)  # of the next round
        groups = [group for group in model.layout(widths) for _ in range(group.size)]
        self.features = np.cumsum([0, *widths])
        self.elements = np.cumsum([0, *(group.embedding for group in groups)])
        self.clients = [
            INIT_CLIENT(self.rule, client, np.zeros(width, np.float32), self.rate)
            for client, width in zip(model.clients, widths, strict=True)
        ]
        self.server = INIT_SERVER(self.rule, model.server, np.zeros(self.elements[-1], np.float32), self.rate)

    def play(self, x, label, active, t):
        t = jnp.asarray(t, jnp.int32)
        sent = []
        for m, client in enumerate(self.clients):
            features = jnp.asarray(x[self.features[m] : self.features[m + 1]])
            self.clients[m], embedding, pullback = ENCODE(self.rule, client, features, t)
            sent.append((np.asarray(embedding), pullback))
        embeddings = jnp.asarray(np.concatenate([embedding for embedding, _ in sent], axis=-1))
        label = jnp.asarray(label, jnp.int32)
        self.server, outcome = SERVER_STEP(self.rule, self.server, embeddings, label, self.rate, t)
        derivatives = np.asarray(outcome.derivatives)
        for m, client in enumerate(self.clients):
            v = derivatives[..., self.elements[m] : self.elements[m + 1]]
            v = jnp.asarray(v if active[m] else np.zeros_like(v))  # a passive client never sees its derivative
            self.clients[m] = CLIENT_STEP(self.rule, client, sent[m][1], v, self.rate, t, jnp.asarray(bool(active[m])))
        return outcome

    def model(self):
        return ab.SplitModel([client.model for client in self.clients], self.server.model)


MODELS = {
    "5 uneven": (lambda: ab.models.imnist(5), (157, 157, 157, 157, 156)),
    "deep": (ab.models.susy, (9, 9)),
}


@pytest.mark.parametrize(
    ("model", "update", "power"),
    [
        ("5 uneven", ab.OGD(), 0.0),
        ("5 uneven", ab.OGD(), 0.5),
        ("5 uneven", ab.DLR(10, 0.95), 0.0),
        ("5 uneven", ab.DLR(10, 0.95), 0.5),
        ("5 uneven", ab.DLR(10, 0.95, client_window=False), 0.0),
        ("5 uneven", ab.SLR(5), 0.0),
        ("deep", ab.DLR(10, 0.95), 0.0),
        ("deep", ab.DLR(10, 0.95, client_window=False), 0.0),  # its clients are those of OGD
        ("deep", ab.SLR(5), 0.0),
    ],
    ids=str,
)
def test_separate_parties_give_the_bits_of_the_simulator(model, update, power):
    """Whether the rate stays or falls."""
    make, widths = MODELS[model]
    rng, model = np.random.default_rng(0), make()
    rounds, classes = 40, model.classes(model.layout(widths))
    xs = [rng.normal(size=(rounds, width)).astype(np.float32) for width in widths]
    y = rng.integers(0, classes, rounds)
    active = rng.random((rounds, len(widths))) < 0.5
    simulated = ab.simulate(
        model,
        ab.streams.from_arrays(xs, y, classes=classes),
        update=update,
        activation=ab.Recorded(active),
        learning_rate=0.03,
        learning_rate_power=power,
        keep_errors=True,
    )
    parties, predictions = Alone(model, widths, update, 0.03), []
    for t in range(rounds):
        parties.rate = jnp.asarray(0.03 * (t + 1) ** -power, jnp.float32)
        predictions.append(int(parties.play(np.concatenate([x[t] for x in xs]), y[t], active[t], t).prediction))
    np.testing.assert_array_equal(simulated.errors, predictions != y)
    assert bits(parties.model()) == bits(simulated.model)


def test_the_server_predicts_before_it_learns():
    model, stream, active = small_problem()
    block = next(stream.blocks())
    parties = Alone(model, stream.widths, ab.OGD(), 0.5)
    for t in range(20):
        now = parties.model()(jnp.asarray(block.x[t]), stream.widths).argmax()
        assert parties.play(block.x[t], block.y[t], active[t], t).prediction == now


def test_derivatives_match_finite_differences():
    with jax.enable_x64(True):
        server = MLP([6, 5, 3], relu_last=False, key=jax.random.key(1))
        rule = Rule(jax.tree.map(np.asarray, ab.OGD()), None, jnp.dtype("float64"))
        h = np.random.default_rng(2).normal(size=6)
        label = jnp.asarray(1, jnp.int32)
        rate, t = jnp.asarray(0.0), jnp.asarray(0, jnp.int32)
        party = INIT_SERVER(rule, server, h, rate)
        _, outcome = SERVER_STEP(rule, party, jnp.asarray(h), label, rate, t)

        @jax.jit
        def loss(h):
            return -jax.nn.log_softmax(server(h))[1]

        for i, step in enumerate(1e-6 * np.eye(6)):
            numeric = (loss(h + step) - loss(h - step)) / 2e-6
            np.testing.assert_allclose(outcome.derivatives[i], numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("update", "rounds", "share"),
    [
        (ab.OGD(), 1, 1.0),
        (ab.DLR(3, 0.5), 1, 1 / 1.75),
        (ab.DLR(3, 0.5, client_window=False), 1, 1 / 1.75),
        (ab.SLR(3), 3, 1 / 3),
    ],
    ids=repr,
)
def test_steps_follow_finite_differences_of_the_loss(update, rounds, share):
    """Of every parameter: the last step is minus the rate times the numeric gradient, summed over the window."""
    rng, rate = np.random.default_rng(0), 0.01
    xs, y = [rng.normal(size=(rounds, width)) for width in (3, 2)], rng.integers(0, 3, rounds)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 3)
        clients = [MLP([3, 4, 2], relu_last=True, key=keys[0]), MLP([2, 3], relu_last=False, key=keys[1])]
        model = ab.SplitModel(clients, MLP([5, 4, 3], relu_last=False, key=keys[2]))
        options = {"update": update, "learning_rate": rate, "wire_dtype": "float64"}
        stream = ab.streams.from_arrays(xs, y, classes=3)
        before = ab.simulate(model, stream, rounds=rounds - 1, **options).model if rounds > 1 else model
        after = ab.simulate(model, stream, rounds=rounds, **options).model.to_arrays()
        start = before.to_arrays()

        @jax.jit
        def loss(arrays):
            trained, rest = eqx.partition(before, eqx.is_inexact_array)
            whole = eqx.combine(jax.tree.unflatten(jax.tree.structure(trained), arrays), rest)
            rows = jnp.asarray(np.concatenate(xs, axis=1))
            return sum(-jax.nn.log_softmax(whole(rows[t], (3, 2)))[y[t]] for t in range(rounds))

        for i, (name, array) in enumerate(start.items()):
            arrays = list(start.values())
            for index in np.ndindex(array.shape):
                losses = []
                for sign in (1, -1):
                    moved = array.copy()
                    moved[index] += sign * 1e-6
                    losses.append(loss([*arrays[:i], moved, *arrays[i + 1 :]]))
                expected = array[index] - rate * share * (losses[0] - losses[1]) / 2e-6
                np.testing.assert_allclose(after[name][index], expected, rtol=0, atol=1e-9, err_msg=name)


def test_a_loss_that_is_not_finite_moves_nothing_at_the_server():
    model, _, _ = small_problem()
    rule = Rule(jax.tree.map(np.asarray, ab.DLR(3, 0.5)), None, jnp.dtype("float32"))
    rate, t, label = jnp.asarray(0.1), jnp.asarray(0, jnp.int32), jnp.asarray(0, jnp.int32)
    width = model.server.layers[0].weight.shape[0]
    server = INIT_SERVER(rule, model.server, np.zeros(width, np.float32), rate)
    after, outcome = SERVER_STEP(rule, server, jnp.asarray(np.full(width, np.inf, np.float32)), label, rate, t)
    assert TROUBLES[int(outcome.trouble)] == "embedding"
    assert bits(ab.SplitModel(model.clients, after.model)) == bits(model)


def module(apply, **parts):
    """A module that calls ``apply(parts, x)``."""

    class Own(eqx.Module):
        parts: dict

        def __call__(self, x):
            return apply(self.parts, x)

    return Own(parts)


def frozen(layer):
    arrays, rest = eqx.partition(layer, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


@cache
def key():
    return jax.random.key(0)


@cache
def linear():
    return eqx.nn.Linear(4, 4, key=key())


# Modules that use their matrices in every way that may be mistaken for one product with a vector, and the number of
# their gradients that are outer products. None is made before a test needs it, since every process that runs tests
# would make them all.
MODULES = {
    "own layers": (lambda: MLP([4, 6, 4], relu_last=True, key=key()), 2),
    "equinox's": (lambda: eqx.nn.MLP(4, 4, 8, 2, key=key()), 3),
    "with a norm": (
        lambda: eqx.nn.Sequential([eqx.nn.Linear(4, 4, use_bias=False, key=key()), eqx.nn.LayerNorm(4)]),
        1,
    ),
    "a product": (lambda: module(lambda p, x: x @ p["w"], w=jnp.ones((4, 4))), 1),
    "no product": (lambda: Plain([jnp.ones((4, 4))], [jnp.ones(4)], False), 0),
    "bias used twice": (lambda: module(lambda p, x: p["l"](x) + p["l"].bias, l=linear()), 1),
    "used twice": (lambda: module(lambda p, x: p["l"](jnp.tanh(p["l"](x))), l=linear()), 0),
    "also returned": (lambda: module(lambda p, x: p["l"](x) * p["l"].weight.sum(), l=linear()), 0),
    "transposed": (lambda: module(lambda p, x: x @ p["l"].weight.T, l=linear()), 0),
    "frozen": (lambda: module(lambda p, x: p["free"](frozen(p["l"])(x)), l=linear(), free=Dense(4, 4, key=key())), 1),
    "scaled": (lambda: module(lambda p, x: jax.tree.map(lambda a: 2 * a, p["l"])(x), l=linear()), 0),
    "vmapped": (lambda: module(lambda p, x: jax.vmap(p["l"])(jnp.stack([x, 2 * x])).sum(axis=0), l=linear()), 0),
    "jitted": (lambda: module(lambda p, x: eqx.filter_jit(p["l"])(x), l=linear()), 0),
    "checkpointed": (lambda: module(lambda p, x: eqx.filter_checkpoint(p["l"])(x), l=linear()), 0),
    "in a branch": (
        lambda: module(lambda p, x: jax.lax.cond(x[0] > 0, lambda x: p["l"](x), jnp.tanh, x), l=linear()),
        0,
    ),
    "in a loop": (
        lambda: module(lambda p, x: jax.lax.scan(lambda c, _: (p["l"](c), None), x, length=3)[0], l=linear()),
        0,
    ),
    "attention": (
        lambda: module(
            lambda p, x: p["a"](*[x.reshape(2, 2)] * 3).ravel(), a=eqx.nn.MultiheadAttention(1, 2, key=key())
        ),
        0,
    ),
}


@eqx.filter_jit
def by_jax(own, x, v):
    """What the module gives, and the gradients of the module and of ``x``."""
    return own(x), eqx.filter_grad(lambda mx: jnp.vdot(v, mx[0](mx[1])))((own, x))


@pytest.mark.parametrize(("own", "pairs"), MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("around", [lambda f: f, eqx.filter_jit], ids=["traced", "jitted"])
def test_gradients_are_outer_products_where_they_can_be_and_right_everywhere(own, pairs, around):
    own, (x, v) = own(), map(jnp.asarray, np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32))
    output, pullback = around(lambda own, x: forward(own, x, input_derivative=True))(own, x)
    gradient, derivative = around(lambda pullback, v: pullback(v))(pullback, v)
    assert sum(map(is_outer, jax.tree.leaves(gradient, is_leaf=is_outer))) == pairs
    expected_output, (expected, expected_derivative) = by_jax(own, x, v)
    np.testing.assert_allclose(output, expected_output, rtol=1e-6)
    gradient = eqx.filter_jit(dense)(gradient)
    assert jax.tree.structure(gradient) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(derivative, expected_derivative, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vmapped", "jitted", "frozen", "in a branch", "attention"])
def test_any_module_trains(name):
    own = MODULES[name][0]()
    stream = ab.streams.from_arrays([np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)], [0, 1] * 20)
    model = ab.SplitModel([own], eqx.nn.Linear(4, 2, key=key()))
    trained = ab.simulate(model, stream, update=ab.DLR(3, 0.5), learning_rate=0.1).model
    changed = {key for key, array in trained.to_arrays().items() if (array != model.to_arrays()[key]).any()}
    still = {key for key in model.to_arrays() if name == "frozen" and ".l." in key}
    assert changed == set(model.to_arrays()) - still


def test_a_window_of_samples_gives_the_sum_of_their_gradients():
    module = MLP([4, 6, 3], relu_last=False, key=key())
    rng = np.random.default_rng(1)
    rows, v = (rng.normal(size=(5, width)).astype(np.float32) for width in (4, 3))
    gradient = eqx.filter_jit(lambda module, x, v: forward(module, x)[1](v)[0])
    each = [gradient(module, jnp.asarray(row), jnp.asarray(delta)) for row, delta in zip(rows, v, strict=True)]
    summed = jax.tree.map(lambda *leaves: sum(map(np.asarray, leaves)), *map(eqx.filter_jit(dense), each))
    together = gradient(module, jnp.asarray(rows), jnp.asarray(v))
    for got, want in zip(jax.tree.leaves(together), jax.tree.leaves(summed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_window_keeps_pairs_of_vectors_and_not_matrices():
    rule = Rule(jax.tree.map(np.asarray, ab.DLR(7, 0.5)), None, jnp.dtype("float32"))
    client = init_client(rule, MLP([9, 8], relu_last=True, key=key()), jnp.zeros(9), jnp.asarray(0.1))
    weight = client.window.ring.layers[0].weight
    assert isinstance(weight, Outer)
    assert (weight.rows.shape, weight.columns.shape) == ((8, 9), (8, 8))


@pytest.mark.parametrize("length", [2, 10])
def test_a_window_of_samples_is_one_product_for_each_matrix(length: int) -> None:
    """And not ``length`` small ones, of which SLR would be made of otherwise."""
    mlp = filled(lambda: MLP([3, 4, 2], relu_last=True, key=jax.random.key(0)))

    def both_ways(rows):
        output, pullback = forward(mlp, rows, input_derivative=True)
        return pullback(output)

    names = [*_primitives(jax.make_jaxpr(both_ways)(jax.ShapeDtypeStruct((length, 3), jnp.float32)).jaxpr)]
    assert not {"scan", "while", "map"} & {*names}
    # Of each of the two: forward, the gradient of the matrix, the derivative with respect to what went in.
    assert names.count("dot_general") == 2 * 3


def _primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _primitives(inner)
