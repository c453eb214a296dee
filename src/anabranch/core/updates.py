"""What a party remembers, and what it steps along: OGD, DLR and SLR.

An update answers two questions for a party, state in and state out. ``recall``: what does the party evaluate in this
round, today's sample or a window of samples? ``smooth``: along which direction does it step, given the gradient of
what it evaluated? Everything else about a round is the same for all three: see `anabranch.core.party` and
`anabranch.core.round`.

An update's numbers are leaves of a pytree, so a compiled program takes them as arguments: another decay compiles
nothing. Its window length is static, since it is the shape of a buffer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from anabranch.checks import whole
from anabranch.core.gradients import dense
from anabranch.core.types import Flag, Round, Tree
from anabranch.errors import ConfigError

_LONGEST = 10_000_000
"""A longer window would need more memory than a machine has."""


class Window(NamedTuple):
    """The last ``l`` gradients of one party and their weighted sum."""

    ring: Tree
    """Each leaf (l + 1, ...): the gradient of round ``t`` in slot ``t mod (l + 1)``, outer products as pairs."""
    total: Tree
    """``Σ_{i<l} α^i g^{t−i}``, written out."""


class Update(eqx.Module):
    """How the parties remember and step; the base of `OGD`, `DLR`, `SLR` and of updates of your own.

    An update of your own writes `init_window` and `smooth`. Both are traced by JAX: state goes in and comes out, and no
    branch depends on what an array holds. A gradient is a tree of arrays, one for each trained array of the party, of
    the same shape; ``None`` stands for what is not trained. A field that holds a number is an argument of the compiled
    program; one that decides on a shape or a branch is ``equinox.field(static=True)``.

    >>> class Momentum(Update):
    ...     beta: float = 0.9
    ...     def init_window(self, gradient, *, server):
    ...         return jax.tree.map(jnp.zeros_like, gradient)
    ...     def smooth(self, window, gradient, t):
    ...         mean = jax.tree.map(lambda m, g: self.beta * m + (1 - self.beta) * g, window, gradient)
    ...         return mean, mean
    >>> gradient = [jnp.array([1.0, 2.0])]
    >>> window = Momentum(0.5).init_window(gradient, server=True)
    >>> Momentum(0.5).smooth(window, gradient, 0)[1]
    [Array([0.5, 1. ], dtype=float32)]
    """

    outer_products: ClassVar[bool] = False
    """Whether the update takes the gradient of a matrix as an `anabranch.core.gradients.Outer` if it is one: a window
    of them takes less memory. A subclass with an `init_window` or a `smooth` of its own says so itself."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "outer_products" not in vars(cls) and {"init_window", "smooth"} & vars(cls).keys():
            cls.outer_products = False

    @property
    def rows(self) -> int | None:
        """How many samples a party evaluates a round: a window of them, or None for one sample without an axis."""
        return None

    def sent_rows(self, t: Any) -> Any:
        """Return how many embeddings a client sends in round ``t`` (from 0): what exists, one or up to a window."""
        return np.ones_like(t)

    def init_memory(self, like: Array) -> Array | None:
        """What a party remembers of its inputs (a client's features, the server's labels) before round 0."""
        return None

    def recall(self, memory: Array | None, new: Array, t: Round) -> tuple[Array | None, Array]:
        """Return the memory with this round's input in it, and what the party evaluates."""
        return memory, new

    @abstractmethod
    def init_window(self, gradient: Tree, *, server: bool) -> Any:
        """What a party remembers of its gradients before round 0: any tree of arrays, or None."""

    @abstractmethod
    def smooth(self, window: Any, gradient: Tree, t: Round) -> tuple[Any, Tree]:
        """Return the window with this round's gradient in it, and the direction of the step, written out."""

    def smooth_client(self, window: Any, gradient: Tree, t: Round, active: Flag) -> tuple[Any, Tree]:
        """Return the same for a client; a passive round counts as a gradient of **0**."""
        return self.smooth(window, blank(active, gradient), t)

    can_take_back: ClassVar[bool] = False
    """Whether the update has a `take_back`. Without it a federation's server keeps a copy of each window."""

    def take_back(self, window: Any, t: Round) -> Any:
        """Return the window without the gradient of round ``t``, which was pushed last and was not finite.

        A federation's server goes on after such a round. An update that has this sets ``can_take_back = True``.
        """
        raise NotImplementedError

    def is_at_rest(self, window: Any, pushed: Any) -> Flag:
        """Return whether further zeros change nothing, given a window and the same window with one more **0**.

        A client that was passive for thousands of rounds then stops pushing zeros. The default is never at rest.
        """
        return jnp.bool_(False)

    def newest(self, evaluated: Array, t: Round) -> Array:
        """Of what the party evaluated, this round's own."""
        return evaluated

    def exists(self, t: Round) -> Array | bool:
        """Which rows of what the party evaluates exist by round ``t``."""
        return True

    def returned(self, derivatives: Array) -> Array:
        """What the server returns, given ``∂f/∂h``."""
        return derivatives


