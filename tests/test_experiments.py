"""The experiments' parts: what they run, what they choose, and what their tables say."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks import commit_results
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.run import Config
from anabranch.core import models
from anabranch.errors import ConfigError, DataError
from anabranch.paper import (
    check,
    convex_regret,
    costs,
    local_regret,
    paper,
    registry,
    reproduce,
    summary,
    tables,
    tuning,
)
from anabranch.paper.bounds import Constants, convex_regret_bound, local_regret_bound
from anabranch.paper.experiment import Presentation, Row, Run, Table, rows_of
from anabranch.paper.figures import error_label, recent_error
from anabranch.paper.growth import fit_exponent
from anabranch.paper.hindsight import best_fixed_model
from anabranch.paper.listing import entries
from anabranch.paper.smoothness import estimate_smoothness
from anabranch.paper.study import IMNIST, METHODS, TUNING_SEED, Method, Problem, Study
from anabranch.sweep.data import with_data
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.record import check_record
from anabranch.sweep.trial import Trial, run_trial
from report_samples import record as sample
from report_samples import write_experiments
from small_runs import write_digits

DRY = Study(dry=True)


def record(error: float = 0.1, diverged: int | None = None, **more: Any) -> dict[str, Any]:
    """What a trial of four clients and 1,000 rounds might have come to."""
    return {
        "key": "0" * 16,
        "config": {"learning_rate": 0.01, "rounds": 1000},
        "rounds": 1000,
        "diverged": diverged,
        "accumulated_error": error,
        "run_time_error": error,
        "activation_rate": [0.5] * 4,
        "bytes_up": [256_000] * 4,
        "bytes_down": [128_000] * 4,
        "curve": {"rounds": [500, 1000], "run_time_error": [2 * error, error]},
        **more,
    }


# What is run


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("stationary", 27 + 9 + 1 + 27),  # three seeds; the paper's activation rates; SLR(40); common learning rates
        ("drift", 27 + 6 + 27),
        ("probability", 4),
        ("threshold", 3),
        ("activation", 9),
        ("window", 4),
        ("decay", 3),
        ("susy", 54),
        ("higgs", 54),
        ("clients", 18),
        ("activated", 4),
        ("regret", 2 * 7 * 3 + 3 + 5 * 3),
    ],
)
def test_the_grid_of_each_experiment(name: str, trials: int) -> None:
    runs = registry.EXPERIMENTS[name].runs(DRY)
    assert len(runs) == trials
    labels = Counter((tuple(run.labels.items()), run.config.seed) for run in runs)
    assert max(labels.values()) == 1, "two trials cannot be told apart"
    if name in ("susy", "higgs"):
        assert {(run.config.model.name, run.config.stream.name) for run in runs} == {(name, name)}


def test_the_settings_are_those_that_were_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything that was run at full size: with another α, Γ or stream, none of these would be found."""
    committed = check.reference()
    of_stream = {record["config"]["stream"]["name"]: record for record in committed.values()}
    configs = [record["config"] for record in committed.values()]
    (convex_rate,) = {config["learning_rate"] for config in configs if config.get("learning_rate_power")}
    monkeypatch.setattr(convex_regret, "constants", lambda study: (convex_rate, 1.0))  # a pilot run finds them

    def key(run: Run) -> str:
        return Trial(run.config, of_stream[run.config.stream.name]["data"]).key

    study = Study(rows={name: of_stream[name]["config"]["rounds"] for name in ("susy", "higgs")})
    pairs = tuning.tuned_pairs(list(registry.EXPERIMENTS.values()))
    runs = tuning.tuning_runs(study, pairs)
    study = replace(study, rates=tuning.choose(pairs, runs, [committed[key(run)] for run in runs]))
    for name, experiment in registry.EXPERIMENTS.items():
        for run in experiment.runs(study):
            assert key(run) in committed, f"{name}: {run.labels}"


def test_every_experiment_of_the_paper_is_there() -> None:
    named = " ".join(each.paper for each in registry.EXPERIMENTS.values())
    numbers = {int(word) for word in named.replace(",", " ").split() if word.isdigit()}
    assert numbers >= set(range(1, 14)), "Figure 1 is the drawing; Figures 2 to 13, Tables 1 to 6"


