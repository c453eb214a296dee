"""Small data and a small configuration for the tests of the command line, its files and its configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SMALL_MODEL = "model={name='mlp', clients=4, hidden=[], embedding=3, server=[]}"
"""An override: a model that is made quickly."""

ROOMS = """\
rounds = 300
learning_rate = 0.1

[model]
name = "mlp"
hidden = []
embedding = 3
server = []

[stream]
name = "table"
path = "rooms.csv"
label = "people"
split = {kitchen = ["light", "co2"], hall = ["noise", "heat"]}

[update]
name = "DLR"
window = 3

[activation]
name = "Event"
threshold = 0.0
"""


def write_rooms(folder: Path, rows: int = 400, wrong_row: int | None = None) -> Path:
    """``rooms.csv`` and ``rooms.toml``, whose path is returned; in ``wrong_row`` (from 1) a cell is not a number."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{d:.4f},{int(a + c > 0)}" for a, b, c, d in x]
    if wrong_row is not None:
        lines[wrong_row - 1] = "0.1,broken,0.3,0.4,1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rooms.csv").write_text("\n".join(["light,co2,noise,heat,people", *lines]) + "\n")
    (folder / "rooms.toml").write_text(ROOMS)
    return folder / "rooms.toml"


def write_digits(folder: Path, digits: int = 20, seed: int = 0) -> Path:
    """A folder with random digits in MNIST's format."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (digits, 28, 28), np.uint8)
    labels = (np.arange(digits) % 10).astype(np.uint8)
    for name, array, kind in (("train-images-idx3-ubyte", images, 3), ("train-labels-idx1-ubyte", labels, 1)):
        head = bytes([0, 0, 8, kind]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        (folder / name).write_bytes(head + array.tobytes())
    return folder
