"""The server of a federation: runs `ServerConversation` over NATS, and keeps what it must not lose."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anabranch.broker.credentials import Credentials
from anabranch.errors import CheckpointError, ConnectError, VersionError
from anabranch.federation.engine import LEFT, OFTEN, Engine
from anabranch.federation.late_labels import Happenings, WaitingRoom
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Played, Predicted, Send, Stop
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.totals import Ledger
from anabranch.storage.round_log import RoundLog

LOG, STATE = "rounds", "checkpoints"
"""The folders of the round log and of the checkpoints, in the server's folder."""
AT_ONCE, AT_ONCE_BYTES = 1000, 2**24
"""So many rounds of the log are in memory at a time; fewer, where they have so many bytes."""
LAST_ANSWERS = 60.0
"""Seconds that the clients have for their goodbyes at the end; those that no round can do without have longer."""
TOGETHER = 256
"""So many predictions are asked for in one message."""
LONGEST_ANSWER = 30.0
"""Seconds that a prediction may take; usually it takes a deadline at most."""
COMING = 15.0
"""Seconds for which a server that goes on waits for clients that it could do without. They need a moment to hear that
it is there again, in which it would play thousands of rounds."""


class Samples(Protocol):
    """Where the server's events and labels come from."""

    @property
    def over(self) -> bool:
        """Whether none will come any more."""

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """Up to ``n`` events with their labels that are there now, in order."""

    async def more(self) -> None:
        """Return when `take` may have some again, or there will be none."""

    def label(self, event: bytes) -> int | None:
        """Return the label of an event that a client has told of; None where none is known."""

    def go_on(self, rounds: int) -> None:
        """So many samples were taken by an earlier process of this server."""


