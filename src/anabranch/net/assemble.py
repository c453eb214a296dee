"""From the configuration of a run to the parties of a federation that does the same."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from anabranch import runner
from anabranch.activation import Activation, Fixed, Full, Random
from anabranch.chunks import Chunk
from anabranch.compute import ClientCompute, Rate, ServerCompute, from_arrays
from anabranch.config import Config
from anabranch.errors import ConfigError
from anabranch.models import SplitModel
from anabranch.net.client import ClientParty
from anabranch.net.credentials import Credentials
from anabranch.net.replay import Decider, ReplayFeatures, ReplaySamples
from anabranch.net.server import ServerParty
from anabranch.prepared import Prepared, prepare
from anabranch.protocol.client import ClientConversation, Decide
from anabranch.protocol.ledger import Ledger
from anabranch.protocol.missing import Policy, Wait
from anabranch.protocol.seat import Expected
from anabranch.protocol.server import ServerConversation
from anabranch.protocol.terms import Terms, terms_of


@dataclass(frozen=True)
class Pace:
    """How a federation runs, which changes what it does with time and never what it is."""

    in_flight: int = 1
    """Rounds that may be open at a time."""
    deadline: float = 1.0
    """Seconds after which a client that has not answered is replaced, or asked again."""
    missing: Sequence[Policy] = field(default_factory=lambda: (Wait(),))
    """What stands in for a client's embedding: one policy for all, or one for each."""
    checkpoint_every: int = 5000
    """Rounds between two checkpoints of the server, and steps between two of a client."""
    durable: bool = False
    """Whether each round is on the disk before its derivatives are sent."""


class Replay(NamedTuple):
    """A run, as a federation replays it."""

    config: Config
    plan: runner.Plan
    prepared: Prepared
    clients: int

    @property
    def model(self) -> SplitModel:
        """The initial parameters of all parties."""
        return self.plan.model

    def chunks(self) -> Iterator[Chunk]:
        """The stream, checked, from its first row on."""
        return _prepare(self.plan).samples

    @property
    def widths(self) -> list[int]:
        """``e_m`` of each client."""
        return [group.embedding for group in self.prepared.layout for _ in range(group.size)]

    @property
    def columns(self) -> list[slice]:
        """Which features are each client's."""
        return [slice(a, b) for a, b in pairwise(accumulate(self.plan.stream.widths, initial=0))]

    def rate(self, party: int) -> Rate:
        """A party's learning rate; the server is 0."""
        return Rate(float(self.prepared.rates.first[party]), self.prepared.rates.power)

    def terms(self, federation: str) -> Terms:
        """What all parties must agree on."""
        return terms_of(federation, self.clients, self.prepared.rule)


def replay(config: Config) -> Replay:
    """Builds what a run needs.

    Raises:
        ConfigError: where a federation cannot do it.
        ModelError, DataError: as `anabranch.runner.build` does.
    """
    if config.measure_regret:
        raise ConfigError(
            "measure_regret: needs the gradients of passive clients, which a federation does not have: simulate it "
            "('anabranch run')"
        )
    plan = runner.build(config)
    return Replay(config, plan, _prepare(plan), len(plan.model.clients))


def _prepare(plan: runner.Plan) -> Prepared:
    return prepare(plan.model, plan.stream, **plan.options)


def server_party(replay: Replay, credentials: Credentials, folder: Path, pace: Pace) -> ServerParty:
    """The server of a federation that replays a run.

    Raises:
        ConfigError, CheckpointError: where the folder's state, or the pace, does not fit.
    """
    prepared, widths = replay.prepared, replay.widths
    compute = ServerCompute(prepared.rule, replay.model.server, sum(widths), replay.rate(0), pace.in_flight)
    missing = list(pace.missing) * replay.clients if len(pace.missing) == 1 else list(pace.missing)
    if len(missing) != replay.clients:
        raise ConfigError(f"missing has {len(missing)} policies, but there are {replay.clients} clients")
    conversation = ServerConversation(
        replay.terms(credentials.federation),
        [Expected(width, missing=policy) for width, policy in zip(widths, missing, strict=True)],
        compute,
        in_flight=pace.in_flight,
        deadline=pace.deadline,
        epoch=secrets.randbits(63) | 1,
    )
    samples = ReplaySamples(replay.chunks, prepared.rounds)
    party = ServerParty(
        conversation,
        Ledger(prepared.rule, widths, prepared.tally.report_every),
        samples,
        credentials,
        folder,
        choose=_chooser(replay),
        checkpoint_every=pace.checkpoint_every,
        durable=pace.durable,
    )
    compute.warm_up()
    return party


def client_party(replay: Replay, client: int, credentials: Credentials, folder: Path, pace: Pace) -> ClientParty:
    """Client ``client`` (from 1) of a federation that replays a run.

    Raises:
        ConfigError, CheckpointError: where the folder's state does not fit.
    """
    prepared, columns = replay.prepared, replay.columns[client - 1]
    width = columns.stop - columns.start
    model = replay.model.clients[client - 1]
    compute = ClientCompute(prepared.rule, model, width, replay.rate(client), pace.in_flight)
    features = ReplayFeatures(replay.chunks, columns)
    conversation = ClientConversation(
        replay.terms(credentials.federation),
        client,
        "",
        compute,
        features.look,
        decider(replay.plan.options["activation"], replay.config.seed, client),
        _session,
    )
    party = ClientParty(conversation, credentials, folder, checkpoint_every=pace.checkpoint_every)
    compute.warm_up()
    return party


def decider(activation: Activation, seed: int, client: int) -> Decide:
    """What a client asks whether an event activates it, by its own features or its own key alone."""
    match activation:
        case Full():
            return lambda t, x: True
        case Random():
            return Decider(lambda t, n: activation.draw(seed, client, t, n))
        case Fixed():
            return lambda t, x: False  # the server says so
    return lambda t, x: activation.decide(seed, client, t, x)


def _chooser(replay: Replay) -> Callable[[int, int], NDArray[np.bool_]] | None:
    activation = replay.plan.options["activation"]
    if not isinstance(activation, Fixed):
        return None
    widths, seed = replay.plan.stream.widths, replay.config.seed
    drawn: dict[int, NDArray[np.bool_]] = {}

    def choose(first: int, n: int) -> NDArray[np.bool_]:
        rows = []
        for t in range(first, first + n):
            block = t - t % 1024
            if block not in drawn:
                drawn.clear()
                drawn[block] = activation.mask(seed, block, np.zeros((1024, sum(widths))), widths)
            rows.append(drawn[block][t - block])
        return np.stack(rows)

    return choose


def _session() -> int:
    """Of a process and a moment that no other has."""
    return (time.time_ns() ^ secrets.randbits(62)) % 2**63 or 1


def replaced(module: eqx.Module, arrays: Mapping[str, NDArray[Any]]) -> eqx.Module:
    """The module with the arrays of a checkpoint in place of its own.

    Raises:
        ValueError: where they are those of another module.
    """
    return from_arrays(module, dict(arrays))
