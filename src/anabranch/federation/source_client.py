"""Parties whose events, features and labels come from sources: what they take, and when a source may forget it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from anabranch.errors import AwayError, ConnectError
from anabranch.federation.client import ClientParty
from anabranch.federation.engine import Engine
from anabranch.federation.late_labels import Happening as Happens
from anabranch.federation.late_labels import WaitingRoom
from anabranch.federation.server import ServerParty
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Note, Played, Stop
from anabranch.protocol.client.pending_steps import REMEMBERED
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.sources.activation import Stimulus
from anabranch.sources.base import Happening, Source
from anabranch.sources.features import Features
from anabranch.sources.inputs import Found, Inputs
from anabranch.sources.labels import LateLabel, SourceLabels
from anabranch.storage.event_ids import Names
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.place import Place

SAVE_EVERY = 5.0
"""Seconds after which a client saves a checkpoint because a source waits to hear that something is safe."""
AGAIN = 1.0
"""Seconds between two attempts to begin a source, or to look up what it gave a reading of."""
EXPIRE_EVERY = 60.0
"""Seconds between two looks at which inputs are too old."""
SLOW = 10.0
"""Seconds after which a person is told that a look-up is not answered."""
READ_AHEAD = 1000
"""So many labels are read before they are sorted in."""
AT_A_TIME = 256
"""So many events a client announces at a time, where the server says up to when."""
UNSAFE = 20_000
"""So many events may wait to be safe; then the oldest is given up, as the conversation does with fewer."""


class _Taken:
    """What was taken from a source; the source is told, beside everything else, of what can be lost no more."""

    def __init__(self) -> None:
        self._unsafe: OrderedDict[Hashable, list[Happening | LateLabel]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fails: Callable[[Any], None] = lambda error: None
        """Called with what the source raises."""

    def __len__(self) -> int:
        """Return how many names there are of what could be lost."""
        return len(self._unsafe)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._unsafe

    def add(self, name: Hashable, each: Happening | LateLabel) -> bool:
        """Return one more of this name, which could be lost; whether it is the first."""
        held = self._unsafe.setdefault(name, [])
        held.append(each)
        return len(held) == 1

    def is_safe(self, name: Hashable) -> None:
        """All of this name can be lost no more."""
        for each in self._unsafe.pop(name, []):
            self.let_go(each)

    def let_go(self, each: Happening | LateLabel) -> None:
        """The source need not give this again."""
        task = asyncio.ensure_future(each.safe())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @property
    def oldest(self) -> Any:
        """The name that was added first."""
        return next(iter(self._unsafe))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fails(error)

    async def end(self) -> None:
        """Wait until the source has been told."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class _Sourced(Engine):
    """A party that has a source while it runs."""

    _source: Source
    _taken: _Taken

    @property
    def source(self) -> Source:
        """Where its events come from."""
        return self._source

    def _take_from(self, source: Source, taken: _Taken) -> None:
        self._source, self._taken = source, taken
        taken.fails = self._fails

    async def run(self) -> Stop:
        try:
            await self._before_leaving(_patiently(self._source.begin, self.say))
            return await super().run()
        finally:
            await self._stop_reading()
            await self._taken.end()
            await self._source.close()

    async def _stop_reading(self) -> None:
        """End what reads the source beside everything else."""

    def _show(self, **counts: Counter[str]) -> None:
        """Put what was counted where events come from among the notes that metrics and status have."""
        for where, each in {"source": self._source.counts, **counts}.items():
            # The union is the larger of both.
            self.notes |= Counter({(f"{where}: {kind}", None): n for kind, n in each.items()})


