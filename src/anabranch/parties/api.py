"""A federation in Python: a server and its clients as ``async for``, with a person's own models and sources of events.

They are the same parties that ``anabranch server`` and ``anabranch client`` run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from anabranch.broker.credentials import Credentials
from anabranch.broker.nats_conf import MOST_CLIENTS
from anabranch.checks import whole
from anabranch.config.runtime_options import MOST_LOST, RuntimeOptions
from anabranch.core.activation import Activation, Fixed
from anabranch.core.models import output_width
from anabranch.core.party_programs import ClientCompute, Pending
from anabranch.core.random_keys import SEEDS
from anabranch.core.updates import Update
from anabranch.errors import ConfigError, counted, nearest
from anabranch.federation.client import ClientParty
from anabranch.federation.inputs import MOST
from anabranch.federation.labels import Event, LabelOf, Labels, LateLabels, labels_of
from anabranch.federation.late_labels import WaitingRoom
from anabranch.federation.server import ServerParty
from anabranch.federation.source_client import SourcedClient, sourced_client
from anabranch.federation.tables import event_name
from anabranch.parties.api_arguments import CheckedFeatures, columns_of, decide_of, names_of, stimulus_or
from anabranch.parties.assemble import INPUTS, WAITING, chooser, make_client, make_server, watching
from anabranch.parties.async_party import LearningRate, Running, rule_of, seconds
from anabranch.protocol.actions import Played
from anabranch.protocol.client.conversation import Decide, Look
from anabranch.protocol.server.client_session import Expected
from anabranch.protocol.server.missing import HOW
from anabranch.protocol.server.totals import Ledger
from anabranch.serving.metrics import LOOPBACK
from anabranch.serving.predictor import Predictor
from anabranch.simulation.drift_detection import Detect
from anabranch.simulation.label_delay import LEARNINGS
from anabranch.sources.activation import Stimulus
from anabranch.sources.base import Source
from anabranch.sources.features import Column
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.lock import locked
from anabranch.storage.pending_labels import Waiting


class Round(NamedTuple):
    """A round that the server has played."""

    number: int
    """From 0."""
    event: bytes
    label: int
    prediction: int | None
    """The class predicted before the update; None where the round was dropped."""
    activated: tuple[str, ...]
    """The names of the clients that the event has activated."""
    replaced: dict[str, str]
    """Of each client that did not answer: what stood in for it, such as ``"last"``."""


class Step(NamedTuple):
    """A step of a client."""

    round: int
    """In which it was activated, from 0."""
    derivative: NDArray[Any]
    """``v_m`` (e_m,), or (l, e_m) under SLR, as it crossed the wire."""


class Server(Running[Round]):
    """The server of a federation: ``async for`` gives each round that it plays.

    Args:
        connection: its ``connection.toml``, as ``anabranch keys init`` makes it, or `Credentials`.
        folder: for its log and checkpoints; one that was used before goes on from there.
        model: the top model, any Equinox module; it maps the concatenated embeddings (Σ e_m,) to logits (c,).
        clients: what is expected of each, in order.
        labels: one of three. An iterable of ``(event, label)`` opens a round for each; it begins anew in every
            process, and what was played before is passed over. An async iterable likewise, but it goes on by itself:
            `rounds` says how many were played. A function of an event returns its label, or None where there is none:
            a round is opened for each event that a client tells of, until `end`.
        late: ``"fresh"`` or ``"stored"`` where labels come after their events. Then ``labels`` is an async iterable of
            ``(event, label)`` in any order, and events are those that clients tell of, and those of ``events``. See
            docs/late-labels.md.
        events: with ``late``, names of events as they happen.
        expiry: with ``late``, seconds for which an event waits for its label.
        most_waiting: with ``late``, how many events wait at most.
        update: such as ``ab.DLR(10, 0.95)``; that of all parties.
        learning_rate: of the server, or an Optax transformation.
        learning_rate_power: ``η_t = η (t + 1)^(−power)``
        activation: ``ab.Fixed(k)`` where the server decides who is activated; else each client does.
        wire_dtype: of embeddings and derivatives; that of all parties.
        seed: of what the server draws.
        detect: what is watched for drift, and what follows.
        in_flight: rounds that may be open at a time.
        deadline: seconds after which a client that has not answered is replaced, or asked again.
        coalesce: seconds for which an event that a client tells of waits for the others that it touched too.
        checkpoint_every: rounds between two checkpoints.
        durable: whether each round is on the disk before its derivatives are sent.
        metrics: a port for Prometheus, health and readiness, 0 for any that is free (`metrics_port` says which); None
            for none.
        metrics_host: an address of this machine: everyone who can reach it can read them.
        most_lost: the share of its events that may be lost. If more are, `ending.problem` says so at the end, and the
            log does as an error.

    Raises:
        ConfigError: where an argument is wrong, or another process uses the folder.
        ModelError: where the model does not take the embeddings.
        CheckpointError: where the folder's state cannot be used.
    """

    def __init__(
        self,
        connection: str | Path | Credentials,
        folder: str | Path,
        *,
        model: eqx.Module,
        clients: Sequence[Expected],
        labels: Iterable[tuple[Event, int]] | AsyncIterable[tuple[Event, int]] | LabelOf,
        late: str | None = None,
        events: AsyncIterable[Event] | None = None,
        expiry: float = 30 * 86400.0,
        most_waiting: int = 100_000,
        update: Update | None = None,
        learning_rate: LearningRate = 0.003,
        learning_rate_power: float = 0.0,
        activation: Fixed | None = None,
        wire_dtype: str = "float32",
        seed: int = 0,
        detect: Detect | None = None,
        in_flight: int = 1,
        deadline: float = 1.0,
        coalesce: float = 0.0,
        checkpoint_every: int = 5000,
        durable: bool = False,
        metrics: int | None = None,
        metrics_host: str = LOOPBACK,
        most_lost: float = MOST_LOST,
    ) -> None:
        super().__init__(connection, folder, metrics, metrics_host, most_lost)
        if self.credentials.index:
            raise ConfigError(f"this is the connection of {self.credentials.party}, not the server's")
        if not 1 <= len(clients) <= MOST_CLIENTS:
            raise ConfigError(f"clients are {len(clients):,}: say what is expected of each, 1 to {MOST_CLIENTS:,}")
        if activation is not None and not isinstance(activation, Fixed):
            raise ConfigError(
                f"activation is {activation!r}, but the server decides Fixed(k) only; clients decide else"
            )
        names = self.credentials.clients
        self.names = tuple(names[i] if i < len(names) else f"client {i + 1}" for i in range(len(clients)))
        """The clients' names."""
        rule, rate = rule_of(model, update, learning_rate, learning_rate_power, wire_dtype)
        classes = output_width(model, sum(each.width for each in clients), "server", "elements of all embeddings")
        self._samples: Labels = (
            labels_of(labels, classes) if late is None else _late_labels(labels, events, late, rule.update, classes)
        )
        if late is None and events is not None:
            raise ConfigError("events is for labels that come late: say how they are learnt from (late)")
        if late is None and self._samples.told and rule.update.rows is not None:
            raise ConfigError(
                "labels is a function, so rounds begin with what clients tell of, which SLR cannot: its window of "
                "samples is that of the server's order. Give the events with their labels, or use another update"
            )
        self._stack.enter_context(locked(self._folder))
        try:
            party = make_server(
                rule,
                model,
                list(clients),
                self._samples,
                rate,
                self.credentials,
                self._folder,
                RuntimeOptions(
                    in_flight=whole("in_flight", in_flight, 1, 1024),
                    deadline=seconds("deadline", deadline, zero=False),
                    checkpoint_every=whole("checkpoint_every", checkpoint_every, 1),
                    durable=durable,
                ),
                choose=chooser(activation, whole("seed", seed, 0, SEEDS - 1), len(clients)),
                coalesce=seconds("coalesce", coalesce) if self._samples.told else math.inf,
                late=self._room(late, expiry, most_waiting, durable),
                watch=watching(detect, len(clients), seed, rule),
                kind=_TellingServer,
            )
        except BaseException:
            self._stack.close()
            raise
        assert isinstance(party, _TellingServer)
        party.told = self._played
        self._party = party
        self._predictor = Predictor(party)

    @property
    def party(self) -> ServerParty:
        return self._party

    @property
    def rounds(self) -> int:
        """How many rounds were played, those of earlier processes among them."""
        return self._party.conversation.rounds

    @property
    def totals(self) -> Ledger:
        """What all rounds come to: errors, activations, who was missing, bytes."""
        return self._party.ledger

    def _room(self, late: str | None, expiry: float, most: int, durable: bool) -> WaitingRoom | None:
        """Where labels come late."""
        if not isinstance(self._samples, LateLabels):
            return None
        if isinstance(expiry, bool) or not isinstance(expiry, int | float) or not 0 < expiry < math.inf:
            raise ConfigError(f"expiry is {expiry!r}, but it is a number of seconds above 0")
        waiting = Waiting(self._folder / WAITING, most=whole("most_waiting", most, 1), expiry=expiry, durable=durable)
        self._stack.callback(self._samples.close)
        return WaitingRoom(waiting, self._samples, stored=late == "stored")

    async def predict(self, event: Event) -> dict[str, Any]:
        """What is predicted for an event now, while the server takes part; nothing changes by it.

        Returns:
            ``prediction``, ``probabilities``, ``round``, ``answered``, ``replaced`` and ``milliseconds``; see
            `anabranch.serving.predictor.Predictor`.

        Raises:
            NoPredictionError: where there is none; it says why.
        """
        with self._asks():
            return await self._predictor({"event": event_name(event)})

    def end(self) -> None:
        """No event follows: the rounds that are open are played, and the clients are told that they may go."""
        self._samples.end()
        self._party.wake()

    async def _played(self, played: Played) -> None:
        for i, (record, prediction) in enumerate(zip(played.records, played.predictions, strict=True)):
            activated = tuple(name for name, is_in in zip(self.names, record.activated, strict=True) if is_in)
            replaced = {name: HOW[how] for name, how in zip(self.names, record.missing, strict=True) if how}
            await self.tell(Round(played.first + i, record.event, record.label, prediction, activated, replaced))


