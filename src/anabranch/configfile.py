"""Reads a run's configuration: a preset, a TOML file or a stored result, with settings changed on the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from anabranch.config import KINDS, Config, kinds_by_name
from anabranch.errors import ConfigError, nearest
from anabranch.toml import value_text

PRESETS = ("imnist", "susy", "higgs")
RESULT = "result.json"
PATHS = (("stream", "path"), ("stream", "data_dir"), ("activation", "path"))
"""The settings that name a file or a folder. A relative one is relative to the file that it stands in, or, in an
override, to the working folder; it is made absolute when it is read, so that a stored result can be run anywhere."""

Key = tuple[str, ...]


class Override(NamedTuple):
    """A setting that the person gave apart from the file."""

    key: Key
    """Such as ``("update", "window")``."""
    value: Any
    said: str = ""
    """How the person gave it, such as ``"--set"``; messages begin with it."""


class Source(NamedTuple):
    """A configuration as it was found, not checked yet."""

    name: str
    """The preset's name, or the file's without its ending."""
    where: str
    """What messages call it."""
    values: dict[str, Any]
    folder: Path
    """What its relative paths are relative to."""
    result: dict[str, Any] | None
    """The whole stored result, where it is one."""


def load(source: str | Path | Source, overrides: Iterable[str | Override] = ()) -> Config:
    """The checked configuration of a run.

    Args:
        source: a preset's name (imnist, susy, higgs), a TOML file, the ``result.json`` of an earlier run, or the
            folder that holds it.
        overrides: changes, each ``"section.key=value"`` with a TOML value; a bare word is a string. Changing a
            section's ``name`` drops those of the source's keys in it that belong to its other kinds only.

    Raises:
        ConfigError: where there is no such source, or a key or a value is wrong; it names each.

    >>> load("imnist", ["update.window=50", "activation.name=Full"]).update.window
    50
    >>> load("imnist", ["update.widnow=50"])
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: update.widnow: DLR has no such setting. Did you mean 'window'?...
    """
    if not isinstance(source, Source):
        source = find_source(source)
    given = [parse_override(each) if isinstance(each, str) else each for each in overrides]
    values = _absolute(source.values, source.folder)
    for each in sorted(given, key=lambda each: each.key[-1] != "name"):  # a section's kind decides on its other keys
        _apply(values, each)
    try:
        return Config.model_validate(_tuples(values))
    except ValidationError as error:
        said = {each.key: each.said for each in given}
        raise ConfigError("\n".join(_complaints(error, values, said, source))) from None


def find_source(source: str | Path) -> Source:
    """Finds and parses a preset, a TOML file or a stored result."""
    if source in PRESETS:
        return Source(str(source), f"preset {source}", tomllib.loads(preset_text(str(source))), Path(), None)
    path = Path(source)
    if path.is_dir() and (path / RESULT).is_file():
        path = path / RESULT
    if not path.is_file():
        problem = "is a folder without a result.json" if path.is_dir() else "is neither a preset nor a file"
        raise ConfigError(f"'{source}' {problem}.{_nearest(str(source), PRESETS)} Presets: {', '.join(PRESETS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if path.suffix == ".json":
        return _stored(path, text)
    try:
        return Source(path.stem, str(path), tomllib.loads(text), path.parent, None)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _stored(path: Path, text: str) -> Source:
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(result, dict) or not isinstance(result.get("config"), dict):
        raise ConfigError(f"{path}: not a result of 'anabranch run': it has no 'config'")
    return Source(str(result.get("name", path.stem)), str(path), result["config"], path.parent, result)


def preset_text(name: str) -> str:
    """A preset as it stands in its file, comments included."""
    return (resources.files("anabranch") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def parse_override(text: str, said: str = "") -> Override:
    """``"update.window=50"`` as an `Override`.

    >>> parse_override("activation.threshold=-inf").value, parse_override("update.name=SLR").value
    (-inf, 'SLR')
    """
    key, equals, value = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not equals or not all(parts):
        raise ConfigError(f"{_prefix(said)}'{text}' is not of the form section.key=value, such as update.window=50")
    return Override(parts, _parse_value(value.strip()), said)


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A copy whose sections may be changed, with the paths in it made absolute."""
    copy = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for section, key in PATHS:
        held = copy.get(section)
        if isinstance(held, dict) and key in held:
            held[key] = _absolute_path(held[key], folder)
    return copy


def _absolute_path(value: Any, folder: Path) -> Any:
    return str((folder / Path(value).expanduser()).resolve()) if isinstance(value, str) and value else value


