"""Files that hold ids, inputs or parameters are their owner's alone, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anabranch.storage.checkpoint import save
from anabranch.storage.dead_letters import Aside
from anabranch.storage.lock import locked
from anabranch.storage.round_log import RoundLog
from anabranch.storage.sqlite import open_sqlite
from private import open_to_others


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_a_party_keeps_is_its_owner_s_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "party"
    with locked(folder):
        database = open_sqlite(folder / "own" / "kept.sqlite", 0x616E0001, "CREATE TABLE t (a)", "nothing")
        database.execute("INSERT INTO t VALUES (1)")
        assert sorted(each.name for each in (folder / "own").iterdir()) == [
            f"kept.sqlite{end}" for end in ("", "-shm", "-wal")
        ]
        save(folder / "checkpoints", {"w": np.zeros(2)}, {})
        with RoundLog(folder / "rounds") as log:
            log.append(0, b"A-17")
        Aside(folder / "aside" / "messages.jsonl").put("subject", b"A-17", "no time")
        assert not open_to_others(tmp_path / "new")
        database.close()
