"""What a whole run is: the model, the stream, the update, the activation and the numbers, as one checked record.

Each section of a configuration file has a class here, or one for each of its kinds, and a field's description says
what its value must be; error messages quote it. Reading files is `anabranch.config.load`, training is
`anabranch.config.build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from anabranch.config.own import KnownTag, OwnPart, OwnTag, by_own
from anabranch.tables import Column, TableForm

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Columns = Annotated[tuple[Text, ...], Field(min_length=1)]
Split = (
    Count
    | Annotated[tuple[Count, ...], Field(min_length=1)]
    | Annotated[tuple[Columns, ...], Field(min_length=1)]
    | Annotated[dict[str, Columns], Field(min_length=1)]
)
# JSON has no infinity, so that a result file holds it as a string.
Threshold = Annotated[float, BeforeValidator(lambda v: float(v) if v in ("inf", "-inf") else v)]
# A Literal takes true and 1.0 for 1; nothing is none of them.
Divisor = Annotated[Literal[1, 2, 4, 7, 14, 28], BeforeValidator(lambda v: v if type(v) is int else None)]

Window = Annotated[
    int,
    Field(ge=1, le=10_000_000, description="a whole number of rounds from 1 to 10,000,000 (the window length l)"),
]


class Section(BaseModel):
    """Keys and values that belong together. Unknown keys are refused, and no value is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names that choose this kind of its section; none where the section has one kind only."""
        return get_args(cls.model_fields["name"].annotation) if "name" in cls.model_fields else ()

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """Return its settings' keys, the name excluded."""
        return tuple(key for key in cls.model_fields if key != "name")


class ImnistModel(Section):
    """The paper's i-MNIST model."""

    name: Literal["imnist"]
    clients: int = Field(default=4, ge=1, le=784, description="a whole number of clients from 1 to 784")
    server_softmax: bool = Field(default=False, description="true or false")


class PhysicsModel(Section):
    """The paper's SUSY or HIGGS model, two clients each."""

    name: Literal["susy", "higgs"]


class MlpModel(Section):
    """Perceptrons of any size, which fit themselves to the stream's features and classes."""

    name: Literal["mlp"]
    clients: int | None = Field(default=None, ge=1, description="a whole number of clients of 1 or more")
    hidden: tuple[Count, ...] = Field(
        default=(32,), description="a list of whole numbers of 1 or more: each client's layers"
    )
    embedding: int = Field(default=16, ge=1, description="a whole number of 1 or more")
    server: tuple[Count, ...] = Field(
        default=(64,), description="a list of whole numbers of 1 or more: the server's layers"
    )


class LinearModel(Section):
    """Multinomial logistic regression, which fits itself to the stream's features and classes."""

    name: Literal["linear"]
    clients: int | None = Field(default=None, ge=1, description="a whole number of clients of 1 or more")


_SHUFFLE: Any = Field(
    default=0, ge=0, description="a whole number of rows to hold for shuffling, 0 for the file's order"
)
_SPLIT: Any = Field(
    default=None,
    description="a number of clients, a list of feature counts, a list with one list of columns for each client, or "
    "a table of such lists",
)


class Scale(Section):
    """Constants to standardise features by."""

    mean: tuple[float, ...] = Field(description="a list of numbers, one a feature")
    std: tuple[float, ...] = Field(description="a list of numbers, one a feature")


_STANDARDISE: Any = Field(
    default="online", description='"online", "none", or {mean = [...], std = [...]} with one number for each feature'
)


class ImnistStream(Section):
    """Endless deformed digits."""

    name: Literal["imnist"]
    data_dir: Text | None = Field(default=None, description="a folder that holds MNIST's training files")
    pool: Divisor = Field(default=1, description="one of 1, 2, 4, 7, 14 and 28, which divide 28")


class PhysicsStream(Section):
    """The UCI's SUSY or HIGGS file."""

    name: Literal["susy", "higgs"]
    path: Text | None = Field(default=None, description="a file")
    data_dir: Text | None = Field(
        default=None, description="a folder that holds SUSY.csv or HIGGS.csv, plain or gzipped"
    )
    split: Split | None = _SPLIT
    standardise: Literal["online", "none"] | Scale = _STANDARDISE
    shuffle_buffer: int = _SHUFFLE

    @model_validator(mode="after")
    def _one_place(self) -> PhysicsStream:
        if self.path is not None and self.data_dir is not None:
            raise ValueError("stream.path and stream.data_dir are both given; give one of them")
        return self


