"""Processes of ``anabranch`` that are copies of one that has imported everything, which takes seconds.

They are processes like any other: each has a number, output, signals and an exit code of its own. Run as a script,
this is the process that is copied.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO


class Forked:
    """A process of ``anabranch``, with what `subprocess.Popen` has of it.

    Args:
        arguments: of the command line.
        stderr: what it writes to.
    """

    def __init__(self, arguments: Sequence[str], stderr: IO[bytes]) -> None:
        self._told, given = _pair()
        out, stdout = os.pipe()
        order = json.dumps({"arguments": [*arguments], "folder": str(Path.cwd())}).encode()
        socket.send_fds(_original(), [order], [given.fileno(), stdout, stderr.fileno()])
        given.close()
        os.close(stdout)
        self.stdout = os.fdopen(out, "rb")
        self.pid = int(self._told.recv(100))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or that of the signal, which is negative; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float) -> int:
        """Likewise, once it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("anabranch", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """By SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(100))
            except (BlockingIOError, TimeoutError):
                return None
            self._told.close()
        return self.returncode


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@cache
def _original() -> socket.socket:
    """Where to send orders; the process that takes them ends with this one."""
    orders, given = _pair()
    command = [sys.executable, __file__, str(given.fileno())]
    # No other thread may be there: of a process that has some, a copy may wait for ever for a lock that one held.
    alone = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    process = subprocess.Popen(
        command, pass_fds=[given.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ | alone
    )
    given.close()

    def end() -> None:
        orders.close()
        process.wait()

    atexit.register(end)
    return orders


def _tell_of_the_ended(copies: dict[int, socket.socket]) -> None:
    while copies and (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
        copy, status = found
        with copies.pop(copy) as teller, contextlib.suppress(OSError):  # where nobody listens any more
            teller.send(b"%d" % os.waitstatus_to_exitcode(status))


def _serve(orders: socket.socket) -> None:
    """Makes a copy for each order. Returns in the copies only."""
    copies: dict[int, socket.socket] = {}
    # A handler of Python's own may run just before the wait that it is to end, and not within it.
    ended, end = os.pipe()
    for pipe in (ended, end):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the copies
    while True:
        ready, *_ = select.select([orders, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_of_the_ended(copies)
        if orders not in ready:
            continue
        order, handles, *_ = socket.recv_fds(orders, 100_000, 3)
        if not order:
            sys.exit()
        teller, out, err = socket.socket(fileno=handles[0]), *handles[1:]
        if copy := os.fork():
            copies[copy] = teller
            teller.send(b"%d" % copy)
            os.close(out)
            os.close(err)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(ended)
        os.close(end)
        for each in (orders, teller, *copies.values()):
            each.close()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        # Those that there are know of what they were opened for, such as whether one can go back in it.
        sys.stdout, sys.stderr = (os.fdopen(own, "w", buffering=1, closefd=False) for own in (1, 2))
        told = json.loads(order)
        os.chdir(told["folder"])
        sys.argv = ["anabranch", *told["arguments"]]
        return


if __name__ == "__main__":
    import pandas  # noqa: F401  # what a party imports when it begins
    import uvloop  # noqa: F401

    from anabranch import display  # noqa: F401
    from anabranch.cli import main
    from anabranch.parties import run_party as serve  # noqa: F401

    assert len([*Path("/proc/self/task").iterdir()]) == 1
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
