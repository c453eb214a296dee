"""``anabranch reproduce`` where a trial fails, or somebody else is at work there: nothing is trained here."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli import app
from anabranch.config.run import Config
from anabranch.paper import check, reproduce
from anabranch.paper.costs import ClientCosts
from anabranch.paper.registry import EXPERIMENTS
from anabranch.paper.study import TUNING_SEED, Study
from anabranch.simulation.result import versions
from anabranch.storage.lock import locked
from anabranch.streams import DigitsNotice
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.run import Sweep
from anabranch.sweep.trial import Trial
from report_samples import record
from small_runs import write_rooms

Fails = Callable[[Trial], bool]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Fails], None]:
    """Trials come to made-up numbers, but those fail of which a test says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "with_data", lambda configs: [Trial(config, {}) for config in configs])
    monkeypatch.setattr(ClientCosts, "measure", lambda self, configs: None)

    def set_up(fails: Fails) -> None:
        def run_trials(trials: Sequence[Trial], folder: Any, backend: Any, progress: Any) -> Sweep:
            failed = {trial.key: "MemoryError: no room." for trial in trials if fails(trial)}
            progress(SweepProgress(len(trials) - len(failed), 0, len(failed), len(trials), 0.0))
            records = {}
            for each in trials:
                if each.key not in failed:
                    own = {"key": each.key, "data": dict(each.data), "versions": versions()}
                    records[each.key] = record(each.config) | own
                    folder.put(records[each.key])
            return Sweep(records, failed)

        monkeypatch.setattr(reproduce, "run_trials", run_trials)

    return set_up


def reproduce_(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words, "--rounds", "2000", "--out", "out"], prog_name="anabranch")


def test_what_cannot_be_tuned_stops_no_other_experiment(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: trial.config.seed == TUNING_SEED and trial.config.drift is not None)
    done = reproduce_("activated", "activation")
    assert done.exit_code == 3
    assert "Error: not made, for want of trials that failed: activation\n" in done.stderr
    assert "Error: 14 trials failed: MemoryError: no room (DLR (window 10, decay 0.95) · Random" in done.stderr
    assert "; and 11 more)\nNote: the same command tries again what failed\n" in done.stderr
    assert sorted(each.name for each in Path("out").iterdir() if each.is_dir()) == ["activated", "trials", "tuning"]
    problems = {run["labels"]["problem"] for run in json.loads(Path("out/tuning/summary.json").read_text())["runs"]}
    assert problems == {"imnist, stationary"}
    assert Path("out/activated/summary.json").is_file()


def test_an_experiment_that_lacks_a_trial_is_not_made(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: trial.config.seed == 1 and trial.config.activation.name == "Fixed")
    done = reproduce_("activated", "activation")
    assert done.exit_code == 3
    assert "Error: not made, for want of trials that failed: activated\n" in done.stderr
    assert not Path("out/activated").exists()
    assert Path("out/activation/summary.json").is_file()


def test_nothing_can_be_made(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: True)
    done = reproduce_("activated", "activation")
    assert done.exit_code == 3
    assert "Error: not made, for want of trials that failed: activated, activation\n" in done.stderr
    assert [each.name for each in Path("out").iterdir() if each.is_dir()] == ["trials"]


