"""What a party's own small files promise where the power fails: what its settings ask for."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.broker.credentials import Credentials
from anabranch.config import party as partyfile
from anabranch.federation import inputs
from anabranch.federation.inputs import LazyInputs
from anabranch.net import Client
from anabranch.parties import build_party as own
from anabranch.storage import sqlite
from anabranch.storage.event_ids import write_key
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.pending_labels import Waiting

AT_CHECKPOINTS, ALWAYS = 1, 2
"""Of SQLite: NORMAL and FULL. Of a file that is written ahead, FULL syncs each transaction."""
X = np.zeros(2, np.float32)
CLIENT: dict[str, Any] = {
    "connection": "connection.toml", "folder": "state", "clients": 1,
    "model": {"name": "mlp", "hidden": [], "embedding": 2},
}  # fmt: skip
BANK = Credentials(("nats://127.0.0.1:4222",), "demo", "bank", 1)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """When a file of this name is synced, as whoever opened it has asked SQLite for."""
    opened: dict[str, sqlite3.Connection] = {}
    connect = sqlite3.connect

    def recorded(path: Path, **options: Any) -> sqlite3.Connection:
        connection = connect(path, **options)
        opened.setdefault(path.name, connection)  # who looks at its seal later closes it again
        return connection

    def of(name: str) -> int:
        assert opened[name].execute("PRAGMA journal_mode").fetchone() == ("wal",)
        return opened[name].execute("PRAGMA synchronous").fetchone()[0]

    monkeypatch.setattr(sqlite.sqlite3, "connect", recorded)
    return of


both = pytest.mark.parametrize(("given", "asked"), [({}, AT_CHECKPOINTS), ({"durable": True}, ALWAYS)])


@both
def test_each_file_by_itself(given: dict[str, bool], asked: int, tmp_path: Path, synced: Callable[[str], int]) -> None:
    kept = KeptInputs(tmp_path / "kept", most=5, **given)
    waiting = Waiting(tmp_path / "waiting", most=5, expiry=None, **given)
    LazyInputs(tmp_path / "lazy", **given).put(b"a", X, True, 0)
    assert [synced(name) for name in ("kept", "waiting", "lazy")] == [asked] * 3
    LazyInputs(tmp_path / "lazy", **given)
    assert synced("lazy") == asked
    kept.close()
    waiting.close()


def test_inputs_that_had_to_go_are_said_without_a_source_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inputs, "MOST", 2)
    lazy = LazyInputs(tmp_path / "lazy")
    lazy.learnt([(0, b"a", True)], [b"a"])  # there is no file yet
    for number, event in enumerate([b"a", b"b", b"c", b"d"]):
        lazy.put(event, X, True, number)
        if event == b"a":
            lazy.learnt([(7, event, True)], [])
    assert (lazy.get(b"b"), lazy.recent(9)) == (None, [b"c", b"d"])
    assert caplog.text.count("had to go, since too many are kept: it is not learnt from here; at most 2 are kept") == 1
    assert LazyInputs(tmp_path / "lazy").were_learnt() == [(7, b"a", True)]


def of_file(folder: Path, features: dict[str, Any], given: dict[str, bool]) -> Any:
    file = partyfile.check(CLIENT | {"features": features} | given, folder / "bank.toml")
    assert isinstance(file, partyfile.ClientFile)
    (folder / "state").mkdir()
    return own.client_party(file, BANK, folder / "state")


@both
def test_a_client_with_a_table(
    given: dict[str, bool], asked: int, tmp_path: Path, synced: Callable[[str], int]
) -> None:
    (tmp_path / "a.csv").write_text("event,x,y\ne,1,2\n")
    party = of_file(tmp_path, {"path": "a.csv", "event": "event", "columns": ["x", "y"]}, given)
    party.conversation._inputs.put(b"e", X, True, 0)
    assert synced("inputs.sqlite") == asked


@both
def test_a_client_with_a_source(
    given: dict[str, bool], asked: int, tmp_path: Path, synced: Callable[[str], int]
) -> None:
    write_key(tmp_path / "entity.key")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["at", "x", "y"], ["2026-01-01", 2, 3]])
    source = {"source": "csv", "path": "a.csv", "entity_key": "entity.key", "time": "at", "columns": ["x", "y"]}
    of_file(tmp_path, source, given)
    assert synced("inputs.sqlite") == asked


@both
def test_a_client_in_python(given: dict[str, bool], asked: int, tmp_path: Path, synced: Callable[[str], int]) -> None:
    model = ab.models.mlp([2], 2).clients[0]
    client = Client(BANK, tmp_path / "state", model=model, inputs=2, features=lambda event: X, clients=1, **given)
    client.party.conversation._inputs.put(b"e", X, True, 0)
    assert synced("inputs.sqlite") == asked
