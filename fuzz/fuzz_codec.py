"""Throws bytes at the decoder, guided by what of its code they reach: `python fuzz/fuzz_codec.py 1000000`.

Every input must be a message or a MessageError, and a message must be the same when it is written and read again.
Anything else ends the run with the input that did it and an exit status other than 0. Needs ``atheris``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["anabranch.protocol.codec", "anabranch.protocol.messages"]):
    from anabranch.errors import MessageError
    from anabranch.protocol import messages as m
    from anabranch.protocol.codec import decode, encode

import ml_dtypes
import numpy as np

from anabranch.protocol.terms import Terms


def one(raw: bytes) -> None:
    """Reads one input."""
    try:
        message = decode(raw)
    except MessageError:
        return
    if decode(encode(message)) != message:
        raise AssertionError(f"read, written and read again, {message} is another message")


def seeds() -> list[m.Message]:
    """A message of each kind, and arrays of each dtype, for the fuzzer to begin with."""
    terms, flags = Terms("rooms", 2, "DLR(window=10, decay=0.95, client_window=True)", "float32"), np.array([True])
    dtypes = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
    values = [np.arange(6).astype(dtype).reshape(1, 2, 3) for dtype in dtypes]
    return [
        m.Hello(1, terms, 1, 3, "digest", -1),
        m.Welcome(1, 2, terms, 3, "digest", 0),
        m.Refused(1, "clients is 4 here and 5 there"),
        m.Call(2, 1),
        *(m.Happened(1, -1, -1, b"door 7", each[0]) for each in values),
        m.Query(2, 5, (b"5", b"6"), None),
        m.Query(2, 5, (b"5",), np.array([[True, False]])),
        *(m.Embeddings(1, 4, 3, (5,), flags, each) for each in values),
        m.Unknown(1, (5, 6)),
        m.Unusable(1, (b"5", b"6")),
        m.Ask(2, 3, 7, True, (b"7", b"8"), None),
        m.Ask(2, 3, -1, False, (b"7",), np.array([[True, False]])),
        *(m.Reply(1, 4, 3, (3,), (4,), flags, each[:, 0]) for each in values),
        *(m.Derivatives(1, 4, (5,), (4,), (b"5",), each) for each in values),
        m.Void(1, (5,), (b"e",)),
        m.Recall(1, 3, (b"3", b"4")),
        m.Bye(1, 7, "it has all its derivatives"),
        m.End(1, 7, 5, "the stream has ended"),
        m.Derivatives(1, 4, (5,), (m.MOMENT,), (b"5",), values[0], (2.5,), np.array([True])),
        m.Record(b"5", 1, flags, (0,), (4,), values[0][0]),
        m.Record(b"5", 1, flags, (0,), (4,), values[0][0], 2, True, 2.5, True, '[[5, "error", null, 0.1, 0.2]]'),
    ]


def main() -> None:
    """Takes the number of inputs, and any options of libFuzzer."""
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("how many inputs? For example: python fuzz/fuzz_codec.py 1000000")
    runs, options = sys.argv[1], sys.argv[2:]
    given = any(Path(option).is_file() for option in options)  # those are tried, and nothing else
    with tempfile.TemporaryDirectory(prefix="anabranch-fuzz-") as folder:
        for i, message in enumerate(seeds()):
            Path(folder, f"seed-{i}").write_bytes(encode(message))
        atheris.Setup([sys.argv[0], f"-runs={runs}", "-max_len=4096", *options, *([] if given else [folder])], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
