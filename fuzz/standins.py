"""Stand in for the compute of parties whose conversation is fuzzed: they work out nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anabranch.core.party import Rule
from anabranch.core.party_programs import Stepped

CLIENTS, WIDTH, ROWS = 2, 3, 2


class Compute:
    """What both kinds of compute have in common: they check what they are given, which compiled programs do not."""

    def __init__(self, rule: Rule, block: int) -> None:
        self.rule, self.block, self.rounds, self.width = rule, block, 0, WIDTH
        self.looks = 2

    def empty_window(self) -> None:
        pass

    def _check(self, values: Any, width: int) -> None:
        rows = self.rule.update.rows
        assert 1 <= len(values) <= self.block
        assert values.shape[1:] == ((width,) if rows is None else (rows, width)), values.shape
        assert values.dtype == self.rule.wire, values.dtype
        assert np.isfinite(values).all()


class Server(Compute):
    """In place of `anabranch.core.party_programs.ServerCompute`."""

    def step(self, embeddings: Any, labels: Any, factor: float = 1.0) -> Stepped:
        self._check(embeddings, CLIENTS * WIDTH)
        self.rounds += len(labels)
        return Stepped(np.zeros(len(labels), np.int32), np.ones_like(embeddings), 0)

    def predict(self, embeddings: Any) -> Any:
        assert 1 <= len(embeddings) <= self.looks
        assert embeddings.shape[1:] == (CLIENTS * WIDTH,), embeddings.shape
        assert np.isfinite(embeddings).all()
        return np.zeros((len(embeddings), 2), np.float32)

    def skip(self, label: int) -> None:
        self.rounds += 1

    def arrays(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any], rounds: int) -> None:
        self.rounds = rounds


class Client(Compute):
    """In place of `anabranch.core.party_programs.ClientCompute`."""

    def encode(self, rounds: Any, x: Any) -> tuple[Any, list[Any]]:
        assert 1 <= len(rounds) == len(x) <= self.block
        rows = self.rule.update.rows
        shape = (len(x), WIDTH) if rows is None else (len(x), rows, WIDTH)
        return np.ones(shape, self.rule.wire), [(np.ones(1),)] * len(x)

    def embed(self, x: Any) -> Any:
        assert 1 <= len(x) <= self.looks
        return np.ones((len(x), WIDTH), self.rule.wire)

    def step(self, rounds: Any, pending: Sequence[Any], derivatives: Any, factor: float = 1.0) -> None:
        self._check(derivatives, WIDTH)
        assert len(pending) == len(rounds) == len(derivatives)
        assert self.rounds <= rounds[0], "a step into the past"
        assert (np.diff(rounds) > 0).all(), "steps out of order"
        self.rounds = int(rounds[-1]) + 1

    def arrays(self, pending: dict[int, Any] | None = None) -> dict[str, Any]:
        return {f"{t}/{i}": leaf for t, leaves in (pending or {}).items() for i, leaf in enumerate(leaves)}

    def restore(self, arrays: dict[str, Any], rounds: int) -> dict[int, Any]:
        self.rounds = rounds
        return {int(name.partition("/")[0]): (leaf,) for name, leaf in arrays.items()}
