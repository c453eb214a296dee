"""Anabranch: event-driven online vertical federated learning.

Several parties hold different features of the same things, a server holds the labels, and they train one model
together while the data streams in. See `simulate` to train, `models` for the paper's models, `streams` for where
samples come from, `OGD`, `DLR` and `SLR` for the updates, and `Full`, `Random`, `Event`, `Fixed` and `Recorded` for
who is activated.
"""

# ruff: noqa: F403, F405
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch._public import *

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


class _Package(ModuleType):
    """Imports what is public when it is first asked for: JAX takes a second, and `anabranch --help` does not wait."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        public = importlib.import_module("anabranch._public")
        vars(self).update({each: getattr(public, each) for each in __all__})
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module `anabranch.simulate` sets this name, which is the function's.
        super().__setattr__(name, value.simulate if name == "simulate" and isinstance(value, ModuleType) else value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *__all__]


sys.modules[__name__].__class__ = _Package
