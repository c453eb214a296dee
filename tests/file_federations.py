"""Federations of real processes whose parties have files: what they are, and what the simulator makes of the same."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors.numpy import load_file

import anabranch as ab
from anabranch.broker.local import LocalBroker
from anabranch.config import party as partyfile
from anabranch.parties import build_party as own
from anabranch.simulation.output import MODEL
from anabranch.storage.event_ids import write_key
from forks import Forked
from real_federations import SERVER, RealFederation

UPDATE = {"name": "DLR", "window": 5, "decay": 0.9}
COMMON = {"connection": "connection.toml", "folder": ".", "learning_rate": 0.1, "seed": 5, "update": UPDATE}


@dataclass(frozen=True)
class FileDelay(ab.Delay):
    """How many events later each label came."""

    delays: tuple[int, ...]

    @property
    def most(self) -> int:  # type: ignore[override]
        return max(self.delays)

    def draw(self, seed: int, first: int, n: int) -> NDArray[np.int64]:
        drawn = np.array(self.delays[first : first + n], np.int64)
        return np.pad(drawn, (0, n - len(drawn)))


class FileFederation(RealFederation):
    """A folder with a party's file for each; see `RealFederation`.

    Args:
        folder: of all of it.
        files: the settings of each party, without what is the same for all.
    """

    def __init__(self, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        self.folder, self.names = folder, [*files]
        self.clients = self.names[1:]
        assert self.names[0] == SERVER
        self.files = {name: COMMON | dict(settings) for name, settings in files.items()}
        self.broker = LocalBroker(folder / "broker", None)
        self.processes: dict[str, Forked] = {}
        self._rounds, self._secure = 0, False
        self._told, self._readers = {}, {}
        folder.mkdir(exist_ok=True)
        write_key(folder / "entity.key")

    def _write(self, name: str, index: int) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        connection: dict[str, Any] = {"federation": "files", "party": name, "index": index, "url": self.broker.url}
        (folder / "connection.toml").write_text(
            tomli_w.dumps(connection | ({} if index else {"clients": self.clients}))
        )
        (folder / "party.toml").write_text(tomli_w.dumps(self.files[name]))

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Writes a CSV file beside the parties' folders."""
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    @property
    def model(self) -> ab.SplitModel:
        """The parties' initial parameters."""
        files = {name: tomllib.loads(tomli_w.dumps(file)) for name, file in self.files.items()}
        read = {name: partyfile.check(file, self.folder / name / "party.toml") for name, file in files.items()}
        bottoms = [
            own._bottom(read[name], len(read[name].features.columns), index)  # type: ignore[arg-type, union-attr]
            for index, name in enumerate(self.clients, 1)
        ]
        return ab.SplitModel(bottoms, own._top(read[SERVER]))  # type: ignore[arg-type]

    @property
    def trained(self) -> dict[str, NDArray[Any]]:
        """All parties' parameters, once their processes have ended."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.names:
            found |= load_file(self.folder / name / MODEL)
        return found
