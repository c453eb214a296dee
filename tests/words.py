"""Measure the English of docs and docstrings: sentence lengths, openings, and first words of docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 20
"""The most words of a sentence."""
OPENINGS = ("Of", "Where", "What", "Whoever", "Else", "Whose", "Who")
"""A sentence never opens with these, unless it is a question."""
NO_VERBS = [
    "The",
    "A",
    "An",
    "It",
    "Its",
    "How",
    "Whether",
    "Up",
    "One",
    "All",
    "Each",
    "Every",
    "Such",
    "As",
    "In",
    "For",
    "Yes",
]
"""A function's docstring never begins with these."""


class Finding(NamedTuple):
    """A sentence or a docstring that breaks a rule."""

    rule: str
    place: str
    text: str
    size: int


def prose(markdown: str) -> str:
    """Return the sentences of a page, without code, tables, lists of links and headings."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.S | re.M)
    text = re.sub(r"^[ ]*[|#>=!].*$", "", text, flags=re.M)
    text = re.sub(r"^---.*?^---", "", text, flags=re.S | re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", text, flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(text: str) -> Iterator[str]:
    """Yield each sentence of a text whose paragraphs are set apart by empty lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        yield from (
            each.strip() for each in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*(])|(?<=[.!?])$", joined) if each.strip()
        )


def check_text(place: str, text: str) -> Iterator[Finding]:
    """Yield the sentences that are too long or open wrongly."""
    for sentence in sentences(text):
        words = re.findall(r"[\w'’-]+", sentence)
        if len(words) > LONGEST:
            yield Finding("long sentence", place, sentence, len(words))
        if words and words[0] in OPENINGS and not sentence.endswith("?"):
            yield Finding("opening", place, sentence, len(words))


def docstrings(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield the place and text of each docstring in a module, and whether it is that of a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(ROOT))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is None:
                continue
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
            is_noun = any("property" in each or ".setter" in each for each in decorators)
            yield f"{name}:{getattr(node, 'lineno', 1)}", text, function and not is_noun


def check_docstring(place: str, text: str, function: bool) -> Iterator[Finding]:
    """Yield what is wrong with a docstring."""
    first = re.match(r"[\w'’-]+", text)
    if function and (first is None or first[0] in NO_VERBS or not _is_verb(first[0])):
        yield Finding("no verb", place, text.split("\n")[0], 0)
    plain = re.sub(r"^\s*>>>.*?(?=\n\s*\n|\Z)", "", text, flags=re.S | re.M)
    head = re.split(r"^(?:Args|Returns|Raises|Yields|Attributes):", plain, flags=re.M)[0]
    yield from check_text(place, re.sub(r"``[^`]*``|`[^`]*`", "code", head))


def _is_verb(word: str) -> bool:
    """Return whether a word may be an imperative: a capital first, and no third person."""
    is_third = re.fullmatch(r"[A-Z][a-z]+s", word) and not word.endswith(("ss", "us"))
    return bool(re.fullmatch(r"[A-Z][a-z]+", word)) and not is_third


def findings() -> list[Finding]:
    """Return all findings in the docs, the pages at the top and the package."""
    found: list[Finding] = []
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for path in sorted(pages):
        found += check_text(str(path.relative_to(ROOT)), prose(path.read_text(encoding="utf-8")))
    for path in sorted((ROOT / "src").rglob("*.py")):
        for place, text, function in docstrings(path):
            found += check_docstring(place, text, function)
    return found
