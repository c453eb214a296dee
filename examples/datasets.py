"""The real data of the examples: from the folder that ANABRANCH_DATA names, or downloaded into the user's cache.

What was read is compared with a digest of its numbers, so that a table of results says when it is of other data.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

Table = dict[str, NDArray]
"""Columns by name."""


class Dataset(NamedTuple):
    """Where a table is, and what is in it."""

    files: tuple[str, ...]
    """In the folder of ANABRANCH_DATA; plain or with .gz."""
    url: str
    """Of a CSV file, or of a zip archive with one."""
    digest: str
    """Of the numbers of all columns, in order."""
    read: Callable[[list[Path]], Table]


ROOM = [
    *(f"S{i}_{what}" for what in ("Temp", "Light", "Sound") for i in range(1, 5)),
    *("S5_CO2", "S5_CO2_Slope", "S6_PIR", "S7_PIR", "Room_Occupancy_Count"),
]
ELECTRICITY = ["date", "day", "period", "nswprice", "nswdemand", "vicprice", "vicdemand", "transfer", "class"]
CREDIT = [
    *("ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *(f"BILL_AMT{i}" for i in range(1, 7)),
    *(f"PAY_AMT{i}" for i in range(1, 7)),
    "default",
]


def _csv(path: Path) -> list[NDArray]:
    return [column.to_numpy() for column in pa.csv.read_csv(path).columns]


def _room(paths: list[Path]) -> Table:
    date, time, *rest = (column.astype(str) for column in _csv(paths[0]))
    at = [
        f"{day.replace('/', '-')}T{moment.rpartition('.')[0] or moment:0>8}"
        for day, moment in zip(date, time, strict=True)
    ]
    seconds = np.array(at, "datetime64[s]").astype(np.int64)
    return {"at": seconds} | {name: column.astype(float) for name, column in zip(ROOM, rest, strict=True)}


def _electricity(paths: list[Path]) -> Table:
    if len(paths) == 2:  # the benchmark's own form, with the labels in a file of their own
        return dict(zip(ELECTRICITY, [*np.loadtxt(paths[0]).T, np.loadtxt(paths[1])], strict=True))
    *columns, label = _csv(paths[0])
    return dict(zip(ELECTRICITY, [*(column.astype(float) for column in columns), (label == "UP") * 1.0], strict=True))


def _credit(paths: list[Path]) -> Table:
    return {name: column.astype(float) for name, column in zip(CREDIT, _csv(paths[0]), strict=True)}


DATASETS = {
    "room": Dataset(
        ("room_occupancy_estimation/Occupancy_Estimation.csv",),
        "https://archive.ics.uci.edu/static/public/864/data.csv",
        "2a42c4c917797b42",
        _room,
    ),
    "electricity": Dataset(
        ("elec2/elec2_data.dat", "elec2/elec2_label.dat"),
        "https://maxhalford.github.io/files/datasets/electricity.zip",
        "d8b309f9086d4b32",
        _electricity,
    ),
    "credit": Dataset(
        ("credit_default/UCI_Credit_Card.csv",),
        "https://archive.ics.uci.edu/static/public/350/data.csv",
        "d681cc80401b6907",
        _credit,
    ),
}


def load(name: str) -> tuple[Table, str]:
    """A table, and a sentence where it is not the one that the READMEs' results are of."""
    dataset = DATASETS[name]
    folder = os.environ.get("ANABRANCH_DATA")
    paths = [_download(name, dataset.url)] if folder is None else [_find(Path(folder), file) for file in dataset.files]
    table = dataset.read(paths)
    digest = hashlib.sha256(np.stack([*table.values()]).astype("<f8").tobytes()).hexdigest()[:16]
    if digest == dataset.digest:
        return table, ""
    return table, f"These are results on other data than the README's ({len(next(iter(table.values()))):,} rows)."


def _find(folder: Path, file: str) -> Path:
    for path in (folder / file, folder / f"{file}.gz"):
        if path.is_file():
            return path
    raise SystemExit(f"{folder / file}[.gz]: there is no such file. Without ANABRANCH_DATA it is downloaded.")


def _download(name: str, url: str) -> Path:
    zipped = url.endswith(".zip")
    try:
        found = pooch.retrieve(
            url,
            known_hash=None,  # what is in it is compared
            fname=f"{name}{'.zip' if zipped else '.csv'}",
            path=pooch.os_cache("anabranch") / "examples",
            processor=pooch.Unzip() if zipped else None,
        )
    except Exception as error:  # no network, another address, a full disk
        raise SystemExit(
            f"{url}: cannot be downloaded ({error}). Put {' and '.join(DATASETS[name].files)} into a folder, and name "
            "the folder by ANABRANCH_DATA."
        ) from None
    return Path(found[0] if zipped else found)
