"""From the configuration of a run to the parties of a federation that does the same."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from anabranch.broker.credentials import Credentials
from anabranch.config import build as runner
from anabranch.config.run import ActiveDlrUpdate, Config
from anabranch.config.runtime_options import RuntimeOptions
from anabranch.core.activation import Activation, Fixed, Full, Random
from anabranch.core.models import SplitModel
from anabranch.core.party import Rule
from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from anabranch.errors import ConfigError, counted
from anabranch.federation.client import ClientParty
from anabranch.federation.inputs import LazyInputs
from anabranch.federation.late_labels import WaitingRoom
from anabranch.federation.replay import Decider, ReplayFeatures, ReplayHappenings, ReplaySamples
from anabranch.federation.server import Samples, ServerParty
from anabranch.protocol.client.conversation import LONG, ClientConversation, Decide, Look
from anabranch.protocol.client.inputs import Inputs
from anabranch.protocol.server.client_session import Expected
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.totals import Ledger
from anabranch.protocol.terms import terms_of
from anabranch.simulation.chunks import Chunk
from anabranch.simulation.drift_detection import Detect, Watch
from anabranch.simulation.run_setup import Prepared, check_reaction, prepare
from anabranch.sources.activation import ByRound, Stimulus
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.pending_labels import Waiting

WAITING, INPUTS = "waiting.sqlite", "inputs.sqlite"
"""The files of what waits for late labels, in the server's folder and in a client's."""


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
        """Return the stream, checked, from its first row on."""
        return _prepare(self.plan).record

    @property
    def widths(self) -> list[int]:
        """``e_m`` of each client."""
        return [group.embedding for group in self.prepared.layout for _ in range(group.size)]

    @property
    def columns(self) -> list[slice]:
        """Which features are each client's."""
        return [slice(a, b) for a, b in pairwise(accumulate(self.plan.stream.widths, initial=0))]

    def rate(self, party: int) -> Rate:
        """Return a party's learning rate; the server is 0."""
        return Rate(float(self.prepared.rates.first[party]), self.prepared.rates.power)


def replay(config: Config) -> Replay:
    """Build what a run needs.

    Raises:
        ConfigError: where a federation cannot do it.
        ModelError, DataError: as `anabranch.config.build.build` does.
    """
    if config.measure_regret:
        raise ConfigError(
            "measure_regret: needs the gradients of passive clients, which a federation does not have: simulate it "
            "('anabranch run')"
        )
    if isinstance(config.update, ActiveDlrUpdate):
        raise ConfigError(
            'update.name = "ActiveDLR" is for the simulator only: run it with "anabranch run", or choose "DLR"'
        )
    plan = runner.build(config, shown=False)
    return Replay(config, plan, _prepare(plan), len(plan.model.clients))


def watching(detect: Detect | None, clients: int, seed: int, rule: Rule) -> Watch | None:
    """What a server watches for drift.

    Raises:
        ConfigError: where what follows a detection cannot be done.
    """
    if detect is None:
        return None
    check_reaction(detect, rule)
    return Watch(detect, clients, seed)


def _prepare(plan: runner.Plan) -> Prepared:
    return prepare(plan.model, plan.stream, **plan.options)


def server_party(replay: Replay, credentials: Credentials, folder: Path, pace: RuntimeOptions) -> ServerParty:
    """Return the server of a federation that replays a run.

    Raises:
        ConfigError, CheckpointError: where the folder's state, or the pace, does not fit.
    """
    prepared, widths = replay.prepared, replay.widths
    missing = list(pace.missing) * replay.clients if len(pace.missing) == 1 else list(pace.missing)
    if len(missing) != replay.clients:
        raise ConfigError(f"missing has {len(missing)} policies for {counted(replay.clients, 'client')}")
    return make_server(
        prepared.rule,
        replay.model.server,
        [Expected(width, missing=policy) for width, policy in zip(widths, missing, strict=True)],
        ReplaySamples(replay.chunks, prepared.rounds),
        replay.rate(0),
        credentials,
        folder,
        pace,
        choose=chooser(replay.plan.options["activation"], replay.config.seed, replay.clients),
        report_every=prepared.tally.report_every,
        late=_waiting_room(replay, folder, pace.durable),
        watch=prepared.watch,
    )


def _waiting_room(replay: Replay, folder: Path, durable: bool) -> WaitingRoom | None:
    """Where a run's labels come late."""
    lateness = replay.prepared.lateness
    if lateness is None:
        return None
    source = ReplayHappenings(replay.chunks, replay.prepared.rounds, lateness.delay, replay.config.seed)
    waiting = Waiting(folder / WAITING, most=lateness.slots + LONG, expiry=None, durable=durable)
    return WaitingRoom(waiting, source, stored=lateness.learning == "stored")


def client_party(
    replay: Replay, client: int, credentials: Credentials, folder: Path, pace: RuntimeOptions
) -> ClientParty:
    """Client ``client`` (from 1) of a federation that replays a run.

    Raises:
        ConfigError, CheckpointError: where the folder's state does not fit.
    """
    columns = replay.columns[client - 1]
    lateness = replay.prepared.lateness
    inputs = (
        None if lateness is None else KeptInputs(folder / INPUTS, most=lateness.slots + 3 * LONG, durable=pace.durable)
    )
    return make_client(
        replay.prepared.rule,
        replay.model.clients[client - 1],
        columns.stop - columns.start,
        replay.clients,
        ReplayFeatures(replay.chunks, columns, replay.prepared.rounds).look,
        decider(replay.plan.options["activation"], replay.config.seed, client),
        replay.rate(client),
        replace(credentials, index=client),
        folder,
        pace,
        inputs=inputs,
    )


