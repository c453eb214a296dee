"""Finds out which results a folder holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from anabranch.errors import DataError
from anabranch.paper.summary import SUMMARY
from anabranch.simulation.output import RESULT
from anabranch.storage.files import reading
from anabranch.sweep.folder import MANIFEST, TRIALS

DEPTH = 3
"""How many folders deep results are looked for: a project's folder has much else in it."""


class Found(NamedTuple):
    """The folders of results, in the order of their names."""

    reproductions: dict[Path, list[Path]]
    """By the folder of ``anabranch reproduce``, its experiments' folders."""
    sweeps: list[Path]
    runs: list[Path]


def find(folder: Path) -> Found:
    """Look in the folder and its subfolders.

    Raises:
        DataError: where the folder, or one in it, cannot be read, or holds no results.
    """
    with reading(folder, DataError):
        if not folder.is_dir():
            problem = "is a file; name the folder that it lies in" if folder.exists() else "there is no such folder"
            raise DataError(f"{folder}: {problem}")
    found = Found({}, [], [])
    for place, folders, files in _walk(folder):
        if SUMMARY in files:
            found.reproductions.setdefault(place.parent, []).append(place)
        if MANIFEST in files and TRIALS in folders:
            found.sweeps.append(place)
        if RESULT in files:
            found.runs.append(place)
    # the trials that experiments are made of are no sweep of their own
    sweeps = [place for place in found.sweeps if place not in found.reproductions]
    if not any(found):
        raise DataError(
            f"{folder}: holds no results. Looked there and {DEPTH} folders deep for {SUMMARY} (of 'anabranch "
            f"reproduce'), {MANIFEST} beside {TRIALS}/ (of 'anabranch sweep') and {RESULT} (of 'anabranch run')"
        )
    return found._replace(sweeps=sweeps)


def relative(place: Path, folder: Path) -> str:
    """What a place is called on the page: its path from the folder that the page is about, or its name.

    >>> relative(Path("results/a/b"), Path("results")), relative(Path("results/a"), Path("results/a"))
    ('a/b', 'a')
    """
    inner = place.is_relative_to(folder) and place != folder
    return place.relative_to(folder).as_posix() if inner else place.resolve().name


def _walk(folder: Path) -> list[tuple[Path, list[str], list[str]]]:
    """Return each folder with its subfolders' and files' names."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error

    seen = []
    for name, folders, files in os.walk(folder, onerror=fail):
        place = Path(name)
        seen.append((place, list(folders), files))
        deep = len(place.relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deep else sorted(each for each in folders if each != TRIALS and not each.startswith("."))
    return seen
