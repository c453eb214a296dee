"""``anabranch check``: what a party or a run would read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.cli.common import WRONG, errors, import_jax

if TYPE_CHECKING:
    from anabranch.parties.check.findings import Findings, Shared

EXAMPLES = (
    "Examples:\n\nanabranch check bank.toml\n\nanabranch check server.toml bank.toml shop.toml\n\n"
    "anabranch check run.toml --json"
)
MOST_COLUMNS, MOST_FEATURES, MOST_CLASSES = 30, 4, 20
"""Lines of the columns' table, features of a row, and classes that are shown; --json has all."""
_WIDTH = 80

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="The file of a server, a client or a run; several of one federation are compared.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")]


def check(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Read the data of a party or a run and show what is in them; change nothing.

    It shows rows of the data, so it is for a person's own terminal. It needs no broker. Exit codes: 0 a start would
    take the files; 2 it would refuse one, for the reason shown.
    """
    notes = Console(stderr=True)
    with errors(notes):
        import_jax(notes)
        from anabranch.notes import error
        from anabranch.parties.check import check_files

        found, shared, wrong = check_files(files)
        if as_json:
            told = {
                "files": [asdict(each) for each in found],
                "shared": [asdict(each) for each in shared],
                "errors": [str(each) for each in wrong],
            }
            typer.echo(json.dumps(told))
        else:
            _show(found, shared)
            for each in wrong:
                error(notes, str(each))
        if wrong:
            raise typer.Exit(WRONG)


def _show(found: list[Findings], shared: list[Shared]) -> None:
    console = Console(highlight=False)
    for each in found:
        console.print(Text.assemble((each.file, "bold"), f": {each.party}"), soft_wrap=True)
        console.print(_facts(each))
        if each.columns:
            console.print(_columns(each))
        if each.samples:
            console.print(_samples(each))
        for note in each.notes:
            console.print(Text.assemble(("Note: ", "yellow"), note))
        console.print()
    if shared:
        console.print(_shared(shared))
        for client in shared:
            if client.problem:
                console.print(Text.assemble(("Note: ", "yellow"), f"{client.client}: {client.problem}"))


def _facts(found: Findings) -> Table:
    rows = [("data", found.data), ("rows", f"{found.rows:,}{'' if found.complete else ', the first ones'}")]
    if found.events != found.rows:
        rows.append(("events", f"{found.events:,}"))
    if found.entities is not None:
        rows.append(("entities", f"{found.entities:,}"))
    if found.first is not None:
        rows.append(("times", f"{found.first} to {found.last}"))
    if found.label_delay is not None:
        ends = dict.fromkeys(map(_duration, found.label_delay))
        rows.append(("label delay", f"{' to '.join(ends)} after the event"))
    if found.classes is not None:
        shown = [f"{name}: {n:,}" for name, n in [*found.classes.items()][:MOST_CLASSES]]
        more = len(found.classes) - MOST_CLASSES
        rows.append(("labels", ", ".join([*shown, *([f"and {more:,} more classes"] if more > 0 else [])])))
    if found.features:
        rows.append(("features", f"{len(found.features):,}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _duration(seconds: float) -> str:
    return f"{seconds / 86_400:,.1f} days" if abs(seconds) >= 172_800 else f"{seconds:,.6g} s"


def _columns(found: Findings) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=_WIDTH)
    for heading, ratio in (("column", 4), ("type", 3), ("missing", None), ("range or values", 5), ("use", 6)):
        table.add_column(heading, ratio=ratio, overflow="fold", no_wrap=heading == "missing")
    used = sorted(found.columns, key=lambda each: each.use == "not used")
    for each in used[:MOST_COLUMNS]:
        table.add_row(*map(_cell, (each.name, each.kind, f"{each.missing:.1%}", _range(each), each.use)))
    if len(used) > MOST_COLUMNS:
        table.add_row(f"and {len(used) - MOST_COLUMNS:,} more", "", "", "", "--json has all")
    return table


def _range(column: Any) -> str:
    parts = (
        [] if column.low is None else [f"{column.low} to {column.high}" if column.low != column.high else column.low]
    )
    if column.values:
        parts += [f"{value} ({n:,})" for value, n in [*column.values.items()][:3]]
        parts += ["…"] if len(column.values) > 3 else []
    return ", ".join(parts)


def _samples(found: Findings) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="rows as features", title_justify="left", width=_WIDTH)
    has_time = any(each.time for each in found.samples)
    has_entity = any(each.entity for each in found.samples)
    if has_time:
        is_row = any(each.time.startswith("row") for each in found.samples)
        table.add_column("" if is_row else "time, UTC", no_wrap=True)
    if has_entity:
        table.add_column("entity", overflow="fold")
    shown = found.features[:MOST_FEATURES]
    for name in shown:
        table.add_column(_cell(name), justify="right", overflow="fold")
    if len(found.features) > len(shown):
        table.add_column(f"{len(found.features) - len(shown):,} more", justify="right")
    for each in found.samples:
        begin = [
            _cell(text)
            for text, there in ((each.time.removesuffix(" UTC"), has_time), (each.entity, has_entity))
            if there
        ]
        if each.features is None:
            table.add_row(*begin, Text("none", "yellow"))
        else:
            more = ["…"] if len(found.features) > len(shown) else []
            table.add_row(*begin, *(f"{x:.3g}" for x in each.features[: len(shown)]), *more)
    return table


def _shared(shared: list[Shared]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="what the labels share", title_justify="left", width=_WIDTH
    )
    table.add_column("client", overflow="fold")
    for heading in ("labels", "of its own events", "found when looked up", "entities of both"):
        table.add_column(heading, justify="right")
    for each in shared:
        of = f"{each.found:,} of {each.looked_up:,}" if each.looked_up else "0"
        entities = "" if each.entities is None else f"{each.entities:,}"
        table.add_row(each.client, f"{each.labels:,}", f"{each.same_event:,}", of, entities)
    return table


def _cell(text: str) -> Text:
    """Return a text of the data, in which rich looks for no marks of its own."""
    shown = text if len(text) <= 60 else text[:59] + "…"
    return Text("".join(each if each.isprintable() else "�" for each in shown))
