"""The compiled loop over a stream: a whole federation in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int
from numpy.typing import NDArray

from anabranch.activation import Activation, Full, Mask
from anabranch.chunks import Chunk, empty_chunk, read_chunks
from anabranch.compiling import compiled
from anabranch.cost import add_rounds, measure_client_times, no_traffic
from anabranch.errors import ConfigError, DataError, Diverged, Interrupted, nearest
from anabranch.interrupt import Interruptible
from anabranch.metrics import RUN_TIME_WINDOW, Prequential
from anabranch.models import Group, SplitModel
from anabranch.party import Rule
from anabranch.result import Result
from anabranch.round import Federation, init_federation, model_dtype, play_round, trained_model
from anabranch.streams.base import Stream
from anabranch.updates import DLR, Update

WIRE_DTYPES = ("float32", "float16", "bfloat16", "float64")

LearningRate: TypeAlias = float | Sequence[float] | optax.GradientTransformation


class Progress(NamedTuple):
    """How far a run is."""

    rounds: int
    run_time_error: float
    """Mean error of the last 20,000 rounds; NaN before the first."""


def simulate(
    model: SplitModel,
    stream: Stream,
    *,
    update: Update | None = None,
    activation: Activation | None = None,
    learning_rate: LearningRate = 0.003,
    rounds: int | None = None,
    seed: int = 0,
    wire_dtype: str = "float32",
    keep_errors: bool = False,
    report_every: int | None = None,
    chunk: int = 1000,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Trains ``model`` on ``stream``, one sample a round, as Algorithm 1 says.

    Args:
        model: M clients and a server; it is not changed, the trained one is in the result.
        stream: the samples; see `anabranch.streams`.
        update: `OGD`, `DLR` (the default) or `SLR`.
        activation: `Full` (the default), `Random`, `Event`, `Fixed` or `Recorded`.
        learning_rate: ``η`` for every party; or ``[η_0, η_1, .., η_M]``, the server's first; or any Optax
            transformation, which takes the smoothed gradient.
        rounds: how many; None goes on until the stream ends. A shorter stream ends the run, and the result says so.
        seed: where the parties' random keys for activation come from.
        wire_dtype: in which embeddings and derivatives cross the wire: float32, float16, bfloat16 or float64.
        keep_errors: also return the 0/1 error of every round.
        report_every: a point of the curve after so many rounds; by default a twentieth of ``rounds``, at most 20,000.
        chunk: rounds between two visits to Python. It changes the speed and never the result.
        progress: called after each chunk with how far the run is.

    Returns:
        The trained model, error rates, activation rates, traffic and cost.

    Raises:
        ConfigError: where a setting is out of range.
        ModelError: where the model does not fit the stream.
        DataError: where a sample is wrong; its ``result`` holds the rounds before.
        Diverged: where the loss is not finite any more; its ``result`` holds the rounds before.
        Interrupted: on Ctrl-C; its ``result`` holds the rounds that were done.

    >>> import anabranch as ab
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(2000, 4))
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> model = ab.SplitModel(
    ...     clients=[eqx.nn.Linear(2, 8, key=keys[0]), eqx.nn.Linear(2, 8, key=keys[1])],
    ...     server=eqx.nn.MLP(16, 2, 16, 1, key=keys[2]),
    ... )
    >>> stream = ab.streams.from_arrays([x[:, :2], x[:, 2:]], (x[:, 0] + x[:, 3] > 0).astype(int))
    >>> result = simulate(model, stream, activation=ab.Random(0.5), learning_rate=0.1)
    >>> result.rounds, result.error_rate < 0.2
    (2000, True)
    """
    update = DLR() if update is None else update
    activation = Full() if activation is None else activation
    _check_settings(rounds, seed, wire_dtype, report_every, chunk)
    if rounds is None and stream.endless:
        raise ConfigError("rounds: this stream is endless, so say how many rounds to train")
    layout, classes = model.layout(stream.widths), model.classes(stream.widths)
    activation.check(len(model.clients), rounds)
    dtype = model_dtype(model)
    rates, optimiser = _read_learning_rate(learning_rate, len(model.clients))
    rule = Rule(jax.tree.map(np.asarray, update), optimiser, jnp.dtype(wire_dtype))
    chunks = read_chunks(stream, classes, np.dtype(dtype), chunk, rounds)
    samples = next(chunks, None)  # whatever is wrong with the first samples is said before compiling

    started = time.perf_counter()
    numbers = (rule, jnp.asarray(rates, dtype))
    federation = _init(layout, *numbers, model)
    none = empty_chunk(chunk, sum(stream.widths), np.dtype(dtype))
    nobody = activation.mask(seed, 0, none.x, stream.widths)
    outcome = _train(_inputs(layout, numbers, none, nobody, 0, True), federation)  # compiles, and plays no round
    jax.block_until_ready(outcome.predictions)
    compile_seconds = time.perf_counter() - started

    tally = _Tally(layout, update, rule.wire, keep_errors, report_every or _default_report_every(rounds))
    failure: BaseException | None = None
    pending: tuple[Chunk, Mask, _Trained] | None = None
    begun = 0
    started = time.perf_counter()
    with Interruptible() as ctrl_c:
        while samples is not None and not ctrl_c.pressed:
            active = activation.mask(seed, begun, samples.x, stream.widths)
            outcome = _train(_inputs(layout, numbers, samples, active, begun, outcome.finite), outcome.federation)
            begun += samples.rows
            if pending is not None:
                tally.add(*pending)
                if progress is not None:
                    progress(tally.progress())
            pending = (samples, active, outcome)
            if tally.diverged:
                break
            try:
                with ctrl_c.at_once():
                    samples = next(chunks, None)  # while the compiled loop works on this chunk
            except (DataError, KeyboardInterrupt) as error:
                failure = error
                break
        if pending is not None and not tally.diverged:
            tally.add(*pending)
            if progress is not None:
                progress(tally.progress())
    seconds = time.perf_counter() - started

    interrupted = ctrl_c.pressed or isinstance(failure, KeyboardInterrupt)
    trained = trained_model(layout, outcome.federation)
    result = tally.result(
        model=trained,
        seconds=seconds,
        compile_seconds=compile_seconds,
        measure=partial(measure_client_times, trained, layout, rule),
        settings={
            "model": _describe_model(model, layout, classes),
            "stream": stream.describe(),
            "update": repr(update),
            "activation": repr(activation),
            "learning_rate": repr(learning_rate) if optimiser is not None else np.asarray(learning_rate).tolist(),
            "rounds": rounds,
            "seed": seed,
            "wire_dtype": wire_dtype,
        },
    )
    if tally.diverged:
        result.stopped = (
            f"the loss is not finite in round {tally.rounds + 1:,}: the learning rate is too large for this model and "
            "stream; try a tenth of it"
        )
        raise Diverged(result.stopped, tally.rounds + 1, result)
    if interrupted:
        result.stopped = f"interrupted after {tally.rounds:,} rounds"
        raise Interrupted(result)
    if isinstance(failure, DataError):
        result.stopped = str(failure)
        failure.result = result
        raise failure
    if rounds is not None and tally.rounds < rounds:
        result.stopped = f"the stream ended after {tally.rounds:,} of {rounds:,} rounds"
    return result


