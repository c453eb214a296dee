"""A whole federation in one process: trains on a stream, and counts what happens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anabranch.core.activation import Activation, Full
from anabranch.core.models import SplitModel
from anabranch.core.party_programs import to_arrays
from anabranch.core.round import trained_model
from anabranch.core.updates import DLR, Update
from anabranch.errors import ConfigError, Interrupted
from anabranch.interrupt import Interruptible, Terminated
from anabranch.simulation.chunks import Chunk
from anabranch.simulation.delays import Delay
from anabranch.simulation.drift_detection import Detect
from anabranch.simulation.label_delay import Learning
from anabranch.simulation.loop import Loop, Played
from anabranch.simulation.result import Result
from anabranch.simulation.resume import RunState, read_state
from anabranch.simulation.run_setup import CHUNK, LearningRate, Prepared, prepare
from anabranch.simulation.timing import measure_client_times
from anabranch.storage.files import json_values
from anabranch.streams.base import Stream


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
    label_delay: int | Delay = 0,
    label_learning: Learning = "fresh",
    detect: Detect | None = None,
    report_every: int | None = None,
    chunk: int = CHUNK,
    progress: Callable[[Progress], None] | None = None,
    resume: Result | str | Path | None = None,
) -> Result:
    """Train ``model`` on ``stream``, one sample a round, as Algorithm 1 says.

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
            is learnt. See `anabranch.simulation.regret`.
        label_delay: how many events later each label arrives: a whole number, or `UniformDelay` or `GeometricDelay`.
            Errors are those of the predictions made when the events happened.
        label_learning: "fresh": when a label arrives, the round is as ever, with embeddings at today's parameters;
            "stored": the server learns from the embeddings that it predicted from. Not with `SLR`.
        detect: what is watched for drift, and what follows a detection; see `Detect`. Where something follows, the run
            visits Python after every ``detect.every`` samples instead of ``chunk``.
        report_every: a point of the curve after so many rounds; by default a twentieth of ``rounds``, at most 20,000.
        chunk: rounds between two visits to Python. It changes the speed and never what is learnt.
        progress: called after each chunk with how far the run is. Where it raises, that ends the run, and the
            exception's ``result`` holds the rounds that were done.
        resume: a run's result, or the folder where it was saved: that run goes on after its last round, with the same
            bits as if it had not stopped. The settings, the stream and the seed are those of that run, and ``rounds``
            counts all rounds, those before too. A run with ``label_delay`` or ``detect`` cannot go on.

    Returns:
        The trained model, error rates, activation rates, traffic and cost.

    Raises:
        ConfigError: where a setting is out of range.
        ModelError: where the model does not fit the stream.
        DataError: where a sample is wrong; its ``result`` holds the rounds before, or is None if the wrong sample was
            among the first ``chunk`` and nothing was trained.
        CheckpointError: if the state that ``resume`` names is damaged.
        Diverged: where the loss, an embedding or a derivative is not finite any more; its ``result`` holds the rounds
            before.
        Interrupted: on Ctrl-C; its ``result`` holds the rounds that were done.

    >>> import anabranch as ab, equinox as eqx, jax, numpy as np
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
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is {progress!r}, but a function that takes a Progress is needed")
    state = None if resume is None else read_state(resume)
    begun = 0 if state is None else state.rounds
    run = prepare(
        model,
        stream,
        update=DLR() if update is None else update,
        activation=Full() if activation is None else activation,
        learning_rate=learning_rate,
        learning_rate_power=learning_rate_power,
        rounds=rounds,
        seed=seed,
        wire_dtype=wire_dtype,
        measure_regret=measure_regret,
        label_delay=label_delay,
        label_learning=label_learning,
        detect=detect,
        report_every=report_every,
        keep_errors=keep_errors,
        chunk=chunk,
        begun=begun,
    )
    if state is not None:
        state.check(run.settings)
        run.tally.restore(*state.counted)
    first = next(run.samples)  # what is wrong with the first samples is said before anything is compiled
    started = time.perf_counter()
    loop = Loop(run.layout, run.rule, run.rates, model, run.nothing, run.lateness)
    if state is not None:
        loop.restore(state.parties)
    run.decide(begun, first)  # it may compile too
    compile_seconds = time.perf_counter() - started

    with Interruptible() as ctrl_c:  # until the result is there, since Ctrl-C must not lose it
        started = time.perf_counter()
        ending = _train(loop, run, first, begun, progress, ctrl_c)
        seconds = time.perf_counter() - started
        trained = trained_model(run.layout, loop.federation)
        result = run.result(
            model=trained,
            seconds=seconds,
            compile_seconds=compile_seconds,
            timed_rounds=run.tally.rounds - begun if begun else None,
            _measure=partial(measure_client_times, trained, run.layout, run.rule._replace(measure=False)),
            _state=partial(_state, loop, run) if _goes_on(run) else None,
        )
        if ctrl_c.pressed:
            ending.interrupted = ctrl_c.problem
    return _finish(run, result, ending)


