"""What the copy button of a code block copies: commands without their prompts, and no output."""

from __future__ import annotations

import html
import re
from typing import Any

PROMPT = re.compile(r"(>>>|\$)(?: |$)")
CODE = re.compile(r"<pre(?P<rest>[^>]*)>(?P<code>(?:(?!</pre>).)*)</pre>", re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Give each block with prompts a ``data-copy``, which Material's button copies in place of the text."""
    return CODE.sub(_with_commands, content)


def _with_commands(block: re.Match[str]) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", "", block["code"]))
    found = commands(text)
    if not found:
        return block[0]
    copied = html.escape(found).replace("\n", "&#10;")
    return f'<pre{block["rest"]} data-copy="{copied}">{block["code"]}</pre>'


def commands(text: str) -> str:
    """Return what a person types, of a session with prompts; an empty text if there is no prompt.

    >>> print(commands('>>> for i in range(2):\\n...     print(i)\\n0\\n1\\n>>> x = 1'))
    for i in range(2):
        print(i)
    x = 1
    >>> print(commands('$ make \\\\\\n    demo\\nInstalling ...'))
    make \\
        demo
    """
    typed: list[str] = []
    goes_on = ""
    for line in text.splitlines():
        if prompt := PROMPT.match(line):
            typed.append(line[prompt.end() :])
            goes_on = prompt[1]
        elif goes_on == ">>>" and re.match(r"\.\.\.(?: |$)", line):
            typed.append(line[4:])
        elif goes_on == "$" and typed[-1].endswith("\\"):
            typed.append(line)
        else:
            goes_on = ""
    return "\n".join(typed)
