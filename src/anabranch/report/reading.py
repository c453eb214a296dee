"""Reads the files of results, and names what is wrong with one."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from anabranch.errors import DataError
from anabranch.report.page import Picture, picture
from anabranch.sweep.record import Value, first_problem

Model = TypeVar("Model", bound=BaseModel)
PNG = b"\x89PNG\r\n\x1a\n"


def read_json(path: Path, kind: type[Model], writer: str) -> Model:
    """Return the file's content, checked.

    Args:
        writer: the command that writes such files.

    Raises:
        DataError: where it cannot be read, or is not what the command writes.
    """
    try:
        return kind.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise damaged(path, writer, first_problem(error)) from None


def read_curve(path: Path, writer: str) -> dict[str, list[float]]:
    """Return the columns ``rounds`` and ``run_time_error`` of a ``curve.csv``."""
    try:
        lines = list(csv.DictReader(read_bytes(path).decode().splitlines(), strict=True))
        return {name: [float(line[name]) for line in lines] for name in ("rounds", "run_time_error")}
    except KeyError as error:
        raise damaged(path, writer, f"it has no column {error}") from None
    except (ValueError, TypeError, csv.Error) as error:
        raise damaged(path, writer, str(error)) from None


def read_picture(path: Path, caption: str, aside: str, writer: str) -> Picture:
    """A PNG file as it goes into the page."""
    content = read_bytes(path)
    if not content.startswith(PNG):
        raise damaged(path, writer, "not a PNG picture")
    return picture(content, caption, aside)


def damaged(path: Path, writer: str, problem: str) -> DataError:
    """That a file is not what it should be."""
    return DataError(
        f"{path}: is not what '{writer}' writes there: {problem}. It was edited or is damaged: make it again, or take "
        "it out of the folder"
    )


def flat(values: Any, name: str = "") -> dict[str, Value]:
    """Return settings by their full names, as ``--set`` takes them.

    >>> flat({"seed": 1, "update": {"name": "DLR", "window": 10}})
    {'seed': 1, 'update.name': 'DLR', 'update.window': 10}
    """
    if isinstance(values, dict) and values:
        inner = [flat(value, f"{name}.{key}" if name else str(key)) for key, value in values.items()]
        return {key: value for each in inner for key, value in each.items()}
    if isinstance(values, list | dict):
        values = ", ".join(map(str, values)) or "none"
    return {name: values}


def read_bytes(path: Path) -> bytes:
    """Return the file's content.

    Raises:
        DataError: where it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: is missing, and other files there need it: make them again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
