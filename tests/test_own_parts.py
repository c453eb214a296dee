"""Parts of a person's own, as docs/extend.md has them, by their names in TOML: in a run, a sweep and a party's file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from typer.testing import CliRunner

import anabranch as ab
from anabranch import testing
from anabranch.cli import app
from anabranch.config import build, party
from anabranch.config.load import load
from anabranch.config.own import OwnPart, make
from anabranch.errors import ConfigError
from anabranch.parties.build_party import _activation, _bottom, _stimulus, _update

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"
RUN = """
rounds = 200
learning_rate = 0.05
[update]
name = "mine_of_the_page:Momentum"
beta = 0.8
[activation]
name = "mine_of_the_page:Peak"
threshold = 0.3
[stream]
name = "mine_of_the_page:Larger"
samples = 300
[model]
name = "mine_of_the_page:small"
embedding = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the page's classes in one module."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    code = [block for block in blocks if ">>>" not in block]
    assert all(len(block.splitlines()) < 30 for block in code)
    (tmp_path / "mine_of_the_page.py").write_text("\n".join(code), encoding="utf-8")
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_the_page", raising=False)
    yield tmp_path
    sys.modules.pop("mine_of_the_page", None)


def test_a_run_of_own_parts_is_that_of_the_same_parts_in_python(folder: Path) -> None:
    result = build.run(load(folder / "run.toml"))
    mine = sys.modules["mine_of_the_page"]
    stream = mine.Larger(300)
    expected = ab.simulate(
        mine.small(stream.widths, 2, seed=0, embedding=3),
        stream,
        update=mine.Momentum(0.8),
        activation=mine.Peak(0.3),
        learning_rate=0.05,
        rounds=200,
    )
    assert (result.rounds, result.error_rate) == (200, expected.error_rate)
    np.testing.assert_array_equal(result.activation_rate, expected.activation_rate)


def test_the_command_line_takes_them(folder: Path) -> None:
    out = folder / "out"
    done = CliRunner().invoke(app, ["run", "run.toml", "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    assert load(out).update.given == {"beta": 0.8}
    again = CliRunner().invoke(app, ["run", "run.toml", "--set", "update.name=DLR", "--out", str(folder / "dlr")])
    assert again.exit_code == 2
    assert "beta" in again.output


def test_a_sweep_takes_them(folder: Path) -> None:
    get_reusable_executor().shutdown(kill_workers=True)  # those of other tests have another working folder
    (folder / "sweep.toml").write_text(RUN + "[grid]\nupdate.beta = [0.5, 0.9]\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["sweep", "sweep.toml", "--out", "swept", "--jobs", "1", "--quiet"])
    assert done.exit_code == 0, done.output
    assert len(list((folder / "swept" / "trials").glob("*.json"))) == 2


def test_a_partys_file_takes_them(folder: Path) -> None:
    client = party.check(
        {
            "connection": "connection.toml",
            "folder": "state",
            "clients": 2,
            "features": {"path": "a.csv", "event": "id", "columns": ["a", "b"]},
            "model": {"name": "mine_of_the_page:Bottom", "embedding": 5},
            "update": {"name": "mine_of_the_page:Momentum", "beta": 0.7},
            "activation": {"name": "mine_of_the_page:Peak", "threshold": 0.1},
        },
        folder / "a.toml",
    )
    assert isinstance(client, party.ClientFile)
    assert _bottom(client, 2, 1)(np.ones(2, np.float32)).shape == (5,)
    assert float(_update(client).beta) == pytest.approx(0.7)
    assert _activation(client.activation).threshold == 0.1
    assert party.check(party_values(client), folder / "a.toml") == client
    warm = client.model_copy(update={"activation": OwnPart(name="mine_of_the_page:Warm", limit=2.0)})
    assert _stimulus(warm, [], 1).touches(None, np.array([3.0]))


def party_values(file: party.ClientFile) -> dict:
    """Return the settings as a file has them."""
    return party.tomllib.loads(party.text(file))


def test_ours_and_the_pages_parts_pass_the_public_checks(folder: Path) -> None:
    build.run(load(folder / "run.toml", ["rounds=1"]))
    mine = sys.modules["mine_of_the_page"]
    for update in (ab.OGD(), ab.DLR(4, 0.8), ab.DLR(4, 0.8, client_window=False), ab.SLR(3), mine.Momentum(0.9)):
        testing.check_update(update)
    for activation in (ab.Full(), ab.Random(0.4), ab.Event(0.1), mine.Peak(0.5)):
        testing.check_activation(activation)
    testing.check_stream(mine.Larger(300))


def test_the_checks_find_what_is_wrong(folder: Path) -> None:
    build.run(load(folder / "run.toml", ["rounds=1"]))
    mine = sys.modules["mine_of_the_page"]

    class Careless(mine.Peak):
        def decide(self, seed, client, t, x_m):
            return True

    class Restless(mine.Larger):
        def blocks(self):
            self.seed += 1
            return super().blocks()

    with pytest.raises(AssertionError, match="decide and mask differ"):
        testing.check_activation(Careless(1.0))
    with pytest.raises(AssertionError, match="differs when the stream begins anew"):
        testing.check_stream(Restless(300))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("no_such_module:Class", {}, "update.name = 'no_such_module:Class': there is no module no_such_module"),
        ("mine_of_the_page:Nothing", {}, "mine_of_the_page has no Nothing; it has"),
        ("mine_of_the_page:Momentum", {"gamma": 1}, "cannot be built with gamma: TypeError"),
        ("mine_of_the_page:Peak", {"threshold": 1.0}, "gives a Peak: Update is needed"),
        ("broken_module:Class", {}, "importing broken_module fails: ZeroDivisionError"),
        ("needs_another:Class", {}, "importing needs_another fails: No module named 'not_there'"),
    ],
)
def test_what_cannot_be_found_or_built_is_said(folder: Path, name: str, settings: dict, said: str) -> None:
    (folder / "broken_module.py").write_text("1 / 0\n", encoding="utf-8")
    (folder / "needs_another.py").write_text("import not_there\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        make(OwnPart(name=name, **settings), "update", ab.Update)


def test_an_unknown_kind_says_that_ones_own_may_stand_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r'or the place of your own, such as "package.module:Class"'):
        load("imnist", ["update.name=Impulse"])
    with pytest.raises(ConfigError, match=r"update.name is .* but it must be the place of your class"):
        load("imnist", ["update.name=mine:"])
