"""Drift that the server notices in the rounds that it plays, and what follows in the next ones.

What is noticed is written into the record of its round, and what a round was played with into its own: played again
from the log, a round comes out as it was, whatever a detector would say this time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.protocol.actions import Played
from anabranch.protocol.messages import Record
from anabranch.simulation.drift_detection import Detection, Watch

KEPT = 1000
"""So many of the last detections a server keeps, since each of its checkpoints has them."""


class Watching:
    """Tells a `Watch` of the rounds, and the rounds of what it says.

    Args:
        watch: None where nothing is watched.
        widths: ``e_m`` of each client.
        rows: how many embeddings a round has under SLR; else None.
    """

    def __init__(self, watch: Watch | None, widths: Sequence[int], rows: int | None) -> None:
        self.watch, self._widths, self._rows = watch, np.array(widths), rows
        if watch is not None:
            watch.kept = KEPT

    def together(self, t: int, n: int) -> int:
        """Return how many of ``n`` rounds from round ``t`` on are played alike, whatever is noticed in them."""
        if self.watch is None or not self.watch.detect.reacts:
            return n
        every = self.watch.detect.every
        return min(n, every - t % every)

    def begin(self, t: int, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records of rounds that are played alike, from round ``t`` on, with what they are played with."""
        if self.watch is None:
            return records
        emptied, factor = self.watch.begin(t), self.watch.factor
        if not emptied and factor == 1:
            return records
        return [replace(each, factor=factor, emptied=emptied and not i) for i, each in enumerate(records)]

    def notice(self, played: Played) -> Played:
        """Put rounds through the detectors; they come back with what was noticed in each."""
        if self.watch is None:
            return played
        found: dict[int, list[Detection]] = {}
        for each in self._add(self.watch, played, None):
            found.setdefault(each.round - 1 - played.first, []).append(each)
        if not found:
            return played
        records = list(played.records)
        for i, detections in found.items():
            records[i] = replace(records[i], noticed=json.dumps(detections))
        return replace(played, records=tuple(records))

    def notice_again(self, played: Played) -> None:
        """Put rounds of the log through the detectors, and take what was noticed in them then."""
        if self.watch is not None:
            texts = [record.noticed for record in played.records if record.noticed]
            self._add(self.watch, played, [Detection(*each) for text in texts for each in json.loads(text)])

    def _add(self, watch: Watch, played: Played, recorded: list[Detection] | None) -> Sequence[Detection]:
        """What was noticed in the rounds; those that were dropped have nothing to watch."""
        errors, embeddings, numbers = [], [], []
        for t, (record, predicted) in enumerate(zip(played.records, played.predictions, strict=True), played.first):
            if predicted is not None and record.embeddings.size:
                errors.append(predicted != record.label)
                embeddings.append(record.embeddings if self._rows is None else record.embeddings[t % self._rows])
                numbers.append(t + 1)
        if not errors:
            return []
        sizes = self._sizes(np.stack(embeddings)) if "embedding" in watch.detect.watch else None
        return watch.add(np.array(errors), sizes, numbers, recorded)

    def _sizes(self, embeddings: NDArray[Any]) -> NDArray[np.float32]:
        """(n, M): the root mean square of each client's embeddings (n, e)."""
        squares = np.add.reduceat(
            np.square(embeddings.astype(np.float32)), np.cumsum(self._widths) - self._widths, axis=1
        )
        return np.sqrt(squares / self._widths.astype(np.float32))
