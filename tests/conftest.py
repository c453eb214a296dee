"""Strict arrays in every test: no silent promotion of dtypes or of ranks. Examples are the same in every run."""

import signal

import jax
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settings.register_profile("anabranch", deadline=None, derandomize=True)
settings.load_profile("anabranch")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
