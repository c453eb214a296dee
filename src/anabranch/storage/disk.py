"""Bytes that have to be on the disk: whole writes, and folders that know their files.

What is in them has ids, inputs and parameters. So files and folders that are made here are their owner's alone,
whatever the umask says.
"""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o600
"""The mode of a new file."""


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data. An ``os.write`` may take only a part, as where a disk is nearly full."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def write_durable(path: Path, data: bytes) -> None:
    """Write a file, and return once the disk has it. Its name is durable only after `sync` of its folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Return once the disk has what was written into a file, or which names a folder holds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where it is not there; the disk has it then."""
    for each in reversed([each for each in (path, *path.parents) if not each.is_dir()]):
        each.mkdir(mode=0o700, exist_ok=True)
        sync(each.parent)
