"""What a trial's file must have, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from anabranch.errors import DataError
from anabranch.sweep.trial import Trial, restored

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A whole number of which a float can be made."""
Value = bool | Whole | float | str | None
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
"""An error rate, which is a mean of 0/1 errors, or how often a client was activated."""


class CurveFile(BaseModel):
    """The run-time error rate of a trial as it went on."""

    rounds: list[Whole]
    run_time_error: list[Share]

    @model_validator(mode="after")
    def _as_long(self) -> CurveFile:
        if len(self.rounds) != len(self.run_time_error):
            raise ValueError("rounds and run_time_error differ in length")
        return self


class RegretFile(BaseModel):
    """What was measured of a trial's regret."""

    rounds: list[Whole]
    loss: list[float | None]
    ideal: list[float | None]
    applied: list[float | None]
    largest_gradient: float | None
    mean_squared_gradient: float | None
    largest_loss: float | None


class DataFile(BaseModel):
    """What identifies a file that a trial read."""

    model_config = ConfigDict(extra="allow")
    sha256: str


class RecordFile(BaseModel):
    """The record of a trial, as `anabranch.sweep.trial.record_of` makes it."""

    key: str
    config: dict[str, Any]
    data: dict[str, DataFile]
    diverged: Count | None
    rounds: Count
    accumulated_error: Share | None
    run_time_error: Share | None
    activation_rate: list[Share | None]
    bytes_up: list[Count]
    bytes_down: list[Count]
    regret: RegretFile | None
    cpu_seconds: FiniteFloat
    wall_seconds: FiniteFloat
    curve: CurveFile
    versions: dict[str, Value]
    machine: dict[str, Value] | None = None
    """None in those that were made before records had it."""

    @model_validator(mode="after")
    def _of_all_clients(self) -> RecordFile:
        model = self.config.get("model")
        told = model.get("clients") if isinstance(model, dict) else None
        for name in ("activation_rate", "bytes_up", "bytes_down"):
            held, clients = len(getattr(self, name)), told or len(self.bytes_up) or 1
            if held != clients:
                raise ValueError(f"{name} has {held} values, but there are {clients} clients")
        return self

    @model_validator(mode="after")
    def _with_errors(self) -> RecordFile:
        """Return a trial that did not diverge has error rates, as far as it had rounds."""
        if self.diverged is None and self.rounds:
            if self.accumulated_error is None or self.run_time_error is None:
                raise ValueError("accumulated_error or run_time_error is null, but diverged is null too")
            if not self.curve.rounds:
                raise ValueError("curve has no point, but diverged is null")
        return self

    @model_validator(mode="after")
    def _of_its_key(self) -> RecordFile:
        """Return its settings and data are those that its key stands for."""
        try:
            config = restored(self.config)
        except ValidationError as error:
            if self.versions.get("anabranch") != version("anabranch"):  # which may have had other settings
                return self
            raise ValueError(f"config: {first_problem(error)}") from None
        key = Trial(config, {section: {"sha256": each.sha256} for section, each in self.data.items()}).key
        if key != self.key:
            raise ValueError(f"its key is {self.key}, but that of its config and data is {key}")
        return self


def check_record(record: Mapping[str, Any], file: Path, versions: Mapping[str, Value] | None = None) -> None:
    """Whether a trial's file has everything that tables and pictures are made of, and is of the trial of its name.

    Args:
        record: the file's content.
        file: named by its trial's key.
        versions: those that it must be of, where they are known.

    Raises:
        DataError: where it has not; it names the file and what is wrong.
    """
    try:
        held = RecordFile.model_validate(record)
    except ValidationError as error:
        problem = f"is not the record of a trial: {first_problem(error)}. It was edited or is damaged"
        raise _unusable(file, problem) from None
    check_origin(held, file, versions)


def check_origin(record: RecordFile, file: Path, versions: Mapping[str, Value] | None) -> None:
    """Whether a record is of the trial that its file is named after, and of these versions.

    Raises:
        DataError: where it is not; it names the file and both values.
    """
    if record.key != file.stem:
        raise _unusable(file, f"is the record of another trial: its key is {record.key}, not {file.stem}")
    if versions is not None and record.versions != versions:
        names = [name for name in {**versions, **record.versions} if record.versions.get(name) != versions.get(name)]
        both = "; ".join(f"{name} {record.versions.get(name)}, not {versions.get(name)}" for name in names)
        raise _unusable(file, f"is of other versions than its folder's manifest says: {both}")


def _unusable(file: Path, problem: str) -> DataError:
    return DataError(f"{file}: {problem}: take it out of the folder, and the trial is run again")


def first_problem(error: ValidationError) -> str:
    """Where the first thing is that is wrong, and what it is.

    >>> try:
    ...     CurveFile(rounds=[1])
    ... except ValidationError as error:
    ...     print(first_problem(error))
    run_time_error: Field required
    """
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])
