"""A run before its first round: its arguments checked, and all that it is played with made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from anabranch.checks import plain, whole
from anabranch.core.activation import Activation, Mask
from anabranch.core.compiling import check_devices
from anabranch.core.gradients import parameters
from anabranch.core.models import Group, SplitModel
from anabranch.core.party import Rule
from anabranch.core.random_keys import SEEDS
from anabranch.core.round import init_federation, model_dtype
from anabranch.core.updates import DLR, SLR, Update, check_contract
from anabranch.errors import ConfigError, Diverged, ModelError, nearest
from anabranch.simulation.chunks import Chunk, empty_chunk, read_chunks
from anabranch.simulation.delays import LONGEST, Delay, read_delay
from anabranch.simulation.drift_detection import Detect, Watch
from anabranch.simulation.label_delay import LEARNINGS, LateChunks, Lateness, Learning
from anabranch.simulation.loop import LearningRates
from anabranch.simulation.metrics import RUN_TIME_WINDOW
from anabranch.simulation.result import Result
from anabranch.simulation.totals import Tally
from anabranch.streams.base import Stream

WIRE_DTYPES = ("float32", "float16", "bfloat16", "float64")
CHUNK = 1000
"""Rounds between two visits to Python."""

LearningRate: TypeAlias = float | Sequence[float] | optax.GradientTransformation


class Samples(Iterator[Chunk]):
    """A run's chunks, no longer than its record of activations.

    Args:
        chunks: of the stream, to one sample more than the record has rounds, so that it is seen which of both ends.
        limit: how many rounds the record has; None where there is none, or enough of them.
        begun: how many rounds were played before the first chunk.
    """

    def __init__(self, chunks: Iterator[Chunk], limit: int | None, begun: int) -> None:
        self._chunks, self._limit = chunks, limit
        self._given = begun
        self.record_ended = False
        """The record ended before the stream."""

    def __next__(self) -> Chunk:
        if self.record_ended:
            raise StopIteration
        chunk = next(self._chunks)
        if self._limit is not None and self._given + chunk.rows > self._limit:
            chunk, self.record_ended = chunk._replace(rows=self._limit - self._given), True
        self._given += chunk.rows
        return chunk


@dataclass(frozen=True)
class Prepared:
    """All that a run is played with; made by `prepare`."""

    model: SplitModel
    layout: tuple[Group, ...]
    rule: Rule
    rates: LearningRates
    nothing: Chunk
    """A chunk without a sample; all others are as long and as wide."""
    samples: Iterator[Chunk]
    record: Samples
    """Where the samples come from, with whether a record of activations ended before them."""
    decide: Callable[[int, Chunk], Mask]
    """Who is activated in a chunk's rounds, the first of which is round ``begun``."""
    tally: Tally
    lateness: Lateness | None
    """None where labels come at once."""
    watch: Watch | None
    """None where nothing is watched for drift."""
    rounds: int | None
    """How many were asked for."""
    settings: dict[str, Any]

    def result(self, **rest: Any) -> Result:
        """Return the result of what the tally has; ``rest`` is what only the one who played it knows."""
        detections = None if self.watch is None else self.watch.detections
        return self.tally.result(settings=self.settings, detections=detections, **rest)

    def finish(self, result: Result) -> Result:
        """Return the result of a run that came to its end, with why that was before the last round.

        Raises:
            Diverged: where something was not finite any more.
        """
        done = result.rounds
        if self.tally.trouble:
            result.stopped = trouble_text(self.tally.trouble, done + 1, self.rule.wire)
            raise Diverged(result.stopped, done + 1, result)
        if self.record.record_ended:
            result.stopped = f"the recorded activations ended after {done:,} rounds, and the stream goes on"
        elif self.rounds is not None and done < self.rounds:
            result.stopped = f"the stream ended after {done:,} of {self.rounds:,} rounds"
        return result


