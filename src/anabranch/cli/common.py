"""What the commands share: exit codes, options, and errors as one message."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.environment import wrong_variable
from anabranch.errors import AnabranchError
from anabranch.interrupt import INTERRUPTED, NO_RESULT, OF_A_COMMAND, TERMINATED, Ending, Terminated, command
from anabranch.notes import error, note

WRONG, STOPPED, LOST = 2, 3, 4
"""Exit codes: something was wrong before training; training stopped at an error; a party of a federation has lost more
events than it may."""

UNUSABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that it does not even look at."""

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
def errors(notes: Console, ending: Ending = OF_A_COMMAND) -> Iterator[None]:
    """Within it, what goes wrong is one message and an exit code; a press of Ctrl-C ends the command in this way."""
    try:
        with command(ending):
            yield
    except (AnabranchError, KeyboardInterrupt) as problem:
        interrupted = isinstance(problem, KeyboardInterrupt)
        _say(notes, NO_RESULT if interrupted else str(problem))
        raise typer.Exit(interrupted_code(problem) if interrupted else WRONG) from None
    except (AssertionError, RuntimeError, ValueError) as problem:
        if (wrong := _of_jax(problem)) is None:
            raise
        _say(notes, str(wrong))
        raise typer.Exit(WRONG) from None
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            _say(notes, f"a disk is full, that of {problem.filename or 'the output'}: {problem.strerror}")
            raise typer.Exit(STOPPED) from None
        if problem.filename is not None and problem.errno in UNUSABLE:
            _say(notes, f"{problem.filename}: {problem.strerror}")
            raise typer.Exit(WRONG) from None
        raise


@contextmanager
def private_files() -> Iterator[None]:
    """Within it, files and folders that are made are their owner's alone: a party's have ids, inputs and parameters."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def import_jax(notes: Console) -> None:
    """Import JAX, which takes a second, with the programs that earlier commands have compiled."""
    from anabranch.environment import keep_programs

    if (why := keep_programs()) is not None:
        note(notes, why)


def interrupted_code(problem: BaseException) -> int:
    """Return the exit code of a KeyboardInterrupt."""
    return TERMINATED if isinstance(problem, Terminated) or getattr(problem, "terminated", False) else INTERRUPTED


def _of_jax(problem: Exception) -> AnabranchError | None:
    """What keeps JAX from beginning, where that is why a command has failed."""
    if isinstance(problem, ValueError):
        return wrong_variable(problem)
    if "jax" in sys.modules:
        from anabranch.core.compiling import check_devices

        try:
            check_devices()
        except AnabranchError as wrong:
            return wrong
    return None


def _say(notes: Console, text: str) -> None:
    try:
        error(notes, text)
    except OSError:  # where stderr is a file on a full disk; the exit code still says it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
