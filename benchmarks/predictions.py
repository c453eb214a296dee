"""Predictions over HTTP while a federation learns: how long they take, and what they cost the rounds.

``python -m benchmarks.predictions`` starts a nats-server, a server and four clients, each a process of its own, with
tables made up for it. It plays rounds without anybody asking, then with so many questions a second, and prints a JSON
line for each: rounds a second; and how long the answers took, from the moment at which a question was due.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from anabranch.broker.local import LocalBroker

CLIENTS, FEATURES, ROWS = 4, 49, 250_000
"""The paper's i-MNIST model has 196 features a client; a table of that many rows would take long to read."""
THREADS = 16


def write(folder: Path, url: str, in_flight: int) -> list[Path]:
    """The tables and the parties' files; the server's first."""
    rng = np.random.default_rng(0)
    names = [f"client-{m}" for m in range(1, CLIENTS + 1)]
    events = np.array([f"e{i}" for i in range(ROWS)])
    x = rng.normal(size=(ROWS // 100, CLIENTS * FEATURES)).astype(np.float32)  # each row stands in a hundred times
    labels = np.tile(x[:, ::FEATURES].sum(axis=1) > 0, 100).astype(int)
    parties = {"server": (0, np.column_stack([events, labels]), ["event", "label"])}
    for m, name in enumerate(names, 1):
        own = np.tile(np.round(x[:, (m - 1) * FEATURES : m * FEATURES], 3), (100, 1))
        header = ["event", *(f"x{i}" for i in range(FEATURES))]
        parties[name] = (m, np.column_stack([events, own.astype("U7")]), header)
    files = []
    common = {"update": {"name": "DLR", "window": 10, "decay": 0.95}, "in_flight": in_flight, "learning_rate": 0.003}
    for name, (index, table, header) in parties.items():
        own_folder = folder / name
        own_folder.mkdir()
        np.savetxt(own_folder / "table.csv", table, fmt="%s", delimiter=",", header=",".join(header), comments="")
        connection: dict[str, Any] = {"federation": "bench", "party": name, "index": index, "url": url}
        settings: dict[str, Any] = {"connection": "connection.toml", "folder": "state", **common}
        if index:
            settings |= {"clients": CLIENTS, "model": {"name": "mlp", "hidden": [], "embedding": 64}}
            settings["features"] = {"path": "table.csv", "event": "event", "columns": header[1:]}
            settings["activation"] = {"name": "Random", "p": 0.5}
        else:
            connection["clients"] = names
            settings |= {"model": {"name": "mlp", "hidden": [256], "classes": 2}, "predictions": {"port": 0}}
            settings["labels"] = {"path": "table.csv", "event": "event", "label": "label"}
            settings["clients"] = [{"name": each, "embedding": 64} for each in names]
        (own_folder / "connection.toml").write_text(tomli_w.dumps(connection))
        (own_folder / "party.toml").write_text(tomli_w.dumps(settings))
        files.append(own_folder / "party.toml")
    return files


class Watched:
    """A party's process, whose log and status are read."""

    def __init__(self, file: Path, command: str) -> None:
        words = [sys.executable, "-m", "anabranch", command, str(file), "--json"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.status: dict[str, Any] = {}
        self.log: list[str] = []
        threading.Thread(target=self._read_status, daemon=True).start()
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_status(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.status = json.loads(line)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def port(self) -> int:
        """Of its predictions."""
        for line in self.log:
            if "predictions are at" in line:
                return int(line.split("127.0.0.1:")[1].split("/")[0])
        return 0


def load(port: int, rate: int, seconds: float) -> tuple[list[float], int]:
    """Seconds that each answer took, from when its question was due, and how many had none."""
    due: queue.Queue[float | None] = queue.Queue()
    took: list[float] = []
    failed = [0]

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        rng = np.random.default_rng(threading.get_ident())
        while (moment := due.get()) is not None:
            connection.request("GET", f"/predict?event=e{rng.integers(ROWS)}")
            response = connection.getresponse()
            response.read()
            took.append(time.perf_counter() - moment)
            failed[0] += response.status != 200

    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    for i in range(int(rate * seconds)):
        moment = begun + i / rate
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put(moment)
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return took, failed[0]


def rounds_a_second(server: Watched, seconds: float) -> float:
    begun, first = time.perf_counter(), server.status["rounds"]
    time.sleep(seconds)
    return (server.status["rounds"] - first) / (time.perf_counter() - begun)


def measure(rate: int, seconds: float, in_flight: int) -> None:
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        broker = LocalBroker(folder / "broker")
        asyncio.run(broker.start())
        stack.callback(broker.kill)
        files = write(folder, broker.url, in_flight)
        parties = [Watched(file, "server" if i == 0 else "client") for i, file in enumerate(files)]
        for party in parties:
            stack.callback(party.process.wait)
            stack.callback(party.process.terminate)
        server = parties[0]
        while server.status.get("rounds", 0) < 500:
            if any(party.process.poll() is not None for party in parties):
                sys.exit("".join(server.log))
            time.sleep(0.1)
        alone = rounds_a_second(server, seconds)
        print(json.dumps({"questions": 0, "in_flight": in_flight, "rounds_per_second": round(alone, 1)}), flush=True)
        first = server.status["rounds"]
        begun = time.perf_counter()
        took, failed = load(server.port(), rate, seconds)
        during = (server.status["rounds"] - first) / (time.perf_counter() - begun)
        p50, p99, most = (1000 * each for each in np.percentile(took, [50, 99, 100]))
        again = rounds_a_second(server, seconds)
        print(
            json.dumps(
                {
                    "questions": rate,
                    "in_flight": in_flight,
                    "rounds_per_second": round(during, 1),
                    "of_those_alone": round(2 * during / (alone + again), 3),
                    "answers": len(took),
                    "failed": failed,
                    "p50_ms": round(p50, 1),
                    "p99_ms": round(p99, 1),
                    "longest_ms": round(most, 1),
                }
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=200, help="questions a second")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[1, 16])
    given = parser.parse_args()
    for in_flight in given.in_flight:
        measure(given.rate, given.seconds, in_flight)


if __name__ == "__main__":
    main()
