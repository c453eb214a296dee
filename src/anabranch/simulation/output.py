"""The files of a result: ``result.json``, ``curve.csv``, ``curve.png`` and ``model.safetensors``."""

from __future__ import annotations

import csv
import errno
import io
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.errors import OutputError
from anabranch.storage.files import json_values, replace_file, to_json, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from anabranch.simulation.result import Result

MODEL, CURVE, PICTURE, RESULT = "model.safetensors", "curve.csv", "curve.png", "result.json"
STATE = "state"
"""The folder of what a run goes on from."""
FILES = (MODEL, CURVE, PICTURE, RESULT)
"""In the order in which they are written: where there is a result.json, the others are complete."""


class Folder(NamedTuple):
    """Where a result goes."""

    path: Path
    made: tuple[Path, ...]
    """Those of it and its parents that were not there before, the innermost first."""

    def discard(self) -> None:
        """Remove what was made, where nothing was written."""
        for each in self.made:
            with suppress(OSError):  # something is in it
                each.rmdir()


class Origin(NamedTuple):
    """What a command says of a run beside its result."""

    name: str
    """Of the run."""
    title: str
    """The run in a few words, above the picture."""
    config: Mapping[str, Any]
    """The whole configuration, with its seed."""
    data: Mapping[str, Any]
    """What identifies the files that were read; see `anabranch.config.build.Plan`."""


def prepare(folder: Path | None, name: str = "run", *, force: bool | None = False) -> Folder:
    """Make the folder of a result and check, before any training, that files can be written to it.

    Args:
        folder: where to; None makes a new one, ``runs/<name>-<time>``.
        name: of the run, for a new folder.
        force: whether an earlier result there may be overwritten; None where nobody can ask for that.

    Raises:
        OutputError: where the folder cannot be made or written, or holds a result already.
    """
    if folder is None:
        return _fresh(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        str(folder).encode()
        held = [file for file in FILES if folder.is_dir() and (folder / file).exists()]
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "its name is not valid UTF-8"
        raise OutputError(f"cannot write a result into {ascii(str(folder))[:60]}: {reason}; name another") from error
    if held and not force:
        overwrite = "" if force is None else ", or overwrite with --force (in Python: force=True)"
        raise OutputError(
            f"{folder} holds {', '.join(held)} of an earlier run: name another folder with --out{overwrite}"
        )
    return _make(folder)


def save(result: Result, folder: str | Path, *, force: bool = False) -> Path:
    """Write a result of `anabranch.simulate` as the command line does, and returns the folder.

    The clients are timed when the files are there, and ``result.json`` is then written again; until then, and where
    Ctrl-C ends the timing, its ``client_seconds`` is null.

    Args:
        folder: where to; it is made where there is none.
        force: whether an earlier result there may be overwritten.

    Raises:
        OutputError: where the folder cannot be made or written, or holds a result already.
    """
    path = prepare(Path(folder), force=force).path
    write(path, untimed(result))
    rewrite(path, report(path, result))
    return path


def write(
    folder: Path,
    result: Result,
    origin: Origin | None = None,
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    title: str | None = None,
) -> dict[str, Any]:
    """Write the files of a result, each of them completely or not at all, and return what ``result.json`` holds.

    Args:
        folder: as `prepare` returned it.
        origin: what a command says of the run.
        arrays: of the model, if they are those of one party; by default those of all.
        title: of the picture; by default that of the origin, or of the settings.

    Raises:
        OutputError: where a file cannot be written.
    """
    from safetensors.numpy import save as arrays_file

    title = title or (origin.title if origin else _title(result.settings))
    contents = {
        MODEL: arrays_file(dict(result.model.to_arrays() if arrays is None else arrays)),
        CURVE: curve_csv(result).encode(),
        PICTURE: png(draw_curve(result, title)),
    }
    with writing("result", folder):
        (folder / RESULT).unlink(missing_ok=True)
        for name, content in contents.items():
            replace_file(folder / name, content)
        shutil.rmtree(folder / STATE, ignore_errors=True)  # of an earlier run that is overwritten
    if result._state is not None:
        result._state().save(folder)
    described = report(folder, result, origin)
    rewrite(folder, described)
    return described


def rewrite(folder: Path, described: Mapping[str, Any]) -> None:
    """Write ``result.json`` alone, with what `report` returned."""
    with writing("result", folder):
        replace_file(folder / RESULT, to_json(described).encode())


def report(folder: Path, result: Result, origin: Origin | None = None) -> dict[str, Any]:
    """What ``result.json`` holds: JSON values only, an infinite number as ``"inf"`` or ``"-inf"``.

    It times the clients, where that was not done yet and the result is not `untimed`.
    """
    described = result.describe()
    if origin is not None:
        described = {
            "name": origin.name,
            "run_again": shlex.join(["anabranch", "run", str(folder / RESULT)]),
            **described,
            "seed": origin.config["seed"],
            "config": origin.config,
            "data": origin.data,
        }
    return json_values(described)


def untimed(result: Result) -> Result:
    """Return the same result with no client timed: its seconds are NaN, in ``result.json`` null."""
    return replace(result, _measure=None)


def curve_csv(result: Result) -> str:
    """Return the text of ``curve.csv``; numbers are written so that reading them gives the same bits."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(result.curve._fields)
    lines.writerows(zip(*(column.tolist() for column in result.curve), strict=True))
    return text.getvalue()


def draw_curve(result: Result, title: str) -> Figure:
    """Both error rates as the run went on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    draw_rates(axes, result)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=26, parse_math=False)
    return figure


