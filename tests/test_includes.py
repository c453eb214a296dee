"""Files that include others: whose value counts, what is refused, and that errors name the file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.config import party as partyfile
from anabranch.config.includes import merged
from anabranch.config.load import load
from anabranch.errors import ConfigError
from small_runs import write_rooms

SHARED = """
clients = 2
learning_rate = 0.05
[features]
source = "csv"
entity_key = "entity.key"
time = "at"
columns = ["light", {name = "noise", standardise = true}]
[model]
name = "mlp"
hidden = [16]
embedding = 8
"""
HALL = 'include = "columns.toml"\nconnection = "c.toml"\nfolder = "state"\n[features]\npath = "hall.csv"\n'


@pytest.fixture
def hall(tmp_path: Path) -> Path:
    (tmp_path / "columns.toml").write_text(SHARED)
    (tmp_path / "hall.toml").write_text(HALL)
    return tmp_path / "hall.toml"


def test_a_partys_file_has_what_it_includes_and_its_own_settings_count(hall: Path) -> None:
    party = partyfile.load(hall)
    assert isinstance(party, partyfile.ClientFile)
    assert [each.name for each in party.features.columns] == ["light", "noise"]
    assert (party.learning_rate, party.model.embedding) == (0.05, 8)
    hall.write_text(HALL.replace("[features]", "learning_rate = 0.2\n[model]\nembedding = 3\n[features]"))
    party = partyfile.load(hall)
    assert isinstance(party, partyfile.ClientFile)
    assert (party.learning_rate, party.model.embedding, party.model.hidden) == (0.2, 3, (16,))


def test_paths_are_relative_to_the_file_that_includes(hall: Path) -> None:
    shared = hall.parent / "shared"
    shared.mkdir()
    (hall.parent / "columns.toml").rename(shared / "columns.toml")
    hall.write_text(HALL.replace("columns.toml", "shared/columns.toml"))
    party = partyfile.load(hall)
    assert isinstance(party, partyfile.ClientFile)
    assert party.features.path == str(hall.parent / "hall.csv")
    assert party.features.entity_key == str(hall.parent / "entity.key")


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [
        (SHARED.replace("0.05", '"fast"'), HALL, ['columns.toml: learning_rate is "fast"']),
        (SHARED.replace("hidden", "hiden"), HALL, ["columns.toml: model: there is no setting 'hiden'"]),
        (SHARED, HALL.replace("[features]", "seed = -1\n[features]"), ["hall.toml: seed is -1"]),
        (
            SHARED.replace("0.05", "-1"),
            HALL + "speed = 0\n",
            ["columns.toml: learning_rate", "hall.toml: features.speed"],
        ),
        (SHARED.replace('time = "at"', ""), HALL, ["hall.toml: features.time is missing"]),
        ("[features", HALL, ["columns.toml: is not TOML", "hall.toml includes it"]),
        (SHARED, HALL.replace("columns", "column"), ["hall.toml: include is '", "column.toml', which cannot be read"]),
        (
            SHARED,
            HALL.replace('"columns.toml"', "3"),
            ["hall.toml: include is 3, but it must be the path of a TOML file"],
        ),
        ('include = "hall.toml"', HALL, ["columns.toml: include is '", "includes this file again"]),
        (SHARED, HALL.replace("columns", "hall"), ["hall.toml: include is '", "includes this file again"]),
    ],
)
def test_errors_name_the_file_that_is_wrong(shared: str, own: str, expected: list[str], hall: Path) -> None:
    (hall.parent / "columns.toml").write_text(shared)
    hall.write_text(own)
    with pytest.raises(ConfigError) as problem:
        partyfile.load(hall)
    for words in expected:
        assert words in str(problem.value)


def test_of_several_files_the_later_counts_and_each_may_include(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.toml").write_text('include = "deep/b.toml"\n[x]\none = 1\n')
    (tmp_path / "deep" / "b.toml").write_text('include = "c.toml"\ny = 1\n[x]\none = 2\ntwo = 2\n')
    (tmp_path / "deep" / "c.toml").write_text("y = 3\nz = 3\n[x]\nthree = 3\n")
    (tmp_path / "d.toml").write_text('include = "deep/c.toml"\nz = 4\n')  # the same file twice is no circle
    found = merged({"include": ["a.toml", "d.toml"], "x": {"two": 5}}, tmp_path / "own.toml")
    assert found.values == {"x": {"one": 1, "two": 5, "three": 3}, "y": 3, "z": 4}
    names = {".".join(key): file.name for key, file in found.origins.items()}
    assert names == {"x.one": "a.toml", "x.three": "c.toml", "y": "c.toml", "z": "d.toml"}


def test_a_runs_file_includes_too(tmp_path: Path) -> None:
    rooms = write_rooms(tmp_path)
    own = tmp_path / "longer.toml"
    own.write_text('include = "rooms.toml"\n[update]\nwindow = 20\n')
    config = load(own)
    assert (config.update.window, config.learning_rate) == (20, 0.1)  # type: ignore[union-attr]
    rooms.write_text(rooms.read_text().replace("rounds = 300", "rounds = 0"))
    with pytest.raises(ConfigError, match=rf"^{rooms}: rounds is 0"):
        load(own)
    with pytest.raises(ConfigError, match=r"^--set: rounds is -1|^rounds is -1"):
        load(own, ["rounds=-1"])
    own.write_text('include = "rooms.toml"\nrounds = 5\n[update]\nwindow = 0\n')
    with pytest.raises(ConfigError, match=rf"^{own}: update.window is 0"):
        load(own)
