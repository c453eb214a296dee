"""Settings that several files share: what ``include`` in a TOML file adds to it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from anabranch.errors import ConfigError

Key: TypeAlias = tuple[str, ...]
"""A setting by the names of its sections and its own, such as ``("update", "window")``."""
INCLUDE = "include"


class Merged(NamedTuple):
    """A file's settings, those that it includes among them."""

    values: dict[str, Any]
    origins: dict[Key, Path]
    """The included file that a setting comes from; a setting of the file itself is not listed."""

    def origin(self, key: Key, own: Path) -> Path:
        """Return the file that a setting, or the nearest section around it, comes from."""
        return next((self.origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.origins), own)


def merged(values: Mapping[str, Any], path: Path) -> Merged:
    """Return a file's settings on top of those of the files that it includes.

    A section of both has the settings of both. A setting of both has the value of the file that includes. Of several
    included files a later one changes an earlier one. An included file may include others.

    Args:
        values: of the file.
        path: of the file, which the paths in ``include`` are relative to.

    Raises:
        ConfigError: if an included file is missing, is no TOML, or includes a file that includes it.
    """
    return _merged(values, path, (path.absolute(),))


def _merged(values: Mapping[str, Any], path: Path, above: tuple[Path, ...]) -> Merged:
    own = {name: value for name, value in values.items() if name != INCLUDE}
    found = Merged({}, {})
    for file in _included(values.get(INCLUDE, []), path):
        here = file.absolute().resolve()
        if here in {each.resolve() for each in above}:
            raise ConfigError(f"{path}: include is '{file}', which includes this file again: remove one of the two")
        below = _merged(_read(file, path), file, (*above, here))
        keys = {key: below.origins.get(key, file) for key in _keys(below.values)}
        found = Merged(_on_top(below.values, found.values), found.origins | keys)
    mine = _keys(own)
    sections = {key[:n] for key in mine for n in range(1, len(key))}
    origins = {key: file for key, file in found.origins.items() if key not in mine and key not in sections}
    return Merged(_on_top(own, found.values), origins)


def _included(given: Any, path: Path) -> list[Path]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise ConfigError(
            f"{path}: {INCLUDE} is {given!r:.60}, but it must be the path of a TOML file, or a list of them"
        )
    return [path.parent / each for each in names]


def _read(file: Path, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: include is '{file}', which cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not TOML ({error}); {path} includes it") from error


def _on_top(values: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return some settings, and those of others that they do not have."""
    together = dict(below)
    for name, value in values.items():
        held = below.get(name)
        if isinstance(value, Mapping) and isinstance(held, Mapping):
            value = _on_top(value, held)
        together[name] = value
    return together


def _keys(values: Mapping[str, Any], above: Key = ()) -> set[Key]:
    """Return the keys of all settings that are no sections, and of empty sections."""
    keys: set[Key] = set()
    for name, value in values.items():
        inside = _keys(value, (*above, name)) if isinstance(value, Mapping) else set()
        keys |= inside or {(*above, name)}
    return keys