class ColumnSection(Section):
    """A column and what is made of it."""

    name: Text = Field(description="the name of the column")
    kind: Literal["number", "flag", "category"] = Field(default="number", description='"number", "flag" or "category"')
    missing: Text | float | None = Field(
        default=None, description='"refuse", "mean", "zero" or a number; of a category "unknown" or "refuse"'
    )
    standardise: bool = Field(default=False, description="true or false")
    values: tuple[Text, ...] = Field(default=(), description="a list of texts")

    @property
    def column(self) -> Column:
        """As the features take it."""
        return Column(self.name, self.kind, self.missing, self.standardise, self.values)


ColumnOrName = Annotated[
    ColumnSection, BeforeValidator(lambda given: {"name": given} if isinstance(given, str) else given)
]
ClassNames = Annotated[tuple[Text | int, ...], Field(min_length=2)]
MISSING_VALUES: Any = Field(default=None, description='a list of the texts that mean no value, such as ["NA", "?"]')
ENCODING: Any = Field(default=None, description='"auto" or an encoding of a CSV file, such as "latin-1"')
SEPARATOR: Any = Field(default=None, description='the character between two cells of a CSV file, such as ";"')


def form_of(section: Section) -> TableForm:
    """Return how a table is written, as the section that names its file says."""
    settings = ("header", "encoding", "separator", "missing_values", "ignore")
    given = {name: value for name in settings if (value := getattr(section, name, None)) is not None}
    return TableForm(**given)


class TableStream(Section):
    """Any CSV or Parquet file."""

    name: Literal["table"]
    path: Text = Field(description="a CSV or Parquet file")
    label: Text = Field(default="last", description='"first", "last" or the name of a column')
    split: Split | None = _SPLIT
    standardise: Literal["online", "none"] | Scale = _STANDARDISE
    header: Literal["auto"] | bool = Field(default="auto", description='"auto", true or false')
    classes: Count | ClassNames | None = Field(
        default=None, description="a whole number of classes of 1 or more, or a list of the labels in order"
    )
    columns: tuple[ColumnOrName, ...] | None = Field(
        default=None,
        description='a list of columns and their rules, such as {name = "wind", kind = "category", values = ["N"]}',
    )
    missing_values: tuple[str, ...] | None = MISSING_VALUES
    ignore: tuple[str, ...] | None = Field(
        default=None, description='a list of columns that nobody holds; "" is each column without a name'
    )
    encoding: Text | None = ENCODING
    separator: Text | None = SEPARATOR
    shuffle_buffer: int = _SHUFFLE


class Drift(Section):
    """Class probabilities that change from stage to stage."""

    every: int = Field(default=50, ge=1, description="a whole number of rounds of 1 or more")


class Detect(Section):
    """What is watched for drift, and what follows a detection."""

    detector: Text = Field(default="ADWIN", description='the name of a detector of River\'s, such as "ADWIN"')
    watch: Annotated[tuple[Literal["error", "embedding"], ...], Field(min_length=1)] = Field(
        default=("error",), description='a list of "error", "embedding" or both'
    )
    on_drift: Literal["report", "reset", "boost"] = Field(
        default="report", description='one of "report", "reset" and "boost"'
    )
    boost: float = Field(default=10.0, gt=0, allow_inf_nan=False, description="a number above 0")
    boost_rounds: int = Field(default=1000, ge=1, description="a whole number of rounds of 1 or more")
    every: int = Field(default=100, ge=1, description="a whole number of rounds of 1 or more")
    options: dict[str, int | float | str | bool] = Field(default={}, description="a table of the detector's settings")


class OgdUpdate(Section):
    """Online gradient descent."""

    name: Literal["OGD"]


class DlrUpdate(Section):
    """Dynamic local regret."""

    name: Literal["DLR"]
    window: Window = 10
    decay: float = Field(
        default=0.95, gt=0, lt=1, description="a number between 0 and 1, both excluded (the attenuation coefficient α)"
    )
    client_window: bool = Field(default=True, description="true or false")


