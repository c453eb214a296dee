"""The examples, shortened: on the real data where there is some, else on made-up tables of the same form."""

from __future__ import annotations

import csv
import importlib.util
import re
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import baselines
import datasets
from forks import Forked
from real_data import DATA

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
FILES = [DATA / file for dataset in datasets.DATASETS.values() for file in dataset.files]
REAL = all(path.is_file() or path.with_name(f"{path.name}.gz").is_file() for path in FILES)
ROWS = 300


def example(name: str) -> ModuleType:
    """The module that its command runs."""
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), EXAMPLES / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(folder: Path) -> None:
    """Tables of the three datasets' form."""
    rng = np.random.default_rng(7)
    times = np.datetime_as_string(np.datetime64("2017-12-22T10:49:41") + 30 * np.arange(ROWS))
    people = np.repeat(rng.integers(0, 4, ROWS // 20), 20)
    columns = [15 * people + rng.normal(0, 0.01, ROWS) for _ in range(14)]
    flags = [(people > 0) * 1, (people > 1) * 1]
    header = ["Date", "Time", *datasets.ROOM]
    write(folder / datasets.DATASETS["room"].files[0], header,
          [[*time.split("T"), *row] for time, *row in zip(times, *columns, *flags, people, strict=True)])  # fmt: skip
    up = rng.integers(0, 2, ROWS)
    x = up[:, None] + rng.normal(size=(ROWS, 8))
    x[: ROWS // 2, 5:7] = 0.5
    data, labels = (folder / name for name in datasets.DATASETS["electricity"].files)
    data.parent.mkdir()
    np.savetxt(data, x)
    np.savetxt(labels, up, "%d")
    unpaid = rng.integers(0, 2, ROWS)
    x = rng.integers(1, 3, (ROWS, 23)) + unpaid[:, None]
    write(folder / datasets.DATASETS["credit"].files[0], datasets.CREDIT,
          [[i, *row, label] for i, (row, label) in enumerate(zip(x.tolist(), unpaid, strict=True), 1)])  # fmt: skip


def write(path: Path, header: list[str], rows: list[list[object]]) -> None:
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def learning() -> None:
    """Of a test in which baselines are trained."""


@pytest.fixture(autouse=True)
def untrained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with is trained in one test only: each shape of a model takes seconds to compile."""
    if "learning" in request.fixturenames:
        return

    def never(model: object, x: np.ndarray, *_: object) -> baselines.Errors:
        return baselines.Errors(np.array([0, len(x)]), np.array([0, 0]))

    monkeypatch.setattr(baselines, "_online", never)
    monkeypatch.setattr(baselines, "_offline", lambda *of: never(*of)._replace(wrong=np.array([np.nan, 0])))


@pytest.fixture(autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "RATES", (0.01,))
    folder = DATA
    if not REAL:
        folder = tmp_path_factory.mktemp("data")
        made_up(folder)
    monkeypatch.setenv("ANABRANCH_DATA", str(folder))


def rates(table: str) -> dict[str, list[float]]:
    """The errors of each row of a table, in per cent."""
    found = re.findall(r"^\| (.*?) \| (\S+ %|–) \| (\S+ %|–) \|$", table, re.MULTILINE)
    return {name: [float(cell.removesuffix(" %")) for cell in cells if cell != "–"] for name, *cells in found}


def check(table: str, folder: Path, clients: list[str]) -> None:
    """A table has what was measured, and a picture is there."""
    found = rates(table)
    assert [*found] == [
        "the federation", "the most frequent label so far", "the last label repeated",
        *(f"{client} alone" for client in clients), "all features in one place", "all features in one place, offline",
    ]  # fmt: skip
    assert all(0 <= rate <= 100 for each in found.values() for rate in each)
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_electricity_where_a_client_joins_late(tmp_path: Path) -> None:
    module = example("electricity")
    part = slice(17_424 - ROWS // 2, 17_424 + ROWS // 2) if REAL else slice(None)
    table = module.main(tmp_path, part, Forked)
    check(table, tmp_path, ["nsw", "victoria", "transfer"])
    assert "Victoria answered in 150 of 300 rounds, from round 150 on." in table


def test_bank_and_shop_with_labels_thirty_days_late(tmp_path: Path) -> None:
    module = example("bank-and-shop")
    table = module.main(tmp_path, slice(ROWS), Forked)
    check(table, tmp_path, ["bank", "shop"])
    assert "300 applications were predicted, 300 labels learnt from" in table
    assert "the shop was asked for 60 people that it does not know" in table


def test_room_sensors_that_wake_when_something_moves(tmp_path: Path) -> None:
    module = example("room-sensors")
    table = module.main(tmp_path, slice(60), Forked, nodes=2)
    every, moved = table.split("**what moved**")
    for text in (every, moved):
        check(text, tmp_path, ["node1", "node2"])
    happened = [int(n) for n in re.findall(r"^(\d+) events, ", table, re.MULTILINE)]
    assert happened[0] == 60 > happened[1] > 0
    told = re.findall(r"^\| node\d \| (\d+) \| (\d+) \|", table, re.MULTILINE)
    assert len(told) == 2
    assert all(int(some) < int(all_of_them) <= 60 for all_of_them, some in told)


def test_baselines_learn(learning: None) -> None:
    x = np.random.default_rng(7).normal(size=(600, 2))
    labels = (x[:, 0] > 0).astype(int)
    found = baselines.baselines({"a": x}, labels, 2, np.zeros(600, int))
    assert found["a alone"].rate(300, 600) < 0.2
    assert found["all features in one place"].rate(0, 600) == found["a alone"].rate(0, 600)
    offline = found["all features in one place, offline"]
    assert offline.rate(300, 600) < 0.1
    assert np.isnan(offline.rate(0, 600))  # it has learnt the first half
    assert baselines.table(found, 600).splitlines()[-1].startswith("| all features in one place, offline | – | ")


@pytest.mark.parametrize(
    ("delay", "last", "frequent"), [(0, [0, 1, 0, 1, 1], [0, 1, 1, 1, 1]), (2, [0, 1, 1, 1, 0], [0, 1, 1, 0, 0])]
)
def test_no_baseline_knows_a_label_before_it_is_there(delay: int, last: list[int], frequent: list[int]) -> None:
    labels = np.array([0, 1, 1, 0, 1])
    found = baselines.baselines({"a": np.zeros((5, 1))}, labels, 2, np.full(5, delay))
    assert np.diff(found["the last label repeated"].wrong).tolist() == last
    assert np.diff(found["the most frequent label so far"].wrong).tolist() == frequent
    assert found["the last label repeated"].rate(0, 4) == sum(last[:4]) / 4


def test_data_that_are_not_there_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"Occupancy_Estimation.csv\[.gz\]: there is no such file"):
        datasets.load("room")


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the data downloaded, from an address of the test."""
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def from_address(url: str) -> None:
        monkeypatch.setitem(datasets.DATASETS, "room", datasets.DATASETS["room"]._replace(url=url))

    return from_address


def test_data_are_downloaded_once(tmp_path: Path, downloads: Callable[[str], None]) -> None:
    made_up(tmp_path)
    file = tmp_path / datasets.DATASETS["room"].files[0]
    handler = partial(SimpleHTTPRequestHandler, directory=str(file.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        downloads(f"http://127.0.0.1:{server.server_port}/{file.name}")
        table, note = datasets.load("room")
        server.shutdown()
        serving.join()
    assert len(table["S7_PIR"]) == ROWS
    assert "other data than the README's (300 rows)" in note
    assert datasets.load("room")[0]["at"].tolist() == table["at"].tolist()  # nobody serves it any more


def test_a_download_that_fails_says_where_to_put_the_files(downloads: Callable[[str], None]) -> None:
    downloads("http://127.0.0.1:1/x.csv")
    with pytest.raises(SystemExit, match=r"cannot be downloaded .* Put room_occupancy_estimation/"):
        datasets.load("room")
