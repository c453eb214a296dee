"""A message as bytes, and back.

``AB version kind fields``: two bytes of magic, one each for the protocol's version and the kind of message. Numbers are
little-endian. A text is its length (u16, or u32 where it may be long) and UTF-8, an event's name its length (u8) and
bytes, a sequence its length (u32) and elements; an array is its dtype (u8), its number of axes (u8), their lengths (u32
each) and its elements, raw. Whatever arrives, `decode` returns a message or raises `MessageError`.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from anabranch.errors import MessageError, VersionError
from anabranch.protocol import messages as m
from anabranch.protocol.terms import VERSION, Terms, difference

MAGIC = b"AB"
LARGEST = 8 * 2**20
"""Bytes of a message of another party; a longer one is not read."""
LONGEST_EVENT = 32
"""Bytes of an event's name."""

_AXES = 3
_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(each) for each in (np.bool_, np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
)
_CODE = {dtype: code for code, dtype in enumerate(_DTYPES)}


class _Reader:
    """The bytes of a message, read from the front; what is missing is a MessageError."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, size: int) -> bytes:
        part = self.raw[self.at : self.at + size]
        if len(part) != size:
            raise MessageError(f"the message ends after {len(self.raw)} bytes, but {self.at + size} or more are needed")
        self.at += size
        return part

    def unpack(self, form: str) -> Any:
        size = struct.calcsize(form)
        at = self.at
        if at + size > len(self.raw):
            self.take(size)
        self.at = at + size
        return struct.unpack_from(form, self.raw, at)

    def length(self, smallest: int) -> int:
        """Of a sequence whose elements have at least so many bytes, and which is therefore no longer than that."""
        (length,) = self.unpack("<I")
        if length * smallest > len(self.raw) - self.at:
            raise MessageError(f"a sequence of {length} elements does not fit into a message of {len(self.raw)} bytes")
        return int(length)


class _Form(NamedTuple):
    """How one field is written and read."""

    write: Callable[[Any], bytes]
    read: Callable[[_Reader], Any]


def _number(form: str) -> _Form:
    packed = struct.Struct(form)

    def read(reader: _Reader) -> Any:
        at = reader.at
        if at + packed.size > len(reader.raw):
            reader.take(packed.size)
        reader.at = at + packed.size
        return packed.unpack_from(reader.raw, at)[0]

    return _Form(packed.pack, read)


def _write_long_text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<I", len(raw)) + raw


def _read_long_text(reader: _Reader) -> str:
    return _decoded(reader.take(reader.length(1)))


def _write_text(value: str) -> bytes:
    raw = value.encode("utf-8", "replace")
    if len(raw) > 65535:  # cut between two letters
        raw = raw[:65535].decode("utf-8", "ignore").encode()
    return struct.pack("<H", len(raw)) + raw


def _read_text(reader: _Reader) -> str:
    (length,) = reader.unpack("<H")
    return _decoded(reader.take(length))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"a text is not UTF-8 ({error.reason})") from error


def _write_event(value: bytes) -> bytes:
    if len(value) > LONGEST_EVENT:
        raise MessageError(f"an event's name has {len(value)} bytes, but {LONGEST_EVENT} are the most")
    return bytes((len(value),)) + value


def _read_event(reader: _Reader) -> bytes:
    (length,) = reader.unpack("<B")
    if length > LONGEST_EVENT:
        raise MessageError(f"an event's name has {length} bytes, but {LONGEST_EVENT} are the most")
    return reader.take(length)


def _write_events(values: m.Events) -> bytes:
    return struct.pack("<I", len(values)) + b"".join(map(_write_event, values))


def _read_events(reader: _Reader) -> m.Events:
    return tuple(_read_event(reader) for _ in range(reader.length(1)))


def _write_rounds(values: m.Rounds) -> bytes:
    return struct.pack(f"<I{len(values)}q", len(values), *values)


def _read_rounds(reader: _Reader) -> m.Rounds:
    return tuple(reader.unpack(f"<{reader.length(8)}q"))


def _write_floats(values: tuple[float, ...]) -> bytes:
    return struct.pack(f"<I{len(values)}d", len(values), *values)


def _read_floats(reader: _Reader) -> tuple[float, ...]:
    return _finite(reader.unpack(f"<{reader.length(8)}d"))


def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(map(math.isfinite, values)):
        raise MessageError("a factor is not finite")
    return values


def _read_float(reader: _Reader) -> float:
    return _finite(reader.unpack("<d"))[0]


def _write_array(value: NDArray[Any]) -> bytes:
    head = struct.pack(f"<BB{value.ndim}I", _CODE[value.dtype], value.ndim, *value.shape)
    if sys.byteorder == "big":
        value = value.astype(value.dtype.newbyteorder("<"))
    return head + value.tobytes()


def _read_array(reader: _Reader) -> NDArray[Any]:
    code, axes = reader.unpack("<BB")
    if code >= len(_DTYPES):
        raise MessageError(f"an array has the unknown dtype {code}")
    if axes > _AXES:
        raise MessageError(f"an array has {axes} axes, but {_AXES} are the most")
    dtype, shape = _DTYPES[code], reader.unpack(f"<{axes}I")
    raw = reader.take(math.prod(shape) * dtype.itemsize)
    if dtype == np.bool_ and raw.strip(b"\0\1"):
        raise MessageError("a flag is neither 0 nor 1")
    if math.prod(shape) == 0 and any(length > len(reader.raw) for length in shape):
        raise MessageError(f"an array of shape {list(shape)} is empty")
    if sys.byteorder == "big" and dtype.itemsize > 1:
        return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


def _write_mask(value: NDArray[np.bool_] | None) -> bytes:
    return b"\0" if value is None else b"\1" + _write_array(value)


def _read_mask(reader: _Reader) -> NDArray[np.bool_] | None:
    (given,) = reader.unpack("<B")
    if given > 1:
        raise MessageError(f"whether flags follow is {given}, which is neither 0 nor 1")
    return _read_flags(reader) if given else None


def _read_flags(reader: _Reader) -> NDArray[np.bool_]:
    array = _read_array(reader)
    if array.dtype != np.bool_:
        raise MessageError(f"flags are {array.dtype}, not bool")
    return array


def _write_flag(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _read_flag(reader: _Reader) -> bool:
    (value,) = reader.unpack("<B")
    if value > 1:
        raise MessageError(f"a flag is {value}, which is neither 0 nor 1")
    return bool(value)


def _write_optional(value: int | None) -> bytes:
    return b"\0" if value is None else struct.pack("<Bq", 1, value)


def _read_optional(reader: _Reader) -> int | None:
    return int(reader.unpack("<q")[0]) if _read_flag(reader) else None


def _write_terms(value: Terms) -> bytes:
    return b"".join(form.write(getattr(value, name)) for name, form in _TERMS.items())


def _read_terms(reader: _Reader) -> Terms:
    return Terms(**{name: form.read(reader) for name, form in _TERMS.items()})


_U16, _U32, _ROUND, _NONCE = (_number(form) for form in ("<H", "<I", "<q", "<Q"))
_FLOAT = _Form(struct.Struct("<d").pack, _read_float)
_TEXT = _Form(_write_text, _read_text)
_LONG_TEXT = _Form(_write_long_text, _read_long_text)
_EVENT = _Form(_write_event, _read_event)
_EVENTS = _Form(_write_events, _read_events)
_ROUNDS = _Form(_write_rounds, _read_rounds)
_FLOATS = _Form(_write_floats, _read_floats)
_ARRAY = _Form(_write_array, _read_array)
_FLAGS = _Form(_write_array, _read_flags)
_MASK = _Form(_write_mask, _read_mask)
_FLAG = _Form(_write_flag, _read_flag)
_TIME_OR_NONE = _Form(_write_optional, _read_optional)
_TERMS: dict[str, _Form] = {"federation": _TEXT, "clients": _U16, "update": _TEXT, "wire": _TEXT}
_AGREED = _Form(_write_terms, _read_terms)

FORMS: dict[type[m.Message], dict[str, _Form]] = {
    m.Hello: {
        "session": _NONCE,
        "terms": _AGREED,
        "client": _U16,
        "width": _U32,
        "schema": _TEXT,
        "applied": _ROUND,
    },
    m.Welcome: {
        "session": _NONCE,
        "epoch": _NONCE,
        "terms": _AGREED,
        "width": _U32,
        "schema": _TEXT,
        "rounds": _ROUND,
    },
    m.Refused: {"session": _NONCE, "reason": _TEXT},
    m.Call: {"epoch": _NONCE, "session": _NONCE},
    m.Happened: {"session": _NONCE, "applied": _ROUND, "safe": _ROUND, "event": _EVENT, "embedding": _ARRAY},
    m.Query: {"epoch": _NONCE, "first": _ROUND, "events": _EVENTS, "activated": _MASK},
    m.Embeddings: {
        "session": _NONCE,
        "applied": _ROUND,
        "safe": _ROUND,
        "rounds": _ROUNDS,
        "activated": _FLAGS,
        "values": _ARRAY,
    },
    m.Unknown: {"session": _NONCE, "rounds": _ROUNDS},
    m.Ask: {
        "epoch": _NONCE,
        "asked": _ROUND,
        "first": _ROUND,
        "stored": _FLAG,
        "events": _EVENTS,
        "activated": _MASK,
    },
    m.Reply: {
        "session": _NONCE,
        "applied": _ROUND,
        "safe": _ROUND,
        "asked": _ROUNDS,
        "unknown": _ROUNDS,
        "activated": _FLAGS,
        "values": _ARRAY,
    },
    m.Derivatives: {
        "session": _NONCE,
        "before": _ROUND,
        "rounds": _ROUNDS,
        "applied": _ROUNDS,
        "events": _EVENTS,
        "values": _ARRAY,
        "factors": _FLOATS,
        "emptied": _MASK,
    },
    m.Void: {"session": _NONCE, "rounds": _ROUNDS, "events": _EVENTS},
    m.Recall: {"session": _NONCE, "first": _ROUND, "events": _EVENTS},
    m.Bye: {"session": _NONCE, "applied": _ROUND, "reason": _TEXT},
    m.End: {"session": _NONCE, "rounds": _ROUND, "before": _ROUND, "reason": _TEXT},
    m.Record: {
        "event": _EVENT,
        "label": _U32,
        "activated": _FLAGS,
        "missing": _ROUNDS,
        "applied": _ROUNDS,
        "embeddings": _ARRAY,
        "predicted": _ROUND,
        "stored": _FLAG,
        "factor": _FLOAT,
        "emptied": _FLAG,
        "noticed": _LONG_TEXT,
    },
    m.Upcoming: {"session": _NONCE, "told": _ROUND, "time": _ROUND},
    m.Advance: {"session": _NONCE, "time": _TIME_OR_NONE},
    m.Unusable: {"session": _NONCE, "events": _EVENTS},
}
"""The fields of each kind of message, in their order on the wire."""

_KINDS = tuple(FORMS)
_CODES = {kind: code for code, kind in enumerate(_KINDS, 1)}


def encode(message: m.Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: where an event's name is too long.

    >>> encode(m.Refused(session=1, reason="no")).hex(" ")
    '41 42 05 03 01 00 00 00 00 00 00 00 02 00 6e 6f'
    """
    kind = type(message)
    head = MAGIC + bytes((VERSION, _CODES[kind]))
    return head + b"".join(form.write(getattr(message, name)) for name, form in FORMS[kind].items())


