"""Small problems for the tests, and modules that compute the same thing in different ways."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np

import anabranch as ab
import reference
from anabranch.core.layers import MLP
from anabranch.streams.base import Stream


class Waiting(Stream):
    """Gives its samples, then waits for more, as a stream does that reads from a network; Ctrl-C comes meanwhile."""

    def __init__(self, stream):
        self.stream, self.widths, self.classes = stream, stream.widths, stream.classes

    def blocks(self):
        yield from self.stream.blocks()
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()


class Plain(eqx.Module):
    """A perceptron that no one recognises as products with vectors: its gradient takes the general path."""

    weights: list[jax.Array]
    biases: list[jax.Array]
    relu_last: bool = eqx.field(static=True)

    def __call__(self, x):
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (x[:, None] * weight).sum(axis=0) + bias
            x = jax.nn.relu(x) if self.relu_last or i + 1 < len(self.weights) else x
        return x


class Linears(eqx.Module):
    """A perceptron of Equinox's own layers, whose weights are (out, in)."""

    layers: list[eqx.nn.Linear]
    relu_last: bool = eqx.field(static=True)

    def __call__(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = jax.nn.relu(x) if self.relu_last or i + 1 < len(self.layers) else x
        return x


def _array(numbers: np.ndarray) -> jax.Array:
    """The numbers in JAX's precision of the moment; ``jnp.asarray`` would compile a program for each shape."""
    return jax.device_put(numbers)


def filled(make: Callable[[], eqx.Module], seed: int = 0) -> eqx.Module:
    """What is made, with numbers of NumPy: JAX would compile a program for the draw of each shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: _array(rng.uniform(-0.5, 0.5, leaf.shape)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf,
        eqx.filter_eval_shape(make),
    )


def as_mlp(net: reference.Net) -> MLP:
    sizes = [net.weights[0].shape[0], *(w.shape[1] for w in net.weights)]
    mlp = eqx.filter_eval_shape(MLP, sizes, relu_last=net.relu_last, key=jax.random.key(0))  # compiles nothing
    arrays = [_array(a) for pair in zip(net.weights, net.biases, strict=True) for a in pair]
    return jax.tree.unflatten(jax.tree.structure(mlp), arrays)


def as_plain(net: reference.Net) -> Plain:
    return Plain([_array(w) for w in net.weights], [_array(b) for b in net.biases], net.relu_last)


def as_linears(net: reference.Net) -> Linears:
    layers = []
    for weight, bias in zip(net.weights, net.biases, strict=True):
        layer = eqx.filter_eval_shape(eqx.nn.Linear, *weight.shape, key=jax.random.key(0))
        layers.append(eqx.tree_at(lambda m: (m.weight, m.bias), layer, (_array(weight.T), _array(bias))))
    return Linears(layers, net.relu_last)


MODULES = {"outer": as_mlp, "general": as_plain, "equinox": as_linears}


def arrays_of(net: reference.Net) -> list[np.ndarray]:
    return [a for pair in zip(net.weights, net.biases, strict=True) for a in pair]


def small_problem(seed=0, rounds=60, clients=3, classes=3, **kwargs):
    """A small float32 model, its stream, and who is activated."""
    rng = np.random.default_rng(seed)
    options = {"depth_client": 1, "depth_server": 2, **kwargs}
    nets, server, xs, y = reference.random_problem(rng, clients=clients, rounds=rounds, classes=classes, **options)
    model = ab.SplitModel([as_mlp(net) for net in nets], as_mlp(server))
    active = rng.random((rounds, clients)) < 0.5
    return model, ab.streams.from_arrays([x.astype(np.float32) for x in xs], y, classes=classes), active


def bits(model: ab.SplitModel) -> dict[str, bytes]:
    """Every array of a model, to the last bit."""
    return {name: array.tobytes() for name, array in model.to_arrays().items()}


def run(problem, **kwargs):
    """Trains on a problem, with its recorded activations where it has some."""
    model, stream, active = problem
    options = {
        "activation": active if active is None else ab.Recorded(active),
        "learning_rate": 0.1,
        "keep_errors": True,
        "chunk": 32,
        **kwargs,
    }
    return ab.simulate(model, stream, **options)
