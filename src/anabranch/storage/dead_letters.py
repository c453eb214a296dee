"""Messages that could not be used, kept for a person to look at, with the reason."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

from anabranch.storage.files import writing
from anabranch.storage.times import text_of

MOST = 10_000
"""So many are kept."""
LONGEST = 16 * 1024
"""So many bytes of each; what a person needs to see is at its beginning."""


class Aside:
    """A file with a line of JSON for each message that was kept aside: the beginning of one that is long.

    Args:
        path: of the file.
        most: how many lines it may have; further messages are not kept.
        clock: seconds since 1970.

    Raises:
        OutputError: where it cannot be read.
    """

    def __init__(self, path: Path, most: int = MOST, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._most, self._clock = most, clock
        self._lines = 0
        with writing("messages kept aside", path.parent):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists():
                with path.open("rb") as file:
                    self._lines = sum(1 for _ in file)

    def put(self, subject: str, payload: bytes, reason: str) -> bool:
        """Keep a message; false where there are too many.

        Raises:
            OutputError: where it cannot be written.
        """
        if self._lines >= self._most:
            return False
        line = {
            "at": text_of(int(self._clock() * 1e6)),
            "subject": subject,
            "reason": reason,
            "bytes": len(payload),
            "payload": base64.b64encode(payload[:LONGEST]).decode(),
        }
        with writing("messages kept aside", self.path.parent):
            self.path.touch(mode=0o600)  # they hold ids
            with self.path.open("ab") as file:
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._lines += 1
        return True
