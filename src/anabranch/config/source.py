"""Where a party's events come from, as its file says, and the source that this is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from anabranch.broker.connect import connect
from anabranch.broker.credentials import Credentials
from anabranch.config.run import (
    ENCODING,
    MISSING_VALUES,
    SEPARATOR,
    ClassNames,
    ColumnOrName,
    Columns,
    Section,
    Text,
    form_of,
)
from anabranch.errors import ConfigError, DataError
from anabranch.sources.base import Source
from anabranch.sources.file import FileSource
from anabranch.sources.jetstream import JetStreamSource
from anabranch.storage.cursor import Cursor
from anabranch.storage.dead_letters import Aside
from anabranch.storage.event_ids import Names, read_key
from anabranch.storage.times import UNITS, YEARS, TimeRule, micros
from anabranch.tables.columns import Rule

CURSOR, ENTITIES, ASIDE = "cursor.sqlite", "entities.sqlite", "aside.jsonl"
"""Files in the party's folder: how far its source was read, whom hashes are of, and messages that cannot be used."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Literal["s", "ms", "us", "ns", "excel"]
_UNITS = f"one of {', '.join(UNITS)}"
_FORMAT = 'a text such as "%Y %m %d %H"'
_EVENT_TIME: Any = Field(
    default=None, description="the column with the time of the event that a row tells of; left out, it is time"
)
ISO = "iso"
"""The format of ISO 8601."""
_SKEW: Any = Field(default=3600.0, description="a number of seconds of 0 or more")
_AS_OF: Any = Field(default="event", description='"event" or "now"')


class SourceSection(Section):
    """What every source has."""

    entity_key: Text = Field(description="the federation's entity key, as 'anabranch keys entity' makes it")
    entity: Text | None = Field(
        default=None, description="the name of the column with the entity's id; left out where only the time counts"
    )
    time_unit: Unit = Field(default="s", description=f"{_UNITS}: of a time that is a number")
    time_format: Text | None = Field(
        default=None, alias="format", description=f"{_FORMAT}, of a time; left out, ISO 8601 or a number"
    )
    event_unit: Unit | None = Field(default=None, description=f"{_UNITS}; left out, time_unit")
    event_format: Text | None = Field(
        default=None, description=f'{_FORMAT}, of event_time; "iso" for ISO 8601; left out, that of time'
    )
    years: tuple[int, int] = Field(
        default=YEARS, description="a list of two years: the first and the last that a time may lie in"
    )
    grain: Seconds = Field(default=0, description="a number of seconds: times as near as that are one event")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return get_args(cls.model_fields["source"].annotation)

    @model_validator(mode="after")
    def _has_rules_of_times(self) -> SourceSection:
        _ = self.times, self.event_times  # a ConfigError says what is wrong with them
        return self

    @property
    def times(self) -> TimeRule:
        """How the times of rows are read."""
        return TimeRule(self.time_unit, self.time_format, self.years)

    @property
    def event_times(self) -> TimeRule:
        """How the times of events are read that rows tell of."""
        form = self.time_format if self.event_format is None else self.event_format
        return TimeRule(self.event_unit or self.time_unit, None if form == ISO else form, self.years)

    def names_of_events(self) -> Names:
        """What makes them."""
        return Names(read_key(Path(self.entity_key)), max(1, round(self.grain * 1e6)))


class FileSection(SourceSection):
    """Rows of a file, which happen at their own times."""

    source: Literal["csv", "parquet"]
    path: Text = Field(description="a CSV or Parquet file with named columns")
    time: Text | Columns = Field(description="the name of the column with the time, or a list of several")
    event_time: Text | Columns | None = _EVENT_TIME
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="a number above 0; left out, as fast as possible"
    )
    origin: tuple[Text, Text] | None = Field(
        default=None, description="a list of two times: one of the file, and when that is by this machine's clock"
    )
    clock: Literal["machine", "data"] = Field(
        default="machine", description='"machine", or "data": all parties go by the times in their files'
    )
    order: Literal["check", "sort"] = Field(default="check", description='"check" or "sort"')

    encoding: Text | None = ENCODING
    separator: Text | None = SEPARATOR

    @model_validator(mode="after")
    def _has_times_as_its_origin(self) -> FileSection:
        origin_of(self)
        return self

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if self.clock == "data" and (self.speed is not None or self.origin is not None):
            given = "speed" if self.speed is not None else "origin"
            raise ValueError(f'clock = "data" replays as fast as all parties can: leave {given} out')
        return self


