"""The file of one party: what it takes part in, how, and what it has.

A party of a real federation has a file of its own (`ServerFile`, `ClientFile`) that names only what that party has. A
party that replays its part of a run (`PartyFile`), as those of ``anabranch up`` do, names the run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationError, model_validator

from anabranch.broker.nats_conf import MOST_CLIENTS
from anabranch.config.includes import Key, merged
from anabranch.config.own import KNOWN, OWN, KnownTag, OwnPart, OwnTag, by_own
from anabranch.config.run import (
    ENCODING,
    MISSING_VALUES,
    SEPARATOR,
    ClassNames,
    ColumnOrName,
    Columns,
    Count,
    Detect,
    DlrUpdate,
    EventActivation,
    FederationUpdate,
    FixedActivation,
    FullActivation,
    Probability,
    Rate,
    Section,
    Text,
    value_text,
)
from anabranch.config.runtime_options import MOST_LOST, RuntimeOptions
from anabranch.config.source import (
    TABLE,
    FileFeatures,
    FileLabels,
    JetStreamFeatures,
    JetStreamLabels,
    SqlFeatures,
    SqlLabels,
    SqlSection,
    absolute_url,
    kind_of,
)
from anabranch.errors import ConfigError, counted, nearest
from anabranch.protocol.server.client_session import LARGEST
from anabranch.protocol.server.missing import policy

PATHS = (
    ("connection",),
    ("folder",),
    ("run",),
    ("labels", "path", "entity_key", "connection"),
    ("features", "path", "entity_key", "connection"),
    ("predictions", "token", "certificate", "key", "clients_ca"),
)
"""The settings that name a file or a folder, relative to the party's file."""


def _policy(text: str) -> str:
    policy(text)
    return text


PolicyText = Annotated[Text, AfterValidator(_policy)]
_LAYERS = "a list of whole numbers of 1 or more"
_MISSING = '"wait", "last N", "zero", "mean" or "skip"'


class PartySettings(Section):
    """What every party's file has.

    Paths are relative to the file.
    """

    connection: Text = Field(description="the party's connection.toml, as 'anabranch keys init' makes it")
    folder: Text = Field(description="a folder of this party's own, for its checkpoints")
    in_flight: int = Field(default=1, ge=1, le=1024, description="a whole number of rounds from 1 to 1024")
    checkpoint_every: int = Field(default=5000, ge=1, description="a whole number of rounds of 1 or more")
    durable: bool = Field(default=False, description="true or false")
    metrics: int | None = Field(default=None, ge=0, le=65535, description="a port, 0 for any that is free")
    metrics_host: Text = Field(default="127.0.0.1", description="an address of this machine")
    most_lost: Probability = Field(default=MOST_LOST, description="a share from 0 to 1 of the events that may be lost")

    @property
    def pace(self) -> RuntimeOptions:
        """How the party runs."""
        return RuntimeOptions(
            in_flight=self.in_flight,
            checkpoint_every=self.checkpoint_every,
            durable=self.durable,
            most_lost=self.most_lost,
        )


class ServerSettings(PartySettings):
    """What only the server decides."""

    deadline: Annotated[float, Field(gt=0, le=86400)] = Field(
        default=1.0, description="a number of seconds above 0, at most a day"
    )

    @property
    def pace(self) -> RuntimeOptions:
        return replace(super().pace, deadline=self.deadline)


class PartyFile(ServerSettings):
    """The settings of a party that replays its part of a run."""

    run: Text = Field(description="the configuration of the run, a file as 'anabranch run' takes it")
    missing: PolicyText | tuple[PolicyText, ...] = Field(
        default="wait", description=f"{_MISSING}; one, or a list with one a client"
    )

    @property
    def pace(self) -> RuntimeOptions:
        texts = (self.missing,) if isinstance(self.missing, str) else self.missing
        return replace(super().pace, missing=tuple(policy(text) for text in texts))


class TableSection(Section):
    """Rows of a file, each of an event with a name of its own."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return (TABLE,)


class Labels(TableSection):
    """The server's events and labels."""

    path: Text = Field(description="a CSV or Parquet file with named columns")
    event: Text = Field(description="the name of the column with the events' names")
    label: Text = Field(description="the name of the column with the labels")
    classes: ClassNames | None = Field(
        default=None, description="a list of the labels in the order of the model's classes; left out, they are numbers"
    )
    follow: bool = Field(default=False, description="true or false: whether rows that the file gets later count too")
    missing_values: tuple[str, ...] | None = MISSING_VALUES
    encoding: Text | None = ENCODING
    separator: Text | None = SEPARATOR


