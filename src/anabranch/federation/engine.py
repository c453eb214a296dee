"""What both kinds of parties have in common: one task that does what their conversation asks for."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.broker.credentials import Credentials
from anabranch.errors import (
    CheckpointError,
    ConfigError,
    ConnectError,
    MessageError,
    RefusedError,
    VersionError,
)
from anabranch.federation.link import Link
from anabranch.federation.logs import Repeats
from anabranch.protocol.actions import Action, Note, Played, Predicted, Send, Stop
from anabranch.protocol.codec import decode
from anabranch.protocol.messages import Message
from anabranch.protocol.terms import Terms
from anabranch.sources.base import Notes
from anabranch.storage import checkpoint
from anabranch.storage.seals import check_seals, seal

LEFT = "left"
"""Why a party has ended that was told to leave before the end."""
WELCOME = {"joined", "left"}
"""Notes of what is well."""
INBOX = 256 * 2**20
"""Bytes of messages that wait to be read, in equal shares for all who send them; one message waits however large."""
OFTEN = 5
"""So many of these are logged before those that follow soon wait."""
OLD = "old session"
"""A note of what a restart brings about, or somebody who gives again what he has read: it is in the log too."""
SEALED = ("waiting.sqlite", "inputs.sqlite", "cursor.sqlite")
"""Files of a party's folder that hold what no other has, and that a checkpoint goes with."""
QUIET = {"late", "twice", "stale"}
"""Notes of what the network does now and then: they are counted, and logged where one looks closely."""
LOSSES = {"event dropped", "features gone"}
"""Notes of events that nothing is learnt from: the log has the first, and each that makes them ten times as many."""


