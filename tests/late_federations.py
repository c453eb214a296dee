"""Federations in memory whose labels come late: events are predicted when they happen, and learnt from afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from anabranch.protocol.actions import Predicted
from anabranch.protocol.client.inputs import InputsInMemory
from anabranch.protocol.server.pending_rounds import Late, Stored
from federations import Chaos, Setting, name
from problems import bits


def schedule(delays: Sequence[int]) -> list[tuple[bool, int]]:
    """What happens, in order: whether it is a label, and of which event."""
    arrivals: dict[int, list[int]] = {}
    for i, delay in enumerate(delays):
        arrivals.setdefault(i + delay, []).append(i)
    happens: list[tuple[bool, int]] = []
    for tick in range(max(arrivals) + 1):
        happens += [(False, tick)] if tick < len(delays) else []
        happens += [(True, i) for i in arrivals.get(tick, [])]
    return happens


class LateWorld(Chaos):
    """As `Chaos`, with a label ``delays[i]`` events after event ``i``; what is predicted survives the server."""

    def __init__(self, setting: Setting, seed: int, delays: Sequence[int], *, stored: bool, **options: Any) -> None:
        self._delays, self._happens, self._stored_way = list(delays), schedule(delays), stored
        self._inputs = [InputsInMemory() for _ in setting.shapes]
        self.foretold: dict[int, Predicted] = {}
        super().__init__(setting, seed, **options)
        self._predicted = self._write_prediction
        for client, inputs in zip(self.clients, self._inputs, strict=True):
            client._inputs = inputs

    def _write_prediction(self, predicted: Predicted) -> None:
        assert predicted.number not in self.foretold, "an event was predicted twice"
        self.foretold[predicted.number] = predicted

    def step(self) -> None:
        if self.server.room and self._happens:
            is_label, i = self._happens[0]
            if not is_label:
                self._happens.pop(0)
                chosen = self.setting.choose(i, 1)
                ask = self.server.questions.ask([name(i)], self.now, first=i, stored=self._stored_way, activated=chosen)
                self.do(0, ask)
                return
            if i in self.foretold:
                self._happens.pop(0)
                told = self.foretold[i]
                stored = Stored(told.embeddings, told.activated, told.missing, told.steps)
                chosen = None if self._stored_way else self.setting.choose(i, 1)
                late = Late(told.prediction, stored if self._stored_way else None)
                label = self.setting.labels[i]
                self.do(0, self.server.open([name(i)], [label], self.now, chosen, [late]))
                return
        self._over = not self._happens and not self.server.questions.learning
        super().step()

    def take(self, room: int) -> list[tuple[bytes, int]]:
        return []

    def _restart_server(self) -> None:
        played = {int(record.event) for record in self.log}
        everything = schedule(self._delays)
        self._happens = [(late, i) for late, i in everything if i not in (played if late else self.foretold)]
        super()._restart_server()

    def _restart_client(self, party: int) -> None:
        super()._restart_client(party)
        self.clients[party - 1]._inputs = self._inputs[party - 1]


def played_by_hand(setting: Setting, delays: Sequence[int], *, stored: bool) -> tuple[dict[str, bytes], list[int]]:
    """All parties' parameters, and the predictions in the order of learning, one step after another."""
    rate, widths = Rate(setting.rate, setting.power), [e for _, e in setting.shapes]
    starts = np.cumsum([0, *widths])
    top = ServerCompute(setting.rule, setting.model.server, int(starts[-1]), rate)
    bottoms = [
        ClientCompute(setting.rule, model, d, rate)
        for model, d in zip(setting.model.clients, setting.widths, strict=True)
    ]
    kept: dict[int, np.ndarray] = {}
    foretold: dict[int, int] = {}
    predictions = []
    t = 0
    for is_label, i in schedule(delays):
        samples = [x[i] for x in setting.features]
        if not is_label:
            sent = [client.embed(x[None])[0] for client, x in zip(bottoms, samples, strict=True)]
            kept[i] = np.concatenate(sent)
            foretold[i] = int(top.predict(kept[i][None])[0].argmax())
            continue
        rounds = np.array([t], np.int32)
        encoded = [client.encode(rounds, x[None]) for client, x in zip(bottoms, samples, strict=True)]
        row = kept.pop(i) if stored else np.concatenate([values[0] for values, _ in encoded], axis=-1)
        v = top.step(row[None], np.array([setting.labels[i]], np.int32)).derivatives
        for c, (client, (_, pending)) in enumerate(zip(bottoms, encoded, strict=True)):
            if setting.mask[i, c]:
                client.step(rounds, pending, v[..., starts[c] : starts[c + 1]])
        predictions.append(foretold[i])
        t += 1
    return bits(ab.SplitModel([client.party.model for client in bottoms], top.party.model)), predictions
