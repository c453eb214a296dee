"""Asks a running federation for a prediction, over HTTP or as an asker over NATS."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nats import errors

from anabranch.broker.connect import connect, disconnect
from anabranch.broker.credentials import ASKER, Credentials
from anabranch.broker.nats_conf import is_loopback
from anabranch.errors import AnabranchError, ConfigError, ConnectError, DataError
from anabranch.storage.event_ids import Names, entity_text, read_key

ANSWER = ("prediction", "probabilities", "round", "answered", "replaced", "milliseconds")
LARGEST = 2**20
"""Bytes of an answer."""


def hidden(question: dict[str, str], entity_key: Path) -> dict[str, str]:
    """Return a question with the keyed hash of its entity instead of the id, where it has one.

    Args:
        question: as `anabranch.serving.predictor.Predictor` takes it.
        entity_key: the file of the federation's entity key.

    Raises:
        ConfigError: where the file is missing, open to others or no key, or the id is none.
    """
    names = Names(read_key(entity_key))
    if "entity" not in question:
        return question
    try:
        key = names.hash(entity_text(question["entity"]))
    except DataError as error:
        raise ConfigError(str(error)) from None
    return {name: value for name, value in question.items() if name != "entity"} | {"entity_hash": key.hex()}


def ask_http(
    url: str,
    question: dict[str, str],
    *,
    token: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    timeout: float = 30.0,
) -> dict[str, Any]:
    """Return the answer of a server's HTTP.

    Args:
        url: such as ``http://127.0.0.1:8080``.
        question: as `anabranch.serving.predictor.Predictor` takes it.
        token: a file with what is to be shown.
        ca: a file with certificates of whoever signs the server's; None is what the system trusts.
        certificate: a file with one's own, and its ``key``, where the server asks for one.
        timeout: seconds.

    Raises:
        ConfigError: where a file cannot be used, or the URL is none.
        ConnectError: where there is no answer.
        AnabranchError: where there is no prediction; it says why.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url}: is no address of HTTP: it begins with http:// or https://")
    try:
        here = is_loopback(urlsplit(url).hostname or "")
    except ValueError as error:
        raise ConfigError(f"{url}: is no address of HTTP: {error}") from None
    if token is not None and url.startswith("http://") and not here:
        raise ConfigError(f"{url} is another machine, and plaintext shows the token to others: ask over https://")
    headers = {"Content-Type": "application/json"}
    try:
        if token is not None:
            headers["Authorization"] = f"Bearer {token.read_text(encoding='utf-8').strip()}"
        context = ssl.create_default_context(cafile=ca) if url.startswith("https://") else None
        if context is not None and certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        raise ConfigError(f"a file for the connection cannot be used: {error}") from error
    body = json.dumps(question).encode()
    try:
        request = urllib.request.Request(url.rstrip("/") + "/predict", body, headers)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if here:  # else a proxy that the environment names would get what may not leave this machine
            handlers.append(urllib.request.ProxyHandler({}))
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
            return _checked(_read(response.read(LARGEST)), url)
    except urllib.error.HTTPError as error:
        said = str(_read(error.read(LARGEST)).get("error", error))
        hint = " (anabranch predict: --token FILE)" if error.code == 401 else ""
        raise AnabranchError(said + hint) from None
    except urllib.error.URLError as error:
        raise ConnectError(f"{url}: there is no answer ({error.reason})") from None
    except (OSError, ValueError, HTTPException) as error:
        raise ConnectError(f"{url}: there is no answer ({error})") from None


async def ask_nats(credentials: Credentials, question: dict[str, str], *, timeout: float = 30.0) -> dict[str, Any]:
    """Return the answer of a server over the federation's broker.

    Args:
        credentials: of an asker.
        question: as `anabranch.serving.predictor.Predictor` takes it; an entity as its keyed hash (`hidden`), since
            the broker sees it.
        timeout: seconds.

    Raises:
        ConfigError: where the question has an entity's id, the credentials are of a party, or a file of them is wrong.
        ConnectError: where there is no answer.
        AnabranchError: where there is no prediction; it says why.
    """
    if "entity" in question:
        raise ConfigError(
            "over NATS the broker would see the entity's id: name the file of the federation's entity key, so that its "
            "keyed hash is sent (anabranch predict: --entity-key FILE)"
        )
    if credentials.index != ASKER:
        raise ConfigError(
            f"this is the connection of {credentials.party}, which takes part: 'anabranch keys init --askers NAMES' "
            "makes one that asks"
        )
    name, federation = credentials.party, credentials.federation
    client = await connect(credentials, inbox_prefix=f"{federation}.answer.{name}".encode())
    try:
        message = await client.request(f"{federation}.ask.{name}", json.dumps(question).encode(), timeout=timeout)
    except (TimeoutError, errors.NoRespondersError, errors.TimeoutError):
        raise ConnectError(
            f"no server answers at {credentials.address}: is it running, with askers = true in [predictions]?"
        ) from None
    finally:
        await disconnect(client)
    return _checked(_read(message.data), credentials.address)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Else a token would go wherever an answer says."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _checked(answer: dict[str, Any], where: str) -> dict[str, Any]:
    if "error" in answer:
        raise AnabranchError(str(answer["error"]))
    if missing := [key for key in ANSWER if key not in answer]:
        raise AnabranchError(
            f"{where}: what answers there has no '{missing[0]}' in its answer: is it a server of ours?"
        )
    return answer


def _read(raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"error": f"the answer is no JSON: {raw[:60]!r}"}
