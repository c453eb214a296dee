"""Streams of table files: your CSV or Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError, DataError, nearest
from anabranch.sources.features import Features, State
from anabranch.streams.base import Block, Stream
from anabranch.streams.shuffle import shuffled
from anabranch.streams.split import split_widths
from anabranch.streams.standardise import Moments, standardise
from anabranch.tables import MISSING_VALUES, Column, Reader, TableForm, open_table
from anabranch.tables.columns import Classes
from anabranch.tables.rows import find_classes, read_rows

Split = int | Sequence[int] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]]
Standardise = Literal["online", "none"] | Mapping[str, Sequence[float]] | None


def table(
    path: str | Path,
    *,
    split: Split,
    label: str = "last",
    standardise: Standardise = "online",
    header: Literal["auto"] | bool = "auto",
    classes: int | Sequence[str | int] | None = None,
    columns: Sequence[Column] = (),
    missing_values: Sequence[str] = MISSING_VALUES,
    ignore: Sequence[str] = (),
    encoding: str = "auto",
    separator: str = ",",
    shuffle_buffer: int = 0,
    seed: int = 0,
    shown: bool = True,
) -> Table:
    """Return the rows of a CSV or Parquet file, in order, read a piece at a time and never whole.

    Args:
        path: a CSV or Parquet file, perhaps compressed by gzip, bzip2, zstd or lz4. Its content says which it is.
        split: which features each client holds. A number of clients splits all columns but the label's evenly and in
            the file's order; a list of counts does so by these counts; a list of lists of column names, or a mapping
            from clients' names to such lists, takes exactly the columns named, and others are not read.
        label: ``"first"``, ``"last"`` or the name of a column.
        standardise: ``"online"`` by the mean and variance of the rows so far (see
            :func:`~anabranch.streams.standardise.standardise`), ``{"mean": [...], "std": [...]}`` by constants, one a
            feature in the clients' order, or None (``"none"`` in a configuration file) not at all. Flags and
            categories stay 0 or 1.
        header: whether the first line names the columns. ``"auto"`` decides by the first rows, and refuses a file that
            could be both. Without a header the columns are called ``"1"``, ``"2"`` and so on.
        classes: how many classes there are, if labels are whole numbers (``1`` or ``1.0``) from 0 on; or the labels of
            the classes, in order. By default the label column is read through once, now: of numbers there are the
            largest plus one and at least two; texts are classes in the order of their letters' numbers.
        columns: the rules of columns that are not plain numbers, which the clients hold.
        missing_values: the texts that mean no value; an empty one always does.
        ignore: the columns that nobody holds; ``""`` is each column without a name.
        encoding: of a CSV file; ``"auto"`` is UTF-8, or UTF-16 or UTF-32 with a byte order mark.
        separator: the character between two cells of a CSV file.
        shuffle_buffer: how many rows to hold for shuffling (see :func:`~anabranch.streams.shuffle.shuffled`); 0 keeps
            the file's order.
        seed: of the shuffle.
        shown: whether errors may show the cell that is wrong. It is true if a person sees them alone.

    Raises:
        ConfigError: a setting is out of range, a column is named that the file lacks, or twice, or the file could be
            read in two ways, of which a setting chooses one.
        DataError: the file is missing, empty, truncated or no table; at the row in question, a cell is no value of its
            column, a row is too short or too long, or a label is not one of the classes. Rows are counted from 1,
            without the header and empty lines.

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
    known = None if classes is None else Classes.of(classes)
    form = TableForm(header, encoding, separator, tuple(missing_values), tuple(ignore))
    reader = open_table(path, form, shown=shown)
    target = _label_column(reader, label)
    parts = _columns(reader, target, split)
    rules = _rules(reader, parts, columns)
    features = None
    if columns:
        if isinstance(standardise, Mapping):
            raise ConfigError("standardise by constants is for columns without rules: leave out one of the two")
        if standardise == "online":
            rules = [replace(rule, standardise=True) if rule.kind == "number" else rule for rule in rules]
        features = Features(rules, missing_values=form.missing_values)
    scale = _scale(standardise, len(rules))
    widths = tuple(sum(rule.width for rule in rules[part]) for part in _slices(parts))
    known = find_classes(reader, target) if known is None else known
    return Table(reader, target, parts, rules, widths, features, scale, known, shuffle_buffer, seed)


Scale = Literal["online"] | tuple[NDArray[np.float64], NDArray[np.float64]] | None