def test_all_methods_are_tuned_with_the_same_effort_on_a_stream_of_their_own() -> None:
    pairs = tuning.tuned_pairs(list(registry.EXPERIMENTS.values()))
    runs = tuning.tuning_runs(DRY, pairs)
    tried: dict[tuple, list] = {}
    for run in runs:
        tried.setdefault((run.labels["problem"], run.labels["method"]), []).append(run.config)
    imnist = {method: configs for (problem, method), configs in tried.items() if problem == "imnist, drifting"}
    assert len(imnist) == 9
    assert {tuple(c.learning_rate for c in configs) for configs in imnist.values()} == {IMNIST.learning_rates}
    assert {c.rounds for configs in imnist.values() for c in configs} == {200_000}
    finals = {run.config.seed for each in registry.EXPERIMENTS.values() for run in each.runs(DRY)}
    assert {run.config.seed for run in runs}.isdisjoint(finals)


def test_experiments_share_trials() -> None:
    def keys(name: str) -> set[str]:
        return {Trial(run.config, {}).key for run in registry.EXPERIMENTS[name].runs(DRY)}

    assert len(keys("activation") & (keys("probability") | keys("threshold"))) == 7
    assert keys("probability") & keys("drift")


def test_rounds_and_seeds_scale_everything_down() -> None:
    small = Study(rounds=5000, seeds=1, dry=True)
    for experiment in registry.EXPERIMENTS.values():
        runs = experiment.runs(small)
        assert {run.config.seed for run in runs} == {1}, experiment.name
        assert max(run.config.rounds or 0 for run in runs) <= 5000, experiment.name
    assert small.tuning_rounds_of(IMNIST) == 500


@pytest.mark.parametrize("size", [{"rounds": 0}, {"rounds": 2**31}, {"seeds": 0}, {"seeds": TUNING_SEED}])
def test_a_size_that_cannot_be_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"^(rounds|seeds) is \d+, but it must be a whole number from 1 to "):
        Study(**size)


def test_a_table_is_run_to_its_end_and_tuned_on_as_much() -> None:
    short = Study(rows={"susy": 1234}, dry=True)
    assert short.rounds_of(Problem("susy")) == short.tuning_rounds_of(Problem("susy")) == 1234
    assert Study(rows={"susy": 5_000_000}).rounds_of(Problem("susy")) == 2_000_000


def test_the_rows_of_a_table_that_is_given_shorten_the_estimate(tmp_path: Path) -> None:
    (tmp_path / "susy.csv").write_text("".join(f"{i % 2}" + ",0.5" * 18 + "\n" for i in range(30)))
    susy = [registry.EXPERIMENTS["susy"]]
    study = Study(files={"susy": tmp_path / "susy.csv", "higgs": tmp_path / "not looked at"})
    found = reproduce.with_given_rows(study, susy)
    assert found.rows == {"susy": 30}
    assert reproduce.with_given_rows(Study(), susy).rows == {}
    (given,), (not_given,) = (entries(susy, replace(each, dry=True), jobs=1) for each in (found, DRY))
    assert given.seconds < not_given.seconds / 4


def test_more_clients_take_the_learning_rate_tuned_for_four() -> None:
    method = Method("DLR", "Full")
    tuned = Study(rates={(IMNIST, method): 0.01})
    assert tuned.config(Problem("imnist", clients=16), method).learning_rate == 0.01


def test_an_unknown_experiment_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no experiment 'stationery'\. Did you mean 'stationary'"):
        registry.find(["drift", "stationery"])
    assert [each.name for each in registry.find(["all"])] == list(registry.EXPERIMENTS)
    assert [each.name for each in registry.find(["drift", "drift"])] == ["drift"]


# What tuning chooses


