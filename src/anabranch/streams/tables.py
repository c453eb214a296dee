"""Streams of table files: your CSV or Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError, DataError, nearest
from anabranch.streams.base import Block, Stream
from anabranch.streams.readers import Reader, open_table
from anabranch.streams.shuffle import shuffled
from anabranch.streams.split import split_widths
from anabranch.streams.standardise import Moments, standardise

Split = int | Sequence[int] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]]
Standardise = Literal["online", "none"] | Mapping[str, Sequence[float]] | None


def table(
    path: str | Path,
    *,
    split: Split,
    label: str = "last",
    standardise: Standardise = "online",
    header: Literal["auto"] | bool = "auto",
    classes: int | None = None,
    shuffle_buffer: int = 0,
    seed: int = 0,
) -> Table:
    """Return the rows of a CSV or Parquet file (also ``.gz``), in order, read a piece at a time and never whole.

    Args:
        path: Parquet where the name ends in ``.parquet`` or ``.pq`` (or one of these and ``.gz``), else CSV.
        split: which features each client holds. A number of clients splits all columns but the label's evenly and in
            the file's order; a list of counts does so by these counts; a list of lists of column names, or a mapping
            from clients' names to such lists, takes exactly the columns named, and others are not read.
        label: ``"first"``, ``"last"`` or the name of a column. Labels are whole numbers (``1`` or ``1.0``) from 0 on.
        standardise: ``"online"`` by the mean and variance of the rows so far (see
            :func:`~anabranch.streams.standardise.standardise`), ``{"mean": [...], "std": [...]}`` by constants, one a
            feature in the clients' order, or None (``"none"`` in a configuration file) not at all.
        header: whether the first line names the columns; ``"auto"`` says yes where a cell of it is not a number.
            Without a header the columns are called ``"1"``, ``"2"`` and so on.
        classes: how many classes there are. By default the label column is read through once, now, and it is the
            largest label plus one, and at least two.
        shuffle_buffer: how many rows to hold for shuffling (see :func:`~anabranch.streams.shuffle.shuffled`); 0 keeps
            the file's order.
        seed: of the shuffle.

    Raises:
        ConfigError: a setting is out of range, or a column is named that the file lacks, or twice.
        DataError: the file is missing, empty, truncated or not what its name says; at the row in question, a cell is
            empty, infinite or not a number, a row is too short or too long, or a label is not one of the classes.
            Rows are counted from 1, without the header and empty lines.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "rooms.csv"
    >>> _ = file.write_text("light,co2,people\\n10,400,0\\n30,800,2\\n")
    >>> stream = table(file, label="people", split=[["co2"], ["light"]])
    >>> stream.classes
    3
    >>> next(stream.blocks())
    Block(x=array([[0., 0.],
           [1., 1.]]), y=array([0, 2], dtype=int32))
    """
    seed = whole("seed", seed, 0)
    shuffle_buffer = whole("shuffle_buffer", shuffle_buffer, 0)
    classes = None if classes is None else whole("classes", classes, 1)
    reader = open_table(Path(path), header)
    target = _label_column(reader, label)
    parts = _columns(reader, target, split)
    scale = _scale(standardise, sum(len(columns) for columns in parts))
    if classes is None:
        classes = _count_classes(reader, target)
    return Table(reader, target, parts, scale, classes, shuffle_buffer, seed)


Scale = Literal["online"] | tuple[NDArray[np.float64], NDArray[np.float64]] | None


class Table(Stream):
    """The stream that :func:`table` makes."""

    def __init__(
        self,
        reader: Reader,
        target: int,
        parts: list[list[int]],
        scale: Scale,
        classes: int,
        shuffle_buffer: int,
        seed: int,
    ) -> None:
        self.widths = tuple(len(columns) for columns in parts)
        self.classes = classes
        self._reader, self._target, self._parts, self._scale = reader, target, parts, scale
        self._shuffle_buffer, self._seed = shuffle_buffer, seed
        self._sha256 = ""

    def describe(self) -> dict[str, Any]:
        """Return the file's name, size and SHA-256 (read through once), its rows where known, and how it is used."""
        reader = self._reader
        if not self._sha256:
            with reader.path.open("rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        scale = self._scale
        return {
            "name": "table",
            "file": reader.path.name,
            "bytes": reader.path.stat().st_size,
            "sha256": self._sha256,
            "rows": reader.rows,
            "label": reader.names[self._target],
            "split": [[reader.names[i] for i in columns] for columns in self._parts],
            "classes": self.classes,
            "standardise": {"mean": scale[0].tolist(), "std": scale[1].tolist()} if isinstance(scale, tuple) else scale,
            "shuffle_buffer": self._shuffle_buffer,
            "seed": self._seed,
        }

    def blocks(self) -> Iterator[Block]:
        moments: Moments | None = None
        for rows in shuffled(self._checked(), self._shuffle_buffer, self._seed):
            x, y = rows[:, 1:], rows[:, 0].astype(np.int32)
            if self._scale == "online":
                moments, x = standardise(moments, x)
            elif self._scale is not None:
                mean, std = self._scale
                x = (x - mean) / std
            yield Block(np.ascontiguousarray(x), y)
        if not self._reader.rows:
            raise DataError(f"{self._reader.path}: the file has no rows")

    def _checked(self) -> Iterator[NDArray[np.float64]]:
        """Yield rows of the label and the features."""
        done = 0
        for rows in self._reader.read([self._target, *(i for columns in self._parts for i in columns)]):
            good = good_labels(rows[:, 0], self.classes)
            if good:
                yield rows[:good]
            if good < len(rows):
                where = self._reader.where(done + good + 1, self._target)
                raise DataError(f"{where}: {label_complaint(rows[good, 0], self.classes)}")
            done += len(rows)


def good_labels(y: NDArray[np.float64], classes: int) -> int:
    """Return how many labels there are before the first bad one."""
    bad = (y < 0) | (y >= classes) | (y != np.floor(y))
    return int(np.argmax(bad)) if bad.any() else len(y)


def label_complaint(label: float, classes: int | None, *, shown: bool = True) -> str:
    """What is wrong with a bad label."""
    which = f"the label {label:g}" if shown else "the label"
    if label != np.floor(label):
        return f"{which} is not a whole number"
    return f"{which} is " + ("negative" if classes is None else f"not in 0..{classes - 1}")


_MOST_CLASSES = 1_000_000


def _count_classes(reader: Reader, target: int) -> int:
    """Return the largest label plus one, at least two; one pass over the label column."""
    done, largest = 0, 1
    for rows in reader.read([target]):
        y = rows[:, 0]
        good = good_labels(y, _MOST_CLASSES)
        if good < len(y):
            raise DataError(f"{reader.where(done + good + 1, target)}: {label_complaint(y[good], None)}")
        largest = max(largest, int(y.max()))
        done += len(y)
    if not done:
        raise DataError(f"{reader.path}: the file has no rows")
    return largest + 1


def _label_column(reader: Reader, label: str) -> int:
    if len(reader.names) < 2:
        raise DataError(
            f"{reader.path}: one column only, but a label and at least one feature are needed. Cells must be divided "
            "by commas, and a file that is compressed or in Parquet must be named so (.gz, .parquet)"
        )
    if label == "first":
        return 0
    if label == "last":
        return len(reader.names) - 1
    if not isinstance(label, str):
        raise ConfigError(f"label is {label!r}: must be 'first', 'last' or the name of a column")
    return find_column(reader, label)


def find_column(reader: Reader, name: str) -> int:
    """Where the column of this name is.

    Raises:
        ConfigError: where there is none, or more than one.
    """
    found = [i for i, known in enumerate(reader.names) if known == name]
    if not found:
        raise ConfigError(
            f"{reader.path} has no column '{name}'.{nearest(name, reader.names)} Its columns: {', '.join(reader.names)}"
        )
    if len(found) > 1:
        raise ConfigError(f"{reader.path} has {len(found)} columns named '{name}', so it is not clear which is meant")
    return found[0]


def _columns(reader: Reader, target: int, split: Split) -> list[list[int]]:
    """Return each client's columns."""
    features = [i for i in range(len(reader.names)) if i != target]
    if isinstance(split, int):
        return _cut(features, split_widths(len(features), split))
    named = isinstance(split, Mapping)
    if isinstance(split, str) or not isinstance(split, Sequence | Mapping) or not split:
        raise ConfigError(f"split is {split!r}: must be a number of clients, a list of counts, or columns' names")
    parts = list(split.values()) if isinstance(split, Mapping) else list(split)
    if all(isinstance(n, int) and not isinstance(n, bool) for n in parts):
        counts = cast("list[int]", parts)
        if min(counts) < 1:
            raise ConfigError(f"split is {counts}: each client needs at least one feature")
        if sum(counts) != len(features):
            raise ConfigError(
                f"split {counts} adds up to {sum(counts)}, but {reader.path} has {len(features)} features"
            )
        return _cut(features, counts)
    owner: dict[int, str] = {}
    columns: list[list[int]] = []
    for client, names in zip(split if named else range(1, len(parts) + 1), parts, strict=True):
        who = f"client '{client}'" if named else f"client {client}"
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"split: {who} has {names!r}, expected a list of columns' names")
        if not names:
            raise ConfigError(f"split: {who} has no columns")
        own = [find_column(reader, name) for name in names]
        for i in own:
            if i == target:
                raise ConfigError(f"split: {who} has column '{reader.names[i]}', which is the label")
            if i in owner:
                raise ConfigError(f"split: column '{reader.names[i]}' is named twice, by {owner[i]} and by {who}")
            owner[i] = who
        columns.append(own)
    return columns


def _cut(features: list[int], widths: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(widths).tolist()
    return [features[end - width : end] for width, end in zip(widths, ends, strict=True)]


def _scale(standardise: Standardise, features: int) -> Scale:
    if standardise is None or standardise == "none":
        return None
    if standardise == "online":
        return "online"
    if not isinstance(standardise, Mapping) or set(standardise) != {"mean", "std"}:
        raise ConfigError(
            f"standardise is {standardise!r}: must be 'online', 'none' or {{'mean': [...], 'std': [...]}}"
        )
    try:
        mean, std = (np.asarray(standardise[key], np.float64) for key in ("mean", "std"))
    except (TypeError, ValueError) as error:
        raise ConfigError("standardise: mean and std must be lists of numbers") from error
    for key, values in (("mean", mean), ("std", std)):
        if values.shape != (features,):
            raise ConfigError(f"standardise: {key} has {values.size} numbers, but the clients hold {features} features")
        if not np.isfinite(values).all():
            raise ConfigError(f"standardise: {key} has a number that is not finite")
    if not (std > 0).all():
        raise ConfigError(f"standardise: std of feature {int(np.argmin(std > 0)) + 1} is not greater than 0")
    return mean, std
