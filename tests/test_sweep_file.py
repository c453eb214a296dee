"""A sweep's file, its folder, its table and its estimates: what there is before and after trials run."""

from __future__ import annotations

import errno
import io
import json
import math
import re
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from anabranch.cli.trials import TrialsReporter, ranking
from anabranch.config.load import Override, load
from anabranch.config.run import Config
from anabranch.errors import ConfigError, DataError, OutputError
from anabranch.report.trials import read_trials
from anabranch.sweep import estimate, file, folder, progress, table
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.run import Sweep
from anabranch.sweep.trial import Trial, check_versions, run_trial
from report_samples import record as sample
from small_runs import write_rooms


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def configs(path: Path, *overrides: Override) -> list[Config]:
    return [point.config for point in file.read(path, overrides).points]


def test_every_combination_is_a_trial_with_its_labels(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rates.toml",
        """
        base = "imnist"
        rounds = 500
        [update]
        decay = 0.9
        [grid]
        learning_rate = [0.1, [0.2, 0.1, 0.1, 0.1, 0.1]]
        update.window = [10, 50]
        seed = [1, 2, 3]
        """,
    )
    swept = file.read(path)
    assert swept.name == "rates"
    assert len(swept.points) == 12
    for config, labels in swept.points:
        rate = labels["learning_rate"]
        assert config == load(
            "imnist",
            [
                "rounds=500",
                "update.decay=0.9",
                f"learning_rate={rate}",
                f"update.window={labels['update.window']}",
                f"seed={labels['seed']}",
            ],
        )


def test_tables_of_a_section_vary_together_and_change_its_kind(tmp_path: Path) -> None:
    path = written(
        tmp_path / "methods.toml",
        """
        base = "imnist"
        [grid]
        update = [{name = "OGD"}, {name = "DLR", window = 3}]
        activation = [{name = "Full"}, {name = "Random", p = 0.5}, {threshold = inf}, {threshold = -inf}]
        drift = [{}, {every = 50}]
        """,
    )
    swept = file.read(path)
    assert len(swept.points) == 16
    titles = [point.config.title() for point in swept.points]
    assert titles[:2] == ["OGD · Full · imnist", "OGD · Full · imnist, drift every 50 rounds"]
    assert "DLR (window 3, decay 0.95) · Event (threshold -inf) · imnist" in titles
    shown = [", ".join(map(file.label_text, point.labels.values())) for point in swept.points]
    assert shown[-1] == "DLR, window 3, threshold -inf, every 50"
    assert not {"update", "activation", "drift"} & set(swept.common())


