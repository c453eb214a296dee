"""The clients' computing time, measured once for each kind of client and multiplied out for every trial."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anabranch.config.run import Config
from anabranch.paper.experiment import Run
from anabranch.simulation.result import machine
from anabranch.storage.files import replace_file, to_json, writing
from anabranch.sweep.trial import Record, digest, portable

FILE = "client_times.json"


class ClientCosts:
    """Seconds of one `encode` and of one `client_step`, for each client of a configuration.

    They depend on the model, the update and the wire, and on this machine; so they are measured here, when no trial
    is running, and kept in a file of the results' folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            held = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            held = None
        # What is not as it was written, as in a file that was edited, is measured again.
        whole = held if isinstance(held, dict) else {}
        self._times: dict[str, dict[str, list[float]]] = {kind: each for kind, each in whole.items() if _sound(each)}

    def measure(self, configs: Sequence[Config]) -> None:
        """Time those that were not timed before."""
        missing = {_kind(config): config for config in configs if _kind(config) not in self._times}
        for kind, config in missing.items():
            self._times[kind] = _time(config)
        if missing:
            with writing("clients' times", self._folder):
                replace_file(self._folder / FILE, to_json(self._times).encode())

    def seconds(self, run: Run, record: Record) -> float:
        """Of all clients together, over the whole trial; NaN where they were not timed."""
        times = self._times.get(_kind(run.config))
        if times is None or len(times["encode"]) != len(record["activation_rate"]):
            return float("nan")
        each = zip(times["encode"], times["step"], record["activation_rate"], strict=True)
        return record["rounds"] * sum(encode + step * rate for encode, step, rate in each)


def _sound(times: Any) -> bool:
    """Return whether they are such as `_time` gives."""
    if not isinstance(times, dict) or set(times) != {"encode", "step"}:
        return False
    encode, step = times.values()
    lists = isinstance(encode, list) and isinstance(step, list) and len(encode) == len(step)
    return lists and all(isinstance(each, float) and math.isfinite(each) for each in [*encode, *step])


def _kind(config: Config) -> str:
    values = portable(config)
    kept = {key: values[key] for key in ("model", "update", "wire_dtype")}
    return digest({"stream": values["stream"]["name"], "machine": machine(), **kept})


def _time(config: Config) -> dict[str, list[float]]:
    from anabranch.config import build as runner
    from anabranch.simulation.run_setup import prepare
    from anabranch.simulation.timing import measure_client_times

    plan = runner.build(config)
    run = prepare(plan.model, plan.stream, **plan.options)
    encode, step = measure_client_times(plan.model, run.layout, run.rule._replace(measure=False))
    return {"encode": encode.tolist(), "step": step.tolist()}