def test_the_chosen_learning_rate_has_the_least_error_and_did_not_diverge() -> None:
    pairs = [(IMNIST, Method("OGD", "Full")), (IMNIST, Method("DLR", "Full"))]
    runs = tuning.tuning_runs(DRY, pairs)
    errors = {"OGD-Full": {0.01: 0.2, 1.0: 0.1}, "DLR-Full": {0.03: 0.3}}
    records = []
    for run in runs:
        error = errors[str(run.labels["method"])].get(run.config.learning_rate, 0.9)
        records.append(record(error, diverged=5 if run.config.learning_rate == 1.0 else None))
    assert tuning.choose(pairs, runs, records) == {pairs[0]: 0.01, pairs[1]: 0.03}


def test_where_all_diverged_the_smallest_learning_rate_is_taken_and_the_table_says_so() -> None:
    pairs = [(IMNIST, Method("OGD", "Full")), (IMNIST, Method("DLR", "Full"))]
    runs = tuning.tuning_runs(DRY, pairs)
    records = [record(diverged=1 if run.labels["method"] == "OGD-Full" else None) for run in runs]
    chosen = tuning.choose(pairs, runs, records)
    assert chosen[pairs[0]] == 0.0003
    said = "while tuning, the loss diverged at every learning rate, and the smallest was taken"
    assert tuning.untuned(pairs, runs, records) == {pairs[0]: f"OGD-Full on imnist, stationary: {said}, 0.0003."}
    (table,) = tuning.present_tuning(rows_of(runs, records, [0.0] * len(runs)), chosen).tables
    assert [line["remark"] for line in table.rows] == [said, "the smallest of the grid"]
    assert table.columns[-1].key == "remark"
    inside = [record(0.1 if run.config.learning_rate == 0.01 else 0.2) for run in runs]
    chosen = tuning.choose(pairs, runs, inside)
    (table,) = tuning.present_tuning(rows_of(runs, inside, [0.0] * len(runs)), chosen).tables
    assert "remark" not in [column.key for column in table.columns]


# What tables and pictures say


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    assert len(paper.numbers()) == 2 * 27 + 12 + 9 + 36
    # Another digit anywhere is another digest: the file is compared with the tables before this line is changed.
    told = repr(sorted(paper.numbers().items())).encode()
    assert hashlib.sha256(told).hexdigest() == "89cd68a63799838b95b4074a40e7f61c26a0e8b8596ab86907f0706ac1c567a2"
    # Its MB are those of 2 bytes an element: 976.5625 (1 + p), and SLR's 40 times as much.
    for method, p, factor in (("OGD-Full", 1, 1), ("DLR-Random", 0.5, 1), ("SLR-Full", 1, 40)):
        said = paper.number("stationary", method, "megabytes")
        assert said == pytest.approx(factor * 4 * 64 * 2_000_000 * 2 / 2**20 * (1 + p), rel=1e-4)


def test_a_performance_table_has_the_mean_the_spread_and_the_papers_number_beside_it() -> None:
    row = Row({"method": "OGD-Full"}, (record(0.05), record(0.07), record(0.06)), 12.0)
    (line,) = tables.performance("t", "c", [row], "method", "stationary").rows
    assert line["error"] == pytest.approx(0.06)
    assert line["spread"] == "0.0500–0.0700"
    assert line["paper_error"] == 0.0575
    assert line["difference"] == pytest.approx(0.06 - 0.0575)
    assert line["megabytes"] == pytest.approx((1_024_000 + 512_000) / 2 / 2**20)
    assert line["megabytes_difference"] == pytest.approx(line["megabytes"] - 1953.13, abs=0.01)
    assert line["seconds"] == 12.0


def test_a_method_that_diverged_has_no_error_but_the_round_in_which_it_did() -> None:
    row = Row({"method": "OGD-Full"}, (record(0.05), record(0.9, diverged=1200)), 1.0)
    (line,) = tables.performance("t", "c", [row], "method", "stationary").rows
    assert line["error"] is line["difference"] is None
    assert line["spread"] == "1 of 2 diverged, first in round 1,200"


def test_columns_that_are_empty_are_left_out() -> None:
    table = tables.performance("t", "c", [Row({"method": "x"}, (record(),), 1.0)], "method", "nowhere")
    assert not [column.key for column in table.columns if column.key.startswith("paper")]


