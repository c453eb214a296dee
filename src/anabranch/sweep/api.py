"""A sweep from Python, as ``anabranch sweep`` runs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.config.load import Source, change, find_source
from anabranch.errors import ConfigError
from anabranch.sweep.backend import Backend
from anabranch.sweep.data import with_data
from anabranch.sweep.file import expanded
from anabranch.sweep.progress import SweepProgress
from anabranch.sweep.run import run_trials
from anabranch.sweep.table import ranked, rows_of
from anabranch.sweep.tables import open_sweep, write_tables
from anabranch.sweep.trial import Record

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class SweepResult:
    """What `run_sweep` returns."""

    folder: Path
    """The sweep's folder, which ``anabranch report`` takes too."""
    rows: list[dict[str, Any]]
    """A row for each trial that is done or failed, in the order of the grid: its values of the grid, both error rates,
    ``diverged``, ``activation_rate``, ``MB``, ``seconds``, ``key`` and ``failed``."""
    records: dict[str, Record]
    """All that is kept of each trial, by its ``key``, its curve and its whole configuration among that."""
    best: dict[str, Any] | None
    """The values of the grid, without the seed, with the least accumulated error, a mean over seeds; None if every
    combination has a trial that diverged or failed."""

    def to_pandas(self) -> DataFrame:
        """Return the rows as a table of pandas.

        Raises:
            ConfigError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame(self.rows)


def run_sweep(
    base: str | Path | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    folder: str | Path,
    workers: int | None = None,
    backend: str = "loky",
    address: str | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
) -> SweepResult:
    """Run every combination of a grid, and keep each in a folder as soon as it is done.

    Finished trials are found again: the same call goes on after Ctrl-C or a crash, and a wider grid runs only what is
    new. A trial that diverges is done; one that fails is listed in its row and tried again by the next call.

    Args:
        base: the settings of a run: a preset's name, a TOML file, an earlier result, or a dictionary with the same
            settings, as docs/configuration.md lists them.
        grid: settings by their dotted names, each with a list of values.
        folder: where trials are kept; it is made if it is not there.
        workers: how many trials at a time; None is one for each core.
        backend: ``"loky"`` for this machine, ``"ray"`` or ``"dask"``.
        address: of the Ray or Dask cluster.
        progress: called every second and after each trial, not always from the same thread.

    Raises:
        ConfigError: if a setting is wrong, or the folder holds something else.
        DataError: if a file is missing or broken.
        ClusterError: if the cluster cannot be reached.
        OutputError: if the folder cannot be written.
        KeyboardInterrupt: on Ctrl-C; finished trials are kept.
    """
    settings = Source("sweep", "base", dict(base), Path(), None) if isinstance(base, Mapping) else find_source(base)
    file = expanded(change(settings, [])._replace(folder=Path()), dict(grid))
    where = Backend(backend, address, workers)
    trials = with_data([point.config for point in file.points])
    out = Path(folder)
    with open_sweep(file, out, trials) as opened:
        swept = run_trials(trials, opened, where, progress)
        rows = rows_of(file.points, trials, swept)
        groups = ranked(rows, file.points)
        write_tables(file, rows, groups, out)
    best = groups[0].labels if groups and groups[0].complete else None
    return SweepResult(out, [{**row.point.labels, **row.values} for row in rows], swept.records, best)