def _apply(values: dict[str, Any], override: Override) -> None:
    *sections, last = override.key
    value = _absolute_path(override.value, Path()) if override.key in PATHS else override.value
    if len(sections) == 1 and sections[0] in KINDS:
        section = sections[0]
        default = Config.model_fields[section].default
        if section not in values and default is not None and hasattr(default, "model_dump"):
            values[section] = default.model_dump(exclude_none=True)
        held = values.get(section)
        if last == "name" and isinstance(held, dict) and value in kinds_by_name(section):
            others = {key for kind in KINDS[section] for key in kind.settings()}
            own = kinds_by_name(section)[value].settings()
            values[section] = {key: each for key, each in held.items() if key in own or key not in others}
    place = values
    for name in sections:
        if not isinstance(place.setdefault(name, {}), dict):
            place[name] = {}
        place = place[name]
    place[last] = value


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is what a frozen record holds."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value


def _complaints(error: ValidationError, values: dict[str, Any], said: dict[Key, str], source: Source) -> list[str]:
    """What is wrong, one line for each setting."""
    lines: dict[Key, str] = {}
    for detail in error.errors():
        key, kind = _place(detail["loc"])
        if key not in lines:
            chosen = key if detail["type"] != "missing" else (key[0], "name")
            origin = next((text for k, text in said.items() if k[: len(chosen)] == chosen), source.where)
            lines[key] = _prefix(origin) + _wording(key, kind, detail, values)
    return list(lines.values())


def _place(loc: tuple[int | str, ...]) -> tuple[Key, str]:
    """The setting that an error is about, such as ``("update", "window")``, and the kind of its section or ``""``."""
    names = [str(part) for part in loc]
    if len(names) > 1 and names[0] in KINDS and names[0] != "drift":
        return (names[0], *names[2:3]), names[1]
    return tuple(names[:2] if names[0] == "drift" else names[:1]), names[0]


def _wording(key: Key, kind: str, detail: Any, values: dict[str, Any]) -> str:
    section, dotted = key[0], ".".join(key)
    held = values.get(section)
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        return _unknown(key, kind)
    if detail["type"] == "missing" and len(key) == 1:
        return f"the section [{section}] is missing; its name is one of {_listed(kinds_by_name(section))}"
    if detail["type"] == "missing":
        return f"{dotted} is missing: {kind} needs {_description(key, kind)}"
    if section in KINDS and len(key) == 1 and not isinstance(held, dict):
        return f"{section} is {value_text(held)}, but it is a section of settings, such as {_example(section)}"
    if detail["type"] == "union_tag_not_found":
        return f"{section}.name is missing: one of {_listed(kinds_by_name(section))}"
    if detail["type"] == "union_tag_invalid" and isinstance(held, dict):
        known = kinds_by_name(section)
        name = held["name"]
        hint = _nearest(str(name), known)
        return f"{section}.name is {value_text(name)}, but it must be one of {_listed(known)}.{hint}"
    value = held.get(key[1]) if len(key) > 1 and isinstance(held, dict) else held
    return f"{dotted} is {value_text(value)}, but it must be {_description(key, kind)}"


def _unknown(key: Key, kind: str) -> str:
    if len(key) == 1:
        homes = {last: f"{section}.{last}" for section in KINDS for k in KINDS[section] for last in k.settings()}
        known = {name: name for name in Config.model_fields} | homes
        near = _nearest(key[0], known)
        for last, home in homes.items():
            near = near.replace(f"'{last}'", f"'{home}'")
        near = near or f" There are {', '.join(Config.model_fields)}"
        return f"there is no setting or section '{key[0]}'.{near}"
    section, last = key
    own = (kinds_by_name(section).get(kind) or KINDS[section][0]).settings()
    homes_of = [name for name, other in kinds_by_name(section).items() if last in other.settings()]
    has = f" It has {', '.join(own)}." if own else ""
    if homes_of:
        return f"{'.'.join(key)}: {kind} has no such setting; it belongs to {' and '.join(homes_of)}.{has}"
    return f"{'.'.join(key)}: {kind} has no such setting.{_nearest(last, own)}{has}"


def _prefix(origin: str) -> str:
    return f"{origin}: " if origin else ""


def _description(key: Key, kind: str) -> str:
    if len(key) == 1:
        return Config.model_fields[key[0]].description or "another value"
    record = KINDS["drift"][0] if key[0] == "drift" else kinds_by_name(key[0])[kind]
    return record.model_fields[key[1]].description or "another value"


def _example(section: str) -> str:
    if section == "drift":
        return "drift.every=50"
    return f"{section}.name={value_text(next(iter(kinds_by_name(section))))}"


def _listed(names: Iterable[str]) -> str:
    *most, last = [f'"{name}"' for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def _nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """As `errors.nearest`, but capital letters do not matter."""
    same = [each for each in known if each.casefold() == name.casefold()]
    return f" Did you mean '{same[0]}'?" if same else nearest(name, known)
