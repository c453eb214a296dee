"""``anabranch report``: one HTML page of all results in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.common import errors

EXAMPLES = "Examples:\n\nanabranch report runs\n\nanabranch report results/paper --out paper.html"


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of results of reproduce, sweep, run, parties.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page.", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Make one HTML page of all results in a folder; it opens without a network.

    Exit codes: 0 done; 2 there are no results, or one of them is damaged, and nothing was written.
    """
    with errors(Console(stderr=True)):
        from anabranch.report import report as write
        from anabranch.report.formats import megabytes

        page = write(folder, out)
        typer.echo(f"{page} ({megabytes(page.stat().st_size):.1f} MB)")