class SourcedClient(_Sourced, ClientParty):
    """A client whose events come from a source, and whose stimulus says which of them activate it.

    ``feed`` comes before ``run``. A reading that activates the client is safe once its round is over and in a
    checkpoint; others are at once.
    """

    _inputs: Inputs
    _stimulus: Stimulus
    _own: KeptInputs

    def feed(
        self, source: Source, inputs: Inputs, stimulus: Stimulus, kept: KeptInputs, *, by_data: bool = False
    ) -> None:
        """Where events come from, what is made of them, which activate the client, and where that is kept.

        Args:
            by_data: whether a reading waits until the server has come to its time.
        """
        self._take_from(source, _Taken())
        self._inputs, self._stimulus, self._own = inputs, stimulus, kept
        if not stimulus.of_readings:
            self.conversation.goes_on_at(m.NEVER)
        self.conversation.by_data = by_data
        self._granted = asyncio.Event()
        """Set when the server has let the client go on."""
        self._grants = self._activating = 0
        """How often it did, and how many events have activated the client since."""
        self._time = m.EARLIEST
        """Of the last reading."""
        self._save_again = time.monotonic() + SAVE_EVERY
        self._expire_again = 0.0
        self._last = b""
        self._asked_to = -math.inf
        """The time of the event that the server has opened a round for last, in microseconds since 1970."""
        self._events = self._touching()
        self._read: list[tuple[int, m.Message]] = []
        """What has arrived and is looked up for."""
        self._looking = asyncio.Lock()
        told = kept.told() if stimulus.entities else {}
        if told:
            stimulus.restore({entity: each.state for entity, each in told.items()})
        self._told = {entity: each.place for entity, each in told.items()}
        """The place of the last reading of an entity that an earlier process told of: the stimulus goes on from it."""
        kept.drop_own([event for t, event, _ in kept.were_learnt() if t <= self.conversation.applied])
        # The server may ask for one of these before the source has given it again.
        self._resumed = kept.own()
        """Of these the ones that were not given again yet, and the place of the reading that each came of."""
        self.conversation.resume([*self._resumed])
        self.conversation.was_asked(kept.asked(REMEMBERED))

    async def _touching(self) -> AsyncIterator[bytes]:
        """Yield the events that activate the client."""
        async for happening in self._source.readings():
            if self.conversation.by_data and self._stimulus.of_readings:
                await self._comes_to(happening)
            # One that is told of has an input that stays, and nothing is lost of a further reading.
            if happening.name in self._taken or not await self._touches(happening):
                await happening.safe()
                await asyncio.sleep(0)  # a file's readings come without a pause, and everything else is to go on
                continue
            self._taken.add(happening.name, happening)
            if len(self._taken) > UNSAFE:
                self._are_safe([self._taken.oldest])
            self._last = happening.name
            self._activating += 1
            yield happening.name

    async def _comes_to(self, happening: Happening) -> None:
        """Wait until the server has come to a reading's time."""
        read = Names.read(happening.name)
        self._time = max(self._time, happening.reading.time, happening.reading.time if read is None else read[1])
        talk = self.conversation
        while self._time > talk.granted or self._activating >= AT_A_TIME:
            self._granted.clear()
            await self._do(talk.goes_on_at(self._time))
            await self._granted.wait()
            self._activating = 0

    def _is_past(self, event: bytes) -> bool:
        return _time_of(event) < self._asked_to

    async def _touches(self, happening: Happening) -> bool:
        """Return whether a reading activates the client, by what its event's features are made of; that it does is
        kept.
        """
        if not self._stimulus.of_readings:  # it is read all the same: some sources know what they have read
            return False
        name, reading = happening.name, happening.reading
        if name in self._resumed:
            if _is_before(happening.place, self._resumed[name]):  # the one that has activated the client comes yet
                return False
            del self._resumed[name]  # it has, and the stimulus knows that
            self._own.add_own(name, happening.place)
            return True
        if self._was_before(happening):
            return False
        seen = await self._seen(name)
        if self.conversation.is_late(name):  # its features may be of before: what has moved is told of with the next
            self._last = name
            await self._do(self.conversation.happened(name))
        if seen is None:
            return False
        values, x = seen
        stimulus, entity = self._stimulus, reading.entity
        if not stimulus.touches(reading._replace(values={**reading.values, **values}), x):
            return False
        state = stimulus.state(entity) if stimulus.entities else None
        self._own.add_own(name, happening.place, entity, state, stimulus.entities)
        return True

    def _was_before(self, happening: Happening) -> bool:
        """Return whether the stimulus has seen a reading before this process began: it goes on from the last that
        was told of, and what is given again up to there is not compared with it.
        """
        told, place = self._told.get(happening.reading.entity), happening.place
        return place is not None and (place == told or _is_before(place, told))

    async def _seen(self, event: bytes) -> tuple[Mapping[str, Any], NDArray[Any]] | None:
        """Return the values and features of an event that a reading has come of; waits for a source that is away.
        None where there are none, or the server has asked for the event.
        """
        waits = False
        while True:
            late = self.conversation.is_late(event)
            with self._inputs.knowing(await self._ahead([] if late else [event])):
                try:
                    return None if self.conversation.is_late(event) else self._inputs.read(event)
                except AwayError as error:
                    if not waits:
                        waits = True
                        self._inputs.counts["away"] += 1
                        self.say(f"readings wait for their source: {error}", logging.WARNING)
            await asyncio.sleep(AGAIN)

    async def _do(self, actions: Sequence[Action]) -> None:
        await super()._do(actions)
        if any(isinstance(action, Note) and action.what == "late" for action in actions):
            self._are_safe([self._last])  # the server had asked for it before it happened here, and it is not told of
        self._let_go()

    def _let_go(self) -> None:
        """Tell the source of what is safe."""
        settled: deque[bytes] = self.conversation.settled
        if settled:
            self._are_safe([*settled])
            settled.clear()

    def _are_safe(self, events: Sequence[bytes]) -> None:
        self._own.drop_own(events)
        self.conversation.was_asked(events)
        for each in events:
            self._taken.is_safe(each)

    async def _ahead(self, events: Sequence[bytes]) -> Mapping[bytes, Found]:
        """What a slow source has for these events, which another thread looks up."""
        if not events or not self._source.slow:
            return {}
        async with self._looking:
            return await asyncio.to_thread(self._inputs.look_ahead, events)

    async def _ahead_or_left(self, events: Sequence[bytes]) -> Mapping[bytes, Found] | None:
        """Return the same; None where the party should leave before that is known, as a source may not answer for
        long.
        """
        looking = asyncio.ensure_future(self._ahead(events))
        tasks = {looking, asyncio.ensure_future(self._leaving.wait())}
        try:
            done, _ = await asyncio.wait(tasks, timeout=SLOW, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self.say(f"a look-up takes more than {SLOW:g} s: the rounds wait for its source", logging.WARNING)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
        return None if looking.cancelled() else looking.result()

    def _mail(self) -> list[tuple[int, m.Message]]:
        read, self._read = self._read, []
        return read

    def _is_welcome(self) -> bool:
        """Return whether the server has answered its hello: what it asks before that is not for this session."""
        talk = self.conversation
        return talk.joined or any(
            isinstance(each, m.Welcome) and each.session == talk.session for _, each in self._read
        )

    async def _turn(self) -> None:
        self._read += super()._mail()
        asked = [each.events for _, each in self._read if isinstance(each, m.Query | m.Ask)]
        queries = [each for _, each in self._read if isinstance(each, m.Query) and each.events]
        looks = self._source.slow and self._is_welcome()
        lacking = self._inputs.lacking(chain.from_iterable(asked)) if looks else []
        ahead = await self._ahead_or_left(lacking) if lacking else {}
        if ahead is None:
            return
        with self._inputs.knowing(ahead):
            await super()._turn()
        if self.conversation.grants != self._grants:
            self._grants = self.conversation.grants
            self._granted.set()
        for each in queries:
            self._asked_to = _time_of(each.events[-1])
            self._turned.set()  # there may be room for more events now
        self._let_go()
        self._show(input=self._inputs.noted())
        now = time.monotonic()
        if self._expire_again <= now:
            self._expire_again = now + EXPIRE_EVERY
            self._inputs.expire()
        if self._taken and self._save_again <= now and self._saving is None:
            self._save_again = now + SAVE_EVERY
            if self._kept[0] != self.conversation.applied:  # what is new has to be in both checkpoints
                self._begin_saving()

    def _due(self) -> float:
        waits = bool(self._taken) and self._saving is None
        return min(super()._due(), self._save_again) if waits else super()._due()

    def _saved(self, values: dict[str, Any]) -> None:
        super()._saved(values)
        self._let_go()


def _is_before(place: Place | None, other: Place | None) -> bool:
    return place is not None and other is not None and place.is_before(other)


def _time_of(event: bytes) -> float:
    """Of an event, by its name; none is before that of a name that bears none."""
    read = Names.read(event)
    return -math.inf if read is None else read[1]


def sourced_client(
    make: Callable[..., ClientParty],
    source: Source,
    features: Features,
    stimulus: Stimulus,
    kept: KeptInputs,
    *,
    by_data: bool = False,
) -> SourcedClient:
    """Return a client whose events and features come from a source.

    Args:
        make: makes a party of the kind of `SourcedClient`, of the number of its features, a look-up, a decision, and
            more options of `anabranch.parties.assemble.make_client`.
        source: of its events and values.
        features: what is made of the values.
        stimulus: which events activate it.
        kept: its features for events whose rounds follow.
        by_data: whether it goes by the data's clock.
    """
    inputs = Inputs(source.look, features, kept)
    look, decide = inputs.look, stimulus.decide
    ways = {"peek": inputs.peek, "is_unusable": inputs.is_unusable}
    party = make(features.width, look, decide, schema=features.schema, inputs=kept, **ways)
    assert isinstance(party, SourcedClient)
    party.feed(source, inputs, stimulus, kept, by_data=by_data)
    party.say(f"features {', '.join(features.names)}; their schema is {features.schema}")
    return party


class FromSource:
    """Labels as they come from a source, read ahead of what is taken."""

    def __init__(self, labels: SourceLabels) -> None:
        self._source = labels
        self._labels = labels.labels()
        self._notes = labels.notes
        self._here: deque[LateLabel] = deque()
        self._came, self._filled, self._taken_from = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._ended = False
        self.taken = _Taken()

    @property
    def over(self) -> bool:
        """Whether none will come any more."""
        return self._ended and not self._here

    @property
    def found_none(self) -> int:
        """How often the source has looked for more and found none."""
        return self._source.found_none

    async def more(self) -> None:
        """Return once one is here, or none will come."""
        if not self._begin().done():
            await self._came.wait()
        self._check()

    def attach(self, talk: ServerConversation) -> None:
        """Nothing: labels come whatever the clients announce."""

    def go_further(self, now: float) -> list[Action]:
        """Nothing: clients announce events whatever the labels are."""
        return []

    def _begin(self) -> asyncio.Task[None]:
        """Begin to read, where that was not begun."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return self._reading

    def _check(self) -> None:
        """Raise what has ended the reading."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    async def _read(self) -> None:
        try:
            async for each in self._labels:
                self._here.append(each)
                self._came.set()
                if len(self._here) == 1:
                    self._filled.set()
                while len(self._here) >= READ_AHEAD:
                    self._taken_from.clear()
                    await self._taken_from.wait()
                await asyncio.sleep(0)  # a file's rows come without a pause, and everything else is to go on
            self._ended = True
        finally:
            self._came.set()
            self._filled.set()

    def _pop(self, n: int) -> list[LateLabel]:
        popped = [self._here.popleft() for _ in range(min(n, len(self._here)))]
        self._taken_from.set()
        if not self._here and not self._ended:
            self._came.clear()
        return popped

    def go_on(self, *taken: int) -> None:
        """Nothing: the source goes on by itself, and clients tell of events."""

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})


