"""Experiments that compare arms: what they run, and what their tables say of the trials that there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import run_trials
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from anabranch.config import build as runner
from anabranch.paper import arms, check, client_step, full_length, paper, readings, registry
from anabranch.paper.experiment import Experiment, Row, Run, select
from anabranch.paper.paired import interval, paired_difference
from anabranch.paper.study import IMNIST, IMNIST_DRIFT, METHODS, TUNING_SEED, Method, Study
from anabranch.simulation.result import versions
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.trial import Trial
from report_samples import record as sample
from small_runs import write_digits

DRY = Study(dry=True)


def record(error: float, seed: int = 1, diverged: int | None = None) -> dict[str, Any]:
    return {
        "config": {"seed": seed, "learning_rate": 0.01},
        "diverged": diverged,
        "accumulated_error": error,
        "curve": {"rounds": list(range(1, 21)), "run_time_error": [error] * 18 + [2 * error, 4 * error]},
    }


def row(arm: str, errors: list[float], rate: float = 0.01, **more: Any) -> Row:
    return Row({"rate": rate, "arm": arm}, tuple(record(e, s, **more) for s, e in enumerate(errors, 1)), 0.0)


# Differences and their intervals


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6).filter(
        lambda pairs: np.std([a - b for a, b in pairs]) > 1e-6
    )
)
def test_a_paired_difference_has_the_interval_of_students_t(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = ({seed: pair[i] for seed, pair in enumerate(pairs)} for i in (0, 1))
    found = paired_difference(ours, theirs)
    expected = ttest_rel(*zip(*pairs, strict=True)).confidence_interval(0.95)
    assert found is not None
    assert found.margin is not None
    np.testing.assert_allclose([found.mean - found.margin, found.mean + found.margin], expected, atol=1e-9)
    assert found.differs == (not expected.low <= 0 <= expected.high)


def test_seeds_are_paired_by_their_number_and_not_by_their_place() -> None:
    found = paired_difference({3: 0.3, 1: 0.1, 9: 0.9}, {1: 0.0, 2: 0.5, 3: 0.2})
    assert found is not None
    assert (round(found.mean, 9), found.seeds) == (0.1, 2)
    assert paired_difference({1: 0.1}, {2: 0.1}) is None


def test_one_seed_has_no_interval() -> None:
    one = interval({1: 0.25})
    assert one is not None
    assert (one.margin, one.differs, str(one)) == (None, None, "+0.2500 (one seed)")
    assert interval({}) is None


# Tables


def test_an_arm_is_compared_with_each_reference_of_its_rate() -> None:
    rows = [row("A", [0.1, 0.2]), row("B", [0.3, 0.4]), row("A", [0.5, 0.5], 0.1), row("B", [0.5], 0.1)]
    table = arms.arm_table("t", "c", rows, 2, ("A",))
    lines = {(line["rate"], line["row"]): line for line in table.rows}
    assert lines[0.01, "B"]["error"] == pytest.approx(0.35)
    assert lines[0.01, "B"]["minus A"] == "+0.2000 ± 0.0000"
    assert lines[0.01, "A"]["minus A"] is None
    assert lines[0.1, "B"]["minus A"] == "+0.0000 (one seed)"
    assert (lines[0.1, "B"]["seeds"], lines[0.1, "B"]["remark"]) == ("1 of 2", "1 not run yet")
    assert lines[0.01, "A"]["last"] == pytest.approx(0.15 * 3)


def test_cells_that_were_not_run_or_diverged_are_said() -> None:
    rows = [row("A", [0.1, 0.2]), row("B", []), row("C", [0.4, 0.4], diverged=7)]
    lines = {line["row"]: line for line in arms.arm_table("t", "c", rows, 2, ("A",)).rows}
    assert (lines["B"]["error"], lines["B"]["last"], lines["B"]["remark"]) == (None, None, "not run yet")
    assert (lines["C"]["error"], lines["C"]["remark"]) == (None, "2 diverged, first in round 7")
    whole = arms.arm_table("t", "c", rows[:1], 2, ())
    assert "remark" not in [column.key for column in whole.columns]


def test_tables_are_written_of_what_was_run_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "reference", dict)
    runs = [Run({"rate": 0.01, "arm": arm}, DRY.config(IMNIST, METHODS[0], seed=s)) for arm in "AB" for s in (1, 2)]
    records = [record(0.1), None, None, None]
    first, second = run_trials.rows_so_far(runs, records)
    assert (first.labels["arm"], len(first.records)) == ("A", 1)
    assert (second.labels["arm"], second.records) == ("B", ())


def test_committed_trials_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run({"arm": arm}, DRY.config(IMNIST, METHODS[0], seed=seed)) for arm, seed in (("A", 1), ("B", 2))]
    monkeypatch.setattr(run_trials, "with_data", lambda configs: [Trial(each, {}) for each in configs])
    committed = sample(runs[0].config) | {"versions": versions()}
    monkeypatch.setattr(check, "reference", lambda: {Trial(runs[0].config, {}).key: committed})
    folder = TrialFolder(tmp_path, {"versions": versions()})
    left = list(run_trials.missing(folder, [*runs, *runs]))
    assert [run.labels["arm"] for run, _ in left] == ["B"]
    assert folder.keys() == [committed["key"]]


# What is run


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("client-step", 5 * 3 * (2 * 9 + 5)),  # rates, seeds; nine arms where some are passive, else five
        ("readings", 4 * 2 * 3 * (6 + 6 + 4 + 3) * 3 + 4 * 2 * 3),
        ("full-length", 2 * 9 * 2 + 2 * 9 * 2 * 3 + (4 + 4 + 4 + 3) * 2 * 3 + 2 * 9 * 2 * 3),
    ],
)
def test_the_grid_of_each_further_experiment(name: str, trials: int) -> None:
    runs = registry.FURTHER[name].runs(DRY)
    assert len(runs) == trials
    labels = Counter((tuple(run.labels.items()), run.config.seed) for run in runs)
    assert max(labels.values()) == 1, "two trials cannot be told apart"
    assert registry.find([name]) == [registry.FURTHER[name]]
    assert name not in {each.name for each in registry.find(["all"])}


def test_the_weights_of_a_clients_gradient_add_up_to_rho() -> None:
    """A gradient is applied in its own round, and in each of the next nine with the client's probability."""
    for p in (0.0, 0.178, 0.5, 1.0):
        weights = [0.95**i * (1.0 if i == 0 else p) for i in range(10)]
        assert client_step.total_weight(p) == pytest.approx(sum(weights) / sum(0.95**i for i in range(10)))


