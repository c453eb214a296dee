"""Properties that hold to the last bit, whatever the problem."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anabranch as ab
from anabranch.core.party import Party
from anabranch.core.round import Federation, trained_model
from anabranch.simulation import run_setup as prepared
from anabranch.simulation.run_setup import state_bytes
from anabranch.simulation.totals import Tally
from anabranch.streams.base import Block, Stream
from problems import as_linears, as_mlp, as_plain, bits, filled, run, small_problem

UPDATES = {
    "OGD": ab.OGD(),
    "DLR": ab.DLR(10, 0.9),  # the window of `run`: a program is compiled for each, which takes seconds
    "DLR server only": ab.DLR(10, 0.9, client_window=False),
    "SLR": ab.SLR(4),
}
CHUNKS = (1, 7, 32)  # one round, some that do not divide the 60, and what `run` has; other tests have one of these
updates = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES.keys())


def test_ogd_is_dlr_with_a_window_of_one():
    ogd, dlr = (run(small_problem(), update=update) for update in (ab.OGD(), ab.DLR(window=1, decay=0.7)))
    assert bits(ogd.model) == bits(dlr.model)
    np.testing.assert_array_equal(ogd.errors, dlr.errors)


@updates
def test_full_random_one_and_event_minus_infinity_give_the_same_bits(update):
    everyone = (ab.Full(), ab.Random(1.0), ab.Event(-np.inf), ab.Fixed(3), ab.Recorded(np.ones((60, 3))))
    results = [run(small_problem(), update=update, activation=activation) for activation in everyone]
    assert all((result.activation_rate == 1).all() for result in results)
    assert all(bits(result.model) == bits(results[0].model) for result in results)


@updates
@pytest.mark.parametrize("nobody", [ab.Event(np.inf), ab.Random(0.0), ab.Fixed(0)], ids=repr)
def test_with_nobody_activated_only_the_server_learns(update, nobody):
    model, stream, _ = small_problem()
    before, after = bits(model), bits(run((model, stream, None), update=update, activation=nobody).model)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if name.startswith("server.")}


@updates
def test_a_passive_client_keeps_its_bits_and_an_activated_one_does_not(update):
    model, stream, active = small_problem(rounds=12)
    after = [bits(run((model, stream, active), update=update, rounds=rounds).model) for rounds in range(1, 13)]
    moved = [
        [any(before[name] != now[name] for name in before if name.startswith(f"client{m + 1}.")) for m in range(3)]
        for before, now in itertools.pairwise(after)
    ]
    np.testing.assert_array_equal(moved, active[1:])


@updates
def test_the_result_does_not_depend_on_the_chunk_length(update):
    results = [run(small_problem(), update=update, chunk=chunk) for chunk in CHUNKS]
    assert all(bits(result.model) == bits(results[0].model) for result in results)
    for result in results:
        np.testing.assert_array_equal(result.errors, results[0].errors)
        np.testing.assert_array_equal(result.curve.run_time_error, results[0].curve.run_time_error)
        assert result.traffic.total == results[0].traffic.total


def test_a_falling_rate_does_not_depend_on_the_chunk_length():
    options = {"update": ab.SLR(4), "learning_rate_power": 0.5}
    assert len({str(bits(run(small_problem(), chunk=chunk, **options).model)) for chunk in (1, 7)}) == 1


def test_random_activation_does_not_depend_on_the_chunk_length():
    options = {"update": UPDATES["DLR"], "activation": ab.Random([0.2, 0.5, 0.9])}
    results = [run(small_problem(), chunk=chunk, **options) for chunk in CHUNKS]
    assert all(bits(result.model) == bits(results[0].model) for result in results)


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
from problems import small_problem, bits
import anabranch as ab
model, stream, _ = small_problem()
result = ab.simulate(model, stream, activation=ab.Random(0.5), learning_rate=0.1, seed=3, chunk=32)
import hashlib
print(hashlib.sha256(repr(sorted(bits(result.model).items())).encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_bits_in_another_process():
    here = os.path.dirname(__file__)  # noqa: PTH120
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT, here], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] != ""


def test_another_seed_activates_others():
    rates = [run(small_problem(), activation=ab.Random(0.5), seed=seed).activation_rate for seed in (0, 1)]
    assert (rates[0] != rates[1]).any()


def test_the_given_model_is_not_changed():
    model, stream, active = small_problem()
    before = bits(model)
    trained = run((model, stream, active)).model
    assert bits(model) == before != bits(trained)
    run((trained, stream, active))  # nor is a trained one, whose arrays came out of the compiled loop
    assert bits(trained) != before


@pytest.fixture
def compilations():
    """What JAX has compiled since the test began."""
    seen: list[str] = []

    def listen(event, seconds, **rest):
        if "backend_compile" in event:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_second_run_of_the_same_shapes_compiles_nothing(compilations):
    jax.clear_caches()
    model, stream, active = small_problem()
    other, other_stream, other_active = small_problem(seed=0)

    def both(decay, rate, activation, seed, rounds, power=0.0):
        for m, s in ((model, stream), (other, other_stream)):
            run(
                (m, s, active),
                update=ab.DLR(10, decay),
                learning_rate=rate,
                learning_rate_power=power,
                activation=activation,
                seed=seed,
                rounds=rounds,
            )

    both(0.9, 0.1, ab.Random(0.5), 0, 60)
    both(0.9, 0.1, ab.Event(0.2), 0, 60)
    both(0.9, 0.1, ab.Event(0.2), 0, 60, power=0.5)  # rates that fall have a program of their own
    before = len(compilations)
    both(0.5, 0.02, ab.Random(0.25), 7, 50)
    both(0.8, 0.3, ab.Event(-0.1), 8, 40, power=0.25)
    both(0.7, [0.1, 0.2, 0.3, 0.1], ab.Recorded(other_active), 9, 30)
    assert len(compilations) == before > 0


def test_models_of_other_shapes_are_made_and_taken_out_of_a_run_without_compiling(compilations):
    ab.models.mlp((3, 2), 2)  # compiles how numbers are drawn
    before = len(compilations)
    model = ab.models.mlp((5, 7, 7), 4, hidden=(11,), embedding=13, server=(19,))
    parties = [
        Party(jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *parts), None, None, None, None)
        for parts in (model.clients[:1], model.clients[1:])
    ]
    federation = Federation(Party(model.server, None, None, None, None), tuple(parties))
    assert bits(trained_model(model.layout((5, 7, 7)), federation)) == bits(model)
    assert len(compilations) == before


@pytest.mark.parametrize("convert", [as_plain, as_linears])
def test_the_outer_product_path_and_the_general_path_agree(convert):
    import reference

    rng = np.random.default_rng(5)
    nets, server, xs, y = reference.random_problem(
        rng, clients=2, rounds=100, classes=3, depth_client=2, depth_server=2
    )
    stream = ab.streams.from_arrays(xs, y, classes=3)
    results = []
    with jax.enable_x64(True):
        for make in (as_mlp, convert):
            model = ab.SplitModel([make(net) for net in nets], make(server))
            results.append(
                ab.simulate(
                    model,
                    stream,
                    update=ab.DLR(6, 0.8),
                    activation=ab.Random(0.5),
                    learning_rate=0.1,
                    keep_errors=True,
                    wire_dtype="float64",
                )
            )
        np.testing.assert_array_equal(results[0].errors, results[1].errors)
        for x in np.concatenate(xs, axis=1)[:5]:
            logits = [result.model(jnp.asarray(x), stream.widths) for result in results]
            np.testing.assert_allclose(*logits, rtol=1e-9)


def test_any_optax_transformation_takes_the_smoothed_gradient():
    model, stream, active = small_problem()
    plain = run((model, stream, active), learning_rate=0.1)
    sgd = run((model, stream, active), learning_rate=optax.sgd(0.1))
    assert bits(plain.model) == bits(sgd.model)
    with jax.numpy_dtype_promotion("standard"):  # Optax promotes Adam's counter itself
        adam = run((model, stream, active), learning_rate=optax.adam(0.01))
        idle = run((model, stream, active), learning_rate=optax.adam(0.01), activation=ab.Event(np.inf))
    assert bits(adam.model) != bits(sgd.model)
    assert all(bits(idle.model)[name] == value for name, value in bits(model).items() if name.startswith("client"))


def test_one_learning_rate_for_each_party():
    model, stream, active = small_problem()
    result = run((model, stream, active), learning_rate=[0.0, 0.1, 0.0, 0.1])
    changed = {name.split(".")[0] for name, value in bits(model).items() if bits(result.model)[name] != value}
    assert changed == {"client1", "client3"}


def test_a_learning_rate_falls_with_the_rounds_and_not_with_a_partys_steps():
    model, stream, _ = small_problem()
    active = np.zeros((60, 3), bool)
    active[8, 0] = True  # once, in round 9, where t^-0.5 is a third
    options = {"update": ab.OGD(), "learning_rate": [0.0, 0.3, 0.3, 0.3]}
    fallen = run((model, stream, active), learning_rate_power=0.5, **options).model
    steady = run((model, stream, active), **options).model
    for name, start in model.to_arrays().items():
        moved, expected = fallen.to_arrays()[name] - start, (steady.to_arrays()[name] - start) / 3
        np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)
        assert (moved != 0).any() == name.startswith("client1.")


def test_a_window_of_a_thousand_in_float32_stays_near_the_exact_sum():
    import reference

    rng = np.random.default_rng(1)
    nets, server, xs, y = reference.random_problem(
        rng, clients=2, rounds=400, classes=2, depth_client=1, depth_server=1
    )
    active = rng.random((400, 2)) < 0.5
    expected = reference.run(nets, server, xs, y, active, update="DLR", window=300, decay=0.999, learning_rate=0.05)
    result = ab.simulate(
        ab.SplitModel([as_mlp(net) for net in nets], as_mlp(server)),
        ab.streams.from_arrays(xs, y),
        update=ab.DLR(300, 0.999),
        activation=ab.Recorded(active),
        learning_rate=0.05,
    )
    for module, net in zip(result.model.clients, expected.clients, strict=True):
        np.testing.assert_allclose(module.layers[0].weight, net.weights[0], rtol=0, atol=2e-5)


def test_half_precision_on_the_wire_changes_the_result_but_little():
    model, stream, active = small_problem(rounds=200)
    full, half = (
        run((model, stream, active), wire_dtype=dtype, learning_rate=0.02) for dtype in ("float32", "float16")
    )
    assert bits(full.model) != bits(half.model)
    for a, b in zip(full.model.to_arrays().values(), half.model.to_arrays().values(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)
    assert full.traffic.total == 2 * half.traffic.total


# What ends a run early


def test_a_stream_shorter_than_the_rounds_ends_the_run_and_the_result_says_so():
    result = run(small_problem(rounds=60), rounds=100, activation=ab.Full())
    assert result.rounds == 60
    assert result.stopped == "the stream ended after 60 of 100 rounds"
    assert run(small_problem(rounds=60)).stopped is None


class Failing(Stream):
    """Good samples, then a wrong one."""

    widths, classes = (2, 3, 1), 2

    def __init__(self, rows, wrong, block=10):
        self.rows, self.wrong, self.block = rows, wrong, block

    def blocks(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(self.rows, 6)), rng.integers(0, 2, self.rows)
        self.wrong(x, y)
        for i in range(0, self.rows, self.block):
            yield Block(x[i : i + self.block], y[i : i + self.block])


def three_clients(classes=2):
    key = jax.random.key(0)
    clients = [filled(lambda width=width: eqx.nn.Linear(width, 4, key=key)) for width in (2, 3, 1)]
    return ab.SplitModel(clients, filled(lambda: eqx.nn.MLP(12, classes, 8, 1, key=key)))


def spoil_feature(x, y):
    x[56, 3] = np.nan


def spoil_label(x, y):
    y[56] = 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spoil_feature, "row 57: feature 2 of client 2 is nan"),
        (spoil_label, "row 57: the label is 2, but the model tells 2 classes apart: 0 to 1"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 8, 10])
def test_a_wrong_row_is_named_and_the_rounds_before_it_are_kept(wrong, message, chunk):
    with pytest.raises(ab.DataError, match=message) as error:
        ab.simulate(three_clients(), Failing(100, wrong), chunk=chunk, keep_errors=True)
    assert error.value.result.rounds == 56
    good = ab.simulate(three_clients(), Failing(100, lambda x, y: None), chunk=10, rounds=56, keep_errors=True)
    assert bits(good.model) == bits(error.value.result.model)


def test_a_wrong_row_among_the_first_ends_before_any_training():
    with pytest.raises(ab.DataError, match="row 57") as error:
        ab.simulate(three_clients(), Failing(100, spoil_feature), chunk=100)
    assert error.value.result is None


def test_a_wrong_row_after_the_last_round_does_not_matter():
    assert ab.simulate(three_clients(), Failing(100, spoil_feature), rounds=50, chunk=8).rounds == 50


def test_an_empty_stream_is_an_error():
    with pytest.raises(ab.DataError, match="empty"):
        ab.simulate(three_clients(), Failing(0, lambda x, y: None))


class Raising(Failing):
    def blocks(self):
        yield from super().blocks()
        raise OSError("the cable is out")


def test_a_stream_that_fails_keeps_the_rounds_before():
    with pytest.raises(ab.DataError, match="the stream failed: OSError: the cable is out") as error:
        ab.simulate(three_clients(), Raising(30, lambda x, y: None), chunk=10)
    assert error.value.result.rounds == 30


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_round(chunk):
    with pytest.raises(ab.Diverged, match=r"is not finite in round \d+: the learning rate is too large") as error:
        run(small_problem(rounds=300), update=ab.OGD(), learning_rate=1e18, chunk=chunk)
    result = error.value.result
    assert result.rounds == error.value.round - 1 == len(result.errors)
    assert all(np.isfinite(array).all() for array in result.model.to_arrays().values())
    before = run(small_problem(rounds=300), update=ab.OGD(), learning_rate=1e18, rounds=result.rounds)
    assert bits(before.model) == bits(result.model)


INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from problems import Waiting, bits, small_problem
import anabranch as ab

def press(progress):
    if progress.rounds == 21:
        os.kill(os.getpid(), signal.SIGINT)

model, stream, _ = small_problem(rounds=56)
progress, stream = (None, Waiting(stream)) if sys.argv[2] == "waiting" else (press, stream)
try:
    ab.simulate(model, stream, learning_rate=0.1, chunk=7, progress=progress)
except ab.Interrupted as error:
    result = error.result
    assert result.stopped == f"interrupted after {result.rounds} rounds"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    same = ab.simulate(*small_problem(rounds=56)[:2], learning_rate=0.1, chunk=7, rounds=result.rounds)
    assert bits(same.model) == bits(result.model)
    print(result.rounds)
"""


