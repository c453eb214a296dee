"""Structured logs: one line of JSON for a thing that matters, with the party and the round."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, party, round where one is known, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line.

        >>> line = JsonLines().format(logging.makeLogRecord({"msg": "here", "levelname": "INFO", "party": "bank"}))
        >>> json.loads(line)["party"], json.loads(line)["message"]
        ('bank', 'here')
        """
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "party": getattr(record, "party", None),
            "round": getattr(record, "round", None),
            "message": record.getMessage(),
        }
        return json.dumps({key: value for key, value in values.items() if value is not None}, ensure_ascii=False)


def structured(level: int) -> None:
    """Lets the log of this process go to stderr, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("anabranch")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
