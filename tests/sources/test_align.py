"""Two sides count what they share, and neither sees what the other has."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from anabranch.errors import ConfigError, DataError
from anabranch.sources import psi as align
from anabranch.storage.event_ids import Names, write_key

pytest.importorskip("private_set_intersection.python", reason="there is no wheel of openmined-psi for this machine")

NAMES = Names(bytes(range(32)))


def aligned(folder: Path, mine: list[str], theirs: list[str]) -> align.Count:
    offer, secret, answer = folder / "offer.json", folder / "offer.secret", folder / "answer.json"
    align.offer(mine, NAMES, offer, secret)
    align.answer(theirs, NAMES, offer, answer)
    return align.count(answer, secret)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (["a", "b", "c", "b"], ["c", "d", "a", "e"], (2, 3, 4, False)),
        (["a", "b"], ["a", "b"], (2, 2, 2, True)),
        (["a", "b"], ["b", "a"], (2, 2, 2, False)),
        (["a"], ["b"], (0, 1, 1, False)),
    ],
)
def test_the_count_is_that_of_both_sets(tmp_path: Path, mine: Any, theirs: Any, expected: tuple[Any, ...]) -> None:
    assert aligned(tmp_path, mine, theirs) == expected


def test_no_entity_and_no_hash_is_in_a_file_and_the_secret_is_private(tmp_path: Path) -> None:
    mine = [f"customer-{i}" for i in range(20)]
    aligned(tmp_path, mine, mine[10:])
    for name in ("offer.json", "offer.secret", "answer.json"):
        text = (tmp_path / name).read_text()
        assert not any(each in text or NAMES.hash(each).hex() in text for each in mine)
    assert stat.S_IMODE((tmp_path / "offer.secret").stat().st_mode) == 0o600
    again = tmp_path / "again"
    again.mkdir()
    aligned(again, mine, mine)
    assert (
        json.loads((again / "offer.json").read_text())["request"]
        != json.loads((tmp_path / "offer.json").read_text())["request"]
    )  # a new key each time


def test_the_secret_is_private_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, modes = Path.replace, {}

    def replace(self: Path, target: Path) -> Path:
        modes[target.name] = stat.S_IMODE(self.stat().st_mode)
        return put(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    mask = os.umask(0o022)
    try:
        align.offer(["a"], NAMES, tmp_path / "offer.json", tmp_path / "offer.secret")
    finally:
        os.umask(mask)
    assert modes == {"offer.json": 0o644, "offer.secret": 0o600}


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    aligned(tmp_path, ["a", "b"], ["b"])
    offer, secret, answer = tmp_path / "offer.json", tmp_path / "offer.secret", tmp_path / "answer.json"
    with pytest.raises(ConfigError, match="another entity key"):
        align.answer(["a"], Names(bytes(32)), offer, answer)
    with pytest.raises(ConfigError, match="no entities"):
        align.offer([], NAMES, offer, secret)
    with pytest.raises(DataError, match=r"offer.json: is no answer"):
        align.count(offer, secret)
    with pytest.raises(DataError, match="cannot be read"):
        align.count(tmp_path / "none", secret)
    other = tmp_path / "other.secret"
    align.offer(["x"], NAMES, tmp_path / "x.json", other)
    with pytest.raises(DataError, match="answers another offer"):
        align.count(answer, other)
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        align.count(answer, secret)


@pytest.mark.parametrize("damage", ["not base64!", "AAAA", ""])
def test_a_damaged_part_is_said(tmp_path: Path, damage: str) -> None:
    aligned(tmp_path, ["a", "b"], ["b"])
    offer = tmp_path / "offer.json"
    told = json.loads(offer.read_text())
    offer.write_text(json.dumps(told | {"request": damage}))
    with pytest.raises(DataError, match=r"offer.json: "):
        align.answer(["a"], NAMES, offer, tmp_path / "answer.json")
    offer.write_text("{")
    with pytest.raises(DataError, match="is no file of"):
        align.answer(["a"], NAMES, offer, tmp_path / "answer.json")


def test_the_commands_say_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_key(Path("entity.key"))
    Path("bank.csv").write_text("id,x\n1,0\n2,0\n3,0\n")
    Path("shop.csv").write_text("who\n3\n2\n9\n")

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, ["align", *words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert "offer.json: give it to the other side" in said("offer", "bank.csv", "id", "--key", "entity.key")
    assert "give it back" in said("answer", "offer.json", "shop.csv", "who", "--key", "entity.key")
    assert said("count", "answer.json") == (
        "2 entities are shared, of 3 here and 3 there; not the same list, or in another order.\n"
    )
    wrong = CliRunner().invoke(app, ["align", "offer", "bank.csv", "ident", "--key", "entity.key"])
    assert (wrong.exit_code, "has no column 'ident'" in " ".join(wrong.stderr.split())) == (2, True)