@pytest.mark.parametrize(("when", "rounds"), [("training", range(21, 56)), ("waiting", [56])])
def test_ctrl_c_keeps_the_rounds_that_were_done(when, rounds):
    here = os.path.dirname(__file__)  # noqa: PTH120
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, here, when], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(process.stdout) in rounds


@pytest.mark.parametrize(("at", "rounds"), [(21, 28), (56, 56)])
def test_a_progress_that_fails_keeps_the_rounds_that_were_done(at, rounds):
    def fail(progress):
        if progress.rounds == at:
            raise ValueError("nobody looks any more")

    model, stream, _ = small_problem(rounds=56)
    with pytest.raises(ValueError, match="nobody looks any more") as error:
        ab.simulate(model, stream, learning_rate=0.1, chunk=7, progress=fail)
    result = error.value.result
    assert (result.rounds, result.stopped) == (rounds, "nobody looks any more")
    assert bits(result.model) == bits(ab.simulate(model, stream, learning_rate=0.1, chunk=7, rounds=rounds).model)


@pytest.mark.parametrize(("at", "rounds"), [(2, 21), (8, 56)])
def test_ctrl_c_for_the_third_time_while_a_chunk_is_waited_for_leaves_none_out(at, rounds, monkeypatch):
    add, calls = Tally.add, []

    def pressed(tally, played):
        calls.append(played)
        if len(calls) == at:
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
        return add(tally, played)

    model, stream, _ = small_problem(rounds=56)
    monkeypatch.setattr(Tally, "add", pressed)
    with pytest.raises(ab.Interrupted) as error:
        ab.simulate(model, stream, learning_rate=0.1, chunk=7, keep_errors=True)
    monkeypatch.undo()
    result = error.value.result
    assert result.rounds == rounds
    same = ab.simulate(model, stream, learning_rate=0.1, chunk=7, rounds=rounds, keep_errors=True)
    np.testing.assert_array_equal(result.errors, same.errors)
    assert bits(result.model) == bits(same.model)