def prepare(
    model: SplitModel,
    stream: Stream,
    *,
    update: Update,
    activation: Activation,
    learning_rate: LearningRate,
    learning_rate_power: float,
    rounds: int | None,
    seed: int,
    wire_dtype: str,
    measure_regret: bool,
    report_every: int | None,
    label_delay: int | Delay = 0,
    label_learning: Learning = "fresh",
    detect: Detect | None = None,
    keep_errors: bool = False,
    chunk: int = CHUNK,
    begun: int = 0,
) -> Prepared:
    """Check what `anabranch.simulate` is called with, and makes what the run is played with; reads no sample yet.

    Raises:
        ConfigError: where a setting is out of range.
        ModelError: where the model does not fit the stream.
    """
    check_devices()
    for name, value, kind in (
        ("model", model, SplitModel),
        ("stream", stream, Stream),
        ("update", update, Update),
        ("activation", activation, Activation),
    ):
        _check_kind(name, value, kind)
    seed = whole("seed", seed, 0, SEEDS - 1)
    chunk = whole("chunk", chunk, 1)
    if detect is not None:
        _check_kind("detect", detect, Detect)
        chunk = detect.every if detect.reacts else chunk
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
    check_decay(update, dtype)
    rule = Rule(jax.tree.map(np.asarray, update), optimiser, read_wire_dtype(wire_dtype, dtype), bool(measure_regret))
    if not update.outer_products:
        check_contract(rule.update, parameters(model.server))
    if detect is not None:
        check_reaction(detect, rule)
        rule = rule._replace(watch="embedding" in detect.watch)
    # A record of activations may be shorter than the stream: one sample more is read to see whether it is.
    limit = activation.rounds if rounds is None else None
    nothing = empty_chunk(chunk, sum(stream.widths), dtype)
    _check_window(layout, rule, rates, model, nothing)
    lateness = _read_lateness(label_delay, label_learning, update, rule, layout, nothing, rounds)
    if begun:
        _check_goes_on(begun, rounds, limit, late=lateness is not None, watched=detect is not None)
    most, unused = (rounds, 0) if limit is None else (limit + 1, 1)
    record = Samples(read_chunks(stream, classes, dtype, chunk, most, unused, begun), limit, begun)
    decide = partial(_decide, activation, seed, stream.widths)
    reacts = detect is not None and detect.reacts
    late = {} if lateness is None else {"label_delay": _delay_text(label_delay), "label_learning": label_learning}
    return Prepared(
        model=model,
        layout=layout,
        rule=rule,
        rates=rates,
        nothing=nothing,
        samples=record
        if lateness is None
        else LateChunks(record, lateness, seed, decide, nothing, len(model.clients), whole=reacts),
        record=record,
        decide=decide if lateness is None else _decided,
        tally=Tally(layout, update, rule, keep_errors, every, lateness, chunk),
        lateness=lateness,
        watch=None if detect is None else Watch(detect, len(model.clients), seed),
        rounds=rounds,
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
            **late,
            **({} if detect is None else {"detect": asdict(detect)}),
        },
    )


def check_decay(update: Update, dtype: np.dtype[Any]) -> None:
    """Refuse a decay that is 1 in a model's precision, in which no rounding error of a window's sum would fade.

    Raises:
        ConfigError: where it is.
    """
    if isinstance(update, DLR) and np.asarray(update.decay, dtype) == 1:
        raise ConfigError(
            f"update DLR: decay is {update.decay!r}, which is 1 in {dtype}, the model's precision: a smaller one is "
            "needed, or a model that computes in float64"
        )


def check_reaction(detect: Detect, rule: Rule) -> None:
    """Refuse what cannot follow a detection.

    Raises:
        ConfigError: where the update or the step rule has nothing that could follow.
    """
    if detect.on_drift == "boost" and rule.optimiser is not None:
        raise ConfigError(
            "detect: on_drift 'boost' multiplies learning rates, but learning_rate is an Optax transformation, which "
            "has rates of its own: give a number as learning_rate"
        )
    if detect.on_drift == "reset":
        some = jnp.zeros(1)
        if rule.update.init_memory(some) is not None or rule.update.init_window(some, server=True) is None:
            raise ConfigError(
                f"detect: on_drift 'reset' empties windows of gradients, and the update {type(rule.update).__name__} "
                "keeps none: take DLR with a window of 2 or more, or on_drift 'boost'"
            )
        if rule.measure:
            raise ConfigError(
                "measure_regret: the regret is that of windows which nothing empties: measure with on_drift 'report' "
                "or 'boost', or without detect"
            )


def _check_goes_on(begun: int, rounds: int | None, limit: int | None, *, late: bool, watched: bool) -> None:
    """Refuse to go on with a run that has done its rounds, or of which not all is kept."""
    for name, given in (("label_delay", late), ("detect", watched)):
        if given:
            raise ConfigError(f"resume: a run with {name} cannot go on: begin it anew, with more rounds")
    if (last := limit if rounds is None else rounds) is not None and last <= begun:
        what = "the recorded activations have" if rounds is None else "rounds is"
        raise ConfigError(f"resume: the run has done {begun:,} rounds, and {what} {last:,} in all: ask for more")


