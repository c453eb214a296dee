"""A party's gradient in its smallest form.

The gradient of one sample through a dense layer ``z = x W + b`` is an outer product: ``∂f/∂W = x δᵀ`` and
``∂f/∂b = δ`` with ``δ = ∂f/∂z``. So a window of ``l`` such gradients is ``l`` pairs of vectors, not ``l`` matrices.
``forward`` finds a module's dense layers (`Dense` and `equinox.nn.Linear`) while it is traced, and the gradient that
its pullback returns has an `Outer` where each of their weights stands. All else in a module keeps its plain gradient;
so does every layer of a module that does not simply call each dense layer once, on one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from anabranch.layers import Dense
from anabranch.types import Tree

Pullback = Callable[[Array], tuple[Tree, Array | None]]
"""Takes ``∂f/∂output``; returns the gradient with respect to the parameters, and ``∂f/∂x`` where it was asked for."""


class Outer(NamedTuple):
    """The gradient of a dense layer's weight, kept as the two vectors whose outer product it is."""

    rows: Float[Array, " i"]
    columns: Float[Array, " j"]

    @property
    def dense(self) -> Float[Array, "i j"]:
        """The outer product, written out."""
        return self.rows[:, None] * self.columns[None, :]


def is_outer(node: object) -> bool:
    """Whether a node of a gradient is an `Outer`."""
    return isinstance(node, Outer)


def dense(gradient: Tree) -> Tree:
    """The gradient with each outer product written out.

    >>> dense([Outer(jnp.array([1.0, 2.0]), jnp.array([10.0]))])
    [Array([[10.],
           [20.]], dtype=float32)]
    """
    return jax.tree.map(lambda g: g.dense if is_outer(g) else g, gradient, is_leaf=is_outer)


def parameters(module: eqx.Module) -> Tree:
    """What is trained: the module's floating-point arrays, with None in every other place."""
    return eqx.filter(module, eqx.is_inexact_array)


def forward(module: eqx.Module, x: Array, *, input_derivative: bool = False) -> tuple[Array, Pullback]:
    """The module's output for ``x``, and its pullback.

    ``x`` is one sample ``(d,)``, whose gradient has an `Outer` for each dense layer; or a window of samples
    ``(l, d)``, whose gradient is the sum over the window, written out. The gradient has the module's structure, with
    None where nothing is trained. The pullback is a pytree of arrays: it may leave a jitted function.

    >>> output, pullback = forward(Dense(3, 2, key=jax.random.key(0)), jnp.ones(3))
    >>> gradient, _ = pullback(jnp.array([1.0, 2.0]))
    >>> gradient.weight.columns
    Array([1., 2.], dtype=float32)
    """
    if x.ndim == 1:
        try:
            return _forward_outer(module, x, input_derivative)
        except Exception:  # a layer used in another way than one plain call: the plain path takes it, or says why not
            return _forward_plain(module, x, input_derivative)
    return _forward_plain(module, x, input_derivative)


def _vjp(apply: Callable[..., Any], trained: Tree, x: Array, input_derivative: bool) -> tuple[Array, Callable, Any]:
    """The output, a pullback to ``(trained, x or None)`` and the auxiliary output of ``apply``."""
    if input_derivative:
        return jax.vjp(apply, trained, x, has_aux=True)
    return jax.vjp(lambda trained: apply(trained, x), trained, has_aux=True)


def _forward_plain(module: eqx.Module, x: Array, input_derivative: bool) -> tuple[Array, Pullback]:
    trained, rest = eqx.partition(module, eqx.is_inexact_array)

    def apply(trained: Tree, x: Array) -> tuple[Array, None]:
        whole = eqx.combine(trained, rest)
        return (whole(x) if x.ndim == 1 else jax.vmap(whole)(x)), None

    output, pullback, _ = _vjp(apply, trained, x, input_derivative)
    return output, jax.tree_util.Partial(_plain, pullback)


def _plain(pullback: Callable, v: Array) -> tuple[Tree, Array | None]:
    gradient, *derivative = pullback(v)
    return gradient, derivative[0] if derivative else None


def _forward_outer(module: eqx.Module, x: Array, input_derivative: bool) -> tuple[Array, Pullback]:
    # δ = ∂f/∂z is the derivative with respect to a shift added to z, so only vectors are differentiated.
    nodes, structure = jax.tree.flatten(module, is_leaf=_is_dense)
    layers = {i: node for i, node in enumerate(nodes) if _is_dense(node)}
    others = {i: node for i, node in enumerate(nodes) if i not in layers and eqx.is_inexact_array(node)}
    shifts = {i: jnp.zeros(_out_features(layer), x.dtype) for i, layer in layers.items()}

    def apply(trained: tuple[dict, dict], x: Array) -> tuple[Array, dict[int, Array]]:
        shifts, others = trained
        probes = {i: _Probe(layer, shifts[i]) for i, layer in layers.items()}
        output = jax.tree.unflatten(structure, [{**others, **probes}.get(i, node) for i, node in enumerate(nodes)])(x)
        if any(len(probe.inputs) != 1 or probe.inputs[0].ndim != 1 for probe in probes.values()):
            raise NotImplementedError("a dense layer is not called exactly once on one vector")
        return output, {i: probe.inputs[0] for i, probe in probes.items()}

    output, pullback, inputs = _vjp(apply, (shifts, others), x, input_derivative)
    skeleton = jax.tree.unflatten(structure, [_outline(node) if i in layers else None for i, node in enumerate(nodes)])
    return output, jax.tree_util.Partial(_outer, skeleton, pullback, inputs)


def _outer(skeleton: Tree, pullback: Callable, inputs: dict[int, Array], v: Array) -> tuple[Tree, Array | None]:
    (deltas, others), *derivative = pullback(v)
    nodes, structure = jax.tree.flatten(skeleton, is_leaf=lambda node: node is None or _is_dense(node))
    gradient = [
        _layer_gradient(node, inputs[i], deltas[i]) if i in inputs else others.get(i) for i, node in enumerate(nodes)
    ]
    return jax.tree.unflatten(structure, gradient), derivative[0] if derivative else None


class _Probe:
    """Stands for a dense layer while the module is traced: adds a shift to its output and keeps its inputs."""

    def __init__(self, layer: Dense | eqx.nn.Linear, shift: Array) -> None:
        self._layer, self._shift = layer, shift
        self.inputs: list[Array] = []

    def __call__(self, x: Array, *, key: object = None) -> Array:
        self.inputs.append(x)
        return self._layer(x) + self._shift


def _is_dense(node: object) -> bool:
    if type(node) is eqx.nn.Linear:
        return isinstance(node.in_features, int) and isinstance(node.out_features, int)
    return type(node) is Dense


def _out_features(layer: Dense | eqx.nn.Linear) -> int:
    return layer.weight.shape[1] if isinstance(layer, Dense) else layer.weight.shape[0]


def _outline(layer: Dense | eqx.nn.Linear) -> Dense | eqx.nn.Linear:
    """The layer without its arrays."""
    return jax.tree.map(lambda _: None, layer)


def _layer_gradient(outline: Dense | eqx.nn.Linear, x: Array, delta: Array) -> Tree:
    weight = Outer(x, delta) if isinstance(outline, Dense) else Outer(delta, x)
    has_bias = isinstance(outline, Dense) or outline.use_bias
    where = (lambda layer: (layer.weight, layer.bias)) if has_bias else (lambda layer: (layer.weight,))
    return eqx.tree_at(where, outline, (weight, delta)[: 1 + has_bias], is_leaf=lambda node: node is None)
