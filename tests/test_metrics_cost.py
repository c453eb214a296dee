"""Error rates and bytes against their plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.simulation import metrics
from anabranch.simulation.traffic import MB, add_rounds, no_traffic
from problems import small_problem


@settings(max_examples=50, deadline=None)
@given(data=st.data(), every=st.integers(1, 40), window=st.integers(1, 30), seed=st.integers(0, 99))
def test_the_curve_is_the_mean_of_the_last_rounds(data, every, window, seed):
    errors = np.random.default_rng(seed).random(100) < 0.3
    cuts = sorted(data.draw(st.lists(st.integers(0, 100), max_size=5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "RUN_TIME_WINDOW", window)
        tracker = metrics.Prequential(every)
        for a, b in zip([0, *cuts], [*cuts, 100], strict=True):
            tracker.push(errors[a:b])
    curve = tracker.curve()
    assert list(curve.rounds) == sorted({*range(every, 101, every), 100})
    for t, run_time, accumulated in zip(*curve, strict=True):
        np.testing.assert_allclose(run_time, errors[max(0, t - window) : t].mean())
        np.testing.assert_allclose(accumulated, errors[:t].mean())
    assert tracker.accumulated_error == errors.mean()


@settings(max_examples=50, deadline=None)
@given(data=st.data(), every=st.integers(1, 7), most=st.integers(2, 9), seed=st.integers(0, 99))
def test_a_long_curve_loses_every_second_point_and_goes_on_twice_as_coarse(data, every, most, seed):
    """Whatever the chunks and the checkpoints between them; its points are points of the whole curve."""
    errors = np.random.default_rng(seed).random(200) < 0.3
    cuts = sorted(data.draw(st.lists(st.integers(0, 200), max_size=5)))
    tracker, whole = metrics.Prequential(every), metrics.Prequential(every)
    whole.push(errors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "MOST_POINTS", most)
        for a, b in zip([0, *cuts], [*cuts, 200], strict=True):
            tracker.push(errors[a:b])
            arrays, values = tracker.state()
            tracker = metrics.Prequential(every)
            tracker.restore(arrays, values)
    kept, apart = [], every
    for t in range(every, 201, every):
        if t % apart == 0:
            kept.append(t)
        if len(kept) == most:
            kept, apart = [each for i, each in enumerate(kept) if i % 2], 2 * apart
    curve, full = tracker.curve(), whole.curve()
    assert curve.rounds.tolist() == sorted({*kept, 200})
    assert len(curve.rounds) <= most
    at = np.searchsorted(full.rounds, curve.rounds)
    for column, same in zip(curve, full, strict=True):
        np.testing.assert_array_equal(column, same[at])


def test_before_the_first_round_there_is_no_rate():
    tracker = metrics.Prequential(10)
    assert np.isnan(tracker.run_time_error)
    assert len(tracker.curve().rounds) == 0


def test_errors_are_kept_when_asked_for():
    model, stream, _ = small_problem(rounds=50)
    result = ab.simulate(model, stream, keep_errors=True)
    assert result.errors.shape == (50,)
    assert result.error_rate == result.errors.mean() == result.run_time_error
    assert ab.simulate(model, stream).errors is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("update", [ab.OGD(), ab.DLR(4, 0.5), ab.SLR(7)], ids=repr)
def test_bytes_are_those_of_the_closed_form(update, dtype):
    model, stream, active = small_problem(rounds=20)
    result = ab.simulate(model, stream, update=update, activation=ab.Recorded(active), wire_dtype=dtype)
    size = 4 if dtype == "float32" else 2
    rows = [min(t + 1, 7) if isinstance(update, ab.SLR) else 1 for t in range(20)]
    for m, client in enumerate(model.clients):
        width = client.layers[-1].bias.size
        assert result.traffic.up[m] == sum(rows) * width * size
        assert result.traffic.down[m] == sum(r for r, a in zip(rows, active[:, m], strict=True) if a) * width * size
    assert result.traffic.megabytes == result.traffic.total / 2**20


@pytest.mark.parametrize(("p", "megabytes"), [(1.0, 1953.125), (0.5, 1464.84), (0.25, 1220.70)])
def test_the_papers_megabytes_in_expectation(p, megabytes):
    # Two million rounds of 4 clients × 64 elements of 2 bytes; exactly p of each client's rounds are activated.
    traffic, rounds, block = no_traffic(4), 2_000_000, 1000
    active = np.zeros((block, 4), bool)
    active[: int(block * p)] = True
    for t in range(0, rounds, block):
        traffic = add_rounds(traffic, ab.DLR(), [64] * 4, 2, t, active)
    assert traffic.megabytes == pytest.approx(megabytes, abs=0.005)
    assert traffic.total == int(2 * 4 * 64 * rounds * (1 + p))
    assert MB == 2**20


def test_slr_costs_its_window_times_the_bytes():
    active = np.ones((1000, 4), bool)
    dlr, slr = (
        add_rounds(no_traffic(4), update, [64] * 4, 4, 100, active).total for update in (ab.DLR(10), ab.SLR(10))
    )
    assert slr == 10 * dlr


def test_client_seconds_are_multiplied_out():
    model, stream, active = small_problem(rounds=40)
    result = ab.simulate(model, stream, activation=ab.Recorded(active[:40]))
    encode, step = result.client_times
    assert (encode > 0).all()
    assert (step > 0).all()
    expected = sum(40 * encode[m] + active[:40, m].sum() * step[m] for m in range(3))
    assert result.client_seconds == pytest.approx(expected)


def test_activation_rates_are_counted():
    model, stream, active = small_problem(rounds=40)
    result = ab.simulate(model, stream, activation=ab.Recorded(active), chunk=7)
    np.testing.assert_allclose(result.activation_rate, active[:40].mean(axis=0))
