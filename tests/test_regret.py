"""The regret as it is measured in a run: every round's numbers, and that measuring changes nothing else."""

from __future__ import annotations

import json

import jax
import numpy as np
import optax
import pytest

import anabranch as ab
import reference
from anabranch.simulation import metrics
from problems import MODULES, bits, run, small_problem

ROUNDS = 40
UPDATES = {"OGD": ab.OGD(), "DLR": ab.DLR(10, 0.8), "SLR": ab.SLR(4)}
"""With windows that other tests have, whose programs are then there."""
updates = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES.keys())


def measure(problem, **kwargs):
    return run(problem, **{"measure_regret": True, "report_every": 1, **kwargs})


@pytest.mark.parametrize(("name", "path"), [("OGD", "outer"), ("DLR", "outer"), ("SLR", "outer"), ("DLR", "general")])
def test_every_round_agrees_with_the_reference(name, path):
    rng = np.random.default_rng(1)
    nets, server, xs, y = reference.random_problem(
        rng, clients=3, rounds=ROUNDS, classes=3, depth_client=2, depth_server=2
    )
    widths, make = [x.shape[1] for x in xs], MODULES[path]
    with jax.enable_x64(True):
        model = ab.SplitModel([make(net) for net in nets], make(server))
        for activation in (ab.Random(0.4), ab.Fixed(1)):
            active = activation.mask(0, 0, np.concatenate(xs, axis=1), widths)
            assert 0 < active.mean() < 1
            expected = reference.run(
                nets, server, xs, y, active, update=name, window=UPDATES[name].window, decay=0.8, learning_rate=0.1
            )
            regret = measure(
                (model, ab.streams.from_arrays(xs, y, classes=3), None),
                activation=activation, update=UPDATES[name], wire_dtype="float64",
            ).regret  # fmt: skip
            np.testing.assert_array_equal(regret.rounds, np.arange(1, ROUNDS + 1))
            for got, want in (
                (regret.loss, expected.losses),
                (regret.ideal, expected.ideal),
                (regret.applied, expected.applied),
            ):
                np.testing.assert_allclose(np.diff(got, prepend=0), want, rtol=1e-9)
            assert regret.largest_gradient == pytest.approx(np.sqrt(expected.gradient.max()))
            assert regret.mean_squared_gradient == pytest.approx(expected.gradient.mean())
            assert regret.largest_loss == pytest.approx(expected.losses.max())


@updates
def test_measuring_changes_no_bit_of_what_is_learnt(update):
    plain, measured = (measure(small_problem(), update=update, measure_regret=on) for on in (False, True))
    assert plain.regret is None
    assert bits(plain.model) == bits(measured.model)
    np.testing.assert_array_equal(plain.predictions, measured.predictions)


@updates
def test_where_everyone_is_activated_the_ideal_is_what_is_applied(update):
    model, stream, active = small_problem()
    everyone = measure((model, stream, None), activation=ab.Full(), update=update).regret
    np.testing.assert_array_equal(everyone.ideal, everyone.applied)
    some = measure((model, stream, active), update=update).regret
    assert (some.ideal > some.applied).all()


@updates
def test_where_nobody_is_activated_the_servers_step_alone_is_applied(update):
    model, stream, _ = small_problem()
    result = measure((model, stream, None), activation=ab.Fixed(0), update=update, rounds=1)
    before, after = model.to_arrays(), result.model.to_arrays()
    moved = sum(((before[name].astype(float) - after[name]) ** 2).sum() for name in before)
    assert result.regret.applied[0] == pytest.approx(moved / 0.1**2, rel=1e-4)
    assert result.regret.ideal[0] > result.regret.applied[0]


def test_the_chunks_change_no_bit_and_the_points_are_the_curves():
    results = [measure(small_problem(), update=UPDATES["DLR"], report_every=7, chunk=chunk) for chunk in (32, 7)]
    for result in results:
        np.testing.assert_array_equal(result.regret.rounds, result.curve.rounds)
        for got, want in zip(result.regret, results[0].regret, strict=True):
            np.testing.assert_array_equal(got, want)
    described = json.loads(json.dumps(results[0].describe()))["regret"]
    assert described == {name: np.asarray(value).tolist() for name, value in results[0].regret._asdict().items()}


def test_a_long_run_has_fewer_points_that_lie_further_apart(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_POINTS", 10)
    result = measure(small_problem(), update=UPDATES["DLR"])
    np.testing.assert_array_equal(result.regret.rounds, result.curve.rounds)
    assert result.regret.rounds.tolist() == [8, 16, 24, 32, 40, 48, 56, 60]
    monkeypatch.undo()
    whole = measure(small_problem(), update=UPDATES["DLR"]).regret
    for got, want in zip(result.regret[1:4], whole[1:4], strict=True):
        np.testing.assert_array_equal(got, want[result.regret.rounds - 1])


def test_with_optax_the_gradient_before_it_is_what_is_applied():
    plain, scaled = (
        measure(small_problem(), update=UPDATES["DLR"], learning_rate=rate, rounds=1).regret
        for rate in (0.1, optax.sgd(0.001, momentum=0.9))
    )
    assert plain.applied == scaled.applied


def test_a_round_that_diverges_is_not_counted():
    with pytest.raises(ab.Diverged) as error:
        measure(small_problem(), update=UPDATES["DLR"], learning_rate=1e12)
    result = error.value.result
    assert result.regret.rounds[-1] == result.rounds == error.value.round - 1
    assert np.isfinite(result.regret.loss).all()


def test_without_a_round_there_is_nothing():
    from anabranch.simulation.regret import RegretTally

    regret = RegretTally(10).regret()
    assert all(len(array) == 0 for array in regret[:4])
    assert all(np.isnan(number) for number in regret[4:])


def test_a_client_without_a_window_is_refused():
    with pytest.raises(ab.ConfigError, match=r"measure_regret: .* needs every client's window"):
        measure(small_problem(), update=ab.DLR(10, 0.8, client_window=False))
