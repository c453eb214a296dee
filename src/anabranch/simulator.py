"""A whole federation in one process: trains on a stream, and counts what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from anabranch.activation import Activation, Full, Mask
from anabranch.checks import whole
from anabranch.chunks import Chunk, empty_chunk, read_chunks
from anabranch.errors import ConfigError, Diverged, Interrupted, ModelError, nearest
from anabranch.interrupt import Interruptible
from anabranch.keys import SEEDS
from anabranch.loop import LearningRates, Loop, Played
from anabranch.metrics import RUN_TIME_WINDOW, Prequential
from anabranch.models import Group, SplitModel
from anabranch.party import TROUBLES, Rule
from anabranch.regret import RegretTally
from anabranch.result import Result
from anabranch.round import model_dtype, trained_model
from anabranch.streams.base import Stream
from anabranch.timing import measure_client_times
from anabranch.traffic import add_rounds, no_traffic
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
    learning_rate_power: float = 0.0,
    rounds: int | None = None,
    seed: int = 0,
    wire_dtype: str = "float32",
    keep_errors: bool = False,
    measure_regret: bool = False,
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
        learning_rate_power: makes it fall: in round ``t``, counted from 1, it is ``η_t = η t^(−power)``. The paper's
            convex theorem takes 0.5, as ``η_t = D/(G √t)``. Not with an Optax transformation.
        rounds: how many; None goes on until the stream ends. A shorter stream ends the run, and the result says so.
        seed: where the parties' random keys for activation come from.
        wire_dtype: in which embeddings and derivatives cross the wire: float32, float16, bfloat16 or float64.
        keep_errors: also return the 0/1 error and the prediction of every round.
        measure_regret: also measure the loss, the gradients and the regret of every round; it changes no bit of what
            is learnt. See `anabranch.regret`.
        report_every: a point of the curve after so many rounds; by default a twentieth of ``rounds``, at most 20,000.
        chunk: rounds between two visits to Python. It changes the speed and never what is learnt.
        progress: called after each chunk with how far the run is.

    Returns:
        The trained model, error rates, activation rates, traffic and cost.

    Raises:
        ConfigError: where a setting is out of range.
        ModelError: where the model does not fit the stream.
        DataError: where a sample is wrong; its ``result`` holds the rounds before, or is None if the wrong sample was
            among the first ``chunk`` and nothing was trained.
        Diverged: where the loss, an embedding or a derivative is not finite any more; its ``result`` holds the rounds
            before.
        Interrupted: on Ctrl-C; its ``result`` holds the rounds that were done.

    >>> import anabranch as ab, equinox as eqx
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
    for name, value, kind in (
        ("model", model, SplitModel),
        ("stream", stream, Stream),
        ("update", update, Update),
        ("activation", activation, Activation),
    ):
        _check_kind(name, value, kind)
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is {progress!r}, but a function that takes a Progress is needed")
    seed = whole("seed", seed, 0, SEEDS - 1)
    chunk = whole("chunk", chunk, 1)
    rounds = None if rounds is None else whole("rounds", rounds, 1, 2**31 - 1)
    if rounds is None and stream.endless:
        raise ConfigError("rounds: this stream is endless, so say how many rounds to train")
    every = _default_report_every(rounds) if report_every is None else whole("report_every", report_every, 1)
    layout, dtype = model.layout(stream.widths), np.dtype(model_dtype(model))
    classes = model.classes(layout)
    if stream.classes > classes:
        raise ModelError(f"the stream has {stream.classes} classes, but the model tells only {classes} apart")
    activation.check(len(model.clients), rounds)
    first_rates, optimiser = _read_learning_rate(learning_rate, len(model.clients))
    rates = LearningRates(first_rates, _read_power(learning_rate_power, optimiser))
    if measure_regret and isinstance(update, DLR) and not update.client_window:
        raise ConfigError(
            "measure_regret: the dynamic local regret needs every client's window, and DLR(client_window=False) gives "
            "the clients none; measure with client_window=True, or without measure_regret"
        )
    rule = Rule(jax.tree.map(np.asarray, update), optimiser, _read_wire_dtype(wire_dtype, dtype), bool(measure_regret))

    # A record of activations may be shorter than the stream: one sample more is read to see whether it is.
    limit = activation.rounds if rounds is None else None
    chunks = read_chunks(stream, classes, dtype, chunk, rounds if limit is None else limit + 1)
    first = next(chunks)  # what is wrong with the first samples is said before anything is compiled
    decide = partial(_decide, activation, seed, stream.widths)

    started = time.perf_counter()
    loop = Loop(layout, rule, rates, model, empty_chunk(chunk, sum(stream.widths), dtype))
    decide(0, first)  # it may compile too
    compile_seconds = time.perf_counter() - started

    tally = _Tally(layout, update, rule, keep_errors, every)
    with Interruptible() as ctrl_c:  # until the result is there, since Ctrl-C must not lose it
        started = time.perf_counter()
        ending = _train(loop, tally, first, chunks, decide, limit, progress, ctrl_c)
        seconds = time.perf_counter() - started
        trained = trained_model(layout, loop.federation)
        result = tally.result(
            model=trained,
            seconds=seconds,
            compile_seconds=compile_seconds,
            _measure=partial(measure_client_times, trained, layout, rule._replace(measure=False)),
            settings={
                "model": _describe_model(model, layout, classes),
                "stream": stream.describe(),
                "update": repr(update),
                "activation": repr(activation),
                "learning_rate": repr(learning_rate) if optimiser is not None else np.asarray(learning_rate).tolist(),
                "learning_rate_power": rates.power,
                "rounds": rounds,
                "seed": seed,
                "wire_dtype": wire_dtype,
                "measure_regret": rule.measure,
            },
        )
        if ctrl_c.pressed:
            ending = ending._replace(interrupted=True)
    return _finish(result, tally, ending, rounds, rule.wire)


class _Ending(NamedTuple):
    """Why the training loop ended."""

    interrupted: bool
    record_ended: bool
    """The recorded activations ended before the stream."""
    error: Exception | None


def _train(
    loop: Loop,
    tally: _Tally,
    first: Chunk,
    chunks: Iterator[Chunk],
    decide: Callable[[int, Chunk], Mask],
    limit: int | None,
    progress: Callable[[Progress], None] | None,
    ctrl_c: Interruptible,
) -> _Ending:
    """Plays every chunk. While the compiled loop works on one, the next is made and the one before is counted."""
    samples: Chunk | None = first
    pending: Played | None = None
    begun, record_ended, interrupted = 0, False, False
    error: Exception | None = None
    while samples is not None and not ctrl_c.pressed:
        if limit is not None and begun + samples.rows > limit:
            samples, record_ended = samples._replace(rows=limit - begun), True
        try:  # a person's own activation, stream or progress may fail: the rounds before are kept
            active = decide(begun, samples)
            playing = loop.play(samples, active, begun)
            begun += samples.rows
            counted, pending = pending, playing
            if counted is not None:
                tally.add(counted, progress)
            if record_ended or tally.trouble:
                break
            with ctrl_c.at_once():
                samples = next(chunks, None)
        except KeyboardInterrupt:
            interrupted = True
            break
        except Exception as problem:
            error = problem
            break
    if pending is not None and not tally.trouble:
        tally.add(pending, progress if error is None else None)
    return _Ending(interrupted, record_ended, error)


def _finish(result: Result, tally: _Tally, ending: _Ending, rounds: int | None, wire: np.dtype[Any]) -> Result:
    """The result, with why the run ended early; raised where that is an error."""
    done = result.rounds
    if tally.trouble:
        result.stopped = _trouble_text(tally.trouble, done + 1, wire)
        raise Diverged(result.stopped, done + 1, result)
    if ending.interrupted:
        result.stopped = f"interrupted after {done:,} rounds"
        raise Interrupted(result)
    if ending.error is not None:
        result.stopped = str(ending.error)
        ending.error.result = result  # type: ignore[attr-defined]
        raise ending.error
    if ending.record_ended:
        result.stopped = f"the recorded activations ended after {done:,} rounds, and the stream goes on"
    elif rounds is not None and done < rounds:
        result.stopped = f"the stream ended after {done:,} of {rounds:,} rounds"
    return result


def _trouble_text(trouble: str, round: int, wire: np.dtype[Any]) -> str:
    what = f"{'the loss' if trouble == 'loss' else f'an {trouble}' if trouble == 'embedding' else f'a {trouble}'}"
    if trouble != "loss" and wire == jnp.float16:
        return (
            f"{what} is not finite in round {round:,}: it may be too large for float16 on the wire; use "
            "wire_dtype bfloat16 or float32, smaller features or a smaller learning rate"
        )
    if trouble == "embedding" and round == 1:
        return f"{what} is not finite in round 1: the features are too large for this model"
    return (
        f"{what} is not finite in round {round:,}: the learning rate is too large for this model and stream; try a "
        "tenth of it"
    )


def _decide(activation: Activation, seed: int, widths: Sequence[int], begun: int, samples: Chunk) -> Mask:
    """Who is activated in the chunk's rounds."""
    mask = np.asarray(activation.mask(seed, begun, samples.x, widths))
    shape = (len(samples.x), len(widths))
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ConfigError(
            f"activation {type(activation).__name__}: mask returned {mask.dtype} values of shape {mask.shape}, but "
            f"true and false of shape {shape} are needed: one row a round, one column a client"
        )
    return mask