class _Trained(NamedTuple):
    """What the compiled loop returns; arrays that may still be in the making."""

    federation: Federation
    predictions: Int[Array, " n"]
    done: Int[Array, ""]
    """How many rounds it has begun: all of the chunk's, or up to and with the first whose loss is not finite."""
    finite: Bool[Array, ""]


_init = compiled(init_federation)
"""In one program: one compilation, and arrays of its own, so that `_train` may use their memory again."""


def _train_chunk(inputs: tuple[Any, ...], federation: Federation) -> _Trained:
    """The chunk's rounds, one after another, until the loss is not finite."""
    layout, (rule, rates), chunk, active, begun, going = inputs
    arrays, rest = eqx.partition(federation, eqx.is_array)

    def play(carry: tuple) -> tuple:
        i, arrays, _, predictions = carry
        federation, outcome = play_round(
            layout, rule, rates, eqx.combine(arrays, rest), chunk.x[i], chunk.y[i], active[i], begun + i
        )
        return i + 1, eqx.filter(federation, eqx.is_array), outcome.finite, predictions.at[i].set(outcome.prediction)

    start = (jnp.zeros((), jnp.int32), arrays, going, jnp.zeros(len(chunk.y), jnp.int32))
    done, arrays, finite, predictions = jax.lax.while_loop(lambda c: (c[0] < chunk.rows) & c[2], play, start)
    return _Trained(eqx.combine(arrays, rest), predictions, done, finite)


_train = compiled(_train_chunk, donate="all-except-first")


