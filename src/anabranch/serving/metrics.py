"""A party seen from outside: Prometheus metrics, health and readiness, over HTTP.

Everything is read from the party when somebody asks; only times are observed as they happen. Nothing here says
anything of a sample: no feature, label or name of an event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.errors import ConfigError
from anabranch.federation.client import ClientParty
from anabranch.federation.server import ServerParty
from anabranch.protocol.server.missing import HOW
from anabranch.serving.predictor import Predictor

LOOPBACK = "127.0.0.1"
PREFIX = "anabranch"
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: from a round trip on one machine to one over a phone's network."""
WATCHED = ("garbage", "unusable", "unexpected", "no such round", "refused")
"""Notes that are counted from 0: an alert on an increase sees the first one too."""
LARGEST = 8192
"""Bytes of a request; there is no use for a longer one."""
SECONDS = 5.0
"""How long a request, and its answer, may take."""
CONNECTIONS = 32
"""So many at a time; the next one is hung up."""

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

Party = ServerParty | ClientParty


class Metrics(Collector):
    """What a party's metrics are, and whether it is ready.

    It has a registry of its own, so that several parties may be in one process.

    Args:
        party: whose they are. From now on its round trips, or its steps, are timed.
    """

    def __init__(self, party: Party) -> None:
        self.party = party
        self.registry = CollectorRegistry()
        self._begun = time.monotonic()
        self._predictor: Predictor | None = None
        self._names = party.link.credentials.clients
        ends = party.link.credentials.expires()
        self._certificate_ends = None if ends is None else ends.timestamp()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        if isinstance(party, ServerParty):
            trips = self._histogram("round_trip_seconds", "From a query to the client's answer.", "client")
            of_each = [trips.labels(self._client(i)) for i in range(1, len(party.conversation.seats) + 1)]
            party.on_round_trip = lambda client, seconds: of_each[client - 1].observe(seconds)
        else:
            compute = party.conversation.compute
            for name, what in (("encode", "Making the embeddings of a query."), ("step", "Steps along derivatives.")):
                histogram = self._histogram(f"client_{name}_seconds", f"{what} The time of the call.")
                setattr(compute, name, _timed(getattr(compute, name), histogram.observe))

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, registry=self.registry, buckets=BUCKETS)

    def watch(self, predictor: Predictor) -> None:
        """Count and times the server's predictions too."""
        self._predictor = predictor
        text = "From a question to its prediction, at the server."
        predictor.on_answer = self._histogram("prediction_seconds", text).observe

    def text(self) -> bytes:
        """Return all of them, as Prometheus reads them."""
        return generate_latest(self.registry)

    def reasons(self) -> list[str]:
        """Why the party is not ready; none where it is."""
        party, found = self.party, []
        if not party.link.connected:
            found.append("there is no connection to the broker")
        if isinstance(party, ClientParty):
            return found if party.conversation.joined else [*found, "the server has not said welcome"]
        if party.conversation.ended:
            return [*found, "no round follows: the end was told"]
        unknowing = [self._client(i) for i in party.conversation.unknowing()]
        awaited = [name for i in party.waiting_for if (name := self._client(i)) not in unknowing]
        found += [f"waiting for {', '.join(awaited)}"] if awaited else []
        why = "to know an event, or to send what can be used: each round waits for those whose missing is 'wait'"
        return [*found, *([f"waiting for {', '.join(unknowing)} {why}"] if unknowing else [])]

    def describe(self) -> Iterator[Metric]:
        """None: else the registry would collect them to know their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """What is read from the party."""
        party = self.party
        credentials = party.link.credentials
        about = {"party": party.name, "federation": credentials.federation, "version": version("anabranch")}
        yield InfoMetricFamily(f"{PREFIX}_party", "Which party of which federation this is.", about)
        yield _gauge(
            "ready", "1 where the party takes part in rounds; /ready says why it does not.", not self.reasons()
        )
        yield _gauge("broker_connected", "1 while there is a connection to the broker.", party.link.connected)
        yield _counter(
            "broker_reconnections", "Connections to the broker after the first one.", {(): party.link.reconnections}
        )
        saved = self._begun if party.checkpoint_time is None else party.checkpoint_time
        age = "Since the last checkpoint of this process, or since its start."
        yield _gauge("checkpoint_age_seconds", age, time.monotonic() - saved)
        if self._certificate_ends is not None:
            text = "When the party's certificate of TLS, as it was read at the start, is not valid any more."
            yield _gauge("certificate_expiry_timestamp_seconds", text, self._certificate_ends)
        notes = dict.fromkeys(self._watched(), 0.0)
        notes |= {(what, self._client(client)): float(count) for (what, client), count in party.notes.items()}
        yield _counter(
            "notes", "What was out of the ordinary, or worth a note, by kind and client.", notes, "kind", "client"
        )
        for name, text, counts in (
            ("message_bytes", "Bytes of messages, without the broker's own frames.", party.link.bytes),
            ("messages", "Messages.", party.link.messages),
        ):
            values = {(way, kind, self._client(client)): float(count) for (way, kind, client), count in counts.items()}
            yield _counter(name, text, values, "direction", "kind", "client")
        yield from self._of_server(party) if isinstance(party, ServerParty) else self._of_client(party)

    def _of_server(self, party: ServerParty) -> Iterator[Metric]:
        talk, ledger = party.conversation, party.ledger
        names = [self._client(i) for i in range(1, len(talk.seats) + 1)]
        yield _counter("rounds", "Rounds played, those before this process too.", {(): talk.rounds})
        yield _gauge("rounds_in_flight", "Rounds that are open.", talk.opened - talk.rounds)
        yield _gauge("run_time_error", "Mean error of the last 20,000 rounds, from 0 to 1.", ledger.run_time_error)
        yield _gauge("accumulated_error", "Mean error of all rounds, from 0 to 1.", ledger.error_rate)
        if party.watch is not None:
            found = {(what, self._client(client)): float(n) for (what, client), n in party.watch.counts.items()}
            text = "Changes that a drift detector has noticed, those before this process too."
            yield _counter("drifts", text, found, "what", "client")
        yield _gauge("round_log_bytes", "Of the round log on the disk.", party.log_bytes)
        if party.late is not None:
            waiting = party.late.waiting
            yield _gauge("waiting_events", "Events that were predicted and wait for their labels.", len(waiting))
            name, text = "labels_without_event", "Labels that wait for an event, though later events have happened."
            yield _gauge(name, text, party.late.without_event)
            counts = {(what.replace(" ", "_"),): float(n) for what, n in waiting.counts.items()}
            yield _counter("late_labels", "What became of events and of labels that come after them.", counts, "what")
        if self._predictor is not None:
            outcomes = {
                ("answered",): float(self._predictor.answered),
                ("refused",): float(self._predictor.refused),
            }
            yield _counter("predictions", "Questions for predictions.", outcomes, "outcome")
        activations = {(name,): float(n) for name, n in zip(names, ledger.activations, strict=True)}
        yield _counter("activations", "Rounds in which a client was activated.", activations, "client")
        missing = dict(zip(names, ledger.missing, strict=True))
        answers = {(name,): float(of[HOW[0]]) for name, of in missing.items()}
        yield _counter("answers", "Rounds in which a client answered in time.", answers, "client")
        replaced = {(name, how): float(of[how]) for name, of in missing.items() for how in HOW[1:]}
        text = "Rounds in which a client was replaced, and how; skip: in which the round was dropped."
        yield _counter("replaced", text, replaced, "client", "policy")
        for kind, text, of in (
            ("client_present", "1 where rounds wait for the client.", lambda seat: seat.present),
            ("outbox_derivatives", "Derivatives that the client has in no checkpoint.", lambda seat: len(seat.outbox)),
            (
                "max_delay_steps",
                "The most steps that a derivative of the client came late.",
                lambda seat: seat.max_delay,
            ),
        ):
            family = GaugeMetricFamily(f"{PREFIX}_{kind}", text, labels=["client"])
            for name, seat in zip(names, talk.seats, strict=True):
                family.add_metric([name], float(of(seat)))
            yield family

    def _of_client(self, party: ClientParty) -> Iterator[Metric]:
        talk = party.conversation
        yield _gauge("client_joined", "1 where the server has said welcome.", talk.joined)
        yield _gauge("client_applied_round", "The last round whose derivative it has; -1: none.", talk.applied)
        yield _counter("client_answers", "Rounds answered by this process.", {(): talk.answers})
        yield _counter("client_steps", "Rounds in which this process has stepped.", {(): talk.activations})

    def _watched(self) -> Iterator[tuple[str, str]]:
        """Kind and client of the notes that are there from the start."""
        if isinstance(self.party, ClientParty):
            yield from ((kind, "") for kind in WATCHED)
        else:
            yield "stranger", ""
            clients = range(1, len(self.party.conversation.seats) + 1)
            yield from ((kind, self._client(client)) for kind in WATCHED for client in clients)

    def _client(self, client: int | None) -> str:
        """Return a client's name; ``all`` where a message goes to each, and nothing where it is about none."""
        if not isinstance(self.party, ServerParty):
            return ""
        if not client:
            return "all" if client == 0 else ""
        return self._names[client - 1] if client <= len(self._names) else f"client {client}"


