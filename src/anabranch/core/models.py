"""A split model: M bottom models, one at each client, and the server's top model; the paper's three, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.core.compiling import compiled
from anabranch.core.layers import MLP, Dense, Projection, Sum
from anabranch.core.random_keys import SEEDS, initial_key
from anabranch.errors import ModelError, nearest

_DTYPES = {jnp.dtype("float32"), jnp.dtype("float64")}


class Group(NamedTuple):
    """Consecutive clients of equal shape, which are computed in one batched product."""

    first: int
    size: int
    """How many clients."""
    features: int
    """How many features each of them holds."""
    embedding: int
    """How many elements each of their embeddings has."""


class SplitModel(eqx.Module):
    """M bottom models and a top model.

    ``f(w_0, w_1 .. w_M; x) = server([h_1(w_1; x_1), .., h_M(w_M; x_M)])`` (Equation 1).

    Args:
        clients: any Equinox modules; each maps its feature vector (d_m,) to an embedding (e_m,).
        server: any Equinox module; maps the concatenated embeddings (Σ e_m,) to logits (c,). The loss applies the
            softmax, so the module must not.
        widths: how many features each client holds; needed only to call a model whose clients do not begin with a dense
            layer. A trained model knows them from its stream.

    Raises:
        ModelError: where there are no clients, or a part is not an Equinox module.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> model = SplitModel(
    ...     clients=[eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.MLP(2, 4, 8, 1, key=keys[1])],
    ...     server=eqx.nn.MLP(8, 2, 16, 1, key=keys[2]),
    ... )
    >>> model(jnp.ones(5)).shape, model([jnp.ones((7, 3)), jnp.ones((7, 2))]).shape
    ((2,), (7, 2))
    >>> sorted(model.to_arrays())[:2]
    ['client1.bias', 'client1.weight']
    """

    clients: tuple[eqx.Module, ...]
    server: eqx.Module
    widths: tuple[int, ...] | None = eqx.field(static=True)
    """How many features each client holds; None if that is not known yet."""

    def __init__(self, clients: Sequence[eqx.Module], server: eqx.Module, widths: Sequence[int] | None = None) -> None:
        self.clients = tuple(clients)
        self.server = server
        if not self.clients:
            raise ModelError("a split model needs at least one client")
        for name, part in zip(_party_names(len(self.clients)), [server, *self.clients], strict=True):
            if not isinstance(part, eqx.Module) or not callable(part):
                raise ModelError(f"{name}: {type(part).__name__} is not a callable Equinox module (equinox.Module)")
            dtypes = {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(part, eqx.is_inexact_array))}
            if not dtypes:
                raise ModelError(f"{name}: {type(part).__name__} holds no floating-point array, so nothing to train")
            if dtypes - _DTYPES:
                raise ModelError(
                    f"{name}: {type(part).__name__} holds {', '.join(sorted(map(str, dtypes - _DTYPES)))} arrays, but "
                    "parties compute in float32 or float64; for shorter messages see wire_dtype"
                )
        taken = [_input_width(client) for client in self.clients] if widths is None else list(widths)
        self.widths = tuple(taken) if None not in taken else None  # type: ignore[arg-type]

    def __call__(self, x: Any, widths: Sequence[int] | None = None) -> jax.Array:
        """Return the logits (c,) of one sample, or (n, c) of a batch.

        Args:
            x: a list with one array for each client, (d_m,) or (n, d_m); or their features side by side in one array,
                (Σ d_m,) or (n, Σ d_m).
            widths: how many features each client holds, if the model does not know that.

        Raises:
            ModelError: if the number of clients or of features does not fit.
        """
        parts = self._parts(x, self.widths if widths is None else tuple(widths))
        return self._logits(parts) if parts[0].ndim == 1 else jax.vmap(self._logits)(parts)

    def predict_proba(self, x: Any) -> NDArray[np.floating[Any]]:
        """Return the probability of each class, (c,) for one sample or (n, c) for a batch, given as for a call."""
        return np.asarray(_probabilities(self, self._parts(x, self.widths)))

    def predict(self, x: Any) -> Any:
        """Return the most probable class of one sample, or those (n,) of a batch, given as for a call.

        >>> model = linear((1, 2), 3).with_arrays(
        ...     {"client1.weight": np.ones((1, 3)), "client2.weight": np.ones((2, 3)), "server.bias": [0, 2, 1]}
        ... )
        >>> model.predict([0.5, 1, 1]), model.predict(np.zeros((4, 3)))
        (1, array([1, 1, 1, 1]))
        """
        best = self.predict_proba(x).argmax(-1)
        return int(best) if best.ndim == 0 else best

    def _logits(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Return the logits (c,) of one sample, of which each client has its part."""
        embeddings = [_apply(client, part) for client, part in zip(self.clients, parts, strict=True)]
        return _apply(self.server, jnp.concatenate(embeddings))

    def _parts(self, x: Any, widths: tuple[int, ...] | None) -> list[jax.Array]:
        """What each client has of one sample (d_m,), or of a batch (n, d_m), in the model's precision."""
        dtype = jax.tree.leaves(eqx.filter(self.server, eqx.is_inexact_array))[0].dtype
        if isinstance(x, list | tuple) and any(np.ndim(part) for part in x):
            parts = [jnp.asarray(part, dtype) for part in x]
        else:
            whole = jnp.asarray(x, dtype)
            if widths is None:
                raise ModelError(
                    f"x has shape {whole.shape}, and the model does not know how many features each client holds: give "
                    "a list with one array for each client, or widths"
                )
            if not whole.ndim or whole.shape[-1] != sum(widths):
                raise ModelError(f"x has shape {whole.shape}, but the clients hold {sum(widths)} features together")
            parts = [whole[..., a:b] for a, b in pairwise(np.cumsum([0, *widths]).tolist())]
        if len(parts) != len(self.clients):
            raise ModelError(
                f"x is a list of {len(parts)}, but the model has {len(self.clients)} clients: give one array for each, "
                "or an array with all clients' features side by side"
            )
        shapes = [part.shape for part in parts]
        if len({shape[:-1] for shape in shapes}) > 1 or len(shapes[0]) not in (1, 2):
            raise ModelError(f"x has arrays of shapes {shapes}, but all are (d_m,), or all are (n, d_m) with one n")
        if widths is not None and tuple(shape[-1] for shape in shapes) != widths:
            raise ModelError(f"x has arrays of shapes {shapes}, but the clients hold {widths} features")
        return parts

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return every trained array by name, such as ``client1.layers.0.weight``; dense weights are (in, out)."""
        return {name: np.ascontiguousarray(_flip(np.asarray(leaf), turned)) for name, leaf, turned in _named(self)}

    def with_arrays(self, arrays: Mapping[str, Any]) -> SplitModel:
        """Return a model of the same structure with these arrays in it, named as in `to_arrays`.

        Raises:
            ModelError: where a name is missing or unknown, or a shape differs.
        """
        named = {name: (leaf, turned) for name, leaf, turned in _named(self)}
        for name in arrays:
            if name not in named:
                raise ModelError(f"the model has no array {name!r}.{nearest(name, named)}")
        for name in named:
            if name not in arrays:
                raise ModelError(f"array {name!r} is missing")
        leaves = []
        for name, (leaf, turned) in named.items():
            new = np.asarray(arrays[name])
            shape = np.shape(_flip(leaf, turned))
            if new.shape != shape:
                raise ModelError(f"array {name!r} has shape {new.shape}, but the model's has {shape}")
            leaves.append(jnp.asarray(_flip(new, turned), leaf.dtype))
        trained, rest = eqx.partition(self, eqx.is_inexact_array)
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(trained), leaves), rest)

    def layout(self, widths: Sequence[int]) -> tuple[Group, ...]:
        """Return the clients in groups, for samples split into ``widths``.

        Raises:
            ModelError: where the number of clients or of features does not fit, or an output is not a vector.
        """
        if len(widths) != len(self.clients):
            raise ModelError(
                f"the model has {len(self.clients)} clients, but the stream splits its features among {len(widths)}"
            )
        groups: list[Group] = []
        for m, (client, width) in enumerate(zip(self.clients, widths, strict=True)):
            embedding = output_width(client, width, f"client {m + 1}", "features")
            if groups and (groups[-1].features, groups[-1].embedding) == (width, embedding):
                last = groups[-1]
                if _alike(self.clients[last.first], client):
                    groups[-1] = last._replace(size=last.size + 1)
                    continue
            groups.append(Group(m, 1, width, embedding))
        return tuple(groups)

    def classes(self, layout: Sequence[Group]) -> int:
        """Return how many classes the server tells apart."""
        total = sum(group.size * group.embedding for group in layout)
        return output_width(self.server, total, "server", "elements of the concatenated embeddings")


def _apply(module: eqx.Module, x: jax.Array) -> jax.Array:
    """Return the module's output for one vector."""
    assert callable(module)
    return module(x)