class ActiveDlrUpdate(Section):
    """Dynamic local regret whose clients remember activated rounds only."""

    name: Literal["ActiveDLR"]
    window: Window = 10
    decay: float = Field(
        default=0.95, gt=0, lt=1, description="a number between 0 and 1, both excluded (the attenuation coefficient α)"
    )


class MomentumUpdate(Section):
    """Gradient descent with heavy-ball momentum."""

    name: Literal["Momentum"]
    decay: float = Field(default=0.95, gt=0, lt=1, description="a number between 0 and 1, both excluded")


class SlrUpdate(Section):
    """Static local regret."""

    name: Literal["SLR"]
    window: Window = 10


class FullActivation(Section):
    """Every client in every round."""

    name: Literal["Full"]


class RandomActivation(Section):
    """Each client with a probability of its own."""

    name: Literal["Random"]
    p: Probability | tuple[Probability, ...] = Field(
        description="a probability from 0 to 1, or a list with one for each client"
    )


class EventActivation(Section):
    """The clients whose features' mean exceeds a threshold."""

    name: Literal["Event"]
    threshold: Threshold = Field(
        allow_inf_nan=True, description="a number (Γ), or inf, which activates no client, or -inf, which activates all"
    )

    @model_validator(mode="after")
    def _not_nan(self) -> EventActivation:
        if self.threshold != self.threshold:
            raise ValueError("activation.threshold is nan, but it must be a number (Γ), inf or -inf")
        return self


class FixedActivation(Section):
    """So many of the clients in each round."""

    name: Literal["Fixed"]
    k: int = Field(ge=0, description="a whole number of clients, 0 or more")


class RecordedActivation(Section):
    """Who was activated is in a file."""

    name: Literal["Recorded"]
    path: Text = Field(description="a file of zeros and ones, one row a round and one column a client (.csv or .npy)")


class UniformLabelDelay(Section):
    """Labels that come between so many events later and so many."""

    name: Literal["uniform"]
    least: int = Field(default=0, ge=0)
    most: int = Field(ge=0, lt=2**31)


class GeometricLabelDelay(Section):
    """Labels that come in each round with the same probability."""

    name: Literal["geometric"]
    mean: Rate


_Own = Annotated[OwnPart, OwnTag]
_Model = Annotated[ImnistModel | PhysicsModel | MlpModel | LinearModel, Field(discriminator="name")]
_Stream = Annotated[ImnistStream | PhysicsStream | TableStream, Field(discriminator="name")]
_Update = Annotated[OgdUpdate | DlrUpdate | ActiveDlrUpdate | MomentumUpdate | SlrUpdate, Field(discriminator="name")]
_Activation = Annotated[
    FullActivation | RandomActivation | EventActivation | FixedActivation | RecordedActivation,
    Field(discriminator="name"),
]
AnyModel = Annotated[Annotated[_Model, KnownTag] | _Own, by_own]
AnyStream = Annotated[Annotated[_Stream, KnownTag] | _Own, by_own]
AnyUpdate = Annotated[Annotated[_Update, KnownTag] | _Own, by_own]
FederationUpdate = Annotated[
    Annotated[Annotated[OgdUpdate | DlrUpdate | SlrUpdate, Field(discriminator="name")], KnownTag] | _Own, by_own
]
"""The updates that a party of a federation may have."""
AnyActivation = Annotated[Annotated[_Activation, KnownTag] | _Own, by_own]


