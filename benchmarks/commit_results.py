"""Adds the trials of a results folder to the committed ones, which ``anabranch reproduce --check`` compares with.

``python -m benchmarks.commit_results runs/paper``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anabranch.experiments import check
from anabranch.files import replace_file
from anabranch.sweep.folder import TRIALS, to_line
from anabranch.sweep.record import check_record


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


def main() -> None:
    target = Path(check.__file__).with_name(check.FILE)
    count = commit(Path(sys.argv[1]), target)
    print(f"{target}: {count} trials, {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
