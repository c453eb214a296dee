"""Where a server's predictions are to be had: over HTTP, over NATS, or both, as its file says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from anabranch.config.party import Predictions
from anabranch.errors import ConfigError
from anabranch.federation.server import ServerParty
from anabranch.serving.http import HttpSettings, serving_predictions
from anabranch.serving.metrics import Metrics
from anabranch.serving.predictor import Predictor
from anabranch.storage.event_ids import Names


@asynccontextmanager
async def predicting(
    party: ServerParty,
    settings: Predictions,
    metrics: Metrics,
    names: Names | None = None,
    *,
    of_times: bool = False,
) -> AsyncIterator[int | None]:
    """While it is entered, a server that is not running yet answers questions once it runs.

    Args:
        party: the server.
        settings: of its file.
        metrics: of the server.
        names: makes an event's name of an entity and a time; None where events have names of their own only.
        of_times: whether events are of times alone.

    Returns:
        The port; None where HTTP is not wanted.

    Raises:
        ConfigError: where the settings do not go together, or the port cannot be had.
    """
    if settings.port is None and not settings.askers:
        raise ConfigError("predictions: nobody can ask: give a port, or askers = true")
    predictor = Predictor(party, names, of_times=of_times)
    metrics.watch(predictor)
    if settings.askers:
        party.link.answer = predictor.answer_json
    async with AsyncExitStack() as stack:
        port = None
        if settings.port is not None:
            files = {
                name: None if value is None else Path(value)
                for name in ("token", "certificate", "key", "clients_ca")
                for value in [getattr(settings, name)]
            }
            where = HttpSettings(settings.port, settings.host, **files)
            port = await stack.enter_async_context(serving_predictions(predictor, metrics, where))
        yield port
