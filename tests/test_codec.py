"""Messages as bytes: whatever arrives is a message or a MessageError."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.errors import MessageError
from anabranch.protocol import messages as m
from anabranch.protocol.codec import FORMS, LARGEST, LONGEST_EVENT, MAGIC, decode, encode
from anabranch.protocol.terms import VERSION, Terms
from anabranch.storage.round_log import RECORD_BYTES

DTYPES = [np.dtype(each) for each in (np.bool_, np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
ROUNDS = st.integers(-(2**63), 2**63 - 1)
NONCES = st.integers(0, 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.binary(max_size=LONGEST_EVENT)


@st.composite
def arrays(draw: Any, dtype: np.dtype | None = None) -> np.ndarray:
    """Of any dtype and shape, filled with any bits: NaNs with a payload among them."""
    dtype = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == np.bool_:
        raw = bytes(each & 1 for each in raw)
    return np.frombuffer(raw, dtype).reshape(shape)


BY_NAME = {
    "terms": st.builds(Terms, TEXTS, st.integers(0, 2**16 - 1), TEXTS, TEXTS),
    "session": NONCES,
    "epoch": NONCES,
    "client": st.integers(0, 2**16 - 1),
    "width": st.integers(0, 2**32 - 1),
    "label": st.integers(0, 2**32 - 1),
    "schema": TEXTS,
    "reason": TEXTS,
    "event": NAMES,
    "events": st.lists(NAMES, max_size=5).map(tuple),
    "missing": st.lists(ROUNDS, max_size=5).map(tuple),
    "embedding": arrays(),
    "embeddings": arrays(),
    "values": arrays(),
    "stored": st.booleans(),
    "factor": st.floats(allow_nan=False, allow_infinity=False),
    "factors": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5).map(tuple),
    "noticed": TEXTS,
}
BY_KIND: dict[tuple[type, str], st.SearchStrategy] = {
    (m.Query, "activated"): st.none() | arrays(DTYPES[0]),
    (m.Embeddings, "activated"): arrays(DTYPES[0]),
    (m.Record, "activated"): arrays(DTYPES[0]),
    (m.Record, "emptied"): st.booleans(),
    (m.Derivatives, "emptied"): st.none() | arrays(DTYPES[0]),
    (m.Ask, "activated"): st.none() | arrays(DTYPES[0]),
    (m.Reply, "activated"): arrays(DTYPES[0]),
    (m.Advance, "time"): st.none() | ROUNDS,
    **{
        (kind, name): st.lists(ROUNDS, max_size=5).map(tuple)
        for kind, name in [
            (m.Embeddings, "rounds"),
            (m.Unknown, "rounds"),
            (m.Derivatives, "rounds"),
            (m.Derivatives, "applied"),
            (m.Void, "rounds"),
            (m.Record, "applied"),
            (m.Reply, "asked"),
            (m.Reply, "unknown"),
        ]
    },
}


def of(kind: type[m.Message]) -> st.SearchStrategy[m.Message]:
    fields = {name: BY_KIND.get((kind, name), BY_NAME.get(name, ROUNDS)) for name in FORMS[kind]}
    return st.builds(kind, **fields)


MESSAGES = st.sampled_from(list(FORMS)).flatmap(of)
SAMPLE = m.Embeddings(7, 3, 2, (4, 5), np.array([True, False]), np.arange(6, dtype=np.float32).reshape(2, 3))


def read(raw: bytes) -> m.Message | None:
    """The message, and the same again when written and read; None where it is none."""
    try:
        message = decode(raw)
    except MessageError:
        return None
    assert decode(encode(message)) == message
    return message


def test_every_kind_of_message_has_a_form():
    kinds = {each for each in vars(m).values() if isinstance(each, type) and issubclass(each, m.Message)}
    assert {*FORMS} == kinds - {m.Message}
    for kind, form in FORMS.items():
        assert list(form) == list(kind.__dataclass_fields__), kind


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_a_message_comes_back_to_the_bit(kind, data):
    message = data.draw(of(kind))
    again = decode(encode(message))
    assert type(again) is kind
    assert again == message
    assert encode(again) == encode(message)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_the_payload_of_a_nan_comes_back(dtype):
    raw = bytes(range(241, 241 + dtype.itemsize - 1)) + b"\x7f" + b"\xff" * dtype.itemsize
    values = np.frombuffer(raw, dtype)
    assert np.isnan(values).all()
    again = decode(encode(m.Happened(1, 2, 0, b"e", values)))
    assert again.embedding.dtype == dtype
    assert again.embedding.tobytes() == raw


def test_arrays_are_little_endian_and_own_their_memory():
    raw = bytearray(encode(m.Happened(0, 0, 0, b"", np.array([1.0], np.float32))))
    assert bytes(raw[-4:]) == struct.pack("<f", 1.0)
    again = decode(bytes(raw)).embedding
    assert again.flags.aligned
    np.testing.assert_array_equal(again, np.ones(1, np.float32))


@given(MESSAGES, st.data())
def test_no_part_of_a_message_is_one(message, data):
    raw = encode(message)
    end = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(MessageError):
        decode(raw[:end])


def test_bytes_that_follow_are_named():
    with pytest.raises(MessageError, match="2 bytes follow after the message"):
        decode(encode(SAMPLE) + b"ab")


@settings(max_examples=400)
@given(MESSAGES, st.data())
def test_a_wrong_byte_is_a_message_or_an_error(message, data):
    raw = bytearray(encode(message))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    read(bytes(raw))


@settings(max_examples=400)
@given(st.integers(0, 20), st.binary(max_size=200))
@example(5, b"")
def test_garbage_after_a_good_head_is_a_message_or_an_error(kind, rest):
    read(MAGIC + bytes((VERSION, kind)) + rest)


@given(st.binary(max_size=100))
def test_garbage_is_an_error(raw):
    if raw[:2] != MAGIC:
        with pytest.raises(MessageError, match="not a message of Anabranch"):
            decode(raw)


def test_each_error_says_what_is_wrong():
    raw = encode(SAMPLE)
    array = encode(m.Happened(0, 0, 0, b"", np.ones(3, bool)))
    for wrong, text in {
        b"": "begins with nothing",
        raw[:2] + bytes((VERSION + 1,)) + raw[3:]: f"version of the protocol is {VERSION} here and {VERSION + 1} there",
        raw[:3] + b"\xff": "no message of kind 255",
        raw[:3] + b"\0": "no message of kind 0",
        raw[:20]: "ends after 20 bytes, but 28 or more",
        bytes(LARGEST + 1): "8,388,609 bytes, but 8,388,608 are the most",
        array[:-1] + b"\2": "neither 0 nor 1",
        array[:-9] + b"\x09" + array[-8:]: "unknown dtype 9",
        array[:-8] + b"\x04" + array[-7:]: "4 axes, but 3 are the most",
        encode(m.Bye(1, 7, "ab"))[:-2] + b"\xff\xfe": "not UTF-8",
        encode(m.Void(1, (), ()))[:-4] + b"\xff\xff\xff\xff": "a sequence of 4294967295 elements does not fit",
        encode(m.Query(1, 0, (), None))[:-5] + b"\1\0\0\0\x21" + bytes(34): "33 bytes, but 32 are the most",
        encode(m.Query(1, 0, (), np.ones(1, bool))).replace(b"\1\0\1\1\0", b"\1\1\1\1\0"): "ends after",
    }.items():
        with pytest.raises(MessageError, match=text):
            decode(wrong)
    floats = encode(m.Query(1, 0, (), np.ones(0, bool))).replace(b"\1\0\1", b"\1\1\1")
    with pytest.raises(MessageError, match="flags are float32, not bool"):
        decode(floats)


@pytest.mark.parametrize("factor", [np.nan, np.inf, -np.inf])
def test_a_factor_that_is_not_finite_is_no_message(factor):
    values = np.ones((1, 2), np.float32)
    sent = m.Derivatives(1, 4, (5,), (m.MOMENT,), (b"5",), values, (1.0, factor), np.array([True]))
    kept = m.Record(b"5", 1, np.array([True]), (0,), (4,), values, factor=factor)
    for message in (sent, kept):
        with pytest.raises(MessageError, match="a factor is not finite"):
            decode(encode(message))


@pytest.mark.parametrize(("clients", "width", "name"), [(1, 1, b""), (4, 64, b"x" * 16)])
def test_the_sizes_are_those_of_the_page_on_deploying(clients, width, name):
    values = np.zeros((1, width), np.float32)
    query = m.Query(1, 0, (name,), None)
    embeddings = m.Embeddings(1, 0, 0, (1,), np.ones(1, bool), values)
    derivative = m.Derivatives(1, 0, (1,), (0,), (), values)
    flags, numbers = np.ones(clients, bool), (0,) * clients
    record = m.Record(name, 1, flags, numbers, numbers, np.zeros(clients * width, np.float32))
    e, n = 4 * width, len(name)
    assert len(encode(query)) == 26 + n
    assert len(encode(embeddings)) == e + 57
    assert len(encode(derivative)) == e + 63
    assert len(encode(record)) + RECORD_BYTES == clients * e + 17 * clients + 71 + n
    page = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text(encoding="utf-8")
    for formula in ("M · (26 + n)", "M · (4e + 57)", "activated · (4e + 63)", "4Me + 17M + 71 + n"):
        assert f"`{formula}`" in page


def test_an_event_that_is_too_long_is_not_written():
    with pytest.raises(MessageError, match="33 bytes, but 32"):
        encode(m.Happened(1, 0, 0, bytes(33), np.zeros(1, np.float32)))


def test_a_party_reads_its_own_files_however_long_their_records_are():
    """Under SLR a round has a window of all clients' embeddings, each of which may be as long as a message."""
    values = np.ones((1000, 20 * 128), np.float32)
    record = m.Record(b"e", 1, np.ones(20, bool), (0,) * 20, (0,) * 20, values)
    raw = encode(record)
    assert len(raw) > LARGEST
    assert decode(raw, most=None) == record
    with pytest.raises(MessageError, match=f"but {LARGEST:,} are the most"):
        decode(raw)


