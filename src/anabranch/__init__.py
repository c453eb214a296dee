"""Anabranch: event-driven online vertical federated learning.

Several parties hold different features of the same things, a server holds the labels, and they train one model
together while the data streams in. See `simulate` to train, `models` for the paper's models, `streams` for where
samples come from, `OGD`, `DLR` and `SLR` for the updates, and `Full`, `Random`, `Event`, `Fixed` and `Recorded` for
who is activated.
"""

# ruff: noqa: F403, F405
import importlib
import sys
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


def _refuse_windows() -> None:
    """Raise an UnsupportedSystemError where the system is not POSIX; uncaught, it is one line."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        missing = True
    else:
        missing = sys.platform == "win32"
    if not missing:
        return
    from anabranch.errors import UnsupportedSystemError

    usual = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, UnsupportedSystemError):
            sys.stderr.write(f"Error: {error}\n")
        else:
            usual(kind, error, trace)

    sys.excepthook = show
    raise UnsupportedSystemError(
        f"Anabranch does not run on this system ({sys.platform}): it runs on Linux and macOS, and on Windows within WSL"
    )


_refuse_windows()


def __getattr__(name: str) -> Any:
    """What is public is imported when it is first asked for: JAX takes a second, `anabranch --help` does not wait."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "anabranch.sweep.api" if name in _OF_SWEEPS else "anabranch._public"
    try:
        return getattr(importlib.import_module(home), name)
    except ValueError as problem:  # of JAX, while it is imported
        from anabranch.environment import wrong_variable

        if (wrong := wrong_variable(problem)) is not None:
            raise wrong from None
        raise


def __dir__() -> list[str]:
    return list(__all__)
