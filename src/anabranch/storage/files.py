"""Files that are there whole or not at all, and values as JSON has them."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.errors import AnabranchError, ConfigError, OutputError
from anabranch.interrupt import held


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Within it, a file that cannot be written is an OutputError that says what of, and into which folder."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write the {what} into {folder}: {error.strerror or error}") from error


@contextmanager
def reading(path: str | Path, kind: type[AnabranchError]) -> Iterator[None]:
    """Within it, a path that the system does not let look at or read is an error of this kind that names it."""
    try:
        yield
    except AnabranchError:
        raise
    except (OSError, ValueError) as error:
        raise kind(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def replace_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file through a temporary one beside it, so that it is never there in part.

    Args:
        path: of the file.
        content: of it.
        private: whether nobody but its owner may read it, at any moment.
    """
    with held():
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            if not private:  # as a temporary file is
                Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def check_private(path: Path) -> None:
    """Raise a ConfigError where others than its owner can read a file; one that is not there is not looked at."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads it says what is wrong
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path}: others than its owner can read this private file: run 'chmod 600 {path}'")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def json_values(value: Any) -> Any:
    """Return the value in JSON's types: NaN becomes null, an infinite number ``"inf"`` or ``"-inf"``, an array a
    list.
    """
    if hasattr(value, "tolist"):  # of NumPy or JAX
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): json_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def to_json(described: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
