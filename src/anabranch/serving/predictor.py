"""Predictions while the model learns: one question, as it comes over HTTP or NATS, and its answer.

A question goes through the code of a round's prediction (`anabranch.protocol.server.pending_predictions`). It never
changes the model.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from anabranch.errors import AnabranchError, ConnectError, DataError
from anabranch.federation.server import ServerParty
from anabranch.federation.tables import event_name
from anabranch.protocol.actions import Predicted
from anabranch.protocol.server.missing import HOW
from anabranch.storage.event_ids import HASH_BYTES, Names, entity_text

AT_ONCE = 256
"""So many questions are under way at most, beside those over NATS, of which each asker has its share."""
LARGEST = 16 * 1024
"""Bytes of a question; there is no use for a longer one."""
LONGEST = 1000
"""Letters of an event's or an entity's name in a question."""

SOONEST, LATEST = datetime(1900, 1, 1), datetime(2200, 1, 1)
"""Of which moments it may be asked."""

WHAT = ("event", "entity", "entity_hash")
"""What a question may be of."""
WRONG, MISSING, BUSY, AWAY = 400, 404, 429, 503


class NoPredictionError(AnabranchError):
    """There is none, and why."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
        """As HTTP has them: 400 where the question is wrong, 404 where no client knows the event, 429 where too many
        are asked, 503 where a client is away that the model cannot do without."""


