"""What a run goes on from: its parties' states, what was counted, and which run it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from anabranch.errors import CheckpointError, ConfigError
from anabranch.simulation.output import STATE
from anabranch.simulation.result import Result
from anabranch.storage import checkpoint
from anabranch.storage.files import json_values


class RunState(NamedTuple):
    """All that a run goes on from after its last round."""

    rounds: int
    """How many rounds were done."""
    settings: dict[str, Any]
    """Of the run, as JSON values."""
    parties: dict[str, NDArray[Any]]
    """The parties' states: models, windows, inputs that SLR remembers, and states of Optax transformations."""
    counted: tuple[dict[str, NDArray[Any]], dict[str, Any]]
    """What `anabranch.simulation.totals.Tally` has added up."""

    def save(self, folder: Path) -> None:
        """Write the state into the folder of a result.

        Raises:
            OutputError: if it cannot be written.
        """
        arrays = {f"parties/{name}": array for name, array in self.parties.items()}
        arrays |= {f"counted/{name}": array for name, array in self.counted[0].items()}
        values = {"rounds": self.rounds, "settings": self.settings, "counted": self.counted[1]}
        checkpoint.save(folder / STATE, arrays, values)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse to go on with another run.

        Args:
            settings: of the run that is to go on.

        Raises:
            ConfigError: if a setting other than ``rounds`` is another; it is named.
        """
        then, now = _comparable(self.settings), _comparable(settings)
        for name in sorted({*then, *now}):
            if then.get(name) != now.get(name):
                raise ConfigError(
                    f"resume: {name} is {now.get(name)!r:.200}, but the run to go on with has {then.get(name)!r:.200}: "
                    "give the settings, the stream and the seed of that run, or begin a new run without resume"
                )


def read_state(given: Any) -> RunState:
    """Return the state of a result, or of a folder that has one.

    Args:
        given: what `anabranch.simulate` takes as ``resume``.

    Raises:
        ConfigError: if there is no state to go on from.
        CheckpointError: if it is damaged.
    """
    if isinstance(given, Result):
        if given._state is None:
            raise ConfigError(
                "resume: this result has no state to go on from. Late labels, drift detection, a loss that is not "
                "finite and pickling leave none; a result that 'save' wrote has one in its folder"
            )
        return given._state()
    if not isinstance(given, str | Path):
        raise ConfigError(f"resume is {given!r:.60}, but a Result is needed, or the folder of one that was saved")
    found = checkpoint.load(Path(given) / STATE) if (Path(given) / STATE).is_dir() else None
    if found is None:
        raise ConfigError(
            f"resume: {given} has no folder '{STATE}' with the state of a run. Runs with late labels or drift "
            "detection, runs that diverged and runs of earlier versions leave none: begin a new run"
        )
    try:
        values = found.state
        return RunState(
            int(values["rounds"]),
            dict(values["settings"]),
            _part(found.arrays, "parties/"),
            (_part(found.arrays, "counted/"), dict(values["counted"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{found.path}: is not the state of a run ({error}): begin a new run") from error


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same, without the places of functions in a process's memory."""
    values = {name: value for name, value in json_values(settings).items() if name != "rounds"}
    return {name: re.sub(r" at 0x[0-9a-f]+", "", v) if isinstance(v, str) else v for name, v in values.items()}
