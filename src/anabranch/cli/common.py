"""What the commands share: exit codes, options, and errors as one message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.errors import AnabranchError

WRONG, STOPPED, INTERRUPTED = 2, 3, 130
"""Exit codes: something was wrong before training; training stopped at an error; Ctrl-C."""

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
        from anabranch.display import error

        if isinstance(problem, KeyboardInterrupt):
            error(notes, "interrupted before a result was written")
            raise typer.Exit(INTERRUPTED) from None
        error(notes, str(problem))
        raise typer.Exit(WRONG) from None
