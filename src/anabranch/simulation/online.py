"""A federation in one process that learns from dictionaries, one at a time, as River's classifiers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from anabranch.checks import is_missing, python_value, whole
from anabranch.core.activation import Activation, Full
from anabranch.core.compiling import compiled
from anabranch.core.models import Group, SplitModel, mlp
from anabranch.core.party import TROUBLES, Rule
from anabranch.core.party_programs import State, from_arrays, program, reading, to_arrays
from anabranch.core.round import Federation, event_logits, init_federation, play_round, trained_model
from anabranch.core.updates import DLR, Update
from anabranch.errors import ConfigError, DataError, Diverged
from anabranch.interrupt import Interruptible
from anabranch.simulation.run_setup import LearningRate, prepare, trouble_text
from anabranch.streams.base import Block, Stream

if TYPE_CHECKING:

    class _Classifier:
        """What River's classifiers inherit from, where it is installed."""

else:
    try:
        # The interfaces alone, which takes 5 ms. River's metrics and pipelines ask for this base class.
        from river.base import Classifier as _Classifier
    except ImportError:
        _Classifier = object

Factory: TypeAlias = Callable[[tuple[int, ...], int], SplitModel]
"""Makes a model for the clients' numbers of features, and a number of classes."""
_LAST = 2**31 - 1
"""A round's number is a 32-bit one."""