class DLR(Update):
    r"""Dynamic local regret: step along the exponentially weighted window of past gradients.

    ``w ← w − η (1/W) Σ_{i<l} α^i g^{t−i}`` with ``W = Σ_{i<l} α^i``, each ``g^{t−i}`` taken at the parameters of its
    own round (Equations 3 and 4, Algorithm 1). ``W`` is constant: a gradient from before round 0 counts as 0.

    The sum follows ``S ← α S + g^t − α^l g^{t−l}``, so its cost does not depend on ``l``.

    Args:
        window: the window length ``l``, at least 1; with 1 it is `OGD`.
        decay: the attenuation coefficient ``α``, strictly between 0 and 1.
        client_window: whether clients smooth too (Algorithm 1). Without, only the server keeps a window and returns
            ``v_m = ∂S/∂h_m = (1/W) ∂f/∂h_m`` (Algorithm 3, the synchronous version).

    Raises:
        ConfigError: where ``window`` or ``decay`` is out of range.

    >>> DLR(window=3, decay=0.5)
    DLR(window=3, decay=0.5, client_window=True)
    >>> round(1 / DLR(window=3, decay=0.5).scale, 6)    # W = 1 + 1/2 + 1/4
    1.75
    """

    outer_products: ClassVar[bool] = True
    can_take_back: ClassVar[bool] = True
    window: int = eqx.field(static=True)
    decay: float
    client_window: bool = eqx.field(static=True)
    oldest: float
    """``α^l``: the weight of the gradient that leaves the window."""
    scale: float
    """``1/W``."""

    def __init__(self, window: int = 10, decay: float = 0.95, *, client_window: bool = True) -> None:
        self.window = whole("update DLR: window", window, 1, _LONGEST)
        if not isinstance(decay, int | float | np.floating) or not 0 < decay < 1:
            raise ConfigError(
                f"update DLR: decay is {decay!r}, but the attenuation coefficient α lies strictly between 0 and 1"
            )
        self.decay = float(decay)
        self.client_window = bool(client_window)
        self.oldest = self.decay**self.window
        # W = (1 − α^l) / (1 − α), which loses no digits where α is near 1 in this form.
        self.scale = (self.decay - 1) / math.expm1(self.window * math.log1p(self.decay - 1))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(window={self.window}, decay={self.decay}, client_window={self.client_window})"

    def init_window(self, gradient: Tree, *, server: bool) -> Window | None:
        if self.window == 1 or not (server or self.client_window):
            return None  # W is 1, or the party steps along what it was given: nothing to remember
        ring = jax.tree.map(lambda g: jnp.zeros((self.window + 1, *g.shape), g.dtype), gradient)
        return Window(ring, jax.tree.map(jnp.zeros_like, dense(gradient)))

    def smooth(self, window: Window | None, gradient: Tree, t: Round) -> tuple[Window | None, Tree]:
        if window is None:
            return None, dense(gradient)
        # Writing slot t before reading slot t − l lets the compiler update the ring in place: with l slots, read
        # first, it copies the whole ring each round.
        slots = self.window + 1
        ring = jax.tree.map(lambda r, g: jax.lax.dynamic_update_index_in_dim(r, g, t % slots, 0), window.ring, gradient)
        leaving = jax.tree.map(lambda r: jax.lax.dynamic_index_in_dim(r, (t + 1) % slots, 0, keepdims=False), ring)
        total = jax.tree.map(
            lambda s, g, old: cast(self.decay, s) * s + g - cast(self.oldest, s) * old,
            window.total,
            dense(gradient),
            dense(leaving),
        )
        return Window(ring, total), jax.tree.map(lambda s: cast(self.scale, s) * s, total)

    def is_at_rest(self, window: Window, pushed: Window) -> Flag:
        empty = [~leaf.any() for leaf in jax.tree.leaves(window.ring)]
        same = [(a == b).all() for a, b in zip(*map(jax.tree.leaves, (window.total, pushed.total)), strict=True)]
        return jnp.stack([*empty, *same]).all()

    def take_back(self, window: Window, t: Round) -> Window:
        """Return the window before round ``t``'s gradient was pushed.

        The sum is computed anew, so nothing of that gradient is left.
        """
        slots = self.window + 1
        ring = jax.tree.map(lambda r: r.at[t % slots].set(0), window.ring)

        def add(age: Array, total: Tree) -> Tree:  # of the gradients of rounds t − 1 .. t − l
            gradient = jax.tree.map(lambda r: r[(t - 1 - age) % slots], ring)
            return jax.tree.map(lambda s, g: s + cast(self.decay, s) ** age * g, total, dense(gradient))

        total = jax.lax.fori_loop(0, self.window, add, jax.tree.map(jnp.zeros_like, window.total))
        return Window(ring, total)

    def returned(self, derivatives: Array) -> Array:
        return derivatives if self.client_window else cast(self.scale, derivatives) * derivatives


