"""Commits the results of a folder: its trials, its tables and its pictures.

``python -m benchmarks.commit_results runs/paper`` adds the trials to those that ``anabranch reproduce --check``
compares with, and puts each experiment's tables, notes, command, versions and machine, and its pictures, into
``docs/paper/``.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from anabranch.paper import check
from anabranch.paper.summary import SUMMARY
from anabranch.storage.files import replace_file, to_json
from anabranch.sweep.folder import TRIALS, to_line
from anabranch.sweep.record import check_record

DOCS = Path(__file__).parents[1] / "docs" / "paper"


def commit(folder: Path, target: Path) -> int:
    """Writes the committed trials and the folder's, each as it is, and returns how many there are.

    Raises:
        DataError: where one of the folder's is damaged; nothing is written then.
    """
    committed = dict(check.reference())
    for file in sorted((folder / TRIALS).glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        check_record(record, file)
        committed[record["key"]] = record
    replace_file(target, "".join(to_line(committed[key]) for key in sorted(committed)).encode())
    return len(committed)


def commit_tables(folder: Path, target: Path) -> list[str]:
    """Writes ``NAME.json`` for each experiment of the folder, which is its summary without the trials, and copies the
    pictures; returns the experiments' names."""
    target.mkdir(exist_ok=True)
    names = []
    for file in sorted(folder.glob(f"*/{SUMMARY}")):
        summary = json.loads(file.read_text(encoding="utf-8"))
        summary["trials"] = len(summary.pop("runs"))
        replace_file(target / f"{summary['name']}.json", to_json(summary).encode())
        for picture in summary["pictures"]:
            shutil.copy(file.with_name(picture["file"]), target)
        names.append(summary["name"])
    return names


def main() -> None:
    folder, target = Path(sys.argv[1]), Path(check.__file__).with_name(check.FILE)
    count = commit(folder, target)
    print(f"{target}: {count} trials, {target.stat().st_size / 1e6:.1f} MB")
    print(f"{DOCS}: {', '.join(commit_tables(folder, DOCS))}")


if __name__ == "__main__":
    main()
