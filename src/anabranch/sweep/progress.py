"""How far a sweep is, and how long it takes yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from anabranch.sweep.estimate import estimated_seconds, machine_factor
from anabranch.sweep.trial import Record, Trial


class SweepProgress(NamedTuple):
    """How far a sweep is."""

    done: int
    """Trials whose records are in the folder, those from before included."""
    running: int
    failed: int
    total: int
    seconds_left: float
    """An estimate: trials weigh as much as their rounds cost."""
    late: bool = False
    """Whether a trial under way takes longer than was estimated, so that it will be more than ``seconds_left``."""

    @property
    def over(self) -> bool:
        """Whether no trial is left."""
        return self.done + self.failed == self.total


class Book:
    """Keeps account of the trials of a sweep.

    Args:
        total: how many trials the sweep has.
        left: those that are not done, in the order in which they are begun.
    """

    def __init__(self, total: int, left: Sequence[Trial]) -> None:
        self._total = total
        self._left = {trial.key: estimated_seconds(trial.config) for trial in left}
        self._failed = 0
        self._jobs = 0
        self._since: dict[str, float] = {}
        self._estimated = self._taken = 0.0
        self._factor = machine_factor()
        self._lock = threading.Lock()

    def begun(self, jobs: int) -> None:
        """Trials are being run, so many at a time."""
        with self._lock:
            self._jobs = jobs
            self._begin()

    def ended(self, key: str, record: Record | None) -> None:
        """A trial came to this record, or failed."""
        with self._lock:
            estimated = self._left.pop(key)
            self._since.pop(key, None)
            if record is None:
                self._failed += 1
            else:
                self._estimated += estimated
                self._taken += record["wall_seconds"]
                self._factor = self._taken / self._estimated
            self._begin()

    def now(self) -> SweepProgress:
        """Return how far the sweep is at this moment."""
        with self._lock:
            clock = time.monotonic()
            elapsed = {key: clock - since for key, since in self._since.items()}
            late = any(each >= self._factor * self._left[key] for key, each in elapsed.items())
            factor = self._factor
            if not self._taken:  # until a trial is done, at least what those under way have taken already
                factor = max([factor, *(each / self._left[key] for key, each in elapsed.items())])
            seconds = {key: max(0.0, factor * each - elapsed.get(key, 0.0)) for key, each in self._left.items()}
            # All cores share the work, but no trial is shared.
            left = max([sum(seconds.values()) / max(self._jobs, 1), *seconds.values()])
            done = self._total - len(self._left) - self._failed
            return SweepProgress(done, len(self._since), self._failed, self._total, left, late)

    def _begin(self) -> None:
        """Those that are first in order are under way."""
        clock = time.monotonic()
        self._since = {key: self._since.get(key, clock) for key in list(self._left)[: self._jobs]}


@contextmanager
def told(book: Book, listener: Callable[[SweepProgress], None] | None) -> Iterator[Callable[[], None]]:
    """Within it, the listener hears how far the sweep is every second, and whenever what is yielded is called."""
    if listener is None:
        yield lambda: None
        return
    over, turn = threading.Event(), threading.Lock()

    def tell() -> None:
        with turn:
            listener(book.now())

    def keep_telling() -> None:
        while not over.wait(1):
            tell()

    teller = threading.Thread(target=keep_telling, daemon=True)
    teller.start()
    try:
        yield tell
    finally:
        over.set()
        teller.join()
