"""``anabranch server`` and ``anabranch client``: one party of a federation."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.common import LOST, STOPPED, errors, import_jax, private_files
from anabranch.errors import AnabranchError
from anabranch.interrupt import OF_A_PARTY
from anabranch.notes import error, note

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The party's file.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the party's status to stdout, a line twice a second.")]
ParentOption = Annotated[int | None, typer.Option("--with-parent", metavar="PID", hidden=True)]
"""Of the process that started it, where it should not outlive that one."""

SERVER_EXAMPLES = "Example:\n\nanabranch server server.toml"
CLIENT_EXAMPLES = "Example:\n\nanabranch client bank.toml"


def server(file: FileArgument, as_json: JsonOption = False, with_parent: ParentOption = None) -> None:
    """Run the server of a federation: it holds the labels and the top model.

    It may be stopped and started at any time, kill -9 included, and goes on where it was. At its end the files of
    'anabranch run' are in its folder. Exit codes: 0 the stream has ended, or it was stopped; 2 it cannot take part; 3
    training cannot go on; 4 not one label could be used, or more than 'most_lost' of its events were lost.
    """
    _run(file, server=True, as_json=as_json, with_parent=with_parent)


def client(file: FileArgument, as_json: JsonOption = False, with_parent: ParentOption = None) -> None:
    """Run one client of a federation: it holds features and a bottom model.

    It waits for the server, may be stopped and started at any time, kill -9 included, and goes on where it was. At
    its end its model and a result.json are in its folder. Exit codes: 0 the stream has ended, or it was stopped; 2 it
    cannot take part; 3 training cannot go on; 4 it could answer for no event, or lost more than 'most_lost'.
    """
    _run(file, server=False, as_json=as_json, with_parent=with_parent)


def _run(file: Path, *, server: bool, as_json: bool, with_parent: int | None) -> None:
    notes = Console(stderr=True)
    with errors(notes, OF_A_PARTY), private_files():
        import_jax(notes)
        from anabranch.display import notices
        from anabranch.federation.logs import structured
        from anabranch.parties import run_party as serve
        from anabranch.parties.federation_table import LiveTable

        live = LiveTable(notes) if notes.is_terminal and not as_json else None
        structured(logging.INFO, live)
        report = serve.print_json if as_json else live
        try:
            with notices(notes), live or nullcontext():
                ending = serve.serve(file, server=server, report=report, with_parent=with_parent)
        except AnabranchError as problem:
            if as_json:
                serve.print_json({"error": str(problem)})
            raise
        if as_json and ending.problem:
            serve.print_json({"error": ending.text})
        (error if ending.problem else note)(notes, ending.text)
        raise typer.Exit(STOPPED if ending.failed else LOST if ending.problem else 0)