class SourceSamples(FromSource):
    """A round for each label of a source, as it comes.

    Args:
        labels: of the source.
    """

    def __init__(self, labels: SourceLabels) -> None:
        super().__init__(labels)
        self.played: Callable[[bytes], bool] = lambda event: False
        """Whether a round of an event was played before."""

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """Up to ``n`` that are here."""
        taken: list[tuple[bytes, int]] = []
        for each in self._pop(n):
            if self.played(each.name):
                self.taken.let_go(each)
            elif self.taken.add(each.name, each):
                taken.append((each.name, each.label))
                continue
            self._notes.note("second label", "a label of an event that has its round already is left out")
        return taken

    def label(self, event: bytes) -> int | None:
        """None: events come from here."""
        return None


class SourceHappenings(FromSource):
    """Labels of a source, of events that clients tell of."""

    sorted_in: Place | None = None
    """Up to where an earlier process has sorted in all labels, which the source may give again."""

    def take(self, n: int) -> list[Happens]:
        """Up to ``n`` that are here."""
        taken = []
        for each in self._pop(n):
            place = each.happening.place
            if place is not None and (place == self.sorted_in or _is_before(place, self.sorted_in)):
                self.taken.let_go(each)
                continue
            happens = Happens(each.name, each.label, each.happening.reading.time, place)
            self.taken.add(id(happens), each)  # each label by itself, those that come twice too
            taken.append(happens)
        return taken

    def is_safe(self, happens: Happens) -> None:
        """A label can be lost no more."""
        self.taken.is_safe(id(happens))