def test_the_examples_of_the_docs_go_with_the_base_that_they_show(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/sweeps.md").read_text().partition("## Running it")[0]
    examples = re.findall(r"`([a-z_.]+ = \[.*?\])`", page.partition("Each key of the grid is one of")[2], re.DOTALL)
    assert len(examples) == 5
    for example in examples:
        assert len(configs(written(tmp_path / "a.toml", f'base = "imnist"\n[grid]\n{example}'))) > 1


def test_a_section_and_a_setting_of_it_are_not_combined(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", 'base = "imnist"\n[grid]\nupdate.window = [1]\nupdate = [{name = "DLR"}]')
    with pytest.raises(
        ConfigError, match=r"a\.toml: not valid TOML: .*such as update and update\.window, which cannot"
    ):
        file.read(path)


def test_settings_that_come_to_the_same_are_one_trial(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", 'base = "imnist"\n[grid]\nseed = [1, 1, 2]\nupdate.window = [10, 10]')
    assert len(configs(path)) == 2


def test_paths_are_relative_to_the_file_that_they_stand_in(tmp_path: Path) -> None:
    write_rooms(tmp_path / "base")
    write_rooms(tmp_path / "other")
    grid = '[grid]\nstream.path = ["../base/rooms.csv", "../other/rooms.csv"]\n'
    path = written(tmp_path / "sweeps/a.toml", f'base = "../base/rooms.toml"\n{grid}')
    assert [Path(config.stream.path).parent.name for config in configs(path)] == ["base", "other"]  # type: ignore
    path = written(tmp_path / "sweeps/b.toml", 'base = "../base/rooms.toml"\n[grid]\nseed = [1]')
    assert load(tmp_path / "base/rooms.toml", ["seed=1"]) == configs(path)[0]


def test_a_base_that_is_a_link_means_the_data_beside_the_link(tmp_path: Path) -> None:
    write_rooms(tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/rooms.csv").write_bytes((tmp_path / "b/rooms.csv").read_bytes())
    (tmp_path / "a/rooms.toml").symlink_to("../b/rooms.toml")
    path = written(tmp_path / "a/sweep.toml", 'base = "rooms.toml"\n[grid]\nseed = [1]')
    assert configs(path) == [load(tmp_path / "a/rooms.toml", ["seed=1"])]
    assert configs(path)[0].stream.path == str((tmp_path / "a/rooms.csv").resolve())  # type: ignore[union-attr]


def test_a_file_may_be_complete_by_itself(tmp_path: Path) -> None:
    path = write_rooms(tmp_path)
    path.write_text(path.read_text() + "[grid]\nseed = [3]")
    assert configs(path)[0].seed == 3
    with pytest.raises(ConfigError, match=r"rooms.toml: its \[grid\] makes it a sweep: run it with 'anabranch sweep'"):
        load(path)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["there is no section [grid] that says what to vary, such as learning_rate = [0.1, 0.01]"]),
        ("grid = 3", ["there is no section [grid]"]),
        ("[grid]", ["the section [grid] is empty: say what to vary"]),
        (
            "[grid]\nseed = []\nupdate.window = 3",
            [
                "grid: seed is [], but it must be a list of one",
                "grid: update.window is 3, but it must be a list of one",
            ],
        ),
        (
            '[grid]\nupdate.widnow = [1]\nlearning_raet = [1]\nseed = ["x", -1]\nactivation.p = [0.5]',
            [
                "grid: update.widnow: DLR has no such setting. Did you mean 'window'?",
                "grid: there is no setting or section 'learning_raet'. Did you mean 'learning_rate'?",
                'grid: seed is "x", but it must be a whole number',
                "grid: seed is -1, but it must be a whole number",
                "grid: activation.p: Event has no such setting; it belongs to Random.",
            ],
        ),
        (
            "[grid]\nlearning_rate = [0.1, [0.2, 0.1]]\nmodel.clients = [1, 4]",
            ["learning_rate is [0.2, 0.1], but the model has 5 parties: the server, then 4 clients"],
        ),
        ("[grid]\nupdate.window = [100000000000]", ["grid: update.window is 100000000000, but it must be a whole"]),
        ('[grid]\nupdate = [{nme = "OGD"}]', ["grid: update.nme: DLR has no such setting. Did you mean 'name'?"]),
        ('[grid]\nupdate = ["OGD"]', ['grid: update is "OGD", but it is a section of settings']),
        ('[grid]\nupdate = [{name = "OGD", window = 2}]', ["grid: update.window: OGD has no such setting"]),
        ("rouns = 3\n[grid]\nseed = [1]", ["a.toml: there is no setting or section 'rouns'. Did you mean 'rounds'?"]),
        (f"[grid]\nseed = {list(range(400))}\nrounds = {list(range(1, 400))}", ["the grid has 159,600 combinations"]),
    ],
)
def test_everything_that_is_wrong_is_said_at_once(text: str, messages: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", f'base = "imnist"\n{text}')
    with pytest.raises(ConfigError) as caught:
        file.read(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(messages)
    for message in messages:
        assert any(line.startswith(f"{path}: ") and message in line for line in lines), (message, lines)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("3", "a.toml: base is 3, but it must be a preset's name or a file's path"),
        ('"imnits"', "a.toml: base: '.*imnits' is neither a preset nor a file"),
        ('"~nobody-of-that-name/a.toml"', "a.toml: base: '~nobody-of-that-name/a.toml' is neither a preset nor a file"),
        ('"a.toml"', r"a.toml: base: .*a.toml: its \[grid\] makes it a sweep"),
    ],
)
def test_a_wrong_base_is_named(base: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        file.read(written(tmp_path / "a.toml", f"base = {base}\n[grid]\nseed = [1]"))


def test_changes_from_outside_are_for_what_the_grid_leaves_alone(tmp_path: Path) -> None:
    grid = 'seed = [1]\nupdate = [{name = "OGD"}]\nactivation.threshold = [0.1]'
    path = written(tmp_path / "a.toml", f'base = "imnist"\n[grid]\n{grid}')
    assert configs(path, Override(("rounds",), 7, "--set"))[0].rounds == 7
    assert configs(path, Override(("activation", "name"), "Event", "--set"))[0].activation.threshold == 0.1  # type: ignore
    for key, varied in (
        ("seed", "seed"),
        ("update.window", "update"),
        ("activation", "activation.threshold"),
        ("activation.threshold.x", "activation.threshold"),
    ):
        with pytest.raises(ConfigError, match=rf"--set: the grid of .*a.toml varies {varied}: change it there$"):
            file.read(path, [Override(tuple(key.split(".")), 2, "--set")])
    with pytest.raises(ConfigError, match=r"^--set: rounds is 0, but it must be"):
        file.read(path, [Override(("rounds",), 0, "--set")])
    with pytest.raises(ConfigError, match=r"'gone.toml' is not a file"):
        file.read("gone.toml")
    with pytest.raises(ConfigError, match=r"x{300}"):
        file.read("x" * 300)


def test_a_folder_keeps_records_and_takes_a_damaged_one_for_none(tmp_path: Path) -> None:
    held = sample(load("imnist"))
    kept = TrialFolder(tmp_path, {"versions": held["versions"]})
    key = held["key"]
    kept.put(held)
    assert kept.get(key) == held
    assert kept.get("b") is None
    for damaged in ("", f'{{"key": "{key}", "rou', "[]"):
        (tmp_path / f"trials/{key}.json").write_text(damaged)
        assert kept.get(key) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"curve": ...}, "curve: Field required"),
        ({"wall_seconds": ...}, "wall_seconds: Field required"),
        ({"curve": {"rounds": [1]}}, "curve.run_time_error: Field required"),
        ({"activation_rate": None}, "activation_rate: Input should be a valid list"),
        ({"regret": {"rounds": []}}, "regret.loss: Field required"),
        ({"bytes_up": []}, "Value error, bytes_up has 0 values, but there are 4"),
        ({"bytes_down": [1, 2, 3, -4]}, "bytes_down.3: Input should be greater than or equal to 0"),
        ({"activation_rate": [0.5] * 3}, "Value error, activation_rate has 3 values, but there are 4 clients"),
        ({"activation_rate": [0.5, 0.5, 0.5, 1.5]}, "activation_rate.3.*: Input should be less than or equal to 1"),
        ({"accumulated_error": 7}, "accumulated_error: Input should be less than or equal to 1"),
        ({"run_time_error": float("nan")}, "run_time_error: Input should be "),
        ({"accumulated_error": None}, "Value error, accumulated_error or run_time_error is null, but diverged is null"),
        ({"curve": {"rounds": [], "run_time_error": []}}, "Value error, curve has no point, but diverged is null"),
        ({"curve": {"rounds": [1], "run_time_error": [-0.1]}}, "curve.run_time_error.0: Input should be greater"),
    ],
)
def test_a_record_that_lacks_something_or_cannot_be_is_named_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    kept, held = TrialFolder(tmp_path, {}), sample(load("imnist"))
    edited = {name: value for name, value in (held | changes).items() if value is not ...}
    (tmp_path / f"trials/{held['key']}.json").write_text(json.dumps(edited))
    with pytest.raises(DataError, match=rf"{held['key']}\.json: is not the record of a trial: {named}.* run again$"):
        kept.get(held["key"])


