"""What a trial's file must have, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from anabranch.errors import DataError

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A whole number of which a float can be made."""
Value = bool | Whole | float | str | None


class CurveFile(BaseModel):
    """The run-time error rate of a trial as it went on."""

    rounds: list[Whole]
    run_time_error: list[float]

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


class RecordFile(BaseModel):
    """The record of a trial, as `anabranch.sweep.trial.record_of` makes it."""

    key: str
    config: dict[str, Any]
    data: dict[str, Any]
    diverged: Whole | None
    rounds: Whole
    accumulated_error: float | None
    run_time_error: float | None
    activation_rate: list[float | None]
    bytes_up: list[Whole]
    bytes_down: list[Whole]
    regret: RegretFile | None
    cpu_seconds: FiniteFloat
    wall_seconds: FiniteFloat
    curve: CurveFile
    versions: dict[str, Value]
    machine: dict[str, Value] | None = None
    """None in those that were made before records had it."""


def check_record(record: Mapping[str, Any], file: Path) -> None:
    """Whether a trial's file has everything that tables and pictures are made of.

    Raises:
        DataError: where it has not; it names the file and what is wrong.
    """
    try:
        RecordFile.model_validate(record)
    except ValidationError as error:
        raise DataError(
            f"{file}: is not the record of a trial: {first_problem(error)}. It was edited or is damaged: take it out "
            "of the folder, and the trial is run again"
        ) from None


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