def decode(raw: bytes, most: int | None = LARGEST) -> m.Message:
    """Return the message that these bytes are.

    Args:
        most: bytes; None for any number, in a party's own files.

    Raises:
        MessageError: where they are none; VersionError where they are one of another version of the protocol.

    >>> decode(encode(m.Bye(session=3, applied=7, reason="done")))
    Bye(session=3, applied=7, reason='done')
    >>> decode(b"GET /")
    Traceback (most recent call last):
        ...
    anabranch.errors.MessageError: not a message of Anabranch: it begins with 47 45 54 20
    """
    if most is not None and len(raw) > most:
        raise MessageError(f"the message has {len(raw):,} bytes, but {most:,} are the most")
    if raw[:2] != MAGIC or len(raw) < 4:
        raise MessageError(f"not a message of Anabranch: it begins with {raw[:4].hex(' ') or 'nothing'}")
    if raw[2] != VERSION:
        raise VersionError(difference("version of the protocol", VERSION, raw[2]))
    if not 1 <= raw[3] <= len(_KINDS):
        raise MessageError(f"there is no message of kind {raw[3]}")
    kind = _KINDS[raw[3] - 1]
    reader = _Reader(raw)
    reader.at = 4
    message = kind(**{name: form.read(reader) for name, form in FORMS[kind].items()})
    if reader.at != len(raw):
        raise MessageError(f"{len(raw) - reader.at} bytes follow after the message")
    return message
