"""A line for a person on the console; it imports nothing that takes time."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def note(console: Console, text: str) -> None:
    """Something that the person should know."""
    console.print(Text.assemble(("Note: ", "yellow"), text), soft_wrap=True, highlight=False)


def error(console: Console, text: str) -> None:
    """What is wrong."""
    console.print(Text.assemble(("Error: ", "bold red"), text), soft_wrap=True, highlight=False)
