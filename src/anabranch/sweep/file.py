"""Reads a sweep's file: a configuration, and a grid of values for some of its settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.config.load import PATHS, PRESETS, Key, Override, Source, absolute_path, change, find_source, load
from anabranch.config.run import KINDS, Config, value_text
from anabranch.errors import ConfigError
from anabranch.storage.files import reading
from anabranch.sweep.trial import portable

MOST_TRIALS = 100_000
"""A grid of more combinations is taken for a mistake."""


class Point(NamedTuple):
    """One combination of a grid's values."""

    config: Config
    labels: dict[str, Any]
    """The grid's keys, such as ``"update.window"``, each with the value that the trial has."""


class SweepFile(NamedTuple):
    """What a sweep's file says."""

    name: str
    """The file's, without its ending."""
    grid: dict[str, list[Any]]
    points: list[Point]
    """Every combination; those that come to the same settings are one."""

    def common(self) -> dict[str, Any]:
        """Return the settings that the grid leaves alone, those that have no value included."""
        held = portable(self.points[0].config, exclude_none=False)
        for key in self.grid:
            section, _, setting = key.partition(".")
            if not setting or setting == "name":
                held.pop(section, None)
            elif isinstance(held.get(section), dict):
                held[section].pop(setting.partition(".")[0], None)
        return held


def read(path: str | Path, overrides: Iterable[Override] = ()) -> SweepFile:
    """Read and check a sweep's file, with every combination of its grid.

    The file's own settings change those of its ``base``, which is a preset, or a file or result named relative to it.
    A grid's key is a setting with a list of values, or a section with a list of tables, whose keys vary together.

    Args:
        path: a TOML file.
        overrides: changes of settings that the grid leaves alone.

    Raises:
        ConfigError: where the file or its base is not found, a key or a value is wrong, or the grid is empty; it names
            everything that is wrong.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "rates.toml"
    >>> _ = file.write_text('base = "imnist"\\n[grid]\\nlearning_rate = [0.1, 0.01]\\nupdate.window = [1, 10]')
    >>> [point.labels for point in read(file).points][:2]
    [{'learning_rate': 0.1, 'update.window': 1}, {'learning_rate': 0.1, 'update.window': 10}]
    """
    path = Path(path)
    with reading(path, ConfigError):
        if not path.is_file():
            raise ConfigError(f"'{path}' is not a file: a sweep is a TOML file with a section [grid]")
    own = _found(path)
    values = dict(own.values)
    base, grid = values.pop("base", None), values.pop("grid", None)
    settings = _based(own._replace(values=values), base)
    return expanded(settings._replace(folder=own.folder), grid, overrides)


def expanded(settings: Source, grid: Any, overrides: Iterable[Override] = ()) -> SweepFile:
    """Return every combination of a grid over some settings.

    Args:
        settings: that the grid changes; its folder is that of the grid's relative paths.
        grid: as in a sweep's file.
        overrides: changes of settings that the grid leaves alone.

    Raises:
        ConfigError: as `read`.
    """
    grid = _checked(grid, settings.where)
    given = list(overrides)
    for each in given:
        taken = next((key for key in grid if _overlap(tuple(key.split(".")), each.key)), None)
        if taken is not None:
            raise ConfigError(f"{each.said}: the grid of {settings.where} varies {taken}: change it there")
    points: dict[str, Point] = {}
    wrong: dict[str, None] = {}
    for combination in itertools.product(*grid.values()):
        labels = dict(zip(grid, combination, strict=True))
        varied = [each for key, value in labels.items() for each in _overrides(key, value, settings)]
        try:
            config = load(settings, [*given, *varied])
            _check_parties(config, settings.where)
        except ConfigError as error:
            wrong |= dict.fromkeys(str(error).splitlines())
        else:
            points.setdefault(repr(config), Point(config, labels))
    if wrong:
        raise ConfigError("\n".join(wrong))
    return SweepFile(settings.name, grid, list(points.values()))


def _found(path: Path) -> Source:
    try:
        return find_source(path)
    except ConfigError as error:
        if "Cannot overwrite" not in str(error):
            raise
        raise ConfigError(
            f"{error}. A key stands there twice, or a section beside a setting of it, such as update and "
            "update.window, which cannot be combined: put the setting into the section's tables"
        ) from error


def _check_parties(config: Config, where: str) -> None:
    """Whether there is a learning rate for each party, where the model says how many there are."""
    rates, clients = config.learning_rate, config.clients()
    if isinstance(rates, tuple) and clients is not None and len(rates) != clients + 1:
        raise ConfigError(
            f"{where}: learning_rate is {value_text(rates)}, but the model has {clients + 1} parties: the server, then "
            f"{clients} clients"
        )


def _overlap(one: Key, other: Key) -> bool:
    """Return whether they are the same setting, or one is the section of the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def label_text(value: Any) -> str:
    """Return a grid's value in a table.

    >>> label_text(0.1), label_text({"name": "DLR", "window": 10, "decay": 0.9}), label_text({})
    ('0.1', 'DLR, window 10, decay 0.9', 'none')
    """
    match value:
        case str():
            return value
        case Mapping():
            parts = [str(each) if key == "name" else f"{key} {label_text(each)}" for key, each in value.items()]
            return ", ".join(parts) or "none"
    return value_text(value)


def _based(own: Source, base: Any) -> Source:
    """Return the file's settings on top of those of its base."""
    own = change(own, [])
    if base is None:
        return own
    if not isinstance(base, str):
        raise ConfigError(f"{own.where}: base is {value_text(base)}, but it must be a preset's name or a file's path")
    try:
        below = find_source(base if base in PRESETS else _beside(base, own.folder))
        load(below)
    except ConfigError as error:
        raise ConfigError(f"{own.where}: base: {error}") from error
    changed = change(below, [each for key, value in own.values.items() for each in _overrides(key, value, own)])
    return changed._replace(name=own.name, where=own.where)


def _beside(base: str, folder: Path) -> Path:
    """Return a base's path, relative to this folder; links in it stay, since its own paths go by where it is named."""
    try:
        return folder / Path(base).expanduser()
    except (RuntimeError, ValueError):  # of a user who is not there: whoever reads it says so
        return Path(base)


def _overrides(key: str, value: Any, file: Source) -> Iterator[Override]:
    """What a key with its value changes; a section with a table changes those settings that the table has."""
    parts: Key = tuple(key.split("."))
    if len(parts) == 1 and key in KINDS and isinstance(value, Mapping):
        for setting, each in value.items():
            yield from _overrides(f"{key}.{setting}", each, file)
    else:
        value = absolute_path(value, file.folder) if parts in PATHS else value
        yield Override(parts, value, f"{file.where}: grid")


def _checked(grid: Any, where: str) -> dict[str, list[Any]]:
    """Return the grid, each setting's dotted key with its list of values."""
    example = "such as learning_rate = [0.1, 0.01]"
    if not isinstance(grid, Mapping):
        raise ConfigError(f"{where}: there is no section [grid] that says what to vary, {example}")
    flat = dict(_flat(grid))
    if not flat:
        raise ConfigError(f"{where}: the section [grid] is empty: say what to vary, {example}")
    wrong = [
        f"{where}: grid: {key} is {value_text(values)}, but it must be a list of one value or more, {example}"
        for key, values in flat.items()
        if not isinstance(values, list) or not values
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    count = math.prod(map(len, flat.values()))
    if count > MOST_TRIALS:
        raise ConfigError(f"{where}: the grid has {count:,} combinations, more than {MOST_TRIALS:,}: give fewer values")
    return flat


def _flat(grid: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in grid.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
