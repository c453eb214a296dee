"""The command ``anabranch``, and ``python -m anabranch``, which is the same."""

from __future__ import annotations

import sys

from anabranch import interrupt


def main() -> None:
    """Take Ctrl-C and SIGTERM before anything else, and run a command."""
    party = sys.argv[1:2] in (["server"], ["client"])
    interrupt.begin(interrupt.OF_A_PARTY if party else interrupt.OF_A_COMMAND)
    from anabranch.cli import main as run

    try:
        run()
    finally:
        interrupt.finish()


if __name__ == "__main__":
    main()
