"""A server's party without a broker: what it adds up, how much of its log it holds, and when it has nothing to do."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anabranch.broker.credentials import Credentials
from anabranch.errors import CheckpointError
from anabranch.federation import server as net_server
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Played
from anabranch.protocol.codec import encode
from anabranch.protocol.server.missing import HOW, Wait, Zero
from anabranch.protocol.server.totals import Ledger
from anabranch.storage.round_log import RoundLog
from conversations import hello_of, told
from federations import Setting, name

TWO = Setting(shapes=((8, 5), (8, 5)), missing=(Wait(), Zero()), rounds=40)


def ledger(setting: Setting) -> Ledger:
    return Ledger(setting.rule, [e for _, e in setting.shapes], 10)


def party(setting: Setting, folder: Path, **options: Any) -> ServerParty:
    samples = SimpleNamespace(over=False, go_on=lambda rounds: None)
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("one", "two"))
    return ServerParty(setting.server(**options), ledger(setting), samples, credentials, folder)  # type: ignore[arg-type]


def log_of(setting: Setting) -> list[m.Record]:
    records: list[m.Record] = []
    setting.in_memory(played=lambda played: records.extend(played.records)).run()
    return records


def test_a_block_that_diverged_in_its_first_round_adds_nothing() -> None:
    added = ledger(TWO)
    added.add(Played(0, (), ()))
    assert math.isnan(added.error_rate)
    assert (added.rounds, added.activations.tolist()) == (0, [0, 0])


def test_rounds_that_are_dropped_are_counted_and_told_when_they_are_ten_times_as_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = party(TWO, tmp_path)
    dropped = m.Record(b"e", 1, np.zeros(2, bool), (0, HOW.index("skip")), (-1, -1), np.zeros(0, np.float32))
    caplog.set_level(logging.WARNING, "anabranch")

    async def main() -> None:
        for first, n in ((0, 1), (1, 7), (8, 4), (12, 30)):
            await server._played(Played(first, (dropped,) * n, (None,) * n))

    asyncio.run(main())
    assert (server.ledger.rounds, server.ledger.skipped) == (42, 42)
    assert [each.partition(" (")[2] for each in caplog.messages] == ["", "dropped round: 12 by now)"]
    arrays, values = server.ledger.state()
    again = ledger(TWO)
    again.restore(arrays, values)
    assert again.skipped == 42


def test_no_embeddings_are_held_until_rounds_are_added_up() -> None:
    added, embeddings = ledger(TWO), np.zeros(10, np.float32)
    held = weakref.ref(embeddings)
    record = m.Record(b"e", 1, np.array([True, False]), (0, 0), (-1, -1), embeddings)
    added.add(Played(0, (record,), (0,)))
    del record, embeddings
    assert held() is None
    assert (added.rounds, added.error_rate, added.activations.tolist()) == (1, 1.0, [1, 0])


def test_rounds_of_the_log_are_played_again_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = log_of(TWO)
    with RoundLog(tmp_path / net_server.LOG) as log:
        log.append_many(0, [encode(each) for each in records])
    pieces: list[int] = []
    replay = ServerParty._replay
    monkeypatch.setattr(ServerParty, "_replay", lambda self, block: (pieces.append(len(block)), replay(self, block))[1])
    monkeypatch.setattr(net_server, "AT_ONCE_BYTES", 10 * len(encode(records[0])))
    again = party(TWO, tmp_path)
    assert again.replayed == len(records) == sum(pieces) == 40
    assert max(pieces) <= 11
    again._log_file.close()


def test_a_folder_of_another_kind_of_party_is_said_to_be_one(tmp_path: Path) -> None:
    credentials = Credentials(("nats://127.0.0.1:1",), "test", "one", 1)

    async def save() -> None:
        saved = party(TWO, tmp_path / "server")
        await saved._save()
        saved._log_file.close()
        await ClientParty(TWO.client(1), credentials, tmp_path / "client")._save()

    asyncio.run(save())
    with pytest.raises(CheckpointError, match=r"is the checkpoint of a client, and this is the server: give each"):
        party(TWO, tmp_path / "client")
    with pytest.raises(CheckpointError, match=r"is the checkpoint of the server, and this is a client: give each"):
        ClientParty(TWO.client(1), credentials, tmp_path / "server")


def test_an_event_that_waits_while_no_round_may_begin_keeps_nobody_awake(tmp_path: Path) -> None:
    """A server that was started again waits a while for all clients; one is there and tells of events."""
    again = party(TWO, tmp_path, coalesce=0.0)
    talk, now = again.conversation, time.monotonic()
    talk.receive(1, hello_of(TWO.client(1)), now)
    talk.tick(now)
    talk.receive(1, told(talk, 1, name(0)), now)
    assert talk.arrived(now) == [name(0)]
    again._coming = -math.inf
    assert again._due() <= now
    again._coming = math.inf
    assert again._absent(now) == [2]
    assert again._due() > now
    again._log_file.close()
