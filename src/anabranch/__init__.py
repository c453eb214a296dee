"""Anabranch: event-driven online vertical federated learning.

Several parties hold different features of the same things, a server holds the labels, and they train one model
together while the data streams in. See `simulate` to train, `models` for the paper's models, `streams` for where
samples come from, `OGD`, `DLR` and `SLR` for the updates, and `Full`, `Random`, `Event`, `Fixed` and `Recorded` for
who is activated.
"""

# ruff: noqa: F403, F405
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch._public import *
    from anabranch.sweep.api import SweepResult, run_sweep

__all__ = [
    "DLR",
    "OGD",
    "SLR",
    "Activation",
    "AnabranchError",
    "ConfigError",
    "DataError",
    "Delay",
    "Detect",
    "Diverged",
    "Event",
    "Fixed",
    "Full",
    "GeometricDelay",
    "Interrupted",
    "ModelError",
    "OnlineVFL",
    "OutputError",
    "Progress",
    "Random",
    "Recorded",
    "Result",
    "SplitModel",
    "SweepResult",
    "UniformDelay",
    "Update",
    "models",
    "run_sweep",
    "save",
    "simulate",
    "streams",
]

_OF_SWEEPS = {"SweepResult", "run_sweep"}
"""These take half a second more to import."""


def __getattr__(name: str) -> Any:
    """What is public is imported when it is first asked for: JAX takes a second, `anabranch --help` does not wait."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "anabranch.sweep.api" if name in _OF_SWEEPS else "anabranch._public"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