@compiled
def _probabilities(model: SplitModel, parts: list[jax.Array]) -> jax.Array:
    logits = model._logits(parts) if parts[0].ndim == 1 else jax.vmap(model._logits)(parts)
    return jax.nn.softmax(logits)


def output_width(module: eqx.Module, width: int, name: str, what: str) -> int:
    """Return the length of the vector that ``module`` returns for a vector of ``width``.

    Raises:
        ModelError: where it does not take such a vector, or does not return one.
    """
    dtype = jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))[0].dtype
    try:
        output = eqx.filter_eval_shape(_apply, module, jax.ShapeDtypeStruct((width,), dtype))
    except Exception as error:  # whatever the person's module raises
        lines = str(error).strip().splitlines() or [type(error).__name__]
        taken = _input_width(module)
        reason = f"its first dense layer takes {taken}" if taken not in (None, width) else lines[0]
        raise ModelError(f"{name}: the model does not take {width} {what}: {reason}") from error
    if getattr(output, "ndim", None) != 1:
        raise ModelError(f"{name}: the model returns {output}, but a vector is needed")
    return output.shape[0]


def _input_width(module: eqx.Module) -> int | None:
    """Return how many numbers the module's first dense layer takes, where it has one."""
    for node in jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, Dense | eqx.nn.Linear)):
        if isinstance(node, Dense | eqx.nn.Linear):
            return node.weight.shape[0] if isinstance(node, Dense) else node.weight.shape[1]
    return None