# What was asked of the parts


def test_a_record_shorter_than_the_stream_ends_the_run_and_the_result_says_so():
    model, stream, active = small_problem(rounds=60)
    result = run((model, stream, active[:25]), chunk=7)
    assert result.rounds == 25
    assert result.stopped == "the recorded activations ended after 25 rounds, and the stream goes on"
    assert bits(result.model) == bits(run((model, stream, active), rounds=25).model)
    assert run((model, stream, active[:60])).stopped is None
    assert run((model, stream, active[:28]), chunk=7).rounds == 28


@pytest.mark.parametrize("chunk", [8, 10, 100])
@pytest.mark.parametrize("stream", [Failing(100, spoil_feature), Raising(56, lambda x, y: None)], ids=["row", "stream"])
def test_what_is_wrong_just_behind_a_record_does_not_matter(stream, chunk):
    active = np.ones((57, 3), bool)
    result = ab.simulate(three_clients(), stream, activation=ab.Recorded(active[:56]), chunk=chunk)
    assert result.rounds == 56
    assert result.stopped == "the recorded activations ended after 56 rounds, and the stream goes on"
    with pytest.raises(ab.DataError, match=r"row 57|the cable is out"):
        ab.simulate(three_clients(), stream, activation=ab.Recorded(active), chunk=chunk)