class Features(TableSection):
    """A client's events and features."""

    path: Text = Field(description="a CSV or Parquet file with named columns")
    event: Text = Field(description="the name of the column with the events' names")
    columns: Annotated[tuple[ColumnOrName, ...], Field(min_length=1)] = Field(
        description="a list of columns' names, or of tables with rules, in the order in which the model takes them"
    )
    mean: tuple[float, ...] | None = Field(default=None, description="a list of numbers, one a column")
    std: tuple[float, ...] | None = Field(default=None, description="a list of numbers above 0, one a column")
    missing_values: tuple[str, ...] | None = MISSING_VALUES
    encoding: Text | None = ENCODING
    separator: Text | None = SEPARATOR

    @model_validator(mode="after")
    def _one_a_column(self) -> Features:
        if (self.mean is None) != (self.std is None):
            raise ValueError("features.mean and features.std belong together: give both or none")
        for name, given in (("mean", self.mean), ("std", self.std)):
            if given is not None and len(given) != len(self.columns):
                numbers, columns = counted(len(given), "number"), counted(len(self.columns), "column")
                raise ValueError(f"features.{name} has {numbers} for {columns}")
        if self.std is not None and not all(0 < each < float("inf") for each in self.std):
            raise ValueError("features.std has a number that is not above 0 and finite")
        if self.mean is not None and not all(abs(each) < float("inf") for each in self.mean):
            raise ValueError("features.mean has a number that is not finite")
        if len({each.name for each in self.columns}) < len(self.columns):
            raise ValueError("features.columns names a column twice")
        return self


class Predictions(Section):
    """Who may ask for predictions while the model learns, and where."""

    port: int | None = Field(default=None, ge=0, le=65535, description="a port for HTTP, 0 for any that is free")
    host: Text = Field(default="127.0.0.1", description="an address of this machine")
    token: Text | None = Field(default=None, description="a file with a token that who asks over HTTP must show")
    certificate: Text | None = Field(default=None, description="a file with a certificate, for HTTPS")
    key: Text | None = Field(default=None, description="a file with the certificate's private key")
    clients_ca: Text | None = Field(default=None, description="a file: who asks needs a certificate signed by these")
    askers: bool = Field(default=False, description="true or false: whether the askers of 'keys init' may ask")


class MlpTop(Section):
    """A perceptron at the server."""

    name: Literal["mlp"]
    hidden: tuple[Count, ...] = Field(default=(64,), description=_LAYERS)
    classes: int = Field(ge=2, description="a whole number of classes of 2 or more")


class LinearTop(Section):
    """The server's part of a linear model: the clients' embeddings added up, and a bias."""

    name: Literal["linear"]
    classes: int = Field(ge=2, description="a whole number of classes of 2 or more")


class OwnTop(OwnPart):
    """A top model of a person's own."""

    classes: int = Field(ge=2, description="a whole number of classes of 2 or more")


class MlpBottom(Section):
    """A perceptron at a client."""

    name: Literal["mlp"]
    hidden: tuple[Count, ...] = Field(default=(32,), description=_LAYERS)
    embedding: int = Field(default=16, ge=1, description="a whole number of 1 or more")


class LinearBottom(Section):
    """A client's part of a linear model, whose embedding has an element for each class."""

    name: Literal["linear"]
    classes: int = Field(ge=2, description="a whole number of classes of 2 or more")


class ExpectedClient(Section):
    """What the server expects of a client."""

    name: Text = Field(description="the client's name, as in connection.toml")
    embedding: int = Field(ge=1, description="a whole number of 1 or more: the elements of its embedding")
    missing: PolicyText = Field(default="wait", description=_MISSING)
    largest: float = Field(
        default=LARGEST, gt=0, description="a number above 0: no element of its embeddings may be larger"
    )
    schema_: str = Field(
        default="", alias="schema", description="the digest that the client says at its start, or an empty text"
    )


class OwnRandomActivation(Section):
    """This client with a probability."""

    name: Literal["Random"]
    p: Probability = Field(description="a probability from 0 to 1")


class OnEventActivation(Section):
    """This client, by each of its readings."""

    name: Literal["OnEvent"]


class SendOnDeltaActivation(Section):
    """This client, by each of its readings that has moved by more than a threshold."""

    name: Literal["SendOnDelta"]
    threshold: Rate | tuple[Rate, ...] = Field(description="a number of 0 or more, or a list with one a column")
    columns: Columns | None = Field(default=None, description="a list of columns' names; left out, all numbers")


