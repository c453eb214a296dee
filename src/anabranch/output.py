"""The files of a result: ``result.json``, ``curve.csv``, ``curve.png`` and ``model.safetensors``."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.config import Config, DlrUpdate, ImnistStream
from anabranch.errors import OutputError
from anabranch.toml import value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anabranch.result import Result

MODEL, CURVE, PICTURE, RESULT = "model.safetensors", "curve.csv", "curve.png", "result.json"
FILES = (MODEL, CURVE, PICTURE, RESULT)
"""In the order in which they are written: where there is a result.json, the others are complete."""


class Folder(NamedTuple):
    """Where a result goes."""

    path: Path
    made: tuple[Path, ...]
    """Those of it and its parents that were not there before, the innermost first."""

    def discard(self) -> None:
        """Removes what was made, where nothing was written."""
        for each in self.made:
            with suppress(OSError):  # something is in it
                each.rmdir()


def prepare(folder: Path | None, name: str, *, force: bool = False) -> Folder:
    """Makes the folder of a result and checks, before any training, that files can be written to it.

    Args:
        folder: where to; None makes a new one, ``runs/<name>-<time>``.
        name: of the run.
        force: whether an earlier result there may be overwritten.

    Raises:
        OutputError: where the folder cannot be made or written, or holds a result already.
    """
    if folder is None:
        return _fresh(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    held = [file for file in FILES if folder.is_dir() and (folder / file).exists()]
    if held and not force:
        raise OutputError(
            f"{folder} holds {', '.join(held)} of an earlier run: name another folder with --out, or overwrite "
            "with --force"
        )
    return _make(folder)


def write(
    folder: Path, result: Result, config: Config, *, name: str, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Writes the files of a result, each of them completely or not at all, and returns what ``result.json`` holds.

    Args:
        folder: as `prepare` returned it.
        name: of the run.
        data: what identifies the files that it read; see `anabranch.runner.Plan`.

    Raises:
        OutputError: where a file cannot be written.
    """
    from safetensors.numpy import save

    described = report(folder, result, config, name=name, data=data)
    try:
        (folder / RESULT).unlink(missing_ok=True)
        _replace(folder / MODEL, save(result.model.to_arrays()))
        _replace(folder / CURVE, curve_csv(result).encode())
        _replace(folder / PICTURE, _png(draw_curve(result, config)))
        _replace(folder / RESULT, to_json(described).encode())
    except OSError as error:
        raise OutputError(f"cannot write the result into {folder}: {error.strerror or error}") from error
    return described


def report(
    folder: Path, result: Result, config: Config, *, name: str, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What ``result.json`` holds: JSON values only, an infinite number as ``"inf"`` or ``"-inf"``."""
    described = {
        "name": name,
        "run_again": shlex.join(["anabranch", "run", str(folder / RESULT)]),
        **result.describe(),
        "seed": config.seed,
        "config": config.to_dict(),
        "data": dict(data or {}),
    }
    return _strict(described)


def to_json(described: Mapping[str, Any]) -> str:
    """The text of ``result.json``."""
    return json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def curve_csv(result: Result) -> str:
    """The text of ``curve.csv``; numbers are written so that reading them gives the same bits."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(result.curve._fields)
    lines.writerows(zip(*(column.tolist() for column in result.curve), strict=True))
    return text.getvalue()


def draw_curve(result: Result, config: Config) -> Figure:
    """Both error rates as the run went on."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rounds, run_time, accumulated = result.curve
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
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
    axes.set_title(title(config), loc="left", fontsize=11, fontweight="bold", pad=26)
    axes.set_xlabel("rounds")
    axes.set_ylabel("error rate")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def title(config: Config) -> str:
    """The run in a few words.

    >>> from anabranch.configfile import load
    >>> title(load("imnist", ["drift.every=50"]))
    'DLR (window 10, decay 0.95) · Event (threshold 0.2) · imnist, drift every 50 rounds'
    """
    words = []
    for section in (config.update, config.activation):
        shown = {key: getattr(section, key) for key in section.settings() if key not in ("client_window", "path")}
        numbers = ", ".join(f"{key} {_short(value)}" for key, value in shown.items())
        if isinstance(section, DlrUpdate) and not section.client_window:
            numbers += ", server only"
        words.append(f"{section.name} ({numbers})" if numbers else section.name)
    path = None if isinstance(config.stream, ImnistStream) else config.stream.path
    stream = Path(path).name if path else config.stream.name
    drift = f", drift every {config.drift.every} rounds" if config.drift else ""
    return " · ".join([*words, stream + drift])


def _short(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) and len(value) > 4 else value_text(value)


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _fresh(folder: Path) -> Folder:
    """A folder of this name, or of this name and a number, that did not exist before."""
    candidate, number = folder, 2
    while True:
        made = _make(candidate)
        if candidate in made.made:
            return made
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1


def _make(folder: Path) -> Folder:
    """Makes a folder and writes a file in it that is gone again."""
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
            f"cannot write a result into {folder}: {error.strerror or error}; name another folder with --out"
        ) from error


def _replace(path: Path, content: bytes) -> None:
    """Writes a file through a temporary one beside it, so that it is never there in part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
