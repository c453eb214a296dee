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


def main() -> None:
    committed = dict(check.reference())
    for file in sorted((Path(sys.argv[1]) / TRIALS).glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        committed[record["key"]] = record
    lines = [to_line(committed[key]) for key in sorted(committed)]
    target = Path(check.__file__).with_name(check.FILE)
    replace_file(target, "".join(lines).encode())
    print(f"{target}: {len(lines)} trials, {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
