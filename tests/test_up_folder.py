"""``anabranch up FOLDER``: parties' own files as they stand, with a broker and keys that are made for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import anabranch as ab
from anabranch.errors import ConfigError
from anabranch.parties.folder_federation import FolderFederation
from patience import PATIENCE

ROWS = 60
X = np.random.default_rng(0).normal(size=(ROWS, 4)).round(3)
Y = (X[:, 0] + X[:, 3] > 0).astype(int)
SERVER = """
connection = "server/connection.toml"
folder = "state/server"
learning_rate = 0.05
[labels]
source = "csv"
path = "labels.csv"
entity_key = "entity.key"
time = "at"
label = "people"
[model]
name = "mlp"
hidden = [4]
classes = 2
[[clients]]
name = "hall"
embedding = 2
[[clients]]
name = "roof"
embedding = 2
"""
SHARED = """
clients = 2
learning_rate = 0.05
[features]
source = "csv"
entity_key = "entity.key"
time = "at"
columns = ["light", "noise"]
[model]
name = "mlp"
hidden = [3]
embedding = 2
[activation]
name = "Random"
p = 1.0
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "parties"
    folder.mkdir()
    times = 1_700_000_000 + 60 * np.arange(ROWS)
    for name, part in (("hall", X[:, :2]), ("roof", X[:, 2:])):
        rows = [f"{at},{light},{noise}" for at, (light, noise) in zip(times, part.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["at,light,noise", *rows]) + "\n")
        text = f'include = "shared.toml"\nconnection = "{name}/c.toml"\nfolder = "state/{name}"\n'
        (folder / f"{name}.toml").write_text(f'{text}[features]\npath = "{name}.csv"\n')
    rows = [f"{at},{label}" for at, label in zip(times, Y.tolist(), strict=True)]
    (folder / "labels.csv").write_text("\n".join(["at,people", *rows]) + "\n")
    (folder / "server.toml").write_text(SERVER)
    (folder / "shared.toml").write_text(SHARED)
    return folder


def up(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "anabranch", "up", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def test_a_folder_of_parties_is_played_to_its_end_and_is_the_simulation(files: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in files.iterdir()}
    code, said = up(files, "--out", tmp_path / "out")
    assert (code, f"{ROWS} rounds" in said) == (0, True), said
    assert {path: path.read_bytes() for path in files.iterdir()} == before
    stream = ab.streams.from_arrays([X[:, :2].astype(np.float32), X[:, 2:].astype(np.float32)], Y)
    model = ab.models.mlp((2, 2), 2, hidden=[3], embedding=2, server=[4])
    expected = ab.simulate(model, stream, learning_rate=0.05).model.to_arrays()
    found: dict[str, np.ndarray] = {}
    for name in ("server", "hall", "roof"):
        found |= load_file(tmp_path / "out" / name / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }

    (files / "roof.csv").write_text((files / "roof.csv").read_text().replace("noise", "nose"))
    code, said = up(files, "--out", tmp_path / "other", "--quiet")
    assert code == 2
    assert f"roof has ended (exit code 2): {files / 'roof.toml'}: " in said
    assert "noise" in said
    assert str(tmp_path / "other" / "roof" / "party.toml") not in said


def change(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


def test_what_does_not_go_together_is_said_before_anything_is_started(files: Path, tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            FolderFederation(files, tmp_path / "out")

    change(files / "shared.toml", "clients = 2", "clients = 3")
    refused(r"hall\.toml: clients is 3, but .*server\.toml names 2")
    change(files / "shared.toml", "clients = 3", "clients = 2")
    (files / "attic.toml").write_text((files / "roof.toml").read_text())
    refused(r"attic\.toml: is a client's, but .*server\.toml has no \[\[clients\]\] of the name 'attic'")
    (files / "attic.toml").unlink()
    change(files / "server.toml", '"roof"', '"cellar"')
    refused(r"server\.toml: clients names 'cellar', but there is no .*cellar\.toml")
    change(files / "server.toml", '"cellar"', '"broker"')
    refused(r"server\.toml: a client's name is 'broker', which cannot be a folder of its own here")
    change(files / "server.toml", '"broker"', '"roof"')
    change(files / "server.toml", "entity.key", "own.key")
    (files / "own.key").write_text("x")
    refused(r"hall\.toml: entity_key is '.*entity\.key', which is not there, but that of other parties is")
    (files / "server.toml").write_text((files / "roof.toml").read_text())
    refused(r"server\.toml: has no \[labels\]")


def test_a_folder_without_a_servers_file_and_settings_of_a_run_are_refused(files: Path, tmp_path: Path) -> None:
    code, said = up(files, "--rounds", 5)
    assert (code, "--rounds is for a run: with a folder, its files have the settings" in said) == (2, True)
    (files / "server.toml").unlink()
    code, said = up(files, "--out", tmp_path / "out")
    assert (code, "has no server.toml: a folder of parties has one" in said) == (2, True)
    assert not (tmp_path / "out").exists()
