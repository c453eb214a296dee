"""Dense layers with weights stored (in, out), perceptrons made of them, and the two parts of a linear model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from anabranch.core.compiling import copied


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], bound: float) -> Array:
    """Return ``U(−bound, bound)``, each element drawn by its place alone.

    So more are drawn than are needed, and a model of another shape needs no program of its own: compiling one takes
    seconds.

    >>> key = jax.random.key(0)
    >>> bool((uniform(key, (3, 4), 0.5).ravel()[:5] == uniform(key, (5,), 0.5)).all())
    True
    """
    size, n = _FEWEST, math.prod(shape)
    while size < n:
        size *= 4
    drawn = _uniform(size, key, np.asarray(bound, jnp.result_type(float)))
    if isinstance(drawn, jax.core.Tracer):
        return drawn[:n].reshape(shape)
    return copied(np.asarray(drawn)[:n].reshape(shape))


_FEWEST = 1024


@partial(jax.jit, static_argnums=0)
def _uniform(n: int, key: PRNGKeyArray, bound: Array) -> Array:
    return jax.random.uniform(key, (n,), minval=-bound, maxval=bound)


class Dense(eqx.Module):
    """A dense layer: ``x W + b``.

    Weights and biases start from ``U(−1/√fan_in, 1/√fan_in)``.

    >>> Dense(3, 2, key=jax.random.key(0)).weight.shape
    (3, 2)
    """

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"]

    def __init__(self, in_features: int, out_features: int, *, key: PRNGKeyArray) -> None:
        bound = in_features**-0.5
        weight_key, bias_key = jax.random.split(key)
        self.weight = uniform(weight_key, (in_features, out_features), bound)
        self.bias = uniform(bias_key, (out_features,), bound)

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """A perceptron: dense layers with a ReLU after each, the last included only with ``relu_last``.

    Args:
        sizes: the width of the input, of each hidden layer and of the output.
        relu_last: whether the output passes a ReLU too.
        key: where the initial parameters come from.

    >>> MLP([784, 256, 10], relu_last=False, key=jax.random.key(0))(jax.numpy.zeros(784)).shape
    (10,)
    """

    layers: tuple[Dense, ...]
    relu_last: bool = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], *, relu_last: bool, key: PRNGKeyArray) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Dense(i, o, key=k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.relu_last = relu_last

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        x = self.layers[-1](x)
        return jax.nn.relu(x) if self.relu_last else x


class Softmaxed(eqx.Module):
    """A module with a softmax at its end; a loss that applies one itself then applies a second one.

    >>> Softmaxed(Sum(2))(jnp.zeros(2))
    Array([0.5, 0.5], dtype=float32)
    """

    module: eqx.Module

    def __call__(self, x: Array) -> Array:
        assert callable(self.module)
        return jax.nn.softmax(self.module(x))


class Projection(eqx.Module):
    """A dense layer without a bias, ``x W``, which starts from zero.

    >>> Projection(3, 2)(jnp.ones(3))
    Array([0., 0.], dtype=float32)
    """

    weight: Float[Array, "in out"]

    def __init__(self, in_features: int, out_features: int) -> None:
        self.weight = jnp.zeros((in_features, out_features))

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        return x @ self.weight


class Sum(eqx.Module):
    """Adds up vectors of equal length that stand side by side, and a bias, which starts from zero.

    >>> Sum(2)(jnp.array([1.0, 2.0, 10.0, 20.0]))
    Array([11., 22.], dtype=float32)
    """

    bias: Float[Array, " out"]

    def __init__(self, out_features: int) -> None:
        self.bias = jnp.zeros(out_features)

    def __call__(self, vectors: Float[Array, " M*out"]) -> Float[Array, " out"]:
        return vectors.reshape(-1, self.bias.size).sum(axis=0) + self.bias