@given(st.lists(st.booleans(), min_size=4, max_size=60), st.integers(1, 7))
def test_recent_errors_are_those_between_two_points(errors: list[bool], every: int) -> None:
    points = sorted({*range(every, len(errors) + 1, every), len(errors)})
    curve = {"rounds": points, "run_time_error": [float(np.mean(errors[:t])) for t in points]}
    _, recent = recent_error({"curve": curve})
    pieces = [np.mean(errors[a:b]) for a, b in zip([0, *points], points, strict=False)]
    if points[-1] - ([0, *points])[-2] < points[0] / 2:  # a last point of few rounds is left out
        pieces.pop()
    np.testing.assert_allclose(recent, pieces, atol=1e-9)


def test_an_axis_says_which_errors_it_has() -> None:
    short, long = np.array([10.0, 20_000.0]), np.array([10.0, 40_000.0])
    assert error_label([short, np.array([])]) == "error rate between two points"
    assert error_label([short, long]) == "run-time error rate"


def test_long_curves_are_the_run_time_error_itself() -> None:
    curve = {"rounds": [20_000, 40_000], "run_time_error": [0.4, 0.3]}
    np.testing.assert_array_equal(recent_error({"curve": curve})[1], [0.4, 0.3])


def test_rows_gather_the_seeds() -> None:
    config = DRY.config(IMNIST, METHODS[0])
    runs = [Run({"a": 1}, config), Run({"a": 2}, config), Run({"a": 1}, config)]
    rows = rows_of(runs, [record(0.1), record(0.2), record(0.3)], [1.0, 2.0, 3.0])
    assert [(dict(row.labels), len(row.records), row.client_seconds) for row in rows] == [
        ({"a": 1}, 2, 2.0),
        ({"a": 2}, 1, 2.0),
    ]


def test_a_summary_says_how_it_was_scaled_and_is_written_whole(tmp_path: Path) -> None:
    small = Study(rounds=20_000, seeds=1)
    table = Table("t", "A caption", tables.performance("t", "c", [], "method", "x").columns, [])
    run = Run({"method": "OGD-Full"}, DRY.config(IMNIST, METHODS[0]))
    shown = Presentation([table, Table("of_paper", "What the paper says", [], [], measured=False)])
    written = summary.write(tmp_path, "drift", "Table 2", small, shown, [run], [record(regret=None)])
    assert written == json.loads((tmp_path / "drift" / "summary.json").read_text())
    assert "20,000 rounds where the paper has 2,000,000; 1 seed" in written["tables"][0]["caption"]
    assert written["tables"][1]["caption"] == "What the paper says"
    assert written["command"] == "anabranch reproduce drift --rounds 20000 --seeds 1"
    three = summary.write(
        tmp_path, "other", "Table 2", Study(seeds=3), Presentation([table._replace(one_seed=True)]), [], []
    )
    assert three["tables"][0]["caption"] == "A caption (1 seed)"
    assert three["tables"][0]["scale"] == " (1 seed)"
    assert three["scale"]["text"] == " (3 seeds)"
    assert sorted(file.name for file in (tmp_path / "drift").iterdir()) == ["of_paper.csv", "summary.json", "t.csv"]


