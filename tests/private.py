"""A look at who may read what is in a folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def open_to_others(folder: Path, but: Collection[Path] = ()) -> list[str]:
    """Files and folders that others than their owner may do anything with, this folder among them."""
    return [
        f"{each}: {each.lstat().st_mode & 0o777:o}"
        for each in sorted([folder, *folder.rglob("*")])
        if each not in but and each.lstat().st_mode & 0o077 and not each.is_symlink()
    ]
