"""How a table is written: its heading, encoding and separator, the texts that mean no value, and unused columns."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from anabranch.errors import ConfigError
from anabranch.tables.values import plain_text

AUTO: Literal["auto"] = "auto"
MISSING_VALUES = (
    "", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NaT", "null", "NULL",
    "None", "?", "\\N", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
)  # fmt: skip
"""The texts that mean no value by default: those of pandas, Arrow, R, the UCI's files, Weka, MySQL and C."""


@dataclass(frozen=True)
class TableForm:
    """How a table is written.

    Args:
        header: whether the first line of a CSV file names the columns. ``"auto"`` decides by the first rows, and
            refuses a file that could be both.
        encoding: of a CSV file. ``"auto"`` is UTF-8, or UTF-16 or UTF-32 with a byte order mark.
        separator: the character between two cells of a CSV file.
        missing_values: the texts that mean no value. An empty cell never has one. A number means the same in each form,
            as -200 and -200.0 do.
        ignore: the names of columns that are not part of the table; ``""`` is each column without a name.

    Raises:
        ConfigError: a setting is none of these.
    """

    header: Literal["auto"] | bool = AUTO
    encoding: str = AUTO
    separator: str = ","
    missing_values: tuple[str, ...] = MISSING_VALUES
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.header not in (AUTO, True, False) or isinstance(self.header, int) != isinstance(self.header, bool):
            raise ConfigError(f"header is {self.header!r}: must be 'auto', True or False")
        separator = self.separator
        if not isinstance(separator, str) or len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
            raise ConfigError(f"separator is {separator!r}: must be one character, such as ',', ';' or '\\t'")
        for name in ("missing_values", "ignore"):
            object.__setattr__(self, name, _texts(name, getattr(self, name), plain=name == "missing_values"))
        if self.encoding != AUTO:
            _check_encoding(self.encoding)


def _texts(name: str, given: Iterable[str], *, plain: bool) -> tuple[str, ...]:
    texts = None if isinstance(given, str) else tuple(given)
    if texts is None or not all(isinstance(each, str) for each in texts):
        raise ConfigError(f"{name} is {given!r}: must be a list of texts")
    stripped = [each.strip() for each in texts]
    return tuple(dict.fromkeys([*stripped, *(map(plain_text, stripped) if plain else ())]))


def _check_encoding(encoding: str) -> None:
    try:
        codecs.getincrementaldecoder(encoding)
        "".encode(encoding)  # not of every codec
    except (LookupError, TypeError, ValueError):
        raise ConfigError(
            f"encoding is {encoding!r}: must be 'auto' or an encoding of Python's, such as 'latin-1'"
        ) from None
