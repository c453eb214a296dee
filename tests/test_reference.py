"""The package against the slow reference, which sums every window term by term and shares no code with it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import anabranch as ab
import reference
from anabranch.core.updates import ActiveDLR
from anabranch.simulation.delays import Delay
from problems import MODULES, arrays_of

ROUNDS = 200


def make_update(name, window, decay, client_window):
    return {
        "OGD": lambda: ab.OGD(),
        "DLR": lambda: ab.DLR(window, decay, client_window=client_window),
        "SLR": lambda: ab.SLR(window),
        "ActiveDLR": lambda: ActiveDLR(window, decay),
    }[name]()


def run_package(nets, server, xs, y, active, path, update, classes, learning_rate, power, **late):
    make = MODULES[path]
    model = ab.SplitModel([make(net) for net in nets], make(server))
    return ab.simulate(
        model,
        ab.streams.from_arrays(xs, y, classes=classes),
        update=update,
        activation=ab.Recorded(active),
        learning_rate=learning_rate,
        learning_rate_power=power,
        wire_dtype="float64",
        keep_errors=True,
        chunk=64,
        **late,
    )


def assert_agrees(result, expected, y):
    np.testing.assert_array_equal(result.predictions, expected.predictions)
    np.testing.assert_array_equal(result.errors, expected.predictions != y[expected.order])
    modules = [*result.model.clients, result.model.server]
    for module, net in zip(modules, [*expected.clients, expected.server], strict=True):
        ours = arrays_of_module(module)
        for got, want in zip(ours, arrays_of(net), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


def arrays_of_module(module):
    """Weights (in, out) and biases, layer by layer, whatever the module keeps them in."""
    arrays = ab.SplitModel([module], module).to_arrays()
    own = {name.removeprefix("client1."): a for name, a in arrays.items() if name.startswith("client1.")}
    if any(name.startswith("weights.") for name in own):
        count = len(own) // 2
        return [own[f"{kind}.{i}"] for i in range(count) for kind in ("weights", "biases")]
    return list(own.values())


problem = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "clients": st.integers(1, 3),
        "classes": st.integers(2, 4),
        "depth_client": st.integers(1, 3),
        "depth_server": st.integers(1, 3),
        "relu_last": st.booleans(),
        "equal": st.booleans(),
        "window": st.integers(1, 12),
        "decay": st.floats(0.05, 0.99),
        "client_window": st.booleans(),
        "share": st.sampled_from([0.0, 0.2, 0.6, 1.0]),
        "rates": st.sampled_from([(0.05, 0.05), (0.1, 0.02)]),
        "power": st.sampled_from([0.0, 0.5]),
    }
)


@pytest.mark.parametrize("path", MODULES)
@pytest.mark.parametrize("name", ["OGD", "DLR", "SLR"])
@settings(
    max_examples=4,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example compiles, and shrinking would take minutes
)
@given(case=problem)
def test_parameters_and_predictions_agree_with_the_reference(name, path, case):
    compare(name, path, case)


@settings(max_examples=3, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(case=problem)
def test_clients_that_remember_activated_rounds_only_agree_with_the_reference(case):
    compare("ActiveDLR", "outer", case | {"window": max(2, case["window"]), "client_window": True, "share": 0.4})


def test_the_regret_has_the_passive_rounds_of_clients_that_remember_activated_ones_only():
    rng = np.random.default_rng(1)
    nets, server, xs, y = reference.random_problem(rng, clients=2, rounds=60, classes=3, depth_client=1, depth_server=1)
    active = rng.random((60, 2)) < 0.4
    expected = reference.run(
        nets, server, xs, y, active, update="ActiveDLR", window=3, decay=0.8, learning_rate=0.05
    )  # fmt: skip
    with jax.enable_x64(True):
        update, options = ActiveDLR(3, 0.8), {"measure_regret": True}
        regret = run_package(nets, server, xs, y, active, "outer", update, 3, 0.05, 0.0, **options).regret
    np.testing.assert_allclose(regret.ideal[-1], expected.ideal.sum(), rtol=1e-9)
    np.testing.assert_allclose(regret.applied[-1], expected.applied.sum(), rtol=1e-9)


class Listed(Delay):
    """Delays as a list says."""

    def __init__(self, delays):
        self.delays, self.most = np.array(delays), max(delays)

    def draw(self, seed, first, n):
        given = self.delays[first : first + n]
        return np.pad(given, (0, n - len(given)))


delays = st.one_of(
    st.integers(1, 250).map(lambda delay: [delay] * ROUNDS),
    st.tuples(st.integers(0, 10_000), st.integers(1, 100)).map(
        lambda drawn: np.random.default_rng(drawn[0]).integers(0, drawn[1], ROUNDS).tolist()
    ),
    st.integers(0, 10_000).map(lambda seed: np.random.default_rng(seed).geometric(0.05, ROUNDS).tolist()),
)


@pytest.mark.parametrize(("name", "stored"), [("OGD", True), ("DLR", False), ("DLR", True), ("SLR", False)])
@settings(max_examples=3, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(case=problem, late=delays)
def test_with_late_labels_too(name, stored, case, late):
    compare(name, "outer", case, late, stored)


def compare(name, path, case, late=None, stored=False):
    rng = np.random.default_rng(case["seed"])
    nets, server, xs, y = reference.random_problem(
        rng,
        clients=case["clients"],
        rounds=ROUNDS,
        classes=case["classes"],
        depth_client=case["depth_client"],
        depth_server=case["depth_server"],
    )
    # Neighbours of one shape are computed in one product, and every other shape makes the program longer.
    like = [0] * len(nets) if case["equal"] else [0, 1, 1][: len(nets)]
    nets = [
        nets[i]._replace(
            weights=[rng.uniform(-0.5, 0.5, w.shape) for w in nets[i].weights],
            biases=[rng.uniform(-0.5, 0.5, b.shape) for b in nets[i].biases],
        )
        for i in like
    ]
    xs = [rng.normal(size=xs[i].shape) for i in like]
    width, hidden = sum(net.biases[-1].size for net in nets), server.weights[0].shape[1]
    server = server._replace(weights=[rng.uniform(-0.4, 0.4, (width, hidden)), *server.weights[1:]])
    nets = [net._replace(relu_last=case["relu_last"]) for net in nets]
    active = rng.random((ROUNDS, len(nets))) < case["share"]
    window, decay, client_window = case["window"], case["decay"], case["client_window"]
    server_rate, client_rate = case["rates"]
    expected = reference.run(
        nets, server, xs, y, active, update=name, window=window, decay=decay, client_window=client_window,
        learning_rate=(server_rate, client_rate), learning_rate_power=case["power"], delays=late, stored=stored,
    )  # fmt: skip
    options = {} if late is None else {"label_delay": Listed(late), "label_learning": "stored" if stored else "fresh"}
    with jax.enable_x64(True):
        result = run_package(
            nets, server, xs, y, active, path, make_update(name, window, decay, client_window), case["classes"],
            [server_rate] + [client_rate] * len(nets), case["power"], **options,
        )  # fmt: skip
        assert_agrees(result, expected, y)
