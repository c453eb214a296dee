"""Reads a run's configuration: a preset, a TOML file or a stored result, with settings changed on the command line."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from anabranch.config.includes import Key, merged
from anabranch.config.own import KNOWN, OWN, OwnPart, is_own
from anabranch.config.run import KINDS, Config, Section, kinds_by_name, value_text
from anabranch.errors import ConfigError
from anabranch.storage.files import reading

PRESETS = ("imnist", "susy", "higgs")
RESULT = "result.json"
PATHS = (("stream", "path"), ("stream", "data_dir"), ("activation", "path"))
"""The settings that name a file or a folder. A relative one is relative to the file that it stands in, or, in an
override, to the working folder; it is made absolute when it is read, so that a stored result can be run anywhere."""


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
    origins: Mapping[Key, str] = {}
    """The included file that a setting comes from."""


def load(source: str | Path | Source, overrides: Iterable[str | Override] = ()) -> Config:
    """Return the checked configuration of a run.

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
    if "grid" in source.values:
        raise ConfigError(f"{source.where}: its [grid] makes it a sweep: run it with 'anabranch sweep'")
    given = [parse_override(each) if isinstance(each, str) else each for each in overrides]
    values = change(source, given).values
    try:
        return Config.model_validate(_tuples(values))
    except ValidationError as error:
        said = {**source.origins, **{each.key: each.said for each in given}}
        raise ConfigError("\n".join(_complaints(error, values, said, source.where))) from None


def change(source: Source, overrides: Iterable[Override]) -> Source:
    """Return the source with its settings changed as in `load`, and its paths absolute; nothing is checked yet."""
    values = _absolute(source.values, source.folder)
    for each in sorted(overrides, key=lambda each: each.key[-1] != "name"):  # a section's kind decides on other keys
        _apply(values, each)
    return source._replace(values=values)


def find_source(source: str | Path) -> Source:
    """Find and parse a preset, a TOML file or a stored result."""
    if source in PRESETS:
        return Source(str(source), f"preset {source}", tomllib.loads(preset_text(str(source))), Path(), None)
    path = Path(source)
    with reading(path, ConfigError):
        if path.is_dir() and (path / RESULT).is_file():
            path = path / RESULT
        if not path.is_file():
            problem = "is a folder without a result.json" if path.is_dir() else "is neither a preset nor a file"
            raise ConfigError(f"'{source}' {problem}.{_hint(str(source), PRESETS)} Presets: {', '.join(PRESETS)}")
        text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _stored(path, text)
    try:
        whole = merged(tomllib.loads(text), path)
        origins = {key: str(file) for key, file in whole.origins.items()}
        return Source(path.stem, str(path), whole.values, path.parent, None, origins)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _stored(path: Path, text: str) -> Source:
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(result, dict) or not isinstance(result.get("config"), dict):
        raise ConfigError(f"{path}: not a result of 'anabranch run': it has no 'config'")
    if not isinstance(result.get("data", {}), dict):
        raise ConfigError(f"{path}: its 'data' is not what 'anabranch run' writes: it was edited or is damaged")
    # It may be of somebody else, and names a folder that is written into.
    name = "".join(filter(str.isprintable, Path(str(result.get("name", ""))).name)).strip(".") or path.stem
    return Source(name, str(path), result["config"], path.parent, result)


