"""Messages of a NATS JetStream stream as a source, and a key-value bucket for look-ups.

What devices send over MQTT to a nats-server arrives here too: it makes the subject ``sensors.room1`` of the topic
``sensors/room1``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeAlias

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors

from anabranch.errors import ConfigError, ConnectError, DataError, OutputError, with_extra
from anabranch.sources.base import AsOf, ClockCheck, Freshness, Happening, Notes, Reading, check_as_of, note_place
from anabranch.sources.recent_readings import Latest
from anabranch.storage.dead_letters import Aside
from anabranch.storage.event_ids import Names, entity_text
from anabranch.storage.times import ImplausibleError, TimeRule

Form: TypeAlias = Literal["json", "msgpack"]
Connect: TypeAlias = Callable[[], Awaitable[Client]]

BATCH = 256
"""Messages asked for at a time."""
WAIT = 5.0
"""Seconds that a request for messages may take before it is made again."""
AGAIN = 1.0
"""Seconds after which a broker that is away is tried again."""
ACK_WAIT = 30.0
"""Seconds after which the broker gives a message again that was neither acknowledged nor said to be under way."""
UNDER_WAY = 10_000
"""So many messages may be under way: given, and not safe yet."""
CLOSING = 2.0
"""Seconds that closing a connection may take."""

_AWAY = (errors.Error, js_errors.Error, OSError, asyncio.TimeoutError)
_PASSING = (404, 408, 409)
"""Codes from 400 on that may be another after a while; what is not there has words of its own."""
_NO_NAME = re.compile(r"[\s.*>/\\]")
"""What the name of a stream or consumer cannot have."""
_log = logging.getLogger(__name__)


class JetStreamSource:
    """Each message is a reading: an object with its fields by name.

    A message is acknowledged once it is safe, so one that was under way when this process ended is given again. One
    that does not parse is kept aside with its reason, counted, and acknowledged. A field that a message lacks is a
    missing value.

    Args:
        connect: connects to the broker, anew at each call: at first, and where nats-py has given a connection up; then
            a `ConnectError` that is not ``temporary`` ends the source, the second time in a row.
        names: of events.
        columns: the fields that readings have as values.
        stream: the name of the stream; None is without events.
        durable: the name of the consumer, by which the broker knows how far this client is.
        subject: of the stream's messages, perhaps with ``*`` and ``>``; None is all.
        bucket: a key-value bucket, in which each entity's last message is under its id, and a message of the same form;
            None is what came from the stream since this process began.
        entity: the field of the entity; None where only the time counts.
        time: the field of the time; None is when the broker took the message.
        event_time: the field of the time of the event that a message tells of, as a label does later; None is its own.
        unit: of a time that is a number.
        times: how times are read; None is by ``unit`` alone.
        event_times: how those of ``event_time`` are; None is likewise.
        as_of: what a look-up is of: ``"event"``, the last message at or before the event, of the few that are held; or
            ``"now"``, the last there is.
        form: of messages.
        aside: where messages go that cannot be used; None is nowhere.
        ack_wait: seconds after which the broker gives a message again after this process was killed.
        most_ahead: seconds that a reading may be ahead of this machine's clock before that is noted.
        max_age: seconds that a message may be older than an event; then its values are missing. None is any.
        clock: seconds since 1970.

    Raises:
        ConfigError: where a setting is wrong, or MessagePack is not installed.
    """

    slow = False
    """Look-ups are in memory."""

    def __init__(
        self,
        connect: Connect,
        names: Names,
        columns: Sequence[str],
        *,
        stream: str | None = None,
        durable: str = "anabranch",
        subject: str | None = None,
        bucket: str | None = None,
        entity: str | None = None,
        time: str | None = None,
        event_time: str | None = None,
        unit: str = "s",
        times: TimeRule | None = None,
        event_times: TimeRule | None = None,
        as_of: AsOf = "event",
        form: Form = "json",
        aside: Aside | None = None,
        ack_wait: float = ACK_WAIT,
        most_ahead: float = 3600.0,
        max_age: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if stream is None and bucket is None:
            raise ConfigError("neither a stream nor a bucket is named: events come from one, look-ups from the other")
        for what, name in (("stream", stream), ("durable", durable)):
            if name is not None and (not name or _NO_NAME.search(name)):
                raise ConfigError(f"{what} is '{name}', but it must be a name without spaces and . * > / \\")
        if bucket is not None and not re.fullmatch("[a-zA-Z0-9_-]+", bucket):
            raise ConfigError(f"bucket is '{bucket}', but it must be letters, digits, '_' and '-'")
        self.counts: Counter[str] = Counter()
        self._connect, self._names, self._columns = connect, names, tuple(columns)
        self._stream, self._durable, self._subject, self._bucket = stream, durable, subject, bucket
        self._entity, self._time, self._event_time = entity, time, event_time
        self._times = times or TimeRule(unit)
        self._event_times = event_times or self._times
        self._plausible = False
        """Whether a message had a plausible time since this process began."""
        self._wrong: ImplausibleError | None = None
        """What is wrong with the time of one that had none."""
        self._as_of = check_as_of(as_of)
        self._parse = _parser(form)
        self._aside, self._ack_wait = aside, ack_wait
        self._where = f"stream '{stream}'" if stream else f"bucket '{bucket}'"
        self._notes = Notes(self.counts, self._where)
        self._ahead = ClockCheck(self._notes, most_ahead, clock)
        self._latest = Latest(names, fresh=Freshness(max_age, self.counts))
        self._under: dict[str, str] = {}
        """The entities that are under another key of the bucket than their own id."""
        self._under_way: dict[int, str] = {}
        """Where each message that is not safe yet is acknowledged, by its number in the stream."""
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self._closed = False
        """Whether no more is wanted: who reads may be cancelled, and nats-py loses that now and then."""

    async def begin(self) -> None:
        """Connect, and read the bucket.

        Raises:
            ConfigError: where there is no such bucket, or the broker refuses it.
        """
        self._client = await self._connect()
        if self._bucket is not None:
            ready = asyncio.Event()
            watching = asyncio.ensure_future(self._watch(self._bucket, ready))
            self._tasks.append(watching)
            waiting = asyncio.ensure_future(ready.wait())
            try:
                await asyncio.wait([watching, waiting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            if watching.done():
                watching.result()
            self._check_plausible()
        if self._stream is not None:
            self._tasks.append(asyncio.ensure_future(self._keep_under_way()))

    # -- events -------------------------------------------------------------------------------------------------

    async def readings(self) -> AsyncIterator[Happening]:
        """Yield each message, as it comes.

        Raises:
            ConfigError: where there is no such stream, or the broker refuses it.
            Exception: that ended the watch of the bucket.
        """
        if self._stream is None:
            return
        client: Client | None = None
        subscription: Any = None
        while not self._closed:
            self._check_tasks()
            if client is None or client.is_closed:
                client, subscription = await self._connected(), None
            try:
                if subscription is None:
                    subscription = await self._subscribe(client, self._stream)
                messages = await subscription.fetch(BATCH, timeout=WAIT)
            except errors.TimeoutError as error:  # none have come
                self._check_lasting(client, error, self._where)
                if client.is_connected:
                    self._back()
                elif not client.is_closed:  # then it is made anew
                    self._gone(error)
                continue
            except js_errors.NotFoundError as error:
                raise ConfigError(
                    f"{self._where}: the broker has none of this name ({error.description}): whoever runs it makes the "
                    "stream once (docs/sources.md, Messages)"
                ) from error
            except _AWAY as error:
                self._check_lasting(client, error, self._where)
                subscription = None
                await self._wait(error)  # also where it was closed, which may happen again and again
                continue
            self._back()
            self._look_over(messages)
            for message in messages:
                happening = await self._happening(message)
                if happening is not None:
                    yield happening

    def _look_over(self, messages: Sequence[Msg]) -> None:
        """Read the first messages, before any of them is acknowledged."""
        if self._plausible:
            return
        for message in messages:
            with suppress(DataError):
                self._reading(message.data, message.metadata.timestamp, None)
        self._check_plausible()

    def _check_plausible(self) -> None:
        """
        Raises:
            DataError: where times were read and none was plausible: their unit or their format is another.
        """
        if self._wrong is not None and not self._plausible:
            raise DataError(f"{self._where}: no message has a usable time: {self._wrong}")

    async def _subscribe(self, client: Client, stream: str) -> Any:
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.EXPLICIT, ack_wait=self._ack_wait, max_ack_pending=UNDER_WAY
        )
        if self._subject is not None:
            config.filter_subject = self._subject
        subscription = await client.jetstream().pull_subscribe(self._subject or "", self._durable, stream, config)
        held = (await subscription.consumer_info()).config  # one that was there already stays as it was made
        of = held.filter_subjects or [held.filter_subject or ""]
        if of != [self._subject or ""]:
            was, now = (" and ".join(each) or "all subjects" for each in (of, [self._subject or ""]))
            raise ConfigError(
                f"{self._where}: its consumer '{self._durable}' was made for {was}, and cannot be for {now}: give the "
                "old subject again, or another durable, which begins with the stream's first message"
            )
        return subscription

    async def _happening(self, message: Msg) -> Happening | None:
        number = message.metadata.sequence.stream
        if number in self._under_way:  # given again, since it was long under way: it is safe when the first is
            self._under_way[number] = message.reply
            return None
        try:
            reading, event = self._reading(message.data, message.metadata.timestamp, None)
        except DataError as error:
            self._put_aside(message.subject, message.data, str(error))
            await self._acknowledge(message.reply)
            return None
        self._ahead.check(reading)
        place = self._latest.add(reading)
        # A message that is given again is none of these, and a bucket has those of the stream too.
        if self._event_time is None and self._bucket is None and message.metadata.num_delivered == 1:
            note_place(self._notes, reading, place)
        self._under_way[number] = message.reply

        async def acknowledge() -> None:
            held = self._under_way.pop(number, None)
            if held is not None:
                await self._acknowledge(held)

        return Happening(self._names.of(reading.entity, event), reading, acknowledge)

    async def _acknowledge(self, place: str) -> None:
        try:
            await self._held().publish(place)  # by the connection of today, whichever the message came by
        except _AWAY as error:  # it is given again, and does no harm
            _log.info("%s: a message could not be acknowledged: %s", self._where, error)

    async def _keep_under_way(self) -> None:
        """Tell the broker of what is not safe yet, so that it is not given again meanwhile."""
        while True:
            await asyncio.sleep(self._ack_wait / 3)
            for place in [*self._under_way.values()]:
                try:
                    await self._held().publish(place, Msg.Ack.Progress)
                except _AWAY:
                    break

    def _put_aside(self, subject: str, payload: bytes, reason: str) -> None:
        kept = self._aside is not None and self._aside.put(subject, payload, reason)
        where = f"kept in {self._aside.path}" if kept and self._aside is not None else "not kept"
        self._notes.note("unusable", f"a message of {subject} cannot be used, and is {where}: {reason}")

    def _reading(self, payload: bytes, stamp: datetime | None, key: str | None) -> tuple[Reading, int]:
        """What a message says, and the time of its event; ``key`` is the entity of a bucket's."""
        fields = self._parse(payload)
        if not isinstance(fields, Mapping):
            raise DataError(f"it is a {type(fields).__name__}, not an object with fields")
        entity = "" if self._entity is None else entity_text(fields.get(self._entity, key))
        moment = fields.get(self._time) if self._time is not None else stamp
        if moment is None and key is not None:
            moment = stamp
        if moment is None:
            raise DataError(f"it has no field '{self._time}' with its time")
        try:
            time = self._times.micros(moment)
            event = time if self._event_time is None else self._event_times.micros(fields.get(self._event_time))
        except ImplausibleError as error:
            self._wrong = error
            raise
        self._plausible = True
        return Reading(entity, time, {name: fields.get(name) for name in self._columns}), event

    def _held(self) -> Client:
        """Return the connection, as it is."""
        assert self._client is not None, "begin comes first"
        return self._client

    async def _connected(self) -> Client:
        """Return the connection; made anew where nats-py has given up, as it does where a broker says that
        something is wrong.

        Raises:
            ConnectError: where the broker refuses it.
        """
        refused = False
        async with self._connecting:  # who reads and who watches may both be here
            while self._held().is_closed and not self._closed:
                try:
                    self._client = await self._connect()
                except _AWAY as error:
                    lasting = isinstance(error, ConnectError) and not error.temporary
                    if lasting and refused:  # twice, since one that is killed just then may look like one that refuses
                        raise
                    refused = lasting
                    await self._wait(error)
            if self._closed:  # meanwhile
                await _hang_up(self._held())
            return self._held()

    def _check_lasting(self, client: Client, error: BaseException, where: str) -> None:
        """Raise an error that waiting does not mend, in words for people."""
        if isinstance(error, js_errors.BadBucketError):
            raise ConfigError(f"{where}: is a stream, and no key-value bucket") from error
        if isinstance(error, js_errors.APIError) and 400 <= (code := error.code or 0) < 500 and code not in _PASSING:
            raise ConfigError(f"{where}: the broker refuses it: {error.description} (code {code})") from error
        if "permissions violation" in (said := str(client.last_error)).lower():
            raise ConfigError(
                f"{where}: the broker does not let this party use it ({said.removeprefix('nats: ')}): whoever runs the "
                "broker has to permit $JS.API.>, $JS.ACK.>, $JS.FC.> and _INBOX.>"
            ) from error

    async def _wait(self, error: BaseException) -> None:
        self._gone(error)
        if not self._closed:
            await asyncio.sleep(AGAIN)

    def _gone(self, error: BaseException) -> None:
        if not self._away and not self._closed:
            self._away = True
            what = f"the broker is away ({str(error) or type(error).__name__})"
            if isinstance(error, js_errors.ServiceUnavailableError):
                what = f"the broker answers without JetStream ({error.description or 'nobody is there'}): is it on"
                what += ", and for this account?"
            self._notes.note("away", f"{what}; waiting for it")

    def _back(self) -> None:
        if self._away:
            self._away = False
            self._notes.note("back", "the broker is back; going on")

    # -- look-ups -----------------------------------------------------------------------------------------------

    async def _watch(self, bucket: str, ready: asyncio.Event) -> None:
        """Hold the bucket's entries, for as long as it runs."""
        while not self._closed:
            watcher: Any = None
            client = await self._connected()
            connected = client.stats["reconnects"]
            try:
                store = await client.jetstream().key_value(bucket)
                watcher = await store.watchall()
                self._back()
                while not self._closed:
                    try:
                        entry = await watcher.updates(timeout=WAIT)
                    except errors.TimeoutError:
                        if client.is_closed or client.stats["reconnects"] != connected:
                            break  # a broker that began again has forgotten who watches
                        if not ready.is_set():
                            self._check_lasting(client, client.last_error or errors.Error(), f"bucket '{bucket}'")
                        continue
                    if entry is None:  # all there were
                        ready.set()
                    else:
                        self._entry(bucket, entry)
            except (js_errors.BucketNotFoundError, js_errors.NotFoundError) as error:
                if not ready.is_set():
                    raise ConfigError(
                        f"bucket '{bucket}': the broker has none of this name: whoever runs it makes the bucket once "
                        "(docs/sources.md, Messages)"
                    ) from error
                await self._wait(error)
            except OutputError:  # an OSError as well, and not the broker's
                raise
            except _AWAY as error:
                if not ready.is_set():
                    self._check_lasting(client, error, f"bucket '{bucket}'")
                await self._wait(error)
            finally:
                if watcher is not None and client.is_connected:
                    with suppress(*_AWAY):  # it went away just now
                        await watcher.stop()

    def _entry(self, bucket: str, entry: Any) -> None:
        if entry.operation is not None:  # it was deleted
            self._latest.remove(self._under.pop(entry.key, entry.key))
            return
        try:
            reading, _ = self._reading(entry.value, entry.created, entry.key)
        except DataError as error:
            self._put_aside(f"{bucket}/{entry.key}", entry.value, str(error))
            return
        self._latest.add(reading)
        if reading.entity != entry.key:
            self._under[entry.key] = reading.entity

    def look(self, name: bytes) -> Mapping[str, Any] | None:
        """Return the last values of an event's entity at or before its time; of those that are held.

        Raises:
            Exception: that ended the watch of the bucket, since what is held would be of before it.
        """
        self._check_tasks()
        return self._latest.look(name) if self._as_of == "event" else self._latest.last(name)

    def _check_tasks(self) -> None:
        """Raise what one of them failed with."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def close(self) -> None:
        """End the connection, and whoever reads; what is not safe is given again."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._client is not None:
            await _hang_up(self._client)


async def _hang_up(client: Client) -> None:
    """Close a connection; nats-py may wait for ever for one whose last handshake failed."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait({closing}, timeout=CLOSING)
    closing.cancel()
    closing.add_done_callback(lambda task: task.cancelled() or task.exception())  # which nobody needs


def _parser(form: Form) -> Callable[[bytes], Any]:
    if form == "json":
        return _json
    if form != "msgpack":
        raise ConfigError(f"form is {form!r}: must be 'json' or 'msgpack'")
    try:
        import msgpack  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"form = 'msgpack' needs a package: {with_extra('msgpack')}") from None

    def parse(payload: bytes) -> Any:
        try:
            return msgpack.unpackb(payload, timestamp=3)
        except (ValueError, msgpack.UnpackException, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"it is not MessagePack: {str(error) or type(error).__name__}") from None

    return parse


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is not JSON: {error}") from None