class ServerParty(Engine):
    """Runs the server until its samples end.

    A record of each round is in the log before its derivatives are sent. Now and then a checkpoint has all that the
    rounds so far have led to, and the log is trimmed. After a crash the last checkpoint is loaded, and the rounds of
    the log after it are played again: the same bits come of them.

    Args:
        conversation: the server's side.
        ledger: what adds the rounds up.
        samples: the events and labels.
        credentials: of the server.
        folder: of its log and checkpoints; nobody else's.
        choose: who is activated in so many rounds from a first one on, (n, M), where the server decides that.
        checkpoint_every: rounds between two checkpoints.
        durable: whether each round is on the disk before its derivatives are sent: nothing is lost when the power
            fails, and rounds take as long as the disk does. Else nothing is lost when processes are killed.
        late: where labels come after their events; there are no samples then.

    Raises:
        CheckpointError: where the folder's checkpoints or log cannot be used.
    """

    def __init__(
        self,
        conversation: ServerConversation,
        ledger: Ledger,
        samples: Samples,
        credentials: Credentials,
        folder: Path,
        *,
        choose: Callable[[int, int], NDArray[np.bool_]] | None = None,
        checkpoint_every: int = 5000,
        durable: bool = False,
        late: WaitingRoom | None = None,
    ) -> None:
        super().__init__("server", credentials, folder / STATE)
        self.conversation, self.ledger, self._samples, self.late = conversation, ledger, samples, late
        self.watch = conversation.training.watch
        """Where drift is noticed; None where it is not watched for."""
        self._wanted: dict[int, asyncio.Future[Predicted]] = {}
        """Predictions that somebody waits for, by the number of their question."""
        self._questions: list[tuple[bytes, asyncio.Future[Predicted]]] = []
        """Those that no question was asked for yet."""
        self._closed = False
        self._labels_next = False
        """Whether labels that are here are sorted in before what clients have told of is predicted."""
        self.round_trips: list[deque[float]] = [deque(maxlen=1000) for _ in conversation.seats]
        """Seconds from a query to the answer, of the last answers of each client."""
        self.joined: set[int] = set()
        """The clients that have come since this process began."""
        self.on_round_trip: Callable[[int, float], None] = lambda client, seconds: None
        """Called with each of them."""
        self._every, self._choose = checkpoint_every, choose
        self._asked: dict[int, float] = {}
        self._more: asyncio.Task[None] | None = None
        self._told_waiting: list[int] = []
        self._deadline = self._coming = math.inf
        self._lingers = False
        """Whether clients that could be done without are not waited for any more, since the end was long ago."""
        self._goodbyes: set[int] = set()
        """The clients that have said goodbye at the end, and were not told that it is kept."""
        self._keep_goodbyes = False
        """Whether one of them has said it again, since others let the end wait."""
        self._goodbyes_kept: set[int] = set()
        """Those that have in a checkpoint of the server."""
        self._log_file = RoundLog(folder / LOG, durable=durable)
        self._kept = [0]
        """Rounds at the checkpoints that are kept, the older first."""
        self._last_saved = 0
        self.replayed = self._restore()
        """How many rounds of the log were played again."""
        self.rounds_before = conversation.rounds
        """How many rounds were played before this process."""
        self._told_drifts = 0 if self.watch is None else self.watch.counts.total()
        """How many detections a person was told of."""
        self._told_end = False
        """Whether a person was told that the labels have ended."""
        self._expired_before = 0 if late is None else late.waiting.counts["expired label"]
        """How many labels had come too late before this process."""

    def _restore(self) -> int:
        found = self._load(self.conversation.terms, server=True)
        if found is not None:
            try:
                own = {n.removeprefix("talk/"): a for n, a in found.arrays.items() if n.startswith("talk/")}
                self.conversation.restore(own, found.state["talk"])
                totals = {n.removeprefix("ledger/"): a for n, a in found.arrays.items() if n.startswith("ledger/")}
                self.ledger.restore(totals, found.state["ledger"])
                self.earlier.update(found.state.get("notes", {}))
                self.link.restore(found.state["wire"])
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{found.path}: is the checkpoint of another model, update or federation ({error}): name another "
                    "folder, or give the settings that it was made with"
                ) from error
            if self.watch is not None and self.watch.began_anew:
                self._log.warning(
                    "the detectors of drift begin anew: the checkpoint is of other detectors, or of another version of "
                    "River"
                )
            self._kept = [self.conversation.rounds]
            self._last_saved = self.conversation.rounds
        begin = self.conversation.rounds
        if self._log_file.cut:
            self._log.warning(
                "the last round of the log was written in part: %d bytes were cut off", self._log_file.cut
            )
        if self._log_file.last is not None and self._log_file.last < begin - 1:
            self._log_file.trim(begin)  # the power failed after the checkpoint reached the disk and before the log did
        block: list[m.Record] = []
        again: list[bytes] = []
        size = 0
        for _, raw in self._log_file.records(begin if self._log_file.last is not None else None):
            try:
                record = decode(raw, most=None)
            except VersionError as error:
                raise CheckpointError(
                    f"{self._log_file.folder}: holds rounds of another version of Anabranch ({error}): use the version "
                    "that wrote them, until a checkpoint has them"
                ) from error
            if not isinstance(record, m.Record):
                raise CheckpointError(f"{self._log_file.folder}: holds {type(record).__name__} where rounds belong")
            block.append(record)
            size += len(raw)
            if len(block) == AT_ONCE or size >= AT_ONCE_BYTES:
                again += self._replay(block)
                block, size = [], 0
        if block:
            again += self._replay(block)
        if self.late is None:
            self._samples.go_on(self.conversation.rounds)
        else:
            self.late.go_on(again)
            learnt = self.late.waiting.counts["learnt"]
            if learnt > self.conversation.rounds:
                raise CheckpointError(
                    f"{self._log_file.folder}: its rounds end after {self.conversation.rounds:,}, but {learnt:,} "
                    "events were learnt from: a file of the round log is missing or older. Put back a copy of the "
                    "whole folder, or name another folder to begin anew"
                )
        return self.conversation.rounds - begin

    def _other_version(self, client: int, error: VersionError) -> bool:
        if self.conversation.seats[client - 1].session is not None:
            return False  # the client is here, and speaks this version
        self._tell(Note("refused", f"client {client} was refused: {error}", client))
        return True

    def _replay(self, records: list[m.Record]) -> list[bytes]:
        played = self.conversation.replay(records)
        self.ledger.add(played)
        return [record.event for record in records]

    def _begin(self) -> list[Action]:
        if self.conversation.rounds:  # the first round waits for all, however long that takes
            self._coming = time.monotonic() + COMING
            self._log.info("going on after %d rounds, %d of them from the log", self.conversation.rounds, self.replayed)
        return self.conversation.begin()

    async def _turn(self) -> None:
        now, talk = time.monotonic(), self.conversation
        if self._lost_something:
            self._lost_something = False
            await self._do(talk.begin())
        for client, message in self._mail():
            if 1 <= client <= len(talk.seats):
                if isinstance(message, m.Embeddings) and message.rounds and message.rounds[0] in self._asked:
                    seconds = now - self._asked[message.rounds[0]]
                    self.round_trips[client - 1].append(seconds)
                    self.on_round_trip(client, seconds)
                await self._do(talk.receive(client, message, now))
                if isinstance(message, m.Bye) and talk.seats[client - 1].ended:
                    self._keep_goodbyes |= client in self._goodbyes  # else the checkpoint of the end has it soon
                    self._goodbyes.add(client)
        while self._dropped:
            talk.missed_of(self._dropped.pop())
        if talk.due() <= now:
            await self._do(talk.tick(now))
        await self._ask(now)
        await (self._open(now) if self.late is None else self._open_late(self.late, now))
        self._tell_waiting()
        if talk.rounds - self._last_saved >= self._every and self._saving is None:
            self._last_saved = talk.rounds
            self._begin_saving()
        await self._tell_kept()
        if self._keep_goodbyes and self._saving is None and self._stop is None:
            self._keep_goodbyes = False
            self._begin_saving()
        if self._deadline <= now:
            self._deadline, self._lingers = math.inf, True
        if self._lingers and self._stop is None:
            self._end_without()

    async def _tell_kept(self) -> None:
        """Tell the clients that have all their derivatives that they need not come again."""
        kept = self._goodbyes & self._goodbyes_kept
        self._goodbyes -= kept
        self._keep_goodbyes &= bool(self._goodbyes)
        await self._dismiss(
            [client for client in sorted(kept) if self.conversation.seats[client - 1].ended], "all is kept"
        )

    async def _dismiss(self, clients: Iterable[int], why: str) -> None:
        sessions = [(client, self.conversation.seats[client - 1].session) for client in clients]
        await self._do(
            [Send(m.Bye(session, m.NONE, why), client) for client, session in sessions if session is not None]
        )

    def _end_without(self) -> None:
        """Leave where only clients are away that the rounds could do without too."""
        if self.conversation.lingering(needed=True):
            return
        away = self.conversation.lingering()
        self._log.warning(
            "no word from %s in %g s that the last derivatives are there: the server leaves, and has them for whoever "
            "comes when it is started again",
            self._called(away),
            LAST_ANSWERS,
        )
        self._stop = Stop("the end came, and clients were away")

    async def _open(self, now: float) -> None:
        """Open rounds for what clients have told of, and for the samples that are there."""
        talk, samples = self.conversation, self._samples
        absent = self._absent(now)
        while talk.room and not absent and self._stop is None:
            events = talk.arrived(now, talk.room)
            known = [(event, label) for event in events if (label := samples.label(event)) is not None]
            for event in events:
                if not any(event == each for each, _ in known):
                    await self._do(talk.discard(event))
            # In two halves, so that the clients work on one while the server works on the other.
            taken = known or samples.take(min(talk.room, max(1, talk.in_flight // 2)))
            if not taken:
                break
            now = time.monotonic()  # it may have taken a while to read them
            self._asked[talk.opened] = now
            if len(self._asked) > 4 * talk.in_flight + 16:
                del self._asked[next(iter(self._asked))]
            names, labels = zip(*taken, strict=True)
            chosen = None if self._choose is None else self._choose(talk.opened, len(taken))
            await self._do(talk.open(names, labels, now, chosen))
            if await self._nobody_waited_for():
                break
        await self._go_on(samples, now, absent, over=samples.over and not talk.waiting)

    async def _open_late(self, late: WaitingRoom, now: float) -> None:
        """Open rounds for the events whose labels are there, and has those predicted that happen."""
        talk = self.conversation
        absent = self._absent(now)
        announcing = talk.announcing()
        gone = late.expired(now, announcing, idle=self._more is not None)
        await self._forget(gone, "expired", "they have waited too long for their labels")
        if lost := late.waiting.counts["expired label"] - self._expired_before - self._losses["expired label"]:
            self._losses.note("expired label", "a label has come whose event has gone: it is not learnt from", lost)
        self._tell_end(late)
        while talk.room and not absent and self._stop is None:
            # In two halves, so that the clients work on one while the server works on the other.
            room = min(talk.room, max(1, talk.in_flight // 2))
            late.sort_in(room)
            if found := late.ready(room):
                ready, lates = late.alike(found)
                events, labels = [each.event for each in ready], [each.label for each in ready]
                asks = self._choose is not None and lates[0].stored is None
                chosen = late.activated(ready) if asks else None
                await self._do(talk.open(events, labels, now, chosen, lates))
                if await self._nobody_waited_for():
                    break
                continue
            # In turn: where more events come than can be predicted, there is still something to learn from.
            self._labels_next = not self._labels_next
            events, told = late.take(room) if self._labels_next else [], []
            if not events and not late.is_ready:
                told = talk.arrived(now, room)
                events = late.arrived(told) or late.take(room)
            if told and late.reads_on:
                self._want_more(late.source)
            for event in told:
                late.announced(event, talk.announcers(event))
                if event in events or late.is_under_way(event):
                    talk.take_up(event)
                else:
                    await self._do(talk.known(event, late.number_of(event), stored=late.stored))
            if events:
                first = late.number(len(events))
                chosen = None if self._choose is None else self._choose(first, len(events))
                await self._do(talk.questions.ask(events, now, first=first, stored=late.stored, activated=chosen))
            elif not told and not late.is_ready:
                break
        if not announcing and not talk.holds_events:
            late.expect_no_event()
        done = late.over and not talk.questions.learning and not late.is_ready and not talk.waiting
        if done:
            await self._forget(late.expire_now(), "expired", "they have waited too long for their labels")
        await self._go_on(late.source, now, absent, over=done, reads=late.reads_on)

    async def _nobody_waited_for(self) -> bool:
        """Where rounds were played at once, lets those speak who want to come back."""
        if self.conversation.opened > self.conversation.rounds:
            return False
        self._wake.set()
        await asyncio.sleep(0)
        return True

    async def _go_on(
        self, source: Samples | Happenings, now: float, absent: list[int], *, over: bool, reads: bool = True
    ) -> None:
        """End where nothing follows, and else waits for what does."""
        talk = self.conversation
        if over or talk.full:
            # Those that have said goodbye before it began have time, too: they may not have heard that it was kept.
            if talk.opened == talk.rounds and not talk.ended and not absent:
                self._deadline = now + LAST_ANSWERS
                why = f"no round can follow: {talk.rounds:,} is the most" if talk.full else "the stream has ended"
                await self._do(talk.end(why, now))
        elif reads and talk.room and not absent:
            self._want_more(source)

    def _want_more(self, source: Samples | Happenings) -> None:
        """Wake this task once the source has something."""
        if self._more is None and not source.over:
            self._more = asyncio.ensure_future(source.more())
            self._more.add_done_callback(self._have_more)

    async def _forget(self, events: list[bytes], kind: str, why: str) -> None:
        """Forget events that wait for their labels no longer, and say why."""
        if events:
            self._losses.note(kind, f"events are not learnt from, since {why}", len(events))
            await self._do(self.conversation.forget(events))

    def _tell_end(self, late: WaitingRoom) -> None:
        """Say once why this server goes on, where no labels come any more."""
        if late.kept_open_by and not self._told_end:
            self._told_end = True
            self._log.info(
                "the labels have ended; %d of them wait for their events, until no client announces one any more",
                late.kept_open_by,
            )

    async def predict(self, event: bytes) -> Predicted:
        """What is predicted for an event now, with the clients that are here; nothing changes.

        Raises:
            ConnectError: where the server ends before, or is not connected.
        """
        if self._stop is not None or self._closed:
            raise ConnectError("the server has ended")
        if not self.link.connected:
            raise ConnectError("the server has no connection to the broker")
        found: asyncio.Future[Predicted] = asyncio.get_running_loop().create_future()
        self._questions.append((event, found))
        self._wake.set()
        try:
            async with asyncio.timeout(LONGEST_ANSWER):
                return await found
        except TimeoutError:
            raise ConnectError("the server has not come to answer: it has too much to do") from None

    async def _ask(self, now: float) -> None:
        """Ask for what has been wanted since the last turn, together."""
        wanted, self._questions = self._questions[:TOGETHER], self._questions[TOGETHER:]
        if not wanted:
            return
        talk = self.conversation
        for number, (_, found) in enumerate(wanted, talk.questions.asked):
            self._wanted[number] = found
        await self._do(talk.questions.ask([event for event, _ in wanted], now))
        if self._questions:
            self._wake.set()

    async def _predicted(self, predicted: Predicted) -> None:
        if predicted.number == m.NONE:
            found = self._wanted.pop(predicted.asked, None)
            if found is not None and not found.done():
                found.set_result(predicted)
        elif self.late is not None:
            gone = self.late.predicted(predicted)
            await self._forget(gone, "crowded out", "more than `most` waited, and the oldest had to go")
            self._wake.set()

    def _have_more(self, task: asyncio.Task[None]) -> None:
        self._more = None
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._problem = error
        self._wake.set()

    def _absent(self, now: float) -> list[int]:
        """Return the clients that have not come since this process began, while it waits for all."""
        if now >= self._coming:
            return []
        return [client for client, seat in enumerate(self.conversation.seats, 1) if seat.session is None]

    @property
    def waiting_for(self) -> list[int]:
        """The clients that no round begins without, or that the server does not leave without."""
        if self.conversation.ended:
            return self.conversation.lingering(needed=True) if self._lingers else []
        talk = self.conversation
        return sorted({*talk.awaited(), *talk.unknowing(), *self._absent(time.monotonic())})

    def _tell_waiting(self) -> None:
        awaited = self.waiting_for
        if awaited != self._told_waiting:
            self._told_waiting = awaited
            if awaited:
                why = " to say that the last derivatives are there; no round follows" if self.conversation.ended else ""
                self._log.info("waiting for %s%s", self._called(awaited), why)

    def _called(self, clients: Iterable[int]) -> str:
        """Return the names of clients, where they are known."""
        names = self.link.credentials.clients
        return ", ".join(names[i - 1] if len(names) >= i else f"client {i}" for i in clients)

    def _due(self) -> float:
        now = time.monotonic()
        late = math.inf if self.late is None else self.late.due(now)
        absent = self._absent(now)
        return min(self.conversation.due(opens=not absent), self._deadline, self._coming if absent else math.inf, late)

    async def _played(self, played: Played) -> None:
        self._log_file.append_many(played.first, [encode(record) for record in played.records])
        if self.late is not None:
            self.late.learnt([record.event for record in played.records])
        if skipped := sum(not record.embeddings.size for record in played.records):
            text = "a round was dropped, since it lacked the embedding of a client that nothing stands in for"
            self._losses.note("dropped round", text, skipped)
        self.ledger.add(played)
        self._tell_drifts()

    def _tell_drifts(self) -> None:
        if self.watch is None or not (new := self.watch.counts.total() - self._told_drifts):
            return
        self._told_drifts += new
        for each in self.watch.detections[-new:]:
            text = f"drift was noticed after round {each.round:,}: {each}{self._what_follows()}"
            kind = ("drift", each.what, each.client)
            self._repeats.tell(kind, logging.WARNING, text, time.monotonic(), at_once=OFTEN)

    def _what_follows(self) -> str:
        """What a detection leads to, for the log."""
        assert self.watch is not None
        detect = self.watch.detect
        if detect.on_drift == "reset":
            return "; windows are emptied"
        if detect.on_drift == "boost":
            return f"; learning rates x {detect.boost:g} for {detect.boost_rounds:,} rounds"
        return ""

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._log_file.sync()  # so that no checkpoint on the disk is ahead of the log there
        own, talk = self.conversation.state()
        totals, ledger = self.ledger.state()
        arrays = {f"talk/{n}": a.copy() for n, a in own.items()} | {f"ledger/{n}": a.copy() for n, a in totals.items()}
        values = {"terms": asdict(self.conversation.terms), "talk": talk, "ledger": ledger, "wire": self.link.state()}
        return arrays, values | {"notes": self.noted()}

    def _saved(self, values: dict[str, Any]) -> None:
        # The one before is kept, in case this one is damaged, and so are the rounds since then.
        self._kept = [*self._kept[-1:], values["talk"]["rounds"]]
        self._log_file.trim(self._kept[0])
        self._goodbyes_kept = {i for i, seat in enumerate(values["talk"]["seats"], 1) if seat["ended"]}

    async def _finish(self) -> Stop:
        if self._more is not None:
            self._more.cancel()
        try:
            stop = await super()._finish()
        finally:
            self._log_file.close()
        if stop.reason == LEFT:
            await self._tell_kept()
        else:  # it waits for nobody any more
            await self._dismiss(range(1, len(self.conversation.seats) + 1), stop.reason)
        return stop

    async def run(self) -> Stop:
        try:
            return await super().run()
        finally:
            self._closed = True
            for found in [*self._wanted.values(), *(found for _, found in self._questions)]:
                if not found.done():
                    found.set_exception(ConnectError("the server has ended"))
            if self.late is not None:
                self.late.waiting.close()

    async def _last_words(self) -> None:
        pass  # the clients wait for it

    @property
    def log_bytes(self) -> int:
        """Of the round log on the disk."""
        return self._log_file.size

    def _knows(self, client: int) -> bool:
        return 1 <= client <= len(self.conversation.seats)

    def _senders(self) -> int:
        return len(self.conversation.seats)

    def _rounds(self) -> int:
        return self.conversation.rounds
