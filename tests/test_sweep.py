"""Sweeps with real processes: whatever happens to them, no finished trial is lost or run again."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import psutil
import pytest
from joblib.externals.loky import get_reusable_executor
from rich.console import Console
from typer.testing import CliRunner, Result

import anabranch as ab
import deadly
from anabranch import cli
from anabranch.cli import trials
from anabranch.errors import ClusterError
from anabranch.storage.lock import locked
from anabranch.sweep import backend, folder, parallel
from anabranch.sweep.backend import Backend
from anabranch.sweep.data import with_data
from anabranch.sweep.file import read
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.run import Sweep, run_trials
from anabranch.sweep.table import Group, Row
from anabranch.sweep.trial import Trial, run_trial
from clusters import cluster
from small_runs import SMALL_MODEL, write_digits, write_rooms

TWO = Backend(jobs=2)
TIMINGS = ("cpu_seconds", "wall_seconds", "rounds_per_second")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a new folder, with no data folder given; programs are compiled quickly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="module", autouse=True)
def no_worker_stays() -> Iterator[None]:
    yield
    get_reusable_executor().shutdown(kill_workers=True)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run here, one after another: for what does not depend on processes, which take seconds to start."""
    monkeypatch.setattr(backend, "_this_machine", lambda: joblib.parallel_config("sequential"))


def anabranch_(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="anabranch")


def write_sweep(grid: str = "seed = [1, 2, 3, 4]") -> str:
    """``rates.toml``, a sweep over a small table."""
    write_rooms(Path("own"))
    Path("rates.toml").write_text(f'base = "own/rooms.toml"\nrounds = 200\nupdate.name = "OGD"\n[grid]\n{grid}\n')
    return "rates.toml"


def small_trials(*seeds: int) -> list[Trial]:
    points = read(write_sweep(f"seed = {list(seeds)}")).points
    return with_data([point.config for point in points])


def same(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record is the same in every run."""
    return {key: value for key, value in record.items() if key not in TIMINGS}


def files(out: Path) -> dict[str, tuple[int, int]]:
    """The trials' files, each with what would be another if it had been written again."""
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (out / "trials").glob("*.json")}


def test_trials_are_run_once_and_their_records_are_those_of_a_run_here(tmp_path: Path) -> None:
    trials = small_trials(1, 2, 3)
    kept, heard = TrialFolder(tmp_path / "out", {}), list[SweepProgress]()
    swept = run_trials([*trials, trials[0]], kept, TWO, heard.append)
    assert list(swept.records) == [trial.key for trial in trials]
    assert not swept.failed
    assert same(swept.records[trials[1].key]) == same(run_trial(trials[1]))
    assert swept.records[trials[1].key]["machine"]["cores"] == os.cpu_count()
    assert (heard[0].done, heard[0].total, heard[-1]) == (0, 3, SweepProgress(3, 0, 0, 3, 0.0))
    assert max(each.running for each in heard) == 2
    before = files(tmp_path / "out")
    assert run_trials(trials, kept, TWO) == swept
    assert files(tmp_path / "out") == before


@pytest.mark.usefixtures("in_this_process")
def test_a_trial_that_fails_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    swept = anabranch_("sweep", write_sweep('activation = [{name = "Full"}, {name = "Fixed", k = 3}]\nseed = [1, 2]'))
    assert swept.exit_code == 3
    why = "2 trials failed: activation Fixed: k is 3, but there are only 2 clients"
    assert f"Error: {why} (activation = Fixed, k 3, seed = 1; activation = Fixed, k 3, seed = 2)\n" in swept.stderr
    assert len(files(Path("runs/rates"))) == 2
    rows = Path("runs/rates/trials.csv").read_text().splitlines()
    assert [row.count("k is 3") for row in rows] == [0, 0, 0, 1, 1]
    assert "2 of 2 failed" in swept.stdout
    before = files(Path("runs/rates"))
    assert anabranch_("sweep", "rates.toml").exit_code == 3
    assert files(Path("runs/rates")) == before


def test_a_trial_that_kills_its_process_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "attempt", deadly.attempt_or_die)
    trials = small_trials(1, deadly.DEADLY_SEED, 2, 3)
    swept = run_trials(trials, TrialFolder(tmp_path / "out", {}), TWO)
    assert swept.failed == {trials[1].key: "its process died (SIGKILL(-9))"}
    assert set(swept.records) == {trial.key for trial in trials} - set(swept.failed)


