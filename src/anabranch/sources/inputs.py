"""A client's features for an event: looked up until somebody knows of it, made by the declared rules, and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import AwayError, CheckpointError, DataError
from anabranch.sources.base import Notes
from anabranch.sources.features import Features, State
from anabranch.storage.event_ids import Names
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.times import text_of

LACKING = 10_000
"""So many events without features are remembered, so that each of them counts once."""
Found: TypeAlias = Mapping[str, Any] | AwayError | None
"""The values of an event, or why the source cannot say now; None where it has none."""


def note_crowded_out(notes: Notes, kept: KeptInputs, advice: str) -> None:
    """Note each input that had to go though its label may come, and say what to do about it."""
    for _ in range(kept.crowded_out - notes["crowded out"]):
        notes.note(
            "crowded out",
            "the features of an event that waits for its label had to go, since too many are kept: it is not learnt "
            f"from here; {advice}",
        )


class Inputs:
    """The features of events, by their names.

    Args:
        look: the values of an event, as a source has them now; None where it has none. It raises an AwayError where
            the source cannot say.
        features: what is made of them.
        kept: what was looked up before, and with it the state of the features.

    Raises:
        CheckpointError: where what is kept is of other features.
    """

    def __init__(self, look: Callable[[bytes], Mapping[str, Any] | None], features: Features, kept: KeptInputs) -> None:
        self.counts: Counter[str] = Counter()
        """How often an event had no features, by why."""
        self._look, self._features, self._kept = look, features, kept
        self._notes = Notes(self.counts, "features")
        self._state = self._restored()
        self._lacking: dict[bytes, bool] = {}
        """The last events that had no features, and whether that is since a value of them cannot be used."""
        self._ahead: dict[bytes, Found] = {}
        """What a source had for some events, looked up before they are asked for."""

    def _restored(self) -> State:
        begin = self._features.begin()
        held = self._kept.state()
        if held is None:
            return begin
        schema, numbers = held[:16], held[16:]
        if schema != self._features.schema.encode() or len(numbers) != begin.nbytes:
            raise CheckpointError(
                f"{self._kept.path}: was kept with other features ({schema.decode(errors='replace')} there, "
                f"{self._features.schema} here): give the columns that it was made with, or name another folder"
            )
        return np.frombuffer(numbers).reshape(begin.shape).copy()

    def lacking(self, events: Iterable[bytes]) -> list[bytes]:
        """Return those of the events that a source would be asked for, each once.

        Raises:
            CheckpointError, OutputError: where what is kept cannot be read.
        """
        return [event for event in dict.fromkeys(events) if self._kept.get(event) is None]

    def look_ahead(self, events: Iterable[bytes]) -> dict[bytes, Found]:
        """What the source has for these events; where the source is slow, another thread may call it."""
        return {event: self._found(event) for event in events}

    def _found(self, event: bytes) -> Found:
        try:
            return self._look(event)
        except AwayError as error:
            return error

    @contextmanager
    def knowing(self, ahead: Mapping[bytes, Found]) -> Iterator[None]:
        """Meanwhile the source is not asked for these events, of which this is known."""
        self._ahead |= ahead
        try:
            yield
        finally:
            for event in ahead:
                self._ahead.pop(event, None)

    def _values(self, event: bytes) -> Mapping[str, Any] | None:
        """
        Raises:
            AwayError: where the source cannot say now.
        """
        found = self._ahead[event] if event in self._ahead else self._found(event)
        if isinstance(found, AwayError):
            raise found
        return found

    def expire(self) -> int:
        """Let go of inputs that are too old; return how many that were.

        Raises:
            CheckpointError, OutputError: where what is kept cannot be read or written.
        """
        gone = self._kept.expire()
        self.counts["expired"] += gone
        return gone

    def noted(self) -> Counter[str]:
        """`counts`, and among them the inputs that had to go though their labels may come; the first is said."""
        note_crowded_out(self._notes, self._kept, "let `kept` be no less than the server's `most`")
        return self.counts

    def peek(self, event: bytes) -> NDArray[np.float32] | None:
        """As `look`, for an event that nothing will be learnt of: nothing is kept, counted or moved on.

        Raises:
            CheckpointError, OutputError: where what is kept cannot be read.
        """
        held = self._kept.get(event)
        if held is not None:
            return held[0]
        try:
            values = self._values(event)
        except AwayError:
            return None
        try:
            return None if values is None else self._features(self._state, values)[1]
        except DataError:
            return None

    def look(self, event: bytes) -> NDArray[np.float32] | None:
        """Return the features (d,) of an event; None where there are none or the source cannot say, or where a
        value is not one that the rules take.

        Raises:
            CheckpointError, OutputError: where what is kept cannot be read or written.
        """
        held = self._kept.get(event)
        if held is not None:
            return held[0]
        try:
            made = self._made(event)
        except AwayError:
            self.counts["away"] += 1
            return None
        return None if made is None else self._keep(event, *made[1:])

    def read(self, event: bytes) -> tuple[Mapping[str, Any], NDArray[np.float32]] | None:
        """Return the values and the features (d,) of an event that a reading has just come of; None as for `look`.

        Until somebody else knows of the event, its features are those of its last reading.

        Raises:
            AwayError: where the source cannot say now: nothing is known of the reading then.
            CheckpointError, OutputError: where what is kept cannot be read or written.
        """
        held, made = self._kept.get(event), self._made(event)
        if made is None:
            return None
        values, state, x = made
        if held is None:
            return values, self._keep(event, state, x)
        return values, x if self._kept.renew(event, x) else held[0]  # the running means have the event already

    def _made(self, event: bytes) -> tuple[Mapping[str, Any], State, NDArray[np.float32]] | None:
        """What is made of an event as it is now."""
        values = self._values(event)
        if values is None:
            if self._is_new(event, unusable=False):
                self.counts["unknown"] += 1
            return None
        try:
            return values, *self._features(self._state, values)
        except DataError as error:
            if self._is_new(event, unusable=True):
                time = Names.read(event)
                of = "" if time is None else f" of {text_of(time[1])}"
                text = f"an event{of} counts as unknown here, since a value of it is unusable: {error}"
                self._notes.note("unusable", text)
            return None

    def _is_new(self, event: bytes, *, unusable: bool) -> bool:
        """Remember that an event has no features; return whether that was not known, as the server may ask again."""
        new = self._lacking.get(event) is not unusable
        self._lacking[event] = unusable
        if len(self._lacking) > LACKING:
            del self._lacking[next(iter(self._lacking))]
        return new

    def is_unusable(self, event: bytes) -> bool:
        """Return whether an event had no features when they were last made, since a value of it cannot be used."""
        return self._lacking.get(event, False)

    def _keep(self, event: bytes, state: State, x: NDArray[np.float32]) -> NDArray[np.float32]:
        self._kept.put(event, x, None, state=self._features.schema.encode() + state.tobytes())
        self._state = state
        return x