def test_a_trial_that_diverged_or_had_no_round_has_no_errors(tmp_path: Path) -> None:
    kept, held = TrialFolder(tmp_path, {}), sample(load("imnist"))
    held |= {"accumulated_error": None, "run_time_error": None, "curve": {"rounds": [], "run_time_error": []}}
    for each in ({"diverged": 0}, {"rounds": 0}):
        kept.put(held | each)
        assert kept.get(held["key"]) == held | each


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"config": {"rounds": 99}}, "its key is {key}, but that of its config and data is [0-9a-f]{{16}}"),
        ({"data": {"stream": {"sha256": "0"}}}, "its key is {key}, but that of its config and data is [0-9a-f]{{16}}"),
        ({"key": "zz"}, "its key is zz, but that of its config and data is {key}"),
        ({"config": {"rounds": "many"}}, "config: rounds: "),
        ({"versions": {"jax": "0.4.1"}}, "jax 0.4.1, not 0.10.2"),
        ({"versions": ...}, "anabranch None, not .*; jax None, not 0.10.2"),
    ],
)
def test_a_record_of_another_trial_or_version_is_refused_and_both_are_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    held = sample(load("imnist")) | {"versions": {"anabranch": version("anabranch"), "jax": "0.10.2"}}
    kept, key = TrialFolder(tmp_path, {"versions": held["versions"]}), held["key"]
    kept.put(held)
    assert kept.get(key) == held
    assert len(read_trials(tmp_path, held["versions"])) == 1
    for name, change in changes.items():
        emptied = {} if change is ... else change
        held[name] = emptied if name == "key" or change is ... else {**held[name], **emptied}
    path = tmp_path / f"trials/{key}.json"
    path.write_text(json.dumps(held))
    for read in (
        lambda: kept.get(key),
        lambda: read_trials(tmp_path, {"anabranch": version("anabranch"), "jax": "0.10.2"}),
    ):
        with pytest.raises(DataError, match=rf"{key}\.json: .*{named.format(key=key)}"):
            read()


