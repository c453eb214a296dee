"""Anabranch: event-driven online vertical federated learning.

Several parties hold different features of the same things, a server holds the labels, and they train one model
together while the data streams in. See `simulate` to train, `models` for the paper's models, `streams` for where
samples come from, `OGD`, `DLR` and `SLR` for the updates, and `Full`, `Random`, `Event`, `Fixed` and `Recorded` for
who is activated.
"""

from anabranch import models, streams
from anabranch.activation import Activation, Event, Fixed, Full, Random, Recorded
from anabranch.errors import AnabranchError, ConfigError, DataError, Diverged, Interrupted, ModelError, OutputError
from anabranch.models import SplitModel
from anabranch.result import Result
from anabranch.simulate import Progress, simulate
from anabranch.updates import DLR, OGD, SLR, Update

__all__ = [
    "DLR",
    "OGD",
    "SLR",
    "Activation",
    "AnabranchError",
    "ConfigError",
    "DataError",
    "Diverged",
    "Event",
    "Fixed",
    "Full",
    "Interrupted",
    "ModelError",
    "OutputError",
    "Progress",
    "Random",
    "Recorded",
    "Result",
    "SplitModel",
    "Update",
    "models",
    "simulate",
    "streams",
]
