"""``anabranch predict``: a prediction of a federation that is learning."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from anabranch.cli.common import errors

EXAMPLES = (
    "Examples:\n\n"
    "anabranch predict http://127.0.0.1:8080 --event 'order 17'\n\n"
    "anabranch predict https://model.example.org --entity A-17 --token token.txt\n\n"
    "anabranch predict app/connection.toml --entity A-17 --entity-key entity.key --time 2026-11-28T12:00:00Z\n\n"
    "anabranch predict http://127.0.0.1:8080 --at now"
)


def predict(
    where: Annotated[
        str,
        typer.Argument(
            metavar="WHERE",
            help="The server's HTTP (http://.. or https://..), or the connection.toml of an asker.",
            show_default=False,
        ),
    ],
    event: Annotated[str | None, typer.Option(help="The event's name.", show_default=False)] = None,
    entity: Annotated[str | None, typer.Option(help="The entity's id.", show_default=False)] = None,
    time: Annotated[
        str | None, typer.Option(help="Of the entity's event, such as 2026-11-28T12:00:00Z.", show_default="now")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Where events are of times alone: now, or such as 2026-11-28T12:00:00Z.",
            show_default=False,
        ),
    ] = None,
    entity_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The federation's entity key: a keyed hash is sent instead of the id. Needed over NATS.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With the token of HTTP.", show_default=False)
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Whom to trust, for HTTPS.", show_default="the system's")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One's own, for HTTPS.", show_default=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Of the certificate.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Ask a running server what it predicts; nothing changes by it.

    Exit codes: 0 there is a prediction; 2 there is none, and it says why.
    """
    with errors(Console(stderr=True)):
        from anabranch.broker.credentials import Credentials
        from anabranch.errors import ConfigError
        from anabranch.serving import client as asking

        if sum(each is not None for each in (event, entity, at)) != 1:
            raise ConfigError(
                "name an event (--event NAME), an entity (--entity ID) or a time (--at TIME), one of them"
            )
        if time is not None and entity is None:
            raise ConfigError("--time goes with --entity; for a time alone there is --at TIME")
        given = {"event": event, "entity": entity, "time": at if time is None else time}
        question = {key: value for key, value in given.items() if value is not None}
        if entity_key is not None:
            question = asking.hidden(question, entity_key)
        if where.startswith(("http://", "https://")):
            answer = asking.ask_http(where, question, token=token, ca=ca, certificate=certificate, key=key)
        else:
            with _without_tls_noise():
                answer = asyncio.run(asking.ask_nats(Credentials.load(where), question))
        if as_json:
            typer.echo(json.dumps(answer))
        else:
            Console().print(_table(answer))


@contextmanager
def _without_tls_noise() -> Iterator[None]:
    """Within it, asyncio does not warn of how a connection with TLS ends."""
    from anabranch.federation.logs import NOISE

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(NOISE)

    log = logging.getLogger("asyncio")
    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)


def _table(answer: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    replaced = [f"{name} ({how})" for name, how in answer["replaced"].items()]
    classes = [f"{number}: {share:.4f}" for number, share in enumerate(answer["probabilities"])]
    for name, value in (
        ("prediction", str(answer["prediction"])),
        ("probabilities", ", ".join(classes)),
        ("rounds learnt", f"{answer['round']:,}"),
        ("answered", ", ".join(answer["answered"])),
        ("replaced", ", ".join(replaced) or "nobody"),
        ("took", f"{answer['milliseconds']:g} ms"),
    ):
        table.add_row(name, value)
    return table
