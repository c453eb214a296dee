"""The command line, a module for each command."""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from anabranch.cli import align, check, keys, party, predict, report, reproduce, run, show, sweep, up

app = typer.Typer(
    name="anabranch",
    help="Event-driven online vertical federated learning: several parties hold different features, a server holds "
    "the labels, and they train one model while the data streams in.",
    epilog="Begin with: anabranch run imnist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=run.EXAMPLES)(run.run)
app.command(epilog=sweep.EXAMPLES)(sweep.sweep)
app.command(epilog=show.EXAMPLES)(show.show)
app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=up.EXAMPLES)(up.up)
app.command(epilog=party.SERVER_EXAMPLES)(party.server)
app.command(epilog=party.CLIENT_EXAMPLES)(party.client)
app.command(epilog=check.EXAMPLES)(check.check)
app.command(epilog=predict.EXAMPLES)(predict.predict)
app.add_typer(keys.app, name="keys")
app.add_typer(align.app, name="align")


@app.callback(invoke_without_command=True)
def _about(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(f"anabranch {version('anabranch')}")
        raise typer.Exit


def main() -> None:
    """The command ``anabranch``."""
    # Pictures go to files. A wrong back end would keep Matplotlib from being imported, when a run is over, and where it
    # keeps its fonts concerns nobody.
    os.environ.pop("MPLBACKEND", None)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a sign shows another, and nothing breaks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="anabranch")
