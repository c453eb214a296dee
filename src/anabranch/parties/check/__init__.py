"""What a party or a run would read, for a person to look at before anything is learnt."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from anabranch.config import load as configfile
from anabranch.config import party as partyfile
from anabranch.config.includes import merged
from anabranch.errors import AnabranchError
from anabranch.parties.check.findings import Findings, Shared
from anabranch.parties.check.party import Checked, check_party
from anabranch.parties.check.run import check_run
from anabranch.parties.check.shared import shared


def check_files(files: Sequence[str]) -> tuple[list[Findings], list[Shared], list[AnabranchError]]:
    """Look at the data of parties and runs.

    Args:
        files: each a party's file, or what `anabranch run` takes.

    Returns:
        What was found in each, how much of a server's labels each client shares, and why a start would refuse a file.
    """
    found: list[Findings] = []
    parties: list[Checked] = []
    wrong: list[AnabranchError] = []
    with ExitStack() as stack:
        for file in files:
            try:
                if (run := _run_of(file)) is not None:
                    found.append(check_run(file, configfile.load(run)))
                else:
                    parties.append(check_party(Path(file), stack))
                    found.append(parties[-1].findings)
            except AnabranchError as error:
                wrong.append(error)
        servers = [each for each in parties if each.is_server]
        clients = [each for each in parties if not each.is_server]
        both = [shared(server, client) for server in servers for client in clients]
    return found, both, wrong


def _run_of(file: str) -> str | configfile.Source | None:
    """Return the run that a file is of, or names; None if it is of a party with data of its own."""
    path = Path(file)
    if path.suffix != ".toml" or not path.is_file():
        return file
    try:
        keys = {*merged(tomllib.loads(path.read_text(encoding="utf-8")), path).values}
    except (OSError, ValueError, RecursionError):
        keys = set()
    if not keys & {*partyfile.KINDS}:
        return file
    settings = partyfile.load(path)
    return configfile.find_source(settings.run) if isinstance(settings, partyfile.PartyFile) else None
