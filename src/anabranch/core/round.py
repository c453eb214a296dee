"""One round of event-driven online vertical federated learning: Algorithm 1 of the paper, from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from anabranch.core.compiling import copied, has_numbers
from anabranch.core.models import Group, SplitModel
from anabranch.core.party import (
    Measures,
    Outcome,
    Party,
    Rule,
    client_step,
    embed,
    empty_window,
    encode,
    init_client,
    init_server,
    predict,
    server_step,
)
from anabranch.core.types import Embeddings, Label, Prediction, Round


class Federation(NamedTuple):
    """The state of every party before a round."""

    server: Party
    clients: tuple[Party, ...]
    """One for each group of equal clients, their arrays stacked along a leading axis."""


def play_round(
    layout: Sequence[Group],
    rule: Rule,
    rates: Float[Array, " M+1"],
    federation: Federation,
    x: Float[Array, " d"],
    label: Label,
    active: Bool[Array, " M"],
    t: Round,
    kept: Embeddings | None = None,
) -> tuple[Federation, Outcome]:
    """Round ``t``: an event has activated some clients, and the sample ``x`` has the class ``label``.

    Args:
        layout: which clients are computed together.
        rule: the update (OGD, DLR or SLR) and the step rule.
        rates: this round's learning rates ``η_0 .. η_M``, the server's first.
        federation: every party's state.
        x: the clients' features side by side.
        label: known to the server only.
        active: who is in ``A_t``.
        t: the number of the round, from 0.
        kept: embeddings of the sample that were sent before, which the server takes in place of new ones.
    """
    server, clients = federation

    # 1. Each activated client sends its embedding. 2. The server queries the passive clients, which send theirs too.
    sent = [
        _for_each(lambda client, x_m: encode(rule, client, x_m, t))(client, x_m)
        for client, x_m in zip(clients, split(layout, x, "features"), strict=True)
    ]
    clients = tuple(client for client, _, _ in sent)
    embeddings = join([embedding for _, embedding, _ in sent]) if kept is None else kept

    # 3. The server predicts, pushes its gradient on its window, and steps.
    server, outcome = server_step(rule, server, embeddings, label, rates[0], t)
    if rule.watch:
        outcome = outcome._replace(sizes=_sizes(layout, rule.update.newest(embeddings, t).astype(x.dtype)))

    # 4. It returns the partial derivatives v_m to the activated clients only.
    # 5. Each activated client pushes its gradient and steps; each passive client pushes 0 and does not step. (Where
    #    something stopped being finite nobody steps: the run ends here.)
    stepping = active & (outcome.trouble == 0)
    clients = tuple(
        _for_each(lambda client, pullback, v, rate, go: client_step(rule, client, pullback, v, rate, t, go))(
            client, pullback, v, rate, go
        )
        for client, (_, _, pullback), v, rate, go in zip(
            clients,
            sent,
            split(layout, outcome.derivatives, "embedding"),
            split(layout, rates[1:]),
            split(layout, stepping),
            strict=True,
        )
    )
    return Federation(server, clients), outcome


def predict_event(
    layout: Sequence[Group], rule: Rule, federation: Federation, x: Float[Array, " d"]
) -> tuple[Prediction, Embeddings]:
    """What the server predicts of a sample whose label comes later, and from which embeddings; nothing changes."""
    logits, embeddings = event_logits(layout, rule, federation, x)
    return logits.argmax(-1).astype(jnp.int32), embeddings


def event_logits(
    layout: Sequence[Group], rule: Rule, federation: Federation, x: Float[Array, " d"]
) -> tuple[Float[Array, " c"], Embeddings]:
    """Return the logits of that prediction, and the embeddings."""
    parts = zip(federation.clients, split(layout, x, "features"), strict=True)
    embeddings = join([_for_each(lambda client, x_m: embed(rule, client, x_m))(*part) for part in parts])
    return predict(federation.server, embeddings), embeddings


def init_federation(layout: Sequence[Group], rule: Rule, rates: Float[Array, " M+1"], model: SplitModel) -> Federation:
    """Return every party's state before round 0."""
    dtype = model_dtype(model)
    clients = tuple(
        stack(
            [
                init_client(rule, model.clients[m], jnp.zeros(group.features, dtype), rates[m + 1])
                for m in range(group.first, group.first + group.size)
            ]
        )
        for group in layout
    )
    width = sum(group.size * group.embedding for group in layout)
    return Federation(init_server(rule, model.server, jnp.zeros(width, dtype), rates[0]), clients)


def emptied(federation: Federation) -> Federation:
    """Return the federation with every party's window of gradients as it was before round 0."""
    return Federation(empty_window(federation.server), tuple(map(empty_window, federation.clients)))


def measured(federation: Federation) -> Measures | None:
    """What the parties have measured in the last round, added up; None where they measure nothing."""
    gauges = [party.gauge for party in (federation.server, *federation.clients)]
    shares = [None if gauge is None else gauge.share for gauge in gauges]
    return jax.tree.map(lambda *each: jnp.stack([share.sum() for share in each]).sum(), *shares)


def trained_model(layout: Sequence[Group], federation: Federation) -> SplitModel:
    """Return the model that the parties hold together, in arrays of its own."""
    clients = [
        jax.tree.map(partial(_one, i), party.model)
        for group, party in zip(layout, federation.clients, strict=True)
        for i in range(group.size)
    ]
    widths = [group.features for group in layout for _ in range(group.size)]
    return SplitModel(clients, jax.tree.map(copied, federation.server.model), widths)


def _one(i: int, leaf: Any) -> Any:
    """Of a leaf that equal clients have, that of one of them; cut by NumPy, since JAX compiles each cut."""
    if has_numbers(leaf):
        return copied(np.asarray(leaf)[i])
    return leaf[i] if eqx.is_array(leaf) else leaf


def model_dtype(model: SplitModel) -> jnp.dtype:
    """Return the dtype in which the parties compute."""
    return jnp.result_type(*jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def stack(parties: Sequence[Party]) -> Party:
    """Equal clients as one, each array with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *parties)


def split(layout: Sequence[Group], values: Array, width: str | None = None) -> list[Array]:
    """Return values side by side along the last axis, cut into (size, .., width) for each group, or (size, ..)
    scalars.
    """
    parts, start = [], 0
    for group in layout:
        each = 1 if width is None else getattr(group, width)
        part = values[..., start : start + group.size * each]
        start += group.size * each
        shape = (*values.shape[:-1], group.size) if width is None else (*values.shape[:-1], group.size, each)
        parts.append(jnp.moveaxis(part.reshape(shape), len(values.shape) - 1, 0))
    return parts


def join(parts: Sequence[Array]) -> Array:
    """Return the inverse of `split`: (size, .., width) for each group, side by side along the last axis."""
    rows = [jnp.moveaxis(part, 0, -2) for part in parts]
    return jnp.concatenate([row.reshape((*row.shape[:-2], -1)) for row in rows], axis=-1)


def _sizes(layout: Sequence[Group], embeddings: Float[Array, " e"]) -> Float[Array, " M"]:
    """Return the root mean square of each client's embedding."""
    return jnp.concatenate([jnp.sqrt((part**2).mean(axis=-1)) for part in split(layout, embeddings, "embedding")])


def _for_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of one client, computed for a group of them at once."""
    return eqx.filter_vmap(function)
