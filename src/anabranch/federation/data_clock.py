"""A replay that goes by the data's own clock: files of several parties, in the order of their times.

The server is the only clock. A client says of which time its next reading is, and reads it once the server lets it. So
the server knows all events before a time, and takes events and labels in the order of their times: at the same time the
events first. Nothing of that depends on how fast a party is, or on how often it was killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from anabranch.federation.expiry import DataTime
from anabranch.federation.late_labels import Happening
from anabranch.federation.source_client import FromSource, SourcedRoom, SourceHappenings, SourceSamples
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.sources.labels import SourceLabels
from anabranch.storage.event_ids import Names
from anabranch.storage.pending_labels import Ready


class ReplayTime(DataTime):
    """The time up to which a replay has come: everything before it has happened."""

    @property
    def passed(self) -> int | None:
        return self._now

    def look(self, now: float, awaited: Collection[int], *, idle: bool, found_none: int) -> None:
        """Nothing: it moves on with each event and each label."""

    def _later(self, held: int | None, moment: int | None) -> int | None:
        return held if moment is None else moment if held is None else max(held, moment)


class _InOrder(FromSource):
    """Labels that are taken once all events before them were announced."""

    _talk: ServerConversation
    _together = False
    """Whether clients may announce everything up to the next label at once."""
    _stops_at: int | None = None
    """The next time at which something is to be done, where clients have to announce what comes before."""

    def attach(self, talk: ServerConversation) -> None:
        """Has the clients' announcements from this conversation."""
        self._talk = talk

    async def more(self) -> None:
        """Return once a label is here where none was."""
        self._begin()
        await self._filled.wait()
        self._filled.clear()
        self._check()

    @property
    def _label_time(self) -> int | None:
        """Of the next label; None while it is not here."""
        if self._here:
            return self._here[0].happening.reading.time
        return m.NEVER if self._ended else None

    def go_further(self, now: float) -> list[Action]:
        """Let clients announce more, where nothing can be done before."""
        until, self._stops_at = self._stops_at, None
        return [] if until is None else self._talk.advance(until, now, together=self._together)


class OrderedSamples(_InOrder, SourceSamples):
    """A round for each label, once clients have announced all events of before."""

    _together = True

    def take(self, n: int) -> list[tuple[bytes, int]]:
        """Return the next label, where its time has come."""
        self._stops_at = None
        told, label = self._talk.told_until, self._label_time
        while label is not None and told is not None and label < told:
            if taken := super().take(1):
                return taken
            label = self._label_time
        self._stops_at = label if label != m.NEVER else None
        return []


class OrderedHappenings(_InOrder, SourceHappenings):
    """Events that clients have announced, and labels.

    Args:
        labels: of the source.
        coalesce: microseconds of the data for which an event waits for the announcements of other clients.
    """

    def __init__(self, labels: SourceLabels, coalesce: int) -> None:
        super().__init__(labels)
        self._coalesce = coalesce
        self._sorted: deque[tuple[int, bytes]] = deque()
        """The events that are announced, and when each is due."""
        self._tells = -1
        """How many announcements are sorted."""
        self._actions: list[Action] = []

    def go_further(self, now: float) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions + super().go_further(now)

    def is_taken(self, event: bytes) -> None:
        """An event that was announced is predicted now."""
        self._talk.take_up(event)

    def is_known(self, event: bytes, number: int | None, *, stored: bool) -> None:
        """An event that was announced again waits for its label already, or is over."""
        self._actions += self._talk.known(event, number, stored=stored)

    @property
    def all_announced(self) -> bool:
        """Whether all that happens was announced and taken."""
        return self._talk.told_until == m.NEVER and not self._talk.holds_events

    @property
    def over(self) -> bool:
        return super().over and self.all_announced

    def take(self, n: int) -> list[Happening]:
        """Return the next event or label, where its time has come."""
        self._stops_at = None
        told, label = self._talk.told_until, self._label_time
        if told is None or label is None:
            return []
        due, event = self._first()
        if event is not None and due <= label and due < told:
            self._sorted.popleft()
            return [Happening(event, time=due)]
        if label < told and (event is None or label < due):
            return super().take(1)
        if told != m.NEVER:
            self._stops_at = min(due, label)
        return []

    def _first(self) -> tuple[int, bytes | None]:
        """Return the event that is due next, and when."""
        if self._tells != self._talk.tells:
            self._tells = self._talk.tells
            self._sorted = deque(sorted(((self._due(each), each) for each in self._talk.announced), key=lambda e: e[0]))
        return self._sorted[0] if self._sorted else (m.NEVER, None)

    def _due(self, event: bytes) -> int:
        read = Names.read(event)
        return m.EARLIEST if read is None else read[1] + self._coalesce


class OrderedRoom(SourcedRoom):
    """Learns between two events from the labels that became known there, in the order of their events.

    After the last event it learns from the labels as they became known. Both are as `anabranch.simulate` does it.
    """

    source: OrderedHappenings

    @property
    def reads_on(self) -> bool:
        return True

    def sort_in(self, n: int) -> None:
        while (each := self._head(n)) is not None:
            if each.label is not None:
                self._label(self._here.popleft())
            elif self.waiting.knows(each.event):  # announced again, perhaps late: no event begins here
                self._here.popleft()
                self.source.is_known(each.event, self.number_of(each.event), stored=self.stored)
            else:
                break

    @property
    def is_ready(self) -> bool:
        """Only once no label can come before the next event."""
        closed = self._here or (self.source.over and not self._asked)
        return bool(closed) and super().is_ready

    def ready(self, room: int) -> list[Ready]:
        if not self.is_ready:
            return []
        return self.waiting.ready(room, "events" if self._here else "known")

    def take(self, room: int) -> list[bytes]:
        self.sort_in(room)
        if not self._here or self.is_ready:
            return []
        each = self._here.popleft()
        self._expire(each.time)
        self.source.is_taken(each.event)
        return self._new([each.event])
