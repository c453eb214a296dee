"""How every function of a round is compiled, in the simulator's loop and in a party of its own alike."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from anabranch.errors import ConfigError

OPTIONS: dict[str, Any] = {
    # A round is many small steps. Sharing each among the cores costs more than it saves: on two cores a DLR round
    # took twice as long as on one (docs/performance.md). The stream uses the other core.
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    # Where the CPU has vectors of 512 bits, use them whole; one that does not ignores this.
    "xla_cpu_prefer_vector_width": "512",
}
"""The same for all functions of a round: other options may round in another way, and the bits would differ."""


def compiled(function: Callable[..., Any], *, donate: Literal["none", "all-except-first"] = "none") -> Any:
    """Return the function compiled when it is first called with arrays of new shapes.

    Arrays are arguments of the compiled program and everything else is part of it, as in `equinox.filter_jit`. With
    ``donate="all-except-first"`` the program may reuse the memory of all arguments but the first.

    >>> compiled(lambda x: x + 1)(1.0)
    2.0
    """
    return eqx.filter_jit(function, donate=donate, compiler_options=OPTIONS)  # type: ignore[call-overload]


@functools.cache
def check_devices() -> None:
    """Raise a ConfigError where JAX finds no device to compute on, as under ``JAX_PLATFORMS=cuda`` without a GPU."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        variable, value = "JAX_PLATFORMS", getattr(jax.config, "jax_platforms", None)
        if not value and (requested := re.search("Unknown backend: '(.*)' requested", str(error))):
            variable, value = "JAX_PLATFORM_NAME", requested[1]
        if not value:
            raise ConfigError(f"JAX finds no device on this machine: {error}") from error
        raise ConfigError(
            f"{variable} = {value!r}: JAX finds no such device on this machine; allowed is what it has, and always "
            f"cpu: unset {variable}, or set {variable}=cpu"
        ) from error


def copied(leaf: Any) -> Any:
    """Return a copy of an array, as one of JAX; anything else as it is.

    It compiles nothing, where ``jnp.array`` and ``jnp.asarray`` compile a program for every shape.

    >>> copied(np.ones(2, np.float32)), copied("else")
    (Array([1., 1.], dtype=float32), 'else')
    """
    if has_numbers(leaf):
        return jax.device_put(np.array(leaf))
    return jax.numpy.copy(leaf) if eqx.is_array(leaf) else leaf


def has_numbers(leaf: Any) -> bool:
    """Return whether it is an array that NumPy has too: not one of JAX's random keys."""
    if eqx.is_array(leaf):
        return not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended)
    return isinstance(leaf, np.ndarray | np.generic)