def test_a_long_text_is_cut_between_letters():
    again = decode(encode(m.Bye(1, 7, "ä" * 40_000)))
    assert again.reason == "ä" * 32_767


@pytest.mark.parametrize(
    "raw",
    [
        encode(m.Void(1, (), ()))[:-4] + b"\xff\xff\xff\x7f",
        encode(m.Query(1, 0, (), None))[:-5] + b"\xff\xff\xff\x7f\0",
        encode(m.Happened(0, 0, 0, b"", np.ones((), np.float64)))[:-9] + b"\3" + b"\xff" * 12,
        encode(m.Happened(0, 0, 0, b"", np.ones((), np.float64)))[:-9] + b"\3" + bytes(4) + b"\xff" * 8,
        encode(m.Happened(0, 0, 0, b"", np.ones((), np.float64)))[:-9] + b"\2" + bytes(4) + b"\xff" * 4,
        encode(m.Happened(0, 0, 0, b"", np.ones((), np.float64)))[:-9] + b"\2" + b"\0\0\1\0" * 2,
    ],
    ids=["rounds", "events", "3 axes", "empty of 3 axes", "empty of 2 axes", "2 axes"],
)
def test_a_size_that_is_claimed_takes_no_memory(raw):
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_equal_messages_are_equal_to_the_bit():
    zero, minus = (m.Happened(1, 2, 0, b"e", np.array([each], np.float32)) for each in (0.0, -0.0))
    assert zero == zero
    assert zero != minus
    assert zero != m.Happened(1, 2, 0, b"e", np.array([0.0], np.float64))
    assert m.Unknown(1, (2,)) != m.Void(1, (2,), ())
