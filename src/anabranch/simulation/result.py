"""What a run gives back."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from anabranch.core.models import SplitModel
from anabranch.errors import ConfigError
from anabranch.simulation.drift_detection import Detection
from anabranch.simulation.label_delay import LateLabels
from anabranch.simulation.metrics import Curve
from anabranch.simulation.output import draw_rates
from anabranch.simulation.regret import Regret
from anabranch.simulation.timing import ClientTimes
from anabranch.simulation.traffic import MB, Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from anabranch.simulation.resume import RunState


@dataclass(eq=False)
class Result:
    """A run's model, error, traffic and cost."""

    model: SplitModel
    """The trained model."""
    rounds: int
    """How many rounds were done."""
    stopped: str | None
    """Why the run ended before the rounds that were asked for, or None."""
    error_rate: float
    """The accumulated error rate: mean prequential 0/1 error of all rounds; NaN where there was none."""
    curve: Curve
    """The run-time and the accumulated error rate as the run went on."""
    activation_rate: NDArray[np.float64]
    """(M,): in which share of the rounds each client was activated."""
    traffic: Traffic
    """Payload bytes up and down, for each client."""
    seconds: float
    """Wall-clock seconds of the rounds, the stream included and compiling excluded."""
    compile_seconds: float
    """Seconds of compiling before round 0; near 0 when a run of the same shapes came before."""
    settings: dict[str, Any]
    """What the run was asked for, as JSON values."""
    errors: NDArray[np.bool_] | None = field(default=None, repr=False)
    """(rounds,): the 0/1 error of each round, with ``keep_errors=True``."""
    predictions: NDArray[np.int32] | None = field(default=None, repr=False)
    """(rounds,): the class predicted in each round, with ``keep_errors=True``."""
    regret: Regret | None = field(default=None, repr=False)
    """Loss, gradients and regret as the run went on, with ``measure_regret=True``."""
    late_labels: LateLabels | None = None
    """What the delay came to, with ``label_delay``."""
    detections: list[Detection] | None = field(default=None, repr=False)
    """Where drift was noticed, with ``detect``."""
    timed_rounds: int | None = None
    """How many rounds took those ``seconds``; None is all of them. Fewer if a run or a federation has gone on."""
    ending: dict[str, Any] | None = None
    """How a federation has ended: the reason, what became of its events, and the problem if that is a failure."""
    _measure: Callable[[], ClientTimes] | None = field(default=None, repr=False)
    _state: Callable[[], RunState] | None = field(default=None, repr=False)
    """Makes what `simulate` goes on from; None where it cannot."""

    @property
    def run_time_error(self) -> float:
        """The run-time error rate at the end: mean error of the last 20,000 rounds."""
        return float(self.curve.run_time_error[-1]) if len(self.curve.rounds) else float("nan")

    @property
    def rounds_per_second(self) -> float:
        """Rounds a second, the stream included and compiling excluded; 0 where none was timed."""
        rounds = self.rounds if self.timed_rounds is None else self.timed_rounds
        return rounds / self.seconds if rounds and self.seconds else 0.0

    @cached_property
    def client_times(self) -> ClientTimes:
        """Seconds of one forward pass, and of one backward pass and step, for each client; measured when first read.

        A result that was pickled has none, since another machine may read it, unless they were read before.
        """
        if self._measure is None:
            unknown = np.full(len(self.activation_rate), np.nan)
            return ClientTimes(unknown, unknown)
        return self._measure()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_measure": None, "_state": None}

    @property
    def client_seconds(self) -> float:
        """Computing time of all clients together.

        The simulator computes all parties in one program, so this is an estimate: each client's `encode` and
        `client_step`, compiled apart, are timed on this machine (when this is first read) and multiplied by the
        rounds, and by the rounds in which the client was activated. Where labels come late, an event takes a forward
        pass of its own, and a round with ``stored`` labels takes one of the activated clients only.
        """
        return float(self.seconds_of_clients.sum())

    @property
    def seconds_of_clients(self) -> NDArray[np.float64]:
        """(M,): computing time of each client, an estimate; see `client_seconds`."""
        encode, step = self.client_times
        steps = self.activation_rate * self.rounds
        if self.late_labels is None:
            return encode * self.rounds + step * steps
        again = steps if self.settings["label_learning"] == "stored" else self.rounds
        return encode * (self.late_labels.events + again) + step * steps

    def predict(self, x: Any) -> Any:
        """Return the trained model's class of one sample or of a batch; see `SplitModel.predict`."""
        return self.model.predict(x)

    def predict_proba(self, x: Any) -> NDArray[np.floating[Any]]:
        """Return the trained model's probability of each class; see `SplitModel.predict_proba`."""
        return self.model.predict_proba(x)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw both error rates over the rounds, and return the axes.

        Args:
            axes: of Matplotlib, to draw on; None makes a figure.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.figure(figsize=(8, 4.5), layout="constrained").subplots()
        draw_rates(axes, self)
        return axes

    def to_pandas(self) -> DataFrame:
        """Return the curve as a table of pandas: ``rounds``, ``run_time_error`` and ``accumulated_error``.

        Raises:
            ConfigError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame(self.curve._asdict())

    def describe(self) -> dict[str, Any]:
        """Everything but the arrays of the model and of single rounds, as JSON values: numbers, settings, versions."""
        return {
            "rounds": self.rounds,
            "stopped": self.stopped,
            "accumulated_error": _number(self.error_rate),
            "run_time_error": _number(self.run_time_error),
            "activation_rate": self.activation_rate.tolist(),
            "bytes_up": self.traffic.up.tolist(),
            "bytes_down": self.traffic.down.tolist(),
            "megabytes": self.traffic.total / MB,
            "regret": None if self.regret is None else _describe(self.regret),
            "late_labels": None if self.late_labels is None else _describe(self.late_labels),
            "detections": None if self.detections is None else [each._asdict() for each in self.detections],
            "ending": self.ending,
            "client_seconds": _number(self.client_seconds),
            "client_seconds_how": "each client's functions, jitted apart, timed once and multiplied out",
            "seconds": self.seconds,
            "timed_rounds": self.rounds if self.timed_rounds is None else self.timed_rounds,
            "compile_seconds": self.compile_seconds,
            "rounds_per_second": self.rounds_per_second,
            "settings": self.settings,
            "versions": versions(),
        }


def _describe(record: Regret | LateLabels) -> dict[str, Any]:
    values = {name: np.asarray(value).tolist() for name, value in record._asdict().items()}
    return {name: value if isinstance(value, list) else _number(value) for name, value in values.items()}


def versions() -> dict[str, str]:
    """Return the versions that a run's bits depend on, and the device."""
    packages = {name: version(name) for name in ("anabranch", "jax", "jaxlib", "equinox", "optax", "numpy")}
    device = jax.devices()[0]
    return {
        **packages,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "device": f"{device.platform} {device.device_kind}",
    }


def machine() -> dict[str, Any]:
    """Return the processor's name, where the system tells it, and how many cores there are."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return {"processor": name, "cores": os.cpu_count()}


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
