"""Streams: where the samples come from."""

from anabranch.streams.arrays import Arrays, from_arrays
from anabranch.streams.base import Block, Stream
from anabranch.streams.digits import Digits, DigitsNotice, load_digits, make_digits
from anabranch.streams.drift import Drift
from anabranch.streams.infinite_mnist import IMnist, imnist
from anabranch.streams.split import split_widths
from anabranch.streams.tables import Table, table
from anabranch.streams.uci import higgs, susy
from anabranch.tables.columns import Column

__all__ = [
    "Arrays",
    "Block",
    "Column",
    "Digits",
    "DigitsNotice",
    "Drift",
    "IMnist",
    "Stream",
    "Table",
    "from_arrays",
    "higgs",
    "imnist",
    "load_digits",
    "make_digits",
    "split_widths",
    "susy",
    "table",
]
