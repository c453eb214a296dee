"""``anabranch reproduce``: every experiment, from the command to its files, at 20,000 rounds."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import small_study
from anabranch.cli import app
from anabranch.paper.registry import EXPERIMENTS
from anabranch.report import report


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "ANABRANCH_DATA"}  # the bundled digits
    return subprocess.run(
        [sys.executable, small_study.__file__, "reproduce", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a new folder, with no data folder given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)


def reproduce_(*words: str) -> Result:
    """The command in this process, where nothing is to be run."""
    return CliRunner().invoke(app, ["reproduce", *words])


def write_collisions(path: Path, features: int) -> Path:
    """A table as UCI has it: the label first, no header."""
    rng = np.random.default_rng(features)
    x = rng.normal(size=(300, features))
    y = (x[:, 0] + x[:, -1] > 0).astype(int)
    np.savetxt(path, np.column_stack([y, x]), delimiter=",", fmt="%.5f")
    return path


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of ``reproduce all --quick``, and the words of that command."""
    folder = tmp_path_factory.mktemp("reproduce")
    susy, higgs = write_collisions(folder / "SUSY.csv", 18), write_collisions(folder / "HIGGS.csv", 28)
    words = ["all", "--quick", "--jobs", "1", "--susy", str(susy), "--higgs", str(higgs), "--out", "results"]
    done = command(folder, *words)
    assert done.returncode == 0, done.stderr
    assert "anabranch report results" in done.stdout
    return folder / "results", words


def summary(results: Path, name: str) -> dict[str, Any]:
    return json.loads((results / name / "summary.json").read_text())


@pytest.mark.parametrize("name", [*EXPERIMENTS, "tuning"])
def test_each_experiment_has_its_tables_and_pictures(quick: tuple[Path, list[str]], name: str) -> None:
    results, _ = quick
    found = summary(results, name)
    files = {f"{table['name']}.csv" for table in found["tables"]} | {each["file"] for each in found["pictures"]}
    assert {file.name for file in (results / name).iterdir()} == files | {"summary.json"}
    assert found["tables"]
    for each in [*found["tables"], *found["pictures"]]:
        if each.get("name") == "bounds":  # the paper's own
            assert not each["scale"]
        elif name in ("susy", "higgs", "regret", "tuning"):
            assert each["scale"] == " (1 seed)"
            assert " rounds" in each["caption"] or "T up to 10,000 where the full size has" in each["caption"]
        else:
            assert each["scale"] == " (20,000 rounds where the paper has 2,000,000; 1 seed)"
        assert each["caption"].endswith(each["scale"])
    for table in found["tables"]:
        assert table["rows"], table["name"]
        for row in table["rows"]:
            assert not [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    for picture in found["pictures"]:
        assert (results / name / picture["file"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["stationary", "drift"])
def test_bytes_and_activations_are_what_the_methods_say(quick: tuple[Path, list[str]], name: str) -> None:
    rows = {row["row"]: row for row in summary(quick[0], name)["tables"][0]["rows"]}
    full = rows["OGD-Full"]["megabytes"]
    assert full == pytest.approx(2 * 4 * small_study.EMBEDDING * 2 * 20_000 / 2**20)
    for update in ("OGD", "DLR"):
        for activation in ("Full", "Random", "Event"):
            row = rows[f"{update}-{activation}"]
            assert row["megabytes"] == pytest.approx(full * (1 + row["activated"]) / 2)
    slr = small_study.WINDOW * full
    assert rows["SLR-Full"]["megabytes"] == pytest.approx(slr, rel=1e-3)  # the first rounds have fewer
    assert rows["OGD-Random"]["activated"] == pytest.approx(0.5, abs=0.02)
    assert rows["OGD-Event"]["activated"] == rows["DLR-Event"]["activated"]
    assert any("Γ is −0." in note for note in summary(quick[0], name)["notes"])


def test_a_method_learns_in_twenty_thousand_rounds(quick: tuple[Path, list[str]]) -> None:
    rows = {row["row"]: row for row in summary(quick[0], "drift")["tables"][0]["rows"]}
    assert rows["DLR-Full"]["error"] < 0.5


def test_the_same_trial_in_two_experiments_has_the_same_numbers(quick: tuple[Path, list[str]]) -> None:
    def of(name: str) -> dict[str, dict[str, Any]]:
        return {run["key"]: run for run in summary(quick[0], name)["runs"]}

    shared = set(of("probability")) & set(of("activation"))
    assert len(shared) == 4
    assert all(of("probability")[key]["curve"] == of("activation")[key]["curve"] for key in shared)


def test_the_same_command_again_runs_no_trial_and_says_the_same(quick: tuple[Path, list[str]]) -> None:
    results, words = quick
    before = {file: file.stat().st_mtime_ns for file in (results / "trials").iterdir()}
    first, tuned = summary(results, "activated"), summary(results, "tuning")
    done = command(results.parent, "activated", *words[1:])
    assert done.returncode == 0, done.stderr
    assert {file: file.stat().st_mtime_ns for file in (results / "trials").iterdir()} == before
    assert summary(results, "activated") == first
    assert summary(results, "tuning")["tables"] == tuned["tables"]  # what others were tuned with stays there
    assert tuned["command"] == (
        "anabranch reproduce stationary drift susy higgs --susy FILE --higgs FILE --rounds 20000 --seeds 1"
    )


def test_another_number_of_rounds_is_refused_there(quick: tuple[Path, list[str]]) -> None:
    done = command(quick[0].parent, "activated", "--rounds", "300", "--out", "results")
    assert done.returncode == 2
    assert "rounds is 20000 there, 300 now" in done.stderr


def test_one_page_shows_it_all(quick: tuple[Path, list[str]]) -> None:
    page = report(quick[0]).read_text(encoding="utf-8")
    assert all(EXPERIMENTS[name].caption in page for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stationery"], "no experiment 'stationery'. Did you mean 'stationary'?"),
        ([], "which experiments? Name some of them (--list), or all"),
        (["drift", "--quick", "--seeds", "2"], "--quick is --rounds 20000 --seeds 1"),
        (["susy", "higgs"], "susy needs a file: name it with --susy FILE"),
        (["susy", "--susy", "nowhere.csv"], "nowhere.csv"),
        (["drift", "--backend", "rai", "--address", "x"], "no back end 'rai'. Did you mean 'ray'?"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_is_wrong_is_said_before_anything_is_run(words: list[str], said: str) -> None:
    done = reproduce_(*words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("here")
def test_the_list_has_each_experiment_with_the_papers_caption_its_trials_and_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = reproduce_("--list")
    assert done.exit_code == 0
    lines = {line.split()[0]: line.rstrip() for line in done.stdout.splitlines() if line.strip()}
    for name, experiment in EXPERIMENTS.items():
        numbers = lines[name].partition(experiment.caption)[2]
        assert experiment.paper in lines[name].partition(experiment.caption)[0]
        assert re.fullmatch(r" +\d+( +\d+)? +(\d+ s|\d+ min|\d+ h \d+ min)", numbers), lines[name]
    assert lines["drift"].partition("stream")[2].split()[:2] == ["60", "63"]
    assert not list(Path().iterdir())
