"""Who is activated: what a client decides alone is what the simulator decides for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab

WIDTHS = (3, 1, 4, 2)
X = np.random.default_rng(0).normal(size=(200, sum(WIDTHS))).astype(np.float32)
STARTS = np.cumsum([0, *WIDTHS])
RECORD = np.random.default_rng(1).random((300, 4)) < 0.3

ALONE = [ab.Full(), ab.Random(0.3), ab.Random([0.1, 0.4, 0.6, 0.9]), ab.Event(0.2), ab.Recorded(RECORD)]


@pytest.mark.parametrize("activation", ALONE, ids=repr)
@pytest.mark.parametrize("seed", [0, 7])
def test_each_client_decides_alone_what_the_mask_says(activation, seed):
    mask = np.asarray(activation.mask(seed, 50, X, WIDTHS))
    assert mask.shape == (200, 4)
    for m in range(4):
        own = [activation.decide(seed, m + 1, 50 + i, X[i, STARTS[m] : STARTS[m + 1]]) for i in range(0, 200, 7)]
        np.testing.assert_array_equal(mask[::7, m], own)


@pytest.mark.parametrize("activation", [*ALONE, ab.Fixed(2)], ids=repr)
def test_rounds_asked_for_together_or_apart_are_the_same(activation):
    together = np.asarray(activation.mask(3, 10, X[:40], WIDTHS))
    apart = [np.asarray(activation.mask(3, 10 + i, X[i : i + 1], WIDTHS))[0] for i in range(40)]
    np.testing.assert_array_equal(together, apart)


def test_event_means_are_those_of_the_paper():
    mask = ab.Event(0.1).mask(0, 0, X, WIDTHS)
    expected = [[X[i, a:b].astype(float).mean() > 0.1 for a, b in itertools.pairwise(STARTS)] for i in range(200)]
    np.testing.assert_array_equal(mask, expected)


def test_a_thousand_features_activate_alike_alone_and_together():
    x = np.random.default_rng(2).normal(size=(500, 1500)).astype(np.float32)
    mask = ab.Event(0.0).mask(0, 0, x, (700, 800))
    alone = [
        [ab.Event(0.0).decide(0, m + 1, i, x[i, s]) for m, s in enumerate((slice(700), slice(700, None)))]
        for i in range(500)
    ]
    np.testing.assert_array_equal(mask, alone)


@settings(max_examples=5, deadline=None)
@given(p=st.tuples(*[st.floats(0, 1)] * 3), seed=st.integers(0, 2**31 - 1))
def test_random_activates_each_client_with_its_probability(p, seed):
    rates = np.asarray(ab.Random(p).mask(seed, 0, np.zeros((20_000, 3)), (1, 1, 1))).mean(axis=0)
    np.testing.assert_allclose(rates, p, atol=0.02)  # more than five standard deviations


def test_random_clients_are_independent_of_each_other_and_of_time():
    mask = np.asarray(ab.Random(0.5).mask(0, 0, np.zeros((20_000, 4)), (1,) * 4)).astype(float)
    together = np.corrcoef(np.concatenate([mask[1:], mask[:-1]], axis=1).T)
    np.testing.assert_allclose(together - np.eye(8), 0, atol=0.04)


@pytest.mark.parametrize("k", range(5))
def test_fixed_activates_k_clients_uniformly(k):
    mask = np.asarray(ab.Fixed(k).mask(0, 0, np.zeros((8000, 4)), (1,) * 4))
    assert (mask.sum(axis=1) == k).all()
    np.testing.assert_allclose(mask.mean(axis=0), k / 4, atol=0.03)


def test_only_the_server_draws_fixed():
    with pytest.raises(ab.ConfigError, match="the server draws"):
        ab.Fixed(2).decide(0, 1, 0, X[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ab.Random(1.5), "p is 1.5, but a probability lies in"),
        (lambda: ab.Random(-0.1), "p is -0.1"),
        (lambda: ab.Random(float("nan")), "p is nan"),
        (lambda: ab.Random([0.5, 2]), "p is 2"),
        (lambda: ab.Random("often"), "p is 'often'"),
        (lambda: ab.Event(float("nan")), "threshold is nan"),
        (lambda: ab.Event("high"), "threshold is 'high'"),
        (lambda: ab.Fixed(-1), "k is -1"),
        (lambda: ab.Fixed(1.5), "k is 1.5"),
        (lambda: ab.Recorded([True, False]), r"shape \(2,\)"),
        (lambda: ab.Recorded([[0, 2]]), "true and false"),
    ],
)
def test_what_is_out_of_range_is_named(make, message):
    with pytest.raises(ab.ConfigError, match=message):
        make()
