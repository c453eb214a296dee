"""The algorithms in float64 NumPy, straight from the paper's equations: the oracle that the package is tested against.

It shares no code with the package and is slow on purpose. Backpropagation is written by hand, every past gradient is
kept whole, and every window is summed term by term. Equations, algorithms and sections are those of Wang, Wang, Gu,
Ling, *Event-Driven Online Vertical Federated Learning* (ICLR 2025); ``t`` counts rounds from 0 here.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Net(NamedTuple):
    """An MLP: dense layers, with a ReLU after every layer but the last, and after the last too if ``relu_last``."""

    weights: list[np.ndarray]  # each (in, out)
    biases: list[np.ndarray]  # each (out,)
    relu_last: bool  # True for the i-MNIST client; False for the SUSY and HIGGS clients and for every server


class Outcome(NamedTuple):
    """What T rounds gave."""

    predictions: np.ndarray  # (T,) argmax of the logits
    losses: np.ndarray  # (T,) f^t of the round's own sample, before any update of that round
    logits: np.ndarray  # (T, classes) of the round's sample, when its event happened, before any update of that tick
    clients: list[Net]  # w_1 … w_M after T rounds
    server: Net  # w_0 after T rounds
    gradient: np.ndarray  # (T,) ‖∇f^t(w^t)‖² over all parties
    ideal: np.ndarray  # (T,) ‖∇S_{t,l,α}(w^t)‖² over all parties, passive ones with their true gradients
    applied: np.ndarray  # (T,) squared norm of what the server and the clients in A_t stepped along
    order: list[int]  # (T,) the event, a row of the data, that each round learnt from


class Gradient(NamedTuple):
    """∇ of a scalar with respect to one party's parameters; the same shapes as its ``Net``."""

    weights: list[np.ndarray]  # each (in, out)
    biases: list[np.ndarray]  # each (out,)


