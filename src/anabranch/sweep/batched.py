"""Runs trials in batches, those of the same shape as one compiled program: for a machine with an accelerator."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from anabranch.simulation.batch import Batch, Feed, Seen, most_together, played, shape
from anabranch.simulation.result import versions
from anabranch.simulation.run_setup import prepare
from anabranch.sweep.parallel import Attempt, attempt, failed
from anabranch.sweep.trial import Trial, plan_of, record_of


def run_batched(
    trials: Sequence[Trial], most: int | None = None, begun: Callable[[int], None] = lambda jobs: None
) -> Generator[Attempt]:
    """Run every trial in this process, and yield what came of each as soon as it is known.

    A trial whose labels come late runs by itself: a batch has no rounds in another order than events. So does one that
    is watched for drift, since what follows a detection is its own.

    Records are those of `anabranch.sweep.trial.run_trial`, up to what batched products round otherwise. The seconds on
    the clock are those since the batch began, and a trial has an equal share of the processor's.

    Args:
        trials: in the order in which they begin, as far as those of other shapes allow.
        most: how many may run at a time; by default as many as the device's memory holds.
        begun: called with how many run at a time, whenever a batch begins.
    """
    waiting: dict[Hashable, list[_Member]] = {}
    for trial in trials:
        if trial.config.label_delay != 0 or trial.config.detect is not None:
            begun(1)
            yield attempt(trial, versions())
            continue
        try:
            with _quiet():
                member = _Member(trial)
        except Exception as error:
            yield failed(trial, error)
            continue
        alike = waiting.setdefault(shape(member.run), [])
        alike.append(member)
        if len(alike) >= min(most or len(trials), most_together(member.run)):
            yield from _play(waiting.pop(shape(member.run)), begun)
    for alike in waiting.values():
        yield from _play(alike, begun)


class _Member:
    """A trial of a batch."""

    def __init__(self, trial: Trial) -> None:
        plan = plan_of(trial)
        self.trial = trial
        self.run = prepare(plan.model, plan.stream, **plan.options)
        self._begun = 0

    def feed(self) -> Feed | Exception | None:
        """What it plays next; or None, or why, where that is nothing any more."""
        try:
            chunk = next(self.run.samples, None)
            if chunk is None:
                return None
            begun, self._begun = self._begun, self._begun + chunk.rows
            return Feed(chunk, self.run.decide(begun, chunk))
        except Exception as error:
            return error

    def attempt(self, error: Exception | None, seconds: tuple[float, float]) -> Attempt:
        """What came of it; ``error`` is what ended its samples, where that was one."""
        if error is not None and not self.run.tally.trouble:
            return failed(self.trial, error)
        # A record holds no parameters: the model is the one from before, for want of a better one.
        result = self.run.result(model=self.run.model, seconds=seconds[0], compile_seconds=0.0, _measure=None)
        return Attempt(self.trial.key, record_of(self.trial, lambda: self.run.finish(result), lambda: seconds), None)


def _play(members: Sequence[_Member], begun: Callable[[int], None]) -> Iterator[Attempt]:
    """Play the batch, and yield what came of each trial when it is over."""
    begun(len(members))
    under_way = dict(enumerate(members))
    try:
        yield from _play_all(under_way)
    except Exception as error:  # the batch's own, such as too little memory
        for member in under_way.values():
            yield failed(member.trial, error)


def _play_all(under_way: dict[int, _Member]) -> Iterator[Attempt]:
    """While the device works on a chunk of every trial, the next chunks are made. Takes out whose trial is over."""
    share = len(under_way)
    wall, cpu = time.perf_counter(), time.process_time()
    batch = Batch([member.run for member in under_way.values()])
    length, rounds = len(under_way[0].run.nothing.y), 0
    playing: tuple[dict[int, Feed], Seen] | None = None
    with ThreadPoolExecutor() as pool:
        while under_way:
            with _quiet():
                fed = dict(zip(under_way, pool.map(_Member.feed, under_way.values()), strict=True))
            feeds = {place: feed for place, feed in fed.items() if isinstance(feed, Feed)}
            before, playing = playing, (feeds, batch.play(feeds, rounds)) if feeds else None
            rounds += length
            if before is not None:
                for place, each in played(*before).items():
                    if place in under_way:
                        under_way[place].run.tally.add(each)
            seconds = (time.perf_counter() - wall, (time.process_time() - cpu) / share)
            for place, feed in fed.items():
                if not isinstance(feed, Feed) or under_way[place].run.tally.trouble:
                    came = under_way[place].attempt(None if isinstance(feed, Feed) else feed, seconds)
                    del under_way[place]
                    yield came


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings: a person reads them once, from who began the sweep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