_SEED: Any = Field(default=0, ge=0, lt=2**31, description="a whole number from 0 to 2,147,483,647")
_WIRE: Any = Field(default="float32", description='one of "float32", "float16" and "bfloat16"')
_RATE: Any = Field(default=0.003, description="a number of 0 or more")
_POWER: Any = Field(default=0.0, description="a number of 0 or more")
AnyLabels = Annotated[
    Annotated[Labels, Tag(TABLE)]
    | Annotated[FileLabels, Tag("csv")]
    | Annotated[SqlLabels, Tag("sql")]
    | Annotated[JetStreamLabels, Tag("jetstream")],
    Discriminator(kind_of),
]
AnyFeatures = Annotated[
    Annotated[Features, Tag(TABLE)]
    | Annotated[FileFeatures, Tag("csv")]
    | Annotated[SqlFeatures, Tag("sql")]
    | Annotated[JetStreamFeatures, Tag("jetstream")],
    Discriminator(kind_of),
]
_Own = Annotated[OwnPart, OwnTag]
_Activation = Annotated[
    FullActivation | OwnRandomActivation | EventActivation | OnEventActivation | SendOnDeltaActivation,
    Field(discriminator="name"),
]
_Top = Annotated[MlpTop | LinearTop, Field(discriminator="name")]
_Bottom = Annotated[MlpBottom | LinearBottom, Field(discriminator="name")]
AnyActivation = Annotated[Annotated[_Activation, KnownTag] | _Own, by_own]
AnyTop = Annotated[Annotated[_Top, KnownTag] | Annotated[OwnTop, OwnTag], by_own]
AnyBottom = Annotated[Annotated[_Bottom, KnownTag] | _Own, by_own]


class ServerFile(ServerSettings):
    """The settings of a federation's server: its labels and its top model."""

    labels: AnyLabels = Field(description="a section: path, event and label, or a source")
    model: AnyTop
    clients: tuple[ExpectedClient, ...] = Field(
        min_length=1,
        max_length=MOST_CLIENTS,
        description=f"a section [[clients]] for each, with name and embedding, at most {MOST_CLIENTS:,}",
    )
    update: FederationUpdate = DlrUpdate(name="DLR")
    activation: FixedActivation | None = Field(
        default=None, description='left out, or {name = "Fixed", k = ..}: whatever else there is, each client decides'
    )
    rounds: int | None = Field(default=None, ge=1, lt=2**31, description="a whole number from 1 to 2,147,483,647")
    learning_rate: Rate = _RATE
    learning_rate_power: Rate = _POWER
    wire_dtype: Literal["float32", "float16", "bfloat16"] = _WIRE
    seed: int = _SEED
    report_every: int = Field(default=1000, ge=1, description="a whole number of rounds of 1 or more")
    predictions: Predictions | None = Field(default=None, description="left out, or a section: port, or askers = true")
    detect: Detect | None = Field(default=None, description='left out, or a section, such as {detector = "ADWIN"}')


class ClientFile(PartySettings):
    """The settings of one client: its features and its bottom model."""

    clients: int = Field(
        ge=1, le=MOST_CLIENTS, description=f"how many clients the federation has, at most {MOST_CLIENTS:,}"
    )
    features: AnyFeatures = Field(description="a section: path, event and columns, or a source")
    model: AnyBottom
    update: FederationUpdate = DlrUpdate(name="DLR")
    activation: AnyActivation = FullActivation(name="Full")
    checkpoint_every: int = Field(default=1000, ge=1, description="a whole number of steps of 1 or more")
    learning_rate: Rate = _RATE
    learning_rate_power: Rate = _POWER
    wire_dtype: Literal["float32", "float16", "bfloat16"] = _WIRE
    seed: int = _SEED


AnyFile = PartyFile | ServerFile | ClientFile
KINDS: dict[str, type[PartySettings]] = {"run": PartyFile, "labels": ServerFile, "features": ClientFile}
"""The setting that only this kind of file has."""


def load(path: Path) -> AnyFile:
    """Return the party's file, its paths made absolute.

    Raises:
        ConfigError: where it is missing, is no TOML, or a setting is unknown or out of range; it names each.
    """
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML ({error})") from error
    return check(values, path)


def check(given: Mapping[str, Any], path: Path) -> AnyFile:
    """Return the settings of a party's file of this path, which its relative paths are relative to the folder of.

    So are the paths in the files that it includes.

    Raises:
        ConfigError: where a setting is unknown or out of range; it names each.
    """
    whole = merged(given, path)
    values = whole.values
    found = [key for key in KINDS if key in values]
    if len(found) != 1:
        has = f"has both {' and '.join(found)}" if found else "has neither [labels] nor [features]"
        raise ConfigError(
            f"{path}: {has}: the server's file has [labels], a client's has [features], and one of 'anabranch up' run"
        )
    kind = KINDS[found[0]]
    try:
        party = kind.model_validate(_tuples(values))
    except ValidationError as error:
        lines = dict.fromkeys(
            f"{whole.origin(_key(detail, values), path)}: {_complaint(kind, detail, values)}"
            for detail in _telling(error.errors())
        )
        raise ConfigError("\n".join(lines)) from None
    assert isinstance(party, AnyFile)
    return _absolute(party, path.absolute().parent)


