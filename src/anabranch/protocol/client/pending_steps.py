"""What a client keeps until derivatives come: of the rounds that activated it, and of events of its own before them."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from anabranch.core.party_programs import Pending
from anabranch.protocol.messages import Derivatives, Void

REMEMBERED = 10_000
"""So many of the last events that were answered, or told of, are remembered."""


class Kept(NamedTuple):
    """What is kept of a round in which the client was activated."""

    event: bytes
    epoch: int | None
    """Of the server that asked. One that has begun again may have another event for this round."""
    pending: dict[int, Pending]
    """By the last round whose derivative was in the parameters of the embedding: a client that is asked again may
    have moved on, and the server uses the answer that comes first."""


class Keeping:
    """The rounds that wait for their derivatives, and the client's own events that wait for their rounds.

    An event of its own and its round share what is kept of them.
    """

    def __init__(self) -> None:
        self.rounds: dict[int, Kept] = {}
        self.own: dict[bytes, dict[int, Pending]] = {}
        """Events of its own whose derivative has not come, and what is kept of those that it has told the server of."""
        self.later: dict[bytes, None] = {}
        """Those of them that it has no features for yet."""
        self.told: set[bytes] = set()
        """Those of them that it has told of in this session, and was not asked for since."""
        self.settled: deque[bytes] = deque(maxlen=10 * REMEMBERED)
        """Events of its own that nothing can be lost of any more."""
        self._settling: deque[tuple[int, bytes]] = deque(maxlen=2 * REMEMBERED)
        """Rounds of events of its own that it has stepped in, and that are not in a checkpoint yet."""

    def hold(self, t: int, event: bytes, epoch: int | None, pending: dict[int, Pending]) -> None:
        """Keep what a step in round ``t`` may need."""
        kept = self.rounds.get(t)
        held = kept.pending if kept is not None and kept.event == event else self.own.get(event, {})
        held.update(pending)
        self.rounds[t] = Kept(event, epoch, held)

    def pending(self, message: Derivatives, i: int, epoch: int | None) -> Pending | None:
        """What is kept for the step along the ``i``-th of some derivatives."""
        kept = self.rounds.get(message.rounds[i])
        event = message.events[i] if message.events else None
        same = kept is not None and (kept.epoch == epoch if event is None else kept.event == event)
        if same and kept is not None and message.applied[i] in kept.pending:
            return kept.pending[message.applied[i]]
        return None if event is None else self.own.get(event, {}).get(message.applied[i])

    def over(self, t: int, event: bytes) -> None:
        """The derivative of an event, perhaps of its own, is in the parameters."""
        if event in self.own:
            self._settling.append((t, event))
        self.forget(event)

    def forget(self, event: bytes) -> None:
        """An event of its own waits for its round no longer."""
        self.own.pop(event, None)
        self.later.pop(event, None)
        self.told.discard(event)

    @property
    def oldest_unannounced(self) -> bytes | None:
        """The first event of its own of which the server has no embedding: a step can need nothing of it."""
        return next((event for event, pending in self.own.items() if not pending), None)

    def settle(self, event: bytes) -> None:
        """Nothing can be lost of an event any more, so it is forgotten."""
        if event in self.own:
            self.settled.append(event)
        self.forget(event)

    def void(self, message: Void, epoch: int | None) -> dict[int, bytes]:
        """No derivative comes for these rounds of a server, and no round for these events.

        Returns what was kept of the rounds: their events.
        """
        known = {t: kept.event for t in message.rounds if (kept := self.rounds.get(t)) and kept.epoch == epoch}
        for t in known:
            del self.rounds[t]
        for event in (*known.values(), *message.events):
            self.settle(event)
        return known

    def passed(self, applied: int) -> None:
        """The parameters have the derivatives up to this round."""
        self.rounds = {t: each for t, each in self.rounds.items() if t > applied}

    def thin(self, applied: int) -> None:
        """Nobody uses what it told of its own events with parameters from before the derivative of this round."""
        for pending in self.own.values():
            for older in [each for each in pending if each < applied]:
                del pending[older]

    def saved(self, applied: int) -> None:
        """A checkpoint has the derivatives up to this round."""
        while self._settling and self._settling[0][0] <= applied:
            self.settled.append(self._settling.popleft()[1])

    def state(self, applied: int) -> tuple[list[Pending], dict[str, Any]]:
        """What a checkpoint needs, where the parameters have the derivatives up to ``applied``.

        What belongs to those parameters can be made again, from the event that comes with the derivative.
        """
        of_rounds = {t: each for t, each in self.rounds.items() if each.event not in self.own}
        older = [(t, each) for t, kept in of_rounds.items() for each in kept.pending if each < applied]
        told = [(event, each) for event, pending in self.own.items() for each in pending if each < applied]
        pending = [self.rounds[t].pending[each] for t, each in older] + [self.own[event][each] for event, each in told]
        return pending, {
            "happened": [event.hex() for event in self.own],
            "events": [[t, each.event.hex()] for t, each in self.rounds.items()],
            "kept": [[t, each] for t, each in older],
            "told": [[event.hex(), each] for event, each in told],
        }

    def restore(self, pending: dict[int, Pending], values: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.own = {bytes.fromhex(event): {} for event in values["happened"]}
        for t, event in values["events"]:
            self.hold(t, bytes.fromhex(event), None, {})
        for i, (t, applied) in enumerate(values["kept"]):
            self.rounds[t].pending[applied] = pending[i]
        for i, (event, applied) in enumerate(values["told"], len(values["kept"])):
            self.own[bytes.fromhex(event)][applied] = pending[i]
