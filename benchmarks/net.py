"""How fast a federation over NATS is: five processes or more, with the model and without.

``python -m benchmarks.net`` (``make bench-net``) prints a JSON line for each combination of clients, TLS and rounds in
flight: rounds a second, milliseconds from a query to its answer, and microseconds of processor time that a round takes
of the server, the broker and the clients together; of the paper's i-MNIST model (DLR with a window of 10, Random 0.5)
and of the same conversation whose parties compute nothing, which is the transport's own limit. Both of a pair are run
after one another on the same machine, so their ratio says what the model costs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from anabranch.broker.credentials import Credentials
from anabranch.broker.keys import init
from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf
from anabranch.config.run import Config
from anabranch.config.runtime_options import RuntimeOptions
from anabranch.core.party_programs import ClientCompute, Pending, ServerCompute, Stepped
from anabranch.parties import assemble
from anabranch.parties.process import run as run_party
from anabranch.protocol.actions import Played
from anabranch.serving.status import server_status
from anabranch.streams.digits import DigitsNotice

WARM_UP = 0.2
"""Share of the rounds that are not measured."""


class IdleServer:
    """In place of `anabranch.core.party_programs.ServerCompute`: right shapes, no numbers worked out."""

    def __init__(self, compute: ServerCompute) -> None:
        self.rule, self.block, self.rounds = compute.rule, compute.block, compute.rounds
        self.looks = compute.looks

    def step(self, embeddings: Any, labels: Any, factor: float = 1.0) -> Stepped:
        self.rounds += len(labels)
        return Stepped(np.zeros(len(labels), np.int32), embeddings, 0)

    def skip(self, label: int) -> None:
        self.rounds += 1

    def empty_window(self) -> None:
        pass

    def arrays(self) -> dict[str, Any]:
        return {}


class IdleClient:
    """In place of `anabranch.core.party_programs.ClientCompute`, likewise."""

    def __init__(self, compute: ClientCompute) -> None:
        self.rule, self.block, self.width, self.rounds = compute.rule, compute.block, compute.width, compute.rounds
        self.looks = compute.looks

    def encode(self, rounds: Any, x: Any) -> tuple[Any, list[Pending]]:
        return np.zeros((len(rounds), self.width), self.rule.wire), [()] * len(rounds)

    def step(self, rounds: Any, pending: Any, derivatives: Any, factor: float = 1.0) -> None:
        self.rounds = int(rounds[-1]) + 1

    def empty_window(self) -> None:
        pass

    def arrays(self, pending: Any = None) -> dict[str, Any]:
        return {}


def config(clients: int, rounds: int) -> Config:
    return Config.model_validate(
        {
            "rounds": rounds,
            "learning_rate": 0.003,
            "model": {"name": "imnist", "clients": clients},
            "stream": {"name": "imnist"},
            "update": {"name": "DLR", "window": 10, "decay": 0.95},
            "activation": {"name": "Random", "p": 0.5},
        }
    )


async def party(folder: Path, index: int, clients: int, rounds: int, in_flight: int, model: bool) -> None:
    """Runs a party; the server prints its status at a fifth of the rounds and at the end."""
    credentials = Credentials.load(folder / "connection.toml")
    replay = assemble.replay(config(clients, rounds))
    pace = RuntimeOptions(in_flight=in_flight, deadline=30.0, checkpoint_every=10**9)
    if index:
        client = assemble.client_party(replay, index, credentials, folder, pace)
        if not model:
            client.conversation.compute = IdleClient(client.conversation.compute)  # type: ignore[assignment]
        await client.run()
        return
    server = assemble.server_party(replay, credentials, folder, pace)
    if not model:
        server.conversation.training.compute = IdleServer(server.conversation.compute)  # type: ignore[assignment]
    started, add, due = time.monotonic(), server.ledger.add, [WARM_UP * rounds, rounds]

    def count(played: Played) -> None:
        add(played)
        while due and server.ledger.rounds >= due[0]:
            del due[0]
            print(json.dumps(server_status(server, started)), flush=True)

    server.ledger.add = count  # type: ignore[method-assign]
    await server.run()


async def measure(clients: int, rounds: int, in_flight: int, tls: bool, model: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"client-{m}" for m in range(1, clients + 1)]
        conf = None
        if tls:
            init(folder / "keys", "bench", ["127.0.0.1"], names, listen="127.0.0.1")
            conf = _secure(folder / "keys")
        async with LocalBroker(folder / "broker", conf) as broker:
            processes = []
            for index, party_name in enumerate(["server", *names]):
                own = folder / "keys" / party_name if tls else folder / party_name
                own.mkdir(exist_ok=True)
                connect(own, broker.url, party_name, index, tls)
                words = [str(own), str(index), str(clients), str(rounds), str(in_flight), str(int(model))]
                processes.append(
                    await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "benchmarks.net", "--party", *words, stdout=asyncio.subprocess.PIPE
                    )
                )
            watched = [psutil.Process(pid) for pid in (broker.pid, *(process.pid for process in processes))]
            try:
                first, busy = await asyncio.wait_for(_told(processes[0]), 600), _processor_time(watched)
                last, busy_then = await asyncio.wait_for(_told(processes[0]), 600), _processor_time(watched)
                for process in processes:
                    await asyncio.wait_for(process.wait(), 60)
            finally:
                for process in processes:
                    if process.returncode is None:
                        process.send_signal(signal.SIGKILL)
        rounds_between = last["rounds"] - first["rounds"]
        used = (busy_then - busy) / rounds_between * 1e6
        trips = [each["round_trip_ms"] for each in last["clients"]]
        return {
            "rounds_per_second": round(rounds_between / (last["seconds"] - first["seconds"])),
            "processor_us": {"broker": round(used[0]), "server": round(used[1]), "clients": round(used[2:].sum())},
            "p50_ms": max(each["p50"] for each in trips),
            "p99_ms": max(each["p99"] for each in trips),
            "max_delay": max(each["max_delay"] for each in last["clients"]),
        }


async def _told(server: asyncio.subprocess.Process) -> dict[str, Any]:
    assert server.stdout is not None
    status: dict[str, Any] = json.loads(await server.stdout.readline())
    return status


def _processor_time(watched: list[psutil.Process]) -> NDArray[np.float64]:
    return np.array([sum(each.cpu_times()[:2]) for each in watched])


def _secure(keys: Path) -> ServerConf:
    from anabranch.broker.credentials import public_nkey
    from anabranch.broker.nats_conf import Tls, party_users

    clients = sorted(
        (path.name for path in keys.iterdir() if path.name.startswith("client-")), key=lambda n: int(n.split("-")[1])
    )
    broker = keys / "broker"
    users = party_users(
        "bench",
        public_nkey(keys / "server" / "party.nk"),
        [(name, public_nkey(keys / name / "party.nk")) for name in clients],
    )
    return ServerConf(port=-1, tls=Tls(broker / "cert.pem", broker / "key.pem", broker / "ca.pem"), users=users)


def connect(folder: Path, url: str, name: str, index: int, tls: bool) -> None:
    """Writes a party's `connection.toml`, or the broker's address into it."""
    import tomli_w

    path = folder / "connection.toml"
    if tls:
        import tomllib

        values = {**tomllib.loads(path.read_text()), "url": url}
    else:
        values = {"url": url, "federation": "bench", "party": name, "index": index}
    path.write_text(tomli_w.dumps(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--party", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tls", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=int, help="of a run; by default enough for some seconds")
    given = parser.parse_args()
    if given.party:
        folder, *numbers = given.party
        index, clients, rounds, in_flight, model = map(int, numbers)
        warnings.simplefilter("ignore", DigitsNotice)  # any digits will do
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each end of a TLS connection
        run_party(lambda: party(Path(folder), index, clients, rounds, in_flight, bool(model)))
        return
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0]}), flush=True)
    with tempfile.TemporaryDirectory() as programs:  # what one party has compiled, the others use
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": programs, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        _measure_all(given)


def _measure_all(given: argparse.Namespace) -> None:
    for clients, tls, in_flight in itertools.product(given.clients, given.tls, given.in_flight):
        rounds = given.rounds or (5_000 if in_flight == 1 else 30_000) * 4 // clients
        line: dict[str, Any] = {"clients": clients, "tls": bool(tls), "in_flight": in_flight, "rounds": rounds}
        for model in (True, False):
            found = asyncio.run(measure(clients, rounds, in_flight, bool(tls), model))
            line["model" if model else "no model"] = found
        line["ratio"] = round(line["model"]["rounds_per_second"] / line["no model"]["rounds_per_second"], 2)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
