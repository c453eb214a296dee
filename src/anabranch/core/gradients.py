"""A party's gradient in its smallest form.

The gradient of one sample through a dense product ``z = x W`` is an outer product: ``∂f/∂W = x δᵀ`` with
``δ = ∂f/∂z``. So a window of ``l`` such gradients is ``l`` pairs of vectors, not ``l`` matrices.

`forward` traces a module and looks at what it does with each trained matrix. One that is used in a single place, in a
product with a vector, gets an `Outer` as its gradient: that holds for the layers of `anabranch.core.layers`, for
`equinox.nn.Linear`, and for ``x @ w`` in a module of your own. Everything else gets its plain gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Array, Float

from anabranch.core.types import Scalar, Tree

Pullback = Callable[[Array], tuple[Tree, Array | None]]
"""Takes ``∂f/∂output``; returns the gradient with respect to the parameters, and ``∂f/∂x`` where it was asked for."""


class Outer(NamedTuple):
    """The gradient of a matrix, kept as the two vectors whose outer product it is."""

    rows: Float[Array, " i"]
    columns: Float[Array, " j"]

    @property
    def dense(self) -> Float[Array, "i j"]:
        """The outer product, written out."""
        return self.rows[:, None] * self.columns[None, :]


def is_outer(node: object) -> bool:
    """Return whether a node of a gradient is an `Outer`."""
    return isinstance(node, Outer)


def dense(gradient: Tree) -> Tree:
    """Return the gradient with each outer product written out.

    >>> dense([Outer(jnp.array([1.0, 2.0]), jnp.array([10.0]))])
    [Array([[10.],
           [20.]], dtype=float32)]
    """
    return jax.tree.map(lambda g: g.dense if is_outer(g) else g, gradient, is_leaf=is_outer)


def squared_norm(gradient: Tree) -> Scalar:
    """Return ``‖g‖²`` over all leaves; of an outer product, ``‖x δᵀ‖² = ‖x‖² ‖δ‖²``.

    >>> squared_norm([Outer(jnp.array([1.0, 2.0]), jnp.array([10.0])), jnp.array([3.0])])
    Array(509., dtype=float32)
    """

    def one(g: Array | Outer) -> Scalar:
        return one(g.rows) * one(g.columns) if isinstance(g, Outer) else jnp.square(g).sum()

    leaves = jax.tree.leaves(gradient, is_leaf=is_outer)
    return jnp.stack([one(g) for g in leaves]).sum()


def parameters(module: eqx.Module) -> Tree:
    """What is trained: the module's floating-point arrays, with None in every other place."""
    return eqx.filter(module, eqx.is_inexact_array)


def forward(module: eqx.Module, x: Array, *, input_derivative: bool = False) -> tuple[Array, Pullback]:
    """Return the module's output for ``x``, and its pullback.

    ``x`` is one sample ``(d,)``, whose gradient has an `Outer` wherever it can; or a window of samples ``(l, d)``,
    whose gradient is the sum over the window, written out. The gradient has the module's structure, with None where
    nothing is trained. The pullback is a pytree of arrays: it may leave a jitted function.

    >>> from anabranch.core.layers import Dense
    >>> output, pullback = forward(Dense(3, 2, key=jax.random.key(0)), jnp.ones(3))
    >>> gradient, _ = pullback(jnp.array([1.0, 2.0]))
    >>> gradient.weight.rows, gradient.weight.columns
    (Array([1., 1., 1.], dtype=float32), Array([1., 2.], dtype=float32))
    """
    if x.ndim == 1:
        return _forward_one(module, x, input_derivative)
    return _forward_window(module, x, input_derivative)


def _forward_window(module: eqx.Module, rows: Array, input_derivative: bool) -> tuple[Array, Pullback]:
    trained, rest = eqx.partition(module, eqx.is_inexact_array)

    def apply(trained: Tree, rows: Array) -> tuple[Array, None]:
        return jax.vmap(eqx.combine(trained, rest))(rows), None

    output, pullback, _ = _vjp(apply, trained, rows, input_derivative)
    return output, jax.tree_util.Partial(_pull_window, pullback)


def _pull_window(pullback: Callable, v: Array) -> tuple[Tree, Array | None]:
    gradient, *derivative = pullback(v)
    return gradient, derivative[0] if derivative else None


