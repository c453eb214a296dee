"""When a client saves a checkpoint, so that the server need not keep too much for it, nor too long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch.broker.credentials import Credentials
from anabranch.federation import client as net_client
from anabranch.federation.client import ClientParty
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Played, Send
from anabranch.protocol.codec import encode
from anabranch.protocol.server.missing import Wait
from federations import Setting, name

ALONE = {"shapes": ((8, 5),), "missing": (Wait(),)}
NEVER = 10**9


class Pair:
    """A server's conversation and its one client, with checkpoints on the disk and no broker."""

    def __init__(self, setting: Setting, folder: Path, every: int = NEVER) -> None:
        self.setting, self.server, self.played = setting, setting.server(), 0
        self.begin(folder, every)

    def begin(self, folder: Path, every: int) -> None:
        """A new process of the client."""
        conversation = self.setting.client(1, iter(range(self.played + 1, NEVER)))
        credentials = Credentials(("nats://127.0.0.1:1",), "test", "client 1", 1)
        self.party = ClientParty(conversation, credentials, folder, checkpoint_every=every)
        self.party._wake.set()
        self.party.link.send = self._say  # type: ignore[method-assign]

    async def _say(self, message: m.Message, client: int | None = None) -> None:
        self.hear(self.server.receive(1, message, float(self.played)))

    def hear(self, actions: list[Action]) -> None:
        """Carries what the server says."""
        for each in actions:
            if isinstance(each, Played):
                self.played += len(each.records)
            if isinstance(each, Send):
                self.party._received(0, encode(each.message))

    async def turn(self) -> None:
        """The client deals with what has arrived, and its checkpoint comes to the disk."""
        await self.party._turn()
        if self.party._saving is not None:
            await self.party._saving
            await asyncio.sleep(0)  # it is noted

    async def play(self, rounds: int) -> None:
        """Until so many are played."""
        if not self.party.conversation.joined:
            await self.party._do(self.party.conversation.hello())
            await self.turn()
        while self.played < rounds:
            t = self.played
            self.hear(self.server.open([name(t)], [self.setting.labels[t]], float(t)))
            while self.party._inbox:
                await self.turn()
            assert self.played > t, "the round waits for the client, which has answered"


def test_a_client_saves_before_the_server_keeps_no_more_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("anabranch.protocol.server.client_session", "anabranch.federation.client"):
        monkeypatch.setattr(f"{module}.KEPT", 40 * 3 * 5)

    async def main() -> None:
        pair = Pair(Setting(ab.SLR(3), ab.Full(), **ALONE), tmp_path)
        await pair.play(100)
        assert pair.server.seats[0].safe >= 75

    asyncio.run(main())


def test_a_client_that_has_caught_up_has_it_in_both_checkpoints(tmp_path: Path) -> None:
    """Else the server would keep what it caught up with until the client has made as many steps again."""

    async def main() -> None:
        pair = Pair(Setting(activation=ab.Full(), **ALONE), tmp_path / "lost")
        await pair.play(50)
        assert len(pair.server.seats[0].outbox) == 50
        pair.begin(tmp_path / "new", 20)
        await pair.play(52)
        assert pair.server.seats[0].safe >= 49

    asyncio.run(main())


def test_under_slr_a_client_saves_by_rounds_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the events of so many rounds only, of which windows are made again."""
    monkeypatch.setattr(net_client, "SAMPLES", 10)
    rows = np.zeros((300, 1), bool)
    rows[5] = True

    async def main() -> None:
        pair = Pair(Setting(ab.SLR(3), ab.Recorded(rows), **ALONE), tmp_path)
        await pair.play(6)
        assert len(pair.server.seats[0].outbox) == 1
        await pair.play(30)
        assert not pair.server.seats[0].outbox

    asyncio.run(main())
