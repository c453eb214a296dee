"""The command ``anabranch``, and ``python -m anabranch``, which is the same."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
"""As in `anabranch.cli.common`, which takes a moment to import."""


def main() -> None:
    """Import the commands, where Ctrl-C ends the process at once and without a word, and run one."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # else it is ignored, or somebody else's
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from anabranch.cli import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
