"""From a party's own file to the party: its labels and top model, or its features and bottom model."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as arrays_file

from anabranch.broker.credentials import Credentials
from anabranch.config.own import OwnPart, make
from anabranch.config.party import (
    ClientFile,
    Features,
    Labels,
    LinearBottom,
    LinearTop,
    OnEventActivation,
    OwnRandomActivation,
    SendOnDeltaActivation,
    ServerFile,
)
from anabranch.config.run import DlrUpdate, EventActivation, FullActivation, OgdUpdate, SlrUpdate, form_of
from anabranch.config.source import FileSection, SourcedFeatures, SourcedLabels, open_source
from anabranch.core.activation import Activation, Event, Fixed, Full, Random
from anabranch.core.layers import Projection, Sum
from anabranch.core.models import SplitModel, perceptron
from anabranch.core.party import Rule
from anabranch.core.party_programs import Rate
from anabranch.core.random_keys import initial_key
from anabranch.core.updates import DLR, OGD, SLR, Update
from anabranch.errors import ConfigError, counted
from anabranch.federation.client import ClientParty
from anabranch.federation.data_clock import OrderedHappenings, OrderedRoom, OrderedSamples, ReplayTime
from anabranch.federation.expiry import DataTime
from anabranch.federation.server import Samples, ServerParty
from anabranch.federation.source_client import (
    SourcedClient,
    SourcedRoom,
    SourcedServer,
    SourceHappenings,
    SourceSamples,
    sourced_client,
)
from anabranch.federation.tables import TableFeatures, TableLabels
from anabranch.parties.assemble import (
    INPUTS,
    WAITING,
    chooser,
    decider,
    make_client,
    make_server,
    stimulus_of,
    watching,
)
from anabranch.protocol.client.conversation import Decide, Look
from anabranch.protocol.server.client_session import Expected
from anabranch.protocol.server.missing import policy
from anabranch.simulation.drift_detection import Detect
from anabranch.simulation.output import MODEL
from anabranch.simulation.run_setup import check_decay
from anabranch.sources import features as rules
from anabranch.sources.activation import OnEvent, SendOnDelta, Stimulus, check_stimulus, numbers_of
from anabranch.sources.labels import SourceLabels
from anabranch.storage.feature_store import KeptInputs
from anabranch.storage.files import replace_file, writing
from anabranch.storage.pending_labels import Waiting
from anabranch.tables.columns import Classes

COALESCE = 0.2
"""Seconds that an event waits for the announcements of other clients, where nothing else is said."""

_log = logging.getLogger(__name__)


def server_party(file: ServerFile, credentials: Credentials, folder: Path) -> ServerParty:
    """Return the server that a file describes.

    Raises:
        ConfigError: where the file does not fit the connection, or its sections one another.
        DataError: where the labels cannot be read.
        CheckpointError: where the folder's state does not fit.
    """
    labels = file.labels
    if not isinstance(labels, Labels):
        return _sourced_server(file, labels, credentials, folder)
    samples = table_labels(file, labels)
    _log.info("%d events with labels", len(samples), extra={"party": credentials.party})
    return _server(file, samples, credentials, folder)


def table_labels(file: ServerFile, labels: Labels) -> TableLabels:
    """Return the labels of a plain table.

    Raises:
        ConfigError, DataError: where they cannot be read.
    """
    return TableLabels(
        Path(labels.path),
        labels.event,
        labels.label,
        classes_of(file),
        form=form_of(labels),
        rounds=file.rounds,
        follow=labels.follow,
    )


def _sourced_server(file: ServerFile, labels: SourcedLabels, credentials: Credentials, folder: Path) -> ServerParty:
    """Return a server whose labels come from a source."""
    if file.rounds is not None:
        raise ConfigError("rounds is for labels of a plain table: a source says itself where it ends")
    if labels.late is not None and isinstance(file.update, SlrUpdate):
        raise ConfigError(
            f"labels.late is '{labels.late}', so clients tell of events, which they cannot under SLR: its window of "
            "samples is that of the server's order. Leave late out, or use another update"
        )
    by_data = isinstance(labels, FileSection) and labels.clock == "data"
    if by_data and file.in_flight > 1:
        raise ConfigError(
            f'in_flight is {file.in_flight}, but with labels.clock = "data" it must be 1, since each round depends on '
            "the one before: leave in_flight out"
        )
    classes = classes_of(file)
    source = open_source(labels, {labels.label: classes}, credentials, folder)
    found = SourceLabels(source, labels.label, classes, form_of(labels).missing_values)
    samples = OrderedSamples(found) if by_data else SourceSamples(found)
    taken: SourceSamples | SourceHappenings = samples
    room: SourcedRoom | None = None
    coalesce = math.inf
    if labels.late is not None:
        expiry, stored = labels.expiry * _speed(labels), labels.late == "stored"
        waiting = Waiting(folder / WAITING, most=labels.most, expiry=expiry, durable=file.durable)
        if by_data:
            taken = ordered = OrderedHappenings(found, round((labels.coalesce or 0.0) * 1e6))
            room = OrderedRoom(waiting, ordered, stored=stored, clock=ReplayTime())
        else:
            taken = happenings = SourceHappenings(found)
            room = SourcedRoom(waiting, happenings, stored=stored, clock=DataTime())
            coalesce = COALESCE if labels.coalesce is None else labels.coalesce
    party = _server(
        file, samples, credentials, folder, coalesce=coalesce, by_data=by_data, late=room, kind=SourcedServer
    )
    assert isinstance(party, SourcedServer)
    party.feed(source, taken)
    return party


def _speed(section: SourcedFeatures | SourcedLabels) -> float:
    """Return how many seconds of the data pass in one second of a setting: what expires goes by the data's clock."""
    return (section.speed if isinstance(section, FileSection) else None) or 1.0


