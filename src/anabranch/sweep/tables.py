"""The files of a sweep beside its records: which folder is the sweep's own, and the tables in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from anabranch.errors import ConfigError
from anabranch.simulation.result import versions
from anabranch.storage.files import replace_file, writing
from anabranch.sweep.file import SweepFile
from anabranch.sweep.folder import MANIFEST, TRIALS, TrialFolder, opened
from anabranch.sweep.table import CSV, Group, Row, trials_csv
from anabranch.sweep.trial import Trial, checksums

BEST = "best.toml"


def open_sweep(file: SweepFile, out: Path, trials: Sequence[Trial]) -> AbstractContextManager[TrialFolder]:
    """Open the folder of a sweep, if it holds nothing else, or trials that go together with these.

    Raises:
        ConfigError: if it holds something else.
        OutputError: if it cannot be made, read or written.
    """
    others = [name for name in (CSV, BEST) if (out / name).exists()]
    swept = (out / MANIFEST).exists() or any((out / TRIALS).glob("*.json"))
    if others and not swept:  # a person's own, which would be overwritten
        raise ConfigError(
            f"{out} has a {' and a '.join(others)} that no sweep wrote there: name another folder with --out"
        )
    sums = [checksums(trial.data) for trial in trials]
    data = {section: each for section, each in sums[0].items() if all(other.get(section) == each for other in sums)}
    common = {"versions": versions(), "settings": file.common(), "data": data}
    return opened(out, common, {"grid": file.grid})


def write_tables(file: SweepFile, rows: Sequence[Row], groups: Sequence[Group], out: Path) -> None:
    """Write ``trials.csv``, and ``best.toml`` if the best group is complete.

    Raises:
        OutputError: if they cannot be written.
    """
    with writing("trials", out):
        replace_file(out / CSV, trials_csv(rows, list(file.grid)).encode())
        if groups and groups[0].complete:
            replace_file(out / BEST, groups[0].rows[0].point.config.to_toml().encode())
        else:
            (out / BEST).unlink(missing_ok=True)  # of an earlier, smaller grid
