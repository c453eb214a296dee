"""Labels that come after their events, in the simulator."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch.config import build as runner
from anabranch.config.load import load
from anabranch.simulation import run_setup as prepared
from anabranch.simulation.delays import Delay, FixedDelay, GeometricDelay, UniformDelay
from anabranch.simulation.traffic import MB
from anabranch.sweep.batched import run_batched
from anabranch.sweep.data import with_data
from anabranch.sweep.trial import Trial, run_trial
from problems import bits, small_problem
from problems import run as run_problem
from small_runs import write_rooms
from test_simulate import Failing, Wrong, spoil_feature, three_clients

CHUNKS = (1, 7, 32)
RANDOM = [UniformDelay(0, 7), GeometricDelay(6)]
MORE_THAN_ALL = 1000
COMMON = {"update": ab.DLR(10, 0.9), "learning_rate_power": 0.25, "rounds": 60}
"""Of most runs: with delays that need as many slots they share what is compiled."""
learnings = pytest.mark.parametrize("learning", ["fresh", "stored"])


def run(problem, **options):
    return run_problem(problem, **{**COMMON, **options})


def brief(result):
    """What must not depend on the chunk."""
    return bits(result.model), result.predictions.tolist(), str(result.late_labels), result.curve.rounds.tolist()


def agenda(delays):
    """(what, event) tick by tick, by the definition."""
    for tick in range(len(delays) + max(delays)):
        if tick < len(delays):
            yield "event", tick
        for event, delay in enumerate(delays):
            if event + delay == tick:
                yield "label", event


@learnings
def test_no_delay_is_the_run_without_one(learning):
    plain = run(small_problem())
    for none in (0, UniformDelay(0, 0), GeometricDelay(0.0)):
        result = run(small_problem(), label_delay=none, label_learning=learning)
        assert bits(result.model) == bits(plain.model)
        np.testing.assert_array_equal(result.predictions, plain.predictions)
        assert result.late_labels is None
        assert result.settings == plain.settings


@pytest.mark.parametrize("update", [COMMON["update"], ab.SLR(4)], ids=repr)
@pytest.mark.parametrize("delay", [7, MORE_THAN_ALL])
def test_fresh_with_a_fixed_delay_learns_the_same_and_predicts_what_an_older_model_does(update, delay):
    model, stream, _ = problem = small_problem()
    plain, late = (run(problem, update=update, label_delay=each) for each in (0, delay))
    assert bits(late.model) == bits(plain.model)
    assert late.traffic.total == plain.traffic.total
    np.testing.assert_array_equal(late.activation_rate, plain.activation_rate)
    (block,) = stream.blocks()
    for event in (0, 1, 2, 40, 41, 59):
        learnt = max(0, event - delay)
        then = run(problem, update=update, rounds=learnt).model if learnt else model
        assert late.predictions[event] == then(jnp.asarray(block.x[event]), stream.widths).argmax()
    np.testing.assert_array_equal(late.errors, late.predictions != block.y)
    assert late.error_rate == late.errors.mean()


@learnings
@pytest.mark.parametrize("delay", [7, RANDOM[0]], ids=repr)
def test_the_result_does_not_depend_on_the_chunk_length(learning, delay):
    options = {"activation": ab.Random(0.5), "label_delay": delay, "label_learning": learning}
    results = [run(small_problem(), chunk=chunk, **options) for chunk in CHUNKS]
    assert all(brief(result) == brief(results[0]) for result in results)


@learnings
def test_clients_are_activated_when_the_event_happens_and_not_when_it_is_learnt_from(learning):
    model, stream, _ = small_problem()
    activation = ab.Random(0.5)
    (block,) = stream.blocks()
    recorded = ab.Recorded(activation.mask(0, 0, block.x, stream.widths))
    options = {"label_delay": RANDOM[0], "label_learning": learning}
    drawn, given = (run((model, stream, None), activation=each, **options) for each in (activation, recorded))
    assert brief(drawn) == brief(given)


@pytest.mark.parametrize("delay", [7, MORE_THAN_ALL, *RANDOM], ids=repr)
def test_what_the_delay_came_to_is_counted(delay):
    problem = small_problem()
    active = problem[2]
    drawn = (FixedDelay(delay) if isinstance(delay, int) else delay).draw(0, 0, 60).tolist()
    learnt = most = 0
    steps, made, behind = np.zeros(3, int), {}, np.zeros(3, int)
    for i, (what, event) in enumerate(agenda(drawn)):
        if what == "event":
            made[event] = steps.copy()
            most = max(most, i + 1 - 2 * learnt)
        else:
            learnt += 1
            behind = np.maximum(behind, np.where(active[event], steps - made[event], 0))
            steps += active[event]
    fresh, stored = (run(problem, label_delay=delay, label_learning=learning) for learning in ("fresh", "stored"))
    embedding = fresh.traffic.up // 60
    for result in (fresh, stored):
        late = result.late_labels
        assert (late.events, late.longest_delay, late.most_waiting) == (60, max(drawn), most)
        assert late.mean_delay == np.mean(drawn)
        np.testing.assert_array_equal(result.traffic, run(problem).traffic)
        json.dumps(result.describe(), allow_nan=False)
    np.testing.assert_array_equal(fresh.late_labels.prediction_bytes, 60 * embedding)
    np.testing.assert_array_equal(stored.late_labels.prediction_bytes, 0)
    np.testing.assert_array_equal(fresh.late_labels.steps_behind, 0)
    np.testing.assert_array_equal(stored.late_labels.steps_behind, behind)
    assert stored.late_labels.steps_behind.max() > 0
    assert bits(fresh.model) != bits(stored.model)
    assert fresh.settings["label_delay"] == (delay if isinstance(delay, int) else repr(delay))


def test_the_regret_of_fresh_rounds_is_that_without_a_delay():
    plain, late = (run(small_problem(), measure_regret=True, label_delay=delay).regret for delay in (0, 7))
    assert plain.largest_loss == late.largest_loss
    np.testing.assert_array_equal(plain.ideal, late.ideal)


def test_a_run_that_ends_early_learns_from_no_more_labels():
    chunk = 10
    with pytest.raises(ab.DataError, match="row 57") as error:
        ab.simulate(three_clients(), Failing(100, spoil_feature), chunk=chunk, label_delay=8)
    result = error.value.result
    assert (result.rounds, result.late_labels.events) == (48, 56)
    good = ab.simulate(three_clients(), Failing(100, lambda x, y: None), chunk=chunk, rounds=48)
    assert bits(good.model) == bits(result.model)
    stored = {"label_delay": 8, "label_learning": "stored"}
    with pytest.raises(ab.DataError) as error:
        ab.simulate(three_clients(), Failing(100, spoil_feature), chunk=chunk, **stored)
    np.testing.assert_array_equal(error.value.result.late_labels.prediction_bytes, 8 * 4 * 4)


def test_a_loss_that_is_not_finite_stops_the_run_in_the_same_round():
    options = {"update": ab.OGD(), "learning_rate": 1e18, "learning_rate_power": 0.0, "rounds": 300}
    ended = []
    for delay in (0, 5):
        with pytest.raises(ab.Diverged) as error:
            run(small_problem(rounds=300), label_delay=delay, **options)
        ended.append(error.value)
    plain, late = ended
    assert str(plain) == str(late)
    assert bits(plain.result.model) == bits(late.result.model)
    assert late.result.late_labels.events == late.round + 5


def test_recorded_activations_that_end_before_the_stream_end_the_events():
    model, stream, active = small_problem()
    result = run((model, stream, active[:50]), label_delay=7, chunk=7, rounds=None)
    assert (result.rounds, result.late_labels.events) == (50, 50)
    assert result.stopped == "the recorded activations ended after 50 rounds, and the stream goes on"


def test_the_clients_compute_more_where_labels_are_late():
    plain, fresh, stored = (
        run(small_problem(), label_delay=delay, label_learning=learning)
        for delay, learning in ((0, "fresh"), (7, "fresh"), (7, "stored"))
    )
    for result in (plain, fresh, stored):
        result.client_times = (np.full(3, 1.0), np.full(3, 0.0))
    steps = 60 * plain.activation_rate.sum()
    assert (plain.client_seconds, fresh.client_seconds) == (180, 360)
    assert stored.client_seconds == pytest.approx(180 + steps)


def test_an_event_has_the_same_delay_whatever_is_drawn_with_it():
    for delay in RANDOM:
        drawn = delay.draw(3, 0, 200)
        np.testing.assert_array_equal(np.concatenate([delay.draw(3, 0, 70), delay.draw(3, 70, 130)]), drawn)
        assert (drawn != delay.draw(4, 0, 200)).any()
        assert 0 <= drawn.min() <= drawn.max() <= delay.most
    assert set(UniformDelay(3, 5).draw(0, 0, 200)) == {3, 4, 5}


class Own(Delay):
    most = 7

    def __init__(self, drawn):
        self.drawn = drawn

    def draw(self, seed, first, n):
        return np.full(n, self.drawn) if np.ndim(self.drawn) == 0 else self.drawn


@pytest.mark.parametrize("drawn", [1.0, 8, -1, np.ones(31, int)], ids=["float", "late", "early", "few"])
def test_delays_of_ones_own_are_checked(drawn):
    assert bits(run(small_problem(), label_delay=Own(3)).model) == bits(run(small_problem()).model)
    with pytest.raises(ab.ConfigError, match=r"label_delay Own: draw must return 32 whole numbers from 0 to .* 7"):
        run(small_problem(), label_delay=Own(drawn))


def test_an_activation_that_is_wrong_is_named():
    with pytest.raises(ab.ConfigError, match="activation Wrong: mask returned"):
        run(small_problem(), activation=Wrong(np.ones((1, 3), bool)), label_delay=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[
            ({"label_delay": value}, rf"label_delay is {value!r}: must be a whole number from 0")
            for value in (-1, 2.5, 50.0, True, float("nan"), float("inf"), "50", None)
        ],
        ({"label_delay": UniformDelay}, r"label_delay is the class UniformDelay: make one of it"),
        ({"label_learning": "store"}, r"label_learning is 'store'; known are fresh, stored. Did you mean 'stored'"),
        ({"label_learning": True}, "label_learning is True"),
        (
            {"label_learning": "stored", "label_delay": 3, "update": ab.SLR(4)},
            "label_learning is 'stored', but the update SLR evaluates past samples again at today's parameters",
        ),
        ({"label_learning": "stored", "label_delay": 3, "measure_regret": True}, "measure_regret: .* 'stored'"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message):
    with pytest.raises(ab.ConfigError, match=message):
        run(small_problem(), **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformDelay(5, 2), "UniformDelay: most is 2: must be a whole number from 5"),
        (lambda: UniformDelay(-1, 2), "UniformDelay: least is -1"),
        (lambda: UniformDelay(0, True), "UniformDelay: most is True"),
        (lambda: GeometricDelay(-1), "GeometricDelay: mean is -1, but it is a number of 0 or more"),
        (lambda: GeometricDelay(float("nan")), "GeometricDelay: mean is nan"),
        (lambda: GeometricDelay(True), "GeometricDelay: mean is True"),
        (lambda: GeometricDelay("7"), "GeometricDelay: mean is '7'"),
        (lambda: GeometricDelay(1e9), "no run is as long"),
    ],
)
def test_a_distribution_out_of_range_is_named(make, message):
    with pytest.raises(ab.ConfigError, match=message):
        make()


@learnings
def test_a_delay_for_which_memory_does_not_suffice_is_refused_at_once(learning, monkeypatch):
    monkeypatch.setattr(prepared, "memory_bytes", lambda: 10 * MB)
    model = three_clients()
    endless = Failing(10**6, lambda x, y: None)
    monkeypatch.setattr(endless, "blocks", lambda: pytest.fail("it must not be read"))
    with pytest.raises(ab.ConfigError, match=r"label_delay is 999999: up to 1,000,000 events wait .* GB"):
        ab.simulate(model, endless, label_delay=999_999, label_learning=learning)
    problem = small_problem()
    assert run(problem, label_delay=999_999, label_learning=learning).rounds == 60  # no more wait than come


# In a configuration


@pytest.mark.parametrize(
    ("given", "delay"),
    [
        ("7", 7),
        ("{name = 'uniform', most = 9}", UniformDelay(0, 9)),
        ("{name = 'uniform', least = 3, most = 9}", UniformDelay(3, 9)),
        ("{name = 'geometric', mean = 6.0}", GeometricDelay(6)),
    ],
)
def test_a_configuration_says_how_late_labels_come(tmp_path, given, delay):
    rooms = write_rooms(tmp_path)
    config = load(rooms, [f"label_delay={given}", "label_learning=stored", "rounds=60"])
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert load(tmp_path / "again.toml") == config
    options = runner.build(config).options
    assert (options["label_delay"], options["label_learning"]) == (delay, "stored")
    assert "late, stored" in config.title()
    assert load(rooms).title() == load(rooms, ["label_delay=0"]).title()


@pytest.mark.parametrize(
    "given",
    ["nan", "-1", "2.5", "true", "'7'", "{name = 'geometric', mean = -1}", "{name = 'geometric', mean = inf}",
     "{name = 'uniform', most = 9, leest = 3}", "{name = 'normal', mean = 9}", "{mean = 9}"],
)  # fmt: skip
def test_a_configuration_of_another_delay_is_refused(given):
    with pytest.raises(ab.ConfigError, match=r"label_delay is .*, but it must be a whole number of rounds"):
        load("imnist", [f"label_delay={given}"])


def test_a_configuration_whose_numbers_do_not_fit_one_another_is_refused(tmp_path):
    config = load(write_rooms(tmp_path), ["label_delay={name = 'uniform', least = 5, most = 2}"])
    with pytest.raises(ab.ConfigError, match="label_delay UniformDelay: most is 2: must be a whole number from 5"):
        runner.build(config)


def test_a_trial_whose_labels_come_at_once_is_one_however_late_ones_would_be_learnt_from(tmp_path):
    def key(*settings):
        return Trial(load(rooms, settings), {}).key

    rooms = write_rooms(tmp_path)
    assert key("label_learning=stored") == key()
    assert key("label_learning=stored", "label_delay=9") != key("label_delay=9")
    assert key("label_learning=stored", "update={name='SLR'}") != key("update={name='SLR'}")  # which is refused
    trials = with_data([load(rooms, ["rounds=60", f"label_learning={each}"]) for each in ("fresh", "stored")])
    timings = dict.fromkeys(("cpu_seconds", "wall_seconds", "rounds_per_second", "config"))
    fresh, stored = (run_trial(trial) | timings for trial in trials)
    assert fresh == stored


def test_a_trial_with_late_labels_runs_beside_a_batch(tmp_path):
    rooms = write_rooms(tmp_path)
    trials = with_data([load(rooms, ["rounds=60", *late]) for late in ([], ["label_delay=9"])])
    assert trials[0].key != trials[1].key
    begun = []
    attempts = {each.key: each for each in run_batched(trials, begun=begun.append)}
    timings = ("cpu_seconds", "wall_seconds", "rounds_per_second")
    for trial in trials:
        record, alone = attempts[trial.key].record, run_trial(trial)
        assert {**record, **dict.fromkeys(timings)} == {**alone, **dict.fromkeys(timings)}
    assert begun == [1, 1]
