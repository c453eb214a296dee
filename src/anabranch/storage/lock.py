"""A folder belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anabranch.errors import ConfigError
from anabranch.storage.disk import PRIVATE, make_folder
from anabranch.storage.files import writing

LOCK = "lock"


@contextmanager
def locked(folder: Path, what: str = "lock") -> Iterator[None]:
    """Within it, the folder is this process's own. The system lets go of it when the process ends, however it does.

    Args:
        folder: made where it is not there. A file ``lock`` stays in it, which says who was last.
        what: is to be written there, as a person calls it; an OutputError names it.

    Raises:
        ConfigError: where another process, or this one, already uses the folder.
        OutputError: where the folder cannot be made or locked.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     sorted(each.name for each in Path(folder).iterdir())
    ['lock']
    """
    with writing(what, folder):
        make_folder(folder)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        with writing(what, folder):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{folder} is in use by {_holder(descriptor)}: end that one first, or name another folder"
                ) from None
        with suppress(OSError):  # a disk that is full keeps nobody from working
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # and with it the lock; to remove the file would let two processes lock two files


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).strip()
    if not text.isdigit():
        return "another process"
    return "this process already" if int(text) == os.getpid() else f"the process {int(text)}"