class OnlineVFL(_Classifier):
    """A federation that learns one sample at a time, each a dictionary of named features: a classifier for River.

    ``learn_one`` is one round of the paper's Algorithm 1, ``predict_one`` and ``predict_proba_one`` are the prediction
    that this round would begin with. The same functions are compiled as in `anabranch.simulate`, and samples in the
    same order give the same bits.

    A feature that is absent or missing, as None, NaN, NaT and ``pandas.NA`` are, counts as ``missing``. Features that
    no client holds are not looked at; a sample with none but those is refused. A class is known from the first sample
    that has it, or from the start if ``classes`` lists it; only known classes are predicted. A sample of one class too
    many is refused, and the model stays as it was.

    Several threads may use one model. Rounds are played one after another, and each prediction is that of the model
    between two rounds.

    Args:
        split: the names of the features that each client holds, by the client's name.
        classes: how many classes there may be, or a list of them.
        model: a `SplitModel`, or a function that makes one of the clients' numbers of features and the number of
            classes; `models.mlp` if None.
        update: `OGD`, `DLR` (the default) or `SLR`.
        activation: `Full` (the default), `Random`, `Event`, `Fixed` or `Recorded`.
        learning_rate: as in `simulate`: a number, one for each party with the server's first, or an Optax
            transformation.
        learning_rate_power: makes it fall, as in `simulate`.
        missing: what a missing feature counts as; None refuses samples with missing features.
        wire_dtype: in which embeddings and derivatives cross the wire.
        seed: where the parties' random keys come from, and the default model.

    Raises:
        ConfigError: where a setting is out of range.
        ModelError: where the model does not fit the split or the classes.

    >>> model = OnlineVFL({"bank": ["income", "debt"], "shop": ["basket"]}, learning_rate=0.1)
    >>> for i in range(200):
    ...     model.learn_one({"income": i % 5, "debt": 1.0, "basket": -(i % 3)}, "good" if i % 5 > 2 else "bad")
    >>> model.predict_one({"income": 4, "debt": 1.0, "basket": -2})
    'good'
    >>> sorted(model.predict_proba_one({"income": 0, "basket": 0}))
    ['bad', 'good']
    >>> model.rounds
    200
    """

    def __init__(
        self,
        split: Mapping[str, Sequence[Hashable]],
        *,
        classes: int | Sequence[Hashable] = 10,
        model: SplitModel | Factory | None = None,
        update: Update | None = None,
        activation: Activation | None = None,
        learning_rate: LearningRate = 0.003,
        learning_rate_power: float = 0.0,
        missing: float | None = 0.0,
        wire_dtype: str = "float32",
        seed: int = 0,
    ) -> None:
        # River clones an estimator from attributes that are named as its arguments.
        self.split = _read_split(split)
        self.classes = classes
        self.model = model
        self.update = update
        self.activation = activation
        self.learning_rate = learning_rate
        self.learning_rate_power = learning_rate_power
        self.missing = _read_missing(missing)
        self.wire_dtype = wire_dtype
        self.seed = seed

        labels = [] if _is_number(classes) else _read_labels(classes)
        self._most = len(labels) or whole("classes", classes, 1)
        self._slots: dict[Hashable, int] = {label: slot for slot, label in enumerate(labels)}
        samples = _Given(tuple(map(len, self.split.values())), self._most)
        decides = Full() if activation is None else activation
        self._run = prepare(
            self._build(samples.widths),
            samples,
            update=DLR() if update is None else update,
            activation=decides,
            learning_rate=learning_rate,
            learning_rate_power=learning_rate_power,
            rounds=None,
            seed=seed,
            wire_dtype=wire_dtype,
            measure_regret=False,
            report_every=1,
            chunk=1,
        )
        self._recorded = decides.rounds
        self._names = [name for names in self.split.values() for name in names]
        self._known = frozenset(self._names)
        self._dtype = self._run.nothing.x.dtype
        run = self._run
        fixed = (run.layout, run.rule)
        self._state = State(fixed, _init(*fixed, run.rates.of(0, 1, self._dtype)[0], run.model))
        self._trouble: str | None = None
        self.rounds = 0
        """How many samples it has learnt from."""

    def learn_one(self, x: Mapping[Hashable, Any], y: Hashable) -> None:
        """One round: the sample ``x`` of the class ``y``.

        Raises:
            DataError: where the sample or its class is wrong; nothing changes.
            Diverged: where something was not finite any more, now or before. Predictions are still those of the
                rounds before.
            KeyboardInterrupt: on Ctrl-C, which waits for the end of a round that has begun; `rounds` counts it then.
        """
        features, label = self._row(x), self._label(y)
        with self._state.turn:
            self._learn_row(features, label)

    def _learn_row(self, features: NDArray[Any], label: Hashable) -> None:
        if self._trouble is not None:
            raise self._diverged(self._trouble)
        if self.rounds == _LAST:
            raise DataError(f"no more than {_LAST:,} samples can be learnt from: go on with a clone")
        run, t, slot = self._run, self.rounds, self._slot(label)
        sample = run.nothing._replace(x=features[None], y=np.array([slot], np.int32), rows=1)
        if self._recorded is not None and t >= self._recorded:
            raise DataError(f"the recorded activations ended after {t:,} rounds")
        active = run.decide(t, sample)
        numbers = (features, active[0], run.rates.of(t, 1, self._dtype), np.array([slot, t, 1], np.int32))
        with Interruptible() as ctrl_c:  # the program takes the old state's memory, so the new one must not be lost
            trouble = int(self._state.move(_learn, numbers))
            if trouble:
                self._trouble = trouble_text(TROUBLES[trouble], t + 1, run.rule.wire)
            else:
                self._slots.setdefault(label, slot)
                self.rounds += 1
        if ctrl_c.pressed:
            raise ctrl_c.problem
        if self._trouble is not None:
            raise self._diverged(self._trouble)

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[Hashable, float]:
        """Return the probability of each known class; empty where none is known yet.

        Raises:
            DataError: where the sample is wrong.
        """
        labels, logits = self._logits(x)
        if not labels:
            return {}
        odds = np.exp(logits - logits.max())
        return dict(zip(labels, (odds / odds.sum()).tolist(), strict=True))

    def predict_one(self, x: Mapping[Hashable, Any]) -> Hashable | None:
        """Return the most probable class, or None where none is known yet.

        Raises:
            DataError: where the sample is wrong.
        """
        labels, logits = self._logits(x)
        return labels[int(logits.argmax())] if labels else None

    @property
    def trained(self) -> SplitModel:
        """The model as it is now."""
        with self._state.turn:
            return trained_model(self._run.layout, self._state.party)

    def _diverged(self, why: str) -> Diverged:
        return Diverged(why, self.rounds + 1, None)  # type: ignore[arg-type]  # only a run has a result

    def _logits(self, x: Mapping[Hashable, Any]) -> tuple[list[Hashable], NDArray[np.float64]]:
        """Return the known classes in the order in which they became known, and the logit of each for a sample."""
        features = self._row(x)
        with self._state.turn:
            labels = list(self._slots)
            logits = np.asarray(self._state.read(_predict, (features,)), np.float64) if labels else np.zeros(0)
        return labels, logits[: len(labels)]

    def _build(self, widths: tuple[int, ...]) -> Any:
        """Return the model before the first sample."""
        if self.model is None:
            return mlp(widths, self._most, seed=self.seed)
        if isinstance(self.model, SplitModel) or not callable(self.model):
            return self.model
        return self.model(widths, self._most)

    def _row(self, x: Mapping[Hashable, Any]) -> NDArray[Any]:
        """(d,): the clients' features side by side, in the model's precision."""
        if not isinstance(x, Mapping):
            raise DataError(f"the sample is {x!r:.60}, but a dictionary of named features is needed")
        if x and self._known.isdisjoint(x):
            raise DataError(
                f"the sample has none of the features in split: it has {_listed(x)}, and split names "
                f"{_listed(self._names)}"
            )
        values = [x.get(name) for name in self._names]
        try:
            values = [x[name] for name in self._names]
        except KeyError:
            values = [x.get(name) for name in self._names]
        try:
            row = np.array(None if any(each is np.ma.masked for each in values) else values)
        except (ValueError, OverflowError):
            row = np.array(None)
        if row.dtype.kind not in "fiub" or row.ndim != 1:
            row = np.array([self._number(name, value) for name, value in zip(self._names, values, strict=True)])
        with np.errstate(over="ignore"):
            cast = row.astype(self._dtype, copy=False)
        if np.isfinite(cast).all():
            return cast
        gone = np.isnan(row.astype(np.float64))
        if gone.any() and self.missing is None:
            name = self._names[int(gone.argmax())]
            raise DataError(f"feature {name!r} of client {self._holder(name)!r} is missing, and missing is None")
        cast = np.where(gone, 0.0 if self.missing is None else self.missing, cast).astype(self._dtype)
        if not np.isfinite(cast).all():
            name = self._names[int(np.isfinite(cast).argmin())]
            value = _shown(x[name]) if name in x else f"missing, and in its place comes {self.missing}"
            raise DataError(
                f"feature {name!r} of client {self._holder(name)!r} is {value}; a number that {self._dtype} holds is "
                "needed"
            )
        return cast

    def _number(self, name: Hashable, value: Any) -> float:
        """Return a feature's value, NaN where it is missing."""
        if is_missing(value):
            return math.nan
        value = python_value(value)
        try:
            if isinstance(value, str | bytes | np.datetime64 | np.timedelta64):
                raise TypeError
            return float(value)
        except OverflowError:
            return math.inf
        except (TypeError, ValueError):
            raise DataError(
                f"feature {name!r} of client {self._holder(name)!r} is {value!r:.60}, but a number is needed: encode "
                "it first, as river.preprocessing.OneHotEncoder does"
            ) from None

    def _holder(self, name: Hashable) -> str:
        return next(client for client, names in self.split.items() if name in names)

    def _label(self, y: Hashable) -> Hashable:
        """Return a sample's class as it is kept: a number or a text of NumPy as Python's own."""
        y = python_value(y)
        empty = isinstance(y, str) and not y and y not in self._slots
        if empty or is_missing(y):
            listed = ", or list the empty text in classes" if empty else ""
            raise DataError(
                f"the sample's class is {y!r:.60}, which says that there is none: only a sample whose class is known "
                f"can be learnt from. Leave it out until its class is there{listed}"
            )
        try:
            hash(y)
        except TypeError:
            raise DataError(f"the sample's class is {y!r:.60}, which cannot be a class: it has no hash") from None
        return y

    def _slot(self, label: Hashable) -> int:
        """Return the output that stands for a class; a new class takes the next."""
        slot = self._slots.get(label, len(self._slots))
        if slot == self._most:
            what = "there may be" if _is_number(self.classes) else "classes lists"
            raise DataError(
                f"class {_shown(label)} is one too many: {what} {self._most}, and known are {_listed(self._slots)}; "
                "make the model with more classes"
            )
        return slot

    # What River asks of an estimator.

    @property
    def _multiclass(self) -> bool:
        return _is_number(self.classes) or self._most > 2

    @property
    def _raw_memory_usage(self) -> int:
        """Bytes of the parties' states; what is compiled is shared by all models of one shape."""
        with self._state.turn:
            return sum(array.nbytes for array in to_arrays(self._state.party).values())

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"split": {"one": ["a", "b"], "other": ["c"]}}

    # Programs and their arrays on a device neither copy nor pickle, so a copy is made anew and then filled.

    def __getstate__(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in self._settings}
        with self._state.turn:
            held = {"slots": dict(self._slots), "rounds": self.rounds, "trouble": self._trouble}
            return {"settings": settings, "arrays": to_arrays(self._state.party), **held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["settings"])  # type: ignore[misc]
        self._state.party = from_arrays(self._state.party, state["arrays"])
        self._slots, self.rounds, self._trouble = dict(state["slots"]), state["rounds"], state["trouble"]

    _settings = (
        "split",
        "classes",
        "model",
        "update",
        "activation",
        "learning_rate",
        "learning_rate_power",
        "missing",
        "wire_dtype",
        "seed",
    )


