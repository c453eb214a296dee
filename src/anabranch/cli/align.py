"""``anabranch align``: how many entities two clients share, without either showing which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.common import errors

app = typer.Typer(help="Count the entities that two clients share, without either showing which.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A CSV or Parquet file.", show_default=False)]
ColumnArgument = Annotated[
    str, typer.Argument(metavar="COLUMN", help="Of it, with the entities' ids.", show_default=False)
]
KeyOption = Annotated[
    Path, typer.Option(metavar="FILE", help="The federation's entity key, as 'anabranch keys entity' makes it.")
]


@app.command(epilog="Example:\n\nanabranch align offer customers.csv id --key entity.key")
def offer(
    file: FileArgument,
    column: ColumnArgument,
    key: KeyOption,
    out: Annotated[Path, typer.Option(metavar="FILE", help="For the other side.")] = Path("offer.json"),
    secret: Annotated[Path, typer.Option(metavar="FILE", help="Stays here, until 'count'.")] = Path("offer.secret"),
) -> None:
    """Begin: make an offer for the other side.

    Exit codes: 0 done; 2 something is wrong.
    """
    with errors(Console(stderr=True)):
        from anabranch.sources import psi as align
        from anabranch.sources.file import entities_of
        from anabranch.storage.event_ids import Names, read_key

        entities = entities_of(file, column)
        align.offer(entities, Names(read_key(key)), out, secret)
        typer.echo(f"{out}: give it to the other side, who runs 'anabranch align answer'. {secret} stays here.")


@app.command(epilog="Example:\n\nanabranch align answer offer.json shoppers.csv id --key entity.key")
def answer(
    offered: Annotated[Path, typer.Argument(metavar="OFFER", help="The other side's.", show_default=False)],
    file: FileArgument,
    column: ColumnArgument,
    key: KeyOption,
    out: Annotated[Path, typer.Option(metavar="FILE", help="For the other side.")] = Path("answer.json"),
) -> None:
    """Answer the other side's offer.

    Exit codes: 0 done; 2 something is wrong.
    """
    with errors(Console(stderr=True)):
        from anabranch.sources import psi as align
        from anabranch.sources.file import entities_of
        from anabranch.storage.event_ids import Names, read_key

        align.answer(entities_of(file, column), Names(read_key(key)), offered, out)
        typer.echo(f"{out}: give it back to the side that made the offer, who runs 'anabranch align count'.")


@app.command(epilog="Example:\n\nanabranch align count answer.json")
def count(
    answered: Annotated[Path, typer.Argument(metavar="ANSWER", help="The other side's.", show_default=False)],
    secret: Annotated[Path, typer.Option(metavar="FILE", help="What 'offer' left here.")] = Path("offer.secret"),
) -> None:
    """Count what both sides have.

    Exit codes: 0 done; 2 something is wrong.
    """
    with errors(Console(stderr=True)):
        from anabranch.sources import psi as align

        found = align.count(answered, secret)
        order = "the same entities in the same order" if found.same_order else "not the same list, or in another order"
        typer.echo(f"{found.shared:,} entities are shared, of {found.here:,} here and {found.there:,} there; {order}.")