@asynccontextmanager
async def serving(of: Party | Metrics, port: int | None, host: str = LOOPBACK) -> AsyncIterator[int | None]:
    """While it is entered, a party's metrics, health and readiness can be asked for.

    Args:
        of: whose they are, or its metrics where it has them already.
        port: 0 for any that is free; None for no metrics at all.
        host: an address of this machine. Everyone who can reach it can read them: there is no password.

    Returns:
        The port; None where there is none.

    Raises:
        ConfigError: where it cannot be had.
    """
    if port is None:
        yield None
        return
    metrics = of if isinstance(of, Metrics) else Metrics(of)
    server = HttpServer(metrics)
    try:
        got = await server.start(host, port)
    except OSError as error:
        raise ConfigError(
            f"metrics: port {port} of {host} cannot be had ({error.strerror or error}): name another one, or 0 for any "
            "that is free"
        ) from error
    where = f"[{host}]" if ":" in host else host
    metrics.party.say(f"metrics are at http://{where}:{got}/metrics; see also /health and /ready")
    try:
        yield got
    finally:
        await server.close()


class HttpServer:
    """Answers ``GET`` for ``/metrics``, ``/health`` and ``/ready``, in the loop that the party runs in.

    Where it answers at all, the loop is alive. It reads a request's first lines, answers and hangs up.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=LARGEST)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Hang up on everyone."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = b""
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # who asks like that gets no answer
        finally:
            writer.transport.abort()  # does nothing where all is written and it is closed

    def _answer(self, head: bytes) -> bytes:
        """Return the response to a request."""
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, protocol = rest.partition(b" ")
        if not protocol.startswith(b"HTTP/1."):
            return _response(400, _JSON, _json(error="this is no request of HTTP/1.1"))
        if method not in (b"GET", b"HEAD"):
            return _response(405, _JSON, _json(error="only GET and HEAD are answered"), b"Allow: GET, HEAD\r\n")
        match target.partition(b"?")[0]:
            case b"/metrics":
                response = _response(200, _TEXT, self._metrics.text())
            case b"/health":
                response = _response(200, _JSON, _json(alive=True, party=self._metrics.party.name))
            case b"/ready":
                why = self._metrics.reasons()
                response = _response(503 if why else 200, _JSON, _json(ready=not why, reasons=why))
            case _:
                response = _response(404, _JSON, _json(error="there are /metrics, /health and /ready"))
        return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _response(status: int, kind: str, body: bytes, more: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"Cache-Control: no-store\r\nConnection: close\r\n\r\n" + body


def _json(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _counter(name: str, text: str, values: dict[Any, float], *labels: str) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _timed(function: Callable[..., Any], observe: Callable[[float], None]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            observe(time.perf_counter() - begun)

    return timed