def test_the_activation_rates_are_those_of_the_committed_trials() -> None:
    event = DRY.config(IMNIST_DRIFT, Method("OGD", "Event"))
    same = {"rounds": 2_000_000, "drift": {"every": 50}, "activation": event.activation.model_dump()}
    found = [
        each
        for each in check.reference().values()
        if all(each["config"].get(key) == value for key, value in same.items())
        and each["config"]["model"].get("clients") == 4
    ]
    assert len(found) >= 9
    for each in found:
        assert each["activation_rate"] == pytest.approx(client_step.ACTIVATED["Event"], abs=6e-4)


def test_an_arm_changes_its_clients_rates_only() -> None:
    rates = client_step.client_rates(0.01, "Event", lambda p: 1 / p)
    assert rates == (0.01, 0.133333, 0.0125, 0.0130208, 0.0561798)
    assert client_step.client_rates(0.01, "Full", client_step.total_weight) == 0.01


def test_the_candidates_are_the_two_best_of_the_short_horizon() -> None:
    tried: dict[tuple, list[tuple[float, float]]] = {}
    for trial in check.reference().values():
        config = trial["config"]
        if config["seed"] == TUNING_SEED and config["stream"]["name"] == "imnist":
            method = Method(config["update"]["name"], config["activation"]["name"])
            cell = tried.setdefault((method, bool(config.get("drift"))), [])
            cell.append((trial["accumulated_error"], config["learning_rate"]))
    assert len(tried) == 2 * len(METHODS)
    for (method, _), errors in tried.items():
        best = {rate for _, rate in sorted(errors)[:2]}
        assert best == set(full_length.CANDIDATES[method.update]), method


def test_the_selection_has_a_seed_of_its_own() -> None:
    runs = full_length.EXPERIMENT.runs(DRY)
    of_selection = {run.config.seed for run in runs if run.labels["part"] == "selection"}
    assert of_selection == {full_length.SELECTION_SEED}
    assert {run.config.seed for run in runs} - of_selection == {1, 2, 3}


