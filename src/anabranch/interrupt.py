"""Ctrl-C that does not tear a computation apart, and SIGTERM likewise where a command asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class Terminated(KeyboardInterrupt):
    """SIGTERM, within `terminable`."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within it, SIGTERM raises `Terminated`, as Ctrl-C raises KeyboardInterrupt.

    Outside the main thread, and where the program handles SIGTERM in its own way, nothing changes.
    """
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}


class Interruptible:
    """While it is entered, Ctrl-C only sets ``pressed``, and no sooner than the third raises KeyboardInterrupt.

    Within ``at_once()``, for waiting on a slow stream, the first one raises. SIGTERM is taken in the same way within
    `terminable`. Outside the main thread, and where the program handles Ctrl-C in its own way, nothing changes.
    """

    def __init__(self) -> None:
        self.pressed = 0
        """How often."""
        self.problem: type[KeyboardInterrupt] = KeyboardInterrupt
        """What the last one raises."""
        self._at_once = False
        self._installed: list[signal.Signals] = []

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            self._installed = [number for number, usual in _USUAL.items() if signal.getsignal(number) is usual]
            for number in self._installed:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in self._installed:
            signal.signal(number, _USUAL[number])

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
        self.problem = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._at_once or self.pressed >= 3:
            raise self.problem
