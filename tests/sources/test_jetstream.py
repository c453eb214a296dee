"""Messages are events, acknowledged once they are safe; a bucket is for look-ups: with a real nats-server."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from paho.mqtt.client import Client as MqttClient
from paho.mqtt.enums import CallbackAPIVersion

from anabranch.broker.local import LocalBroker
from anabranch.errors import ConfigError, ConnectError, DataError, OutputError
from anabranch.sources import jetstream
from anabranch.sources.base import Happening
from anabranch.sources.jetstream import JetStreamSource
from anabranch.storage.dead_letters import Aside
from anabranch.storage.event_ids import Names
from anabranch.storage.times import TimeRule
from message_brokers import connecting, message_broker, mqtt_port
from patience import until
from source_playing import play, run

NAMES = Names(bytes(32))
EARLY = TimeRule(years=(1970, 2100))


def with_broker(folder: Path, body: Callable[[LocalBroker, JetStreamContext], Coroutine[Any, Any, None]]) -> None:
    """Runs a test that has a stream ``orders`` and a bucket ``customers``."""

    async def main() -> None:
        async with message_broker(folder) as broker:
            client = await connecting(broker)()
            js = client.jetstream()
            await js.add_stream(name="orders", subjects=["orders.>"])
            await js.create_key_value(bucket="customers")
            try:
                await body(broker, js)
            finally:
                await client.close()

    run(main())


def opened(broker: LocalBroker, **options: Any) -> JetStreamSource:
    options = {"stream": "orders", "entity": "who", "time": "at", "times": EARLY} | options
    return JetStreamSource(connecting(broker), NAMES, ["a"], **options)


async def first(source: JetStreamSource, most: int) -> list[Happening]:
    await source.begin()
    return await play(source, most)


async def play_until(source: JetStreamSource, entity: str) -> list[Happening]:
    """What happens, until it happens to an entity."""
    events: list[Happening] = []
    async for event in source.readings():
        events.append(event)
        if event.reading.entity == entity:
            break
    return events


async def tell(js: JetStreamContext, *rows: tuple[Any, Any, Any]) -> None:
    for who, at, a in rows:
        await js.publish(f"orders.{who}", json.dumps({"who": who, "at": at, "a": a}).encode())


def short(events: list[Happening]) -> list[tuple[str, int, Any]]:
    return [(each.reading.entity, each.reading.time // 1_000_000, each.reading.values["a"]) for each in events]


def at(source: JetStreamSource, entity: str, seconds: float) -> Any:
    values = source.look(NAMES.of(entity, round(seconds * 1e6)))
    return None if values is None else values["a"]


def test_messages_are_events_and_given_again_until_they_are_safe(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1, 10), ("y", 2, 20), ("x", "1970-01-01T00:00:03Z", 30))
        source = opened(broker, ack_wait=0.5)
        events = await first(source, 3)
        assert short(events) == [("x", 1, 10), ("y", 2, 20), ("x", 3, 30)]
        assert events[0].name == NAMES.of("x", 1_000_000)
        assert [at(source, "x", s) for s in (0, 2, 3)] == [None, 10, 30]
        assert at(source, "nobody", 9) is None
        await events[1].safe()
        await events[1].safe()
        await source.close()
        again = opened(broker, ack_wait=0.5)
        events = await first(again, 2)
        assert sorted(short(events)) == [("x", 1, 10), ("x", 3, 30)]
        for each in events:
            await each.safe()
        await again.close()
        await tell(js, ("z", 4, 40))
        last = opened(broker)
        assert short(await first(last, 1)) == [("z", 4, 40)]
        await last.close()

    with_broker(tmp_path, body)


def test_messages_whose_times_go_back_or_are_the_same_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 5, 50), ("y", 1, 10), ("x", 2, 20), ("x", 2, 21))
        source = opened(broker, ack_wait=0.5)
        events = await first(source, 4)
        assert short(events) == [("x", 5, 50), ("y", 1, 10), ("x", 2, 20), ("x", 2, 21)]
        assert events[2].name == events[3].name == NAMES.of("x", 2_000_000)  # one round
        assert [at(source, "x", s) for s in (2, 5)] == [21, 50]
        assert source.counts == {"back in time": 1, "duplicate": 1}
        await source.close()
        again = opened(broker, ack_wait=0.5)  # what is given again says nothing new
        await first(again, 4)
        assert again.counts == {}
        await again.close()
        assert "a reading of 1970-01-01 00:00:02 UTC has come after a later one of its entity" in caplog.text
        assert "two readings of one entity are both of 1970-01-01 00:00:02 UTC: they are one event" in caplog.text

    with_broker(tmp_path, body)


def test_a_message_that_the_broker_gives_again_is_safe_when_the_first_is(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1, 10))
        source = opened(broker, ack_wait=0.5)
        readings = source.readings()
        await source.begin()
        event = await anext(readings)
        # As after an interruption that was longer than the broker waits.
        reply = source._under_way[1]
        source._under_way[1] = "nowhere"
        following = asyncio.ensure_future(anext(readings))
        await until(lambda: source._under_way.get(1) not in ("nowhere", reply, None))
        await tell(js, ("y", 2, 20))
        assert short([await following]) == [("y", 2, 20)]
        info = await js.consumer_info("orders", "anabranch")
        assert (info.num_ack_pending, info.num_redelivered) == (2, 1)
        await event.safe()
        await source.close()

    with_broker(tmp_path, body)


def test_what_is_not_safe_for_long_is_not_given_again_meanwhile(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1, 10))
        source = opened(broker, ack_wait=0.3)
        events = await first(source, 1)
        following = asyncio.ensure_future(play(source, 1))
        begin = time.monotonic()
        while time.monotonic() < begin + 1.5:  # five times as long as the broker would wait
            await asyncio.wait([following], timeout=0.1)
        await tell(js, ("y", 2, 20))
        assert short(await following) == [("y", 2, 20)]
        assert (await js.consumer_info("orders", "anabranch")).num_redelivered == 0
        await events[0].safe()
        await source.close()

    with_broker(tmp_path, body)


def test_a_message_that_cannot_be_used_is_kept_aside_and_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [
        b"{not json", b"[1]", b'{"at": 1}', b'{"who": "x"}', b'{"who": "x", "at": "soon"}',
        b'{"who": "x", "at": ' + b"1" * 400 + b"}", b'{"who": "\\ud83d", "at": 1}', b"\xff\xfe",
    ]  # fmt: skip

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        for each in bad:
            await js.publish("orders.bad", each)
        await tell(js, ("x", 1, 10))
        source = opened(broker, aside=Aside(tmp_path / "aside.jsonl", most=7))
        events = await first(source, 1)
        assert short(events) == [("x", 1, 10)]
        assert source.counts == {"unusable": 8}
        assert "a message of orders.bad cannot be used, and is kept in" in caplog.text
        async with asyncio.timeout(30):  # they are acknowledged, and the broker hears of it
            while (await js.consumer_info("orders", "anabranch")).num_ack_pending > 1:
                await asyncio.sleep(0.01)
        await source.close()

    with_broker(tmp_path / "broker", body)
    lines = [json.loads(line) for line in (tmp_path / "aside.jsonl").read_text().splitlines()]
    assert [base64.b64decode(line["payload"]) for line in lines] == bad[:7]
    reasons = [line["reason"] for line in lines]
    for reason, said in zip(
        reasons,
        [
            "not JSON", "a list, not an object", "the entity is None", "no field 'at'", "a text is no time",
            "a number of more than 60 digits under time_unit", "the entity is no text that Unicode can write",
        ],
        strict=True,
    ):  # fmt: skip
        assert said in reason


def test_messagepack_and_the_time_of_the_broker(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        before = dt.datetime.now(dt.UTC).timestamp()
        await js.publish("orders.x", b"\xc1")
        far = msgpack.Timestamp(2**62)  # a year that Python has no date for
        await js.publish("orders.x", msgpack.packb({"who": 17, "at": far}))
        await js.publish("orders.x", msgpack.packb({"who": 17, "a": 1.5}))
        moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        await js.publish("orders.x", msgpack.packb({"who": 17, "at": moment}, datetime=True))
        source = opened(broker, form="msgpack", time=None, durable="one")
        event, late = await first(source, 2)
        assert (event.reading.entity, event.reading.values) == ("17", {"a": 1.5})
        assert before - 1 <= event.reading.time / 1e6 <= before + 60
        assert late.reading.values == {"a": None}
        assert source.counts == {"unusable": 2}
        await source.close()
        source = opened(broker, form="msgpack", durable="two")
        (event,) = await first(source, 1)
        assert event.reading.time == 1_767_225_600_000_000
        await source.close()

    with_broker(tmp_path, body)


def test_a_bucket_has_the_last_values_of_each_entity(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        store = await js.key_value("customers")
        await store.put("x", b'{"at": 1, "a": 10}')
        await store.put("y", b'{"at": 2, "a": 20}')
        await store.put("bad", b"{")
        await store.put("gone", b'{"at": 1, "a": 0}')
        await store.delete("gone")
        source = opened(broker, stream=None, bucket="customers")
        now = opened(broker, stream=None, bucket="customers", as_of="now")
        await source.begin()
        await now.begin()
        assert [at(source, who, 9) for who in ("x", "y", "bad", "gone", "z")] == [10, 20, None, None, None]
        assert (at(source, "x", 0), at(now, "x", 0), at(now, "z", 0)) == (None, 10, None)
        assert source.counts == {"unusable": 1}
        assert await play(source) == []
        await store.put("bad", b'{"at": ' + b"1" * 400 + b"}")
        await store.put("worse", b'{"who": "\\ud83d", "at": 1}')  # a bucket has the last of a key alone
        await store.put("x", b'{"at": 5, "a": 11}')
        await store.put("z", b'{"at": 6, "a": 30}')
        async with asyncio.timeout(30):
            while at(source, "z", 9) is None:
                await asyncio.sleep(0)
        assert [at(source, "x", s) for s in (4, 5)] == [10, 11]
        assert source.counts == {"unusable": 3}
        await store.put("key", b'{"who": "other", "at": 7, "a": 70}')
        async with asyncio.timeout(30):
            while at(source, "other", 9) != 70:
                await asyncio.sleep(0)
        await store.delete("key")
        async with asyncio.timeout(30):
            while at(source, "other", 9) is not None:
                await asyncio.sleep(0)
        await source.close()
        await now.close()

    with_broker(tmp_path, body)


def test_a_watch_that_ends_is_an_error_and_no_old_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "WAIT", 0.2)

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        store = await js.key_value("customers")
        source = opened(broker, bucket="customers", aside=Aside(tmp_path / "own" / "aside.jsonl"))
        await source.begin()
        (tmp_path / "own").rmdir()
        (tmp_path / "own").write_text("")  # nothing can be kept aside any more
        await store.put("bad", b"{")
        with pytest.raises(OutputError, match="messages kept aside"):
            await play(source, 1)
        with pytest.raises(OutputError, match="messages kept aside"):
            at(source, "x", 9)
        await source.close()

    with_broker(tmp_path / "broker", body)


def test_whoever_reads_ends_with_the_source(tmp_path: Path) -> None:
    """Also where nats-py has lost that it was cancelled: it takes that for a connection that was closed."""

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        for i in range(10):
            source = opened(broker, durable=f"reader{i}")
            await source.begin()
            reading = asyncio.ensure_future(play(source))
            while len(await js.consumers_info("orders")) == i:  # it has begun
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.03)
            reading.cancel()
            for _ in range(i % 4):
                await asyncio.sleep(0)
            await source.close()
            async with asyncio.timeout(10):
                await asyncio.wait({reading})
            assert not source.counts

    with_broker(tmp_path, body)


def test_a_broker_that_goes_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "WAIT", 0.2)
    monkeypatch.setattr(jetstream, "AGAIN", 0.05)

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        store = await js.key_value("customers")
        await store.put("k", b'{"at": 1, "a": 1}')
        await tell(js, ("x", 1, 10))
        source = opened(broker, bucket="customers")
        events = await first(source, 1)
        await events[0].safe()
        broker.kill()  # what it has not written down of the acknowledgement is forgotten
        following = asyncio.ensure_future(play_until(source, "y"))
        async with asyncio.timeout(30):
            while not source.counts["away"]:
                await asyncio.sleep(0.01)
        await broker.start()
        async with asyncio.timeout(30):
            while True:  # until the test's own connection is back
                try:
                    await tell(js, ("y", 2, 20))
                    await store.put("k", b'{"at": 3, "a": 3}')
                    break
                except Exception:
                    await asyncio.sleep(0.05)
        *again, last = short(await following)
        assert again in ([], [("x", 1, 10)])
        assert last == ("y", 2, 20)
        async with asyncio.timeout(30):
            while at(source, "k", 9) != 3 or source.counts["back"] != source.counts["away"]:
                await asyncio.sleep(0.01)
        await source.close()

    with_broker(tmp_path, body)


@pytest.mark.parametrize("bucket", [None, "customers"])
def test_a_connection_that_nats_py_has_given_up_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str | None
) -> None:
    monkeypatch.setattr(jetstream, "WAIT", 0.2)
    monkeypatch.setattr(jetstream, "AGAIN", 0.05)
    made: list[Client] = []

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        async def connect() -> Client:
            if len(made) == 1 and not gone.is_set():
                gone.set()
                raise refused  # as by a broker that is killed just then
            made.append(await connecting(broker)())
            return made[-1]

        gone, refused = asyncio.Event(), ConnectError("refused")
        store = await js.key_value("customers")
        await store.put("k", b'{"at": 1, "a": 1}')
        await tell(js, ("x", 1, 10))
        options: dict[str, Any] = {"entity": "who", "time": "at", "bucket": bucket, "times": EARLY}
        source = JetStreamSource(connect, NAMES, ["a"], stream="orders", **options)
        (event,) = await first(source, 1)
        following = asyncio.ensure_future(play_until(source, "y"))
        await made[0]._process_err("'maximum connections exceeded'")  # after which it never connects again
        await gone.wait()
        await tell(js, ("y", 2, 20))
        await store.put("k", b'{"at": 3, "a": 3}')
        (last,) = await following
        assert short([last]) == [("y", 2, 20)]
        async with asyncio.timeout(30):
            while bucket and at(source, "k", 9) != 3:
                await asyncio.sleep(0.01)
        for each in (event, last):  # also the one that came by the other connection
            await each.safe()
        async with asyncio.timeout(30):
            while (await js.consumer_info("orders", "anabranch")).num_ack_pending:
                await asyncio.sleep(0.01)
        assert (len(made), made[0].is_closed, made[1].is_connected) == (2, True, True)
        assert source.counts["away"] == source.counts["back"] == 1
        await source.close()
        assert made[1].is_closed

    with_broker(tmp_path, body)


def test_a_broker_that_refuses_the_connection_for_good_ends_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "AGAIN", 0.05)

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        made: list[Client] = []

        async def connect() -> Client:
            if made:
                raise ConnectError("the broker does not know you")
            made.append(await connecting(broker)())
            return made[0]

        source = JetStreamSource(connect, NAMES, ["a"], stream="orders")
        await source.begin()
        await made[0].close()
        with pytest.raises(ConnectError, match="does not know you"):
            await play(source, 1)
        await source.close()

    with_broker(tmp_path, body)


DENIED = """
authorization {{ users: [{{ user: a, password: b, permissions: {{ publish: {{ deny: "{}" }} }} }}] }}
no_auth_user: a
"""


@pytest.mark.parametrize("bucket", [None, "customers"])
def test_a_broker_that_permits_no_jetstream_is_not_waited_for(tmp_path: Path, bucket: str | None) -> None:
    async def main() -> None:
        async with message_broker(tmp_path, DENIED.format("$JS.API.>")) as broker:
            source = opened(broker, stream=None if bucket else "orders", bucket=bucket)
            with pytest.raises(ConfigError, match=f"'{bucket or 'orders'}': the broker does not let .* to .\\$js.api"):
                await first(source, 1)
            await source.close()

    run(main())


def test_a_consumer_that_the_broker_does_not_make_is_not_waited_for(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await js.add_stream(name="few", subjects=["few.>"], max_consumers=1)
        one, other = (opened(broker, stream="few", durable=each) for each in ("one", "other"))
        await one.begin()
        reading = asyncio.ensure_future(play(one, 1))
        async with asyncio.timeout(30):
            while not await js.consumers_info("few"):
                await asyncio.sleep(0.01)
        with pytest.raises(
            ConfigError, match=r"stream 'few': the broker refuses it: maximum consumers .* \(code 400\)"
        ):
            await first(other, 1)
        await other.close()
        await one.close()
        await asyncio.wait({reading})

    with_broker(tmp_path, body)


def test_a_stream_is_no_bucket(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await js.add_stream(name="KV_plain", subjects=["plain"])
        source = opened(broker, bucket="plain")
        with pytest.raises(ConfigError, match="bucket 'plain': is a stream, and no key-value bucket"):
            await source.begin()
        await source.close()

    with_broker(tmp_path, body)


def test_a_broker_without_jetstream_is_waited_for_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jetstream, "AGAIN", 0.05)

    async def main() -> None:
        async with LocalBroker(tmp_path) as broker:
            source = opened(broker, bucket="customers")
            beginning = asyncio.ensure_future(source.begin())
            async with asyncio.timeout(30):
                while not source.counts["away"]:
                    await asyncio.sleep(0.01)
            beginning.cancel()
            await asyncio.wait({beginning})
            await source.close()
            assert beginning.cancelled()
        assert "the broker answers without JetStream (nobody is there): is it on, and for this account?" in caplog.text

    run(main())


@pytest.mark.parametrize("subject", ["orders.x", "orders.>", None])
def test_a_consumer_is_of_the_subject_that_it_was_made_for(tmp_path: Path, subject: str | None) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1, 10))
        for _ in range(2):
            source = opened(broker, subject=subject, ack_wait=0.2)
            assert short(await first(source, 1)) == [("x", 1, 10)]
            await source.close()
        other = opened(broker, subject="orders.y")
        with pytest.raises(
            ConfigError, match=f"made for {subject or 'all subjects'}, and cannot be for orders.y: give"
        ):
            await first(other, 1)
        await other.close()

    with_broker(tmp_path, body)


def test_a_connection_that_does_not_close_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "CLOSING", 0.05)

    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        source = opened(broker)
        await source.begin()
        assert source._client is not None
        really = source._client.close
        monkeypatch.setattr(source._client, "close", asyncio.Event().wait)  # as nats-py after a failed handshake
        await source.close()
        await really()

    with_broker(tmp_path, body)


def test_what_a_device_sends_over_mqtt_is_an_event(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await js.add_stream(name="sensors", subjects=["sensors.>"])

        def device() -> None:
            client = MqttClient(CallbackAPIVersion.VERSION2, client_id="room1")
            client.connect("127.0.0.1", mqtt_port(broker))
            client.loop_start()
            for light in (3, 4):
                payload = json.dumps({"at": light, "a": light})
                client.publish("sensors/room1", payload, qos=1).wait_for_publish(30)
            client.disconnect()
            client.loop_stop()

        await asyncio.to_thread(device)
        source = opened(broker, stream="sensors", subject="sensors.room1", entity=None)
        events = await first(source, 2)
        assert short(events) == [("", 3, 3), ("", 4, 4)]
        assert [at(source, "", s) for s in (2, 3, 9)] == [None, 3, 4]
        await source.close()

    with_broker(tmp_path, body)


def test_a_clock_that_is_ahead_is_noted(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 10_000, 10))
        source = opened(broker, clock=lambda: 1000.0)
        assert len(await first(source, 1)) == 1
        assert source.counts == {"ahead of the clock": 1}
        await source.close()

    with_broker(tmp_path, body)


def test_a_stream_or_bucket_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        source = opened(broker, stream="odrers")
        with pytest.raises(ConfigError, match="stream 'odrers': the broker has none of this name"):
            await first(source, 1)
        await source.close()
        source = opened(broker, bucket="nothing")
        with pytest.raises(ConfigError, match="bucket 'nothing': the broker has none"):
            await source.begin()
        await source.close()

    with_broker(tmp_path, body)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "neither a stream nor a bucket"),
        ({"stream": "s", "unit": "h"}, "the unit of times is 'h'"),
        ({"stream": "s", "form": "xml"}, "form is 'xml'"),
        ({"stream": "s", "as_of": "then"}, "as_of is 'then'"),
        ({"stream": "a.b"}, r"stream is 'a.b', but it must be a name without spaces and \. \*"),
        ({"stream": "s", "durable": "demo-room.1"}, "durable is 'demo-room.1', but"),
        ({"bucket": "a.b"}, "bucket is 'a.b', but"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], said: str) -> None:
    async def connect() -> Any:
        raise AssertionError

    with pytest.raises(ConfigError, match=said):
        JetStreamSource(connect, NAMES, ["a"], **options)


def test_messages_that_cannot_be_kept_aside_are_an_error_and_the_count_goes_on(tmp_path: Path) -> None:
    aside = Aside(tmp_path / "own" / "aside.jsonl", most=3, clock=lambda: 0.0)
    assert [aside.put("s", b"x", "why") for _ in range(2)] == [True, True]
    again = Aside(tmp_path / "own" / "aside.jsonl", most=3)
    assert [again.put("s", b"x", "why") for _ in range(2)] == [True, False]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="messages kept aside"):
        Aside(tmp_path / "file" / "aside.jsonl")


def test_of_a_long_message_the_beginning_is_kept_aside(tmp_path: Path) -> None:
    aside = Aside(tmp_path / "aside.jsonl")
    payload = bytes(range(256)) * 5000
    assert aside.put("s", payload, "why")
    line = json.loads(aside.path.read_text())
    assert (base64.b64decode(line["payload"]), line["bytes"]) == (payload[: 16 * 1024], 1_280_000)


def test_messages_of_another_unit_end_the_party_and_are_not_acknowledged(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1711846800000, 1), ("y", 1711846801000, 2))
        source = opened(broker, times=TimeRule(), ack_wait=0.2)
        with pytest.raises(DataError, match=r"no message has a usable time: .* write time_unit = \"ms\""):
            await first(source, 1)
        await source.close()
        right = opened(broker, times=TimeRule("ms"), ack_wait=0.2)
        assert [each.reading.time for each in await first(right, 2)] == [1711846800000000, 1711846801000000]
        await right.close()

    with_broker(tmp_path, body)


def test_one_message_of_another_unit_is_kept_aside(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        await tell(js, ("x", 1711846800000, 1), ("y", 1711846801, 2))
        source = opened(broker, times=TimeRule(), max_age=5.0)
        (only,) = await first(source, 1)
        assert (only.reading.entity, source.counts["unusable"]) == ("y", 1)
        looked = [source.look(NAMES.of("y", (1711846801 + s) * 1_000_000)) for s in (0, 5, 6)]
        assert looked == [{"a": 2}, {"a": 2}, {"a": None}]
        await source.close()

    with_broker(tmp_path, body)


def test_a_bucket_of_another_unit_ends_the_party(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, js: JetStreamContext) -> None:
        bucket = await js.key_value("customers")
        await bucket.put("x", json.dumps({"who": "x", "at": 20260331, "a": 1}).encode())
        source = opened(broker, stream=None, bucket="customers", times=TimeRule())
        with pytest.raises(DataError, match=r"no message has a usable time: .* write format = .%Y%m%d"):
            await source.begin()
        await source.close()

    with_broker(tmp_path, body)