def text(party: AnyFile) -> str:
    """Return the file's text."""
    return tomli_w.dumps(party.model_dump(exclude_none=True, by_alias=True))


def _absolute(party: AnyFile, base: Path) -> AnyFile:
    changed: dict[str, Any] = {}
    for key, *rest in PATHS:
        held = getattr(party, key, None)
        if isinstance(held, Section):
            given = {name: value for name in rest if (value := getattr(held, name, None)) is not None}
            update = {name: str(base / value) for name, value in given.items()}
            if isinstance(held, SqlSection):
                update["url"] = absolute_url(held.url, base)
            changed[key] = held.model_copy(update=update)
        elif held is not None:
            changed[key] = str(base / held)
    return party.model_copy(update=changed)


def _tuples(value: Any) -> Any:
    """Return lists as tuples, which is what a frozen record holds."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value


def _telling(details: list[Any]) -> list[Any]:
    """Without those that a list is too short of which only a member is wrong: to pydantic, that one is not in it."""
    inside = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    return [detail for detail in details if not (detail["type"] == "too_short" and detail["loc"] in inside)]


def _complaint(kind: type[Section], detail: Any, values: Any) -> str:
    """What pydantic says, by the setting that a person knows: its ``loc`` also names kinds and members of unions."""
    record: type[Section] | None = kind
    kinds: dict[str, type[Section]] = {}
    name, key, held, home = "", "", values, kind
    for part in detail["loc"]:
        if isinstance(part, int):
            name, held = f"{name}[{part + 1}]", _part(held, part)
        elif part in (KNOWN, OWN):
            continue
        elif part in kinds:
            record, kinds = kinds[part], {}
        elif record is not None:
            name, key, held, home = f"{name}.{part}".lstrip("."), part, _part(held, part), record
            sections = _sections(_fields(record).get(part))
            record = sections[0] if len(sections) == 1 else None
            kinds = {each: section for section in sections for each in section.names()}
    settings = _fields(home)
    needed = settings[key].description if key in settings else None
    names = " or ".join(f'"{each}"' for each in kinds)
    match detail["type"]:
        case "extra_forbidden":
            where = f"{name.rpartition('.')[0]}: there" if "." in name else "there"
            return f"{where} is no setting '{key}'.{nearest(key, settings)} There are {', '.join(settings)}"
        case "missing":
            return f"{name} is missing; it must be {needed or f'a section with the name {names}'}"
        case "union_tag_invalid" if TABLE in kinds:
            others = [f'"{each}"' for each in kinds if each != TABLE]
            return f"{name}.source is {value_text(_part(held, 'source'))}, but it must be {' or '.join(others)}"
        case "union_tag_not_found":
            return f"{name}.name is missing; it must be {names}"
        case "union_tag_invalid":
            chosen = _part(held, "name")
            return f"{name}.name is {value_text(chosen)}, but it must be {names}.{nearest(str(chosen), kinds)}"
        case "value_error":
            said = str(detail["ctx"]["error"])
            return f"{name}: {said}" if not said.startswith(f"{name}.") else said
    return f"{name} is {value_text(held)}, but it must be {needed or 'a section of settings'}"


def _key(detail: Any, values: Any) -> Key:
    """Return the key of the setting that pydantic complains about; its ``loc`` also names kinds and members of
    unions.
    """
    key: list[str] = []
    for part in detail["loc"]:
        if isinstance(values, Mapping) and part in values:
            key.append(part)
            values = values[part]
    return tuple(key) if detail["type"] != "missing" else ()


def _fields(section: type[Section]) -> dict[str, Any]:
    """Return a section's settings, as a person writes them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _sections(field: Any) -> list[type[Section]]:
    """Return the kinds of section that a setting may be."""

    def inside(annotation: Any) -> list[type[Section]]:
        if isinstance(annotation, type) and issubclass(annotation, Section):
            return [annotation]
        return [section for each in get_args(annotation) for section in inside(each)]

    return [] if field is None else inside(field.annotation)


def _part(held: Any, part: str | int) -> Any:
    try:
        return held[part]
    except (KeyError, IndexError, TypeError):
        return None
