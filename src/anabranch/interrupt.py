"""Ctrl-C that does not tear a computation apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class Interruptible:
    """While it is entered, Ctrl-C only sets ``pressed``, and no sooner than the third raises KeyboardInterrupt.

    Within ``at_once()``, for waiting on a slow stream, the first one raises. Outside the main thread, and where
    the program handles Ctrl-C in its own way, nothing changes.
    """

    def __init__(self) -> None:
        self.pressed = 0
        """How often."""
        self._at_once = False
        self._installed = False

    def __enter__(self) -> Interruptible:
        own = threading.current_thread() is threading.main_thread()
        if own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it, Ctrl-C raises KeyboardInterrupt at once."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.pressed += 1
        if self._at_once or self.pressed >= 3:
            raise KeyboardInterrupt
