"""The exceptions, as a tree.

::

    Exception
    └── AnabranchError            every error that Anabranch raises on purpose
        ├── ConfigError           a setting is unknown, misspelt or out of range (also a ValueError)
        ├── ModelError            a model does not fit its data or its parts (also a ValueError)
        ├── DataError             a file, a row, a feature or a label is wrong (also a ValueError)
        ├── UnsupportedSystemError  the system is Windows without WSL (also an ImportError)
        ├── OutputError           a result cannot be written (also an OSError)
        ├── CheckpointError       what a party kept on disk is damaged or unknown (also a ValueError)
        ├── MessageError          what another party sent is no message (also a ValueError)
        │   └── VersionError      it is one of another version of the protocol
        ├── RefusedError          the other side refuses to take part (also a ConnectionError)
        ├── ClusterError          a cluster cannot be reached or used (also a ConnectionError)
        ├── ConnectError          a party cannot connect to a broker or a database, and why (also a ConnectionError)
        │   └── AwayError         a source that was there cannot be asked just now
        └── Diverged              the loss stopped being finite; carries the result so far
    KeyboardInterrupt
    └── Interrupted               Ctrl-C during a run; carries the result so far

Each message names what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.simulation.result import Result


class AnabranchError(Exception):
    """Every error that Anabranch raises on purpose."""


class ConfigError(AnabranchError, ValueError):
    """A setting is unknown, misspelt or out of range."""


class ModelError(AnabranchError, ValueError):
    """A model does not fit its data, or its parts do not fit one another."""


class DataError(AnabranchError, ValueError):
    """A file, a row, a feature or a label is wrong.

    ``result`` is the result of the rounds before the bad row, where training had begun, else None.
    """

    result: Result | None = None


class UnsupportedSystemError(AnabranchError, ImportError):
    """The system is not one that Anabranch runs on."""


class OutputError(AnabranchError, OSError):
    """A result cannot be written where it should go."""


class CheckpointError(AnabranchError, ValueError):
    """A party's checkpoint or round log is damaged or of an unknown form, or cannot hold what it is given."""


class MessageError(AnabranchError, ValueError):
    """What another party sent is no message, or not a whole one."""


class VersionError(MessageError):
    """What another party sent is a message of another version of the protocol."""


class RefusedError(AnabranchError, ConnectionError):
    """The server and a client do not take part in the same federation, or not at the same point of it."""


class ClusterError(AnabranchError, ConnectionError):
    """A cluster that trials should run on cannot be reached, or cannot run them."""


class ConnectError(AnabranchError, ConnectionError):
    """A party cannot connect to a broker or a database. Where ``temporary``, trying again may help: there may be none
    yet."""

    temporary: bool = False


class AwayError(ConnectError):
    """A source cannot say just now what it has: its database is away, and is waited for."""

    temporary = True


class Diverged(AnabranchError, ArithmeticError):  # noqa: N818 (it reads as what happened)
    """The loss stopped being finite at ``round`` (1 is the first); ``result`` holds the rounds before it."""

    def __init__(self, message: str, round: int, result: Result) -> None:
        super().__init__(message)
        self.round = round
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # else it cannot come back from another process
        return Diverged, (str(self), self.round, self.result)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run, or SIGTERM where that is taken like it; ``result`` holds the rounds that were done."""

    def __init__(self, result: Result, *, terminated: bool = False) -> None:
        super().__init__(f"interrupted after {result.rounds:,} rounds")
        self.result, self.terminated = result, terminated

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Interrupted, terminated=self.terminated), (self.result,)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``' Did you mean ...?'`` with the known name nearest to ``name``, or an empty string.

    >>> nearest("widnow", ["window", "decay"])
    " Did you mean 'window'?"
    >>> nearest("zzz", ["window", "decay"])
    ''
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{found[0]}'?" if found else ""


def counted(count: int, thing: str) -> str:
    """So many of a thing.

    >>> counted(1, "client"), counted(2, "client")
    ('1 client', '2 clients')
    """
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def with_extra(extra: str) -> str:
    """How to install what an extra of this package needs. It is on no package index yet, so from its source.

    >>> with_extra("river")
    "in the folder of Anabranch's source: pip install '.[river]'"
    """
    return f"in the folder of Anabranch's source: pip install '.[{extra}]'"


def kind_of(value: Any) -> str:
    """What a value is, without the value: a log has what is wrong with a row, and nothing that is in it.

    >>> kind_of("A-17"), kind_of(2.5)
    ('a text', 'a value of type float')
    """
    return "a text" if isinstance(value, str) else f"a value of type {type(value).__name__}"