class _Given(Stream):
    """Samples that come one by one from whoever has the model."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        self.widths, self.classes = widths, classes

    def blocks(self) -> Iterator[Block]:
        return iter(())


_init = compiled(init_federation)


@program
def _learn(
    fixed: tuple[tuple[Group, ...], Rule], federation: Federation, x: Array, active: Array, rates: Array, whole: Array
) -> tuple[Federation, Array]:
    """Return one round. It stands in a loop that ends after it, since the simulator's does, and then it rounds as
    there.

    The whole numbers are the class, the round, and 1.
    """
    label, begun, rows = whole
    arrays, rest = eqx.partition(federation, eqx.is_array)

    def play(carry: tuple) -> tuple:
        i, arrays, _ = carry
        now = rates[jnp.minimum(i, len(rates) - 1)]
        federation, outcome = play_round(*fixed, now, eqx.combine(arrays, rest), x, label, active, begun + i)
        return i + 1, eqx.filter(federation, eqx.is_array), outcome.trouble

    nothing = jnp.zeros((), jnp.int32)
    _, arrays, trouble = jax.lax.while_loop(lambda c: (c[0] < rows) & (c[2] == 0), play, (nothing, arrays, nothing))
    return eqx.combine(arrays, rest), trouble


@reading
def _predict(fixed: tuple[tuple[Group, ...], Rule], federation: Federation, x: Array) -> Array:
    """Return the logits (c,) of what would be predicted of ``x``."""
    return event_logits(*fixed, federation, x)[0]


def _read_split(split: Any) -> dict[str, list[Hashable]]:
    example = 'such as {"bank": ["income", "debt"], "shop": ["basket"]}'
    if not isinstance(split, Mapping) or not split:
        raise ConfigError(f"split is {split!r:.60}, but it says which features each client holds, {example}")
    for client, names in split.items():
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise ConfigError(f"split: client {client!r} has {names!r:.60}, but a list of names is needed, {example}")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"split: client {client!r} holds {twice[0]!r} twice")
    return {client: list(names) for client, names in split.items()}


def _read_missing(missing: Any) -> float | None:
    if missing is None:
        return None
    number = isinstance(missing, int | float | np.integer | np.floating) and not isinstance(missing, bool)
    if not number or not abs(missing) <= float(np.finfo(np.float32).max):
        raise ConfigError(
            f"missing is {_shown(missing)}, but it is a number that float32 holds, or None to refuse samples with "
            "missing features"
        )
    return float(missing)


def _shown(value: Any) -> str:
    """In a message: some numbers are too long for that."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number of very many digits"
    return f"{value!r:.60}"


def _read_labels(classes: Any) -> list[Hashable]:
    try:
        labels = [] if isinstance(classes, str) else [python_value(each) for each in classes]
        distinct = len(set(labels)) == len(labels)
    except TypeError:
        labels, distinct = [], False
    if not labels or not distinct:
        raise ConfigError(f"classes is {classes!r:.60}, but it is a number, or a list of different classes")
    if any(map(is_missing, labels)):
        raise ConfigError(f"classes is {classes!r:.60}, but a missing value is no class: list the classes alone")
    return labels


def _is_number(classes: Any) -> bool:
    return isinstance(classes, int | float | np.number)


def _listed(names: Any) -> str:
    """Return the first few of some names."""
    shown = [repr(name) for name in list(names)[:6]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


__all__ = ["OnlineVFL"]