def make_server(
    rule: Rule,
    model: eqx.Module,
    expected: Sequence[Expected],
    samples: Samples,
    rate: Rate,
    credentials: Credentials,
    folder: Path,
    pace: RuntimeOptions,
    *,
    choose: Callable[[int, int], NDArray[np.bool_]] | None = None,
    report_every: int = 1000,
    coalesce: float = math.inf,
    by_data: bool = False,
    late: WaitingRoom | None = None,
    watch: Watch | None = None,
    kind: type[ServerParty] = ServerParty,
) -> ServerParty:
    """Return a server, its programs compiled.

    Args:
        rule: the update, and the step that follows.
        model: the top model.
        expected: of each client.
        samples: the events and labels.
        rate: the learning rate.
        credentials: of the server.
        folder: of its log and checkpoints.
        pace: deadlines and so on; its ``missing`` is not looked at.
        choose: who is activated in so many rounds from a first one on, (n, M), where the server decides that.
        report_every: rounds between two points of its curve.
        coalesce: seconds for which an event that a client tells of waits for the others that it touched too, before a
            round begins with it; where it is infinite, rounds begin with the server's samples alone.
        by_data: whether clients announce events in the order of the data, up to the time that the server says.
        late: where labels come after their events; ``samples`` is not looked at then.
        watch: where drift is noticed.
        kind: of party.

    Raises:
        ConfigError, CheckpointError: where the folder's state, or the pace, does not fit.
    """
    widths = [each.width for each in expected]
    compute = ServerCompute(rule, model, sum(widths), rate, pace.in_flight)
    conversation = ServerConversation(
        terms_of(credentials.federation, len(expected), rule),
        expected,
        compute,
        in_flight=pace.in_flight,
        deadline=pace.deadline,
        coalesce=coalesce,
        by_data=by_data,
        epoch=secrets.randbits(63) | 1,
        watch=watch,
    )
    party = kind(
        conversation,
        Ledger(rule, widths, report_every),
        samples,
        credentials,
        folder,
        choose=choose,
        checkpoint_every=pace.checkpoint_every,
        durable=pace.durable,
        late=late,
    )
    compute.warm_up()
    return party


def make_client(
    rule: Rule,
    model: eqx.Module,
    features: int,
    clients: int,
    look: Look,
    decide: Decide,
    rate: Rate,
    credentials: Credentials,
    folder: Path,
    pace: RuntimeOptions,
    *,
    schema: str = "",
    events: AsyncIterator[bytes] | None = None,
    inputs: Inputs | None = None,
    peek: Look | None = None,
    is_unusable: Callable[[bytes], bool] = lambda event: False,
    kind: type[ClientParty] = ClientParty,
    compute: type[ClientCompute] = ClientCompute,
) -> ClientParty:
    """Return a client, its programs compiled.

    Args:
        rule: the update, and the step that follows.
        model: the bottom model.
        features: ``d_m``
        clients: ``M``
        look: its features for an event.
        decide: whether an event activates it.
        rate: the learning rate.
        credentials: of the client.
        folder: of its checkpoints.
        pace: how many rounds are answered in one call, and how often it checkpoints.
        schema: the digest of its features.
        events: the names of the events that activate it; None where it is asked only.
        inputs: keeps the features of events whose labels come late; None is in the folder, where there are any.
        peek: its features for an event that nothing will be learnt of; by default ``look``.
        is_unusable: whether ``look`` has none of an event since a value of it cannot be used.
        kind: of party.
        compute: of compute.

    Raises:
        ConfigError, CheckpointError: where the folder's state does not fit.
    """
    computes = compute(rule, model, features, rate, pace.in_flight)
    inputs = LazyInputs(folder / INPUTS, durable=pace.durable) if inputs is None else inputs
    terms = terms_of(credentials.federation, clients, rule)
    conversation = ClientConversation(
        terms, credentials.index, schema, computes, look, decide, _session, inputs, peek, is_unusable
    )
    party = kind(conversation, credentials, folder, events=events, checkpoint_every=pace.checkpoint_every)
    computes.warm_up()
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


def stimulus_of(activation: Activation, seed: int, client: int) -> Stimulus:
    """Return the stimulus of a client with a source, by its own features or its own key alone."""
    # A draw is of the round, which has no number yet when a reading comes.
    return ByRound(decider(activation, seed, client), of_readings=not isinstance(activation, Random | Fixed))


def chooser(activation: Activation | None, seed: int, clients: int) -> Callable[[int, int], NDArray[np.bool_]] | None:
    """Who is activated in so many rounds from a first one on, (n, M), where the server decides that."""
    if not isinstance(activation, Fixed):
        return None
    activation.check(clients, None)
    drawn: dict[int, NDArray[np.bool_]] = {}

    def choose(first: int, n: int) -> NDArray[np.bool_]:
        rows = []
        for t in range(first, first + n):
            block = t - t % 1024
            if block not in drawn:
                drawn.clear()
                drawn[block] = activation.mask(seed, block, np.zeros((1024, clients)), (1,) * clients)
            rows.append(drawn[block][t - block])
        return np.stack(rows)

    return choose


def _session() -> int:
    """Of a process and a moment that no other has."""
    return (time.time_ns() ^ secrets.randbits(62)) % 2**63 or 1
