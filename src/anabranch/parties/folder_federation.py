"""A federation of this machine from a folder with a file for each party, as real ones have."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from anabranch.broker.credentials import CONNECTION
from anabranch.config import party as partyfile
from anabranch.config.party import ClientFile, ServerFile
from anabranch.errors import ConfigError
from anabranch.parties.local_federation import Party, Processes
from anabranch.storage.event_ids import write_key

SERVER, ENTITY_KEY = "server.toml", "entity.key"
TAKEN = ("server", "broker")
"""Names of folders in that of a federation, which no client may have."""


class FolderFederation(Processes):
    """A federation of the files ``server.toml`` and ``NAME.toml``, which stay as they are.

    It has a broker of its own, each party a ``connection.toml`` of its own in place of the file's, and a folder of its
    own for its state. Data are where the files say. If no file's ``entity_key`` is there, one is made for all.

    Args:
        files: the folder with the parties' files.
        folder: of the federation: state, logs and connections.
        url: of a broker that is there already; None starts one.

    Raises:
        ConfigError: if a file is missing or wrong, or the files do not go together; the message names the file.
    """

    def __init__(self, files: Path, folder: Path, *, url: str | None = None, federation: str = "local") -> None:
        server = partyfile.load(files / SERVER)
        if not isinstance(server, ServerFile):
            raise ConfigError(f"{files / SERVER}: has no [labels], which the server's file has")
        names = [each.name for each in server.clients]
        super().__init__(names, folder, url=url, federation=federation)
        self.files: dict[str, Path] = {"server": files / SERVER}
        """Each party's own file, by its name."""
        self._settings: dict[str, ServerFile | ClientFile] = {"server": server}
        for name in names:
            self.files[name] = files / f"{name}.toml"
            self._settings[name] = _client(self.files[name], name, files, len(names))
        _check_others(files, set(self.files.values()))
        self._key = self._entity_key()

    def last_words(self, party: Party) -> str:
        own, there = str(self.files[party.name]), str(party.file)
        words = super().last_words(party).replace(there, own)
        return words if own in words else f"{own}: {words}"

    def _entity_key(self) -> Path | None:
        """Return where the entity key is made that all files name and that is not there; None if it is there."""
        named = {
            name: Path(key)
            for name, settings in self._settings.items()
            if (key := getattr(_data(settings), "entity_key", None)) is not None
        }
        missing = [name for name, key in named.items() if not key.is_file()]
        if missing and len(missing) < len(named):
            raise ConfigError(
                f"{self.files[missing[0]]}: entity_key is '{named[missing[0]]}', which is not there, but that of other "
                "parties is: name one file for all, or remove it for all to have one made"
            )
        return self.folder / ENTITY_KEY if missing else None

    def _check(self) -> None:
        for party in self.parties:
            if party.file.exists() and party.file.read_text(encoding="utf-8") != self._text(party):
                raise ConfigError(
                    f"{self.folder}: holds a federation of other settings ({self.files[party.name]} has changed): name "
                    "another folder (--out)"
                )

    def _write_settings(self) -> None:
        if self._key is not None and not self._key.exists():
            write_key(self._key)
        super()._write_settings()

    def _text(self, party: Party) -> str:
        settings = self._settings[party.name]
        changed: dict[str, Any] = {"connection": CONNECTION, "folder": "."}
        if self._key is not None:
            section = "labels" if isinstance(settings, ServerFile) else "features"
            changed[section] = _data(settings).model_copy(update={"entity_key": str(self._key)})
        return partyfile.text(settings.model_copy(update=changed))


def _data(settings: ServerFile | ClientFile) -> Any:
    return settings.labels if isinstance(settings, ServerFile) else settings.features


def _client(file: Path, name: str, files: Path, clients: int) -> ClientFile:
    """Return the settings of a client that the server's file names."""
    if name in TAKEN or Path(name).name != name:
        raise ConfigError(
            f"{files / SERVER}: a client's name is '{name}', which cannot be a folder of its own here: choose another"
        )
    if not file.is_file():
        raise ConfigError(
            f"{files / SERVER}: clients names '{name}', but there is no {file}: write it, or leave it out"
        )
    settings = partyfile.load(file)
    if not isinstance(settings, ClientFile):
        raise ConfigError(f"{file}: has no [features], which a client's file has")
    if settings.clients != clients:
        raise ConfigError(f"{file}: clients is {settings.clients}, but {files / SERVER} names {clients}")
    return settings


def _check_others(files: Path, known: set[Path]) -> None:
    """Refuse a client's file that the server's file does not know of: its party would be missed by nobody."""
    for file in sorted(set(files.glob("*.toml")) - known):
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # whoever includes it says so
        if "features" in values and "connection" in values:
            raise ConfigError(
                f"{file}: is a client's, but {files / SERVER} has no [[clients]] of the name '{file.stem}': add it, or "
                "move the file away"
            )