class Predictor:
    """Answers questions for predictions.

    Args:
        party: the server, which must be running.
        names: makes an event's name of an entity and a time; None where events have names of their own only.
        of_times: whether events are of times alone, as with sensors.
    """

    def __init__(self, party: ServerParty, names: Names | None = None, *, of_times: bool = False) -> None:
        self.party, self._names, self._of_times = party, names, of_times
        self._under_way = 0
        self.answered = self.refused = 0
        """How many questions got a prediction, and how many did not."""
        self.on_answer: Callable[[float], None] = lambda seconds: None
        """Called with how long each prediction took."""

    async def __call__(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question.

        Args:
            question: ``{"event": NAME}``, a text (or the ``bytes`` of a name on the wire), or ``{"entity": ID}``,
                which may have a ``"time"`` (``"now"``, or ISO 8601 with its offset from UTC); without one it is now.
                ``{"entity_hash": HEX}`` is the same for whoever has the entity key and shows nobody the id. Where
                events are of times alone, ``{"time": TIME}``.

        Returns:
            ``prediction`` (the class), ``probabilities`` (of each class), ``round`` (how many are in the model),
            ``answered`` (names of clients), ``replaced`` (names of the others, and by what), ``milliseconds``.

        Raises:
            NoPredictionError: where there is none.
        """
        if self._under_way >= AT_ONCE:
            self.refused += 1
            raise NoPredictionError(f"{AT_ONCE} predictions are under way: ask again in a moment", BUSY)
        self._under_way += 1
        try:
            return await self._counted(question)
        finally:
            self._under_way -= 1

    async def _counted(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._answer(question)
        except NoPredictionError:
            self.refused += 1
            raise

    async def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        event = self._event(question)
        begun = time.perf_counter()
        try:
            found = await self.party.predict(event)
        except ConnectError as error:
            raise NoPredictionError(str(error), AWAY) from None
        answered = self._names_of(found, lambda client: not found.missing[client])
        if not answered:
            raise NoPredictionError("no client has features for this event, or all are away", MISSING)
        probabilities = found.probabilities
        if probabilities is None:
            away = self._names_of(found, lambda client: HOW[found.missing[client]] == "skip")
            raise NoPredictionError(
                f"there is no prediction without {', '.join(away)}, who is away or does not know this event", AWAY
            )
        seconds = time.perf_counter() - begun
        self.answered += 1
        self.on_answer(seconds)
        replaced = self._names_of(found, lambda client: found.missing[client] != 0)
        ways = [HOW[how] for how in found.missing if how]
        return {
            "prediction": found.prediction,
            "probabilities": [round(float(each), 6) for each in probabilities],
            "round": found.round,
            "answered": answered,
            "replaced": dict(zip(replaced, ways, strict=True)),
            "milliseconds": round(1000 * seconds, 3),
        }

    def _names_of(self, found: Predicted, which: Callable[[int], bool]) -> list[str]:
        names = self.party.link.credentials.clients
        clients = range(len(found.missing))
        return [names[i] if i < len(names) else f"client {i + 1}" for i in clients if which(i)]

    def _event(self, question: Mapping[str, Any]) -> bytes:
        wrong = [ascii(key)[1:-1][:60] for key in question if key not in (*WHAT, "time")]
        given = [key for key in WHAT if question.get(key) is not None]
        time = question.get("time")
        if wrong or len(given) > 1 or (not given and time is None):
            there = f"there is no '{wrong[0]}'" if wrong else "it has two of them" if given else "it has neither"
            raise NoPredictionError(
                "a question has an event or an entity, which may have a time; where events are of times alone, it has "
                f"a time: {there}",
                WRONG,
            )
        if given == ["event"]:
            if time is not None:
                raise NoPredictionError("a time goes with an entity, and this question has an event", WRONG)
            event = question["event"]
            return event if isinstance(event, bytes) else event_name(_text(question, "event"))
        if self._names is None:
            raise NoPredictionError("this federation has no entity key: ask by an event's name", WRONG)
        if self._of_times and given:
            raise NoPredictionError("events are of times alone here, and have no entity: ask for a time", WRONG)
        if not self._of_times and not given:
            raise NoPredictionError("events are of entities here: ask for an entity, at that time", WRONG)
        return self._names.of_hash(self._hash(self._names, question), _microseconds(time))

    @staticmethod
    def _hash(names: Names, question: Mapping[str, Any]) -> bytes:
        if question.get("entity_hash") is not None:
            text = _text(question, "entity_hash")
            if re.fullmatch(f"[0-9a-f]{{{2 * HASH_BYTES}}}", text) is None:
                raise NoPredictionError(f"entity_hash must be {2 * HASH_BYTES} digits of 0-9 and a-f", WRONG)
            return bytes.fromhex(text)
        try:
            return names.hash("" if question.get("entity") is None else entity_text(_text(question, "entity")))
        except DataError as error:
            raise NoPredictionError(str(error), WRONG) from None

    async def answer_json(self, raw: bytes) -> bytes:
        """Return the answer to a question of an asker as JSON, or ``{"error": .., "status": ..}``; it has no
        entity's id.

        Whoever calls it bounds how many are under way.
        """
        try:
            question = read_question(raw)
            if question.get("entity") is not None:
                self.refused += 1
                raise NoPredictionError(
                    "over NATS the broker sees what is asked, so a question has no entity's id: send its keyed hash as "
                    "'entity_hash' (anabranch predict: --entity-key FILE)",
                    WRONG,
                )
            return json.dumps(await self._counted(question)).encode()
        except NoPredictionError as error:
            return json.dumps({"error": str(error), "status": error.status}).encode()


def read_question(raw: bytes) -> dict[str, Any]:
    """Return a question as JSON.

    Raises:
        NoPredictionError: where it is none, or too long.
    """
    if len(raw) > LARGEST:
        raise NoPredictionError(f"a question has at most {LARGEST:,} bytes", WRONG)
    try:
        question = json.loads(raw)
    except (ValueError, RecursionError):
        question = None
    if not isinstance(question, dict):
        raise NoPredictionError('a question is an object of JSON, such as {"event": "order 17"}', WRONG)
    return question


def _text(question: Mapping[str, Any], key: str) -> str:
    value = question[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NoPredictionError(f"{key} is {value!r:.60}, but it must be a text", WRONG)
    text = str(value)
    if not text.strip() or len(text) > LONGEST:
        raise NoPredictionError(f"{key} has {len(text):,} letters, but it must have 1 to {LONGEST:,}", WRONG)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise NoPredictionError(f"{key} has half a letter in it (a surrogate), which no text has", WRONG)
    return text


def _microseconds(given: Any) -> int:
    """Since 1970."""
    if given in (None, "now"):
        return time.time_ns() // 1000
    try:
        moment = datetime.fromisoformat(given)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None or not SOONEST <= moment.replace(tzinfo=None) <= LATEST:
        raise NoPredictionError(
            f"time is {given!r:.60}, but it must be now, or a date and a time with its offset, such as "
            f"2026-11-28T12:00:00Z, from {SOONEST.year} to {LATEST.year}",
            WRONG,
        )
    return round(moment.timestamp() * 1_000_000)