@pytest.mark.parametrize(
    "damaged",
    [
        "[" * 5000,
        [],
        {},
        {"encode": [1.0] * 4},
        {"encode": [1.0] * 4, "step": [1.0] * 3},
        {"encode": 1.0, "step": 1.0},
        {"encode": [1.0, "1", 1.0, 1.0], "step": [1.0] * 4},
        {"encode": [1.0] * 4, "step": [float("nan")] * 4},
    ],
)
def test_the_clients_are_timed_again_where_the_file_of_their_times_is_damaged(
    damaged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run({}, DRY.config(IMNIST, METHODS[0]))
    timed = {"encode": [0.5] * 4, "step": [0.25] * 4}
    monkeypatch.setattr(costs, "_time", lambda config: timed)
    costs.ClientCosts(tmp_path).measure([run.config])
    file = tmp_path / costs.FILE
    (kind,) = json.loads(file.read_text())
    file.write_text(damaged if isinstance(damaged, str) else json.dumps({kind: damaged, "another": timed}))
    held = costs.ClientCosts(tmp_path)
    assert np.isnan(held.seconds(run, record()))
    held.measure([run.config])
    assert held.seconds(run, record()) == 1000 * 4 * (0.5 + 0.5 * 0.25)
    assert json.loads(file.read_text()) == {kind: timed, **({} if isinstance(damaged, str) else {"another": timed})}
    assert np.isnan(held.seconds(run, record(activation_rate=[0.5] * 3)))


# The check against the committed results


def fresh(**changes: Any) -> dict[str, Any]:
    regret = {"ideal": [1.0, 10.0], "applied": [1.0, 9.0]}
    run = {"labels": {"method": "OGD-Full"}, "seed": 1, **record(0.05, regret=regret), **changes}
    return {"name": "drift", "runs": [run]}


@pytest.mark.parametrize(
    ("changes", "passed", "identical"),
    [
        ({}, True, 1),
        ({"accumulated_error": 0.052}, True, 0),
        ({"accumulated_error": 0.054}, False, 0),
        ({"diverged": 7}, False, 0),
        ({"key": "another"}, False, 0),
        ({"activation_rate": [0.502, 0.5, 0.5, 0.5]}, True, 0),
        ({"activation_rate": [0.5, 0.5, 0.5, 0.504]}, False, 0),
        ({"bytes_up": [256_000, 258_500, 256_000, 256_000]}, True, 0),
        ({"bytes_up": [256_000, 259_000, 256_000, 256_000]}, False, 0),
        ({"bytes_down": [0] * 4}, False, 0),
        ({"regret": {"ideal": [1.0, 10.4], "applied": [1.0, 9.0]}}, True, 0),
        ({"regret": {"ideal": [1.0, 10.0], "applied": [1.0, 10.0]}}, False, 0),
        ({"regret": {"ideal": [0.9, 10.0], "applied": [1.0, 9.0]}}, True, 0),
    ],
)
def test_a_fresh_run_is_compared_trial_by_trial(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], passed: bool, identical: int
) -> None:
    monkeypatch.setattr(check, "reference", lambda: {run["key"]: run for run in fresh()["runs"]})
    found = check.check(fresh(**changes))
    assert found.passed is passed
    assert found.identical == identical
    assert found.compared + found.missing == 1


def test_two_that_diverged_are_alike_wherever_they_did() -> None:
    one, other = (fresh(diverged=n, activation_rate=[n / 100] * 4)["runs"][0] for n in (14, 15))
    assert check.differences(one, other) == {"accumulated error": 0.0}


def test_the_committed_trials_are_whole_and_of_one_version() -> None:
    committed = check.reference()
    assert all(trial["key"] == key and trial["rounds"] for key, trial in committed.items())
    for key, trial in committed.items():
        check_record(trial, Path(key))
    assert len({json.dumps(trial["versions"], sort_keys=True) for trial in committed.values()}) == 1
    assert not [key for key, trial in committed.items() if "/" in json.dumps(trial["config"])], "a path of a machine"


def test_the_committed_trials_are_found_by_their_settings() -> None:
    for key, trial in check.reference().items():
        stream = trial["config"]["stream"]
        settings = trial["config"] | {"stream": stream if stream["name"] == "imnist" else stream | {"path": "a file"}}
        assert Trial(Config.model_validate_json(json.dumps(settings)), trial["data"]).key == key


def test_trials_are_committed_with_all_that_their_records_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DRY.config(IMNIST, METHODS[0])
    old, new = sample(config), sample(config.model_copy(update={"seed": 2}))
    new["machine"] = {"processor": "Xeon", "cores": 2}
    monkeypatch.setattr(check, "reference", lambda: {old["key"]: old})
    TrialFolder(tmp_path / "out", {}).put(new)
    assert commit_results.commit(tmp_path / "out", tmp_path / check.FILE) == 2
    lines = (tmp_path / check.FILE).read_text().splitlines()
    assert {record["key"]: record for record in map(json.loads, lines)} == {old["key"]: old, new["key"]: new}
    del new["curve"]
    TrialFolder(tmp_path / "out", {}).put(new)
    with pytest.raises(DataError, match="is not the record of a trial: curve: Field required"):
        commit_results.commit(tmp_path / "out", tmp_path / check.FILE)
    assert (tmp_path / check.FILE).read_text().splitlines() == lines