def test_a_record_under_another_ones_name_is_refused(tmp_path: Path) -> None:
    kept, held = TrialFolder(tmp_path, {}), sample(load("imnist"))
    kept.put(held)
    (tmp_path / f"trials/{held['key']}.json").rename(tmp_path / "trials/another.json")
    for read in (lambda: kept.get("another"), lambda: read_trials(tmp_path, None)):
        with pytest.raises(DataError, match=rf"another\.json: .*its key is {held['key']}, not another"):
            read()


def test_a_record_of_an_earlier_version_may_have_had_other_settings(tmp_path: Path) -> None:
    kept, held = TrialFolder(tmp_path, {}), sample(load("imnist"))
    held["config"]["no_more"] = 1
    kept.put(held | {"versions": {"anabranch": "0.1.0"}})
    assert kept.get(held["key"]) is not None
    kept.put(held | {"versions": {"anabranch": version("anabranch")}})
    with pytest.raises(DataError, match="config: no_more: "):
        kept.get(held["key"])


def test_a_folder_refuses_what_does_not_go_together_and_names_both(tmp_path: Path) -> None:
    common = {"versions": {"jax": "1", "numpy": "2"}, "settings": {"rounds": 3, "drift": None, "update": {"window": 5}}}
    TrialFolder(tmp_path, common)
    TrialFolder(tmp_path, {**common, "versions": {"jax": "2"}})  # there is no trial yet
    TrialFolder(tmp_path, common, {"grid": {"seed": [1]}}).put({"key": "a"})
    other = {"versions": {"jax": "1", "numpy": "3"}, "settings": {"drift": {"every": 5}, "update": {"window": 6}}}
    with pytest.raises(ConfigError) as caught:
        TrialFolder(tmp_path, other)
    for named in (
        'versions.numpy is "2" there, "3" now',
        "settings.drift is null there, {every = 5} now",
        "settings.update.window is 5 there, 6 now",
        "Name another folder with --out",
    ):
        assert named in str(caught.value)
    # A wider grid, also one that varies what was the same before.
    TrialFolder(tmp_path, {"settings": {"rounds": 3}}, {"grid": {"seed": [1, 2], "update.window": [5, 6]}})
    assert json.loads((tmp_path / "manifest.json").read_text())["grid"]["update.window"] == [5, 6]
    for other_file in (
        "[",
        '{"settings": {"rou',
        "[1]",
        '{"settings": {}}',
        '{"versions": {"jax": "1", "numpy": "2"}}',
    ):
        (tmp_path / "manifest.json").write_text(other_file)
        with pytest.raises(ConfigError, match=r"manifest.json: is not the manifest of such trials"):
            TrialFolder(tmp_path, common)
        assert (tmp_path / "manifest.json").read_text() == other_file
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"has trials but no manifest.json that says of what"):
        TrialFolder(tmp_path, common)


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "my web page"}')
    with pytest.raises(ConfigError, match=r"\(it has no settings, versions\): it is damaged or of something else"):
        TrialFolder(tmp_path, {"versions": {}, "settings": {}})
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_text() == '{"name": "my web page"}'


