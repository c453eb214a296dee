"""A party's checkpoint: arrays in a safetensors file, and a manifest that says which bytes and in what state.

``checkpoint-000042.safetensors`` holds the arrays and ``checkpoint-000042.json`` the rest. The manifest comes last, in
one step, so a checkpoint is there once its manifest is. Both are covered by checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as arrays_file

from anabranch.errors import CheckpointError
from anabranch.storage.disk import make_folder, sync, write_durable
from anabranch.storage.files import writing

FORMAT = 2
MAX_MANIFEST = 64 * 2**20
"""Bytes. A manifest that claims to be larger is not read."""

NAME = re.compile(r"checkpoint-(\d{6,})\.(safetensors|json|json\.part)")
HEAD = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
}
NAMES = {np.dtype(dtype).name for dtype in DTYPES.values()}


class Checkpoint(NamedTuple):
    """What `load` found."""

    arrays: dict[str, np.ndarray]
    """By name, little-endian; they may be written to."""
    state: Any
    """JSON values, as they were given to `save`."""
    path: Path
    """Of the manifest."""
    damaged: tuple[str, ...]
    """A message for each newer checkpoint that was passed over."""


class _Damaged(Exception):  # noqa: N818 (it reads as what was found)
    """This one checkpoint cannot be used; an older one may be."""


def save(folder: Path, arrays: Mapping[str, ArrayLike], state: Any) -> Path:
    """Write a checkpoint, and return its manifest's path once the disk has all of it.

    The one before it is kept too, and everything older is removed.

    Args:
        folder: made where it is not there. It may hold other files.
        arrays: any shapes, booleans, integers, float16, bfloat16, float32, float64 and complex64.
        state: JSON values, such as the round and counters; not a NaN, and a table's names are strings.

    Raises:
        CheckpointError: where an array or the state is nothing that a checkpoint can hold.
        OutputError: where the files cannot be written; the older checkpoints are as they were then.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Path(folder), {"w": np.arange(3.0)}, {"round": 12})
    ...     found = load(Path(folder))
    >>> path.name, found.state, found.arrays["w"]
    ('checkpoint-000001.json', {'round': 12}, array([0., 1., 2.]))
    """
    packed = _packed(arrays)
    manifest = _manifest(packed, state)
    with writing("checkpoint", folder):
        make_folder(folder)
        held = _serials(folder)
        serial = max(held, default=0) + 1
        complete = [each for each in sorted(held, reverse=True) if _path(folder, each, "json") in held[each]]
        _remove(path for each, paths in held.items() if each not in complete for path in paths)  # of a killed process
        written = _path(folder, serial, "safetensors"), _path(folder, serial, "json.part")
        manifest_path = _path(folder, serial, "json")
        try:
            write_durable(written[0], packed)
            write_durable(written[1], manifest)
            written[1].replace(manifest_path)
            sync(folder)
        except BaseException:
            with suppress(OSError):
                _remove((manifest_path, *written))
            raise
        older = next((each for each in complete if _is_whole(_path(folder, each, "json"))), None)
        _remove(path for each in complete if each != older for path in sorted(held[each]))  # the manifest first
    return manifest_path


def load(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a folder whose checksums hold, or None where none was ever completed.

    A damaged one is passed over, and named in `Checkpoint.damaged`, for the caller to tell.

    Raises:
        CheckpointError: where there are checkpoints, but none that can be used; or where one was written by a later
            version in a form that this one does not know.
    """
    damaged: list[str] = []
    try:
        held = _serials(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: its checkpoints cannot be read ({error.strerror or error})") from error
    for serial in sorted(held, reverse=True):
        path = _path(folder, serial, "json")
        if path not in held[serial]:
            continue  # the process was killed before it was complete
        try:
            arrays, state = _read(path)
        except _Damaged as error:
            damaged.append(f"{path}: {error}")
        else:
            return Checkpoint(arrays, state, path, tuple(damaged))
    if damaged:
        raise CheckpointError(
            f"{folder} has no checkpoint that can be used. {'; '.join(damaged)}. "
            "Put back a copy of the folder, or name another one to begin anew"
        )
    return None


def _packed(arrays: Mapping[str, ArrayLike]) -> bytes:
    plain = {}
    for name, value in arrays.items():
        array = np.asarray(value, order="C")
        if array.dtype.name not in NAMES:
            raise CheckpointError(
                f"the array '{name}' is of the type {array.dtype.name}, which a checkpoint cannot hold: "
                f"turn it into one of {', '.join(sorted(NAMES))}"
            )
        plain[name] = array
    if "__metadata__" in plain:
        raise CheckpointError("an array of a checkpoint cannot be called '__metadata__': choose another name")
    try:
        return arrays_file(plain)
    except UnicodeEncodeError as error:
        raise CheckpointError(f"the array name {error.object!r} is not valid Unicode: choose another name") from None


def _manifest(packed: bytes, state: Any) -> bytes:
    about = {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    try:
        text = json.dumps({"format": FORMAT, "arrays": about, "state": state}, ensure_ascii=False, allow_nan=False)
        same = json.loads(text)["state"] == state
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the state of a checkpoint must be JSON values: {error}") from error
    if not same:
        raise CheckpointError(
            "the state of a checkpoint must be JSON values that come back as they are: "
            "lists and not tuples, and tables whose names are strings"
        )
    rest = text[1:].encode("utf-8", "surrogatepass") + b"\n"
    manifest = b'{"sha256": "%s",\n' % hashlib.sha256(rest).hexdigest().encode() + rest
    if len(manifest) > MAX_MANIFEST:
        raise CheckpointError(f"the state of a checkpoint has {len(rest):,} bytes: keep so much in arrays")
    return manifest


def _read(manifest: Path) -> tuple[dict[str, np.ndarray], Any]:
    about, state = _read_manifest(manifest)
    packed = _content(manifest.with_suffix(".safetensors"), about["bytes"], about["sha256"])
    try:
        return {name: _array(**described) for name, described in deserialize(packed)}, state
    except (SafetensorError, KeyError, ValueError) as error:
        raise _Damaged(f"its arrays cannot be read ({error})") from None


def _read_manifest(path: Path) -> tuple[dict[str, Any], Any]:
    try:
        if path.stat().st_size > MAX_MANIFEST:
            raise _Damaged("is too large for a manifest")
        text = path.read_bytes()
    except OSError as error:
        raise _Damaged(f"cannot be read ({error.strerror or error})") from None
    head = HEAD.match(text)
    if head is None or hashlib.sha256(text[head.end() :]).hexdigest().encode() != head[1]:
        raise _Damaged("was edited or is damaged: its checksum does not hold")
    try:
        manifest = json.loads(text.decode("utf-8", "surrogatepass"))
        if (written := manifest["format"]) != FORMAT:
            later = isinstance(written, int) and written > FORMAT
            raise CheckpointError(
                f"{path} is of the form {written}, and this version of Anabranch knows the form {FORMAT}: use the "
                + ("version that wrote it, or a later one" if later else "version that wrote it, or begin anew")
            )
        return {"bytes": int(manifest["arrays"]["bytes"]), "sha256": manifest["arrays"]["sha256"]}, manifest["state"]
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _Damaged(f"is not what a checkpoint's manifest says ({error})") from None


def _content(path: Path, size: int, checksum: str) -> bytes:
    """Return the bytes of a file that must have this size, which is looked at before anything is read, and this
    checksum.
    """
    try:
        if (found := path.stat().st_size) != size:
            raise _Damaged(f"{path.name} has {found:,} bytes, and should have {size:,}")
        content = path.read_bytes()
    except OSError as error:
        raise _Damaged(f"{path.name} cannot be read ({error.strerror or error})") from None
    if hashlib.sha256(content).hexdigest() != checksum:
        raise _Damaged(f"{path.name} is damaged: its checksum does not hold")
    return content


def _array(dtype: str, shape: list[int], data: bytearray) -> np.ndarray:
    return np.frombuffer(data, np.dtype(DTYPES[dtype]).newbyteorder("<")).reshape(shape)


def _is_whole(manifest: Path) -> bool:
    try:
        about, _ = _read_manifest(manifest)
        _content(manifest.with_suffix(".safetensors"), about["bytes"], about["sha256"])
    except (_Damaged, CheckpointError):
        return False
    return True


def _path(folder: Path, serial: int, ending: str) -> Path:
    return folder / f"checkpoint-{serial:06d}.{ending}"


def _serials(folder: Path) -> dict[int, set[Path]]:
    """Return the files of each checkpoint, by its serial number."""
    found: dict[int, set[Path]] = {}
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return found
    for path in paths:
        if match := NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), set()).add(path)
    return found


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
