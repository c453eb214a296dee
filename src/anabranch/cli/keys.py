"""``anabranch keys``: who may take part in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.common import errors

INIT_EXAMPLES = (
    "Examples:\n\n"
    "anabranch keys init keys --server nats.example.org --clients bank,shop\n\n"
    "anabranch keys init keys --server 10.0.0.5 --clients bank,shop --federation fraud --port 4333"
)
RENEW_EXAMPLES = "Examples:\n\nanabranch keys renew keys bank\n\nanabranch keys renew keys broker --days 90"
PASSWORD_EXAMPLES = "Example:\n\nanabranch keys password bank/connection.toml"
ENTITY_EXAMPLES = "Example:\n\nanabranch keys entity entity.key"

app = typer.Typer(help="Make and renew the keys of a federation.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Of all keys.", show_default=False)]
DaysOption = Annotated[int, typer.Option(help="How long the certificates are valid.")]


@app.command(epilog=INIT_EXAMPLES)
def init(
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Where the nats-server is: a name or an address by which all parties reach it; several, divided by "
            "commas, where it is a cluster.",
            show_default=False,
        ),
    ],
    clients: Annotated[
        str, typer.Option(metavar="NAMES", help="The clients' names, divided by commas, in order.", show_default=False)
    ],
    folder: FolderArgument = Path("keys"),
    askers: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Those that may ask for predictions and do nothing else, divided by commas.",
            show_default="nobody",
        ),
    ] = "",
    federation: Annotated[str, typer.Option(metavar="NAME", help="The federation's name.")] = "federation",
    port: Annotated[int, typer.Option(help="Of the nats-server.")] = 4222,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="On which address it listens.")] = "0.0.0.0",
    days: DaysOption = 365,
) -> None:
    """Make the keys of a federation: a folder for each party, to be handed over, and one for the nats-server.

    Each party gets a certificate, an NKey and a connection.toml. The nats-server gets a certificate and a configuration
    with TLS, in which each client may publish as itself and read what is for it, and nothing else. The folder is keys
    where none is named; nothing is overwritten.

    Exit codes: 0 done; 2 something is wrong, and nothing was made.
    """
    notes = Console(stderr=True)
    with errors(notes):
        from anabranch.broker import keys

        names, others = _list(clients), _list(askers)
        keys.init(folder, federation, _list(server), names, askers=others, port=port, listen=listen, days=days)
        typer.echo("\n".join(_made(folder, _list(server), names, others, days)))


@app.command(epilog=RENEW_EXAMPLES)
def renew(
    folder: FolderArgument,
    party: Annotated[
        str, typer.Argument(metavar="PARTY", help="A client's name, server or broker.", show_default=False)
    ],
    days: DaysOption = 365,
) -> None:
    """Make a new certificate for a party's key, in the folder that has the authority.

    Exit codes: 0 done; 2 something is wrong, and the old certificate is as it was.
    """
    notes = Console(stderr=True)
    with errors(notes):
        from anabranch.broker import keys
        from anabranch.broker.credentials import read_certificates

        path = keys.renew(folder, party, days=days)
        until = read_certificates(path)[0].not_valid_after_utc
        then = (
            "tell the nats-server (nats-server --signal reload)"
            if party == "broker"
            else f"restart the {party}"
            if party == "server"
            else (f"restart {party}'s client")
        )
        typer.echo(
            f"{path}: valid until {until:%Y-%m-%d}. Put it in the place of the old one, and {then}. The key, the NKey "
            "and all other files stay."
        )


@app.command(epilog=PASSWORD_EXAMPLES)
def password(
    connection: Annotated[
        Path, typer.Argument(metavar="CONNECTION", help="A party's connection.toml.", show_default=False)
    ],
) -> None:
    """Print the password that a party shows beside its certificate, for programs that are not Anabranch's.

    It is made of the party's NKey and its name. The broker's configuration has it.

    Exit codes: 0 done; 2 something is wrong.
    """
    with errors(Console(stderr=True)):
        from anabranch.broker.credentials import Credentials, proof
        from anabranch.errors import ConfigError

        credentials = Credentials.load(connection)
        if credentials.seed is None:
            raise ConfigError(f"{connection}: seed is missing: use the file that 'anabranch keys init' made")
        typer.echo(proof(credentials.seed, credentials.party))


@app.command(epilog=ENTITY_EXAMPLES)
def entity(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where it goes.", show_default=False)],
) -> None:
    """Make the key by which the parties hash the ids of entities, so that none of them crosses the wire.

    Once for a federation: every client and the server need the same file, and the broker must not have it. Nothing is
    overwritten.

    Exit codes: 0 done; 2 something is wrong, and nothing was made.
    """
    with errors(Console(stderr=True)):
        from anabranch.storage.event_ids import write_key

        write_key(out)
        typer.echo(
            f"{out}: give it to every client and the server by a way that nobody else can read. Whoever has it can "
            "try out whether an id is meant."
        )


def _list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _made(folder: Path, hosts: list[str], clients: list[str], askers: list[str], days: int) -> list[str]:
    """What was made, for whom, and what to do next."""
    from anabranch.broker.credentials import CONNECTION
    from anabranch.errors import counted

    broker = "for the machine of the nats-server: in it, nats-server -c nats-server.conf"
    if len(hosts) > 1:
        broker = f"for each of the {len(hosts)} nats-servers, which need a cluster.conf beside nats-server.conf"
    rows = [
        ("authority/", "stays with you: its key signs. Keep it off every machine of the federation"),
        ("broker/", broker),
        ("server/", "for the server, which has the labels: anabranch server server.toml"),
        *((f"{name}/", f"for {name}, client {m}: anabranch client {name}.toml") for m, name in enumerate(clients, 1)),
        *((f"{name}/", f"for {name}, who asks: anabranch predict {name}/{CONNECTION} ..") for name in askers),
    ]
    width = max(len(name) for name, _ in rows)
    members, valid = counted(len(clients), "client"), counted(days, "day")
    return [
        f"{folder}/ has the keys of a federation of {members}, valid for {valid}:",
        "",
        *(f"  {name:{width}}  {what}" for name, what in rows),
        "",
        "Hand each folder over by a way that nobody else can read, then delete its key.pem and party.nk here: renewing",
        "needs neither. Each party names its connection.toml in a file of its own.",
    ]