class Config(Section):
    """A whole run.

    >>> config = Config(model=ImnistModel(name="imnist"), stream=ImnistStream(name="imnist"), rounds=10)
    >>> config.update.name, config.activation.name
    ('DLR', 'Full')
    """

    rounds: int | None = Field(default=None, ge=1, lt=2**31, description="a whole number from 1 to 2,147,483,647")
    seed: int = Field(default=0, ge=0, lt=2**31, description="a whole number from 0 to 2,147,483,647")
    learning_rate: Rate | tuple[Rate, ...] = Field(
        default=0.003, description="a number of 0 or more, or a list: the server's, then each client's"
    )
    learning_rate_power: Rate = Field(default=0.0, description="a number of 0 or more")
    wire_dtype: Literal["float32", "float16", "bfloat16", "float64"] = Field(
        default="float32", description='one of "float32", "float16", "bfloat16" and "float64"'
    )
    report_every: int | None = Field(default=None, ge=1, description="a whole number of rounds of 1 or more")
    measure_regret: bool = Field(default=False, description="true or false")
    label_delay: Annotated[int, Field(ge=0, lt=2**31)] | UniformLabelDelay | GeometricLabelDelay = Field(
        default=0,
        description='a whole number of rounds from 0 to 2,147,483,647, {name = "uniform", least = 0, most = 100} or '
        '{name = "geometric", mean = 50}, with numbers of 0 or more',
    )
    label_learning: Literal["fresh", "stored"] = Field(default="fresh", description='"fresh" or "stored"')
    model: AnyModel
    stream: AnyStream
    drift: Drift | None = None
    detect: Detect | None = None
    update: AnyUpdate = DlrUpdate(name="DLR")
    activation: AnyActivation = FullActivation(name="Full")

    def to_dict(self) -> dict[str, Any]:
        """Return every setting that has a value, as plain values."""
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        """Return the same as a configuration file; `anabranch.config.load.load` reads it back."""
        return tomli_w.dumps(self.to_dict())

    def clients(self) -> int | None:
        """Return how many clients the model says that there are."""
        match self.model:
            case PhysicsModel():
                return 2
            case ImnistModel(clients=clients) | MlpModel(clients=clients) | LinearModel(clients=clients):
                return clients
            case _:
                return None

    def title(self) -> str:
        """Return the run in a few words.

        >>> Config(model=ImnistModel(name="imnist"), stream=ImnistStream(name="imnist"), drift=Drift()).title()
        'DLR (window 10, decay 0.95) · Full · imnist, drift every 50 rounds'
        """
        path = None if isinstance(self.stream, ImnistStream | OwnPart) else self.stream.path
        stream = Path(path).name if path else self.stream.name
        drift = f", drift every {self.drift.every} rounds" if self.drift else ""
        late = () if self.label_delay == 0 else (f"labels {self._late()} late, {self.label_learning}",)
        return " · ".join((_words(self.update), _words(self.activation), stream + drift, *late))

    def _late(self) -> str:
        return _words(self.label_delay) if isinstance(self.label_delay, Section) else f"{self.label_delay:,}"


KINDS: dict[str, tuple[type[Section], ...]] = {
    "model": (ImnistModel, PhysicsModel, MlpModel, LinearModel),
    "stream": (ImnistStream, PhysicsStream, TableStream),
    "drift": (Drift,),
    "detect": (Detect,),
    "update": (OgdUpdate, DlrUpdate, ActiveDlrUpdate, MomentumUpdate, SlrUpdate),
    "activation": (FullActivation, RandomActivation, EventActivation, FixedActivation, RecordedActivation),
}
"""The sections of a configuration file and the kinds of each."""


def kinds_by_name(section: str) -> dict[str, type[Section]]:
    """Return the kinds of a section, by the names that choose them."""
    return {name: kind for kind in KINDS[section] for name in kind.names()}


def value_text(value: Any) -> str:
    """Return one value as TOML writes it, on one line.

    >>> print(value_text({"kitchen": ["light", "co2"], "noise": 1e-05}))
    {kitchen = ["light", "co2"], noise = 1e-05}
    """
    match value:
        case None:  # JSON has it, TOML has not
            return "null"
        case Mapping():
            return "{" + ", ".join(f"{key} = {value_text(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(value_text(each) for each in value) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip()


def _words(section: Section | OwnPart) -> str:
    """Return a section's name and numbers, such as ``'DLR (window 10, decay 0.95)'``."""
    held = section.model_dump(exclude={"client_window", "path"})
    name = str(held.pop("name"))
    words = [f"{key} {_short(value)}" for key, value in held.items()]
    if isinstance(section, DlrUpdate) and not section.client_window:
        words.append("server only")
    return f"{name} ({', '.join(words)})" if words else name


def _short(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) and len(value) > 4 else value_text(value)
