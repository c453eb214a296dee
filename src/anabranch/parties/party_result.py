"""The files of a party's result: those of a run at the server, and what a client can know at a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.config.party import ClientFile, ServerFile
from anabranch.config.source import TABLE
from anabranch.core.models import SplitModel
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties.build_party import own_arrays, write_model
from anabranch.parties.ending import Ending
from anabranch.protocol.server.totals import Ledger
from anabranch.simulation import output
from anabranch.simulation.result import Result, versions

WIRE = ("direction", "kind", "client", "bytes", "messages")
"""What is counted on the wire, in each process of a party up to its last checkpoint; client 0 is all."""


def write(
    party: ServerParty | ClientParty, file: ServerFile | ClientFile, ending: Ending, folder: Path, seconds: float
) -> None:
    """Write the result of a party into its folder, in place of an earlier one.

    Args:
        party: which has ended.
        file: its settings.
        ending: of the party.
        folder: of its state.
        seconds: for which this process took part.

    Raises:
        OutputError: if a file cannot be written.
    """
    if isinstance(party, ClientParty):
        write_model(party, folder)
        output.rewrite(folder, _of_client(party, file, ending, seconds))
        return
    assert isinstance(file, ServerFile)
    title = f"{file.update.name} · server · {ending.counts['learnt']:,} events learnt"
    output.write(folder, _of_server(party, file, ending, seconds), arrays=own_arrays(party), title=title)


def _of_server(party: ServerParty, file: ServerFile, ending: Ending, seconds: float) -> Result:
    ledger, talk = party.ledger, party.conversation
    module = talk.compute.party.model
    notes = {what: n for what, n in party.noted().items() if n}
    delays = [seat.max_delay for seat in talk.seats]
    late = None if party.late is None else dict(party.late.waiting.counts)
    federation = federation_settings(ledger, delays, party.link.state(), notes, late)
    names = party.link.credentials.clients or [each.name for each in file.clients]
    settings = _settings(file) | {
        "stream": {"name": getattr(file.labels, "source", TABLE), "file": Path(getattr(file.labels, "path", "")).name},
        "clients": list(names),
        "federation": federation,
    }
    return Result(
        model=SplitModel([module], module),
        rounds=ledger.rounds,
        stopped=None if ending.problem is None and talk.ended else ending.problem or ending.reason,
        error_rate=ledger.error_rate,
        curve=ledger.curve(),
        activation_rate=ledger.activations / max(ledger.rounds, 1),
        traffic=ledger.traffic,
        detections=None if party.watch is None else party.watch.detections,
        seconds=seconds,
        compile_seconds=0.0,
        settings=settings,
        timed_rounds=ledger.rounds - party.rounds_before,
        ending=ending.describe(),
    )


def federation_settings(
    ledger: Ledger,
    max_delay: Sequence[int],
    wire: Sequence[Sequence[Any]],
    notes: Mapping[str, int],
    labels: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Return what only a federation's result has, as JSON values.

    Args:
        ledger: with the number of rounds in which each client answered, or was replaced.
        max_delay: the most steps that a derivative of each client came late.
        wire: the state of the server's link.
        notes: how often each thing was noted.
        labels: what became of labels that came late; None if none did.
    """
    return {
        "clients": ledger.missing,
        "max_delay": list(max_delay),
        "wire": [dict(zip(WIRE, each, strict=True)) for each in wire],
        "notes": dict(notes),
        "labels": labels,
    }


def _of_client(party: ClientParty, file: ServerFile | ClientFile, ending: Ending, seconds: float) -> dict[str, Any]:
    wire = [dict(zip(WIRE, each, strict=True)) for each in party.link.state()]
    credentials = party.link.credentials
    return {
        "party": party.name,
        "federation": credentials.federation,
        "rounds": party.conversation.applied + 1,
        "steps": ending.counts["learnt"],
        "bytes_up": sum(each["bytes"] for each in wire if each["direction"] == "out"),
        "bytes_down": sum(each["bytes"] for each in wire if each["direction"] == "in"),
        "seconds": seconds,
        "ending": ending.describe(),
        "wire": wire,
        "notes": {what: n for what, n in party.noted().items() if n},
        "settings": _settings(file),
        "versions": versions(),
    }


def _settings(file: ServerFile | ClientFile) -> dict[str, Any]:
    """Return the settings of a party that say what it trains, and nothing of where its files and keys are."""
    update = file.update.model_dump(mode="json")
    shown = ("learning_rate", "learning_rate_power", "wire_dtype", "seed", "most_lost")
    return {
        "update": " ".join([update.pop("name"), *(f"{name} {value}" for name, value in update.items())]),
        "activation": None if file.activation is None else file.activation.name,
        "model": file.model.model_dump(mode="json"),
        **{name: getattr(file, name) for name in shown},
    }
