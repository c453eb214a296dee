from __future__ import annotations

import signal

import pytest

from anabranch.interrupt import Interruptible, Terminated, terminable


def test_sigterm_is_taken_like_ctrl_c_where_a_command_asks_for_it() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    with terminable():
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        with Interruptible() as ctrl_c:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert (ctrl_c.pressed, ctrl_c.problem) == (2, KeyboardInterrupt)
            with pytest.raises(Terminated), ctrl_c.at_once():
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt) as third:
                signal.raise_signal(signal.SIGINT)
            assert third.type is KeyboardInterrupt
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is usual


def test_sigterm_is_left_to_a_program_that_handles_it_and_to_its_default() -> None:
    with Interruptible():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    taken: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
    try:
        with terminable(), Interruptible() as ctrl_c:
            signal.raise_signal(signal.SIGTERM)
        assert (taken, ctrl_c.pressed) == ([signal.SIGTERM], 0)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