def _party_names(clients: int) -> list[str]:
    """Return ``['server', 'client 1', ..]``."""
    return ["server", *(f"client {m + 1}" for m in range(clients))]


def imnist(clients: int = 4, *, seed: int = 0) -> SplitModel:
    """Return the paper's i-MNIST model: clients of one ReLU layer, 784/M → 64, and a server M·64 → 256 → 10.

    Features are split as equally as possible; where 784 does not divide, the first clients hold one more. Each party
    draws its own initial parameters from its own key.

    Args:
        clients: M, from 1 to 784.
        seed: where the parties' keys come from.

    >>> imnist(clients=4).to_arrays()["client1.layers.0.weight"].shape
    (196, 64)
    """
    clients = whole("clients", clients, 1, 784, what=": i-MNIST has 784 features to split")
    widths = [784 // clients + (m < 784 % clients) for m in range(clients)]
    return _perceptrons([(w, 64) for w in widths], [256, 10], relu_last=True, seed=seed)


def susy(*, seed: int = 0) -> SplitModel:
    """Return the paper's SUSY model: two clients of 9 features, 32, 64, 98 → 128, and a server 256, 128, 64, 32 → 2."""
    return _perceptrons([(9, 32, 64, 98, 128)] * 2, [256, 128, 64, 32, 2], relu_last=False, seed=seed)


def higgs(*, seed: int = 0) -> SplitModel:
    """Return the paper's HIGGS model: as `susy`, with two clients of 14 features."""
    return _perceptrons([(14, 32, 64, 98, 128)] * 2, [256, 128, 64, 32, 2], relu_last=False, seed=seed)


def mlp(
    widths: Sequence[int],
    classes: int,
    *,
    hidden: Sequence[int] = (32,),
    embedding: int = 16,
    server: Sequence[int] = (64,),
    seed: int = 0,
) -> SplitModel:
    """Return perceptrons for any stream: clients ``d_m``, ``hidden`` → ``embedding``, and a server ``server`` →
    ``classes``.

    Args:
        widths: how many features each client holds, as a stream's ``widths``.
        classes: how many classes there are, as a stream's ``classes``.
        hidden: the widths of each client's hidden layers.
        embedding: the elements of each client's embedding.
        server: the widths of the server's hidden layers.
        seed: where the parties' keys come from.

    >>> mlp((3, 2), 2).to_arrays()["server.layers.0.weight"].shape
    (32, 64)
    """
    _check_sizes(widths=widths, hidden=hidden, embedding=[embedding], server=server, classes=[classes])
    return _perceptrons([(w, *hidden, embedding) for w in widths], [*server, classes], relu_last=False, seed=seed)


def linear(widths: Sequence[int], classes: int) -> SplitModel:
    """Multinomial logistic regression, split: ``f`` is convex in all parties' parameters together.

    ``logits = w_0 + Σ_m x_m W_m``. A client's embedding is ``h_m = x_m W_m``, one element a class; the server adds the
    M embeddings up, and its own bias ``w_0`` (classes,). It is a model that the paper's regret analysis of the convex
    case (its appendix) speaks of.

    Every parameter starts from zero. The minimum does not depend on the start, and the distance to the comparator,
    which the regret bound has in it, is then ``‖w*‖``, the comparator's own norm.

    Args:
        widths: how many features each client holds, as a stream's ``widths``.
        classes: how many classes there are, as a stream's ``classes``.

    >>> {name: array.shape for name, array in linear((3, 2), 4).to_arrays().items()}
    {'client1.weight': (3, 4), 'client2.weight': (2, 4), 'server.bias': (4,)}
    """
    _check_sizes(widths=widths, classes=[classes])
    return SplitModel([Projection(width, classes) for width in widths], Sum(classes), widths)


def _check_sizes(*, widths: Sequence[int], **others: Sequence[int]) -> None:
    if not widths:
        raise ModelError("widths is empty: give the number of features of at least one client")
    for name, given in {"widths": widths, **others}.items():
        for size in given:
            whole(name, size, 1)


def _perceptrons(clients: Sequence[Sequence[int]], server: Sequence[int], *, relu_last: bool, seed: int) -> SplitModel:
    seed = whole("seed", seed, 0, SEEDS - 1)
    bottoms = [perceptron(sizes, relu_last=relu_last, seed=seed, index=m) for m, sizes in enumerate(clients, 1)]
    top = perceptron([sum(sizes[-1] for sizes in clients), *server], relu_last=False, seed=seed, index=0)
    return SplitModel(bottoms, top)


def perceptron(sizes: Sequence[int], *, relu_last: bool, seed: int, index: int) -> MLP:
    """Return one party's perceptron, with the initial parameters that it draws by itself: index 0 is the server.

    >>> bottom, model = perceptron((3, 32, 16), relu_last=False, seed=0, index=1), mlp((3, 2), 2)
    >>> bool((bottom.layers[0].weight == model.clients[0].layers[0].weight).all())
    True
    """
    return MLP(sizes, relu_last=relu_last, key=initial_key(seed, index))


def _alike(a: eqx.Module, b: eqx.Module) -> bool:
    """Return whether two modules differ in the values of their arrays only."""

    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf

    return bool(eqx.tree_equal(jax.tree.map(shape, a), jax.tree.map(shape, b)))


def _named(model: SplitModel) -> list[tuple[str, jax.Array, bool]]:
    """Return each trained array's name, value, and whether it is a weight stored (out, in)."""
    linears = lambda node: isinstance(node, eqx.nn.Linear)  # noqa: E731
    turned = {
        id(node.weight) for node in jax.tree.leaves(model, is_leaf=linears) if linears(node) and node.weight.ndim == 2
    }
    paths, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(model, eqx.is_inexact_array))
    return [(_path_name(path), leaf, id(leaf) in turned) for path, leaf in paths]


def _path_name(path: tuple[Any, ...]) -> str:
    names = [str(getattr(entry, "name", getattr(entry, "idx", getattr(entry, "key", entry)))) for entry in path]
    if names[0] == "clients":
        names = [f"client{int(names[1]) + 1}", *names[2:]]
    return ".".join(names)


def _flip(array: Any, turned: bool) -> Any:
    return array.T if turned else array


__all__ = ["MLP", "Dense", "SplitModel", "higgs", "imnist", "linear", "mlp", "susy"]