def test_tables_are_committed_without_their_trials(tmp_path: Path) -> None:
    write_experiments(tmp_path / "out", ["window"], rounds=2_000_000)
    assert commit_results.commit_tables(tmp_path / "out", tmp_path / "docs") == ["tuning", "window"]
    written = json.loads((tmp_path / "out" / "window" / "summary.json").read_text())
    trials = len(written.pop("runs"))
    assert json.loads((tmp_path / "docs" / "window.json").read_text()) == written | {"trials": trials}
    assert {"command", "versions", "machine"} <= written.keys()
    picture = (tmp_path / "out" / "window" / "window.png").read_bytes()
    assert (tmp_path / "docs" / "window.png").read_bytes() == picture


# Regret


def test_the_bounds_of_the_theorems() -> None:
    constants = Constants(loss=2.0, smoothness=3.0, variance=5.0, gradient=7.0)
    rounds, window, rate, least, greatest = 100, 10, 0.1, 0.25, 0.5
    first = rounds / (window * least) * (8 * 2 / rate + 2 * 3 * rate * greatest * 5)
    second = 2 * rounds * 3 * rate * (greatest / least) * 7**2
    assert local_regret_bound(rounds, window, rate, least, greatest, constants) == pytest.approx(first + second)
    expected = (3 * 7**2 * 2 + 4 * 2**3 + 2 * 3**2 * 4**2 * 7**2 * 2) / (2 * 7 * 0.25) * 10
    assert convex_regret_bound(100, 2, 7, 0.25, smoothness=3, delay=4) == pytest.approx(expected)


def test_the_proved_rates_follow_from_the_bounds() -> None:
    constants = Constants(1.0, 1.0, 1.0, 1.0)
    rounds = [10**k for k in range(6, 12)]
    sums = [local_regret_bound(t, int(t**0.5), t**-0.25, 0.5, 0.5, constants) for t in rounds]
    found = fit_exponent(rounds, sums)
    assert found is not None
    assert found.value == pytest.approx(0.75, abs=0.01)


@given(st.floats(0.1, 2), st.floats(0.1, 10))
def test_an_exponent_is_found_again(exponent: float, factor: float) -> None:
    found = fit_exponent([10, 100, 1000, 10_000], [factor * t**exponent for t in (10, 100, 1000, 10_000)])
    assert found is not None
    assert found.value == pytest.approx(exponent, abs=1e-6)
    assert found.low <= found.value <= found.high


def test_an_exponent_needs_two_positive_sums() -> None:
    assert fit_exponent([10], [1.0]) is None
    assert fit_exponent([10, 100], [1.0, -1.0]) is None


def test_the_best_fixed_model_is_that_of_another_solver() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(3, 3)) + 2 * rng.normal(size=(400, 3)), axis=1).astype(np.int32)
    best = best_fixed_model(x, y, 3)
    other = LogisticRegression(C=1e9, tol=1e-9, max_iter=5000).fit(x, y)
    loss = -other.predict_log_proba(x)[np.arange(400), y].sum()
    assert best.loss == pytest.approx(loss, rel=1e-6)
    assert best.slope < 1e-5


def test_the_weights_of_the_best_fixed_model_have_its_loss_where_features_are_far_from_white() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 3)) @ [[1.0, 0.9, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 30.0]] + [5.0, 0.0, -40.0]
    x = np.column_stack([x, np.full(300, 2.0)]).astype(np.float32)  # and one that never changes
    y = (x[:, 0] - 5 + rng.normal(size=300) > 0).astype(np.int32)
    best = best_fixed_model(x, y, 2)
    logits = x.astype(float) @ best.weights[:-1] + best.weights[-1]
    losses = np.logaddexp(logits[:, 0], logits[:, 1]) - logits[np.arange(300), y]
    assert losses.sum() == pytest.approx(best.loss, rel=1e-5)
    assert best.loss < 300 * np.log(2)