def test_an_open_folder_is_nobody_elses_and_loses_what_was_half_written(tmp_path: Path) -> None:
    held = sample(load("imnist"))
    with folder.opened(tmp_path, {}) as kept:
        kept.put(held)
        with pytest.raises(ConfigError, match="is in use by this process already"), folder.opened(tmp_path, {}):
            raise AssertionError
    (tmp_path / "trials/.b.json-x1").write_text('{"key": "b"')  # as a kill leaves it
    with folder.opened(tmp_path, {}) as kept:
        assert kept.get(held["key"]) == held
    assert [each.name for each in (tmp_path / "trials").iterdir()] == [f"{held['key']}.json"]


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = TrialFolder(tmp_path, {})

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "replace_file", full)
    with pytest.raises(OutputError, match=f"cannot write the trials into {tmp_path}: No space left on device"):
        kept.put({"key": "a"})
    assert kept.get("a") is None


def test_a_trial_asks_for_its_data_and_a_sweep_for_its_versions(tmp_path: Path) -> None:
    config = load(write_rooms(tmp_path))
    with pytest.raises(DataError, match=r"finds other data for the stream: rooms.csv with SHA-256 .*begun with 0000"):
        run_trial(Trial(config, {"stream": {"sha256": "0" * 64}}))
    with pytest.raises(ConfigError, match=r"has jax .*, not 0\.1: not to be mixed with the others"):
        check_versions({"jax": "0.1"})


def test_the_estimate_follows_rounds_update_window_and_clients() -> None:
    def seconds(*overrides: str) -> float:
        return estimate.estimated_seconds(load("imnist", overrides)) - estimate.START_SECONDS

    assert seconds("update.name=DLR", "update.window=5") == seconds("update.name=DLR", "update.window=500")
    assert seconds("rounds=400_000") == pytest.approx(2 * seconds("rounds=200_000"))
    assert seconds("update.name=SLR", "update.window=20") == pytest.approx(2 * seconds("update.name=SLR"))
    assert seconds("model.clients=16") == pytest.approx(4**estimate.CLIENTS_POWER * seconds("model.clients=4"))
    assert seconds("measure_regret=true") == pytest.approx(estimate.REGRET_FACTOR * seconds())
    assert 0.05 < estimate.machine_factor() < 50


def test_the_time_left_weighs_trials_and_learns_from_those_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "machine_factor", lambda: 2.0)
    monkeypatch.setattr(progress, "estimated_seconds", lambda config: float(config.rounds))
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    trials = [Trial(load("imnist", [f"rounds={n}", f"seed={i}"]), {}) for i, n in enumerate((40, 20, 10, 10))]
    book = progress.Book(5, trials)
    assert book.now() == (1, 0, 0, 5, 160.0, False)  # 80 s, on a machine that takes twice as long
    book.begun(2)
    assert book.now() == (1, 2, 0, 5, 80.0, False)
    clock[0] += 10
    assert book.now() == (1, 2, 0, 5, 70.0, False)
    clock[0] += 80
    assert book.now() == (1, 2, 0, 5, 90.0, True)  # the second takes longer than that
    book.ended(trials[1].key, {"wall_seconds": 10.0})  # half of what was estimated
    assert book.now() == (2, 2, 0, 5, 5.0, True)
    book.ended(trials[0].key, None)
    assert book.now() == (2, 2, 1, 5, 5.0, False)
    for trial in trials[2:]:
        book.ended(trial.key, {"wall_seconds": 5.0})
    assert book.now() == (4, 0, 1, 5, 0.0, False)