def _decided(begun: int, rounds: Chunk) -> Mask:
    """Whom the events of the chunk's rounds have activated, which was decided when they happened."""
    assert rounds.late is not None
    return rounds.late.active


def state_bytes(layout: tuple[Group, ...], rule: Rule, rates: LearningRates, model: SplitModel) -> int:
    """Return how much memory all parties' states take."""
    first = rates.of(0, 1, np.dtype(model_dtype(model)))[0]
    state = eqx.filter_eval_shape(init_federation, layout, rule, first, model)
    shapes = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.ShapeDtypeStruct)]
    return sum(shape.size * shape.dtype.itemsize for shape in shapes)


def _check_window(
    layout: tuple[Group, ...], rule: Rule, rates: LearningRates, model: SplitModel, nothing: Chunk
) -> None:
    """Refuse a window for which memory does not suffice."""
    window = rule.update.window if isinstance(rule.update, DLR | SLR) else 1
    memory = memory_bytes()
    arrays = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    # No slot takes more than that, and the exact shapes take 0.2 seconds to find.
    if 4 * window * (arrays + nothing.x[:1].nbytes) <= memory / 2:
        return
    need = state_bytes(layout, rule, rates, model)
    if need > memory / 2:
        raise ConfigError(
            f"update {type(rule.update).__name__}: window is {window:,}: what the parties remember takes "
            f"{need / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB, half of which may be taken: a shorter "
            "window is needed"
        )


def _read_lateness(
    label_delay: int | Delay,
    label_learning: str,
    update: Update,
    rule: Rule,
    layout: Sequence[Group],
    nothing: Chunk,
    rounds: int | None,
) -> Lateness | None:
    """How labels come late, or None where all come at once; such a run needs nothing more."""
    delay = read_delay(label_delay)
    most = whole(f"label_delay {type(delay).__name__}: most", delay.most, 0, LONGEST)
    if label_learning not in LEARNINGS:
        raise ConfigError(
            f"label_learning is {label_learning!r}; known are {', '.join(LEARNINGS)}."
            f"{nearest(str(label_learning), LEARNINGS)}"
        )
    stored = label_learning == "stored"
    if stored and update.init_memory(jnp.zeros(1, nothing.x.dtype)) is not None:
        raise ConfigError(
            f"label_learning is 'stored', but the update {type(update).__name__} evaluates past samples again at "
            "today's parameters: take label_learning 'fresh', or the update OGD or DLR"
        )
    if not most:
        return None
    if stored and rule.measure:
        raise ConfigError(
            "measure_regret: the regret is made of gradients at the parameters of a round, but with label_learning "
            "'stored' the server learns from embeddings of earlier ones: measure with 'fresh', or without a delay"
        )
    waiting = most + 1 if rounds is None else min(most + 1, rounds)
    slots = 1 << (waiting - 1).bit_length()  # a shape of the compiled program, which similar delays then share
    kept = sum(group.size * group.embedding for group in layout) * rule.wire.itemsize if stored else 0
    need, memory = slots * (kept + 32 + nothing.x.itemsize * nothing.x.shape[1]), memory_bytes()
    if need > memory / 2:
        raise ConfigError(
            f"label_delay is {_delay_text(label_delay)}: up to {waiting:,} events wait for their labels, which takes "
            f"{need / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB, half of which may be taken: a shorter "
            "delay is needed"
        )
    return Lateness(delay, "stored" if stored else "fresh", slots)


def memory_bytes() -> int:
    """Return how much memory this machine has; 16 GiB where it does not say."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**34


def _delay_text(delay: int | Delay) -> int | str:
    return repr(delay) if isinstance(delay, Delay) else int(delay)


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


def trouble_text(trouble: str, round: int, wire: np.dtype[Any]) -> str:
    """Why a run ends in this round, counted from 1, and what to do about it."""
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


def read_wire_dtype(wire_dtype: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
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
    """Return the learning rates ``η_0 .. η_M``, and the Optax transformation where one stands in their place."""
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
    power = plain(power)
    number = power if isinstance(power, int | float) and not isinstance(power, bool) else np.nan
    if not (np.isfinite(number) and number >= 0):
        raise ConfigError(f"learning_rate_power is {power!r}, but it is a number of 0 or more")
    if number and optimiser is not None:
        raise ConfigError(
            f"learning_rate_power is {power!r}, but learning_rate is an Optax transformation, which has rates of its "
            "own: give it a schedule, or give a number as learning_rate"
        )
    return float(number)
