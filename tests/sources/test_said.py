"""What sources say of rows that cannot be used has nothing of what the rows have."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.sources.base import Notes
from anabranch.sources.features import Column, Features
from anabranch.sources.inputs import Inputs
from anabranch.sources.labels import SourceLabels
from anabranch.sources.sql.source import SqlSource
from anabranch.storage.event_ids import Names
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.times import TimeRule
from databases import Sqlite
from source_playing import play, run

NAMES = Names(bytes(range(32)))
EARLY = TimeRule(years=(1970, 2100))
SECRET = "s3cr3t"
TEXT = f"CAST(x'{SECRET.encode().hex()}ff' AS TEXT)"  # which is no UTF-8


def opened(database: Sqlite, column: str) -> SqlSource:
    return SqlSource(database.url, "t", NAMES, [column], time="at", id="id", entity="who", follow=False, times=EARLY)


def test_nothing_that_is_in_a_row_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def note(self: Notes, kind: str, text: str) -> None:  # each, and not only the first of a kind
        self._counts[kind] += 1
        said.append(text)

    monkeypatch.setattr(Notes, "note", note)
    database = Sqlite(tmp_path / "t.db")
    database.run(
        "CREATE TABLE t (id, who, at, a, y)",
        f"INSERT INTO t VALUES ('1', 'x', '{SECRET}', 1, 0), ('{SECRET}', NULL, 2, 1, 0)",
        "INSERT INTO t VALUES (3, x'73336372337400', 3, 1, 0)",
        f"INSERT INTO t VALUES (4, 'x', 4, {TEXT}, 0), (5, 'x', 5, '{SECRET}', '{SECRET}'), (6, {TEXT}, 6, 1, 0)",
        "INSERT INTO t VALUES (x'73336372337400', 'x', 7, 1, 0), ('8', 'x', 8, 1, 987654), ('9', 'x', 8, 2, 0)",
    )
    readings = opened(database, "a")
    inputs = Inputs(readings.look, Features([Column("a")]), KeptInputs(tmp_path / "inputs", most=9))
    for happening in run(play(readings)):
        inputs.look(happening.name)
    labels = opened(database, "y")

    async def all_of() -> int:
        return len([each async for each in SourceLabels(labels, "y", 2).labels()])

    assert run(all_of()) == 2
    assert labels.counts["no class"] == 2
    assert readings.counts["unusable"] >= 5
    assert inputs.counts["unusable"] == 1
    for secret in (SECRET, SECRET.encode().hex(), "987654"):
        assert secret not in "\n".join(said)
    assert len(said) > 10
    run(readings.close())
    run(labels.close())
