"""Drift that is noticed: what a run watches goes through a detector of River's, and what follows a detection."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import plain, whole
from anabranch.errors import ConfigError, nearest, with_extra
from anabranch.simulation.detectors import restored, state_of

Watched: TypeAlias = Literal["error", "embedding"]
WATCHED = ("error", "embedding")
Reaction: TypeAlias = Literal["report", "reset", "boost"]
REACTIONS = ("report", "reset", "boost")

MOST = 100_000
"""Of ``every``, so many samples being read at a time; and of ``boost``."""
TRIED = 64
"""So many values a new detector is tried with."""


class Detection(NamedTuple):
    """A change that a detector has noticed."""

    round: int
    """After how many rounds."""
    what: Watched
    client: int | None
    """Whose embedding, from 1; None for the error."""
    before: float | None
    """The mean of what the detector forgets now, where it says what it keeps, as ADWIN does; else of all since the last
    detection."""
    after: float | None
    """The mean of what it keeps, or None where it does not say."""

    def __str__(self) -> str:
        """Such as ``'embedding of client 2, from 0.31 to 0.57'``."""
        whose = "" if self.client is None else f" of client {self.client}"
        means = "" if self.before is None or self.after is None else f", from {self.before:.4g} to {self.after:.4g}"
        return f"{self.what}{whose}{means}"


@dataclass(frozen=True)
class Detect:
    """What is watched for drift, with which detector, and what follows a detection.

    Each value that is watched goes through a detector of its own, of River's (the extra ``river``). ``"error"`` is the
    prequential 0/1 error; where a detector says by how much it changed, as ADWIN does, a fall is learning and no drift.
    ``"embedding"`` is ``‖h_m‖ / √e_m`` of each client's embedding, as the server receives it.

    Args:
        detector: the name of a class in ``river.drift`` or ``river.drift.binary``, such as ADWIN, PageHinkley or DDM;
            binary ones take errors only.
        watch: what is watched: ``"error"``, ``"embedding"``, or both.
        on_drift: ``"report"`` changes nothing in what is learnt. ``"reset"`` empties every party's window of gradients.
            ``"boost"`` multiplies every learning rate by ``boost`` for the next ``boost_rounds`` rounds.
        boost: of the learning rates, above 0, at most 100,000.
        boost_rounds: how long the learning rates are multiplied; a further detection begins anew.
        every: what follows a detection begins with the next round whose number is a multiple of this; at most 100,000.
        options: settings of the detector, such as ``{"delta": 0.002}``.

    Raises:
        ConfigError: where a setting is unknown or out of range, or River is not installed.

    >>> Detect(on_drift="boost", boost=5.0, options={"delta": 0.01})
    Detect(detector='ADWIN', watch=('error',), on_drift='boost', boost=5.0, boost_rounds=1000, every=100,
           options={'delta': 0.01})
    """

    detector: str = "ADWIN"
    watch: tuple[Watched, ...] = ("error",)
    on_drift: Reaction = "report"
    boost: float = 10.0
    boost_rounds: int = 1000
    every: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: Any = self.watch  # a person may write one of them alone
        watch = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "watch", watch)
        if not watch or len(set(watch)) < len(watch):
            raise ConfigError(f"detect: watch is {watch!r}, but at least one of {_or(WATCHED)} is needed, each once")
        for name, value, known in (
            *(("watch", each, WATCHED) for each in watch),
            ("on_drift", self.on_drift, REACTIONS),
        ):
            if value not in known:
                raise ConfigError(f"detect: {name} is {value!r}; known are {_or(known)}.{nearest(str(value), known)}")
        for name, most in (("boost_rounds", 2**31 - 1), ("every", MOST)):
            object.__setattr__(self, name, whole(f"detect: {name}", getattr(self, name), 1, most))
        object.__setattr__(self, "boost", plain(self.boost))
        number = isinstance(self.boost, int | float) and not isinstance(self.boost, bool)
        if not number or not 0 < self.boost <= MOST:
            raise ConfigError(f"detect: boost is {self.boost!r:.60}, but a number above 0 is needed, {MOST:,} at most")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"detect: options is {self.options!r}, but a table of the detector's settings is needed")
        self._try_out()

    @property
    def made(self) -> str:
        """What its detectors are made of; detectors of which this is the same can take over from one another."""
        from river import __version__

        return repr((self.detector, self.watch, sorted(self.options.items()), __version__))

    @property
    def reacts(self) -> bool:
        """Whether a detection changes what is learnt."""
        return self.on_drift != "report"

    def _try_out(self) -> None:
        """Refuse settings that a detector takes and then dies of, one that is of Rust by a panic."""
        tried = self.make(seed=0)
        try:
            for i in range(TRIED):
                tried.update(i % 2)
            restored(state_of(tried), self.make(seed=0))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise ConfigError(f"detect: {self.detector} does not work with {dict(self.options)!r}: {error}") from None

    def make(self, seed: int) -> Any:
        """Return a new detector; one that draws does so from this seed, unless ``options`` has another."""
        made = _named(self.detector)
        if "error" not in self.watch or len(self.watch) > 1:
            _refuse_binary(made)
        known = inspect.signature(made).parameters
        for name in self.options:
            if name not in known:
                raise ConfigError(
                    f"detect: {self.detector} has no setting {name!r}; it has {', '.join(known)}.{nearest(name, known)}"
                )
        seeded = {"seed": seed} if "seed" in known else {}
        try:
            return made(**{**seeded, **self.options})
        except Exception as error:  # whatever River raises for a setting
            raise ConfigError(f"detect: {self.detector} does not take {dict(self.options)!r}: {error}") from error


class Watch:
    """Puts what a run gives through detectors, and says what follows.

    Args:
        detect: what is watched.
        clients: ``M``
        seed: for detectors that draw.

    >>> watch = Watch(Detect(), clients=2, seed=0)
    >>> found = watch.add(np.arange(2000) >= 1000)
    >>> [(each.round, each.what) for each in watch.detections]
    [(1024, 'error')]
    """

    def __init__(self, detect: Detect, clients: int, seed: int) -> None:
        self.detect = detect
        self.detections: list[Detection] = []
        """All that there were, or the last."""
        self.kept: int | None = None
        """So many of the last detections are kept; None is all."""
        self.counts: Counter[tuple[Watched, int | None]] = Counter()
        """How many there were in what, and of which client."""
        self.rounds = 0
        """How many have been added."""
        self.factor = 1.0
        """What the learning rates of the next rounds are multiplied by."""
        self._noticed = False
        """Whether something is to follow that has not begun."""
        self._boosted_until = 0
        self._emptied = -1
        """The last round before which the windows were emptied."""
        self.began_anew = False
        """Whether a checkpoint was of other detectors, so that these have seen nothing of the rounds before it."""
        self._error = _Watched(detect.make(seed)) if "error" in detect.watch else None
        embeddings = range(clients) if "embedding" in detect.watch else ()
        self._embeddings = [_Watched(detect.make(seed)) for _ in embeddings]

    def add(
        self,
        errors: NDArray[np.bool_],
        embeddings: NDArray[np.floating[Any]] | None = None,
        numbers: Sequence[int] | None = None,
        recorded: Sequence[Detection] | None = None,
    ) -> Sequence[Detection]:
        """Some consecutive rounds' errors (n,), and the sizes of their embeddings (n, M) where those are watched.

        Args:
            errors: the 0/1 errors.
            embeddings: their sizes.
            numbers: after how many rounds each of them was, where others lie between; by default none does.
            recorded: what was noticed in them when they were played; by default they are played now.

        Returns:
            What was noticed in them.
        """
        noticed: list[Detection] = []
        number = range(self.rounds + 1, self.rounds + len(errors) + 1) if numbers is None else numbers
        if self._error is not None:
            for i, before, now in self._error.add(errors.tolist()):
                if now is None or before is None or now > before:
                    noticed.append(Detection(number[i], "error", None, before, now))
        if embeddings is not None:
            for m, watched in enumerate(self._embeddings):
                changes = watched.add(embeddings[:, m].tolist())
                noticed += [Detection(number[i], "embedding", m + 1, *means) for i, *means in changes]
        self.rounds += len(errors)
        found = sorted(noticed, key=lambda each: each.round) if recorded is None else recorded
        self.detections += found
        if self.kept is not None:
            del self.detections[: -self.kept]
        self.counts.update((each.what, each.client) for each in found)
        self._noticed |= self.detect.reacts and bool(found)
        return found

    def begin(self, t: int) -> bool:
        """Before round ``t``, counted from 0: where it is a multiple of ``detect.every``, what follows begins or ends.

        A round may begin twice, where what is not finite ended a run in it: it says the same again.

        Returns:
            Whether every party's window of gradients is emptied now.
        """
        if not self.detect.reacts or t % self.detect.every:
            return False
        noticed, self._noticed = self._noticed, False
        if self.detect.on_drift == "reset":
            self._emptied = t if noticed else self._emptied
            return t == self._emptied
        if noticed:
            self._boosted_until = t + self.detect.boost_rounds
        self.factor = self.detect.boost if t < self._boosted_until else 1.0
        return False

    @property
    def _detectors(self) -> list[_Watched]:
        return [*([] if self._error is None else [self._error]), *self._embeddings]

    def state(self) -> dict[str, Any]:
        """Return JSON values for a checkpoint: all that later rounds depend on, what the detectors hold included."""
        return {
            "made": self.detect.made,
            "detectors": [each.state() for each in self._detectors],
            "rounds": self.rounds,
            "detections": [list(each) for each in self.detections],
            "counts": [[*kind, n] for kind, n in self.counts.items()],
            "noticed": self._noticed,
            "boosted_until": self._boosted_until,
            "emptied": self._emptied,
            "factor": self.factor,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """The inverse of `state`.

        The detectors begin anew if something else is watched now, or with another version of River.

        Raises:
            ValueError: if the values are not such ones.
        """
        detectors = values.get("detectors")
        if detectors is not None and values["made"] == self.detect.made and len(detectors) == len(self._detectors):
            for each, held in zip(self._detectors, detectors, strict=True):
                each.restore(held)
        else:
            self.began_anew = True
        self.rounds = values["rounds"]
        self.detections = [Detection(*each) for each in values["detections"]]
        self.counts = Counter({(what, client): n for what, client, n in values["counts"]})
        if self.detect.reacts:
            self._noticed = values["noticed"]
        self._boosted_until, self._emptied = values["boosted_until"], values["emptied"]
        if self.detect.on_drift == "boost":
            self.factor = values["factor"]


class _Watched:
    """One value, its detector, and the sum of what the detector has seen since its last detection."""

    def __init__(self, detector: Any) -> None:
        self._detector = detector
        self._sum, self._count = 0.0, 0

    def add(self, values: list[Any]) -> Iterable[tuple[int, float | None, float | None]]:
        """Where in ``values`` a change was noticed, with the means before and after it."""
        detector = self._detector
        for i, value in enumerate(values):
            self._sum += value
            self._count += 1
            detector.update(value)
            if detector.drift_detected:
                yield i, *self._means()
                self._sum, self._count = 0.0, 0

    def state(self) -> list[Any]:
        """Return JSON values for a checkpoint."""
        return [state_of(self._detector), self._sum, self._count]

    def restore(self, values: list[Any]) -> None:
        """The inverse of `state`."""
        held, self._sum, self._count = values
        restored(held, self._detector)

    def _means(self) -> tuple[float, float | None]:
        width, after = (getattr(self._detector, name, None) for name in ("width", "estimation"))
        if width is None or after is None or not 0 < width < self._count:
            return self._sum / self._count, None
        return (self._sum - after * width) / (self._count - width), float(after)


def _named(name: str) -> Any:
    """Return the class of a detector."""
    try:
        from river import base, drift  # takes a second or two
    except ImportError:
        raise ConfigError(f"detect: River is not installed, which detects drift: {with_extra('river')}") from None
    kinds = (base.DriftDetector, base.BinaryDriftDetector)
    known = {
        each: found
        for home in (drift, drift.binary)
        for each in home.__all__
        if inspect.isclass(found := getattr(home, each, None)) and issubclass(found, kinds)
    }
    if name not in known:
        raise ConfigError(f"detect: detector is {name!r}; known are {', '.join(known)}.{nearest(str(name), known)}")
    return known[name]


def _refuse_binary(made: Any) -> None:
    from river.base import BinaryDriftDetector

    if issubclass(made, BinaryDriftDetector):
        raise ConfigError(
            f"detect: {made.__name__} takes true and false only, so it can watch the error and no embedding"
        )


def _or(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