def _inputs(
    layout: tuple[Group, ...], numbers: tuple[Rule, Array], chunk: Chunk, active: Mask, begun: int, going: Any
) -> tuple[Any, ...]:
    """What `_train` reads, with every number that changes as an array, so that it compiles nothing."""
    numbered = Chunk(chunk.x, chunk.y, np.asarray(chunk.rows, np.int32))  # type: ignore[arg-type]
    return layout, numbers, numbered, active, np.asarray(begun, np.int32), jnp.asarray(going)


class _Tally:
    """Adds up what the chunks report."""

    def __init__(
        self, layout: Sequence[Group], update: Update, wire: Any, keep_errors: bool, report_every: int
    ) -> None:
        self._update, self._itemsize = update, jnp.dtype(wire).itemsize
        self._widths = [group.embedding for group in layout for _ in range(group.size)]
        self._prequential = Prequential(report_every)
        self._activations = np.zeros(len(self._widths), np.int64)
        self._traffic = no_traffic(len(self._widths))
        self._errors: list[NDArray[np.bool_]] | None = [] if keep_errors else None
        self.diverged = False

    @property
    def rounds(self) -> int:
        return self._prequential.rounds

    def add(self, chunk: Chunk, active: Mask, trained: _Trained) -> None:
        """Waits for the compiled loop to finish the chunk, then adds its rounds."""
        predictions = np.asarray(trained.predictions)
        self.diverged = not bool(trained.finite)
        rounds = int(trained.done) - self.diverged
        errors = predictions[:rounds] != chunk.y[:rounds]
        who = np.asarray(active)[:rounds]
        self._traffic = add_rounds(self._traffic, self._update, self._widths, self._itemsize, self.rounds, who)
        self._activations += who.sum(axis=0)
        self._prequential.push(errors)
        if self._errors is not None:
            self._errors.append(errors)

    def progress(self) -> Progress:
        return Progress(self.rounds, self._prequential.run_time_error)

    def result(self, **rest: Any) -> Result:
        return Result(
            rounds=self.rounds,
            stopped=None,
            error_rate=self._prequential.accumulated_error,
            curve=self._prequential.curve(),
            activation_rate=self._activations / max(self.rounds, 1),
            traffic=self._traffic,
            errors=None if self._errors is None else np.concatenate([np.zeros(0, bool), *self._errors]),
            **rest,
        )


def _default_report_every(rounds: int | None) -> int:
    return 1000 if rounds is None else max(1, min(RUN_TIME_WINDOW, rounds // 20))


def _describe_model(model: SplitModel, layout: Sequence[Group], classes: int) -> dict[str, Any]:
    each = [group for group in layout for _ in range(group.size)]
    return {
        "clients": len(model.clients),
        "features": [group.features for group in each],
        "embedding": [group.embedding for group in each],
        "classes": classes,
        "parameters": sum(array.size for array in model.to_arrays().values()),
    }


def _check_settings(rounds: int | None, seed: int, wire_dtype: str, report_every: int | None, chunk: int) -> None:
    for name, value in (("rounds", rounds), ("report_every", report_every), ("chunk", chunk)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}, but it is a whole number of 1 or more")
    if rounds is not None and rounds >= 2**31:
        raise ConfigError(f"rounds is {rounds:,}, but a run has fewer than 2^31 rounds")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ConfigError(f"seed is {seed!r}, but it is a whole number from 0 to 2^31 − 1")
    if wire_dtype not in WIRE_DTYPES:
        raise ConfigError(
            f"wire_dtype is {wire_dtype!r}; known are {', '.join(WIRE_DTYPES)}.{nearest(str(wire_dtype), WIRE_DTYPES)}"
        )


def _read_learning_rate(
    learning_rate: LearningRate, clients: int
) -> tuple[NDArray[np.float64], optax.GradientTransformation | None]:
    """The learning rates ``η_0 .. η_M``, and the Optax transformation where one stands in their place."""
    if isinstance(learning_rate, optax.GradientTransformation):
        return np.zeros(clients + 1), learning_rate
    try:
        rates = np.asarray(learning_rate, float)
    except (TypeError, ValueError):
        rates = np.array(np.nan)
    if rates.ndim > 1 or not np.isfinite(rates).all() or (rates < 0).any():
        raise ConfigError(
            f"learning_rate is {learning_rate!r}, but it is a number of 0 or more, one for each party, or an Optax "
            "transformation"
        )
    if rates.ndim == 1 and len(rates) != clients + 1:
        raise ConfigError(
            f"learning_rate has {len(rates)} values, but there are {clients + 1} parties: the server, then "
            f"{clients} clients"
        )
    return np.broadcast_to(rates, clients + 1), None