class SourcedServer(_Sourced, ServerParty):
    """A server whose labels come from a source; ``feed`` comes before ``run``."""

    def feed(self, source: Source, labels: SourceSamples | SourceHappenings) -> None:
        """Where the labels come from, and what takes them from there."""
        self._take_from(source, labels.taken)
        self._labels = labels
        labels.attach(self.conversation)
        self._say_without = 1
        if isinstance(labels, SourceSamples):
            labels.played = lambda event: self.conversation.training.round_of(event) is not None
        elif self.late is not None:
            self.late.kept = labels.is_safe
            labels.sorted_in = self.late.waiting.sorted_in

    async def _stop_reading(self) -> None:
        await self._labels.close()

    async def _turn(self) -> None:
        await super()._turn()
        if self._stop is None and not self.conversation.ended:
            await self._do(self._labels.go_further(time.monotonic()))
        self._show()
        if self.late is not None and self.late.without_event >= self._say_without:
            self._say_without = 10 * self.late.without_event
            self.say(
                f"{self.late.without_event:,} labels are of moments without an event so far, though clients have told "
                "of later ones: they wait until they expire. That is usual if clients announce only what has moved, or "
                "if a file is replayed as fast as possible. Otherwise look at clocks, time zones and grain."
            )

    async def _played(self, played: Played) -> None:
        await super()._played(played)
        for record in played.records:  # late labels are safe before their rounds
            self._taken.is_safe(record.event)


class SourcedRoom(WaitingRoom):
    """A waiting room whose labels come from a source, and whose events come from clients that do not say their end."""

    @property
    def over(self) -> bool:
        """Whether the labels have ended, and none of them waits for its event."""
        return super().over and not self.waiting.early


async def _patiently(begin: Callable[[], Coroutine[Any, Any, None]], say: Callable[..., None]) -> None:
    """Has a source begin, once its broker or database is there."""
    said = ""
    while True:
        try:
            return await begin()
        except ConnectError as error:
            if not error.temporary:
                raise
            if str(error) != said:
                said = str(error)
                say(f"{error}; waiting for it", logging.WARNING)
        await asyncio.sleep(AGAIN)