class Wrong(ab.Activation):
    def __init__(self, mask):
        self.given = mask

    def mask(self, seed, t, x, widths):
        return self.given

    def decide(self, seed, client, t, x_m):
        return True


@pytest.mark.parametrize(
    "mask", [np.ones((10, 3), bool), np.ones((32, 4), bool), np.ones((32, 1), bool), np.ones((32, 3))]
)
def test_a_mask_of_another_shape_or_type_is_named(mask):
    with pytest.raises(ab.ConfigError, match=r"activation Wrong: mask returned .* shape \(32, 3\) are needed"):
        run(small_problem(), activation=Wrong(mask))


class Unit(eqx.Module):
    """Looks at the direction of its input only, so that an input of zeros has no answer."""

    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x / jnp.sqrt((x**2).sum()))


def test_rows_of_a_window_that_do_not_exist_yet_do_no_harm():
    rng = np.random.default_rng(0)
    stream = ab.streams.from_arrays([rng.normal(size=(20, 3)).astype(np.float32)], [0, 1] * 10)
    keys = jax.random.split(jax.random.key(0))
    model = ab.SplitModel([Unit(eqx.nn.Linear(3, 4, key=keys[0]))], eqx.nn.Linear(4, 2, key=keys[1]))
    assert ab.simulate(model, stream, update=ab.SLR(5)).rounds == 20