class OGD(DLR):
    """Online gradient descent: step along this round's gradient, ``w ← w − η g^t``; `DLR` with a window of 1.

    >>> OGD()
    OGD()
    """

    def __init__(self) -> None:
        super().__init__(window=1, decay=0.5)

    def __repr__(self) -> str:
        return "OGD()"


class ActiveWindow(NamedTuple):
    """A client's window under `ActiveDLR`."""

    gradients: Window
    """The ring holds the gradient of the client's ``n``-th activated round in slot ``n mod (l + 1)``."""
    pushed: Array
    """The number of gradients that were pushed, a scalar."""


class ActiveDLR(DLR):
    """`DLR` whose clients remember their last ``l`` activated rounds; a passive round pushes nothing.

    Under `DLR` a passive round pushes **0**, and all weights in the window fall by a factor ``α``. Here a passive round
    leaves the window as it is, so each gradient of a client is applied ``l`` times with weights that add up to 1. The
    server is active in every round, and its window is that of `DLR`.

    Only the simulator has this update: it answers a question about the paper.

    Raises:
        ConfigError: where ``window`` or ``decay`` is out of range; a window of 1 is `OGD`.

    >>> ActiveDLR(window=3, decay=0.5)
    ActiveDLR(window=3, decay=0.5)
    """

    def __init__(self, window: int = 10, decay: float = 0.95) -> None:
        super().__init__(whole("update ActiveDLR: window", window, 2, _LONGEST), decay)

    def __repr__(self) -> str:
        return f"ActiveDLR(window={self.window}, decay={self.decay})"

    def init_window(self, gradient: Tree, *, server: bool) -> Any:
        window = super().init_window(gradient, server=server)
        assert window is not None
        return window if server else ActiveWindow(window, jnp.zeros((), jnp.int32))

    def smooth_client(self, window: Any, gradient: Tree, t: Round, active: Flag) -> tuple[Any, Tree]:
        gradients, direction = super().smooth(window.gradients, blank(active, gradient), window.pushed)
        assert gradients is not None
        # A passive round wrote zeros into the slot that the next gradient takes; only the sum must not change.
        total = jax.tree.map(lambda new, old: jnp.where(active, new, old), gradients.total, window.gradients.total)
        pushed = window.pushed + active.astype(jnp.int32)
        return ActiveWindow(Window(gradients.ring, total), pushed), direction