class Table(Stream):
    """The stream that :func:`table` makes."""

    def __init__(
        self,
        reader: Reader,
        target: int,
        parts: list[list[int]],
        rules: list[Column],
        widths: tuple[int, ...],
        features: Features | None,
        scale: Scale,
        classes: Classes,
        shuffle_buffer: int,
        seed: int,
    ) -> None:
        self.widths = widths
        self.classes = classes.count
        self.class_names = classes.names
        """The label of each class; empty if a label is the number of its class."""
        self._reader, self._target, self._parts, self._scale = reader, target, parts, scale
        self._rules, self._features, self._classes = rules, features, classes
        self._shuffle_buffer, self._seed = shuffle_buffer, seed
        self._sha256 = ""

    @property
    def label(self) -> str:
        """The name of the column with the labels."""
        return self._reader.names[self._target]

    @property
    def uses(self) -> list[tuple[int, str, Column]]:
        """Each client's number with each of its columns, and what is made of that."""
        owners = [m for m, columns in enumerate(self._parts, 1) for _ in columns]
        names = [self._reader.names[i] for columns in self._parts for i in columns]
        online = [replace(rule, standardise=True) if rule.kind == "number" else rule for rule in self._rules]
        return [*zip(owners, names, online if self._scale == "online" else self._rules, strict=True)]

    def describe(self) -> dict[str, Any]:
        """Return the file's name, size and SHA-256 (read through once), its rows where known, and how it is used.

        The rules of columns and the names of classes are there if there are any.
        """
        reader = self._reader
        if not self._sha256:
            with reader.path.open("rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        scale = self._scale
        described = {
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
        if self.class_names:
            described["class_names"] = list(self.class_names)
        if self._features is not None:
            described["columns"] = [asdict(rule) | {"values": list(rule.values)} for rule in self._rules]
        return described

    def blocks(self) -> Iterator[Block]:
        moments: Moments | None = None
        state: State | None = None if self._features is None else self._features.begin()
        columns = [self._target, *(i for part in self._parts for i in part)]
        read = read_rows(self._reader, columns, [self._classes, *self._rules])
        for rows in shuffled(read, self._shuffle_buffer, self._seed):
            x, y = rows[:, 1:], rows[:, 0].astype(np.int32)
            if self._features is not None and state is not None:
                state, x = self._features.made(state, x)
            elif self._scale == "online":
                moments, x = standardise(moments, x)
            elif self._scale is not None:
                mean, std = self._scale
                x = (x - mean) / std
            yield Block(np.ascontiguousarray(x), y)
        if not self._reader.rows:
            raise DataError(f"{self._reader.path}: the file has no rows")


def _rules(reader: Reader, parts: list[list[int]], given: Sequence[Column]) -> list[Column]:
    """Return the rule of each feature's column, in the clients' order."""
    held = [reader.names[i] for part in parts for i in part]
    named = {rule.name: rule for rule in given}
    if len(named) < len(given):
        raise ConfigError("columns names a column twice")
    for name in named:
        if name not in held:
            raise ConfigError(f"columns has a rule of '{name}', which no client holds.{nearest(name, held)}")
    return [named.get(name) or Column(name) for name in held]


def _slices(parts: list[list[int]]) -> list[slice]:
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]


def _label_column(reader: Reader, label: str) -> int:
    columns = reader.counted()
    if len(columns) < 2:
        raise DataError(
            f"{reader.path}: one column only, but a label and at least one feature are needed. Are its cells divided "
            "by another character than separator says, such as ';' or a tab?"
        )
    if label not in ("first", "last"):
        if not isinstance(label, str):
            raise ConfigError(f"label is {label!r}: must be 'first', 'last' or the name of a column")
        return reader.find(label)
    target = columns[0 if label == "first" else -1]
    reader.check_named([target])
    return target


def _columns(reader: Reader, target: int, split: Split) -> list[list[int]]:
    """Return each client's columns."""
    features = [i for i in reader.counted() if i != target]
    if isinstance(split, int):
        reader.check_named(features)
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
        reader.check_named(features)
        return _cut(features, counts)
    owner: dict[int, str] = {}
    columns: list[list[int]] = []
    for client, names in zip(split if named else range(1, len(parts) + 1), parts, strict=True):
        who = f"client '{client}'" if named else f"client {client}"
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"split: {who} has {names!r}, expected a list of columns' names")
        if not names:
            raise ConfigError(f"split: {who} has no columns")
        own = [reader.find(name) for name in names]
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