@pytest.mark.parametrize("update", [ab.DLR(10_000_000), ab.SLR(10_000_000)], ids=["DLR", "SLR"])
def test_a_window_for_which_memory_does_not_suffice_is_refused_at_once(update, monkeypatch):
    monkeypatch.setattr(prepared, "memory_bytes", lambda: 500_000_000)
    stream = Failing(10**6, lambda x, y: None)
    monkeypatch.setattr(stream, "blocks", lambda: pytest.fail("it must not be read"))
    found = r"takes (0\.3|[1-9]\.\d) GB, and this machine has 0\.5 GB"  # SLR has six features and a label to remember
    with pytest.raises(ab.ConfigError, match=rf"update [DS]LR: window is 10,000,000: .* {found}"):
        ab.simulate(three_clients(), stream, update=update)


def test_a_decay_that_the_models_precision_takes_for_1_is_refused():
    decay = 1 - 2.0**-26
    with pytest.raises(ab.ConfigError, match=r"decay is 0\.99999998.*, which is 1 in float32, the model's precision"):
        run(small_problem(), update=ab.DLR(10, decay))
    for accepted, dtype in ((1 - 2.0**-24, np.float32), (decay, np.float64)):
        prepared.check_decay(ab.DLR(10, accepted), np.dtype(dtype))