def test_the_smoothness_is_the_largest_curvature() -> None:
    model = models.mlp((2, 1), 2, hidden=(), embedding=2, server=(), seed=0)
    x, y = jnp.array([[1.0, -0.5, 2.0], [0.3, 0.2, -1.0]]), jnp.array([0, 1])
    arrays, rest = jax.tree.flatten(model)
    where = [i for i, leaf in enumerate(arrays) if hasattr(leaf, "dtype")]
    sizes = np.cumsum([0, *(arrays[i].size for i in where)])

    def loss(flat: jax.Array, sample: jax.Array, label: jax.Array) -> jax.Array:
        leaves = list(arrays)
        for n, i in enumerate(where):
            leaves[i] = flat[sizes[n] : sizes[n + 1]].reshape(arrays[i].shape)
        whole = jax.tree.unflatten(rest, leaves)
        embeddings = jnp.concatenate([whole.clients[0](sample[:2]), whole.clients[1](sample[2:])])
        return optax.softmax_cross_entropy_with_integer_labels(whole.server(embeddings), label)

    flat, hessian = jnp.concatenate([arrays[i].ravel() for i in where]), jax.jit(jax.hessian(loss))
    hessians = [hessian(flat, *sample) for sample in zip(x, y, strict=True)]
    largest = max(np.abs(np.linalg.eigvalsh(np.asarray(h, float))).max() for h in hessians)
    assert estimate_smoothness(model, x, y, (2, 1), steps=200) == pytest.approx(largest, rel=1e-3)


def test_the_horizons_end_at_half_of_the_rounds() -> None:
    assert local_regret.horizons(Study()) == [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    assert local_regret.horizons(Study(rounds=20_000)) == [1000, 3000, 10_000]
    assert local_regret.horizons(Study(rounds=10)) == [5]


def test_convex_regret_is_that_against_the_best_model_of_each_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convex_regret, "PILOT_ROUNDS", 100)
    study = Study(rounds=80, seeds=2, data_dir=write_digits(tmp_path))
    runs = convex_regret.runs(study)
    assert [run.config.seed for run in runs] == [1, 2] * 3
    records = [run_trial(trial) for trial in with_data([run.config for run in runs])]
    shown = convex_regret.present(study, rows_of(runs, records, [0.0] * len(runs)))
    regrets = []
    for run, found in zip(runs[:2], records[:2], strict=True):
        x, y = convex_regret.samples(run.config, 40)
        regrets.append(found["regret"]["loss"][-1] - best_fixed_model(x, y, 10).loss)
    assert regrets[0] != pytest.approx(regrets[1], rel=1e-3)
    assert shown.tables[0].rows[0]["regret"] == pytest.approx(np.mean(regrets))
    dots = [line for line in shown.pictures[0].figure.axes[0].lines if line.get_marker() == "o"]
    assert sorted(dots[0].get_ydata()) == pytest.approx(sorted(regrets))


def test_what_is_left_out_of_the_local_regret_is_said() -> None:
    constants = dict.fromkeys(("largest_loss", "largest_gradient", "mean_squared_gradient"), 1.0)
    regret = {"ideal": [5.0], "applied": [5.0], **constants}
    runs = [run for run in local_regret.runs(Study(seeds=1)) if run.labels["T"] in (1000, 3000)]
    diverged = {"factor": 1.0, "T": 3000}
    records = [record(diverged=7 if diverged.items() <= run.labels.items() else None, regret=regret) for run in runs]
    shown = local_regret.present(Study(seeds=1), rows_of(runs, records, [0.0] * len(runs)), 2.0)
    assert [row["T"] for row in shown.tables[0].rows] == [1000, 1000, 3000]
    assert shown.tables[1].rows[0] == {
        "factor": 1.0, "T": 1000, "loss": 1.0, "smoothness": 2.0, "variance": 1.0, "gradient": 1.0
    }  # fmt: skip
    assert "c = 1: left out, since a seed's loss diverged: T = 3,000." in shown.notes


def test_the_convex_runs_fall_with_the_root_of_the_round() -> None:
    run = convex_regret.runs(DRY)[0]
    assert run.config.learning_rate_power == 0.5
    assert run.config.model.name == "linear"
