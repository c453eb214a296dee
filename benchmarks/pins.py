"""Print digests of what a change of layout or names must not change: runs, messages and files.

``make pins`` prints one line a thing: its kind, its name and a SHA-256. Run it before and after a change, on the same
machine, and compare the two outputs. Another processor may give other digests of the runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file

import anabranch as ab
from anabranch.protocol.codec import FORMS, decode, encode
from anabranch.protocol.terms import Terms
from anabranch.storage import checkpoint
from anabranch.storage.round_log import RoundLog

ROUNDS = 300
UPDATES: dict[str, ab.Update] = {
    "ogd": ab.OGD(),
    "dlr": ab.DLR(window=5, decay=0.9),
    "dlr-server-window": ab.DLR(window=5, decay=0.9, client_window=False),
    "slr": ab.SLR(window=4),
}
ACTIVATIONS: dict[str, ab.Activation] = {
    "full": ab.Full(),
    "random": ab.Random(0.5),
    "event": ab.Event(threshold=0.1),
    "fixed": ab.Fixed(2),
}
LATE: dict[str, dict[str, Any]] = {
    "late-fresh": {"label_delay": 7},
    "late-stored": {"label_delay": 7, "label_learning": "stored"},
    "late-uniform": {"label_delay": ab.UniformDelay(0, 20)},
    "late-geometric": {"label_delay": ab.GeometricDelay(5), "label_learning": "stored"},
}
SENSITIVE = {"min_instances": 10, "threshold": 0.5}
"""A detector with these notices something in the first hundred rounds."""
OTHERS: dict[str, dict[str, Any]] = {
    "float16": {"wire_dtype": "float16"},
    "bfloat16": {"wire_dtype": "bfloat16"},
    "reset": {"detect": ab.Detect("PageHinkley", on_drift="reset", every=20, options=SENSITIVE)},
    "boost": {"detect": ab.Detect("PageHinkley", on_drift="boost", boost=2.0, every=20, options=SENSITIVE)},
    "regret": {"measure_regret": True},
    "rates": {"learning_rate": [0.1, 0.05, 0.02, 0.01]},
}


def problem() -> tuple[ab.streams.Stream, ab.SplitModel]:
    """Return a stream of three clients whose label depends on all of them, and a model for it."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROUNDS, 9)).astype(np.float32)
    y = (x[:, 0] + x[:, 4] * x[:, 8] > 0).astype(int)
    stream = ab.streams.from_arrays([x[:, :2], x[:, 2:5], x[:, 5:]], y)
    return stream, ab.models.mlp(stream.widths, 2)


def digest(*parts: Any) -> str:
    """Return the SHA-256 of arrays, bytes and texts, one after another."""
    found = hashlib.sha256()
    for part in parts:
        array = not isinstance(part, bytes | str)
        data = np.ascontiguousarray(part) if array else part
        if array:
            found.update(f"{data.dtype}{data.shape}".encode())
        found.update(data.encode() if isinstance(data, str) else data)
    return found.hexdigest()


def of_run(**options: Any) -> str:
    """Train, and return a digest of predictions, losses, parameters and bytes."""
    stream, model = problem()
    result = ab.simulate(model, stream, **({"learning_rate": 0.05, "seed": 3, "keep_errors": True} | options))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.model) if hasattr(leaf, "dtype")]
    return digest(result.predictions, *leaves, *(np.asarray(each) for each in result.traffic))


def runs() -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each run."""
    for u, update in UPDATES.items():
        for a, activation in ACTIVATIONS.items():
            yield f"{u}-{a}", of_run(update=update, activation=activation)
    for name, options in LATE.items():
        yield name, of_run(update=UPDATES["dlr"], activation=ACTIVATIONS["random"], **options)
    for name, options in OTHERS.items():
        yield name, of_run(update=UPDATES["dlr"], activation=ACTIVATIONS["random"], **options)
    stream = ab.streams.imnist(clients=2, seed=5)
    yield "imnist-stream", digest(*next(iter(stream.blocks())).x[0][:50])


SAMPLES: dict[str, Any] = {
    "int": 7,
    "int | None": 5,
    "float": 0.5,
    "str": "text",
    "bool": True,
    "bytes": b"event",
    "Rounds": (1, 2, 5),
    "Events": (b"one", b"two"),
    "tuple[float, ...]": (0.5, 0.25),
    "NDArray[np.bool_]": np.array([True, False, True]),
    "NDArray[np.bool_] | None": np.array([[True, False], [False, True]]),
    "NDArray[Any]": np.arange(6, dtype=np.float32).reshape(2, 3),
    "Terms": Terms("protocol", 3, "digest", "update"),
}


def wire() -> Iterator[tuple[str, str]]:
    """Yield the code of each kind of message and the digest of a sample's bytes after the version of the protocol."""
    for kind in FORMS:
        fields = {field.name: SAMPLES[str(field.type)] for field in dataclasses.fields(kind)}
        message = kind(**fields)
        data = bytes(encode(message))
        assert decode(data, most=None) == message
        yield f"{data[3]:02}", digest(data[3:])


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each kind of file that outlives a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stream, model = problem()
        result = ab.simulate(model, stream, learning_rate=0.05, seed=3)
        ab.save(result, folder / "run")
        arrays = load_file(folder / "run" / "model.safetensors")
        yield "model.safetensors", digest(*(part for k in sorted(arrays) for part in (k, arrays[k])))
        yield "curve.csv", digest((folder / "run" / "curve.csv").read_bytes())
        manifest = checkpoint.save(folder / "state", {"w": np.arange(4.0)}, {"rounds": 3})
        yield "checkpoint", digest(manifest.read_bytes(), manifest.with_suffix(".safetensors").read_bytes())
        with RoundLog(folder / "log") as log:
            log.append_many(0, [b"first", b"second"])
        # A segment's mark is random: its records' sizes and payloads stay.
        yield "round log", digest(*(payload for _, payload in RoundLog(folder / "log").records()))


def main() -> None:
    """Print all digests."""
    for kind, found in (("run", runs), ("message", wire), ("file", files)):
        for name, hexadecimal in found():
            print(f"{kind:8} {name:24} {hexadecimal}", flush=True)


if __name__ == "__main__":
    main()
