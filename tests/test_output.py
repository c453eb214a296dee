from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from safetensors.numpy import load_file

import anabranch as ab
from anabranch.config import build as runner
from anabranch.config.load import load
from anabranch.config.run import Config
from anabranch.simulation import metrics, output
from small_runs import write_rooms


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load(write_rooms(tmp_path_factory.mktemp("rooms")), ["activation.threshold=-inf", "report_every=100"])


@pytest.fixture(scope="module")
def result(config: Config) -> ab.Result:
    return runner.run(config)


@pytest.fixture(scope="module")
def origin(config: Config) -> output.Origin:
    return output.Origin("rooms", config.title(), config.to_dict(), {"stream": {"name": "rooms.csv"}})


def empty(result: ab.Result) -> ab.Result:
    """The same after no round at all."""
    return dataclasses.replace(
        result,
        rounds=0,
        error_rate=math.nan,
        curve=metrics.Prequential(10).curve(),
        activation_rate=np.zeros(2),
        stopped="interrupted after 0 rounds",
    )


def test_the_files_say_what_the_result_says(
    tmp_path: Path, result: ab.Result, origin: output.Origin, config: Config
) -> None:
    folder = output.prepare(tmp_path / "my run", "rooms")
    described = output.write(folder.path, result, origin)
    assert sorted(file.name for file in folder.path.iterdir()) == sorted([*output.FILES, output.STATE])

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads((folder.path / "result.json").read_text(), parse_constant=never)
    assert read == described
    assert read["config"]["activation"] == {"name": "Event", "threshold": "-inf"}
    assert load(folder.path) == config
    assert (read["rounds"], read["seed"], read["data"]) == (300, 0, {"stream": {"name": "rooms.csv"}})
    assert read["accumulated_error"] == result.error_rate
    assert read["run_again"] == f"anabranch run '{folder.path / 'result.json'}'"
    assert {"anabranch", "jax", "numpy", "python"} <= set(read["versions"])

    with (folder.path / "curve.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["rounds", "run_time_error", "accumulated_error"]
    assert [[float(cell) for cell in row] for row in rows] == np.stack(result.curve, axis=1).tolist()

    arrays = load_file(folder.path / "model.safetensors")
    assert arrays.keys() == result.model.to_arrays().keys()
    assert all(np.array_equal(arrays[name], array) for name, array in result.model.to_arrays().items())


def test_a_result_draws_its_curve_and_gives_it_as_a_table(result: ab.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = Figure().subplots()
    assert result.plot(axes) is axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [each.tolist() for each in result.curve[1:]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rounds", "error rate")
    monkeypatch.setattr(pyplot, "figure", Figure)
    assert len(result.plot().lines) == 2
    table = result.to_pandas()
    assert list(table.columns) == ["rounds", "run_time_error", "accumulated_error"]
    np.testing.assert_array_equal(table.to_numpy(), np.column_stack(result.curve))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ab.ConfigError, match="pip install pandas"):
        result.to_pandas()


@pytest.mark.parametrize("points", [0, 1, 3])
def test_the_picture_is_drawn_for_any_number_of_points(points: int, result: ab.Result, origin: output.Origin) -> None:
    curve = metrics.Curve(*(column[:points] for column in result.curve))
    figure = output.draw_curve(dataclasses.replace(result, curve=curve, rounds=points), origin.title)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "DLR (window 3, decay 0.95) · Event (threshold -inf) · rooms.csv"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rounds", "error rate")
    labels = [line.get_label() for line in axes.get_lines()]
    assert len(labels) == (2 if points else 0)
    assert axes.xaxis.get_major_formatter()(200_000) == "200,000"
    figure.canvas.draw()


def test_a_run_without_a_round_has_valid_files_too(tmp_path: Path, result: ab.Result, origin: output.Origin) -> None:
    described = output.write(output.prepare(tmp_path, "rooms").path, empty(result), origin)
    assert described["accumulated_error"] is described["run_time_error"] is None
    assert json.loads((tmp_path / "result.json").read_text())["stopped"] == "interrupted after 0 rounds"
    assert (tmp_path / "curve.csv").read_text() == "rounds,run_time_error,accumulated_error\n"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_folder_each_run_gets_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [output.prepare(None, "imnist") for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    assert all(folder.path.parent == Path("runs") and folder.path.name.startswith("imnist-") for folder in folders)
    for folder in reversed(folders):
        folder.discard()
    assert not (tmp_path / "runs").exists()


def test_an_earlier_result_is_overwritten_only_on_demand(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("mine")
    with pytest.raises(ab.OutputError, match=r"holds curve\.csv of an earlier run: .* with --force"):
        output.prepare(tmp_path, "rooms")
    output.prepare(tmp_path, "rooms", force=True).discard()
    assert (tmp_path / "curve.csv").read_text() == "mine"


def test_discarding_leaves_what_was_there_before(tmp_path: Path) -> None:
    output.prepare(tmp_path, "rooms").discard()
    assert tmp_path.is_dir()
    folder = output.prepare(tmp_path / "a" / "b", "rooms")
    (tmp_path / "a" / "mine").touch()
    folder.discard()
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ab.OutputError, match=r"into .*file: .*file is a file, not a folder"):
        output.prepare(tmp_path / "file", "rooms")
    with pytest.raises(ab.OutputError, match=r"into .*below: .*file is a file, not a folder; name another"):
        output.prepare(tmp_path / "file" / "below", "rooms")


def test_a_file_is_written_completely_or_not_at_all(
    tmp_path: Path, result: ab.Result, origin: output.Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    output.write(tmp_path, result, origin)
    before = (tmp_path / "curve.csv").read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ab.OutputError, match=r"cannot write the result into .*: No space left on device"):
        output.write(tmp_path, empty(result), origin)
    assert (tmp_path / "curve.csv").read_bytes() == before
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == ["curve.csv", "curve.png", "model.safetensors", "state"]  # without a result.json it is no result


def test_a_result_of_simulate_is_saved_without_a_configuration(tmp_path: Path, result: ab.Result) -> None:
    folder = output.save(result, tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert sorted(file.name for file in folder.iterdir()) == sorted([*output.FILES, output.STATE])
    read = json.loads((folder / "result.json").read_text())
    assert read == json.loads(json.dumps(result.describe()))
    assert read["client_seconds"] > 0
    assert not {"config", "run_again"} & read.keys()
    with pytest.raises(ab.ConfigError, match="it has no 'config'"):
        load(folder)

    with pytest.raises(ab.OutputError, match=r"of an earlier run: .* \(in Python: force=True\)"):
        output.save(result, folder)
    output.save(empty(result), str(folder), force=True)
    assert json.loads((folder / "result.json").read_text())["rounds"] == 0


def test_a_saved_result_is_there_before_the_clients_are_timed(tmp_path: Path, result: ab.Result) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.save(dataclasses.replace(result, _measure=interrupted), tmp_path)
    read = json.loads((tmp_path / "result.json").read_text())
    assert (read["rounds"], read["client_seconds"]) == (300, None)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ({"name": "arrays"}, "OGD() · Full() · arrays"),
        ({"name": "table", "file": "rooms.csv"}, "OGD() · Full() · rooms.csv"),
        ({"name": "drift", "every": 5, "stream": {"name": "imnist"}}, "OGD() · Full() · imnist, drift every 5 rounds"),
        ({}, "OGD() · Full() · stream"),
    ],
)
def test_a_picture_without_a_configuration_has_a_title_too(stream: dict[str, Any], expected: str) -> None:
    assert output._title({"update": "OGD()", "activation": "Full()", "stream": stream}) == expected


def test_a_streams_own_description_may_hold_any_values(tmp_path: Path, result: ab.Result) -> None:
    own = {"name": "mine", "scale": np.float32(0.5), "path": Path("x"), "rows": np.arange(2), "limit": np.inf}
    settings = {**result.settings, "stream": own}
    output.save(dataclasses.replace(result, settings=settings, _measure=None), tmp_path)
    read = json.loads((tmp_path / "result.json").read_text())["settings"]["stream"]
    assert read == {"name": "mine", "scale": 0.5, "path": "x", "rows": [0, 1], "limit": "inf"}