class _Tally:
    """Adds up what the chunks report."""

    def __init__(
        self, layout: Sequence[Group], update: Update, rule: Rule, keep_errors: bool, report_every: int
    ) -> None:
        self._update, self._itemsize = update, rule.wire.itemsize
        self._widths = [group.embedding for group in layout for _ in range(group.size)]
        self._prequential = Prequential(report_every)
        self._activations = np.zeros(len(self._widths), np.int64)
        self._traffic = no_traffic(len(self._widths))
        self._regret = RegretTally(report_every) if rule.measure else None
        self._kept: tuple[list[NDArray[np.bool_]], list[NDArray[np.int32]]] | None = ([], []) if keep_errors else None
        self.trouble: str | None = None

    def add(self, played: Played, progress: Callable[[Progress], None] | None) -> None:
        """Waits for the compiled loop to finish the chunk, then adds its rounds."""
        predictions, trouble = np.asarray(played.predictions), int(played.trouble)
        self.trouble = TROUBLES[trouble] if trouble else None
        rounds = int(played.done) - (trouble != 0)
        errors, active = predictions[:rounds] != played.chunk.y[:rounds], played.active[:rounds]
        before = self._prequential.rounds
        self._traffic = add_rounds(self._traffic, self._update, self._widths, self._itemsize, before, active)
        self._activations += active.sum(axis=0)
        self._prequential.push(errors)
        if self._regret is not None:
            self._regret.push(jax.tree.map(lambda measure: np.asarray(measure)[:rounds], played.measures))
        if self._kept is not None:
            self._kept[0].append(errors)
            self._kept[1].append(predictions[:rounds])
        if progress is not None:
            progress(Progress(self._prequential.rounds, self._prequential.run_time_error))

    def result(self, **rest: Any) -> Result:
        rounds = self._prequential.rounds
        return Result(
            rounds=rounds,
            stopped=None,
            error_rate=self._prequential.accumulated_error,
            curve=self._prequential.curve(),
            activation_rate=self._activations / max(rounds, 1),
            traffic=self._traffic,
            regret=None if self._regret is None else self._regret.regret(),
            errors=None if self._kept is None else np.concatenate(self._kept[0]),
            predictions=None if self._kept is None else np.concatenate(self._kept[1]),
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


def _check_kind(name: str, value: object, kind: type) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise ConfigError(f"{name} is the class {value.__name__}: make one of it, such as {value.__name__}(...)")
    home = "anabranch.streams" if kind is Stream else "anabranch"
    raise ConfigError(f"{name} is {value!r:.60}, but the type {home}.{kind.__name__} is needed")


def _read_wire_dtype(wire_dtype: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if wire_dtype not in WIRE_DTYPES:
        raise ConfigError(
            f"wire_dtype is {wire_dtype!r}; known are {', '.join(WIRE_DTYPES)}.{nearest(str(wire_dtype), WIRE_DTYPES)}"
        )
    if wire_dtype == "float64" and dtype != np.float64:
        raise ConfigError(f"wire_dtype is float64, but this model computes in {dtype}: nothing would be gained")
    return jnp.dtype(wire_dtype)


def _read_learning_rate(
    learning_rate: LearningRate, clients: int
) -> tuple[NDArray[np.float64], optax.GradientTransformation | None]:
    """The learning rates ``η_0 .. η_M``, and the Optax transformation where one stands in their place."""
    if isinstance(learning_rate, optax.GradientTransformation):
        return np.zeros(clients + 1), learning_rate
    if callable(learning_rate):
        name = getattr(learning_rate, "__name__", "it")
        raise ConfigError(f"learning_rate is the function {name}: call it, such as optax.{name}(0.001)")
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


def _read_power(power: float, optimiser: optax.GradientTransformation | None) -> float:
    number = power if isinstance(power, int | float | np.floating) and not isinstance(power, bool) else np.nan
    if not (np.isfinite(number) and number >= 0):
        raise ConfigError(f"learning_rate_power is {power!r}, but it is a number of 0 or more")
    if number and optimiser is not None:
        raise ConfigError(
            f"learning_rate_power is {power!r}, but learning_rate is an Optax transformation, which has rates of its "
            "own: give it a schedule, or give a number as learning_rate"
        )
    return float(number)