class Client(Running[Step]):
    """A client of a federation: ``async for`` gives each step that it takes.

    Args:
        connection: its ``connection.toml``, as ``anabranch keys init`` makes it, or `Credentials`.
        folder: for its checkpoints; one that was used before goes on from there.
        model: the bottom model, any Equinox module; it maps the features (d_m,) to an embedding (e_m,).
        inputs: ``d_m``, how many features there are.
        features: a function of an event that returns its features, or None where there are none. It may be called
            again for an event from before, and must then return the same.
        clients: ``M``, how many clients the federation has.
        events: the names of events that activate the client, as they happen; the server opens a round for each that
            it has a label for. None where the client is asked only.
        source: instead of ``inputs``, ``features``, ``events`` and ``schema``: where readings come from and entities
            are looked up, such as `anabranch.sources.python.PythonSource`. It is of one client, which closes it when it
            has run.
        columns: with ``source``, what is made of its values: names, or `anabranch.sources.features.Column`.
        activation: ``ab.Full()``, ``ab.Random(p)``, ``ab.Event(Γ)``, one of your own, or a function of the round and
            the features: whether an event that it is asked for activates it. With ``source`` also a stimulus of
            `anabranch.sources.activation`, such as ``SendOnDelta(0.5, ["light"])``; by default ``OnEvent()``.
        kept: with ``source``, of so many readings, and of so many events that wait for labels, the features are kept;
            None is 100,000.
        update: that of all parties.
        learning_rate: of this client, or an Optax transformation.
        learning_rate_power: ``η_t = η (t + 1)^(−power)``
        wire_dtype: that of all parties.
        schema: a digest of what the features are, which the server may demand.
        seed: of what the client draws.
        in_flight: how many rounds it answers in one call.
        checkpoint_every: steps between two checkpoints.
        durable: whether features that are kept until late labels come are on the disk at once: nothing is lost when the
            power fails. Else nothing is lost when processes are killed.
        metrics: a port for Prometheus, health and readiness, 0 for any that is free (`metrics_port` says which); None
            for none.
        metrics_host: an address of this machine: everyone who can reach it can read them.
        most_lost: the share of its events that may be lost. If more are, `ending.problem` says so at the end, and the
            log does as an error.

    Raises:
        ConfigError: where an argument is wrong, or another process uses the folder.
        ModelError: where the model does not take the features.
        CheckpointError: where the folder's state cannot be used.
    """

    def __init__(
        self,
        connection: str | Path | Credentials,
        folder: str | Path,
        *,
        model: eqx.Module,
        clients: int,
        inputs: int | None = None,
        features: Callable[[bytes], ArrayLike | None] | None = None,
        events: AsyncIterable[Event] | None = None,
        source: Source | None = None,
        columns: Sequence[Column | str] = (),
        activation: Activation | Stimulus | Decide | None = None,
        update: Update | None = None,
        learning_rate: LearningRate = 0.003,
        learning_rate_power: float = 0.0,
        wire_dtype: str = "float32",
        schema: str = "",
        kept: int | None = None,
        seed: int = 0,
        in_flight: int = 1,
        checkpoint_every: int = 1000,
        durable: bool = False,
        metrics: int | None = None,
        metrics_host: str = LOOPBACK,
        most_lost: float = MOST_LOST,
    ) -> None:
        super().__init__(connection, folder, metrics, metrics_host, most_lost)
        index = self.credentials.index
        if not 1 <= index <= whole("clients", clients, 1, MOST_CLIENTS):
            whose = f"client {index}'s" if index else "the server's"
            raise ConfigError(f"this connection is {whose}, but the federation has {counted(clients, 'client')}")
        made = None if source is None else columns_of(source, columns, inputs, features, events, schema)
        if made is None and (inputs is None or features is None):
            raise ConfigError("say what the features are: inputs and features, or a source and its columns")
        if made is None and (columns or kept is not None):
            raise ConfigError("columns and kept are for a source: give one, or leave them out")
        rule, rate = rule_of(model, update, learning_rate, learning_rate_power, wire_dtype)
        width = whole("inputs", inputs, 1) if made is None else made.width
        output_width(model, width, self.credentials.party, "features")
        seed = whole("seed", seed, 0, SEEDS - 1)
        pace = RuntimeOptions(
            in_flight=whole("in_flight", in_flight, 1, 1024),
            checkpoint_every=whole("checkpoint_every", checkpoint_every, 1),
            durable=durable,
        )
        most = whole("kept", MOST if kept is None else kept, 1)

        def make(width: int, look: Look, decide: Decide, **options: Any) -> ClientParty:
            return make_client(
                rule, model, width, clients, look, decide, rate, self.credentials, self._folder, pace,
                compute=_TellingCompute, **options,
            )  # fmt: skip

        self._stack.enter_context(locked(self._folder))
        try:
            if source is None or made is None:
                decide = decide_of(activation, seed, index)
                names = None if events is None else names_of(events)
                look = CheckedFeatures(features, width)  # type: ignore[arg-type]
                party = make(width, look, decide, schema=schema, events=names, kind=_TellingClient)
            else:
                stimulus = stimulus_or(activation, seed, index, made)
                file = KeptInputs(self._folder / INPUTS, most=most, durable=durable)
                self._stack.callback(file.close)
                party = sourced_client(partial(make, kind=_TellingSourced), source, made, stimulus, file)
        except BaseException:
            self._stack.close()
            raise
        assert isinstance(party, _TellingClient)
        party.told = self.tell
        self._party = party

    @property
    def party(self) -> ClientParty:
        return self._party