def _server(file: ServerFile, samples: Samples, credentials: Credentials, folder: Path, **options: Any) -> ServerParty:
    clients = _in_order(file, credentials)
    activation = None if file.activation is None else Fixed(file.activation.k)
    detect = None if file.detect is None else Detect(**file.detect.model_dump())
    rule = _rule(file)
    return make_server(
        rule,
        _top(file),
        [Expected(each.embedding, each.schema_, policy(each.missing), each.largest) for each in clients],
        samples,
        Rate(file.learning_rate, file.learning_rate_power),
        credentials,
        folder,
        file.pace,
        choose=chooser(activation, file.seed, len(clients)),
        report_every=file.report_every,
        watch=watching(detect, len(clients), file.seed, rule),
        **options,
    )


def client_party(file: ClientFile, credentials: Credentials, folder: Path) -> ClientParty:
    """Return the client that a file describes.

    Raises:
        ConfigError: where the file does not fit the connection.
        DataError: where the features cannot be read.
        CheckpointError: where the folder's state does not fit.
    """
    if credentials.index > file.clients:
        raise ConfigError(f"clients is {file.clients}, but {credentials.party} is client {credentials.index}")
    own = file.features
    if not isinstance(own, Features):
        return _sourced_client(file, own, credentials, folder)
    if isinstance(file.activation, OnEventActivation | SendOnDeltaActivation):
        raise ConfigError(
            f"activation.name is {file.activation.name}, which goes by readings as they happen: name a source of them "
            'in [features], such as source = "csv"'
        )
    features = table_features(own)
    _log.info(
        "%d events with %s; their schema is %s",
        len(features),
        counted(features.width, "feature"),
        features.schema,
        extra={"party": credentials.party},
    )
    decide = decider(_activation(file.activation), file.seed, credentials.index)
    return _client(
        file,
        features.width,
        features.look,
        decide,
        credentials,
        folder,
        schema=features.schema,
    )


def table_features(own: Features) -> TableFeatures:
    """Return the features of a plain table.

    Raises:
        ConfigError, DataError: where they cannot be read.
    """
    columns = [each.column for each in own.columns]
    return TableFeatures(Path(own.path), own.event, columns, own.mean, own.std, form_of(own))


def _sourced_client(file: ClientFile, own: SourcedFeatures, credentials: Credentials, folder: Path) -> ClientParty:
    """Return a client whose events and features come from a source."""
    columns = tuple(each.column for each in own.columns)
    features = rules.Features(columns, missing_values=form_of(own).missing_values)
    stimulus = _stimulus(file, columns, credentials.index)
    source = open_source(own, {each.name: each for each in columns}, credentials, folder)
    expiry = None if own.kept_for is None else own.kept_for * _speed(own)
    kept = KeptInputs(folder / INPUTS, most=own.kept, expiry=expiry, durable=file.durable)

    def make(width: int, look: Look, decide: Decide, **options: Any) -> ClientParty:
        return _client(file, width, look, decide, credentials, folder, kind=SourcedClient, **options)

    by_data = isinstance(own, FileSection) and own.clock == "data"
    return sourced_client(make, source, features, stimulus, kept, by_data=by_data)


def _client(
    file: ClientFile,
    width: int,
    look: Look,
    decide: Decide,
    credentials: Credentials,
    folder: Path,
    **options: Any,
) -> ClientParty:
    return make_client(
        _rule(file),
        _bottom(file, width, credentials.index),
        width,
        file.clients,
        look,
        decide,
        Rate(file.learning_rate, file.learning_rate_power),
        credentials,
        folder,
        file.pace,
        **options,
    )