class SqlSection(SourceSection):
    """Rows of a table of a database."""

    source: Literal["sql"]
    url: Text = Field(description="a database's, such as sqlite:///orders.db or postgresql://reader@10.0.0.5/orders")
    table: Text = Field(description="the name of a table or a view")
    time: Text = Field(description="the name of the column with the time of a row's last change")
    event_time: Text | None = _EVENT_TIME
    id: Text = Field(description="the name of the column with the row's id")
    as_of: Literal["event", "now"] = _AS_OF
    follow: bool = Field(default=True, description="true or false: whether rows that come later count too")
    poll: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="a number of seconds above 0"
    )
    lag: Seconds = Field(default=0.0, description="a number of seconds of 0 or more")
    max_skew: Seconds = _SKEW


class JetStreamSection(SourceSection):
    """Messages of a stream, and a bucket."""

    source: Literal["jetstream"]
    url: Text | None = Field(default=None, description="where the nats-server is, such as nats://127.0.0.1:4222")
    connection: Text | None = Field(default=None, description="a connection.toml, where the nats-server wants keys")
    stream: Text | None = Field(default=None, description="the name of the stream; left out, there are no events")
    subject: Text | None = Field(default=None, description="of the messages, such as sensors.>; left out, all")
    durable: Text | None = Field(default=None, description="the consumer's name; left out, one of the party's own")
    bucket: Text | None = Field(default=None, description="the name of a key-value bucket")
    time: Text | None = Field(default=None, description="the name of the field with the time")
    event_time: Text | None = _EVENT_TIME
    time_format: Text | None = Field(default=None, description=f"{_FORMAT}, of a time")
    as_of: Literal["event", "now"] = _AS_OF
    format: Literal["json", "msgpack"] = Field(default="json", description='"json" or "msgpack"')
    max_skew: Seconds = _SKEW


class FeaturesOf(Section):
    """What is made of a source's columns."""

    columns: Annotated[tuple[ColumnOrName, ...], Field(min_length=1)] = Field(
        description="a list of columns, in the order in which the model takes them; each a name, or a table with rules"
    )
    missing_values: tuple[str, ...] | None = MISSING_VALUES
    kept: int = Field(default=100_000, ge=1, description="a whole number of events of 1 or more")
    kept_for: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="a number of seconds above 0; left out, as long as there is room"
    )
    max_age: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="a number of seconds above 0; left out, a reading counts at any age"
    )


class LabelsOf(Section):
    """What is made of a source's labels."""

    label: Text = Field(description="the name of the column with the labels")
    classes: ClassNames | None = Field(
        default=None, description="a list of the labels in the order of the model's classes; left out, they are numbers"
    )
    missing_values: tuple[str, ...] | None = MISSING_VALUES
    late: Literal["fresh", "stored"] | None = Field(
        default=None, description='"fresh" or "stored"; left out, a round begins with each label'
    )
    most: int = Field(default=100_000, ge=1, description="a whole number of events of 1 or more")
    expiry: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=2_592_000.0, description="a number of seconds above 0"
    )
    coalesce: Seconds | None = Field(default=None, description="a number of seconds of 0 or more")


class FileFeatures(FileSection, FeaturesOf):
    """Features in a file."""

    @model_validator(mode="after")
    def _kept_as_long_as_needed(self) -> Self:
        if self.clock == "data" and self.kept_for is not None:
            raise ValueError('clock = "data" keeps what is needed until its label has come: leave kept_for out')
        return self


class SqlFeatures(SqlSection, FeaturesOf):
    """Features in a database."""


class JetStreamFeatures(JetStreamSection, FeaturesOf):
    """Features in messages."""


class FileLabels(FileSection, LabelsOf):
    """Labels in a file, of events or of intervals."""

    time: Text | Columns | None = Field(  # type: ignore[assignment]
        default=None, description="the name of the column with the time, or a list of several"
    )
    start: Text | None = Field(default=None, description="the column with the start of the interval that a row is of")
    end: Text | None = Field(default=None, description="the column with the end of that interval")

    @model_validator(mode="after")
    def _is_of_events_or_of_intervals(self) -> FileLabels:
        if (self.start is None) != (self.end is None):
            raise ValueError("labels.start and labels.end belong together: give both or none")
        if self.time is None and self.start is None:
            raise ValueError("labels.time is missing; it must be the name of the column with the time, or several")
        if self.start is not None and self.event_time is not None:
            raise ValueError("labels.event_time and labels.start exclude each other: give one of them")
        if self.start is not None and not self.grain:
            raise ValueError("labels.grain is 0, but labels of intervals need it: each multiple of it is a moment")
        return self

    @property
    def interval(self) -> tuple[str, str] | None:
        """The columns of an interval's start and end."""
        return None if self.start is None or self.end is None else (self.start, self.end)


class SqlLabels(SqlSection, LabelsOf):
    """Labels in a database."""