def _late_labels(labels: Any, events: Any, late: str, update: Update, classes: int) -> LateLabels:
    if late not in LEARNINGS:
        raise ConfigError(f"late is {late!r}, but it is 'fresh' or 'stored'.{nearest(str(late), LEARNINGS)}")
    if late == "stored" and update.rows is not None:
        raise ConfigError(
            "late is 'stored', but SLR evaluates past samples again at today's parameters: use another update, or "
            "'fresh' with events"
        )
    if update.rows is not None and events is None:
        raise ConfigError(
            "clients tell of the events, which they cannot under SLR: its window of samples is that of the server's "
            "order. Give the events, or use another update"
        )
    for name, given in (("labels", labels), ("events", events)):
        if not isinstance(given, AsyncIterable) and not (name == "events" and given is None):
            raise ConfigError(f"{name} is {given!r:.60}, but with late it is an async iterable")
    return LateLabels(labels, events, classes)


class _TellingServer(ServerParty):
    """Says what it has played."""

    told: Callable[[Played], Any]

    async def _played(self, played: Played) -> None:
        await super()._played(played)
        await self.told(played)


class _TellingCompute(ClientCompute):
    """Remembers the steps that it takes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taken: deque[Step] = deque()

    def step(
        self, rounds: NDArray[np.int32], pending: Sequence[Pending], derivatives: NDArray[Any], factor: float = 1.0
    ) -> None:
        super().step(rounds, pending, derivatives, factor)
        self.taken += [Step(int(t), value) for t, value in zip(rounds, derivatives, strict=True)]


class _TellingClient(ClientParty):
    """Says which steps it has taken."""

    told: Callable[[Step], Any]

    async def _turn(self) -> None:
        await super()._turn()
        taken: deque[Step] = self.conversation.compute.taken  # type: ignore[attr-defined]
        while taken:
            await self.told(taken.popleft())


class _TellingSourced(_TellingClient, SourcedClient):
    """The same, with a source."""