def _stimulus(file: ClientFile, columns: Sequence[rules.Column], index: int) -> Stimulus:
    """Which readings, and which events of others, activate a client with a source."""
    match file.activation:
        case OnEventActivation():
            return OnEvent()
        case SendOnDeltaActivation(threshold=threshold, columns=chosen):
            missing_values = form_of(file.features).missing_values
            stimulus = SendOnDelta(threshold, chosen or numbers_of(columns), missing_values=missing_values)
            if unknown := stimulus.unknown(columns):
                raise ConfigError(f"activation.columns names '{unknown}', which is no number of features.columns")
            return stimulus
        case OwnPart() as part:
            made = make(part, "activation", object)
            if isinstance(made, Activation):
                return stimulus_of(made, file.seed, index)
            return check_stimulus(made, part.name)
        case FullActivation() | OwnRandomActivation() | EventActivation() as activation:
            return stimulus_of(_activation(activation), file.seed, index)


def own_arrays(party: ServerParty | ClientParty) -> dict[str, NDArray[Any]]:
    """Return the party's trained arrays, named as ``anabranch run`` names them in ``model.safetensors``."""
    module: eqx.Module = party.conversation.compute.party.model
    index = party.link.credentials.index
    if not index:
        return _of(SplitModel([module], module), "server.", "server.")
    return _of(SplitModel([module], module), "client1.", f"client{index}.")


def write_model(party: ServerParty | ClientParty, folder: Path) -> Path:
    """Write the party's trained arrays into its folder, and nothing of another's.

    Raises:
        OutputError: where that cannot be.
    """
    with writing("model", folder):
        replace_file(folder / MODEL, arrays_file(own_arrays(party)))
    return folder / MODEL


def _of(model: SplitModel, prefix: str, name: str) -> dict[str, NDArray[Any]]:
    arrays = model.to_arrays().items()
    return {name + key.removeprefix(prefix): array for key, array in arrays if key.startswith(prefix)}


def classes_of(file: ServerFile) -> Classes:
    """Return the classes of the labels, as many as the model has."""
    names, count = file.labels.classes, file.model.classes
    if names is None:
        return Classes(count)
    if len(names) != count:
        raise ConfigError(f"labels.classes names {counted(len(names), 'label')}, but model.classes is {count}")
    return Classes.named(names)


def _in_order(file: ServerFile, credentials: Credentials) -> list[Any]:
    """What is expected of the clients, in the order that the connection has them in."""
    expected = {each.name: each for each in file.clients}
    if len(expected) < len(file.clients):
        raise ConfigError("two sections [[clients]] have the same name: each client has one")
    names = credentials.clients or tuple(expected)
    if {*names} != {*expected}:
        raise ConfigError(
            f"clients are {', '.join(expected)} here, but {', '.join(names)} in the connection: both name each client"
        )
    return [expected[name] for name in names]


def _rule(file: ServerFile | ClientFile) -> Rule:
    update = _update(file)
    check_decay(update, np.dtype(np.float32))  # that of the models below
    return Rule(jax.tree.map(np.asarray, update), None, jnp.dtype(file.wire_dtype))


def _update(file: ServerFile | ClientFile) -> Update:
    match file.update:
        case OgdUpdate():
            return OGD()
        case SlrUpdate(window=window):
            return SLR(window)
        case DlrUpdate(window=window, decay=decay, client_window=own):
            return DLR(window, decay, client_window=own)
        case OwnPart() as part:
            return make(part, "update", Update)  # type: ignore[type-abstract]


def _activation(activation: FullActivation | OwnRandomActivation | EventActivation | OwnPart) -> Activation:
    match activation:
        case OwnPart():
            return make(activation, "activation", Activation)  # type: ignore[type-abstract]
        case FullActivation():
            return Full()
        case OwnRandomActivation(p=p):
            return Random(p)
        case EventActivation(threshold=threshold):
            return Event(threshold)


def _top(file: ServerFile) -> eqx.Module:
    classes = file.model.classes
    if isinstance(file.model, LinearTop):
        for each in file.clients:
            if each.embedding != classes:
                raise ConfigError(
                    f"the embedding of {each.name} is {each.embedding}, but a linear model adds embeddings of one "
                    f'element for each of its {classes} classes: make it {classes}, or model.name = "mlp"'
                )
        return Sum(classes)
    width = sum(each.embedding for each in file.clients)
    if isinstance(file.model, OwnPart):
        return make(file.model, "model", eqx.Module, width, classes, key=initial_key(file.seed, 0))
    return perceptron((width, *file.model.hidden, classes), relu_last=False, seed=file.seed, index=0)


def _bottom(file: ClientFile, features: int, index: int) -> eqx.Module:
    if isinstance(file.model, LinearBottom):
        return Projection(features, file.model.classes)
    if isinstance(file.model, OwnPart):
        return make(file.model, "model", eqx.Module, features, key=initial_key(file.seed, index))
    sizes = (features, *file.model.hidden, file.model.embedding)
    return perceptron(sizes, relu_last=False, seed=file.seed, index=index)
