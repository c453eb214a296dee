"""A party's own functions: blocks of rounds against single ones, and a state that is put away and taken out again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch.core.party import TROUBLES
from anabranch.core.party_programs import (
    ClientCompute,
    Rate,
    ServerCompute,
    State,
    from_arrays,
    to_arrays,
)
from anabranch.core.party_programs.client import _client_passes
from anabranch.core.updates import cast
from anabranch.parties.api import _TellingCompute
from anabranch.simulation.loop import LearningRates
from federations import UPDATES, Setting

ROUNDS = 40
E, CLIENTS = 5, 4
BLOCK = 4
"""Programs are compiled for blocks of 1 and of 4."""


def server(update: ab.Update, block: int = 1, **options) -> ServerCompute:
    setting = Setting(update, **options)
    rate = Rate(setting.rate, setting.power)
    return ServerCompute(setting.rule, setting.model.server, E * CLIENTS, rate, block)


def client(update: ab.Update, block: int = 1, **options) -> ClientCompute:
    setting = Setting(update, **options)
    rate = Rate(setting.rate, setting.power)
    return ClientCompute(setting.rule, setting.model.clients[0], setting.widths[0], rate, block)


def embeddings(update: ab.Update, width: int = E * CLIENTS, rounds: int = ROUNDS) -> np.ndarray:
    shape = (rounds, width) if update.rows is None else (rounds, update.rows, width)
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


LABELS = np.random.default_rng(4).integers(0, 3, ROUNDS).astype(np.int32)
FEATURES = np.random.default_rng(5).normal(size=(ROUNDS, 8)).astype(np.float32)


def state(compute: ServerCompute | ClientCompute) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in compute.arrays().items()}


def at(t: int) -> np.ndarray:
    return np.array([t], np.int32)


@pytest.mark.parametrize(("update", "power"), [*((update, 0.0) for update in UPDATES), (UPDATES[1], 0.5)], ids=repr)
def test_a_block_of_the_server_is_its_rounds_one_by_one(update, power):
    alone, block = server(update, power=power), server(update, block=BLOCK, power=power)
    sent = embeddings(update)
    single = [alone.step(sent[t : t + 1], LABELS[t : t + 1]) for t in range(ROUNDS)]
    done, lengths = 0, [1, 4, 3, 4, 4, 2, 4, 4, 4, 1, 1, 1, 1, 4, 2]
    for n in lengths:
        stepped = block.step(sent[done : done + n], LABELS[done : done + n])
        assert stepped.trouble == 0
        np.testing.assert_array_equal(stepped.predictions, [each.predictions[0] for each in single[done : done + n]])
        np.testing.assert_array_equal(stepped.derivatives, [each.derivatives[0] for each in single[done : done + n]])
        done += n
    assert done == block.rounds == alone.rounds == ROUNDS
    assert state(block) == state(alone)


@pytest.mark.parametrize(("update", "power"), [*((update, 0.0) for update in UPDATES), (UPDATES[1], 0.5)], ids=repr)
def test_a_block_of_a_clients_steps_is_its_steps_one_by_one(update, power):
    alone, block = client(update, power=power), client(update, block=BLOCK, power=power)
    rounds = np.sort(np.random.default_rng(6).choice(ROUNDS, 20, replace=False)).astype(np.int32)
    v = embeddings(update, E, len(rounds)) / 10
    _, pending = zip(*[alone.encode(at(t), FEATURES[t : t + 1]) for t in rounds], strict=True)
    pending = [each[0] for each in pending]  # all of them at the first parameters, as in a block
    for i in range(len(rounds)):
        alone.step(rounds[i : i + 1], pending[i : i + 1], v[i : i + 1])
    for part in (slice(0, 4), slice(4, 5), slice(5, 8), slice(8, 12), slice(12, 14), slice(14, 17), slice(17, 20)):
        block.step(rounds[part], pending[part], v[part])
    assert block.rounds == alone.rounds == rounds[-1] + 1
    alone, block = (
        {name: each for name, each in state(party).items() if "memory" not in name} for party in (alone, block)
    )
    assert block == alone


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_embeddings_of_a_block_are_those_of_its_rounds(update):
    """To the bit under SLR, which goes round by round. Elsewhere a block is one product, which may round otherwise."""
    alone = client(update)
    single, held = zip(*[alone.encode(at(t), FEATURES[t : t + 1]) for t in range(4)], strict=True)
    for n in (4, 2, 1):
        block = client(update, block=BLOCK)
        values, pending = block.encode(np.arange(n, dtype=np.int32), FEATURES[:n])
        assert len(pending) == n
        slack = 0.0 if update.rows or n == 1 else 1e-6
        np.testing.assert_allclose(values, np.concatenate(single[:n]), rtol=slack, atol=slack)
        for mine, theirs in zip(pending, held, strict=False):
            for one, other in zip(mine, theirs[0], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_state_that_is_put_away_goes_on_to_the_bit(update):
    first, sent = server(update), embeddings(update)
    for t in range(7):
        first.step(sent[t : t + 1], LABELS[t : t + 1])
    arrays, before = first.arrays(), state(first)
    second = server(update)
    second.restore(arrays, first.rounds)
    for t in range(7, 20):
        one = first.step(sent[t : t + 1], LABELS[t : t + 1])
        other = second.step(sent[t : t + 1], LABELS[t : t + 1])
        np.testing.assert_array_equal(one.derivatives, other.derivatives)
    assert state(first) == state(second)
    assert {name: array.tobytes() for name, array in arrays.items()} == before, "what was put away has moved on"


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_client_goes_on_to_the_bit_with_what_was_pending(update):
    first, v = client(update), embeddings(update, E) / 10
    for t in (0, 2, 3):
        _, pending = first.encode(at(t), FEATURES[t : t + 1])
        first.step(at(t), pending, v[t : t + 1])
    _, pending = first.encode(at(5), FEATURES[5:6])
    _, more = first.encode(at(6), FEATURES[6:7])
    second = client(update)
    arrays = first.arrays({5: pending[0], 6: more[0]})
    again = second.restore(arrays, first.rounds)
    assert sorted(again) == [5, 6]
    for compute, held in ((first, [pending[0], more[0]]), (second, [again[5], again[6]])):
        for t, each in zip((5, 6), held, strict=True):
            compute.step(at(t), [each], v[t : t + 1])
    assert state(first) == state(second)
    assert first.rounds == second.rounds == 7


def test_the_arrays_of_another_model_are_refused_by_name():
    update = ab.DLR(4, 0.9)
    arrays = server(update).arrays()
    for wrong, text in (
        (server(ab.OGD()).arrays(), "window/ring/.* is none there and float32"),
        (server(ab.DLR(5, 0.9)).arrays(), r"window/ring/.* is float32\[6, .*\] there and float32\[5, .*\] here"),
        ({**arrays, "extra": np.zeros(1)}, r"extra is float64\[1\] there and none here"),
        ({**arrays, "model/layers/0/bias": np.zeros(6)}, r"model/layers/0/bias is float64\[6\] there and float32\[6\]"),
    ):
        compute = server(update)
        before = state(compute)
        with pytest.raises(ValueError, match=text):
            compute.restore(wrong, 3)
        assert state(compute) == before
        assert compute.rounds == 0
    with pytest.raises(ValueError, match="model/layers"):
        client(update).restore(arrays, 0)
    assert set(to_arrays(from_arrays(server(update).party, arrays))) == set(arrays)


def test_a_client_that_was_passive_has_pushed_zeros():
    """Its steps in rounds 0 and 3, with nothing in between, are those of a client that pushes 0 in rounds 1 and 2."""
    update, v = ab.DLR(4, 0.9), embeddings(ab.OGD(), E) / 10
    lazy, eager = client(update), client(update)
    _, pending = lazy.encode(at(0), FEATURES[:1])
    for compute in (lazy, eager):
        compute.step(at(0), pending, v[:1])
    zero = np.zeros_like(v[:1])
    start = eager.arrays()
    for t in (1, 2):
        eager.step(at(t), pending, zero)
    # A push of 0 by way of a step also steps along what is in the window: take that back.
    stepped = eager.arrays()
    model = {name: start[name] if name.startswith("model") else stepped[name] for name in stepped}
    eager.restore(model, 3)
    _, last = lazy.encode(at(3), FEATURES[3:4])
    for compute in (lazy, eager):
        compute.step(at(3), last, v[3:4])
    one, other = (
        {name: array for name, array in state(each).items() if not name.endswith("/rows")} for each in (lazy, eager)
    )
    assert one == other  # of an outer product that is 0 one vector is, and the other does not matter
    window = {name: array for name, array in lazy.arrays().items() if "ring" in name}
    assert window
    for array in window.values():
        assert array[0].any()
        assert array[3].any()
        assert not array[[4]].any()


def test_a_client_that_was_passive_for_long_has_pushed_all_the_zeros(monkeypatch):
    """To the bit what one push after another comes to, and no more of them than change anything."""
    v = embeddings(ab.OGD(), E) / 10

    def stepped(update, rounds, far):
        monkeypatch.setattr("anabranch.core.party_programs.client.FAR", far)
        compute = client(update, 8)
        _, pending = compute.encode(np.array(rounds, np.int32), FEATURES[: len(rounds)])
        compute.step(np.array(rounds, np.int32), pending, v[: len(rounds)])
        return compute

    for update in (ab.DLR(4, 0.9), ab.OGD()):
        for rounds in ([0, 3, 400, 401, 420, 430], [2, 5000, 10_000]):
            one, other = (stepped(update, rounds, far) for far in (1_000_000, 16))
            assert state(one) == state(other)
            assert one.rounds == other.rounds == rounds[-1] + 1
    passes = []
    move = State.move
    monkeypatch.setattr(
        State, "move", lambda self, program, numbers: passes.append(program) or move(self, program, numbers)
    )
    stepped(ab.DLR(4, 0.9), [0, 2**31 - 2], 4096)
    assert passes.count(_client_passes) < 5


def test_each_step_is_remembered_once_after_long_passive_times_too(monkeypatch):
    monkeypatch.setattr("anabranch.core.party_programs.client.FAR", 16)
    rounds = np.array([0, 3, 400, 401, 420, 430, 500, 501], np.int32)
    setting = Setting(ab.OGD())
    compute = _TellingCompute(setting.rule, setting.model.clients[0], setting.widths[0], Rate(0.1), 8)
    _, pending = compute.encode(rounds, FEATURES[: len(rounds)])
    compute.step(rounds, pending, embeddings(ab.OGD(), E)[: len(rounds)])
    assert [each.round for each in compute.taken] == rounds.tolist()


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_round_that_is_skipped_pushes_0_and_steps_not(update):
    compute, sent = server(update), embeddings(update)
    for t in range(5):
        compute.step(sent[t : t + 1], LABELS[t : t + 1])
    before = compute.arrays()
    compute.skip(2)
    after = compute.arrays()
    assert compute.rounds == 6
    for name, array in after.items():
        if name.startswith("model"):
            assert array.tobytes() == before[name].tobytes(), name
        elif "ring" in name:
            assert not array[5 % len(array)].any(), name  # the slot of round 5
        elif "total" in name:
            assert not np.array_equal(array, before[name]), name
        elif "memory" in name:
            assert array[5 % len(array)] == 2


def test_the_first_round_that_is_not_finite_ends_a_block():
    update = ab.OGD()
    compute, alone = server(update, block=BLOCK), server(update)
    sent = embeddings(update)
    sent[2, 1] = np.inf
    stepped = compute.step(sent[:4], LABELS[:4])
    for t in range(2):
        alone.step(sent[t : t + 1], LABELS[t : t + 1])
    assert TROUBLES[stepped.trouble] == "embedding"
    assert len(stepped.predictions) == 3
    assert compute.rounds == 2
    assert state(compute) == state(alone)


def test_what_is_not_finite_stays_in_no_window():
    """Whoever goes on from there, with a smaller learning rate say, goes on from the round before."""
    update = ab.DLR(4, 0.9)
    compute, alone = server(update, block=BLOCK), server(update)
    sent = embeddings(update)
    bad = sent.copy()
    bad[9, 1] = np.inf
    for t in range(0, 12, 4):
        stepped = compute.step(bad[t : t + 4], LABELS[t : t + 4])
    assert (stepped.trouble, compute.rounds) == (1, 9)
    for t in range(9):
        alone.step(sent[t : t + 1], LABELS[t : t + 1])
    for t in range(9, 16):
        for each in (compute, alone):
            each.step(sent[t : t + 1], LABELS[t : t + 1])
    for name, array in alone.arrays().items():
        np.testing.assert_allclose(compute.arrays()[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_warming_up_changes_nothing():
    top, bottom = server(ab.DLR(4, 0.9), block=BLOCK), client(ab.DLR(4, 0.9), block=BLOCK)
    before = state(top), state(bottom)
    top.warm_up()
    bottom.warm_up()
    assert (state(top), state(bottom)) == before
    assert top.rounds == bottom.rounds == 0


def test_the_model_that_was_given_is_not_changed():
    setting = Setting(ab.OGD())
    before = {name: array.copy() for name, array in setting.model.to_arrays().items()}
    compute = server(ab.OGD())
    compute.step(embeddings(ab.OGD())[:1], LABELS[:1])
    for name, array in setting.model.to_arrays().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_rates_are_those_of_the_simulator(power):
    rates = LearningRates(np.array([0.3]), power)
    for first in (0, 1, 17, 1_000_000):
        own = Rate(0.3, power).of(np.arange(first, first + 3, dtype=np.int32), np.dtype("float32"))
        theirs = rates.of(first, 3, np.dtype("float32"))[:, 0]
        assert own.tobytes() == theirs.tobytes()
    assert len(Rate(0.3, power).of(np.array([4], np.int32), np.dtype("float32"))) == (2 if power else 1)


class Momentum(ab.Update):
    """An update that a person might write: a mean of gradients, and how many there were, zeros included."""

    beta: float = 0.9

    def init_window(self, gradient, *, server):
        return jax.tree.map(jnp.zeros_like, gradient), jnp.int32(7)

    def smooth(self, window, gradient, t):
        means, count = window
        means = jax.tree.map(lambda m, g: cast(self.beta, m) * m + cast(1 - self.beta, m) * g, means, gradient)
        return (means, count + 1), means


def count_of(compute: ServerCompute | ClientCompute) -> int:
    return int(compute.party.window[1])


def test_an_update_of_ones_own_is_skipped_with_a_zero():
    compute, sent = server(Momentum()), embeddings(Momentum())
    compute.step(sent[:1], LABELS[:1])
    before, model = jax.tree.map(np.array, compute.party.window[0]), compute.arrays()
    compute.skip(2)
    assert (compute.rounds, count_of(compute)) == (2, 9)
    for mean, old in zip(jax.tree.leaves(compute.party.window[0]), jax.tree.leaves(before), strict=True):
        np.testing.assert_allclose(mean, 0.9 * old, rtol=1e-6)
    after = compute.arrays()
    assert all(after[name].tobytes() == model[name].tobytes() for name in after if name.startswith("model"))


def test_an_update_of_ones_own_keeps_nothing_of_a_round_that_is_not_finite():
    compute, sent = server(Momentum(), block=BLOCK), embeddings(Momentum())
    compute.step(sent[:1], LABELS[:1])
    before = state(compute)
    bad = sent[:4].copy()
    bad[0] = np.inf
    assert compute.step(bad, LABELS[:4]).trouble == TROUBLES.index("embedding")
    assert state(compute) == before
    undisturbed = server(Momentum(), block=BLOCK)
    undisturbed.step(sent[:1], LABELS[:1])
    for each in (compute, undisturbed):
        each.skip(int(LABELS[1]))
        each.step(sent[2:4], LABELS[2:4])
    assert state(compute) == state(undisturbed)


def test_an_update_of_ones_own_pushes_every_zero_of_a_long_passive_time(monkeypatch):
    def stepped(far):
        monkeypatch.setattr("anabranch.core.party_programs.client.FAR", far)
        compute = client(Momentum(0.5))
        for t in (0, 100, 300):
            _, pending = compute.encode(at(t), FEATURES[:1])
            compute.step(at(t), pending, embeddings(Momentum(), E)[:1] / 10)
        return compute

    one, other = stepped(16), stepped(1_000_000)
    assert count_of(one) == count_of(other) == 7 + 301
    assert state(one) == state(other)