def draw_rates(axes: Axes, result: Result) -> None:
    """Draw both error rates over the rounds on axes of Matplotlib."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rounds, run_time, accumulated = result.curve
    style: dict[str, Any] = {"marker": "o" if len(rounds) == 1 else "", "clip_on": False}
    if len(rounds):
        label = f"run-time error rate (last 20,000 rounds), {result.run_time_error:.4f} at the end"
        axes.plot(rounds, run_time, color="#c8463c", linewidth=2.2, zorder=3, label=label, **style)
        label = f"accumulated error rate, {result.error_rate:.4f}"
        axes.plot(rounds, accumulated, color="#5b6b8c", linewidth=1.8, linestyle="--", label=label, **style)
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.015, 0.99), ncols=2, fontsize=9)
        axes.set_xlim(0, rounds[-1])
        axes.set_ylim(0, min(1.0, 1.05 * max(run_time.max(), accumulated.max(), 0.05)))
    else:
        axes.text(0.5, 0.5, "no round was done", ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set_ylim(0, 1)
    axes.set_xlabel("rounds")
    axes.set_ylabel("error rate")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(settings: Mapping[str, Any]) -> str:
    """Return a run in a few words, where no configuration has them."""
    stream = settings["stream"]
    base = stream.get("stream", stream)  # of a drift
    name = base.get("file") or base.get("name", "stream")
    drift = f", drift every {stream['every']} rounds" if "stream" in stream and "every" in stream else ""
    return f"{settings['update']} · {settings['activation']} · {name}{drift}"


def png(figure: Figure) -> bytes:
    """Return the content of a picture's file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _fresh(folder: Path) -> Folder:
    """Return a folder of this name, or of this name and a number, that did not exist before."""
    candidate, number = folder, 2
    while True:
        made = _make(candidate)
        if candidate in made.made:
            return made
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1


def _make(folder: Path) -> Folder:
    """Make a folder and write a file in it that is gone again."""
    made: list[Path] = []
    try:
        for each in reversed((folder, *folder.parents)):
            if each.exists() and not each.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{each} is a file, not a folder")
            if not each.exists():
                each.mkdir()
                made.insert(0, each)
        with tempfile.TemporaryFile(dir=folder):
            return Folder(folder, tuple(made))
    except OSError as error:
        Folder(folder, tuple(made)).discard()
        raise OutputError(
            f"cannot write a result into {folder}: {error.strerror or error}; name another folder"
        ) from error
