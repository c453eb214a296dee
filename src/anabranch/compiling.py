"""How every function of a round is compiled, in the simulator's loop and in a party of its own alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx

OPTIONS: dict[str, Any] = {
    # A round is many small steps. Sharing each among the cores costs more than it saves: on two cores a DLR round
    # took twice as long as on one (docs/performance.md). The stream uses the other core.
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    # Where the CPU has vectors of 512 bits, use them whole; one that does not ignores this.
    "xla_cpu_prefer_vector_width": "512",
}
"""The same for all functions of a round: other options may round in another way, and the bits would differ."""


def compiled(function: Callable[..., Any], *, donate: Literal["none", "all-except-first"] = "none") -> Any:
    """The function compiled when it is first called with arrays of new shapes.

    Arrays are arguments of the compiled program and everything else is part of it, as in `equinox.filter_jit`. With
    ``donate="all-except-first"`` the program may reuse the memory of all arguments but the first.

    >>> compiled(lambda x: x + 1)(1.0)
    2.0
    """
    return eqx.filter_jit(function, donate=donate, compiler_options=OPTIONS)  # type: ignore[call-overload]
