"""What one party computes in a round. Each function sees the state of one party only.

The same functions run inside the simulator's compiled loop and, jitted one by one, in the separate processes of a
federation. On a CPU both give the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from anabranch.core.gradients import Pullback, forward, parameters, squared_norm
from anabranch.core.types import (
    Derivative,
    Derivatives,
    Embedding,
    Embeddings,
    Features,
    Flag,
    Label,
    Prediction,
    Round,
    Scalar,
    Tree,
)
from anabranch.core.updates import Update, Window, taken


class Measures(NamedTuple):
    """What the regret of a round is made of, or one party's share of it; see `anabranch.simulation.regret`."""

    loss: Scalar
    """``f^t(w^t)``, which the server alone knows."""
    gradient: Scalar
    """``‖∇f^t‖²``"""
    ideal: Scalar
    """``‖∇S_{t,l,α}‖²``, with the gradients of passive clients in it."""
    applied: Scalar
    """The squared norm of what was stepped along."""


class Gauge(NamedTuple):
    """What a party holds beside its own state while its regret is measured."""

    window: Window | None
    """Of a client under DLR: its last ``l`` gradients, those of its passive rounds among them."""
    share: Measures
    """The party's share in the last round."""


class Party(NamedTuple):
    """The state of the server or of one client."""

    model: eqx.Module
    """The top model ``w_0``, or the bottom model ``w_m``."""
    memory: Array | None
    """Under SLR the last ``l`` inputs: a client's features (l, d_m), the server's labels (l,)."""
    window: Window | None
    """Under DLR the last ``l`` gradients."""
    optimiser: Tree
    """The state of the Optax transformation."""
    gauge: Gauge | None
    """None where nothing is measured."""


class Outcome(NamedTuple):
    """What the server has worked out in a round."""

    prediction: Prediction
    """The class predicted for this round's sample, before the update."""
    derivatives: Derivatives
    """``∂f^t/∂h`` for every client, side by side; only the activated clients are sent theirs."""
    trouble: Int[Array, ""]
    """One of `TROUBLES`: what stopped being finite. Where anything did, the server has not stepped."""
    sizes: Float[Array, " M"] | None = None
    """``‖h_m‖ / √e_m`` of each client's embedding as it arrived, where that is watched."""


TROUBLES = ("none", "embedding", "loss", "derivative")
"""What may stop being finite in a round: an embedding as it arrived, the loss, a derivative as it will be sent."""


class Rule(NamedTuple):
    """How every party updates: the paper's update, and the step that follows the smoothing."""

    update: Update
    optimiser: optax.GradientTransformation | None
    """Takes the smoothed gradient; None is plain gradient descent, ``w ← w − η ∇S``."""
    wire: jnp.dtype
    """The dtype in which embeddings and derivatives cross the wire."""
    measure: bool = False
    """Whether each party works out its share of the regret."""
    watch: bool = False
    """Whether the server says how large the embeddings are that arrive."""

    def transform(self, rate: Scalar) -> optax.GradientTransformation:
        """Return the step rule of a party whose learning rate is ``rate``."""
        return optax.sgd(rate) if self.optimiser is None else self.optimiser


def init_client(rule: Rule, model: eqx.Module, features: Features, rate: Scalar) -> Party:
    """Client ``m`` before round 0; ``features`` shows the shape of a sample."""
    return _init(rule, model, rule.update.init_memory(features), features, rate, server=False)


def init_server(rule: Rule, model: eqx.Module, embeddings: Embeddings, rate: Scalar) -> Party:
    """Return the server before round 0; ``embeddings`` (e,) shows the width of all clients' embeddings together."""
    labels = rule.update.init_memory(jnp.zeros((), jnp.int32))
    return _init(rule, model, labels, embeddings, rate, server=True)


def empty_window(party: Party) -> Party:
    """Return the party with its window of gradients as it was before round 0."""
    return party._replace(window=jax.tree.map(jnp.zeros_like, party.window))


def zero_gradient(rule: Rule, model: eqx.Module, example: Array) -> Tree:
    """Return the **0** that a passive party pushes, in the form that the update takes.

    Args:
        model: the party's model.
        example: one input of it, such as (d_m,) features; only its shape and type count.
    """

    def gradient(x: Array) -> Tree:
        output, pullback = forward(model, x)
        return pullback(output)[0]

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), eqx.filter_eval_shape(gradient, example))
    return taken(rule.update, zeros)


def _init(rule: Rule, model: eqx.Module, memory: Array | None, example: Array, rate: Scalar, *, server: bool) -> Party:
    zeros = zero_gradient(rule, model, example)
    window = rule.update.init_window(zeros, server=server)
    gauge = None
    if rule.measure:
        unblanked = None if server else rule.update.init_window(zeros, server=True)  # with the gradients of all rounds
        gauge = Gauge(unblanked, Measures(*[jnp.zeros((), example.dtype) for _ in Measures._fields]))
    return Party(model, memory, window, rule.transform(rate).init(parameters(model)), gauge)