class JetStreamLabels(JetStreamSection, LabelsOf):
    """Labels in messages."""


TABLE = "table"


def kind_of(section: Any) -> str:
    """Which kind of section it is: what its source is, or a table of events with names of their own."""
    source = section.get("source") if isinstance(section, Mapping) else getattr(section, "source", None)
    return TABLE if source is None else "csv" if source == "parquet" else str(source)


AnySource = FileSection | SqlSection | JetStreamSection
SourcedFeatures = FileFeatures | SqlFeatures | JetStreamFeatures
SourcedLabels = FileLabels | SqlLabels | JetStreamLabels


def absolute_url(url: str, base: Path) -> str:
    """Return a database's url, where the file of a SQLite one is relative to a folder.

    >>> absolute_url("sqlite:///orders.db", Path("/bank")), absolute_url("postgresql://x/y", Path("/bank"))
    ('sqlite:////bank/orders.db', 'postgresql://x/y')
    """
    begin = "sqlite:///"
    return begin + str(base / url.removeprefix(begin)) if url.startswith(begin) else url


def open_source(section: AnySource, rules: Mapping[str, Rule], party: Credentials, folder: Path) -> Source:
    """Return the source that a section describes, for these columns.

    Args:
        section: of the party's file, its paths absolute.
        rules: of the columns that readings have; a file is refused if a value is neither missing nor one of its column.
        party: whose it is.
        folder: of the party, for how far the source was read.

    Raises:
        ConfigError: where a setting does not fit what is there.
        ConnectError: where a database is not there.
        DataError: where a file cannot be read, or a row of it is wrong.
        CheckpointError: where the folder's files are of another source.
    """
    names, columns = section.names_of_events(), tuple(rules)
    times, event_times = section.times, section.event_times
    max_age = section.max_age if isinstance(section, FeaturesOf) else None
    if max_age is not None and max_age < section.grain:
        raise ConfigError(
            f"features.max_age = {max_age}: must be no less than the grain, {section.grain} s, or a reading of its own "
            "event would be too old"
        )
    match section:
        case FileSection():
            path = Path(section.path)
            origin = origin_of(section)
            return FileSource(
                path, names, section.time, columns, entity=section.entity, event_time=section.event_time,
                interval=section.interval if isinstance(section, FileLabels) else None, times=times,
                event_times=event_times, speed=section.speed, origin=origin, order=section.order, max_age=max_age,
                cursor=Cursor(folder / CURSOR, path.name), form=form_of(section), rules=rules,
            )  # fmt: skip
        case SqlSection():
            from anabranch.sources.sql.database import database_of  # an extra
            from anabranch.sources.sql.source import SqlSource

            source = f"table '{section.table}' of '{database_of(section.url)}'"
            cursor = Cursor(folder / CURSOR, source)
            try:
                return SqlSource(
                    section.url, section.table, names, columns, time=section.time, id=section.id,
                    entity=section.entity, event_time=section.event_time, times=times, event_times=event_times,
                    as_of=section.as_of, follow=section.follow, poll=section.poll, lag=section.lag, cursor=cursor,
                    known=folder / ENTITIES, most_ahead=section.max_skew, max_age=max_age,
                )  # fmt: skip
            except BaseException:  # it may be tried again, where the database is not there yet
                cursor.close()
                raise
        case JetStreamSection():
            credentials = _credentials(section, party)
            return JetStreamSource(
                lambda: connect(credentials, error_cb=_told_otherwise), names, columns, stream=section.stream,
                durable=section.durable or f"{party.federation}-{party.party}", subject=section.subject,
                bucket=section.bucket, entity=section.entity, time=section.time, event_time=section.event_time,
                times=times, event_times=event_times, as_of=section.as_of, form=section.format,
                aside=Aside(folder / ASIDE), most_ahead=section.max_skew, max_age=max_age,
            )  # fmt: skip


def origin_of(section: FileSection) -> tuple[int, int] | None:
    """Return a time of the file and when that is, both in microseconds since 1970; None where the section has none.

    Raises:
        ConfigError: where one is no time.
    """
    if section.origin is None:
        return None
    file, wall = section.origin
    try:
        return micros(file), micros(wall)
    except DataError as error:
        raise ConfigError(f"origin is {[file, wall]}: {error}") from None


def _credentials(section: JetStreamSection, party: Credentials) -> Credentials:
    if (section.url is None) == (section.connection is None):
        raise ConfigError("a jetstream source has either a url, or a connection with keys")
    if section.connection is not None:
        return Credentials.load(section.connection)
    return Credentials((str(section.url),), party.federation, party.party, party.index)


async def _told_otherwise(error: Exception) -> None:
    """The source says when the broker is away."""
