"""How many entities two clients share, without either showing which: private set intersection, by files.

One side offers, the other answers, and the first one counts. The protocol (elliptic curve Diffie-Hellman, cardinality
only) is OpenMined's, in the package ``openmined-psi``; what goes into it are the entities' keyed hashes. Each side
learns how many entities the other has, and the one that counts learns how many they share.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.errors import ConfigError, DataError, with_extra
from anabranch.storage.event_ids import Names
from anabranch.storage.files import check_private, replace_file, to_json, writing

_FALSE_POSITIVES = 1e-9
"""Not used by the structure that is sent, and asked for all the same."""


class Count(NamedTuple):
    """What an alignment has come to."""

    shared: int
    """How many entities both have."""
    here: int
    there: int
    same_order: bool
    """Whether both sides' lists are the same, in the same order."""


def offer(entities: Sequence[str], names: Names, public: Path, secret: Path) -> None:
    """Begin: writes what the other side gets, and what stays here until `count`.

    Raises:
        ConfigError: where the package is not installed, or there are no entities.
        OutputError: where a file cannot be written.
    """
    psi = _psi()
    client = psi.client.CreateWithNewKey(False)
    request = client.CreateRequest(_elements(entities, names))
    about = _about("offer", entities, names)
    with writing("offer", public.parent):
        key = {"key": _text(client.GetPrivateKeyBytes())}
        replace_file(secret, to_json(about | key).encode(), private=True)
        replace_file(public, to_json(about | {"request": _text(request.SerializeToString())}).encode())


def answer(entities: Sequence[str], names: Names, offered: Path, public: Path) -> None:
    """Answer an offer, into a file for the side that made it.

    Raises:
        ConfigError: where the package is not installed, there are no entities, or the sides have different keys.
        DataError: where the offer is none.
        OutputError: where the file cannot be written.
    """
    psi = _psi()
    told = _read(offered, "offer")
    _same_key(told, names, offered)
    server = psi.server.CreateWithNewKey(False)
    there = int(told["entities"])
    request = _parsed(psi.Request(), told["request"], offered)
    _complete(request, there, offered)
    try:
        setup = server.CreateSetupMessage(_FALSE_POSITIVES, there, _elements(entities, names), psi.DataStructure.RAW)
        response = server.ProcessRequest(request)
    except RuntimeError as error:
        raise DataError(f"{offered}: cannot be answered ({error}): have it made again") from error
    parts = {"setup": _text(setup.SerializeToString()), "response": _text(response.SerializeToString())}
    about = _about("answer", entities, names) | {"offer": told["order"]}
    with writing("answer", public.parent):
        replace_file(public, to_json(about | parts).encode())


def count(answered: Path, secret: Path) -> Count:
    """What the answer to an offer comes to.

    Raises:
        ConfigError: where the package is not installed, or the secret is open to others.
        DataError: where a file is not what it should be, or the answer is to another offer.
    """
    psi = _psi()
    check_private(secret)
    mine, told = _read(secret, "offer", "key"), _read(answered, "answer")
    if told["offer"] != mine["order"]:
        raise DataError(f"{answered}: answers another offer than that of {secret}")
    client = psi.client.CreateFromKey(base64.b64decode(mine["key"]), False)
    setup = _parsed(psi.ServerSetup(), told["setup"], answered)
    response = _parsed(psi.Response(), told["response"], answered)
    _complete(setup.raw, int(told["entities"]), answered)
    _complete(response, int(mine["entities"]), answered)
    try:
        shared = client.GetIntersectionSize(setup, response)
    except RuntimeError as error:
        raise DataError(f"{answered}: cannot be counted ({error}): have it made again") from error
    return Count(int(shared), int(mine["entities"]), int(told["entities"]), mine["order"] == told["order"])


def _psi() -> Any:
    try:
        import private_set_intersection.python as psi  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ConfigError(f"aligning needs a package: {with_extra('align')}") from None
    return psi


def _elements(entities: Sequence[str], names: Names) -> list[str]:
    """Return each entity once."""
    return sorted({names.hash(each).hex() for each in entities})


def _about(kind: str, entities: Sequence[str], names: Names) -> dict[str, Any]:
    if not entities:
        raise ConfigError("there are no entities to align")
    order = hashlib.sha256(b"".join(names.hash(each) for each in entities)).hexdigest()
    return {"align": kind, "entities": len({*entities}), "order": order, "key_of": _fingerprint(names)}


def _fingerprint(names: Names) -> str:
    """What tells two entity keys apart."""
    return hashlib.sha256(names.hash("anabranch align")).hexdigest()[:16]


def _same_key(told: dict[str, Any], names: Names, path: Path) -> None:
    if told["key_of"] != _fingerprint(names):
        raise ConfigError(f"{path}: was made with another entity key: both sides need the federation's")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _parsed(message: Any, text: str, path: Path) -> Any:
    try:
        message.ParseFromString(base64.b64decode(text, validate=True))
    except Exception as error:  # of base64, or of one of protobuf's implementations
        raise DataError(f"{path}: is damaged: have it made again") from error
    return message


def _complete(message: Any, entities: int, path: Path) -> None:
    if len(message.encrypted_elements) != entities:
        raise DataError(f"{path}: is damaged, since it lacks some of its {entities:,} entities: have it made again")


_PARTS = {"offer": ("request",), "answer": ("offer", "setup", "response")}


def _read(path: Path, kind: str, *parts: str) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: is no file of 'anabranch align'") from error
    wanted = ("order", "key_of", *(parts or _PARTS[kind]))
    sound = isinstance(told, dict) and told.get("align") == kind and type(told.get("entities")) is int
    if not sound or not all(isinstance(told.get(each), str) for each in wanted):
        raise DataError(f"{path}: is no {kind} of 'anabranch align': give the file that it made")
    return dict(told)
