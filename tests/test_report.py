from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anabranch as ab
from anabranch.cli import app
from anabranch.config.load import load
from anabranch.paper.registry import EXPERIMENTS
from anabranch.report import page, places, report
from anabranch.sweep.file import Point
from anabranch.sweep.folder import TrialFolder
from anabranch.sweep.run import Sweep
from anabranch.sweep.table import rows_of, trials_csv
from anabranch.sweep.trial import Trial
from report_samples import record, write_experiments, write_run, write_sweep

VOID = {"meta", "link", "img", "br", "hr", "input"}
LOADING = {"src", "srcset", "href", "data", "poster", "action", "background"}


class Reader(HTMLParser):
    """What a test asks of a page; tags that do not match are an error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.feed(self.html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        match tag:
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "th" | "td":
                self.tables[-1][-1].append("")
            case "caption":
                self.captions.append("")
            case "h2" | "h3":
                self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "caption" in self._open:
            self.captions[-1] += data
        elif {"th", "td"} & set(self._open):
            self.tables[-1][-1][-1] += data
        elif {"h2", "h3"} & set(self._open):
            self.headings[-1] += data

    def named(self, *names: str) -> Iterator[dict[str, str | None]]:
        return (attributes for tag, attributes in self.tags if tag in names)


def index_of(reader: Reader, caption: str) -> int:
    """Which table has a caption that begins so."""
    (at,) = [i for i, each in enumerate(reader.captions) if each.startswith(caption)]
    return at


@pytest.fixture(scope="module")
def png() -> bytes:
    from matplotlib.figure import Figure

    content = io.BytesIO()
    Figure(figsize=(1, 0.5), dpi=50).savefig(content, format="png")
    return content.getvalue()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, png: bytes) -> Path:
    """A folder with everything in it."""
    folder = tmp_path_factory.mktemp("results")
    write_experiments(folder / "paper", ["activation", "window", "probability"])
    shutil.copytree(folder / "paper" / "window", folder / "again" / "window")
    grid = [f"learning_rate={rate}" for rate in (0.1, 0.01, 0.001)]
    write_sweep(folder / "grid", [load("imnist", [rate, f"seed={seed}"]) for rate in grid for seed in range(20)])
    for seed in (1, 2):
        write_run(folder / "runs" / f"imnist-{seed}", load("imnist", [f"seed={seed}", "rounds=2000"]), png)
    return folder


@pytest.fixture(scope="module")
def reader(results: Path) -> Reader:
    return Reader(report(results))


@pytest.fixture
def paper(tmp_path: Path, results: Path) -> Path:
    """A copy of the experiments, to be broken."""
    return Path(shutil.copytree(results / "paper", tmp_path / "paper"))


def test_the_page_has_everything_in_it(reader: Reader) -> None:
    assert not list(reader.named("script", "iframe", "object", "embed", "link", "base"))
    loaded = [value or "" for _, attributes in reader.tags for name, value in attributes.items() if name in LOADING]
    assert loaded
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in loaded)
    (style,) = re.findall(r"<style>(.*?)</style>", reader.html, re.DOTALL)
    assert not re.search(r"url\(|@import|@font-face", style)
    assert "default-src 'none'" in reader.html


def test_the_page_can_be_read_by_all(reader: Reader) -> None:
    assert len(reader.captions) == len(reader.tables) > 8
    assert all(caption.strip() for caption in reader.captions)
    assert all(attributes.get("scope") in ("col", "row") for attributes in reader.named("th"))
    for table in reader.tables:
        assert {len(row) for row in table} == {len(table[0])}
        assert all(row[0] for row in table)
    assert all(attributes.get("alt") for attributes in reader.named("img"))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert not [name for name, count in Counter(ids).items() if count > 1]
    assert {attributes["href"] for attributes in reader.named("a")} <= {f"#{name}" for name in ids}
    assert list(reader.named("html")) == [{"lang": "en"}]


def test_experiments_come_in_the_order_of_the_paper(reader: Reader) -> None:
    leads = [heading.partition(":")[0] for heading in reader.headings]
    assert leads == [
        "Contents",
        "The paper's experiments",
        "Figure 5",
        "The paper's experiments",
        "Figure 4, Table 3",
        "Table 5",
        "Figure 5",
        "Tuning",
        "Sweep",
        "Runs",
        "runs/imnist-1",
        "runs/imnist-2",
    ]


def test_a_caption_is_read_once(reader: Reader) -> None:
    """The paper's caption is the section's title, its picture's caption and its table's: two of them are only heard."""
    caption = EXPERIMENTS["probability"].caption
    heard, seen = f'<span class="heard">{caption}</span>', reader.html.count(f">{caption}")
    assert reader.html.count(heard) == 2  # the picture's and the table's
    assert seen - reader.html.count(heard) == 0
    assert f"{caption}</h3>" in reader.html
    index_of(reader, caption)
    (chosen,) = (each for each in reader.captions if "rounds of tuning" in each)
    assert f'<span class="heard">{chosen.partition(" (")[0]}' not in reader.html


def test_numbers_stand_as_their_columns_say(reader: Reader, results: Path) -> None:
    held = json.loads((results / "paper" / "probability" / "summary.json").read_text())["tables"][0]
    head, *rows = reader.tables[index_of(reader, held["caption"])]
    assert head == [column["heading"].replace("-", "\u2011") for column in held["columns"]]
    first, second = rows[:2]
    assert (first[0], first[head.index("accumulated error")]) == ("p = 0.25", "–")  # a seed diverged
    keys = [column["key"] for column in held["columns"]]
    difference = held["rows"][1]["difference"]
    assert second[keys.index("difference")] == f"{difference:+.4f}".replace("-", "−")
    assert second[keys.index("error")] == f"{held['rows'][1]['error']:.4f}"
    assert "number paper" in reader.html


def test_what_experiments_have_in_common_is_said_once(paper: Path) -> None:
    same = report(paper).read_text()
    assert same.count("With anabranch ") == 1
    assert "<dt>versions" not in same
    assert "Not in this folder: stationary, drift" in same
    file = paper / "window" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"machine": {"processor": "another", "cores": 1}}))
    apart = report(paper).read_text()
    assert apart.count("<dt>versions") == 4
    assert "another, 1 core<" in apart


def test_the_machines_of_trials_are_told_as_far_as_they_are_known(paper: Path, tmp_path: Path) -> None:
    def told(page: Path, name: str) -> list[str]:
        return re.findall(rf"<dt>{name}</dt>\s*<dd>(.*?)</dd>", page.read_text())

    assert set(told(report(paper), "trials ran on")) == {"not recorded"}
    file = paper / "window" / "summary.json"
    held = json.loads(file.read_text())
    held["runs"][0]["machine"] = {"processor": "Xeon", "cores": 2}
    file.write_text(json.dumps(held))
    others = f"not recorded ({len(held['runs']) - 1} trials)"
    assert f"Xeon, 2 cores (1 trial); {others}" in told(report(paper), "trials ran on")
    trials = TrialFolder(tmp_path / "grid", {})
    trials.put(record(load("imnist")) | {"machine": {"processor": "Xeon", "cores": 2}})
    assert told(report(tmp_path / "grid"), "machine") == ["Xeon, 2 cores"]


def test_a_sweep_has_its_best_first(reader: Reader, results: Path) -> None:
    head, *groups = reader.tables[index_of(reader, "Settings by accumulated error")]
    records = [json.loads(file.read_text()) for file in (results / "grid" / "trials").iterdir()]
    errors: dict[float, list[float]] = {}
    for each in records:
        errors.setdefault(each["config"]["learning_rate"], []).append(each["accumulated_error"])
    (broken,) = (each["config"]["learning_rate"] for each in records if each["diverged"])
    order = sorted(errors, key=lambda rate: (rate == broken, sum(errors[rate])))
    assert [row[head.index("learning_rate")] for row in groups] == [f"{rate:g}" for rate in order]
    best = errors[order[0]]
    assert groups[0][:3] == ["1best", f"{sum(best) / len(best):.4f}", f"{min(best):.4f}–{max(best):.4f}"]
    assert groups[-1][head.index("diverged")] == "1"
    assert "seed" not in head

    tables = [i for i, caption in enumerate(reader.captions) if caption.startswith("Trials by accumulated error")]
    first, others = (reader.tables[i] for i in tables)
    assert (len(first), len(others)) == (1 + page.MOST_ROWS, 1 + 60 - page.MOST_ROWS)
    head, least, *_ = first
    assert (least[0], least[1]) == ("1", f"{min(each for rate in errors for each in errors[rate]):.4f}")
    assert {"seed", "learning_rate"} < set(head)
    assert "update.name" not in head
    assert (others[-1][0], others[-1][head.index("diverged in round")]) == ("60", "77")
    assert "60 finished trials; the loss of 1 of them stopped being finite." in reader.html


def test_trials_of_one_seed_are_ranked_by_themselves(tmp_path: Path) -> None:
    configs = [load("imnist", [f"learning_rate={rate}"]) for rate in (0.1, 0.01, 0.001)]
    reader = Reader(report(write_sweep(tmp_path, configs)))
    assert reader.captions == ["Trials by accumulated error"]
    assert [row[0] for row in reader.tables[0]] == ["rank", "1best", "2", "3"]


def test_a_row_that_lacks_a_seed_is_below_those_that_do_not(tmp_path: Path) -> None:
    rates, seeds = (0.1, 0.01, 0.001), (1, 2, 3)
    configs = [load("imnist", [f"learning_rate={rate}", f"seed={seed}"]) for rate in rates for seed in seeds]
    errors = {config: record(config)["accumulated_error"] for config in configs}
    lucky = min(errors, key=lambda config: errors[config])
    others = [each for each in configs if each.learning_rate != lucky.learning_rate]
    write_sweep(tmp_path, [lucky, *others])
    broken = others[-1].learning_rate  # the last of a sweep diverged
    head, *rows = Reader(report(tmp_path)).tables[0]
    (whole,) = (f"{rate:g}" for rate in rates if rate not in (lucky.learning_rate, broken))
    assert [row[head.index("learning_rate")] for row in rows] == [whole, f"{lucky.learning_rate:g}", f"{broken:g}"]
    assert [row[head.index("seeds missing")] for row in rows] == ["–", "2", "–"]
    assert [row[0] for row in rows] == ["1best", "2", "3"]


def test_trials_that_failed_are_listed(tmp_path: Path) -> None:
    write_sweep(tmp_path, [load("imnist")])
    points = [Point(load("imnist", [f"seed={seed}"]), {"seed": seed}) for seed in (1, 2)]
    trials = [Trial(point.config, {}) for point in points]
    swept = Sweep({trials[0].key: record(points[0].config)}, {trials[1].key: "OSError: no space,\nnone at all"})
    text = trials_csv(rows_of(points, trials, swept), ["seed"])
    (tmp_path / "trials.csv").write_text(text)
    reader = Reader(report(tmp_path))
    assert "1 trial failed; the same command tries again." in reader.html
    why = "OSError: no space,\nnone at all"
    assert reader.tables[1] == [["seed", "what was wrong", "key"], ["2", why, trials[1].key]]
    TrialFolder(tmp_path, {}).put(record(points[1].config))
    assert "Trials that failed" not in report(tmp_path).read_text()
    (tmp_path / "trials.csv").write_text("seed\n1\n")
    with pytest.raises(ab.DataError, match=r"trials\.csv: .*no column 'failed'"):
        report(tmp_path)


def test_a_setting_that_only_one_kind_has_tells_nothing_apart(tmp_path: Path) -> None:
    names = ("update.name=OGD", "update.name=DLR", "update.window=7", "drift.every=50")
    reader = Reader(report(write_sweep(tmp_path, [load("imnist", [name]) for name in names[:2]])))
    assert reader.tables[0][0][3:5] == ["update.name", "diverged in round"]
    shutil.rmtree(tmp_path / "trials")
    reader = Reader(report(write_sweep(tmp_path, [load("imnist", [name]) for name in names])))
    assert {"update.window", "drift.every"} < set(reader.tables[0][0])


def test_runs_are_compared(reader: Reader, results: Path) -> None:
    head, *rows = reader.tables[reader.captions.index("All runs")]
    assert [row[head.index("seed")] for row in rows] == ["1", "2"]
    held = json.loads((results / "runs" / "imnist-2" / "result.json").read_text())
    assert rows[1][:2] == ["runs/imnist-2", f"{held['accumulated_error']:.4f}"]
    assert held["run_again"] in reader.html


def test_one_run_that_was_saved_from_python(tmp_path: Path, png: bytes) -> None:
    file = write_run(tmp_path / "mine", load("imnist"), png) / "result.json"
    held = json.loads(file.read_text())
    for key in ("name", "run_again", "config", "data"):  # which only the command writes
        del held[key]
    file.write_text(json.dumps(held | {"stopped": "interrupted after 5 rounds"}))
    reader = Reader(report(file.parent))
    title = "mine: DLR(window=10, decay=0.95, client_window=True) · Event(threshold=0.2) · imnist"
    assert reader.headings[1:] == ["Run", title]
    assert reader.captions == ["Numbers of the run", "Its clients"]
    assert "Ended early: interrupted after 5 rounds." in reader.html


def test_runs_and_trials_without_a_round(tmp_path: Path, png: bytes) -> None:
    nothing = {"rounds": 0, "accumulated_error": None, "run_time_error": None, "activation_rate": [None] * 4}
    held = record(load("imnist")) | nothing | {"curve": {"rounds": [], "run_time_error": []}}
    write_sweep(tmp_path / "grid", [])
    (tmp_path / "grid" / "trials" / f"{held['key']}.json").write_text(json.dumps(held))
    file = write_run(tmp_path / "run", load("imnist"), png) / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | nothing))
    trials, numbers, clients = Reader(report(tmp_path)).tables
    assert "accumulated error" not in trials[0]
    assert (numbers[1][1], clients[1][2]) == ("–", "–")


def test_an_experiment_of_its_own_and_a_folder_that_has_no_name(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paper / "window")
    reader = Reader(report(Path()))
    assert [heading.partition(":")[0] for heading in reader.headings[1:]] == ["The paper's experiments", "Figure 5"]
    assert "window/window.csv" in reader.html
    assert "Results in window" in reader.html


def test_what_files_say_is_text_and_not_html(paper: Path) -> None:
    file = paper / "window" / "summary.json"
    held = json.loads(file.read_text())
    held["notes"] = ["<script>alert(1)</script>"]
    held["tables"][0]["rows"][0]["row"] = '"><img src=http://example.com>'
    file.write_text(json.dumps(held))
    reader = Reader(report(paper))
    assert not list(reader.named("script"))
    assert "&lt;script&gt;" in reader.html


def test_values_of_any_kind_have_a_cell(paper: Path) -> None:
    file = paper / "window" / "summary.json"
    held = json.loads(file.read_text())
    columns = held["tables"][0]["columns"]
    rows = [dict.fromkeys((column["key"] for column in columns), value) for value in (None, "inf", True, 7, -1e-9)]
    held["tables"][0]["rows"] = [{**row, "row": str(i)} for i, row in enumerate([*rows, {}])]
    file.write_text(json.dumps(held))
    reader = Reader(report(paper))
    cells = [row[1:] for row in reader.tables[index_of(reader, held["tables"][0]["caption"])][1:]]
    assert set(cells[0]) == set(cells[5]) == {"–"}
    assert set(cells[1]) == {"∞"}
    assert set(cells[2]) == {"yes"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Invalid JSON"),
        ("[]", "an object"),
        ('{"name": "window"}', "paper: Field required"),
        ("null", "an object"),
        ("\ufeff{", "Invalid JSON"),
    ],
)
def test_a_damaged_summary_is_named(paper: Path, content: str, said: str) -> None:
    (paper / "window" / "summary.json").write_text(content, encoding="utf-8")
    with pytest.raises(ab.DataError, match=said) as error:
        report(paper)
    assert str(paper / "window" / "summary.json") in str(error.value)
    assert not (paper / "report.html").exists()


def test_a_picture_that_is_missing_broken_or_elsewhere_is_named(paper: Path) -> None:
    picture, file = paper / "window" / "window.png", paper / "window" / "summary.json"
    picture.write_bytes(b"GIF")
    with pytest.raises(ab.DataError, match=r"window\.png: .*not a PNG picture"):
        report(paper)
    picture.unlink()
    with pytest.raises(ab.DataError, match=r"window\.png: is missing"):
        report(paper)
    held = json.loads(file.read_text())
    held["pictures"][0]["file"] = "../probability/probability.png"
    file.write_text(json.dumps(held))
    with pytest.raises(ab.DataError, match=r"summary\.json: .*not in its folder"):
        report(paper)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("grid/manifest.json", "[", "grid/manifest.json"),
        ("grid/trials/0.json", "{}", "trials/0.json: .*key: Field required"),
        ("runs/imnist-1/result.json", "{", "result.json: .*'anabranch run'"),
        ("runs/imnist-1/curve.csv", "rounds\n1\n", "curve.csv: .*no column 'run_time_error'"),
        ("runs/imnist-1/curve.csv", "rounds,run_time_error\n1,many\n", "curve.csv: .*many"),
        ("runs/imnist-1/curve.csv", "rounds,run_time_error\n1\n", "curve.csv: "),
    ],
)
def test_other_damaged_files_are_named(tmp_path: Path, results: Path, file: str, content: str, said: str) -> None:
    part = Path(file).parts[0]
    shutil.copytree(results / part, tmp_path / part)
    (tmp_path / file).write_text(content)
    with pytest.raises(ab.DataError, match=said):
        report(tmp_path)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("paper/window/summary.json", "tables.0.rows.0.error"),
        ("paper/window/summary.json", "runs.0.cpu_seconds"),
        ("grid/trials/*.json", "rounds"),
        ("grid/trials/*.json", "bytes_up.0"),
        ("grid/trials/*.json", "bytes_down.0"),
        ("grid/trials/*.json", "curve.rounds.0"),
        ("runs/imnist-1/result.json", "bytes_up.0"),
        ("runs/imnist-1/result.json", "bytes_down.0"),
    ],
)
@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999", "NaN"])
def test_a_number_that_none_is_is_named_or_shown(
    tmp_path: Path, results: Path, file: str, key: str, number: str
) -> None:
    part = Path(file).parts[0]
    shutil.copytree(results / part, tmp_path / part)
    path = next(tmp_path.glob(file))
    held = place = json.loads(path.read_text())
    *above, last = [int(each) if each.isdigit() else each for each in key.split(".")]
    for each in above:
        place = place[each]
    place[last] = "the number"
    path.write_text(json.dumps(held).replace('"the number"', number))
    if last == "error":  # in a table a cell may have anything
        page = Reader(report(tmp_path))
        assert any(cell in ("∞", "–") for table in page.tables for row in table for cell in row)
    else:
        with pytest.raises(ab.DataError, match=rf"{re.escape(path.name)}: .*{re.escape(key)}: Input should be "):
            report(tmp_path)


def test_folders_without_results(tmp_path: Path) -> None:
    with pytest.raises(ab.DataError, match=r"there is no such folder"):
        report(tmp_path / "none")
    with pytest.raises(ab.DataError, match=r"x{300}"):
        report(tmp_path / ("x" * 300))
    with pytest.raises(ab.DataError, match=r"summary\.json.*manifest\.json.*result\.json"):
        report(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ab.DataError, match="is a file; name the folder"):
        report(tmp_path / "result.json")
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (tmp_path / "result.json").rename(deep / "result.json")
    with pytest.raises(ab.DataError, match="3 folders deep"):
        places.find(tmp_path)
    assert places.find(tmp_path / "a").runs == [deep]


def test_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    assert "No trial is finished yet." in report(write_sweep(tmp_path, [])).read_text()


def test_where_the_page_goes(tmp_path: Path, results: Path) -> None:
    out = tmp_path / "new" / "page.html"
    assert report(results / "grid", out) == out
    assert [each.name for each in out.parent.iterdir()] == ["page.html"]
    with pytest.raises(ab.ConfigError, match=r"ends in \.html"):
        report(results / "grid", results / "grid" / "manifest.json")
    (tmp_path / "file").touch()
    with pytest.raises(ab.OutputError, match="cannot write the report into"):
        report(results / "grid", tmp_path / "file" / "page.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ab.OutputError, match="Is a directory"):
        report(results / "grid", tmp_path / "folder.html")


def test_the_command_says_where_the_page_is(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["report", str(results / "grid"), "--out", str(out)])
    assert (said.exit_code, said.stdout) == (0, f"{out} (0.1 MB)\n")
    said = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert (said.exit_code, said.stdout) == (2, "")
    assert "there is no such folder" in said.stderr