def test_a_worker_that_is_killed_costs_no_trial(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(progress: SweepProgress) -> None:
        if progress.done == 1 and not killed:
            worker = next(each for each in workers() if each.is_running())
            killed.append(worker.pid)
            worker.send_signal(signal.SIGKILL)

    trials = small_trials(1, 2, 3, 4)
    swept = run_trials(trials, TrialFolder(tmp_path / "out", {}), TWO, kill_one)
    assert killed
    assert (len(swept.records), swept.failed) == (4, {})


def workers(parent: psutil.Process | None = None) -> list[psutil.Process]:
    children = (parent or psutil.Process()).children()
    return [child for child in children if "LokyProcess" in " ".join(child.cmdline())]


@pytest.mark.usefixtures("in_this_process")
def test_a_full_disk_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, room = folder.replace_file, [2]  # the manifest and a trial

    def write(path: Path, content: bytes) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        usual(path, content)

    with monkeypatch.context() as full:
        full.setattr(folder, "replace_file", write)
        swept = anabranch_("sweep", write_sweep("seed = [1, 2, 3, 4, 5, 6]"))
    assert swept.exit_code == 3
    assert "Error: cannot write the trials into runs/rates: No space left on device\n" in swept.stderr
    assert "Note: stopped: 1 of 6 trials are done and kept in runs/rates; the same command goes on" in swept.stderr
    before = files(Path("runs/rates"))
    assert anabranch_("sweep", "rates.toml").exit_code == 0
    assert before.items() <= files(Path("runs/rates")).items()


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "anabranch", "sweep", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(process: subprocess.Popen[str], out: Path, count: int) -> list[psutil.Process]:
    """Until there are so many trials; the workers at that moment."""
    while len(files(out)) < count:
        with pytest.raises(subprocess.TimeoutExpired):  # it is still at work
            process.wait(0.005)
    return workers(psutil.Process(process.pid))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_take_neither_ctrl_c_nor_sigterm_from_their_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    get_reusable_executor().shutdown(kill_workers=True)  # of an earlier test
    monkeypatch.setattr(parallel, "attempt", lambda trial, versions: Path("/proc/self/status").read_text())
    with backend.connected(TWO) as jobs, parallel._attempts([None, None], jobs) as said:
        for each in said:
            held_back = int(re.search(r"SigBlk:\s*(\w+)", each)[1], 16)
            assert held_back >> signal.SIGINT - 1 & 1
            assert held_back >> signal.SIGTERM - 1 & 1


def test_a_sweep_that_is_stopped_and_killed_goes_on_to_the_same_results() -> None:
    data = str(write_digits(Path("digits")))
    Path("a.toml").write_text(
        f'base = "imnist"\nrounds = 10_000\n{SMALL_MODEL.replace("model=", "model = ")}\n'
        f'stream.data_dir = "{data}"\nupdate.name = "OGD"\n[grid]\nseed = {list(range(12))}\n'
    )
    rng, out = random.Random(0), Path("runs/a")

    done: dict[str, tuple[int, int]] = {}
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start("a.toml", "--jobs", "2")
        left = wait_for(process, out, len(done) + rng.randint(1, 2))
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal: to its workers too
        _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert done.items() <= files(out).items()
        done = files(out)
        told = (
            f"Note: stopped: {len(done)} of 12 trials are done and kept in runs/a; the same command goes on from there"
        )
        assert [line for line in err.splitlines() if not line.startswith("trials: ")] == [told]
        assert len(left) == 2
        assert not psutil.wait_procs(left, timeout=20)[1]

    process = start("a.toml", "--jobs", "2")
    left = wait_for(process, out, len(done) + rng.randint(1, 2))
    process.kill()
    process.communicate(timeout=60)
    assert len(left) == 2
    assert not psutil.wait_procs(left, timeout=20)[1]
    assert done.items() <= files(out).items()
    done = files(out)
    assert len(done) < 12

    assert anabranch_("sweep", "a.toml", "--jobs", "2", "--quiet").exit_code == 0
    assert done.items() <= files(out).items()
    assert len(files(out)) == 12
    points = read("a.toml").points
    for trial in with_data([point.config for point in points])[::3]:
        assert same(json.loads((out / f"trials/{trial.key}.json").read_text())) == same(run_trial(trial))


@pytest.mark.usefixtures("in_this_process")
def test_the_table_says_how_to_run_the_best_again() -> None:
    grid = "learning_rate = [0.1, 0.001, 1e30]\nseed = [1, 2]"
    swept = anabranch_("sweep", write_sweep(grid))
    assert swept.exit_code == 0
    shown = [line.split() for line in swept.stdout.splitlines() if re.match(r" [0-9]", line)]
    rates = [float(cells[0]) for cells in shown]
    errors = [float(cells[1]) for cells in shown[:2]]
    assert (set(rates), rates[2], errors) == ({0.1, 0.001, 1e30}, 1e30, sorted(errors))
    assert re.fullmatch(r"\d\.\d{4}–\d\.\d{4}", shown[0][2])
    assert shown[2][-4:] == ["2", "of", "2", "diverged"]
    assert "The best one again: anabranch run runs/rates/best.toml\n" in swept.stdout
    assert swept.stderr.splitlines()[0] == "trials: 0 of 6 done · 0 running · 0 failed"
    described = json.loads(anabranch_("sweep", "rates.toml", "--json", "--quiet").stdout)
    best = min(described["trials"][:4], key=lambda trial: trial["accumulated_error"])
    assert best["labels"]["learning_rate"] == rates[0]
    assert anabranch_("run", "runs/rates/best.toml", "--quiet", "--out", "again").exit_code == 0
    again = json.loads(Path("again/result.json").read_text())
    of_seed_1 = [each for each in described["trials"] if each["labels"] == {"learning_rate": rates[0], "seed": 1}]
    assert again["accumulated_error"] == of_seed_1[0]["accumulated_error"]


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_from_python_is_that_of_the_command_line_and_goes_on(tmp_path: Path) -> None:
    file = write_sweep("learning_rate = [0.1, 1e9]\nseed = [1, 2]")
    assert anabranch_("sweep", file, "--out", "out").exit_code == 0
    before = files(Path("out"))
    base = {**tomllib.loads(Path("own/rooms.toml").read_text()), "rounds": 200, "update": {"name": "OGD"}}
    base["stream"]["path"] = "own/rooms.csv"
    grid = {"learning_rate": [0.1, 1e9], "seed": [1, 2]}
    swept = ab.run_sweep(base, grid, folder="out")  # each trial is found
    assert files(Path("out")) == before
    assert swept.folder == Path("out")
    assert swept.best == {"learning_rate": 0.1}
    assert [(row["learning_rate"], row["seed"], row["diverged"] is None) for row in swept.rows] == [
        (0.1, 1, True), (0.1, 2, True), (1e9, 1, False), (1e9, 2, False),
    ]  # fmt: skip
    assert [swept.records[row["key"]]["accumulated_error"] for row in swept.rows] == [
        row["accumulated_error"] for row in swept.rows
    ]
    assert swept.to_pandas()["seed"].tolist() == [1, 2, 1, 2]
    wider = ab.run_sweep("own/rooms.toml", {"seed": [3]}, folder=tmp_path / "else", workers=1)
    assert [row["seed"] for row in wider.rows] == [3]
    assert (tmp_path / "else" / "best.toml").exists()
    with pytest.raises(ab.ConfigError, match=r"grid: there is no setting or section 'sed'\. Did you mean 'seed'"):
        ab.run_sweep(base, {"sed": [3]}, folder="out")
    with pytest.raises(ab.ConfigError, match=r"out holds trials that do not go together with these: settings.rounds"):
        ab.run_sweep({**base, "rounds": 100}, grid, folder="out")


@pytest.mark.usefixtures("in_this_process")
def test_another_configuration_is_refused_and_a_wider_grid_is_not() -> None:
    assert anabranch_("sweep", write_sweep("seed = [1]"), "--quiet").exit_code == 0
    before = files(Path("runs/rates"))
    other = anabranch_("sweep", "rates.toml", "--set", "learning_rate=0.2")
    assert other.exit_code == 2
    assert "settings.learning_rate is 0.1 there, 0.2 now" in other.stderr
    wider = anabranch_("sweep", write_sweep("seed = [1, 2]\nlearning_rate = [0.1, 0.2]"), "--quiet")
    assert (wider.exit_code, wider.output) == (0, "")
    assert len(files(Path("runs/rates"))) == 4
    assert before.items() <= files(Path("runs/rates")).items()


def test_two_sweeps_do_not_share_a_folder() -> None:
    write_sweep("seed = [1]")
    with locked(Path("runs/rates")):
        refused = anabranch_("sweep", "rates.toml")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Error: runs/rates is in use by this process already: end that one first, or name another" in refused.stderr
    assert [each.name for each in Path("runs/rates").iterdir()] == ["lock"]
    assert anabranch_("sweep", "rates.toml", "--quiet").exit_code == 0


def test_a_persons_own_files_are_left_alone() -> None:
    write_sweep("seed = [1]")
    Path("best.toml").write_text("# mine")
    refused = anabranch_("sweep", "rates.toml", "--out", ".")
    assert refused.exit_code == 2
    assert "Error: . has a best.toml that no sweep wrote there: name another folder with --out" in refused.stderr
    assert sorted(each.name for each in Path().iterdir()) == ["best.toml", "own", "rates.toml"]
    assert Path("best.toml").read_text() == "# mine"


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_that_lost_its_manifest_is_told_so() -> None:
    assert anabranch_("sweep", write_sweep("seed = [1]"), "--quiet").exit_code == 0
    Path("runs/rates/manifest.json").unlink()
    refused = anabranch_("sweep", "rates.toml")
    assert refused.exit_code == 2
    assert "runs/rates has trials but no manifest.json that says of what" in refused.stderr


def test_something_else_at_an_address_is_no_dask_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):  # until the server is closed
                while True:
                    held.append(server.accept()[0])
                    held[-1].sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        held: list[socket.socket] = []
        threading.Thread(target=greet, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        why = f"no Dask cluster at {address}: what answers there is something else than a Dask scheduler"
        with pytest.raises(ClusterError, match=why), backend.connected(Backend("dask", address)):
            pass
        for each in held:
            each.close()


def test_a_best_that_is_none_any_more_is_taken_away() -> None:
    assert "best.toml" in anabranch_("sweep", write_sweep("seed = [1]")).stdout
    assert Path("runs/rates/best.toml").is_file()
    wider = write_sweep('seed = [1]\nactivation = [{name = "Fixed", k = 3}]')
    failed = anabranch_("sweep", wider)
    assert failed.exit_code == 3
    assert "best.toml" not in failed.stdout
    assert not Path("runs/rates/best.toml").exists()


def test_what_is_wrong_is_said_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"
        for arguments, message in (
            (["--backend", "lokky"], "there is no back end 'lokky'. Did you mean 'loky'?"),
            (["--backend", "ray"], "the back end ray needs the address of a cluster (--address), such as auto or"),
            (["--address", "10.0.0.1:1"], "but the back end loky is this machine: choose --backend ray or dask"),
            (["--jobs", "0"], "jobs is 0, but it must be a whole number of 1 or more"),
            (["--set", "stream.path=gone.csv"], "gone.csv: no such file"),
            (["--out", "rates.toml"], "cannot write the trials into rates.toml: "),
            (["--backend", "ray", "--address", nobody], f"no Ray cluster answers at {nobody} (Connection refused)"),
            (["--backend", "dask", "--address", nobody], f"no Dask cluster answers at {nobody} (Connection refused)"),
        ):
            swept = anabranch_("sweep", "rates.toml", *arguments)
            assert (swept.exit_code, swept.stdout) == (2, ""), swept.output
            assert f"Error: {message}" in swept.stderr or message in swept.stderr
    for name, module in (("ray", "ray"), ("dask", "distributed")):
        monkeypatch.setitem(sys.modules, module, None)
        swept = anabranch_("sweep", "rates.toml", "--backend", name, "--address", "127.0.0.1:1")
        assert swept.exit_code == 2
        assert (
            f"the back end {name} is not installed: in the folder of Anabranch's source: pip install '.[{name}]'"
            in swept.stderr
        )


@pytest.mark.parametrize("kind", ["ray", "dask"])
def test_a_cluster_of_two_workers_runs_them_and_outlives_a_deadly_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "attempt", deadly.attempt_or_die)
    trials = small_trials(1, deadly.DEADLY_SEED, 2, 3)
    with cluster(kind) as address:
        swept = run_trials(trials, TrialFolder(tmp_path / "out", {}), Backend(kind, address))
    check_cluster(swept, trials)


