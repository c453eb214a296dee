"""The file of one party: what it takes part in, how, and what it has."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field, ValidationError

from anabranch.config import Section, Text
from anabranch.errors import ConfigError, nearest
from anabranch.net.assemble import Pace
from anabranch.protocol.missing import policy


class PartyFile(Section):
    """The settings of a party that replays its part of a run.

    Paths are relative to the file.
    """

    connection: Text = Field(description="the party's connection.toml, as 'anabranch keys init' makes it")
    folder: Text = Field(description="a folder of this party's own, for its checkpoints")
    run: Text = Field(description="the configuration of the run, a file as 'anabranch run' takes it")
    in_flight: int = Field(default=1, ge=1, le=1024, description="a whole number of rounds from 1 to 1024")
    deadline: Annotated[float, Field(gt=0, le=86400)] = Field(
        default=1.0, description="a number of seconds above 0, at most a day"
    )
    missing: Text | tuple[Text, ...] = Field(
        default="wait", description='"wait", "last N", "zero", "mean" or "skip"; one, or a list with one a client'
    )
    checkpoint_every: int = Field(default=5000, ge=1, description="a whole number of rounds of 1 or more")
    durable: bool = Field(default=False, description="true or false")
    metrics: int | None = Field(default=None, ge=0, le=65535, description="a port, 0 for any that is free")

    @property
    def pace(self) -> Pace:
        """How the federation runs.

        Raises:
            ConfigError: where there is no such policy.
        """
        texts = (self.missing,) if isinstance(self.missing, str) else self.missing
        return Pace(
            in_flight=self.in_flight,
            deadline=self.deadline,
            missing=tuple(policy(text) for text in texts),
            checkpoint_every=self.checkpoint_every,
            durable=self.durable,
        )


def load(path: Path) -> PartyFile:
    """The party's file, its paths made absolute.

    Raises:
        ConfigError: where it is missing, is no TOML, or a setting is unknown or out of range.
    """
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML ({error})") from error
    known = PartyFile.model_fields
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: there is no setting '{key}'.{nearest(key, known)}")
    try:
        if isinstance(values.get("missing"), list):
            values["missing"] = tuple(values["missing"])
        party = PartyFile.model_validate(values)
        party.pace  # noqa: B018 (its policies are looked up)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        needed = known[key].description
        held = f"is {values[key]!r}, but it must be" if key in values else "is missing; it must be"
        raise ConfigError(f"{path}: {key} {held} {needed}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    base = path.absolute().parent
    return party.model_copy(update={key: str(base / getattr(party, key)) for key in ("connection", "folder", "run")})


def text(party: PartyFile) -> str:
    """The file's text."""
    return tomli_w.dumps(party.model_dump(exclude_none=True))
