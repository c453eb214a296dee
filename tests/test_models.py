"""Split models: the paper's shapes, initial parameters, and arrays out and in again."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch.core.gradients import Outer, forward
from problems import bits


@pytest.mark.parametrize(
    ("clients", "widths"), [(4, [196] * 4), (8, [98] * 8), (16, [49] * 16), (5, [157, 157, 157, 157, 156]), (1, [784])]
)
def test_imnist_has_the_papers_shapes(clients, widths):
    model = ab.models.imnist(clients=clients)
    arrays = model.to_arrays()
    for m, width in enumerate(widths):
        assert arrays[f"client{m + 1}.layers.0.weight"].shape == (width, 64)
    assert arrays["server.layers.0.weight"].shape == (64 * clients, 256)
    assert arrays["server.layers.1.weight"].shape == (256, 10)
    assert all(client.relu_last for client in model.clients)
    assert model.classes(model.layout(widths)) == 10
    assert sum(group.size for group in model.layout(widths)) == clients
    assert len(model.layout(widths)) == len(set(widths))  # equal clients are computed together


@pytest.mark.parametrize(("make", "width"), [(ab.models.susy, 9), (ab.models.higgs, 14)])
def test_susy_and_higgs_have_the_papers_shapes(make, width):
    arrays = make().to_arrays()
    client = [arrays[f"client2.layers.{i}.weight"].shape for i in range(4)]
    server = [arrays[f"server.layers.{i}.weight"].shape for i in range(5)]
    assert client == [(width, 32), (32, 64), (64, 98), (98, 128)]
    assert server == [(256, 256), (256, 128), (128, 64), (64, 32), (32, 2)]
    assert not make().clients[0].relu_last


def test_initial_parameters_are_uniform_by_fan_in_and_each_partys_own():
    model = ab.models.imnist(clients=4, seed=1)
    weight = np.concatenate([client.layers[0].weight.ravel() for client in model.clients])
    bound = 196**-0.5
    assert np.abs(weight).max() <= bound
    assert np.abs(weight).max() > 0.999 * bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)
    first, second = (np.asarray(client.layers[0].weight) for client in model.clients[:2])
    assert (first != second).any()
    # A party draws from its own key: the number of other clients changes nothing for it.
    again = ab.models.imnist(clients=4, seed=1)
    assert bits(again) == bits(model) != bits(ab.models.imnist(clients=4, seed=2))
    wide = ab.models.susy(seed=3)
    assert bits(wide)["client1.layers.1.bias"] == bits(ab.models.higgs(seed=3))["client1.layers.1.bias"]


@pytest.mark.parametrize("clients", [0, 785, 2.0, True, "4"])
def test_a_number_of_clients_out_of_range_is_named(clients):
    with pytest.raises(ab.ConfigError, match=f"clients is {clients!r}"):
        ab.models.imnist(clients=clients)


def own_model():
    keys = jax.random.split(jax.random.key(0), 3)
    return ab.SplitModel(
        clients=[eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.MLP(2, 4, 8, 1, key=keys[1])],
        server=eqx.nn.Sequential([eqx.nn.LayerNorm(8), eqx.nn.Linear(8, 2, use_bias=False, key=keys[2])]),
    )


def test_arrays_go_out_and_in_again():
    model = own_model()
    arrays = model.to_arrays()
    assert arrays["client1.weight"].shape == (3, 4)  # (in, out), though Equinox keeps (out, in)
    np.testing.assert_array_equal(arrays["client1.weight"], np.asarray(model.clients[0].weight).T)
    assert arrays["client2.layers.0.weight"].shape == (2, 8)
    assert arrays["server.layers.1.weight"].shape == (8, 2)
    changed = {name: array + 1 for name, array in arrays.items()}
    back = model.with_arrays(changed)
    for name, array in back.to_arrays().items():
        np.testing.assert_array_equal(array, changed[name])
    np.testing.assert_array_equal(back.clients[0].weight, model.clients[0].weight + 1)
    assert bits(model) == bits(model.with_arrays(arrays))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("client1.bias"), "array 'client1.bias' is missing"),
        (
            lambda a: a.update({"client1.bais": a["client1.bias"]}),
            "no array 'client1.bais'.*Did you mean 'client1.bias'",
        ),
        (
            lambda a: a.update({"client1.bias": np.zeros(9)}),
            r"'client1.bias' has shape \(9,\), but the model's has \(4,\)",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(change, message):
    arrays = own_model().to_arrays()
    change(arrays)
    with pytest.raises(ab.ModelError, match=message):
        own_model().with_arrays(arrays)


def test_parts_that_are_no_models_are_named():
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(ab.ModelError, match="at least one client"):
        ab.SplitModel([], linear)
    with pytest.raises(ab.ModelError, match="client 2: function is not a callable Equinox module"):
        ab.SplitModel([linear, lambda x: x], linear)
    with pytest.raises(ab.ModelError, match="server: Lambda holds no floating-point array"):
        ab.SplitModel([linear], eqx.nn.Lambda(jnp.tanh))


def test_an_output_that_is_no_vector_is_named():
    class Scalar(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return (self.weight * x).sum()

    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(ab.ModelError, match=r"client 1: the model returns .* but a vector is needed"):
        ab.SplitModel([Scalar(jnp.ones(2))], linear).layout((2,))


def test_the_whole_model_is_its_parts():
    model = ab.models.imnist(clients=5)
    x = jax.random.normal(jax.random.key(0), (784,))
    logits = model(x, [157, 157, 157, 157, 156])
    h = np.concatenate(
        [
            np.maximum(x[m * 157 : (m + 1) * 157] @ c.layers[0].weight + c.layers[0].bias, 0)
            for m, c in enumerate(model.clients)
        ]
    )
    hidden = np.maximum(h @ model.server.layers[0].weight + model.server.layers[0].bias, 0)
    np.testing.assert_allclose(
        logits, hidden @ model.server.layers[1].weight + model.server.layers[1].bias, rtol=1e-4, atol=1e-5
    )


def test_the_linear_model_is_logistic_regression():
    rng, rate = np.random.default_rng(0), 0.1
    x, y, widths = rng.normal(size=(50, 5)), rng.integers(0, 3, 50), (2, 2, 1)
    weight, bias, predictions = np.zeros((5, 3)), np.zeros(3), []
    for x_t, y_t in zip(x, y, strict=True):
        logits = x_t @ weight + bias
        predictions.append(logits.argmax())
        delta = np.exp(logits) / np.exp(logits).sum() - np.eye(3)[y_t]
        weight, bias = weight - rate * np.outer(x_t, delta), bias - rate * delta
    with jax.enable_x64(True):
        model = ab.models.linear(widths, 3)
        assert all((array == 0).all() for array in model.to_arrays().values())
        stream = ab.streams.from_arrays(np.split(x, [2, 4], axis=1), y, classes=3)
        options = {"update": ab.OGD(), "learning_rate": rate, "wire_dtype": "float64", "keep_errors": True}
        result = ab.simulate(model, stream, **options)
    arrays = result.model.to_arrays()
    np.testing.assert_array_equal(result.predictions, predictions)
    np.testing.assert_allclose(np.concatenate([arrays[f"client{m}.weight"] for m in (1, 2, 3)]), weight, rtol=1e-10)
    np.testing.assert_allclose(arrays["server.bias"], bias, rtol=1e-10)


def test_the_linear_models_clients_have_outer_products_for_gradients():
    _, pullback = forward(ab.models.linear((4,), 3).clients[0], jnp.ones(4))
    assert isinstance(pullback(jnp.ones(3))[0].weight, Outer)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((), 2), ab.ModelError, "widths is empty"),
        (((3, 0), 2), ab.ConfigError, "widths is 0"),
        (((3,), 0), ab.ConfigError, "classes is 0"),
    ],
)
def test_a_size_that_is_none_is_named(arguments, error, message):
    for make in (ab.models.linear, ab.models.mlp):
        with pytest.raises(error, match=message):
            make(*arguments)


X = np.random.default_rng(0).normal(size=(7, 5))


def test_a_model_takes_one_sample_or_a_batch_side_by_side_or_by_clients():
    model = ab.models.mlp((3, 2), 4, hidden=[6], embedding=3, server=[5])
    rows = np.stack([model(row) for row in X])
    assert rows.shape == (7, 4)
    for given in (X, [X[:, :3], X[:, 3:]], (X[:, :3].tolist(), X[:, 3:]), X.astype(np.float32)):
        np.testing.assert_allclose(model(given), rows, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model([X[0, :3], X[0, 3:]]), rows[0])
    np.testing.assert_array_equal(model(X[0].tolist()), rows[0])
    odds = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), odds, rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X[0]), odds[0], rtol=1e-5)
    np.testing.assert_array_equal(model.predict(X), rows.argmax(axis=1))
    assert model.predict(X[2]) == rows[2].argmax()
    assert type(model.predict(X[2])) is int


def test_a_trained_model_knows_its_split_whatever_its_clients_are():
    class Scaled(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            return self.scale * x.sum()[None]

    model = ab.SplitModel([Scaled(jnp.ones(2))] * 2, eqx.nn.Linear(4, 2, key=jax.random.key(0)))
    assert model.widths is None
    assert own_model().widths == (3, 2)
    with pytest.raises(ab.ModelError, match="does not know how many features each client holds: give a list"):
        model(X)
    np.testing.assert_allclose(model(X, widths=(3, 2)), model([X[:, :3], X[:, 3:]]), rtol=1e-6)
    stream = ab.streams.from_arrays([X[:, :3], X[:, 3:]], np.arange(7) % 2)
    result = ab.simulate(model, stream, update=ab.OGD(), chunk=7)
    np.testing.assert_array_equal(result.predict(X), result.model([X[:, :3], X[:, 3:]]).argmax(axis=1))
    np.testing.assert_array_equal(result.predict_proba(X), result.model.predict_proba(X))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:, :4], r"x has shape \(7, 4\), but the clients hold 5 features together"),
        (3.0, r"x has shape \(\), but"),
        ([X[:, :3]], "x is a list of 1, but the model has 2 clients"),
        ([X[:, :2], X[:, 2:]], r"but the clients hold \(3, 2\) features"),
        ([X[:, :3], X[0, 3:]], "all are"),
        ([X[:3, :3], X[:, 3:]], "with one n"),
    ],
)
def test_samples_that_do_not_fit_are_named(x, words):
    for use in (own_model(), own_model().predict):
        with pytest.raises(ab.ModelError, match=words):
            use(x)
