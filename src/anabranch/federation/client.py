"""A client of a federation: runs `ClientConversation` over NATS, and keeps what it must not lose."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch.broker.credentials import Credentials
from anabranch.errors import CheckpointError, VersionError
from anabranch.federation.engine import Engine
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Stop
from anabranch.protocol.client.conversation import ClientConversation
from anabranch.protocol.server.client_session import KEPT

STATE = "checkpoints"
AHEAD = 5000
"""So many events of its own may wait for their rounds before the client listens for more."""
LOOK_EVERY = 1.0
"""Seconds after which features that were not there for an event of its own are looked up again."""
SAMPLES = 2000
"""So many rounds lie between two checkpoints at most under SLR: what a client needs after it died is recalled by the
server, which knows the events of some times as many."""
HELLO_EVERY = 1.0
"""Seconds after which a client that was not answered says hello again."""
LONG = 60.0
"""Seconds after which a client that waits for its dismissal says so."""


class ClientParty(Engine):
    """Runs a client until the server says that no round follows, and has kept that the client has everything.

    Args:
        conversation: the client's side.
        credentials: of the client.
        folder: of its checkpoints; nobody else's.
        events: the names of the events that activate it; None where it is asked only.
        checkpoint_every: steps between two checkpoints; they are fewer where the server would else have to keep too
            large derivatives.

    Raises:
        CheckpointError: where the folder's checkpoints cannot be used.
    """

    def __init__(
        self,
        conversation: ClientConversation,
        credentials: Credentials,
        folder: Path,
        *,
        events: AsyncIterator[bytes] | None = None,
        checkpoint_every: int = 1000,
    ) -> None:
        super().__init__(credentials.party, credentials, folder / STATE)
        self.conversation = conversation
        self._events = events
        elements = conversation.compute.width * (conversation.compute.rule.update.rows or 1)
        self._every = (min(checkpoint_every, max(1, KEPT // 4 // elements)), SAMPLES)
        """Steps, and rounds under SLR, between two checkpoints."""
        self._listening: asyncio.Task[None] | None = None
        self._turned = asyncio.Event()
        self._hello_again = self._look_again = self._bye_again = 0.0
        self._say_waits = math.inf
        """When a person is told that it waits for its dismissal; -inf once that was said."""
        self._counted: Counter[str] = Counter()
        """What `counts` were in the processes before this one, up to the last checkpoint."""
        self._kept: list[int] = [m.NONE]
        """The last rounds in the checkpoints that are kept, the older first."""
        self._saves = self._done
        """What was `_done` when the last checkpoint was made, be it on the disk yet or not."""
        found = self._load(conversation.terms, server=False)
        if found is not None:
            whose = found.state.get("client", conversation.client)
            if whose != conversation.client:
                raise CheckpointError(
                    f"{found.path}: is the checkpoint of client {whose}, and this is client {conversation.client}: "
                    "give each party a folder of its own"
                )
            try:
                conversation.restore(found.arrays, found.state)
                self.earlier.update(found.state.get("notes", {}))
                self._counted.update(found.state.get("counts", {}))
                self.link.restore(found.state.get("wire", []))
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{found.path}: is the checkpoint of another model, update or features ({error}): name another "
                    "folder, or give the settings that it was made with"
                ) from error
            self._kept = [conversation.applied]
            conversation.saved(m.NONE)
        self._kept_at = (self._done, self._done)
        """What was `_done` at the checkpoints that are kept, the older first; a process begins with one at most."""

    @property
    def counts(self) -> Counter[str]:
        """Events announced, rounds answered, events replied for, and steps, in this process and before."""
        talk = self.conversation
        here = {"announced": talk.announced, "answers": talk.answers, "replies": talk.replies}
        return self._counted + Counter(here | {"steps": talk.activations})

    @property
    def _done(self) -> tuple[int, int]:
        """The steps of this process and, under SLR, the last round whose sample is in the window."""
        return self.conversation.activations, self.conversation.sampled

    def _save_is_due(self) -> bool:
        """Return whether the server has to keep much, since it is in no checkpoint or in one of two only."""
        return any(
            now - newer >= every or now - older >= 2 * every
            for now, older, newer, every in zip(self._done, *self._kept_at, self._every, strict=True)
        )

    def _begin(self) -> list[Action]:
        self._hello_again = time.monotonic() + HELLO_EVERY
        if self._events is None:
            self.conversation.goes_on_at(m.NEVER)
        else:
            self._listening = asyncio.ensure_future(self._listen(self._events))
            self._listening.add_done_callback(self._heard)
        self._log.info("waiting for the server")
        return self.conversation.hello()

    async def _listen(self, events: AsyncIterator[bytes]) -> None:
        async for event in events:
            held = not self.conversation.by_data  # else the server says how far it listens
            while held and self.conversation.told >= AHEAD and not await self._makes_room():  # until rounds are over
                self._turned.clear()
                await self._turned.wait()
            await self._do(self.conversation.happened(event))
            await asyncio.sleep(0)  # a source that never waits would leave no time for anything else
        await self._do(self.conversation.goes_on_at(m.NEVER))

    async def _makes_room(self) -> bool:
        """Give up the oldest of its own events, where nobody else does and the rounds are past it; whether it has."""
        dropped = self.conversation.pass_over(self._is_past)
        await self._do(dropped)
        return bool(dropped)

    def _is_past(self, event: bytes) -> bool:
        """Return whether the rounds are past an event; where names say nothing of it, whether there may be rounds
        at all.
        """
        return self.conversation.joined

    def _heard(self, task: asyncio.Task[None]) -> None:
        """The source of events has come to its end, or failed."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._problem = error
            self._wake.set()

    async def _turn(self) -> None:
        self._turned.set()
        talk = self.conversation
        if self._lost_something:
            self._lost_something = False
            await self._hello()
        dropped = bool(self._dropped)
        self._dropped.clear()
        mail = [message for _, message in self._mail()]
        # Two subjects may overtake one another: derivatives go first, so that answers have them.
        mail.sort(key=lambda message: isinstance(message, m.Query))
        session = talk.session
        await self._do(talk.receive(mail))
        now = time.monotonic()
        if talk.session != session:  # one hello is under way at a time
            self._hello_again = now + HELLO_EVERY
        elif dropped and self._stop is None:  # what did fit in was of use all the same
            await self._hello()
        # What has arrived since the mail was taken may be the answer, and another hello would make it one of an old
        # session.
        if not talk.joined and self._stop is None and self._hello_again <= now and not self._inbox:
            await self._hello()
        if talk.waits_for_features and self._look_again <= now:
            self._look_again = now + LOOK_EVERY
            await self._do(talk.tell_later())
        if self._saving is None and self._save_is_due():
            self._begin_saving()
        await self._say_goodbye(now)

    async def _hello(self) -> None:
        self._hello_again = time.monotonic() + HELLO_EVERY
        await self._do(self.conversation.hello())

    async def _say_goodbye(self, now: float) -> None:
        """At the end, again and again until the server has kept it: else it would wait for a client that is gone."""
        talk = self.conversation
        if self._stop is not None or (talk.joined and talk.over is None):
            self._say_waits = math.inf
        elif talk.over is None:
            pass  # it says hello, perhaps to a server that is gone
        elif talk.applied != self._kept[-1]:
            self._begin_saving()
        elif self._bye_again <= now:
            self._bye_again = now + HELLO_EVERY
            await self._do(talk.bye("it has all its derivatives"))
            self._say_waits = min(self._say_waits, now + LONG)
        if -math.inf < self._say_waits <= now:
            self._say_waits = -math.inf
            self._log.warning(
                "has all its derivatives, and waits for the server to keep that; if the server has ended for good "
                "(exit code 0), end this client too: nothing is lost"
            )

    def _other_version(self, client: int, error: VersionError) -> bool:
        if self.conversation.joined:  # perhaps the server has begun again, as another one: it is asked
            self._lost_something = True
        else:
            text = f"the server takes part in something else: {error} (both need the same version of Anabranch)"
            self._stop = Stop(text, failed=True)
        self._wake.set()
        return True

    def _due(self) -> float:
        if not self.conversation.joined:
            return self._hello_again
        look = self._look_again if self.conversation.waits_for_features else math.inf
        ends = self.conversation.over is not None and self.conversation.applied == self._kept[-1]
        return min(look, self._bye_again if ends else math.inf)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._saves = self._done
        arrays, values = self.conversation.state()
        counts = {"counts": self.counts, "notes": self.noted(), "wire": self.link.state()}
        return arrays, values | {"client": self.conversation.client, "terms": asdict(self.conversation.terms)} | counts

    def _saved(self, values: dict[str, Any]) -> None:
        # The server keeps what came after the one before, in case this one is damaged.
        self._kept = [*self._kept[-1:], values["applied"]]
        self._kept_at = (self._kept_at[1], self._saves)
        self.conversation.saved(self._kept[0])

    async def _finish(self) -> Stop:
        if self._listening is not None:
            self._listening.cancel()
        if self._stop is not None and self._stop.diverged:
            await self._do(self.conversation.bye(self._stop.reason))
        return await super()._finish()

    async def _last_words(self) -> None:
        await self._do(self.conversation.bye("it was stopped"))

    def _refuses(self, stop: Stop) -> bool:
        return not stop.diverged

    def _rounds(self) -> int:
        return self.conversation.applied + 1
