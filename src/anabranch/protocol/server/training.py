"""What the rounds leave behind at the server, whether they are played or played again from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.core.party import TROUBLES
from anabranch.core.party_programs import ServerCompute
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Played
from anabranch.protocol.server.client_session import Seat, Sent
from anabranch.protocol.server.drift import Watching
from anabranch.simulation.drift_detection import Watch


class Training:
    """The server's parameters, what it holds for each client, and the events of the last rounds.

    Records of rounds move it on and nothing else does, so the log gives the same bits again.

    Args:
        compute: the server's parameters.
        seats: of the clients, in order.
        remembered: how many events of the last rounds are remembered, those that are open among them.
        watch: where drift is noticed.
    """

    def __init__(
        self, compute: ServerCompute, seats: Sequence[Seat], remembered: int, watch: Watch | None = None
    ) -> None:
        self.compute, self._seats, self._remembered, self.watch = compute, seats, remembered, watch
        self._rows = compute.rule.update.rows
        widths = [seat.expected.width for seat in seats]
        self._starts = np.cumsum([0, *widths])
        self._watching = Watching(watch, widths, self._rows)
        self._emptied = m.NONE
        """The last round before which the windows of gradients were emptied."""
        self._unwatched: dict[str, Any] | None = None
        """What was noticed until a start at which nothing is watched: kept for one at which something is."""
        self._recent: dict[bytes, int] = {}
        """The rounds of the last events."""
        self._events: deque[bytes] = deque(maxlen=0 if self._rows is None else remembered + self._rows)
        """Under SLR, the events of the last rounds that were played, of which windows of samples are made again."""

    @property
    def rounds(self) -> int:
        """How many were played."""
        return self.compute.rounds

    def remember(self, event: bytes, t: int) -> None:
        """The event of round ``t``."""
        self._recent[event] = t
        if len(self._recent) > self._remembered:
            del self._recent[next(iter(self._recent))]

    def round_of(self, event: bytes) -> int | None:
        """Return the round of an event, open or over; None where it has none, or had it long ago."""
        return self._recent.get(event)

    def recall(self, seat: Seat, applied: int) -> m.Events:
        """Under SLR, the events of the rounds before the next one of which a client may need its samples again.

        Also those of the windows whose derivatives are sent again, which are those after round ``applied``.
        """
        if self._rows is None:
            return ()
        lacking = next(iter(seat.after(applied)), self.rounds)
        known = min(len(self._events), self.rounds - lacking + self._rows)
        return tuple(islice(self._events, len(self._events) - known, None))

    def replay(self, records: Sequence[m.Record]) -> Played:
        """Play rounds of the log again, after the ones that were played; the clients were sent what came of them."""
        first = self.rounds
        predictions: list[int | None] = []
        block: list[m.Record] = []
        for i, record in enumerate([*records, None]):
            if record is not None:
                self.remember(record.event, first + i)
            if block and (record is None or not self._alike(block, record)):
                self._watching.begin(self.rounds, block)
                played, _ = self._apply(block)
                self._watching.notice_again(played)
                predictions += played.predictions
                block = []
            if record is not None:
                block.append(record)
        return Played(first, tuple(records), tuple(predictions))

    def _alike(self, block: Sequence[m.Record], record: m.Record) -> bool:
        """Return whether a record of the log can be played in one call with those before it."""
        dropped = not record.embeddings.size or not block[0].embeddings.size
        adapted = record.emptied or record.factor != block[0].factor
        return not dropped and not adapted and len(block) < self.together

    @property
    def together(self) -> int:
        """How many of the next rounds can be played in one call."""
        return self._watching.together(self.rounds, self.compute.block)

    def play(self, records: Sequence[m.Record]) -> tuple[Played, str]:
        """Play the next rounds, `together` at most; also says which trouble ended them, if any."""
        played, trouble = self._apply(self._watching.begin(self.rounds, records))
        return self._watching.notice(played), trouble

    def _apply(self, records: Sequence[m.Record]) -> tuple[Played, str]:
        """Return the next rounds, as their records say."""
        first = self.rounds
        if records[0].emptied:
            self.compute.empty_window()
            self._emptied = first
        if not records[0].embeddings.size:
            self.compute.skip(records[0].label)
            return Played(first, tuple(records), (_predicted(records[0], None),)), ""
        stepped = self.compute.step(
            np.stack([record.embeddings for record in records]),
            np.array([record.label for record in records], np.int32),
            records[0].factor,
        )
        trouble = ""
        if stepped.trouble:
            what = TROUBLES[stepped.trouble]
            trouble = f"the {what} is not finite in round {self.rounds + 1:,}: try a smaller learning rate"
        done = records[: self.rounds - first]
        self._events.extend(record.event for record in done)
        for i, record in enumerate(done):
            for c, seat in enumerate(self._seats):
                own = slice(self._starts[c], self._starts[c + 1])
                if not record.missing[c]:
                    newest = record.embeddings[..., own]
                    seat.history.push(first + i, newest if self._rows is None else newest[(first + i) % self._rows])
                if record.activated[c]:
                    value = stepped.derivatives[i][..., own].copy()  # else it would hold those of the whole block
                    sent = Sent(
                        before=seat.before,
                        applied=record.applied[c],
                        event=record.event,
                        value=value,
                        stored=record.stored,
                        factor=record.factor,
                        emptied=self._emptied > seat.before,
                    )
                    seat.push(first + i, sent)
        predictions = stepped.predictions[: len(done)].tolist()
        return Played(first, tuple(done), tuple(map(_predicted, done, predictions))), trouble

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values for a checkpoint: all that the rounds played have left behind."""
        arrays = {f"server/{name}": array for name, array in self.compute.arrays().items()}
        seats = []
        for client, seat in enumerate(self._seats, 1):
            held, values = seat.state()
            arrays |= {f"client {client}/{name}": array for name, array in held.items()}
            seats.append(values)
        recent = [[event.hex(), t] for event, t in self._recent.items() if t < self.rounds]
        events = [event.hex() for event in self._events]
        return arrays, {
            "rounds": self.rounds,
            "seats": seats,
            "recent": recent,
            "events": events,
            "emptied": self._emptied,
            "watch": self._unwatched if self.watch is None else self.watch.state(),
        }

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """The inverse of `state`, before the first round is opened.

        Raises:
            ValueError: where they are those of another model or update.
        """

        def of(prefix: str) -> dict[str, NDArray[Any]]:
            return {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}

        self.compute.restore(of("server/"), values["rounds"])
        for client, seat in enumerate(self._seats, 1):
            seat.restore(of(f"client {client}/"), values["seats"][client - 1])
        self._recent = {bytes.fromhex(event): t for event, t in values["recent"]}
        self._events.extend(bytes.fromhex(event) for event in values["events"])
        self._emptied = values["emptied"]
        self._unwatched = values["watch"]
        if self.watch is not None and self._unwatched is not None:
            self.watch.restore(self._unwatched)


def _predicted(record: m.Record, in_round: int | None) -> int | None:
    """Return the class that counts: where the label came later, the one that was predicted when the event happened."""
    match record.predicted:
        case m.NONE:
            return in_round
        case m.NOTHING:
            return None
    return record.predicted
