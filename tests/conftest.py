"""Strict arrays in every test: no silent promotion of dtypes or of ranks."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