def preset_text(name: str) -> str:
    """Return a preset as it stands in its file, comments included."""
    return (resources.files("anabranch") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def parse_override(text: str, said: str = "") -> Override:
    """Return ``"update.window=50"`` as an `Override`.

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
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy whose sections may be changed, with the paths in it made absolute."""
    copy = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for section, key in PATHS:
        held = copy.get(section)
        if isinstance(held, dict) and key in held:
            held[key] = absolute_path(held[key], folder)
    return copy


def absolute_path(value: Any, folder: Path) -> Any:
    """Return a path of the configuration, relative to this folder where it is relative.

    One that cannot be, such as that of a user who is not there, stays as it is: whoever reads it says that it is not
    there.
    """
    if isinstance(value, str) and value:
        with suppress(OSError, RuntimeError, ValueError):
            return str((folder / Path(value).expanduser()).resolve())
    return value


def _apply(values: dict[str, Any], override: Override) -> None:
    """Put the override's value in its place."""
    *sections, last = override.key
    value = absolute_path(override.value, Path()) if override.key in PATHS else override.value
    if len(sections) == 1 and sections[0] in KINDS:
        _begin_with_default(values, sections[0])
        if last == "name":
            _keep_what_fits(values, sections[0], value)
    place = values
    for name in sections:
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
    place[last] = value


def _begin_with_default(values: dict[str, Any], section: str) -> None:
    """Where the section is missing and has a default, puts that in its place."""
    default = Config.model_fields[section].default
    if section not in values and isinstance(default, Section):
        values[section] = default.model_dump(exclude_none=True)


def _keep_what_fits(values: dict[str, Any], section: str, name: Any) -> None:
    """Drop those of the section's keys that belong to its other kinds only, and not to the kind of this name."""
    held, kinds = values.get(section), kinds_by_name(section)
    if isinstance(held, dict) and isinstance(name, str) and (name in kinds or is_own({"name": name})):
        own = set(kinds[name].settings()) if name in kinds else set()
        others = {key for kind in kinds.values() for key in kind.settings()} - own
        values[section] = {key: value for key, value in held.items() if key not in others}


def _tuples(value: Any) -> Any:
    """Return lists as tuples, which is what a frozen record holds."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value


class _Problem(NamedTuple):
    """A setting that pydantic refused."""

    key: Key
    """Such as ``("update", "window")``; ``("update",)`` where the section as a whole is meant."""
    kind: str
    """The name that chose its section's kind, such as ``"DLR"``; or the section's own, where it has one kind."""
    record: type[Section]
    """Where the setting is described."""
    value: Any
    """What was given."""
    error: Any
    """The exception, where it was a validator of ours that refused it."""

    @property
    def dotted(self) -> str:
        return ".".join(self.key)

    @property
    def needed(self) -> str:
        return self.record.model_fields[self.key[-1]].description or "another value"


def _complaints(error: ValidationError, values: dict[str, Any], said: dict[Key, str], where: str) -> list[str]:
    """What is wrong, one line for each setting."""
    lines: dict[Key, str] = {}
    for detail in error.errors():
        problem = _problem(detail, values)
        if problem.key[-1:] == ("name",) and is_own(values.get(problem.key[0])):
            needed = OwnPart.model_fields["name"].description
            lines[problem.key] = f"{where}: {problem.dotted} is {value_text(problem.value)}, but it must be {needed}"
        if problem.key not in lines:
            # What is missing was not given: the name of its section's kind asked for it.
            given = (problem.key[0], "name") if detail["type"] == "missing" else problem.key
            origin = next((text for key, text in said.items() if key[: len(given)] == given), where)
            lines[problem.key] = _prefix(origin) + _WORDINGS.get(detail["type"], _wrong)(problem)
    return list(lines.values())


def _problem(detail: Any, values: dict[str, Any]) -> _Problem:
    """What pydantic says, by the setting that a person knows: its ``loc`` also names kinds and members of unions."""
    section, *rest = map(str, detail["loc"])
    held, error = values.get(section), detail.get("ctx", {}).get("error")
    if section not in KINDS:
        return _Problem((section,), section, Config, held, error)
    if rest and rest[0] in (KNOWN, OWN):
        rest.pop(0)
    kinds = kinds_by_name(section)
    kind = rest.pop(0) if kinds and rest and not is_own(held) else section
    value = held.get(rest[0]) if rest and isinstance(held, dict) else held
    return _Problem((section, *rest[:1]), kind, kinds.get(kind, KINDS[section][0]), value, error)


def _wrong(problem: _Problem) -> str:
    given = f"{problem.dotted} is {value_text(problem.value)}, but it"
    if problem.dotted in KINDS:
        return f"{given} is a section of settings, such as {_example(problem.dotted)}"
    return f"{given} must be {problem.needed}"


def _refused(problem: _Problem) -> str:
    return str(problem.error)


def _missing(problem: _Problem) -> str:
    if problem.dotted in KINDS:
        return f"the section [{problem.dotted}] is missing; its name is one of {_listed(kinds_by_name(problem.dotted))}"
    return f"{problem.dotted} is missing: {problem.kind} needs {problem.needed}"


def _nameless(problem: _Problem) -> str:
    return f"{problem.dotted}.name is missing: one of {_listed(kinds_by_name(problem.dotted))}"


def _of_no_kind(problem: _Problem) -> str:
    known, name = kinds_by_name(problem.dotted), problem.value["name"]
    hint = _hint(str(name), known)
    own = 'or the place of your own, such as "package.module:Class"'
    return f"{problem.dotted}.name is {value_text(name)}, but it must be one of {_listed(known)}, {own}.{hint}"


def _unknown(problem: _Problem) -> str:
    if len(problem.key) == 1:
        homes = {key: f"{section}.{key}" for section in KINDS for kind in KINDS[section] for key in kind.settings()}
        known = Config.model_fields
        hint = _hint(problem.dotted, [*known, *homes], homes) or f" There are {', '.join(known)}"
        return f"there is no setting or section '{problem.dotted}'.{hint}"
    section, last = problem.key
    settings = problem.record.settings()
    if last in settings:  # a setting within its value
        return _wrong(problem)
    has = f" It has {', '.join(settings)}." if settings else ""
    kinds = kinds_by_name(section)
    near = [*settings, "name"] if kinds else settings
    homes_of = [name for name, kind in kinds.items() if last in kind.settings()]
    if homes_of:
        return f"{problem.dotted}: {problem.kind} has no such setting; it belongs to {' and '.join(homes_of)}.{has}"
    return f"{problem.dotted}: {problem.kind} has no such setting.{_hint(last, near)}{has}"


_WORDINGS: dict[str, Callable[[_Problem], str]] = {
    "value_error": _refused,
    "extra_forbidden": _unknown,
    "missing": _missing,
    "union_tag_not_found": _nameless,
    "union_tag_invalid": _of_no_kind,
}
"""By pydantic's type of an error; all others are values that are `_wrong`."""


def _prefix(origin: str) -> str:
    return f"{origin}: " if origin else ""


def _example(section: str) -> str:
    if not kinds_by_name(section):
        return {"drift": "drift.every=50", "detect": "detect.detector=ADWIN"}[section]
    return f"{section}.name={value_text(next(iter(kinds_by_name(section))))}"


def _listed(names: Iterable[str]) -> str:
    *most, last = [f'"{name}"' for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def _hint(name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """As `errors.nearest`, but capital letters do not matter, and a known name may be ``shown`` in another way."""
    small = {each.casefold(): (shown or {}).get(each, each) for each in known}
    found = difflib.get_close_matches(name.casefold(), small, n=1)
    return f" Did you mean '{small[found[0]]}'?" if found else ""
