"""One HTML page from a folder of results, which opens without a network."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from anabranch.errors import ConfigError
from anabranch.report.clients import clients_part, is_client
from anabranch.report.page import Page, render
from anabranch.report.places import find
from anabranch.report.ran import runs_part
from anabranch.report.reproduced import reproduction_part
from anabranch.report.swept import sweep_part
from anabranch.storage.files import replace_file, writing

NAME, ENDINGS = "report.html", (".html", ".htm")


def report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of all results in a folder and its subfolders, and return where it is.

    Args:
        folder: results of ``anabranch reproduce``, ``anabranch sweep``, ``anabranch run`` or parties of a federation.
        out: the file; by default ``report.html`` in the folder. An earlier one is replaced.

    Raises:
        ConfigError: where ``out`` is not the name of a page.
        DataError: where there are no results, or one of them is damaged; nothing is written then.
        OutputError: where the page cannot be written.

    >>> report(Path("no such folder"))
    Traceback (most recent call last):
        ...
    anabranch.errors.DataError: no such folder: there is no such folder
    """
    target = folder / NAME if out is None else out
    if target.suffix.lower() not in ENDINGS:  # else a slip could replace a result
        raise ConfigError(f"--out {target}: the report is a web page; give it a name that ends in .html")
    found = find(folder)
    parts = [reproduction_part(folder, place, names) for place, names in found.reproductions.items()]
    parts += [sweep_part(folder, place) for place in found.sweeps]
    clients = [place for place in found.runs if is_client(place)]
    if runs := [place for place in found.runs if place not in clients]:
        parts.append(runs_part(folder, runs))
    if clients:
        parts.append(clients_part(folder, clients))
    made = f"Made by anabranch {version('anabranch')} on {datetime.now():%Y-%m-%d at %H:%M}."
    html = render(Page(f"Results in {folder.resolve().name or folder}", made, parts))
    with writing("report", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, html.encode(errors="replace"))  # a file's name need not be valid UTF-8
    return target
