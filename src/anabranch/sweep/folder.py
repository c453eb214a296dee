"""The folder of a sweep: a record for each finished trial, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.errors import ConfigError, OutputError
from anabranch.files import replace_file, to_json, writing
from anabranch.sweep.trial import Record

MANIFEST, TRIALS = "manifest.json", "trials"


class TrialFolder:
    """Where finished trials are kept, each whole or not at all.

    A trial's file is named by its key, so it is found again by whoever asks for the same settings and data.

    Args:
        path: made where it is not there.
        common: what all of its trials have in common, such as the versions; JSON values.

    Raises:
        ConfigError: where the folder holds trials that have something else in common.
        OutputError: where the folder cannot be made, read or written.
    """

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self.path = path
        with writing("trials", path):
            (path / TRIALS).mkdir(parents=True, exist_ok=True)
        manifest = path / MANIFEST
        if manifest.exists():
            _check_same(manifest, common)
        else:
            if any(self._records()):
                raise ConfigError(f"{path} has trials but no {MANIFEST} that says of what: name another folder")
            with writing("trials", path):
                replace_file(manifest, to_json(common).encode())

    def get(self, key: str) -> Record | None:
        """The record of a finished trial, or None. A file that is damaged counts as none."""
        try:
            record = json.loads((self.path / TRIALS / f"{key}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{error.filename}: cannot be read ({error.strerror})") from error
        except ValueError:
            return None
        return record if isinstance(record, dict) and record.get("key") == key else None

    def put(self, record: Record) -> None:
        """Keeps the record of a finished trial.

        Raises:
            OutputError: where it cannot be written; nothing is left of it then.
        """
        with writing("trials", self.path):
            replace_file(self.path / TRIALS / f"{record['key']}.json", to_line(record).encode())

    def _records(self) -> list[Path]:
        return list((self.path / TRIALS).glob("*.json"))


def to_line(record: Record) -> str:
    """The text of a record's file."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _check_same(manifest: Path, common: Mapping[str, Any]) -> None:
    try:
        held = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{manifest}: cannot be read ({error})") from error
    if not isinstance(held, dict):
        raise OutputError(f"{manifest}: is not what a sweep writes there: it was edited or is damaged")
    differing = [
        f"{name} {_text(held.get(name))} there, {_text(common.get(name))} now"
        for name in dict.fromkeys([*held, *common])
        if held.get(name) != common.get(name)
    ]
    if differing:
        raise ConfigError(
            f"{manifest.parent} holds trials that do not go together with these: {'; '.join(differing)}. "
            "Name another folder with --out"
        )


def _text(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