def test_what_stops_it_after_its_trials_says_that_they_are_kept(
    made_up: Callable[[Fails], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(lambda trial: False)
    kept = "Note: stopped: 4 of 4 trials are done and kept in out; the same command goes on from there\n"
    Path("out").mkdir()
    Path("out/activated").touch()  # where its folder should be
    done = reproduce_("activated")
    assert (done.exit_code, done.stderr.endswith(kept)) == (3, True)
    assert "Error: cannot write the results into out/activated: " in done.stderr

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):

        def stop(costs: ClientCosts, configs: Sequence[Config], number: int = number) -> None:
            signal.raise_signal(number)

        monkeypatch.setattr(ClientCosts, "measure", stop)
        done = reproduce_("activated")
        assert (done.exit_code, done.stderr.endswith(kept)) == (code, True)


def test_tuning_for_other_experiments_stays_in_its_tables(made_up: Callable[[Fails], None]) -> None:
    def summary() -> dict[str, Any]:
        return json.loads(Path("out/tuning/summary.json").read_text())

    made_up(lambda trial: False)
    assert reproduce_("window", "threshold", "--quiet").exit_code == 0
    first = summary()
    assert [row["row"] for row in first["tables"][0]["rows"]] == ["DLR-Full", "DLR-Event"]
    assert first["command"] == "anabranch reproduce threshold window --rounds 2000"
    assert reproduce_("activated", "threshold", "--quiet").exit_code == 0
    both = summary()
    assert [table["name"] for table in both["tables"]] == ["tuning-imnist-stationary", "tuning-imnist-drifting"]
    assert both["tables"][1] == first["tables"][0]
    assert len(both["runs"]) == 3 * 7
    assert both["command"] == "anabranch reproduce threshold window activated --rounds 2000"
    Path("out/tuning/summary.json").write_text("[]")
    assert reproduce_("activated", "--quiet").exit_code == 0
    assert len(summary()["runs"]) == 7


def test_other_data_is_refused_and_both_are_named(
    made_up: Callable[[Fails], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(name: str, digest: str) -> None:
        data = {"stream": {"name": name, "sha256": digest * 64}}
        monkeypatch.setattr(reproduce, "with_data", lambda configs: [Trial(config, data) for config in configs])

    made_up(lambda trial: False)
    read("MNIST train", "a")
    assert reproduce_("window", "--quiet").exit_code == 0
    before = sorted(Path("out/trials").iterdir())
    read("5,000 digits", "b")
    done = reproduce_("activated")
    assert done.exit_code == 2
    there, now = f"MNIST train (SHA-256 {'a' * 12}…) there", f"5,000 digits (SHA-256 {'b' * 12}…) now"
    assert f"Error: out holds trials of other data: imnist is {there}, {now}. Name another folder" in done.stderr
    assert sorted(Path("out/trials").iterdir()) == before
    read("MNIST train", "a")
    assert reproduce_("activated", "--quiet").exit_code == 0


def test_the_notice_on_base_digits_is_said_once(
    made_up: Callable[[Fails], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_data(configs: Sequence[Config]) -> list[Trial]:
        warnings.warn("few digits", DigitsNotice, stacklevel=1)
        return [Trial(config, {}) for config in configs]

    made_up(lambda trial: False)
    monkeypatch.setattr(reproduce, "with_data", with_data)  # for tuning, and then for training
    assert reproduce_("activated").stderr.count("Note: few digits\n") == 1


def test_the_committed_trials_are_compared_with(
    made_up: Callable[[Fails], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(lambda trial: False)
    assert reproduce_("activated", "--quiet").exit_code == 0
    runs = [run for file in Path("out").glob("*/summary.json") for run in json.loads(file.read_text())["runs"]]
    committed = {run["key"]: json.loads(Path(f"out/trials/{run['key']}.json").read_text()) for run in runs}
    monkeypatch.setattr(check, "reference", lambda: committed)
    done = reproduce_("activated", "--check")
    assert done.exit_code == 0, done.stderr
    assert "activated: 4 trials compared, 4 of them the same to the last bit\n" in done.stdout
    assert "  activated: activation rate: the largest difference is 0.0000\n" in done.stdout

    key = next(run["key"] for run in runs if run["labels"].get("setting") == "2 of 4 clients")
    committed[key] = committed[key] | {"accumulated_error": committed[key]["accumulated_error"] + 0.01}
    done = reproduce_("activated", "--check")
    assert done.exit_code == 3
    assert "activated: 4 trials compared, 3 of them the same to the last bit\n" in done.stdout
    where = "of setting 2 of 4 clients, seed 1, where 0.003 is allowed"
    assert f"Error: activated: accumulated error: the largest difference is 0.0100, {where}\n" in done.stderr

    monkeypatch.setattr(check, "reference", lambda: {"of another rate": committed[key]})
    done = reproduce_("activated", "--check")
    assert done.exit_code == 3
    assert "activated: nothing to compare: none of its 4 trials is among the committed" in done.stderr


def test_a_check_of_what_cannot_be_compared_is_refused_before_anything_is_run(
    made_up: Callable[[Fails], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(lambda trial: False)
    committed = check.reference()
    held = next(each for each in committed.values() if each["config"]["stream"]["name"] == "imnist")
    refused = "Error: --check: nothing to compare with: no committed trial of {} has these rounds (--rounds) and this"

    monkeypatch.setattr(reproduce, "with_data", lambda configs: [Trial(config, held["data"]) for config in configs])
    done = reproduce_("decay", "window", "--check")
    assert (done.exit_code, refused.format("decay, window") in done.stderr) == (2, True)
    other = {"stream": {"sha256": "0" * 64}}
    monkeypatch.setattr(reproduce, "with_data", lambda configs: [Trial(config, other) for config in configs])
    done = CliRunner().invoke(app, ["reproduce", "decay", "--out", "out", "--check"])  # of full size
    assert (done.exit_code, refused.format("decay") in done.stderr) == (2, True)
    assert not Path("out").exists()
    runs = EXPERIMENTS["decay"].runs(Study(dry=True))
    assert check.comparable([Trial(run.config, held["data"]) for run in runs])


def test_two_do_not_share_a_folder(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: False)
    with locked(Path("out")):
        refused = reproduce_("activation")
    assert refused.exit_code == 2
    assert "Error: out is in use by this process already: end that one first, or name another folder" in refused.stderr
    assert reproduce_("activation", "--quiet").exit_code == 0


def test_a_sweep_does_not_go_into_a_reproduction(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: False)
    assert reproduce_("activation", "--quiet").exit_code == 0
    before = Path("out/manifest.json").read_text()
    write_rooms(Path("own"))
    Path("rates.toml").write_text('base = "own/rooms.toml"\n[grid]\nseed = [1]\n')
    swept = CliRunner().invoke(app, ["sweep", "rates.toml", "--out", "out"], prog_name="anabranch")
    assert swept.exit_code == 2
    told = "is not the manifest of such trials (it has no data, settings): it is that of 'anabranch reproduce'"
    assert told in swept.stderr
    assert Path("out/manifest.json").read_text() == before


def test_a_reproduction_does_not_go_into_a_sweep(made_up: Callable[[Fails], None]) -> None:
    made_up(lambda trial: False)
    Path("out").mkdir()
    Path("out/manifest.json").write_text('{"versions": {}, "settings": {}, "data": {}, "grid": {}}')
    refused = reproduce_("activation")
    assert refused.exit_code == 2
    assert "such trials (it has no rounds): it is that of 'anabranch sweep'. Name another folder" in refused.stderr
