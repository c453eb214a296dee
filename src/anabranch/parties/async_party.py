"""What a server and a client in Python have in common: both are iterated over, and take the same settings."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from anabranch.broker.credentials import Credentials
from anabranch.checks import plain, whole
from anabranch.core.gradients import parameters
from anabranch.core.party import Rule
from anabranch.core.party_programs import Rate
from anabranch.core.updates import DLR, Update
from anabranch.errors import AnabranchError, ConfigError, ModelError
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.parties.ending import Ending, ending_of
from anabranch.serving.metrics import serving
from anabranch.simulation.run_setup import check_decay, read_wire_dtype

HELD, MOST_HELD = 256, 8192
"""So many rounds or steps wait for the ``async for``; then the federation waits for it. It may itself ask something of
the federation: there may be more until that is answered."""

LearningRate: TypeAlias = float | optax.GradientTransformation

T = TypeVar("T")


class Running(ABC, Generic[T]):
    """A party that is iterated over; it takes part from the first step of the iteration on.

    Args:
        connection: its ``connection.toml``, or `Credentials`.
        folder: of its checkpoints.
        metrics: the port of its metrics; None for none.
        metrics_host: an address of this machine.
        most_lost: the share of its events that may be lost.
    """

    def __init__(
        self,
        connection: str | Path | Credentials,
        folder: str | Path,
        metrics: int | None,
        metrics_host: str,
        most_lost: float,
    ) -> None:
        given = isinstance(connection, Credentials)
        self.credentials = connection if isinstance(connection, Credentials) else Credentials.load(connection)
        if given:
            self.credentials.check()
        self._folder = Path(folder)
        self._metrics = None if metrics is None else whole("metrics", metrics, 0, 65535, ": a port, 0 for any")
        self._metrics_host = metrics_host
        self.metrics_port: int | None = None
        """Where its metrics are, while it takes part; None where they are nowhere."""
        self._stack = ExitStack()
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()
        self._goes_on = asyncio.Event()
        """Set where `tell` may have to wait no longer."""
        self._asking: Counter[bool] = Counter()
        """How many wait for what the party itself has to say: of others, and of who iterates."""
        self._taker: asyncio.Task[Any] | None = None
        """Who iterates."""
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.stopped: str | None = None
        """Why it has ended; None before it has."""
        self.ending: Ending | None = None
        """How it has ended: what became of its events, and the problem if that is a failure; None before."""
        self._most_lost = plain(most_lost)
        number = isinstance(self._most_lost, int | float) and not isinstance(self._most_lost, bool)
        if not (number and 0 <= self._most_lost <= 1):
            raise ConfigError(f"most_lost is {most_lost!r}, but it is a share from 0 to 1")

    @property
    @abstractmethod
    def party(self) -> ServerParty | ClientParty:
        """What drives it."""

    @property
    def model(self) -> eqx.Module:
        """A copy of its own model, as it is now."""
        return self.party.conversation.compute.copy_model()

    def leave(self) -> None:
        """Has it leave soon, after a checkpoint; it may come back."""
        self.party.leave()

    async def run(self) -> str:
        """Take part until the end, and return why it has ended.

        Raises:
            RefusedError: where the other side does not take it.
            ConnectError: where the broker does not.
            OutputError: where a checkpoint or the log cannot be written.
            AnabranchError: where training cannot go on, since something is not finite any more.
        """
        async with self:
            async for _ in self:
                pass
        return self.stopped or ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._task is None:
            if self._closing:
                raise StopAsyncIteration
            self._task = asyncio.ensure_future(self._run())
        self._taker = asyncio.current_task()
        item = None if self._task.done() and self._queue.empty() else await self._queue.get()
        self._goes_on.set()
        if item is None:
            await self._task
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        try:
            if self._task is not None and not self._task.done():
                self.leave()
                while not self._queue.empty():
                    self._queue.get_nowait()
                self._goes_on.set()
                await asyncio.wait({self._task})
                if error is None:
                    await self._task
        finally:
            self._stack.close()

    async def _run(self) -> None:
        try:
            async with serving(self.party, self._metrics, self._metrics_host) as self.metrics_port:
                stop = await self.party.run()
            self.stopped, self.ending = stop.reason, ending_of(self.party, stop, self._most_lost)
            if self.ending.problem:
                self.party.say(self.ending.text, logging.ERROR)
            if stop.failed:
                raise AnabranchError(stop.reason)
        finally:
            self.metrics_port = None
            self._stack.close()
            await self.tell(None)

    async def tell(self, item: T | None) -> None:
        """Hand something to whoever iterates; wait while there is much that nobody has taken."""
        while self._queue.qsize() >= self._most and not self._closing:
            self._goes_on.clear()
            await self._goes_on.wait()
        if item is None or not self._closing:  # someone else may still be iterating
            self._queue.put_nowait(item)

    @contextmanager
    def _asks(self) -> Iterator[None]:
        """Meanwhile the party waits for nobody: who iterates may be the one that asks, and takes nothing."""
        own = asyncio.current_task() is self._taker
        self._asking[own] += 1
        self._goes_on.set()
        try:
            yield
        finally:
            self._asking[own] -= 1

    @property
    def _most(self) -> float:
        """How many may wait for the ``async for`` now; another task that asks may do so for it, or all the time."""
        return math.inf if self._asking[True] else MOST_HELD if self._asking[False] else HELD


def rule_of(
    model: eqx.Module, update: Update | None, learning_rate: LearningRate, power: float, wire_dtype: str
) -> tuple[Rule, Rate]:
    """What a party does with a gradient, and its learning rate.

    Raises:
        ConfigError: where an argument is wrong.
        ModelError: where there is nothing to train.
    """
    update = DLR() if update is None else update
    if not isinstance(update, Update):
        raise ConfigError(
            f"update is {update!r:.60}, but the type anabranch.Update is needed, such as ab.DLR(10, 0.95)"
        )
    arrays = jax.tree.leaves(parameters(model))
    if not arrays:
        raise ModelError(f"the model {model!r:.60} has no parameters: there is nothing that could be trained")
    dtype = np.dtype(jnp.result_type(*arrays))
    optimiser = None
    if isinstance(learning_rate, optax.GradientTransformation):
        optimiser, learning_rate = learning_rate, 0.0
    learning_rate, power = plain(learning_rate), plain(power)
    for name, value in (("learning_rate", learning_rate), ("learning_rate_power", power)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{name} is {value!r}, but it is a number of 0 or more")
    check_decay(update, dtype)
    rule = Rule(jax.tree.map(np.asarray, update), optimiser, read_wire_dtype(wire_dtype, dtype))
    return rule, Rate(float(learning_rate), float(power))


def seconds(name: str, value: float, *, zero: bool = True) -> float:
    """Return the value, where it is a number of seconds, and above 0 unless that may be too.

    Raises:
        ConfigError: where it is not.
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86400:
        raise ConfigError(f"{name} is {value!r}, but it is a number of seconds, at most a day")
    if not (value or zero):
        raise ConfigError(f"{name} is {value!r}, but it is a number of seconds above 0, at most a day")
    return float(value)
