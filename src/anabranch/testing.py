"""The contracts of updates, activations and streams, as checks for parts of one's own.

Each check raises an AssertionError that says what is wrong. They use small models, and take a few seconds.
"""

from __future__ import annotations

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import anabranch.simulation.simulator as simulator
from anabranch import streams
from anabranch.core import models
from anabranch.core.activation import Activation, Random
from anabranch.core.party import Rule
from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from anabranch.core.updates import Update
from anabranch.streams.base import Stream

ROUNDS, WIDTHS, EMBEDDING, CLASSES, RATE = 60, (2, 3), 8, 3, 0.05


def check_update(update: Update) -> None:
    """Check an update in the simulator and in the programs of a federation's parties.

    ===========================  ==================================================================
    case                         what must hold
    ===========================  ==================================================================
    a run, cut into chunks       the same bits at every chunk length
    a passive client             its parameters stay the same
    parties one by one           the parameters of the simulator, but for the last digits
    a skipped round              no parameter changes
    a round that is not finite   nothing of it stays in the server's window
    a restart                    a party that is restored from its arrays has the same bits
    ===========================  ==================================================================

    Raises:
        AssertionError: if one of them does not hold.
        ConfigError: if the update does not have the shapes that a round needs.
    """
    x, y = _samples()
    activation = Random(0.5)
    whole, cut = (_run(update, x, y, activation, chunk) for chunk in (ROUNDS, 7))
    assert _bits(whole.model) == _bits(cut.model), "another chunk length gives other parameters"

    never = _run(update, x, y, Random((0.0, 1.0)), ROUNDS).model
    assert _bits(never.clients[0]) == _bits(_model().clients[0]), "a passive client's parameters have changed"

    server, clients = _parties(update)
    active = activation.mask(0, 0, x, WIDTHS)
    for t in range(ROUNDS):
        _play(server, clients, x, y, active, t)
    assert _alike(server.copy_model(), whole.model.server), "the server's program gives other parameters"
    for m, client in enumerate(clients):
        assert _alike(client.copy_model(), whole.model.clients[m]), f"client {m + 1} gives other parameters"

    before = _bits(server.copy_model())
    server.skip(0)
    assert _bits(server.copy_model()) == before, "a skipped round has changed parameters"
    if update.rows is None:
        sent = np.full((1, EMBEDDING * len(WIDTHS)), np.inf, np.float32)
        assert server.step(sent, np.zeros(1, np.int32)).trouble, "a round of infinities counts as finite"
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(server.party.window)]
        assert all(np.isfinite(leaf).all() for leaf in leaves), "the window has kept a gradient that is not finite"
    other, _ = _parties(update)
    other.restore(server.arrays(), server.rounds)
    assert _bits(other.party) == _bits(server.party), "a restored server differs"


def check_activation(activation: Activation, features: NDArray[np.floating] | None = None) -> None:
    """Check that an activation's `decide` and `mask` agree, in any part of the rounds.

    Args:
        activation: any whose clients decide.
        features: (n, 5), those of two clients with 2 and 3 features; normal ones by default.

    Raises:
        AssertionError: if they do not.
    """
    x = _samples()[0] if features is None else np.asarray(features)
    mask = activation.mask(7, 0, x, WIDTHS)
    assert mask.shape == (len(x), len(WIDTHS)), f"mask has the shape {mask.shape}, not (rounds, clients)"
    assert mask.dtype == np.bool_, f"mask has the type {mask.dtype}, not bool"
    later = activation.mask(7, 10, x[10:], WIDTHS)
    assert (later == mask[10:]).all(), "mask depends on where the rounds begin"
    parts = np.split(x, np.cumsum(WIDTHS)[:-1], axis=1)
    for t in range(min(len(x), 20)):
        for m, part in enumerate(parts):
            decided = activation.decide(7, m + 1, t, part[t])
            assert bool(decided) == bool(mask[t, m]), f"decide and mask differ in round {t} for client {m + 1}"


def check_stream(stream: Stream, samples: int = 200) -> None:
    """Check that a stream has the shapes that it says, and begins anew with the same samples.

    Args:
        stream: any.
        samples: how many are looked at.

    Raises:
        AssertionError: if it does not.
    """
    first, again = (_rows(stream, samples) for _ in range(2))
    assert len(first) == len(again), "it has another number of samples when it begins anew"
    for i, ((x, y), (x2, y2)) in enumerate(zip(first, again, strict=True)):
        assert x.shape == (sum(stream.widths),), f"sample {i} has {x.shape} features, but widths says {stream.widths}"
        assert 0 <= y < stream.classes, f"the label of sample {i} is {y}, but there are {stream.classes} classes"
        assert x.tobytes() == x2.tobytes(), f"sample {i} differs when the stream begins anew"
        assert y == y2, f"the label of sample {i} differs when the stream begins anew"


def _samples() -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROUNDS, sum(WIDTHS))).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int) + (x[:, 4] > 0)


def _model() -> models.SplitModel:
    return models.mlp(WIDTHS, CLASSES, hidden=[8], embedding=EMBEDDING, server=[8])


def _run(update: Update, x: NDArray, y: NDArray, activation: Activation, chunk: int) -> simulator.Result:
    stream = streams.from_arrays(np.split(x, np.cumsum(WIDTHS)[:-1], axis=1), y, classes=CLASSES)
    return simulator.simulate(
        _model(), stream, update=update, activation=activation, learning_rate=RATE, seed=0, chunk=chunk
    )


def _parties(update: Update) -> tuple[ServerCompute, list[ClientCompute]]:
    model, rate = _model(), Rate(RATE)
    rule = Rule(jax.tree.map(np.asarray, update), None, jnp.dtype("float32"))
    server = ServerCompute(rule, model.server, EMBEDDING * len(WIDTHS), rate)
    return server, [ClientCompute(rule, module, d, rate) for module, d in zip(model.clients, WIDTHS, strict=True)]


def _play(
    server: ServerCompute, clients: list[ClientCompute], x: NDArray, y: NDArray, active: NDArray[np.bool_], t: int
) -> None:
    parts = np.split(x[t : t + 1], np.cumsum(WIDTHS)[:-1], axis=1)
    at = np.array([t], np.int32)
    sent, pending = zip(*[client.encode(at, part) for client, part in zip(clients, parts, strict=True)], strict=True)
    stepped = server.step(np.concatenate(sent, axis=-1), y[t : t + 1].astype(np.int32))
    for m, client in enumerate(clients):
        if active[t, m]:
            client.step(at, pending[m], stepped.derivatives[..., EMBEDDING * m : EMBEDDING * (m + 1)])


def _rows(stream: Stream, samples: int) -> list[tuple[NDArray, int]]:
    rows = ((x.copy(), int(y)) for block in stream.blocks() for x, y in zip(block.x, block.y, strict=True))
    return list(islice(rows, samples))


def _alike(one: object, other: object) -> bool:
    """Return whether two models have the same parameters, but for the last digits."""
    pairs = zip(
        *[[leaf for leaf in jax.tree.leaves(each) if hasattr(leaf, "dtype")] for each in (one, other)], strict=True
    )
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


def _bits(tree: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