def _forward_one(module: eqx.Module, x: Array, input_derivative: bool) -> tuple[Array, Pullback]:
    trained, rest = eqx.partition(module, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(trained)
    traced = jax.make_jaxpr(lambda leaves, x: eqx.combine(jax.tree.unflatten(structure, leaves), rest)(x))(leaves, x)
    products = _matrix_products(traced.jaxpr, len(leaves))

    # δ = ∂f/∂z is the derivative with respect to a shift added to z, so the matrix itself is not differentiated.
    shifts = {i: jnp.zeros(product.size, leaves[i].dtype) for i, product in products.items()}
    plain = {i: leaf for i, leaf in enumerate(leaves) if i not in products}

    def apply(trained: tuple[dict[int, Array], dict[int, Array]], x: Array) -> tuple[Array, dict[int, Array]]:
        shifts, plain = trained
        values = [plain.get(i, leaf) for i, leaf in enumerate(leaves)]
        return _evaluate(traced, [*values, x], products, shifts)

    output, pullback, inputs = _vjp(apply, (shifts, plain), x, input_derivative)
    return output, _OuterPullback(pullback, inputs, {i: p.contracted for i, p in products.items()}, structure)


class _OuterPullback(eqx.Module):
    """The pullback of one sample."""

    pullback: Callable
    inputs: dict[int, Array]
    """The vector that each matrix was multiplied with, by the matrix's place among the trained arrays."""
    contracted: dict[int, int] = eqx.field(static=True)
    """Along which of its axes."""
    structure: Any = eqx.field(static=True)

    def __call__(self, v: Array) -> tuple[Tree, Array | None]:
        (deltas, plain), *derivative = self.pullback(v)
        leaves = dict(plain)
        for i, delta in deltas.items():
            leaves[i] = Outer(self.inputs[i], delta) if self.contracted[i] == 0 else Outer(delta, self.inputs[i])
        gradient = jax.tree.unflatten(self.structure, [leaves[i] for i in range(len(leaves))])
        return gradient, derivative[0] if derivative else None


class _Product(NamedTuple):
    """Where a trained matrix is multiplied with a vector."""

    equation: int
    vector: int
    """Which operand the vector is."""
    contracted: int
    """The matrix's axis that is summed over."""
    size: int
    """The length of the product."""


def _matrix_products(program: Jaxpr, trained: int) -> dict[int, _Product]:
    """Return the matrices among the first ``trained`` inputs that are used once only, in a product with a vector."""
    uses: dict[Any, list[int]] = {variable: [] for variable in program.invars[:trained]}
    for place, variables in enumerate([*(equation.invars for equation in program.eqns), program.outvars]):
        for variable in variables:
            if not isinstance(variable, Literal) and variable in uses:
                uses[variable].append(place)
    products = {}
    matrix: Any
    for i, (matrix, places) in enumerate(uses.items()):
        if matrix.aval.ndim != 2 or len(places) != 1 or places[0] == len(program.eqns):
            continue
        equation = program.eqns[places[0]]
        if equation.primitive is not jax.lax.dot_general_p:
            continue
        left = equation.invars[0] is matrix
        vector: Any = equation.invars[1 if left else 0]
        axes = equation.params["dimension_numbers"][0][0 if left else 1]
        product: Any = equation.outvars[0]
        if vector.aval.ndim == 1 and len(axes) == 1 and vector.aval.dtype == matrix.aval.dtype == product.aval.dtype:
            products[i] = _Product(places[0], 1 if left else 0, axes[0], product.aval.shape[0])
    return products


def _evaluate(
    traced: ClosedJaxpr, values: list[Array], products: dict[int, _Product], shifts: dict[int, Array]
) -> tuple[Array, dict[int, Array]]:
    """Return the traced module's output with a shift added to each product, and the vectors that were multiplied."""
    program = traced.jaxpr
    known = dict(zip([*program.constvars, *program.invars], [*traced.consts, *values], strict=True))
    shifted = {product.equation: i for i, product in products.items()}
    inputs = {}

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for place, equation in enumerate(program.eqns):
        operands = [value(variable) for variable in equation.invars]
        results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
        results = results if equation.primitive.multiple_results else [results]
        if place in shifted:
            i = shifted[place]
            inputs[i] = operands[products[i].vector]
            results = [results[0] + shifts[i]]
        known.update(zip(equation.outvars, results, strict=True))
    (output,) = program.outvars
    return value(output), inputs


def _vjp(apply: Callable[..., Any], trained: Tree, x: Array, input_derivative: bool) -> tuple[Array, Callable, Any]:
    """Return the output, a pullback to ``(trained, x or nothing)``, and the auxiliary output of ``apply``."""
    if input_derivative:
        return jax.vjp(apply, trained, x, has_aux=True)
    return jax.vjp(lambda trained: apply(trained, x), trained, has_aux=True)