class Engine(ABC):
    """Runs one party until its conversation is over.

    Messages go to an inbox. One task empties it, and does everything else, so that nothing happens at the same time.

    Args:
        name: of the party, for the log.
        credentials: of the party.
        folder: where it keeps its checkpoints.
    """

    def __init__(self, name: str, credentials: Credentials, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.link = Link(credentials, self._received, self._came_back, self._waits, self._fails)
        self.notes: Counter[tuple[str, int | None]] = Counter()
        """How often each thing was noted, of which client."""
        self.earlier: Counter[str] = Counter()
        """How often each thing was noted before this process, up to the last checkpoint."""
        self.checkpoint_time: float | None = None
        """When the last checkpoint was saved, by the monotonic clock."""
        self._log = _PartyLog(logging.getLogger(f"anabranch.{name}"), name, self._rounds)
        self._repeats = Repeats(self._say)
        self._losses = Notes(Counter(), "", lambda text: self.say(text, logging.WARNING))
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._inbox_bytes: Counter[int] = Counter()
        """Of each who sends."""
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._armed = math.inf
        self._lost_something = False
        self._dropped: set[int] = set()
        """Of whom messages were dropped that did not fit into the inbox."""
        self._stop: Stop | None = None
        self._leaving = asyncio.Event()
        self._problem: Exception | None = None
        """What went wrong beside the task."""
        self._saving: asyncio.Task[None] | None = None
        self._begins = False
        """Whether no process before this one has saved a checkpoint."""

    async def run(self) -> Stop:
        """Take part until the end, or until `leave`; saves a checkpoint then.

        Raises:
            RefusedError: where the other side does not take this party.
            ConnectError: where the broker does not.
            OutputError: where a checkpoint or the log cannot be written; what was saved before can be used.
        """
        try:
            if self._begins:  # so that there is a checkpoint which knows the other files of the folder, from the first
                await self._save()
            if await self._before_leaving(self.link.open()):
                await self._do(self._begin())
            self._wake.set()  # what is due is due where nothing arrives, too
            while self._stop is None and self._problem is None and not self._leaving.is_set():
                await self._wake.wait()
                self._wake.clear()
                await self._turn()
                self._arm()
            return await self._finish()
        finally:
            self._repeats.flush(math.inf)
            if self._timer is not None:
                self._timer.cancel()
            if self._saving is not None:
                await asyncio.wait({self._saving})
            await self.link.close()

    def leave(self) -> None:
        """End the run soon, as Ctrl-C does; the party may come back."""
        self._leaving.set()
        self._wake.set()

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Log something, with the party and the round."""
        self._log.log(level, "%s", text)

    def _say(self, level: int, text: str) -> None:
        self.say(text, level)

    def noted(self) -> Counter[str]:
        """Return how often each thing was noted, in this process and before."""
        counts = Counter(self.earlier)
        for (what, _), n in self.notes.items():
            counts[what] += n
        return counts

    def wake(self) -> None:
        """Has it look again at what is to be done."""
        self._wake.set()

    async def _before_leaving(self, opens: Coroutine[Any, Any, None]) -> bool:
        """Wait for something that opens; False where the party should leave before it is open."""
        opening = asyncio.ensure_future(opens)
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({opening, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, opening):
                task.cancel()
            await asyncio.wait({opening, leaving})
        if opening.cancelled():
            return False
        opening.result()
        return True

    def _load(self, terms: Terms, *, server: bool) -> checkpoint.Checkpoint | None:
        """Load the folder's checkpoint; return None if the party begins.

        The checkpoint must be of such a party, and made with the settings of today. The federation may have a new name.
        The other files of the folder must be those that go with it.

        Raises:
            CheckpointError: if one of these does not hold.
        """
        found = checkpoint.load(self.folder)
        self._begins = found is None
        check_seals(self.folder.parent, None if found is None else found.state.get("seals", {}), SEALED)
        if found is None:
            return None
        for text in found.damaged:
            self._log.warning("%s; going on from the one before", text)
        names = {True: "the server", False: "a client"}
        if (whose := "talk" in found.state) != server:
            raise CheckpointError(
                f"{found.path}: is the checkpoint of {names[whose]}, and this is {names[server]}: give each party a "
                "folder of its own"
            )
        held = Terms(**found.state["terms"])
        wrong = replace(terms, federation=held.federation).differences(held)
        if wrong:
            raise CheckpointError(
                f"{found.path}: was made with other settings ({'; '.join(wrong)}): name another folder, or give the "
                "settings that it was made with"
            )
        return found

    @abstractmethod
    def _begin(self) -> list[Action]:
        """What is done first."""

    @abstractmethod
    async def _turn(self) -> None:
        """Deal with what has arrived and with what is due."""

    @abstractmethod
    def _due(self) -> float:
        """When `_turn` should be called next, though nothing arrives; by the monotonic clock."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint."""

    @abstractmethod
    def _saved(self, values: dict[str, Any]) -> None:
        """A checkpoint of this state is on the disk."""

    @abstractmethod
    async def _last_words(self) -> None:
        """Say goodbye, where the party leaves before the end."""

    async def _played(self, played: Played) -> None:  # noqa: B027 (a client plays none)
        """Rounds were played."""

    async def _predicted(self, predicted: Predicted) -> None:  # noqa: B027 (a client predicts nothing)
        """Something was predicted without a round."""

    async def _finish(self) -> Stop:
        stop = self._stop
        if self._saving is not None:
            await asyncio.wait({self._saving})
        if self._problem is not None:
            raise self._problem
        refused = stop is not None and stop.failed and self._refuses(stop)
        if stop is None or stop.sound or not (stop.diverged or refused):
            await self._save()
        if stop is None:
            await self._last_words()
            return Stop(LEFT)
        if refused:
            raise RefusedError(stop.reason)
        return stop

    def _refuses(self, stop: Stop) -> bool:
        return False

    async def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(message, client):
                    await self.link.send(message, client)
                case Played():
                    await self._played(action)
                case Predicted():
                    await self._predicted(action)
                case Note():
                    self._tell(action)
                case Stop():
                    self._stop = action
                    self._wake.set()

    def _tell(self, note: Note) -> None:
        """Count a note, and log it where it is not one of many."""
        what, client = note.what, note.client
        self.notes[what, client] += note.count
        level = logging.DEBUG if what in QUIET else logging.INFO if what in WELCOME | {OLD} else logging.WARNING
        at_once = OFTEN if what in WELCOME else 1
        text, now = self._named(note.text, client), time.monotonic()
        if what in LOSSES:
            self._losses.note(what, text, note.count)
            return
        self._repeats.tell((what, client), level, text, now, note.count, at_once)

    def _rounds(self) -> int:
        return 0

    def _named(self, text: str, client: int | None) -> str:
        """Return a text that begins with a client's number, with its name there where the party knows it."""
        names, words = self.link.credentials.clients, f"client {client}"
        if client is None or not 1 <= client <= len(names) or not text.startswith(words):
            return text
        return names[client - 1] + text.removeprefix(words)

    def _mail(self) -> list[tuple[int, Message]]:
        """What has arrived, decoded; what is no message is noted."""
        found = []
        while self._inbox:
            client, raw = self._inbox.popleft()
            self._inbox_bytes[client] -= len(raw)
            try:
                message = decode(raw)
            except MessageError as error:
                self.link.count("garbage", client, len(raw))
                if not (isinstance(error, VersionError) and self._other_version(client, error)):
                    self._garbage(client, error)
                continue
            self.link.count(type(message).__name__, client, len(raw))
            found.append((client, message))
        return found

    @abstractmethod
    def _other_version(self, client: int, error: VersionError) -> bool:
        """Somebody speaks another version of the protocol; whether that is dealt with."""

    def _garbage(self, client: int, error: MessageError) -> None:
        self.notes["garbage", client or None] += 1
        text = f"client {client}: {error}" if client else str(error)
        self._repeats.tell(("garbage", client), logging.WARNING, self._named(text, client), time.monotonic())

    def _begin_saving(self) -> None:
        """Save a checkpoint beside everything else, unless one is being saved."""
        if self._saving is None:
            arrays, values = self._state()
            self._saving = asyncio.create_task(self._write(arrays, values))
            self._saving.add_done_callback(self._was_saved)

    def _was_saved(self, task: asyncio.Task[None]) -> None:
        self._saving = None
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._problem = error
        self._wake.set()

    async def _save(self) -> None:
        await self._write(*self._state())

    async def _write(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        await asyncio.to_thread(self._write_sealed, arrays, values)
        self.checkpoint_time = time.monotonic()
        self._saved(values)

    def _write_sealed(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        seals = seal(self.folder.parent, SEALED)
        checkpoint.save(self.folder, arrays, values | {"seals": seals})

    def _knows(self, client: int) -> bool:
        """Return whether there is a client of this number."""
        return client == 0

    def _senders(self) -> int:
        """Return how many send to this party."""
        return 1

    def _received(self, client: int, raw: bytes) -> None:
        if not self._knows(client):
            self.notes["stranger", None] += 1
            text = f"a message came from client {client}, and there is no such client"
            self._repeats.tell("stranger", logging.WARNING, text, time.monotonic())
            return
        share, waits = INBOX // self._senders(), self._inbox_bytes[client]
        if waits and waits + len(raw) > share:  # what is lost is asked for again, and others have their own shares
            self.notes["flood", client or None] += 1
            text = f"client {client}: its messages" if client else "the server's messages"
            text += f" come faster than they are read: {waits:,} bytes wait, and what follows is dropped"
            self._repeats.tell(("flood", client), logging.WARNING, self._named(text, client), time.monotonic())
            self._dropped.add(client)
            return
        self._inbox.append((client, raw))
        self._inbox_bytes[client] += len(raw)
        self._wake.set()

    def _came_back(self) -> None:
        self._repeats.tell("back", logging.INFO, "the connection to the broker is back", time.monotonic())
        self._lost_something = True
        self._wake.set()

    def _waits(self, why: str) -> None:
        self._repeats.tell(("broker", why), logging.WARNING, why, time.monotonic())

    def _fails(self, why: ConfigError | ConnectError) -> None:
        self._problem = why
        self._wake.set()

    def _arm(self) -> None:
        """See to it that the task wakes when something is due."""
        self._repeats.flush(time.monotonic())
        due = min(self._due(), self._repeats.due())
        if due < self._armed or self._timer is None:
            if self._timer is not None:
                self._timer.cancel()
            self._armed = due
            delay = min(max(due - time.monotonic(), 0.0), 3600.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer, self._armed = None, math.inf
        self._wake.set()


class _PartyLog(logging.LoggerAdapter[logging.Logger]):
    """Says with each record which party it is of, and how many rounds are played."""

    def __init__(self, logger: logging.Logger, party: str, rounds: Callable[[], int]) -> None:
        super().__init__(logger)
        self._party, self._rounds = party, rounds

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {"party": self._party, "round": self._rounds()}}