def encode(rule: Rule, client: Party, x: Features, t: Round) -> tuple[Party, Embedding, Pullback]:
    """Return the client's embedding ``h_m(w_m^t; x_m^t)`` as it crosses the wire, and its pullback, kept for
    `client_step`.

    Under SLR the embeddings of the client's last ``l`` inputs.
    """
    memory, evaluated = rule.update.recall(client.memory, x, t)
    embedding, pullback = forward(client.model, evaluated)
    return client._replace(memory=memory), embedding.astype(rule.wire), pullback


def embed(rule: Rule, client: Party, x: Features) -> Embedding:
    """Return the client's embedding of one sample at today's parameters, with nothing to learn from; nothing
    changes.
    """
    return forward(client.model, x)[0].astype(rule.wire)


def predict(server: Party, embeddings: Embeddings) -> Float[Array, " c"]:
    """Return the logits of the server's prediction at today's parameters; nothing changes."""
    dtype = jax.tree.leaves(parameters(server.model))[0].dtype
    return forward(server.model, embeddings.astype(dtype))[0]


def server_step(
    rule: Rule, server: Party, embeddings: Embeddings, label: Label, rate: Scalar, t: Round
) -> tuple[Party, Outcome]:
    """Predict, then push ``∂f^t/∂w_0`` and step along the smoothed gradient; work out ``v = ∂f^t/∂h``."""
    memory, labels = rule.update.recall(server.memory, label, t)
    dtype = jax.tree.leaves(parameters(server.model))[0].dtype
    logits, pullback = forward(server.model, embeddings.astype(dtype), input_derivative=True)
    loss, delta = jax.value_and_grad(_loss)(logits, labels, rule.update.exists(t))
    gradient, derivatives = pullback(delta)
    assert derivatives is not None
    returned = rule.update.returned(derivatives).astype(rule.wire)
    trouble = jnp.where(jnp.isfinite(returned).all(), 0, 3)
    trouble = jnp.where(jnp.isfinite(loss), trouble, 2)
    trouble = jnp.where(jnp.isfinite(embeddings).all(), trouble, 1).astype(jnp.int32)

    window, direction = rule.update.smooth(server.window, taken(rule.update, gradient), t)
    # `trouble` depends on the last use of the old parameters, so the compiler can step in place without a copy.
    model, optimiser = step(rule, server.model, server.optimiser, direction, rate, trouble == 0)
    newest = rule.update.newest(logits, t)
    gauge = server.gauge
    if gauge is not None:
        stepped = squared_norm(direction)  # the server always steps
        own = squared_norm(_own_gradient(rule, pullback, delta, gradient, t))
        gauge = Gauge(None, Measures(_loss(newest, label, True), own, stepped, stepped))
    prediction = newest.argmax(-1).astype(jnp.int32)
    return Party(model, memory, window, optimiser, gauge), Outcome(prediction, returned, trouble)


def client_step(
    rule: Rule, client: Party, pullback: Pullback, v: Derivative, rate: Scalar, t: Round, active: Flag
) -> Party:
    """Push ``v_m^t ∂h_m/∂w_m`` and step where the client is activated; a passive one pushes 0 and does not step."""
    dtype = jax.tree.leaves(parameters(client.model))[0].dtype
    gradient, _ = pullback(v.astype(dtype))
    gradient = taken(rule.update, gradient)
    window, direction = rule.update.smooth_client(client.window, gradient, t, active)
    model, optimiser = step(rule, client.model, client.optimiser, direction, rate, active)
    gauge = client.gauge
    if gauge is not None:
        # A passive client has its true v_m here only because the simulator computes it: in a real federation it is
        # sent none, and nobody could measure this.
        unblanked, ideal = rule.update.smooth(gauge.window, gradient, t)
        own = squared_norm(_own_gradient(rule, pullback, v.astype(dtype), gradient, t))
        none = jnp.zeros((), dtype)
        applied = jnp.where(active, squared_norm(direction), none)
        gauge = Gauge(unblanked, Measures(none, own, squared_norm(ideal), applied))
    return Party(model, client.memory, window, optimiser, gauge)


def _own_gradient(rule: Rule, pullback: Pullback, v: Array, gradient: Tree, t: Round) -> Tree:
    """Return the gradient of this round's own sample, where ``gradient`` may be that of a window of samples."""
    if rule.update.rows is None:
        return gradient
    own, place = jax.vjp(lambda rows: rule.update.newest(rows, t), v)
    return pullback(*place(own))[0]


def step(
    rule: Rule, model: eqx.Module, state: Tree, direction: Tree, rate: Scalar, go: Flag
) -> tuple[eqx.Module, Tree]:
    """Return the model after a step along ``direction``, or the same model where ``go`` is false."""
    trained = parameters(model)
    updates, stepped_state = rule.transform(rate).update(direction, state, trained)
    keep = lambda new, old: jnp.where(go, new, old)  # noqa: E731
    stepped = jax.tree.map(keep, optax.apply_updates(trained, updates), trained)
    return eqx.combine(stepped, model), jax.tree.map(keep, stepped_state, state)


def _loss(logits: Array, labels: Array, exists: Any) -> Scalar:
    """Softmax cross-entropy, summed over the rows that exist."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(exists, losses, 0).sum()
