"""From a configuration to a run: builds the model, the stream and the rest, and trains."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from numpy.typing import NDArray

from anabranch import streams
from anabranch.config.own import OwnPart, make
from anabranch.config.run import (
    ActiveDlrUpdate,
    Config,
    EventActivation,
    FixedActivation,
    FullActivation,
    GeometricLabelDelay,
    ImnistModel,
    ImnistStream,
    LinearModel,
    MlpModel,
    MomentumUpdate,
    OgdUpdate,
    PhysicsModel,
    PhysicsStream,
    RandomActivation,
    RecordedActivation,
    Scale,
    SlrUpdate,
    TableStream,
    UniformLabelDelay,
    form_of,
    value_text,
)
from anabranch.core import models
from anabranch.core.activation import Activation, Event, Fixed, Full, Random, Recorded
from anabranch.core.layers import Softmaxed
from anabranch.core.models import SplitModel
from anabranch.core.updates import DLR, OGD, SLR, ActiveDLR, Update
from anabranch.errors import ConfigError, DataError, ModelError
from anabranch.simulation.delays import Delay, GeometricDelay, UniformDelay
from anabranch.simulation.drift_detection import Detect
from anabranch.simulation.result import Result
from anabranch.simulation.run_setup import LearningRate
from anabranch.simulation.simulator import Progress, simulate
from anabranch.storage.files import reading
from anabranch.streams import Stream


class Plan(NamedTuple):
    """Everything that `simulate` is called with, and what it was made from."""

    model: SplitModel
    stream: Stream
    options: dict[str, Any]
    """The other arguments of `simulate`."""
    data: dict[str, dict[str, Any]]
    """What identifies the files that were read: name, size and checksum of each, by the section that names it."""


def build(config: Config, *, shown: bool = True) -> Plan:
    """Build what a run needs; the one seed feeds them all.

    Args:
        config: the run.
        shown: whether errors may show the cell of a table that is wrong; a party's go to its log.

    Raises:
        ConfigError: where the sections do not fit one another, or not the file that the stream reads.
        ModelError: where the model does not fit the stream.
        DataError: where a file is missing or broken.
    """
    stream = _build_stream(config, shown)
    activation, recorded = _build_activation(config, len(stream.widths))
    data = {"stream": _identity(stream.describe())}
    if recorded:
        data["activation"] = recorded
    if config.drift is not None:
        stream = streams.Drift(stream, every=config.drift.every, seed=config.seed)
    options = {
        "update": _build_update(config),
        "activation": activation,
        "learning_rate": _build_learning_rate(config),
        "learning_rate_power": config.learning_rate_power,
        "rounds": config.rounds,
        "seed": config.seed,
        "wire_dtype": config.wire_dtype,
        "report_every": config.report_every,
        "measure_regret": config.measure_regret,
        "label_delay": _build_delay(config),
        "label_learning": config.label_learning,
        "detect": None if config.detect is None else Detect(**config.detect.model_dump()),
    }
    model = _build_model(config, stream)
    try:
        model.layout(stream.widths)
    except ModelError as error:
        names = f"the model {config.model.name} does not fit the stream {config.stream.name}"
        raise ModelError(f"{names} (model.name, stream.name): {error}") from error
    return Plan(model, stream, options, data)


def run(config: Config, *, progress: Callable[[Progress], None] | None = None) -> Result:
    """Build and train what a configuration says; see `anabranch.simulate` for what it raises.

    >>> import tempfile
    >>> from anabranch.config.load import load
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "rooms.csv").write_text("light,co2,people\\n" + "10,400,0\\n30,800,1\\n" * 100)
    >>> _ = (folder / "rooms.toml").write_text('''
    ... learning_rate = 0.1
    ... [model]
    ... name = "mlp"
    ... [stream]
    ... name = "table"
    ... path = "rooms.csv"
    ... split = [["light"], ["co2"]]
    ... ''')
    >>> result = run(load(folder / "rooms.toml"))
    >>> result.rounds, result.error_rate < 0.2
    (200, True)
    """
    plan = build(config)
    return simulate(plan.model, plan.stream, **plan.options, progress=progress)


def check_same_data(plan: Plan, stored: Mapping[str, Any], where: str) -> None:
    """Whether the files are those that a stored run was trained on.

    Args:
        stored: the ``data`` of its result file.
        where: what messages call that file.

    Raises:
        DataError: where a checksum differs.
    """
    for section, then in stored.items():
        if not isinstance(then, Mapping) or not isinstance(then.get("bytes", 0), int | float):
            raise DataError(f"{where}: its 'data' is not what 'anabranch run' writes: it was edited or is damaged")
        now = plan.data.get(section, {})
        if then.get("sha256") != now.get("sha256"):
            raise DataError(
                f"{where} was trained on {_data_text(then)}, but here the {section} has {_data_text(now)}: the same "
                "bits cannot come of it. Name the original data (--data-dir, ANABRANCH_DATA or --set), or save the "
                "configuration ('anabranch show') and run it as a new one"
            )


def _data_text(identity: Mapping[str, Any]) -> str:
    count = identity.get("count")
    size = f"{count:,} digits" if isinstance(count, int) else f"{identity.get('bytes', 0):,} bytes"
    return f"{identity.get('name', 'no file')} ({size}, SHA-256 {str(identity.get('sha256'))[:12]}…)"


def _identity(described: Mapping[str, Any]) -> dict[str, Any]:
    base = described.get("base")
    if base is not None:
        return {"name": base["name"], "source": base["source"], "count": base["count"], "sha256": base["checksum"]}
    if "file" not in described:  # a stream of a person's own may describe itself in any way
        text = json.dumps(described, sort_keys=True, default=repr)
        return {"name": str(described.get("name")), "bytes": 0, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return {"name": described["file"], "bytes": described["bytes"], "sha256": described["sha256"]}


def _build_model(config: Config, stream: Stream) -> SplitModel:
    clients = len(stream.widths)
    if isinstance(config.model, MlpModel | LinearModel) and config.model.clients not in (None, clients):
        raise ConfigError(
            f"model.clients is {config.model.clients}, but stream.split splits the features among {clients}"
        )
    match config.model:
        case ImnistModel(clients=clients, server_softmax=softmax):
            if isinstance(config.stream, ImnistStream) and config.stream.pool != 1:
                raise ModelError(
                    f"stream.pool is {config.stream.pool}, which leaves {sum(stream.widths)} features, but the model "
                    "imnist takes all 784 pixels: choose the model mlp or linear (model.name)"
                )
            model = models.imnist(clients, seed=config.seed)
            return SplitModel(model.clients, Softmaxed(model.server)) if softmax else model
        case PhysicsModel(name=name):
            return (models.susy if name == "susy" else models.higgs)(seed=config.seed)
        case LinearModel():
            return models.linear(stream.widths, stream.classes)
        case OwnPart() as own:
            return make(own, "model", SplitModel, stream.widths, stream.classes, seed=config.seed)
        case MlpModel() as mlp:
            return models.mlp(
                stream.widths,
                stream.classes,
                hidden=mlp.hidden,
                embedding=mlp.embedding,
                server=mlp.server,
                seed=config.seed,
            )


def _build_stream(config: Config, shown: bool) -> Stream:
    clients = config.clients()
    match config.stream:
        case OwnPart() as own:
            return make(own, "stream", Stream)  # type: ignore[type-abstract]
        case ImnistStream(data_dir=data_dir, pool=pool):
            return streams.imnist(seed=config.seed, clients=clients or 4, data_dir=data_dir, pool=pool)
        case PhysicsStream() as physics:
            read = streams.susy if physics.name == "susy" else streams.higgs
            given = {} if physics.split is None else {"split": physics.split}
            return read(
                physics.path,
                physics.data_dir,
                **given,
                standardise=_standardise(physics.standardise),
                shuffle_buffer=physics.shuffle_buffer,
                seed=config.seed,
            )
        case TableStream() as table:
            split = table.split if table.split is not None else clients
            if split is None:
                raise ConfigError(
                    "stream.split is missing: say which columns each client holds, or give model.clients to split "
                    "them evenly"
                )
            return streams.table(
                table.path,
                split=split,
                label=table.label,
                standardise=_standardise(table.standardise),
                classes=table.classes,
                columns=[each.column for each in table.columns or ()],
                **asdict(form_of(table)),
                shuffle_buffer=table.shuffle_buffer,
                seed=config.seed,
                shown=shown,
            )


def _standardise(given: Any) -> Any:
    return {"mean": given.mean, "std": given.std} if isinstance(given, Scale) else given


def _build_update(config: Config) -> Update:
    match config.update:
        case OgdUpdate() | MomentumUpdate():
            return OGD()
        case ActiveDlrUpdate(window=window, decay=decay):
            return ActiveDLR(window, decay)
        case SlrUpdate(window=window):
            return SLR(window)
        case OwnPart() as own:
            return make(own, "update", Update)  # type: ignore[type-abstract]
        case dlr:
            return DLR(dlr.window, dlr.decay, client_window=dlr.client_window)


def _build_learning_rate(config: Config) -> LearningRate:
    """Return the learning rates, or the Optax transformation that has them.

    Heavy-ball momentum is scaled: ``w ← w − η (1 − β) v`` with ``v ← β v + g``. So a constant gradient moves a
    parameter by ``η g`` a round, as it does under DLR.
    """
    if not isinstance(config.update, MomentumUpdate):
        return config.learning_rate
    if isinstance(config.learning_rate, tuple):
        raise ConfigError(
            f"learning_rate = {value_text(config.learning_rate)} is a list, but the update Momentum takes one number "
            "for all parties: give one number, or choose another update"
        )
    decay = config.update.decay
    return optax.sgd(config.learning_rate * (1 - decay), momentum=decay)


def _build_delay(config: Config) -> int | Delay:
    match config.label_delay:
        case UniformLabelDelay(least=least, most=most):
            return UniformDelay(least, most)
        case GeometricLabelDelay(mean=mean):
            return GeometricDelay(mean)
        case rounds:
            return rounds


def _build_activation(config: Config, clients: int) -> tuple[Activation, dict[str, Any] | None]:
    """Return the activation, and what identifies its file where it reads one."""
    match config.activation:
        case FullActivation():
            return Full(), None
        case RandomActivation(p=p):
            return Random(p), None
        case EventActivation(threshold=threshold):
            return Event(threshold), None
        case FixedActivation(k=k):
            return Fixed(k), None
        case RecordedActivation(path=path):
            return _read_recorded(Path(path), clients, config.rounds)
        case OwnPart() as own:
            return make(own, "activation", Activation), None  # type: ignore[type-abstract]


def _read_recorded(path: Path, clients: int, rounds: int | None) -> tuple[Recorded, dict[str, Any]]:
    """Return the recorded activation, fit for so many clients and rounds; each message names the file."""
    with reading(path, DataError):
        raw = path.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of a text file without a row
            table = _read_array(raw) if path.suffix == ".npy" else _read_text(raw)
    except Exception as error:  # whatever NumPy raises for a broken file
        raise DataError(f"{path}: not a table of zeros and ones ({error})") from error
    if not table.size:
        raise DataError(f"{path}: holds no rows, but one row a round and one column a client are needed")
    try:
        recorded = Recorded(table)
        recorded.check(clients, rounds)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return recorded, {"name": path.name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def _read_array(raw: bytes) -> NDArray[Any]:
    return np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)


def _read_text(raw: bytes) -> NDArray[Any]:
    return np.loadtxt(io.StringIO(raw.decode("utf-8")), delimiter=",", ndmin=2)
