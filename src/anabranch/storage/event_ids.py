"""An event's name where it is an entity at a time: what all parties call it, and which shows the entity to nobody else.

Every party makes it by itself, with a key that the clients and the server share and the broker does not have.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from functools import lru_cache
from pathlib import Path

from anabranch.checks import whole
from anabranch.errors import ConfigError
from anabranch.storage.files import check_private, writing
from anabranch.tables.values import entity_text

__all__ = [
    "EARLIEST",
    "HASH_BYTES",
    "KEY_BYTES",
    "LATEST",
    "NAME_BYTES",
    "Names",
    "entity_text",
    "read_key",
    "write_key",
]

KEY_BYTES = 32
HASH_BYTES = 16
NAME_BYTES = HASH_BYTES + 8
EARLIEST, LATEST = -(2**63), 2**63 - 1


class Names:
    """Makes and reads the names of a federation's events.

    Args:
        key: 32 bytes that all parties share.
        grain: microseconds; times that fall between the same two multiples of it are one event, which bears the later
            multiple. All parties must have the same.

    >>> names = Names(bytes(32))
    >>> names.of("A-17", 1_000_000).hex()
    '2ff54be20d785da0ac66956dcca1dfa800000000000f4240'
    >>> names.read(names.of("", 5)) == (names.hash(""), 5)
    True
    """

    def __init__(self, key: bytes, grain: int = 1) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the entity key has {len(key)} bytes, but it must have {KEY_BYTES}")
        self.grain = whole("grain", grain, 1)
        self._hash = lru_cache(1 << 16)(lambda text: hmac.digest(key, text.encode(), hashlib.sha256)[:HASH_BYTES])

    def hash(self, entity: str) -> bytes:
        """Return the keyed hash of an entity, 16 bytes; the empty text is for a world in which only the time counts."""
        return self._hash(entity)

    def of(self, entity: str, time: int) -> bytes:
        """Return the name of an entity's event at a time, in microseconds since 1970."""
        return self.of_hash(self._hash(entity), time)

    def of_hash(self, key: bytes, time: int) -> bytes:
        """Return the name of an event at a time, of the entity with this keyed hash."""
        return key + self.moment(time).to_bytes(8, "big", signed=True)

    def moment(self, time: int) -> int:
        """Return the time that the name of an event at this time bears."""
        return -(-time // self.grain) * self.grain

    @staticmethod
    def read(name: bytes) -> tuple[bytes, int] | None:
        """Return the hash and the time in a name; None where it is another kind of name."""
        if len(name) != NAME_BYTES:
            return None
        return name[:HASH_BYTES], int.from_bytes(name[HASH_BYTES:], "big", signed=True)


def read_key(path: Path) -> bytes:
    """Return the key in a file.

    Raises:
        ConfigError: where it is missing, open to others, or no key.
    """
    check_private(path)
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file: make one for the federation with 'anabranch keys entity {path}', and give "
            "every party the same"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{path}: has {len(key)} bytes, but an entity key has {KEY_BYTES}: copy the file that "
            "'anabranch keys entity' made as it is"
        )
    return key


def write_key(path: Path) -> None:
    """Make a new key in a file that only its owner can read.

    Raises:
        ConfigError: where the file is there.
        OutputError: where it cannot be written.
    """
    try:
        with writing("entity key", path.parent):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:  # as on a full disk: what is left would stand in the way of the next try
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        if isinstance(error.__cause__, FileExistsError):
            text = "is there already, and another key would give all events other names"
            raise ConfigError(f"{path}: {text}") from None
        raise
