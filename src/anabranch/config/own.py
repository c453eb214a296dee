"""Parts of a person's own in a TOML file: ``name = "package.module:Class"`` and the settings of that class.

This is the one place that finds, checks and builds them. A section that takes such a part wraps its known kinds
with `KnownTag` and `OwnTag`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from anabranch.errors import AnabranchError, ConfigError

KNOWN, OWN = "known kind", "own part"
"""The tags of a section whose kind is ours, and of one that is a person's own. They stand in pydantic's locations."""
Made = TypeVar("Made")


class OwnPart(BaseModel):
    """A section of a person's own: where its class or function is, and any settings for it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = Field(
        description='the place of your class or function, such as "package.module:Class"'
    )

    @property
    def given(self) -> dict[str, Any]:
        """The settings, as keyword arguments; lists are tuples."""
        return dict(self.model_extra or {})


def is_own(section: Any) -> bool:
    """Return whether a section names a part of a person's own.

    >>> is_own({"name": "mine:Momentum"}), is_own({"name": "DLR"})
    (True, False)
    """
    name = section.get("name") if isinstance(section, Mapping) else getattr(section, "name", None)
    return isinstance(name, str) and ":" in name


def tag(section: Any) -> str:
    """Return `OWN` or `KNOWN`, for pydantic's discriminator."""
    return OWN if is_own(section) else KNOWN


OwnTag = Tag(OWN)
KnownTag = Tag(KNOWN)
by_own = Discriminator(tag)
"""``Annotated[Annotated[<known kinds>, KnownTag] | Annotated[OwnPart, OwnTag], by_own]`` is a section of either."""


def find(name: str, where: str) -> Callable[..., Any]:
    """Return the class or function at ``package.module:Class``.

    Python's path is searched first, then the working folder.

    Args:
        name: such as ``"mine:Momentum"``.
        where: the setting, for errors, such as ``"update.name"``.

    Raises:
        ConfigError: if there is no such module, or it has no such class, or importing it fails.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (module_name + ".").startswith(error.name + "."):
            raise ConfigError(f"{where} = {name!r}: importing {module_name} fails: {error}") from error
        raise ConfigError(
            f"{where} = {name!r}: there is no module {module_name}. Install it, put its folder on PYTHONPATH, or start "
            "the command in the folder that has it"
        ) from None
    except AnabranchError:
        raise
    except Exception as error:  # the code of another person may raise anything
        raise ConfigError(
            f"{where} = {name!r}: importing {module_name} fails: {type(error).__name__}: {error}"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ConfigError(
            f"{where} = {name!r}: {module_name} has no {attribute}; it has {', '.join(known) or 'nothing'}"
        )
    return found


def make(part: OwnPart, section: str, base: type[Made], *arguments: Any, **more: Any) -> Made:
    """Return the part that a section describes, built with its settings.

    Args:
        part: the section.
        section: its name, for errors.
        base: the part must be one of these.
        arguments: given before the settings.
        more: given beside the settings.

    Raises:
        ConfigError: if it cannot be found or built, or is no such part; the message names the setting.
    """
    found = find(part.name, f"{section}.name")
    try:
        made = found(*arguments, **more, **part.given)
    except AnabranchError:
        raise
    except Exception as error:  # the code of another person may raise anything
        settings = ", ".join(part.given) or "no settings"
        raise ConfigError(
            f"{section}.name = {part.name!r}: cannot be built with {settings}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, base):
        raise ConfigError(
            f"{section}.name = {part.name!r} gives a {type(made).__name__}: {base.__name__} is needed. Derive your "
            f"class from {base.__module__}.{base.__name__}"
        )
    return made
