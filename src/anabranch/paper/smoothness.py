"""An estimate of the smoothness constant ``L``: the largest curvature found."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from anabranch.core.compiling import compiled, copied
from anabranch.core.models import SplitModel
from anabranch.core.types import Tree


def estimate_smoothness(
    model: SplitModel, x: Float[Array, "n d"], y: Int[Array, " n"], widths: tuple[int, ...], steps: int = 20
) -> float:
    """Return the largest absolute eigenvalue of the Hessian of ``f^t``, over the samples, by power iteration.

    It is a lower bound of ``L``: other samples and parameters may be steeper. Where a model has ReLUs its gradient
    jumps, and no ``L`` exists.

    >>> from anabranch.core.models import linear
    >>> model = linear([2, 1], 2)
    >>> x, y = jnp.array([[1.0, 0.0, 2.0]]), jnp.array([0])
    >>> round(estimate_smoothness(model, x, y, (2, 1)), 3)    # (‖x‖² + 1) / 2, at equal odds
    3.0
    """
    trained, rest = eqx.partition(model, eqx.is_inexact_array)
    return float(_largest(trained, rest, x, y, _directions(trained, len(y)), widths, steps))


def _directions(trained: Tree, samples: int) -> Tree:
    """Where the iteration starts for each sample: each leaf (samples, ..), normally distributed.

    As many numbers are drawn as a power of two says, since compiling the draw of each shape takes seconds.
    """
    leaves, structure = jax.tree.flatten(trained)
    keys = jax.random.split(jax.random.key(0), samples)
    drawn = [_normal(max(1024, 1 << (leaf.size - 1).bit_length()), leaf.dtype, keys, len(leaves), np.int32(i))
             for i, leaf in enumerate(leaves)]  # fmt: skip
    cut = [
        copied(np.asarray(each)[:, : leaf.size].reshape(samples, *leaf.shape))
        for each, leaf in zip(drawn, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, cut)


@partial(jax.jit, static_argnums=(0, 1, 3))
def _normal(size: int, dtype: np.dtype, keys: Array, leaves: int, i: Array) -> Array:
    """With each sample's key for the leaf ``i`` of so many."""
    return jax.vmap(lambda key: jax.random.normal(jax.random.split(key, leaves)[i], (size,), dtype))(keys)


@compiled
def _largest(
    trained: Tree, rest: Tree, x: Array, y: Array, directions: Tree, widths: tuple[int, ...], steps: int
) -> Array:
    def loss(trained: Tree, sample: Array, label: Array) -> Array:
        whole = eqx.combine(trained, rest)
        parts = jnp.split(sample, [sum(widths[: i + 1]) for i in range(len(widths) - 1)])
        embeddings = [client(part) for client, part in zip(whole.clients, parts, strict=True)]
        return optax.softmax_cross_entropy_with_integer_labels(whole.server(jnp.concatenate(embeddings)), label)

    def curvature(sample: Array, label: Array, first: Tree) -> Array:
        gradient = jax.grad(lambda trained: loss(trained, sample, label))

        def step(_: Array, carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
            direction, _ = carry
            product = jax.jvp(gradient, (trained,), (direction,))[1]
            norm = optax.tree.norm(product)
            return jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1e-20), product), norm

        size = optax.tree.norm(first)
        direction = jax.tree.map(lambda leaf: leaf / size, first)
        return jax.lax.fori_loop(0, steps, step, (direction, jnp.zeros((), x.dtype)))[1]

    return jax.vmap(curvature)(x, y, directions).max()