def test_a_window_may_take_half_of_the_memory(monkeypatch):
    model, stream, _ = small_problem()
    sizes = []
    monkeypatch.setattr(prepared, "state_bytes", lambda *args: sizes.append(state_bytes(*args)) or sizes[-1])
    monkeypatch.setattr(prepared, "memory_bytes", lambda: 0)
    with pytest.raises(ab.ConfigError, match="a shorter window is needed"):
        ab.simulate(model, stream, update=ab.DLR(10, 0.9))
    monkeypatch.setattr(prepared, "memory_bytes", lambda: 2 * sizes[-1])
    assert ab.simulate(model, stream, update=ab.DLR(10, 0.9)).rounds == 60
    assert len(sizes) == 2
    monkeypatch.setattr(prepared, "memory_bytes", lambda: 2**30)
    ab.simulate(model, stream, update=ab.DLR(10, 0.9))
    assert len(sizes) == 2, "the exact size takes long to find"


def test_what_float16_cannot_hold_is_said_to_be_so():
    model, stream, _ = small_problem()
    block = next(stream.blocks())
    parts = np.split(block.x * 1e6, np.cumsum(stream.widths)[:-1], axis=1)
    large = ab.streams.from_arrays(parts, block.y, classes=3)
    with pytest.raises(ab.Diverged, match=r"an embedding is not finite in round 1: .* too large for float16") as error:
        ab.simulate(model, large, learning_rate=0.0, wire_dtype="float16", chunk=32)
    assert error.value.result.rounds == 0
    assert bits(error.value.result.model) == bits(model)
    assert ab.simulate(model, large, learning_rate=0.0, chunk=32).rounds == 60


def test_a_stream_of_more_classes_than_the_model_is_refused_at_once():
    model, stream, _ = small_problem(classes=2)
    more = ab.streams.from_arrays([np.zeros((5, width)) for width in stream.widths], [0, 1, 0, 1, 2])
    with pytest.raises(ab.ModelError, match="the stream has 3 classes, but the model tells only 2 apart"):
        ab.simulate(model, more)


def test_numbers_may_come_from_numpy():
    model, stream, _ = small_problem()
    one = np.int64(1)
    numpys = {"update": ab.DLR(one * 10, np.float64(0.9)), "rounds": one * 50, "seed": one, "chunk": one * 32}
    result = ab.simulate(model, stream, activation=ab.Fixed(one), **numpys)
    pythons = {"update": ab.DLR(10, 0.9), "rounds": 50, "seed": 1, "chunk": 32}
    same = ab.simulate(model, stream, activation=ab.Fixed(1), **pythons)
    assert bits(result.model) == bits(same.model)
    half, two = np.float32(0.5), np.float16(2)
    assert repr((ab.Random(half), ab.Random(one), ab.Random([half, one]))) == repr(
        (ab.Random(0.5), ab.Random(1), ab.Random([0.5, 1.0]))
    )
    assert json.dumps(ab.Detect(boost=two).boost) == "2.0"
    for power in (one * 0, two * 0):
        assert prepared._read_power(power, None) == 0
    with pytest.raises(ab.ConfigError, match=r"p is 1\.5, but a probability"):
        ab.Random(np.float32(1.5))


def test_errors_come_back_from_another_process_with_their_results():
    result = run(small_problem())
    diverged = pickle.loads(pickle.dumps(ab.Diverged("the loss is not finite", 3, result)))
    assert (str(diverged), diverged.round, diverged.result.rounds) == ("the loss is not finite", 3, 60)
    assert pickle.loads(pickle.dumps(ab.Interrupted(result))).result.rounds == 60


class Silent(Wrong):
    def mask(self, seed, t, x, widths):
        if t >= 20:
            raise RuntimeError("no answer from the sensor")
        return np.ones((len(x), len(widths)), bool)


def test_an_activation_that_fails_keeps_the_rounds_before():
    with pytest.raises(RuntimeError, match="no answer") as error:
        run(small_problem(), activation=Silent(None), chunk=7)
    assert error.value.result.rounds == 21


