"""The folder of a sweep: a record for each finished trial, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.config.run import value_text
from anabranch.errors import ConfigError, OutputError
from anabranch.storage.files import json_values, replace_file, to_json, writing
from anabranch.storage.lock import locked
from anabranch.sweep.record import check_record
from anabranch.sweep.trial import Record

MANIFEST, TRIALS = "manifest.json", "trials"
WRITERS = {"anabranch sweep": {"versions", "settings", "data"}, "anabranch reproduce": {"versions", "rounds"}}
"""What each command's manifests say that their trials have in common."""


@contextmanager
def opened(path: Path, common: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Iterator[TrialFolder]:
    """Return a folder of trials that no other process uses as long as it is open.

    Args:
        path: as of `TrialFolder`, as the others are.

    Raises:
        ConfigError: where another process uses the folder, or as of `TrialFolder`.
        OutputError: likewise.
    """
    with locked(path, "trials"):
        folder = TrialFolder(path, common, about)
        with writing("trials", path):
            for half_written in (path / TRIALS).glob(".*.json-*"):  # by one that was killed
                half_written.unlink()
        yield folder


class TrialFolder:
    """Where finished trials are kept, each whole or not at all.

    A trial's file is named by its key, so it is found again by whoever asks for the same settings and data.

    Args:
        path: made where it is not there.
        common: what all of its trials have in common, such as the versions; JSON values, and tables of them. What
            the folder's trials and these both have must be equal.
        about: what else the manifest says, which may change, such as a grid that is widened.

    Raises:
        ConfigError: where the folder holds trials that have something else in common; both values are named. Or where
            its manifest is none of such trials.
        OutputError: where the folder cannot be made, read or written.
    """

    def __init__(self, path: Path, common: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._versions = common.get("versions")
        manifest, content = path / MANIFEST, json_values({**common, **(about or {})})
        _check_same(manifest, json_values(common), begun=any((path / TRIALS).glob("*.json")))
        with writing("trials", path):
            (path / TRIALS).mkdir(parents=True, exist_ok=True)
            replace_file(manifest, to_json(content).encode())

    def get(self, key: str) -> Record | None:
        """Return the record of a finished trial, or None. A file that is none at all, such as a half of one, counts
        as none.

        Raises:
            DataError: where the record lacks something, is not of the trial that its file is named after, or is of
                other versions than the folder, as one may be that was edited or put there.
        """
        file = self.path / TRIALS / f"{key}.json"
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{error.filename}: cannot be read ({error.strerror})") from error
        except ValueError:
            return None
        if not isinstance(record, dict):
            return None
        check_record(record, file, self._versions)
        return record

    def keys(self) -> list[str]:
        """Of the trials whose files are there."""
        return sorted(file.stem for file in (self.path / TRIALS).glob("*.json"))

    def put(self, record: Record) -> None:
        """Keep the record of a finished trial.

        Raises:
            OutputError: where it cannot be written; nothing is left of it then.
        """
        with writing("trials", self.path):
            replace_file(self.path / TRIALS / f"{record['key']}.json", to_line(record).encode())


def to_line(record: Record) -> str:
    """Return the text of a record's file."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _check_same(manifest: Path, common: Mapping[str, Any], *, begun: bool) -> None:
    """Whether what is there goes together with these.

    Args:
        begun: whether there are trials. Where there are none, the manifest need not agree, but must be one.
    """
    try:
        held = json.loads(manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not begun:
            return
        raise ConfigError(
            f"{manifest.parent} has trials but no {MANIFEST} that says of what: name another folder with --out"
        ) from None
    except ValueError:
        held = None
    except OSError as error:
        raise OutputError(f"{manifest}: cannot be read ({error.strerror})") from error
    if not isinstance(held, dict) or not set(common) <= set(held):
        missing, origin = "", "it is damaged or of something else"
        if isinstance(held, dict):
            missing = f" (it has no {', '.join(sorted(set(common) - set(held)))})"
            writers = [f"it is that of '{name}'" for name, keys in WRITERS.items() if keys <= set(held)]
            origin = next(iter(writers), origin)
        raise ConfigError(
            f"{manifest}: is not the manifest of such trials{missing}: {origin}. Name another folder with --out"
        )
    if begun and (differing := list(_differing(held, common))):
        raise ConfigError(
            f"{manifest.parent} holds trials that do not go together with these: {'; '.join(differing)}. "
            "Name another folder with --out"
        )


def _differing(there: Mapping[str, Any], now: Mapping[str, Any], table: str = "") -> Iterator[str]:
    """What both have, and has not the same value."""
    for name in now:
        if name not in there:
            continue
        if isinstance(there[name], dict) and isinstance(now[name], dict):
            yield from _differing(there[name], now[name], f"{table}{name}.")
        elif there[name] != now[name]:
            yield f"{table}{name} is {value_text(there[name])} there, {value_text(now[name])} now"
