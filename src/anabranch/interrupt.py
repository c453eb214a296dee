"""Ctrl-C and SIGTERM: one handler takes both, and one reaction at a time says what a press does.

==================  ==========================================================================================
reaction            a press
==================  ==========================================================================================
of a command        ends the process at once with one line and the command's exit code, as long as there is
                    nothing to keep; it is only counted afterwards
`Interruptible`     is only counted
`at_once`           raises KeyboardInterrupt, or `Terminated`
`calling`           calls a function, such as one that makes a party leave
`held`              waits until a file is written
==================  ==========================================================================================

The innermost reaction holds. The third press that nobody has seen ends a command at once, whatever the reaction is.
Outside a command only Ctrl-C is taken, and only where Python's own handler is set. Outside the main thread nothing
changes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes of a command that Ctrl-C or SIGTERM has ended."""
MOST = 3
"""The third press is the last that is taken."""

_USUAL: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
_ALL = tuple(_USUAL)

Reaction = Callable[[int], object]


class Terminated(KeyboardInterrupt):
    """SIGTERM in a command."""


class Ending(NamedTuple):
    """The last words and the exit codes of a command that a press ends."""

    said: str
    at_once: str
    """The last words at the third press."""
    codes: Mapping[int, int]


NO_RESULT = "interrupted before a result was written"
OF_A_COMMAND = Ending(
    f"Error: {NO_RESULT}",
    "Error: interrupted at once, without what was still to be written",
    {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED},
)
OF_A_PARTY = Ending(
    "Note: left", "Note: left at once, without a last checkpoint", {signal.SIGINT: 0, signal.SIGTERM: 0}
)
"""As a party ends that a press makes leave later."""

_reactions: list[Reaction] = []
_presses: list[int] = []
_seen = 0
"""The number of presses that the command has noticed."""
_cleanings: list[Callable[[], None]] = []
_ending: Ending | None = None
_keeps = False


def begin(ending: Ending) -> None:
    """Take the presses of this process from now on, which is a command's."""
    global _ending
    _ending = ending
    _reactions.append(_of_command)
    for number, usual in _USUAL.items():
        if signal.getsignal(number) is usual:  # else it is ignored, or somebody else's
            signal.signal(number, _handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)  # who has started this process may have blocked them


def finish() -> None:
    """Keep all that the command has done: a press while the process ends changes nothing any more."""
    global _keeps
    _keeps = True


@contextmanager
def command(ending: Ending = OF_A_COMMAND) -> Iterator[None]:
    """Within it, presses are a command's; for one that is called from Python, which `begin` was not called for."""
    global _ending, _keeps, _seen
    if _ending is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _ending, _seen = ending, len(_presses)
    try:
        with _reacting(_of_command, _ALL):
            yield
    finally:
        _ending, _keeps = None, False


@contextmanager
def cleaning(clean: Callable[[], None]) -> Iterator[None]:
    """Within it, a press that ends the process calls this first."""
    _cleanings.append(clean)
    try:
        yield
    finally:
        _cleanings.remove(clean)


class Interruptible:
    """While it is entered, a press is only counted, and no sooner than the third raises KeyboardInterrupt.

    In a command, those before it count too that nobody has seen.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._within: AbstractContextManager[None] = _reacting(self._count)

    @property
    def pressed(self) -> int:
        """The number of presses; they are seen now."""
        global _seen
        if self._first is None:
            return 0
        _seen = len(_presses)
        return _seen - self._first

    @property
    def problem(self) -> type[KeyboardInterrupt]:
        """The exception of the last press."""
        return _problem(_presses[-1])

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            _keep()
            self._first = len(_presses) if _ending is None else _seen
        self._within.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._within.__exit__(None, None, None)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it, and at its beginning, a press raises KeyboardInterrupt: for waiting on a slow stream."""
        with _reacting(_raise):
            if self.pressed:
                raise self.problem
            yield

    def _count(self, number: int) -> None:
        if _ending is None and self._first is not None and len(_presses) - self._first >= MOST:
            raise _problem(number)


@contextmanager
def calling(function: Callable[[int], object]) -> Iterator[None]:
    """Within it, in a command, a press calls the function with its number, between any two steps of the main thread."""
    _keep()
    with _reacting(function):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Within it, a press waits, so that a file that is being written is not left behind in part."""
    waiting: list[int] = []
    if not _reactions:
        yield
        return
    try:
        with _reacting(waiting.append, ()):
            yield
    finally:
        for number in waiting[:1]:
            _reactions[-1](number)


@contextmanager
def blocked() -> Iterator[None]:
    """Within it, the system holds presses back from this thread, and for good from all that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(number: int, frame: FrameType | None) -> None:
    _presses.append(number)
    if _ending is not None and len(_presses) - _seen >= MOST:
        _end(_ending.at_once, _ending, number)
    _reactions[-1](number)


@contextmanager
def _reacting(reaction: Reaction, numbers: tuple[signal.Signals, ...] = (signal.SIGINT,)) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _reactions.append(reaction)
    taken = [number for number in numbers if signal.getsignal(number) is _USUAL[number]]
    for number in taken:
        signal.signal(number, _handle)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, _USUAL[number])
        _reactions.remove(reaction)


def _keep() -> None:
    global _keeps
    _keeps = _ending is not None


def _of_command(number: int) -> None:
    if _ending is not None and not _keeps:
        _end(_ending.said, _ending, number)


def _end(said: str, ending: Ending, number: int) -> NoReturn:
    """End the process at once: a KeyboardInterrupt in the middle of an import comes out as any error, and is lost
    where JAX calls back while it compiles."""
    clear = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""  # the bar, and a cursor that it has hidden
    with suppress(OSError):
        os.write(2, f"{clear}{said}\n".encode())
    for clean in reversed(_cleanings):
        clean()
    os._exit(ending.codes[number])


def _problem(number: int) -> type[KeyboardInterrupt]:
    return Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _raise(number: int) -> NoReturn:
    raise _problem(number)
