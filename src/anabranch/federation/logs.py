"""Structured logs: one line of JSON for a thing that matters, with the party and the round."""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

LONGEST = 2000
"""Characters of a message; what another party gave as its reason may be longer."""
EVERY = 10.0
"""Seconds in which what happens again and again is said once, and then how often."""
NOISE = "returning true from eof_received() has no effect when using ssl"
"""What asyncio warns of whenever a broker with TLS hangs up; nobody can do anything about it."""


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, party, round where one is known, and the message."""

    party: str | None = None
    """Of a record that does not say whose it is."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line.

        >>> line = JsonLines().format(logging.makeLogRecord({"msg": "here", "levelname": "INFO", "party": "bank"}))
        >>> json.loads(line)["party"], json.loads(line)["message"]
        ('bank', 'here')
        """
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "party": getattr(record, "party", self.party),
            "round": getattr(record, "round", None),
            "message": printable(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            values["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps({key: value for key, value in values.items() if value is not None}, ensure_ascii=False)


def printable(text: str) -> str:
    r"""Return a text of bounded length with nothing in it that moves a cursor or ends a line.

    >>> printable("no:\x1b[2J\u2028Größe")
    'no:\\x1b[2J\\u2028Größe'
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} ... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class Repeats:
    """Says the first of things that are alike at once, and of those that follow soon the last one and how many.

    Args:
        say: called with the level and the text of what is said.
        every: seconds between two of a kind.

    >>> repeats = Repeats(lambda level, text: print(text))
    >>> for second in range(4):
    ...     repeats.tell("garbage", logging.WARNING, "no message", float(second))
    no message
    >>> repeats.flush(repeats.due())
    no message (3 like this in 10 s)
    """

    def __init__(self, say: Callable[[int, str], None], every: float = EVERY) -> None:
        self._say, self._every = say, every
        self._held: dict[Hashable, _Held] = {}

    def tell(self, kind: Hashable, level: int, text: str, now: float, count: int = 1, at_once: int = 1) -> None:
        """Something of a kind has happened.

        Args:
            kind: of what is alike.
            level: of logging.
            text: of this one.
            now: by the monotonic clock.
            count: how often.
            at_once: how many of a kind are said before those that follow soon wait.
        """
        held = self._held.get(kind)
        if held is None or held.until <= now:
            self.flush(now)
            held = self._held.get(kind)
        if held is None:
            held = self._held[kind] = _Held(now + self._every)
        if held.said < at_once:
            held.said += 1
            self._say(level, text)
        else:
            held.count, held.level, held.text = held.count + count, level, text

    def due(self) -> float:
        """When `flush` has something to say."""
        return min((held.until for held in self._held.values() if held.count), default=math.inf)

    def flush(self, now: float) -> None:
        """Say what has waited long enough."""
        for kind, held in [*self._held.items()]:
            if held.until > now:
                continue
            if not held.count:
                del self._held[kind]
                continue
            # One alone says so too, since it is of a while ago.
            self._say(held.level, f"{held.text} ({held.count:,} like this in {self._every:g} s)")
            held.until, held.count = (now if math.isfinite(now) else held.until) + self._every, 0


@dataclass
class _Held:
    """What was said lately, and what has happened since."""

    until: float
    said: int = 0
    count: int = 0
    level: int = logging.WARNING
    text: str = ""


def name_party(party: str) -> None:
    """From now on, the lines of this process that do not say whose they are, are this party's."""
    for handler in logging.getLogger("anabranch").handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.party = party


def structured(level: int, stream: SupportsWrite[str] | None = None) -> None:
    """Let the log of this process go to stderr, as lines of JSON; of what is beneath it, only warnings.

    Args:
        level: of the least that is logged.
        stream: takes the lines instead of stderr.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(lambda record: not record.getMessage().startswith(NOISE))
    for name, least in (("anabranch", level), ("asyncio", logging.WARNING), ("nats", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False