def check_cluster(swept: Sweep, trials: list[Trial]) -> None:
    assert list(swept.failed) == [trials[1].key]
    assert swept.failed[trials[1].key].startswith("its process died (")
    assert same(swept.records[trials[2].key]) == same(run_trial(trials[2]))
    assert len(swept.records) == 3


def test_the_ranking_cuts_no_column_where_there_is_little_room() -> None:
    numbers = {"accumulated_error": 0.1234, "run_time_error": 0.2, "diverged": None, "activation_rate": 0.5}
    values = numbers | {"MB": 1234.5, "seconds": 1.0, "key": "a", "failed": None}
    labels = {"learning_rate": 0.003, "update.name": "DLR", "activation.threshold": 0.01}
    rows = [Row(None, values), Row(None, values | {"diverged": 7})]  # type: ignore[arg-type]
    groups = [Group(labels, rows, 3)]
    for width in (60, 80, 100, 160):
        console = Console(record=True, width=width, force_terminal=True, color_system=None, file=io.StringIO())
        trials.ranking(console, groups, [*labels, "seed"])
        text = console.export_text()
        assert "…" not in text
        for part in ("0.003", "DLR", "0.01", "0.1234", "diverged"):
            assert part in text
        assert ("There is no room here for" in text) == (width < 160)