class Odd(Failing):
    def __init__(self, last):
        super().__init__(30, lambda x, y: None)
        self.last = last

    def blocks(self):
        yield from super().blocks()
        yield self.last


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (None, "the stream gave None"),
        ((np.zeros((1, 6)), np.zeros(1, int)), "a Block"),
        (Block(np.full((1, 6), "a"), np.zeros(1, int)), "numbers are needed"),
        (Block(np.zeros((1, 5)), np.zeros(1, int)), r"\(n, 6\) and \(n,\) are needed"),
        (Block(np.zeros((1, 6)), np.zeros(1)), "whole numbers are needed"),
        (Block(np.full((1, 6), 1e39), np.zeros(1, int)), r"row 31: feature 1 of client 1 is 1e\+39"),
    ],
)
def test_a_wrong_block_is_named_and_the_rounds_before_it_are_kept(last, message):
    with pytest.raises(ab.DataError, match=message) as error:
        ab.simulate(three_clients(), Odd(last), chunk=10)
    assert error.value.result.rounds == 30


def test_a_result_can_be_pickled():
    result = run(small_problem(), learning_rate=optax.sgd(0.1))
    back = pickle.loads(pickle.dumps(result))
    assert bits(back.model) == bits(result.model)
    assert np.isnan(back.client_seconds)
    assert back.describe()["client_seconds"] is None


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"update": ab.DLR}, r"update is the class DLR: make one of it, such as DLR\(...\)"),
        ({"update": "DLR"}, "update is 'DLR', but the type anabranch.Update is needed"),
        ({"activation": "Full"}, "activation is 'Full'"),
        ({"wire_dtype": "float64"}, "this model computes in float32"),
        ({"learning_rate": optax.adam}, r"learning_rate is the function adam: call it, such as optax.adam\(0.001\)"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"report_every": 0}, "report_every is 0"),
        ({"wire_dtype": "float61"}, "wire_dtype is 'float61'.*Did you mean 'float"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": -1}, "learning_rate is -1"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"learning_rate_power": -0.5}, "learning_rate_power is -0.5, but it is a number of 0 or more"),
        ({"learning_rate_power": float("inf")}, "learning_rate_power is inf"),
        ({"learning_rate_power": True}, "learning_rate_power is True"),
        (
            {"learning_rate_power": 0.5, "learning_rate": optax.sgd(0.1)},
            "learning_rate_power is 0.5, but learning_rate is an Optax transformation",
        ),
        ({"learning_rate": [0.1, 0.1]}, "learning_rate has 2 values, but there are 4 parties"),
        ({"activation": ab.Fixed(4)}, "k is 4, but there are only 3 clients"),
        ({"activation": ab.Random([0.5])}, "p has 1 probabilities, but there are 3 clients"),
        ({"activation": ab.Recorded(np.ones((5, 3))), "rounds": 6}, "it has 5 rounds, but the run asks for 6"),
        ({"activation": ab.Recorded(np.ones((60, 2)))}, "it has 2 columns, but there are 3 clients"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message):
    with pytest.raises(ab.ConfigError, match=message):
        run(small_problem(), **settings)


class Endless(Failing):
    endless = True


def test_an_endless_stream_needs_a_number_of_rounds():
    with pytest.raises(ab.ConfigError, match="endless"):
        ab.simulate(three_clients(), Endless(10, lambda x, y: None))


def test_models_that_do_not_fit_the_stream():
    model, stream, _ = small_problem()
    with pytest.raises(ab.ModelError, match="the model has 2 clients, but the stream splits its features among 3"):
        ab.simulate(ab.SplitModel(model.clients[:2], model.server), stream)
    wide = ab.streams.from_arrays([np.zeros((4, 9))] * 3, np.zeros(4, int), classes=3)
    with pytest.raises(ab.ModelError, match="client 1: the model does not take 9 features"):
        ab.simulate(model, wide)
    with pytest.raises(ab.ModelError, match="server: the model does not take"):
        ab.simulate(ab.SplitModel(model.clients, eqx.nn.Linear(99, 3, key=jax.random.key(0))), stream)


def test_the_parties_settings_are_in_the_result():
    settings = run(small_problem(), seed=5, update=ab.DLR(10, 0.5)).settings
    assert settings["update"] == "DLR(window=10, decay=0.5, client_window=True)"
    assert settings["seed"] == 5
    assert settings["model"]["clients"] == 3


def test_jax_random_is_not_touched_by_a_float64_session():
    with jax.enable_x64(True):
        wide = run(small_problem(), activation=ab.Random(0.5)).activation_rate
    np.testing.assert_array_equal(wide, run(small_problem(), activation=ab.Random(0.5)).activation_rate)
    assert jnp.zeros(1).dtype == jnp.float32
