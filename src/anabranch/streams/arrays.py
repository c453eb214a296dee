"""A stream of arrays that you hold in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anabranch.checks import is_missing, unmasked, whole
from anabranch.errors import DataError
from anabranch.streams.base import Block, Stream

_BLOCK = 1024


def from_arrays(features: Sequence[ArrayLike], labels: ArrayLike, classes: int | None = None) -> Arrays:
    """Return a stream of the rows of arrays, in their order: client ``m`` holds ``features[m]``, the server ``labels``.

    Args:
        features: one array ``(T, d_m)`` a client. float32 and float64 stay as they are, and other numbers become
            float64; several clients' types are joined as NumPy does it.
        labels: ``(T,)`` whole numbers (floats such as 2.0 are taken) in ``0..classes - 1``.
        classes: how many classes there are; by default the largest label plus one, and at least two.

    Raises:
        ConfigError: ``classes`` is not a whole number of at least 1.
        DataError: lengths differ, a shape is wrong, there is no row, or a value is missing, infinite or not a number
            (the message names the client, the row and the column, counted from 0 as NumPy does), or a label is out of
            range.

    >>> import numpy as np
    >>> stream = from_arrays([np.zeros((3, 2)), np.ones((3, 1))], [0, 1, 1])
    >>> stream.widths, stream.classes
    ((2, 1), 2)
    >>> next(stream.blocks()).x
    array([[0., 0., 1.],
           [0., 0., 1.],
           [0., 0., 1.]])
    """
    if not isinstance(features, Sequence):
        raise DataError("features must be a list with one array (T, d_m) for each client")
    if not features:
        raise DataError("features is empty: give at least one client's array (T, d_1)")
    y = unmasked(labels)
    if y.ndim != 1:
        raise DataError(f"labels have shape {y.shape}, expected (T,)")
    parts = [_features(m, part, len(y)) for m, part in enumerate(features)]
    if len(y) == 0:
        raise DataError("the arrays have no rows")
    y, classes = _labels(y, classes)
    x = np.ascontiguousarray(np.concatenate(parts, axis=1))
    return Arrays(x, y, tuple(part.shape[1] for part in parts), classes)


class Arrays(Stream):
    """The stream that :func:`from_arrays` makes."""

    def __init__(
        self, x: NDArray[np.floating[Any]], y: NDArray[np.int32], widths: tuple[int, ...], classes: int
    ) -> None:
        self.widths = widths
        self.classes = classes
        self._x, self._y = x, y

    def describe(self) -> dict[str, Any]:
        """Return rows, dtype, widths and the SHA-256 of the features' bytes followed by the labels' (int32)."""
        sha = hashlib.sha256(self._x.data)
        sha.update(self._y.data)
        return {
            "name": "arrays",
            "rows": len(self._y),
            "dtype": str(self._x.dtype),
            "widths": list(self.widths),
            "classes": self.classes,
            "checksum": sha.hexdigest(),
        }

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self._y), _BLOCK):
            rows = slice(start, start + _BLOCK)
            yield Block(self._x[rows], self._y[rows])


def _features(m: int, part: ArrayLike, rows: int) -> NDArray[np.floating[Any]]:
    x = unmasked(part)
    if x.ndim != 2:
        raise DataError(f"client {m + 1}: features have shape {x.shape}, expected (T, d)")
    if len(x) != rows:
        raise DataError(f"client {m + 1}: {len(x):,} rows of features but {rows:,} labels")
    if x.shape[1] == 0:
        raise DataError(f"client {m + 1}: no features (shape {x.shape})")
    if x.dtype == object and (missing := [place for place, each in np.ndenumerate(x) if is_missing(each)]):
        row, column = missing[0]
        raise DataError(f"client {m + 1}: {x[row, column]} in row {row}, column {column} (0 is the first)")
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == np.bool_) or np.issubdtype(x.dtype, np.complexfloating):
        raise DataError(f"client {m + 1}: features of type {x.dtype} are not real numbers")
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(f"client {m + 1}: {x[row, column]} in row {row}, column {column} (0 is the first)")
    return x


def _labels(y: NDArray[Any], classes: int | None) -> tuple[NDArray[np.int32], int]:
    if y.dtype == object and any(missing := [is_missing(each) for each in y]):
        row = missing.index(True)
        raise DataError(f"label {y[row]} in row {row} (0 is the first) is missing: leave out rows without a label")
    if not (np.issubdtype(y.dtype, np.integer) or np.issubdtype(y.dtype, np.floating) or y.dtype == np.bool_):
        raise DataError(f"labels of type {y.dtype} are not whole numbers")
    classes = None if classes is None else whole("classes", classes, 1)
    finite = np.isfinite(y)
    good = finite & (np.where(finite, y, 0) % 1 == 0)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"label {y[row]} in row {row} (0 is the first) is not a whole number")
    if classes is None:
        classes = max(2, int(y.max()) + 1)
    outside = (y < 0) | (y >= classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(f"label {y[row]} in row {row} (0 is the first) is not in 0..{classes - 1}")
    return y.astype(np.int32), classes