def _goes_on(run: Prepared) -> bool:
    """Return whether all that the run would go on from is kept."""
    return run.lateness is None and run.watch is None and not run.tally.trouble


def _state(loop: Loop, run: Prepared) -> RunState:
    return RunState(run.tally.rounds, json_values(run.settings), to_arrays(loop.federation), run.tally.state())


@dataclass
class _Ending:
    """Why the training loop ended, where nothing diverged."""

    interrupted: type[KeyboardInterrupt] | None = None
    error: Exception | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Return a person's own activation, stream or progress may fail within it: the rounds before are kept."""
        try:
            yield
        except KeyboardInterrupt as problem:
            self.interrupted = type(problem)
        except Exception as problem:
            self.error = self.error or problem


def _train(
    loop: Loop,
    run: Prepared,
    first: Chunk,
    begun: int,
    progress: Callable[[Progress], None] | None,
    ctrl_c: Interruptible,
) -> _Ending:
    """Play every chunk, the first of which has round ``begun``.

    While the compiled loop works on one, the next is made and the one before is counted.
    """
    samples: Chunk | None = first
    uncounted: deque[Played] = deque()
    ahead = 0 if run.watch is not None and run.watch.detect.reacts else 1
    ending = _Ending()
    with ending.caught():
        while samples is not None and not ctrl_c.pressed:
            active = run.decide(begun, samples)
            if run.watch is not None and run.watch.begin(begun):
                loop.reset()
            uncounted.append(loop.play(samples, active, begun, 1.0 if run.watch is None else run.watch.factor))
            begun += samples.rows
            if len(uncounted) > ahead:
                _count(run, uncounted, progress)
            if run.tally.trouble:
                break
            with ctrl_c.at_once():
                samples = next(run.samples, None)
    told = progress if ending.error is None else None
    while uncounted and not run.tally.trouble:
        with ending.caught():
            _count(run, uncounted, told)
    return ending


def _count(run: Prepared, uncounted: deque[Played], progress: Callable[[Progress], None] | None) -> None:
    """Count the first of the chunks that were played, and notices what there is in it."""
    played = uncounted.popleft()
    try:
        errors = run.tally.add(played)
    except KeyboardInterrupt:  # the third, while the compiled loop was waited for
        uncounted.appendleft(played)
        raise
    if run.watch is not None:
        run.watch.add(errors, None if played.sizes is None else np.asarray(played.sizes)[: len(errors)])
    if progress is not None:
        progress(Progress(run.tally.rounds, run.tally.run_time_error))


def _finish(run: Prepared, result: Result, ending: _Ending) -> Result:
    """Return the result, with why the run ended early; raised where that is an error."""
    if not run.tally.trouble:
        if ending.interrupted:
            result.stopped = f"interrupted after {result.rounds:,} rounds"
            raise Interrupted(result, terminated=ending.interrupted is Terminated)
        if ending.error is not None:
            result.stopped = str(ending.error)
            ending.error.result = result  # type: ignore[attr-defined]
            raise ending.error
    return run.finish(result)
