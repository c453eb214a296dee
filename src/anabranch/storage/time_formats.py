"""Formats of times, as `datetime.strptime` takes them, without what that guesses."""

from __future__ import annotations

import re
from datetime import datetime

from anabranch.errors import ConfigError

_WHOLE = re.compile(r"^(\d+)\.0+$")
"""A whole number of a column in which a cell was missing."""
_DIRECTIVE = re.compile("%[A-Za-z%]")
_WIDTHS = {"%Y": 4, "%y": 2, "%m": 2, "%d": 2, "%H": 2, "%I": 2, "%M": 2, "%S": 2, "%j": 3}
"""How many digits a directive of a format has."""
_RUN = re.compile(f"((?:{'|'.join(_WIDTHS)}){{2,}})|(%.)|([^%])")
"""The pieces of a format: numbers that have nothing between them, one directive, or one other character."""
_SIGNIFICANCE = "%Y%m%d%j%H%M%S%f"
_WITH_YEAR = ("%Y", "%y", "%G", "%c", "%x")


def check_format(form: str) -> None:
    """
    Raises:
        ConfigError: where it is no format, or has no year.
    """
    try:
        datetime.strptime("", form)
    except ValueError as error:
        if "does not match" not in str(error):
            raise ConfigError(f"format is {form!r}, which is no format of times: {error}") from None
    except re.error:
        raise ConfigError(f"format is {form!r}, which names a part of the time twice") from None
    if not any(each in _WITH_YEAR for each in _DIRECTIVE.findall(form)):
        raise ConfigError(f"format is {form!r}, which has no year: it must have one, such as %Y")


def has_order(form: str) -> bool:
    """Return whether texts of a format have the order of their times."""
    places = [_SIGNIFICANCE.find(each) for each in _DIRECTIVE.findall(form)]
    return places[0] == 0 and places == sorted(places)


def strptime(text: str, form: str) -> datetime:
    """Return the time that a text says; numbers whose leading zeros are gone get them back.

    `datetime.strptime` alone takes the 130 of ``%H%M`` for 13:00.

    Raises:
        ValueError: where it does not fit the format.
    """
    words, forms = text.split(), form.split()
    if len(words) == len(forms):
        widths = [_width(each) for each in forms]
        words = [_WHOLE.sub(r"\1", word).zfill(n) if n else word for word, n in zip(words, widths, strict=True)]
        text, form = " ".join(words), " ".join(forms)
        if re.fullmatch(_pattern(form), text):
            return datetime.strptime(text, form)
    raise ValueError(text)


def _pattern(form: str) -> str:
    """Return an expression in which numbers that have nothing between them have all their digits."""
    pattern = ""
    for run, directive, literal in _RUN.findall(form):
        width = sum(_WIDTHS[each] for each in _DIRECTIVE.findall(run))
        pattern += f"[0-9]{{{width}}}" if run else ".+?" if directive else re.escape(literal)
    return pattern


def _width(form: str) -> int:
    """Return how many digits a format of digits alone has; 0 where it has something else."""
    directives = _DIRECTIVE.findall(form)
    only = "".join(directives) == form and all(each in _WIDTHS for each in directives)
    return sum(_WIDTHS[each] for each in directives) if only else 0
