"""What the commands share: exit codes, options, and errors as one message."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.errors import AnabranchError
from anabranch.interrupt import Terminated

WRONG, STOPPED, LOST, INTERRUPTED, TERMINATED = 2, 3, 4, 130, 143
"""Exit codes: something was wrong before training; training stopped at an error; a party of a federation has lost more
events than it may; Ctrl-C; SIGTERM, where that is taken like Ctrl-C."""

UNUSABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that it does not even look at."""
NO_RESULT = "interrupted before a result was written"

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A preset (imnist, susy or higgs), a configuration file (.toml), or the result of an earlier run "
        "(result.json or its folder).",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as update.window=50 or update.name=SLR; may be given again.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the stream's data files.", show_default="ANABRANCH_DATA"),
]
JobsOption = Annotated[int | None, typer.Option(help="Trials at a time.", show_default="one a core")]
BackendOption = Annotated[str, typer.Option(metavar="NAME", help="loky (this machine), ray or dask.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Of the Ray or Dask cluster, such as 10.0.0.1:8786.", show_default=False)
]


@contextmanager
def errors(notes: Console) -> Iterator[None]:
    """Within it, what goes wrong is one message and an exit code."""
    try:
        yield
    except (AnabranchError, KeyboardInterrupt) as problem:
        interrupted = isinstance(problem, KeyboardInterrupt)
        _say(notes, NO_RESULT if interrupted else str(problem))
        raise typer.Exit(interrupted_code(problem) if interrupted else WRONG) from None
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            _say(notes, f"a disk is full, that of {problem.filename or 'the output'}: {problem.strerror}")
            raise typer.Exit(STOPPED) from None
        if problem.filename is not None and problem.errno in UNUSABLE:
            _say(notes, f"{problem.filename}: {problem.strerror}")
            raise typer.Exit(WRONG) from None
        raise


def interrupted_code(problem: BaseException) -> int:
    """Return the exit code of a KeyboardInterrupt."""
    return TERMINATED if isinstance(problem, Terminated) or getattr(problem, "terminated", False) else INTERRUPTED


@contextmanager
def loading(said: str = f"Error: {NO_RESULT}", code: int = INTERRUPTED) -> Iterator[None]:
    """Within it, Ctrl-C ends the process at once, until an event loop takes over.

    In the middle of an import it would come out as any other error, and JAX, which is called back now and then while
    it compiles, would lose it.

    Args:
        said: what a person then reads.
        code: the exit code.
    """

    def end(number: int, frame: object) -> None:
        os.write(2, f"{said}\n".encode())
        os._exit(code)

    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _say(notes: Console, text: str) -> None:
    from anabranch.display import error

    try:
        error(notes, text)
    except OSError:  # where stderr is a file on a full disk; the exit code still says it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