@pytest.mark.parametrize(
    ("left", "late", "said"),
    [
        (40.0, False, "1 of 3 done · 2 running · 0 failed · 40 s left"),
        (40.0, True, "1 of 3 done · 2 running · 0 failed · more than 40 s left"),
        (0.0, True, "1 of 3 done · 2 running · 0 failed · longer than estimated"),
    ],
)
def test_a_trial_that_takes_longer_than_estimated_is_not_said_to_be_over(left: float, late: bool, said: str) -> None:
    console = Console(file=StringIO())
    TrialsReporter(console)(SweepProgress(1, 2, 0, 3, left, late))
    assert console.file.getvalue() == f"trials: {said}\n"


def test_a_full_disk_costs_lines_of_progress_and_nothing_else() -> None:
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:  # keeps nothing to write at the end
        reporter = TrialsReporter(Console(file=full))
        reporter.stage("importing", line=True)
        reporter(SweepProgress(1, 2, 0, 3, 40.0))
    assert reporter.last == SweepProgress(1, 2, 0, 3, 40.0)


def record(error: float | None, diverged: int | None = None) -> dict[str, Any]:
    numbers = {"run_time_error": error, "activation_rate": [0.5, 1.0], "bytes_up": [2**19, 2**19], "bytes_down": [0, 0]}
    return {"accumulated_error": error, "diverged": diverged, "wall_seconds": 2.5, **numbers}


def test_the_best_is_first_and_what_diverged_last(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", 'base = "imnist"\n[grid]\nlearning_rate = [1, 2, 3, 4]\nseed = [1, 2]')
    points = file.read(path).points
    trials = [Trial(point.config, {}) for point in points]
    outcomes = [record(0.3), record(0.5), record(0.2), record(0.25), record(0.1, diverged=3), record(0.1), record(0.2)]
    records = {trial.key: each for trial, each in zip(trials, outcomes, strict=False)}
    swept = Sweep(records, {trials[-1].key: "no luck"})
    rows = table.rows_of([*points, points[0]], [*trials, trials[0]], swept)
    assert len(rows) == 8
    best, second, *last = table.ranked(rows, points)
    assert (best.labels, best.complete, best.span("accumulated_error")) == (
        {"learning_rate": 2},
        True,
        (0.225, 0.2, 0.25),
    )
    assert second.labels == {"learning_rate": 1}
    assert [(group.labels["learning_rate"], group.complete) for group in last] == [(4, False), (3, False)]
    lines = table.trials_csv(rows, ["learning_rate", "seed"]).splitlines()
    assert lines[0] == "learning_rate,seed," + ",".join(table.NUMBERS)
    assert lines[1] == f"1,1,0.3,0.3,,0.75,1.0,2.5,{trials[0].key},"
    assert lines[-1] == f"4,2,,,,,,,{trials[-1].key},no luck"
    assert math.isnan(table.Group({}, [rows[-1]], 1).span("MB")[0])


def test_a_mean_over_fewer_seeds_wins_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", 'base = "imnist"\n[grid]\nlearning_rate = [1, 2, 3]\nseed = [1, 2, 3]')
    points = file.read(path).points
    trials = [Trial(point.config, {}) for point in points]
    outcomes = [*[record(0.1)] * 2, *[record(0.3)] * 3, record(0.2)]
    records = {trial.key: each for trial, each in zip([*trials[:2], *trials[3:7]], outcomes, strict=True)}
    rows = table.rows_of(points, trials, Sweep(records, {trials[2].key: "no luck"}))
    groups = table.ranked(rows, points)
    assert [group.labels["learning_rate"] for group in groups] == [2, 1, 3]
    console = Console(file=StringIO(), width=200)
    ranking(console, groups, ["learning_rate", "seed"])
    lines = console.file.getvalue().splitlines()
    remarks = [(line.split()[0], line.partition("1.00")[2].strip()) for line in lines if line[1:2].isdigit()]
    assert remarks == [("2", ""), ("1", "1 of 3 failed"), ("3", "2 of 3 not run yet")]