class Trace(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    inputs: list[np.ndarray]  # the input of each layer, (in,)
    sums: list[np.ndarray]  # the output of each dense layer, before its ReLU if it has one, (out,)
    output: np.ndarray  # (out,) of the last layer


class Evaluation(NamedTuple):
    """f(w_0, h_1(w_1; x_1), …, h_M(w_M; x_M); y) and its derivatives, all at the same parameters."""

    logits: np.ndarray  # (classes,)
    loss: float  # f
    server_gradient: Gradient  # ∂f/∂w_0
    derivatives: list[np.ndarray]  # v_m = ∂f/∂h_m, each (embedding_m,)
    traces: list[Trace]  # of h_m(w_m; x_m)


def run(
    clients: list[Net],
    server: Net,
    xs: list[np.ndarray],
    y: np.ndarray,
    active: np.ndarray,
    *,
    update: str,
    window: int = 1,
    decay: float = 1.0,
    client_window: bool = True,
    learning_rate: float | tuple[float, float],
    learning_rate_power: float = 0.0,
    delays: list[int] | None = None,
    stored: bool = False,
) -> Outcome:
    """Train for T rounds, one sample a round, and return what happened.

    ``xs[m]`` is (T, d_m), ``y`` (T,) integers, ``active`` (T, M) booleans: ``active[t, m]`` says m ∈ A_t.
    ``learning_rate`` is one number for all parties or (server, client), in round t (from 0) times
    ``(t + 1) ** -learning_rate_power``. ``update`` is one of

    - ``"OGD"``: Algorithm "Online VFL with Online Gradient Descent", stepping only the clients in A_t. ``window``,
      ``decay`` and ``client_window`` mean nothing here;
    - ``"DLR"``: Algorithm 1, or with ``client_window=False`` its synchronous version from the appendix;
    - ``"SLR"``: Algorithm "Event-driven online VFL on Static Local Regret". ``decay`` and ``client_window`` mean
      nothing here;
    - ``"ActiveDLR"``: not in the paper. As Algorithm 1, but a passive client enqueues nothing.

    ``delays[i]`` (T,) says how many ticks after its event the label of sample ``i`` arrives; see ``agenda``. What is
    by sample (``xs``, ``y``, ``active``) goes by the event, and what is by round (windows, rates, the outcome) by the
    order of learning. With ``stored`` the server takes the loss at the embeddings that it predicted the event from,
    and each client pulls the derivatives by those back through its model at the parameters of the round.

    The arguments are left as they were.
    """
    if update not in ("OGD", "DLR", "SLR", "ActiveDLR"):
        raise ValueError(f"update must be 'OGD', 'DLR', 'SLR' or 'ActiveDLR', not {update!r}")
    if window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    rounds, parties = active.shape
    delays = [0] * rounds if delays is None else delays
    if (
        len(clients) != parties
        or len(delays) != rounds
        or len(xs) != parties
        or len(y) != rounds
        or any(len(x) != rounds for x in xs)
    ):
        raise ValueError("clients, xs, y and active do not agree on M or T")

    server_rate, client_rate = learning_rate if isinstance(learning_rate, tuple) else (learning_rate, learning_rate)
    w_0 = float64(server)
    w = [float64(client) for client in clients]
    x = [np.asarray(features, dtype=np.float64) for features in xs]

    server_history: list[Gradient] = []  # every ∇_{w_0} f^t so far, oldest first
    client_history: list[list[Gradient]] = [[] for _ in range(parties)]  # every v_m^t · ∂h_m/∂w_m so far, or 0
    true_history: list[list[Gradient]] = [[] for _ in range(parties)]  # the same with no 0 for a passive round
    logits, losses = [], []
    gradient, ideal, applied = [], [], []

    foreseen: list[tuple[np.ndarray, list[np.ndarray]]] = []  # of each event so far: logits, embeddings
    order: list[int] = []  # the event of each round so far

    for what, event in agenda(delays):
        if what == "event":
            sent = [forward(w_m, features[event]).output for w_m, features in zip(w, x, strict=True)]
            foreseen.append((forward(w_0, np.concatenate(sent)).output, sent))
            continue
        t = len(order)
        order.append(event)
        prediction, sent = foreseen[event]
        logits.append(prediction)

        # The loss f^t and every derivative of this round, at w^t: nobody has stepped yet.
        now = evaluate(w_0, w, [features[event] for features in x], int(y[event]), sent if stored else None)
        losses.append(now.loss)

        true = [chain(w[m], now.traces[m], now.derivatives[m]) for m in range(parties)]
        gradient.append(sum(squared(g) for g in [now.server_gradient, *true]))

        # Each party's direction; None for a passive client, which does not step.
        client_directions: list[Gradient | None] = [None] * parties
        if update == "OGD":
            server_direction = now.server_gradient
            ideal_directions = true
            for m in range(parties):
                if active[event, m]:
                    client_directions[m] = chain(w[m], now.traces[m], now.derivatives[m])

        elif update in ("DLR", "ActiveDLR"):
            server_history.append(now.server_gradient)
            server_direction = smoothed(server_history, window, decay)
            for m in range(parties):
                true_history[m].append(true[m])
            ideal_directions = [smoothed(history, window, decay) for history in true_history]
            for m in range(parties):
                v_m = now.derivatives[m]
                if not client_window:
                    # Only the term i = 0 of S depends on h_m(w_m^t; x_m^t): ∂S/∂h_m = (1/W) ∂f^t/∂h_m.
                    if active[event, m]:
                        client_directions[m] = chain(w[m], now.traces[m], v_m / normaliser(window, decay))
                elif active[event, m]:
                    client_history[m].append(chain(w[m], now.traces[m], v_m))
                    client_directions[m] = smoothed(client_history[m], window, decay)
                elif update == "DLR":
                    client_history[m].append(zero(w[m]))

        else:
            # Every term of F_{t,l} is evaluated afresh at w^t: (1/l) Σ_i ∇f^{t−i}(w_0^t, w^t).
            terms = [
                evaluate(w_0, w, [features[past] for features in x], int(y[past]))
                for past in order[::-1][: min(t + 1, window)]
            ]
            server_direction = zero(w_0)
            for term in terms:
                server_direction = add(server_direction, 1 / window, term.server_gradient)
            ideal_directions = []
            for m in range(parties):
                direction = zero(w[m])
                for term in terms:
                    direction = add(direction, 1 / window, chain(w[m], term.traces[m], term.derivatives[m]))
                ideal_directions.append(direction)
                if active[event, m]:
                    client_directions[m] = direction

        ideal.append(sum(squared(g) for g in [server_direction, *ideal_directions]))
        applied.append(sum(squared(g) for g in [server_direction, *client_directions] if g is not None))

        # Every direction above was taken at w^t; only now do the parties move to w^{t+1}.
        fallen = 1 / (t + 1) ** learning_rate_power
        w_0 = step(w_0, fallen * server_rate, server_direction)
        w = [
            w_m if direction is None else step(w_m, fallen * client_rate, direction)
            for w_m, direction in zip(w, client_directions, strict=True)
        ]

    table = np.array(logits).reshape(rounds, server.biases[-1].size)
    return Outcome(
        table.argmax(axis=1), np.array(losses), table, w, w_0,
        np.array(gradient), np.array(ideal), np.array(applied), order,
    )  # fmt: skip


def agenda(delays: list[int]) -> Iterator[tuple[str, int]]:
    """What happens, tick by tick: event ``i`` in tick ``i``; then the labels of this tick, that of event ``j`` in tick
    ``j + delays[j]``, in the order of their events. Labels go on coming after the last event."""
    for tick in range(len(delays) + max(delays, default=0)):
        if tick < len(delays):
            yield "event", tick
        for j, delay in enumerate(delays):
            if j + delay == tick:
                yield "label", j


# Windows


def normaliser(window: int, decay: float) -> float:
    """W = Σ_{i<l} α^i, the same while the window fills (definition of S_{t,l,α})."""
    return sum(decay**i for i in range(window))


def smoothed(history: list[Gradient], window: int, decay: float) -> Gradient:
    """(1/W) Σ_{i<l} α^i g^{t−i}, where g^t is the last of ``history`` and a gradient before the first is 0.

    Eq. (server_partial_derivative) with g = ∇_{w_0} f, Eq. (client_partial_derivative) with g = v_m · ∂h_m/∂w_m.
    """
    t = len(history) - 1
    total = zero(history[t])
    for i in range(window):
        if t - i >= 0:
            total = add(total, decay**i, history[t - i])
    return add(zero(total), 1 / normaliser(window, decay), total)


# One sample


def evaluate(
    server: Net, clients: list[Net], sample: list[np.ndarray], label: int, sent: list[np.ndarray] | None = None
) -> Evaluation:
    """f of one sample, ∂f/∂w_0 and every v_m = ∂f/∂h_m (Section "Client update"); at ``sent``, where it is given, in
    place of the clients' embeddings."""
    traces = [forward(client, x_m) for client, x_m in zip(clients, sample, strict=True)]
    top = forward(server, np.concatenate([trace.output for trace in traces] if sent is None else sent))
    loss, d_logits = cross_entropy(top.output, label)
    server_gradient, d_embeddings = backward(server, top, d_logits)

    derivatives = []
    start = 0
    for trace in traces:
        end = start + trace.output.size
        derivatives.append(d_embeddings[start:end])
        start = end
    return Evaluation(top.output, loss, server_gradient, derivatives, traces)


def chain(client: Net, trace: Trace, v_m: np.ndarray) -> Gradient:
    """v_m · ∂h_m/∂w_m, one term of Eq. (client_partial_derivative)."""
    gradient, _ = backward(client, trace, v_m)
    return gradient


def cross_entropy(logits: np.ndarray, label: int) -> tuple[float, np.ndarray]:
    """−log softmax(z)_y and its gradient in z, softmax(z) − onehot(y)."""
    shifted = logits - logits.max()
    log_softmax = shifted - np.log(np.exp(shifted).sum())
    onehot = np.zeros_like(logits)
    onehot[label] = 1.0
    return float(-log_softmax[label]), np.exp(log_softmax) - onehot


def forward(net: Net, x: np.ndarray) -> Trace:
    """z_k = a_k W_k + b_k and a_{k+1} = ReLU(z_k), or z_k where layer k has no ReLU."""
    inputs, sums = [], []
    a = x
    for k in range(len(net.weights)):
        inputs.append(a)
        z = a @ net.weights[k] + net.biases[k]
        sums.append(z)
        a = np.maximum(z, 0.0) if has_relu(net, k) else z
    return Trace(inputs, sums, a)


def backward(net: Net, trace: Trace, d_output: np.ndarray) -> tuple[Gradient, np.ndarray]:
    """From ∂f/∂output: ∂f/∂W_k = a_k ⊗ δ_k, ∂f/∂b_k = δ_k, and ∂f/∂input. ReLU'(0) = 0."""
    d_weights, d_biases = [], []
    d_a = d_output
    for k in reversed(range(len(net.weights))):
        delta = d_a * (trace.sums[k] > 0.0) if has_relu(net, k) else d_a
        d_weights.append(trace.inputs[k][:, None] * delta[None, :])
        d_biases.append(delta)
        d_a = net.weights[k] @ delta
    return Gradient(d_weights[::-1], d_biases[::-1]), d_a


def has_relu(net: Net, k: int) -> bool:
    """Whether a ReLU follows layer k."""
    return k < len(net.weights) - 1 or net.relu_last


# Arithmetic on parameters


def float64(net: Net) -> Net:
    """A copy in float64."""
    return Net(
        [np.array(weight, dtype=np.float64) for weight in net.weights],
        [np.array(bias, dtype=np.float64) for bias in net.biases],
        net.relu_last,
    )


def zero(like: Net | Gradient) -> Gradient:
    """The gradient that a passive client enqueues (Algorithm 1), and where every sum begins."""
    return Gradient([np.zeros_like(weight) for weight in like.weights], [np.zeros_like(bias) for bias in like.biases])


def add(total: Gradient, factor: float, term: Gradient) -> Gradient:
    """total + factor · term."""
    return Gradient(
        [a + factor * b for a, b in zip(total.weights, term.weights, strict=True)],
        [a + factor * b for a, b in zip(total.biases, term.biases, strict=True)],
    )


def squared(gradient: Gradient) -> float:
    """‖g‖²"""
    return float(sum((array**2).sum() for array in [*gradient.weights, *gradient.biases]))


def step(net: Net, learning_rate: float, direction: Gradient) -> Net:
    """w − η · direction."""
    return Net(
        [a - learning_rate * b for a, b in zip(net.weights, direction.weights, strict=True)],
        [a - learning_rate * b for a, b in zip(net.biases, direction.biases, strict=True)],
        net.relu_last,
    )


# Problems to try it on


def random_problem(
    rng: np.random.Generator, *, clients: int, rounds: int, classes: int, depth_client: int, depth_server: int
) -> tuple[list[Net], Net, list[np.ndarray], np.ndarray]:
    """Small random nets and a random stream: ``(clients, server, xs, y)``, ready for ``run``.

    A depth counts dense layers and is at least 1. Clients are uneven: each has 1 to 5 features, an embedding of 1 to
    4 and hidden layers of 1 to 6, drawn apart. ``relu_last`` is False; ``net._replace(relu_last=True)`` turns it on.
    """
    features = [int(rng.integers(1, 6)) for _ in range(clients)]
    embeddings = [int(rng.integers(1, 5)) for _ in range(clients)]
    bottoms = [
        random_net(rng, [d_m, *hidden(rng, depth_client), e_m]) for d_m, e_m in zip(features, embeddings, strict=True)
    ]
    top = random_net(rng, [sum(embeddings), *hidden(rng, depth_server), classes])
    xs = [rng.normal(size=(rounds, d_m)) for d_m in features]
    y = rng.integers(0, classes, size=rounds)
    return bottoms, top, xs, y


def hidden(rng: np.random.Generator, depth: int) -> list[int]:
    """The widths of the hidden layers of a net of ``depth`` dense layers, each 1 to 6."""
    return [int(rng.integers(1, 7)) for _ in range(depth - 1)]


def random_net(rng: np.random.Generator, widths: list[int]) -> Net:
    """Weights and biases from U(−1/√fan_in, 1/√fan_in)."""
    weights, biases = [], []
    for fan_in, fan_out in pairwise(widths):
        bound = 1 / np.sqrt(fan_in)
        weights.append(rng.uniform(-bound, bound, size=(fan_in, fan_out)))
        biases.append(rng.uniform(-bound, bound, size=fan_out))
    return Net(weights, biases, relu_last=False)