def test_the_better_rate_of_the_selection_is_used() -> None:
    runs = full_length.EXPERIMENT.runs(Study(seeds=1, dry=True))
    rows = []
    for run in runs:
        better = run.labels["rate"] == full_length.CANDIDATES["OGD"][1]
        wanted = run.labels["part"] in ("selection", "main") and run.labels.get("method") != "DLR-Event"
        rows.append(Row(run.labels, (record(0.1 if better else 0.2),) if wanted else (), 0.0))
    shown = full_length.EXPERIMENT.present(Study(seeds=1), rows)
    lines = {line["row"]: line for line in shown.tables[0].rows}
    assert (lines["DLR-Full"]["rate"], lines["DLR-Full"]["error"]) == (0.01, 0.1)
    assert lines["DLR-Full"]["minus"] == "+0.0000 (one seed)"
    assert (lines["DLR-Event"]["rate"], lines["DLR-Event"]["error"], lines["DLR-Event"]["seeds"]) == (None, None, 0)
    assert "not run yet" in lines["DLR-Event"]["tried 1"]
    diverged = Row({"rate": 1.0}, (record(0.0, diverged=3),), 0.0)
    assert full_length.chosen_rate([diverged, Row({"rate": 0.5}, (record(0.9),), 0.0)]) == 0.5


def test_the_tables_of_client_step_have_every_arm() -> None:
    rows = [Row(run.labels, (record(0.1),), 0.0) for run in client_step.EXPERIMENT.runs(Study(seeds=1, dry=True))]
    shown = client_step.EXPERIMENT.present(Study(seeds=1), rows)
    assert [len(table.rows) for table in shown.tables] == [25, 45, 45]
    assert {str(row.labels["arm"]) for row in select(rows, activation="Random")} == set(client_step.ARMS)
    (picture,) = shown.pictures
    panels = {axes.get_title(loc="left"): axes for axes in picture.figure.axes}
    drawn = {line.get_label(): line.get_color() for line in panels["Random"].get_lines()}
    assert drawn == client_step.DRAWN
    assert [line.get_label() for line in panels["Full"].get_lines()] == ["OGD", "DLR", "DLR by Algorithm 3"]
    assert not client_step.EXPERIMENT.present(Study(seeds=1), [row._replace(records=()) for row in rows]).pictures


# Readings of the paper's words


def test_a_reading_is_scored_against_each_of_the_papers_tables() -> None:
    """Twice the paper's numbers everywhere lie log 2 away; a table whose row is missing has no distance."""
    rows = []
    for run in readings.EXPERIMENT.runs(Study(seeds=1, dry=True)):
        theirs = paper.number(str(run.labels["table"]), str(run.labels["row"]), "error")
        assert theirs is not None
        factor = 2.0 if run.labels["softmax"] == "twice" else 1.0
        missing = run.labels["rate"] == 0.015 and run.labels["row"] == "p = 0.25"
        rows.append(Row(run.labels, () if missing else (record(factor * theirs),), 0.0))
    own, slr = readings.EXPERIMENT.present(Study(seeds=1), rows).tables
    lines = {(line["row"], line["rate"]): line for line in own.rows}
    assert len(lines) == 3 * 2 * 4
    assert lines["DLR by the text, softmax once", 0.01]["all"] == pytest.approx(0)
    twice = lines["DLR by Algorithm 3, softmax twice", 0.01]
    assert all(twice[table] == pytest.approx(np.log(2)) for table in (*readings.TABLES, "all"))
    partial = lines["DLR by the text, softmax once", 0.015]
    assert (partial["probability"], partial["all"], partial["seeds"]) == (None, None, 0)
    assert [line["drift"] for line in slr.rows] == pytest.approx([0.0] * 4 + [np.log(2)] * 4)


def test_the_readings_share_their_trials_with_client_step() -> None:
    def keys(experiment: Experiment) -> set[str]:
        return {Trial(run.config, {}).key for run in experiment.runs(DRY)}

    shared = keys(readings.EXPERIMENT) & keys(client_step.EXPERIMENT)
    assert len(shared) == 4 * 3 * 3 * 4  # rates, activations, seeds; OGD and three readings of DLR


def test_a_server_with_a_softmax_gives_probabilities(tmp_path: Path) -> None:
    stream = {"name": "imnist", "data_dir": str(write_digits(tmp_path))}
    configs = [
        DRY.config(IMNIST, METHODS[0], stream=stream, model={"name": "imnist", "server_softmax": softmax})
        for softmax in (False, True)
    ]
    once, twice = (runner.build(config).model for config in configs)
    some = np.linspace(-1, 1, 256, dtype=np.float32)
    logits = np.asarray(once.server(some), np.float64)
    np.testing.assert_allclose(twice.server(some), np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)