class SLR(Update):
    """Static local regret: step along the mean gradient of the last ``l`` samples at today's parameters.

    ``w ← w − η (1/l) Σ_{i<l} ∇f^{t−i}(w^t)`` (Algorithm 5): a client remembers its last ``l`` inputs, the server its
    last ``l`` labels, and ``l`` embeddings and derivatives cross the wire. Before round ``l`` only what exists is
    sent, and the divisor stays ``l``.

    Args:
        window: the window length ``l``, at least 1; with 1 it is `OGD`.

    Raises:
        ConfigError: where ``window`` is out of range.

    >>> SLR(window=10)
    SLR(window=10)
    """

    window: int = eqx.field(static=True)

    def __init__(self, window: int = 10) -> None:
        self.window = whole("update SLR: window", window, 1, _LONGEST)

    def __repr__(self) -> str:
        return f"SLR(window={self.window})"

    @property
    def rows(self) -> int:
        return self.window

    def sent_rows(self, t: Any) -> Any:
        return (t + 1).clip(max=self.window)

    def init_memory(self, like: Array) -> Array:
        return jnp.zeros((self.window, *like.shape), like.dtype)

    def recall(self, memory: Array | None, new: Array, t: Round) -> tuple[Array, Array]:
        memory = jax.lax.dynamic_update_index_in_dim(memory, new, t % self.window, 0)
        # A row that does not exist yet counts for nothing, but it is computed: today's input is one that is safe.
        exists = self.exists(t).reshape(-1, *[1] * new.ndim)
        return memory, jnp.where(exists, memory, new[None])

    def init_window(self, gradient: Tree, *, server: bool) -> None:
        return None

    def smooth(self, window: Window | None, gradient: Tree, t: Round) -> tuple[None, Tree]:
        return None, jax.tree.map(lambda g: g / self.window, gradient)

    def newest(self, evaluated: Array, t: Round) -> Array:
        return jax.lax.dynamic_index_in_dim(evaluated, t % self.window, 0, keepdims=False)

    def exists(self, t: Round) -> Array:
        return jnp.arange(self.window, dtype=jnp.int32) <= t


def taken(update: Update, gradient: Tree) -> Tree:
    """Return the gradient in the form that the update takes."""
    return gradient if update.outer_products else dense(gradient)


def check_contract(update: Update, trained: Tree) -> None:
    """Refuse an update whose window or direction does not have the shapes that a round needs.

    Args:
        update: any, a person's own too.
        trained: the trained arrays of a party.

    Raises:
        ConfigError: if it does not; the message names the method.
    """
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), trained)
    window = jax.eval_shape(lambda gradient: update.init_window(gradient, server=True), like)
    returned = jax.eval_shape(update.smooth, window, like, jax.ShapeDtypeStruct((), jnp.int32))
    name = f"update {type(update).__name__}: smooth"
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ConfigError(f"{name} returns {returned!r:.60}, but (window, direction) is needed")
    for what, there, wanted, source in (
        ("a window", returned[0], window, "the one of init_window"),
        ("a direction", returned[1], like, "the gradient"),
    ):
        if (given := _shapes(there)) != (needed := _shapes(wanted)):
            different = next((pair for pair in zip(given, needed, strict=False) if pair[0] != pair[1]), None)
            detail = f"{different[0]} for {different[1]}" if different else f"{len(given)} arrays for {len(needed)}"
            raise ConfigError(f"{name} returns {what} of other shapes or types than {source}: {detail}")


def _shapes(tree: Tree) -> list[str]:
    """Return each array's place, type and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves]


def cast(number: float | Array, like: Array) -> Array:
    """Return a hyperparameter in the precision of what it scales."""
    return jnp.asarray(number, like.dtype)


def blank(active: Flag, gradient: Tree) -> Tree:
    """Return the gradient of an activated party, or **0** for a passive one (Algorithm 1: "enqueue 0")."""
    return jax.tree.map(lambda g: jnp.where(active, g, jnp.zeros_like(g)), gradient)
