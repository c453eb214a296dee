from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anabranch import interrupt
from anabranch.interrupt import Interruptible, Terminated, command
from anabranch.storage.files import replace_file


def test_a_command_takes_sigterm_like_ctrl_c() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    with command():
        with Interruptible() as ctrl_c:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert (ctrl_c.pressed, ctrl_c.problem) == (2, Terminated)
            with pytest.raises(Terminated), ctrl_c.at_once():
                pytest.fail("the press before was forgotten")
            signal.raise_signal(signal.SIGTERM)  # after the last look
        signal.raise_signal(signal.SIGINT)  # between two that count
        with Interruptible() as later:
            assert later.pressed == 2
    assert signal.getsignal(signal.SIGTERM) is usual
    with command(), Interruptible() as ctrl_c:
        assert not ctrl_c.pressed


def test_outside_a_command_only_ctrl_c_is_taken_and_the_third_raises() -> None:
    with Interruptible() as ctrl_c:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert ctrl_c.pressed == 3
    with Interruptible() as ctrl_c, pytest.raises(KeyboardInterrupt), ctrl_c.at_once():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_the_program_handles_is_left_to_it() -> None:
    taken: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
    try:
        with command(), Interruptible() as ctrl_c:
            signal.raise_signal(signal.SIGTERM)
        assert (taken, ctrl_c.pressed) == ([signal.SIGTERM], 0)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_another_thread_changes_nothing() -> None:
    found = []

    def other() -> None:
        with command(), Interruptible() as ctrl_c:
            found.append((signal.getsignal(signal.SIGINT), ctrl_c.pressed))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [(signal.default_int_handler, 0)]


def test_a_press_waits_for_a_file_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path.replace

    def pressed(self: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return usual(self, target)

    monkeypatch.setattr(Path, "replace", pressed)
    with Interruptible() as ctrl_c, pytest.raises(KeyboardInterrupt), ctrl_c.at_once():
        replace_file(tmp_path / "file", b"whole")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


PROGRAM = """
import os, signal, sys
from anabranch import interrupt
interrupt.begin(interrupt.{ending})
def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)
{steps}
print("was not ended")
"""


@pytest.mark.parametrize(
    ("ending", "steps", "code", "out", "err"),
    [
        ("OF_A_COMMAND", "press()", 130, "", f"Error: {interrupt.NO_RESULT}\n"),
        ("OF_A_COMMAND", "press(signal.SIGTERM)", 143, "", f"Error: {interrupt.NO_RESULT}\n"),
        ("OF_A_PARTY", "press()", 0, "", "Note: left\n"),
        ("OF_A_PARTY", "press(signal.SIGTERM)", 0, "", "Note: left\n"),
        (
            "OF_A_COMMAND",
            "with interrupt.cleaning(lambda: print('clean', flush=True)):\n    press()",
            130,
            "clean\n",
            f"Error: {interrupt.NO_RESULT}\n",
        ),
        (  # what was done is kept
            "OF_A_COMMAND",
            "with interrupt.Interruptible(): pass\npress()\npress()",
            0,
            "was not ended\n",
            "",
        ),
        (
            "OF_A_COMMAND",
            "with interrupt.Interruptible(): pass\npress()\npress()\npress()",
            130,
            "",
            f"{interrupt.OF_A_COMMAND.at_once}\n",
        ),
        (
            "OF_A_PARTY",
            "with interrupt.calling(lambda n: print(f'leaves at {n:d}')):\n    press(signal.SIGTERM)\npress()",
            0,
            "leaves at 15\nwas not ended\n",
            "",
        ),
    ],
)
def test_what_a_press_does_in_the_process_of_a_command(ending: str, steps: str, code: int, out: str, err: str) -> None:
    program = PROGRAM.format(ending=ending, steps=steps)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (code, out, err)


def test_what_was_blocked_until_a_command_begins_reaches_it() -> None:
    with interrupt.blocked():
        program = PROGRAM.format(ending="OF_A_PARTY", steps="")
        signalled = f"import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n{program}"
        run = subprocess.run([sys.executable, "-c", signalled], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "Note: left\n")
