"""Messages of a NATS JetStream stream as a source, and a key-value bucket for look-ups.

What devices send over MQTT to a nats-server arrives here too: it makes the subject ``sensors.room1`` of the topic
``sensors/room1``.
"""

from __future__ import annotations

import asyncio
import json
import logging
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

from anabranch.errors import ConfigError, DataError, OutputError
from anabranch.sources.aside import Aside
from anabranch.sources.base import AsOf, ClockCheck, Happening, Notes, Reading, check_as_of, note_place
from anabranch.sources.latest import Latest
from anabranch.sources.names import Names, entity_text
from anabranch.sources.times import UNITS, micros

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

_AWAY = (errors.Error, js_errors.Error, OSError, asyncio.TimeoutError)
_log = logging.getLogger(__name__)


class JetStreamSource:
    """Each message is a reading: an object with its fields by name.

    A message is acknowledged once it is safe, so one that was under way when this process ended is given again. One
    that does not parse is kept aside with its reason, counted, and acknowledged. A field that a message lacks is a
    missing value.

    Args:
        connect: connects to the broker, anew at each call; what it raises for good ends the source.
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
        as_of: what a look-up is of: ``"event"``, the last message at or before the event, of the few that are held; or
            ``"now"``, the last there is.
        form: of messages.
        aside: where messages go that cannot be used; None is nowhere.
        ack_wait: seconds after which the broker gives a message again after this process was killed.
        most_ahead: seconds that a reading may be ahead of this machine's clock before that is noted.
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
        as_of: AsOf = "event",
        form: Form = "json",
        aside: Aside | None = None,
        ack_wait: float = ACK_WAIT,
        most_ahead: float = 3600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if stream is None and bucket is None:
            raise ConfigError("neither a stream nor a bucket is named: events come from one, look-ups from the other")
        if unit not in UNITS:
            raise ConfigError(f"unit is {unit!r}: must be one of {', '.join(UNITS)}")
        self.counts: Counter[str] = Counter()
        self._connect, self._names, self._columns = connect, names, tuple(columns)
        self._stream, self._durable, self._subject, self._bucket = stream, durable, subject, bucket
        self._entity, self._time, self._event_time, self._unit = entity, time, event_time, unit
        self._as_of = check_as_of(as_of)
        self._parse = _parser(form)
        self._aside, self._ack_wait = aside, ack_wait
        self._where = f"stream '{stream}'" if stream else f"bucket '{bucket}'"
        self._notes = Notes(self.counts, self._where)
        self._ahead = ClockCheck(self._notes, most_ahead, clock)
        self._latest = Latest(names)
        self._under: dict[str, str] = {}
        """The entities that are under another key of the bucket than their own id."""
        self._under_way: dict[int, Msg] = {}
        self._client: Client | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self._closed = False
        """Whether no more is wanted: who reads may be cancelled, and nats-py loses that now and then."""

    async def begin(self) -> None:
        """Connects, and reads the bucket.

        Raises:
            ConfigError: where there is no such stream or bucket.
        """
        self._client = await self._connect()
        if self._bucket is not None:
            ready = asyncio.Event()
            watching = asyncio.ensure_future(self._watch(self._bucket, ready))
            self._tasks.append(watching)
            waiting = asyncio.ensure_future(ready.wait())
            await asyncio.wait([watching, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if watching.done():
                watching.result()
        if self._stream is not None:
            self._tasks.append(asyncio.ensure_future(self._keep_under_way()))

    # -- events -------------------------------------------------------------------------------------------------

    async def readings(self) -> AsyncIterator[Happening]:
        """Each message, as it comes.

        Raises:
            ConfigError: where there is no such stream.
            Exception: that ended the watch of the bucket.
        """
        if self._stream is None:
            return
        subscription: Any = None
        while not self._closed:
            self._check_tasks()
            try:
                if subscription is None:
                    subscription = await self._subscribe(self._stream)
                messages = await subscription.fetch(BATCH, timeout=WAIT)
            except errors.TimeoutError as error:  # none have come
                if self._client is not None and self._client.is_connected:
                    self._back()
                else:
                    self._gone(error)
                continue
            except js_errors.NotFoundError as error:
                raise ConfigError(
                    f"{self._where}: the broker has none of this name ({error.description}): whoever runs it makes the "
                    "stream once (docs/sources.md, Messages)"
                ) from error
            except _AWAY as error:
                subscription = None
                await self._wait(error)
                continue
            self._back()
            for message in messages:
                happening = await self._happening(message)
                if happening is not None:
                    yield happening

    async def _subscribe(self, stream: str) -> Any:
        assert self._client is not None, "begin comes first"
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.EXPLICIT, ack_wait=self._ack_wait, max_ack_pending=UNDER_WAY
        )
        if self._subject is not None:
            config.filter_subject = self._subject
        js = self._client.jetstream()
        return await js.pull_subscribe(self._subject or "", self._durable, stream, config)

    async def _happening(self, message: Msg) -> Happening | None:
        number = message.metadata.sequence.stream
        try:
            reading, event = self._reading(message.data, message.metadata.timestamp, None)
        except DataError as error:
            self._put_aside(message.subject, message.data, str(error))
            await self._acknowledge(message)
            return None
        self._ahead.check(reading)
        place = self._latest.add(reading)
        # A message that is given again is none of these, and a bucket has those of the stream too.
        if self._event_time is None and self._bucket is None and message.metadata.num_delivered == 1:
            note_place(self._notes, reading, place)
        self._under_way[number] = message

        async def acknowledge() -> None:
            held = self._under_way.pop(number, None)
            if held is not None:
                await self._acknowledge(held)

        return Happening(self._names.of(reading.entity, event), reading, acknowledge)

    async def _acknowledge(self, message: Msg) -> None:
        try:
            await message.ack()
        except _AWAY as error:  # it is given again, and does no harm
            _log.info("%s: a message could not be acknowledged: %s", self._where, error)

    async def _keep_under_way(self) -> None:
        """Tells the broker of what is not safe yet, so that it is not given again meanwhile."""
        while True:
            await asyncio.sleep(self._ack_wait / 3)
            for message in [*self._under_way.values()]:
                try:
                    await message.in_progress()
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
        time = micros(moment, self._unit)
        event = time if self._event_time is None else micros(fields.get(self._event_time), self._unit)
        return Reading(entity, time, {name: fields.get(name) for name in self._columns}), event

    async def _wait(self, error: BaseException) -> None:
        self._gone(error)
        if not self._closed:
            await asyncio.sleep(AGAIN)

    def _gone(self, error: BaseException) -> None:
        if not self._away and not self._closed:
            self._away = True
            self._notes.note("away", f"the broker is away ({str(error) or type(error).__name__}); waiting for it")

    def _back(self) -> None:
        if self._away:
            self._away = False
            self._notes.note("back", "the broker is back; going on")

    # -- look-ups -----------------------------------------------------------------------------------------------

    async def _watch(self, bucket: str, ready: asyncio.Event) -> None:
        """Holds the bucket's entries, for as long as it runs."""
        assert self._client is not None, "begin comes first"
        while not self._closed:
            watcher: Any = None
            connected = self._client.stats["reconnects"]
            try:
                store = await self._client.jetstream().key_value(bucket)
                watcher = await store.watchall()
                self._back()
                while not self._closed:
                    try:
                        entry = await watcher.updates(timeout=WAIT)
                    except errors.TimeoutError:
                        if self._client.stats["reconnects"] != connected:
                            break  # a broker that began again has forgotten who watches
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
                await self._wait(error)
            finally:
                if watcher is not None and self._client.is_connected:
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
        """The last values of an event's entity at or before its time; of those that are held.

        Raises:
            Exception: that ended the watch of the bucket, since what is held would be of before it.
        """
        self._check_tasks()
        return self._latest.look(name) if self._as_of == "event" else self._latest.last(name)

    def _check_tasks(self) -> None:
        """Raises what one of them failed with."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def close(self) -> None:
        """Ends the connection, and whoever reads; what is not safe is given again."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._client is not None and not self._client.is_closed:
            await self._client.close()


def _parser(form: Form) -> Callable[[bytes], Any]:
    if form == "json":
        return _json
    if form != "msgpack":
        raise ConfigError(f"form is {form!r}: must be 'json' or 'msgpack'")
    try:
        import msgpack  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("form = 'msgpack' needs a package: pip install 'anabranch[msgpack]'") from None

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
