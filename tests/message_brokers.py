"""A real nats-server with JetStream and MQTT, in a folder of the test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.aio.client import Client

from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf


@dataclass(frozen=True)
class WithMqtt(ServerConf):
    """Also for devices that speak MQTT."""

    more: str = ""

    def text(self) -> str:
        return super().text() + 'server_name: test\nmqtt { host: "127.0.0.1", port: -1 }\n' + self.more


def message_broker(folder: Path, more: str = "") -> LocalBroker:
    """The broker; with more lines of its configuration."""
    return LocalBroker(folder, WithMqtt(port=-1, jetstream="jetstream", more=more))


def mqtt_port(broker: LocalBroker) -> int:
    """Where it listens for MQTT."""
    found = re.findall(r"Listening for MQTT clients on \S+:(\d+)", broker.log.read_text())
    return int(found[-1])


def connecting(broker: LocalBroker):  # type: ignore[no-untyped-def]
    """What a source connects by."""

    async def connect() -> Client:
        return await nats.connect(
            broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, allow_reconnect=True, error_cb=_quiet
        )

    return connect


async def _quiet(error: Exception) -> None:
    """nats-py prints them otherwise."""
