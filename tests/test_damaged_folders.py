"""A party's folder is damaged, file by file: its party refuses it, or what comes is exact."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.config.runtime_options import RuntimeOptions
from anabranch.errors import CheckpointError
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties import assemble
from anabranch.storage.seals import check_seals, seal
from real_federations import SERVER, RealFederation, same, simulate, write_run

ROUNDS = 900
EVERY = 60
CLIENT, OTHER = "client-1", "client-2"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> RealFederation:
    """One whose parties were killed twice; ``then`` beside each folder is what it was at the first time."""
    folder = tmp_path_factory.mktemp("damaged")
    delay = {"name": "uniform", "least": 0, "most": 60}
    run = write_run(folder / "data", clients=2, rounds=ROUNDS, label_delay=delay, label_learning="fresh")
    with RealFederation(folder / "fed", run, checkpoint_every=EVERY) as made:
        for rounds in (200, 450):
            made.start(*made.names)
            made.wait_for_rounds(rounds)
            made.kill(*made.names)
            assert made.rounds < ROUNDS, "the run was over before it was killed"
            if rounds == 200:
                shutil.copytree(made.folder, folder / "then")
    return made


def deleted(path: Path, old: Path, others: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied(path: Path, old: Path, others: Path) -> None:
    for each in path.iterdir() if path.is_dir() else [path]:
        each.write_bytes(b"")


def cut(path: Path, old: Path, others: Path) -> None:
    for each in path.iterdir() if path.is_dir() else [path]:
        content = each.read_bytes()
        each.write_bytes(content[: len(content) // 2])


def older(path: Path, old: Path, others: Path) -> None:
    deleted(path, old, others)
    shutil.copytree(old, path) if old.is_dir() else shutil.copy(old, path)


def of_another(path: Path, old: Path, others: Path) -> None:
    older(path, others, others)


def party(federation: RealFederation, name: str, folder: Path) -> ServerParty | ClientParty:
    """As `anabranch server` and `anabranch client` make it, in this process."""
    credentials, pace = federation.credentials(name), RuntimeOptions(checkpoint_every=EVERY)
    if name == SERVER:
        return assemble.server_party(federation.replay, credentials, folder, pace)
    return assemble.client_party(federation.replay, credentials.index, credentials, folder, pace)


def damaged(
    federation: RealFederation, name: str, file: str, how: Callable[[Path, Path, Path], None], to: Path
) -> Path:
    """A copy of a party's folder, damaged; SQLite's files beside a database go with it."""
    folder = to / name
    shutil.copytree(federation.folder / name, folder)
    old = federation.folder.parent / "then" / name / file
    others = federation.folder / {SERVER: CLIENT, CLIENT: OTHER}[name] / file
    for each in folder.glob(f"{file}-*"):
        each.unlink()
    how(folder / file, old, others)
    return folder


STORES = [(SERVER, "waiting.sqlite"), (CLIENT, "inputs.sqlite")]


@pytest.mark.parametrize("how", [deleted, emptied, cut, older, of_another])
@pytest.mark.parametrize(("name", "file"), STORES)
def test_a_store_that_a_checkpoint_knows_of_is_needed(
    federation: RealFederation, name: str, file: str, how: Callable[[Path, Path, Path], None], tmp_path: Path
) -> None:
    if how is of_another and name == SERVER:  # no other party has such a file: that of another server
        database = sqlite3.connect(federation.folder / CLIENT / "waiting.sqlite", isolation_level=None)
        with sqlite3.connect(federation.folder / SERVER / file) as source:
            source.backup(database)
        database.execute("UPDATE seal SET name = 'another'")
        database.close()
    folder = damaged(federation, name, file, how, tmp_path)
    with pytest.raises(CheckpointError, match=file):
        party(federation, name, folder)


@pytest.mark.parametrize("name", [SERVER, CLIENT])
@pytest.mark.parametrize("how", [deleted, emptied, cut, of_another])
def test_checkpoints_that_are_gone_or_anothers_are_missed(
    federation: RealFederation, name: str, how: Callable[[Path, Path, Path], None], tmp_path: Path
) -> None:
    folder = damaged(federation, name, "checkpoints", how, tmp_path)
    with pytest.raises(CheckpointError, match=str(folder)):
        party(federation, name, folder)


@pytest.mark.parametrize("how", [deleted, emptied, older])
def test_rounds_of_the_log_that_are_gone_are_missed(
    federation: RealFederation, how: Callable[[Path, Path, Path], None], tmp_path: Path
) -> None:
    folder = damaged(federation, SERVER, "rounds", how, tmp_path)
    with pytest.raises(CheckpointError, match="rounds"):
        party(federation, SERVER, folder)


def test_what_is_not_needed_may_be_damaged(federation: RealFederation) -> None:
    """The newest checkpoint of each, and the locks: what comes is exact."""
    for name in federation.names:
        own = federation.folder / name
        (own / "lock").unlink()
        federation.checkpoints(name)[-1].write_bytes(b"")
    with federation:
        federation.start(*federation.names)
        assert federation.wait() == [0, 0, 0]
        same(federation.result(), simulate(federation.run))


def test_a_seal(tmp_path: Path) -> None:
    """A party that was killed before its first checkpoint was there begins; one that has lost its second does not."""
    sqlite3.connect(tmp_path / "a.sqlite").close()
    (tmp_path / "somebodys.sqlite").write_bytes(b"")
    names = ["a.sqlite", "b.sqlite"]
    check_seals(tmp_path, None, names)
    first = seal(tmp_path, names)
    assert [*first] == ["a.sqlite"]
    check_seals(tmp_path, None, names)
    second = seal(tmp_path, names)
    for seals in (first, second):
        check_seals(tmp_path, seals, names)
    assert (tmp_path / "somebodys.sqlite").read_bytes() == b""
    with pytest.raises(CheckpointError, match="a checkpoint that is gone"):
        check_seals(tmp_path, None, names)
    with pytest.raises(CheckpointError, match="older than the checkpoint"):
        check_seals(tmp_path, {"a.sqlite": [second["a.sqlite"][0], 3]}, names)
    with pytest.raises(CheckpointError, match="deleted or is of another"):
        check_seals(tmp_path, {"b.sqlite": ["x", 1]}, names)
