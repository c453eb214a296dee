"""Federations of real processes and a real nats-server, for tests that stop, kill and disturb them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import tomli_w

from anabranch.broker import keys
from anabranch.broker.credentials import Credentials, proof, public_nkey
from anabranch.broker.local import LocalBroker
from anabranch.broker.nats_conf import ServerConf, Tls, party_users
from anabranch.config import party as partyfile
from anabranch.config.build import run as simulated
from anabranch.config.load import find_source, load
from anabranch.config.run import Config
from anabranch.parties import assemble
from anabranch.parties.local_federation import collect
from anabranch.protocol.terms import Terms, terms_of
from anabranch.simulation.result import Result
from forks import Forked
from patience import PATIENCE, wait_for

SERVER = "server"


def write_run(folder: Path, clients: int = 4, rounds: int = 3000, **more: Any) -> Path:
    """``run.toml`` and its table of two features a client; the path of the former."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rounds, 2 * clients))
    labels = (x.sum(axis=1) > 0).astype(int)
    names = [f"x{i}" for i in range(2 * clients)]
    lines = [",".join([*(f"{value:.5f}" for value in row), str(label)]) for row, label in zip(x, labels, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text("\n".join([",".join([*names, "label"]), *lines]) + "\n")
    values = {
        "rounds": rounds,
        "learning_rate": 0.1,
        "seed": 5,
        "model": {"name": "mlp", "hidden": [4], "embedding": 3, "server": []},
        "stream": {
            "name": "table",
            "path": "table.csv",
            "label": "label",
            "split": [names[2 * m : 2 * m + 2] for m in range(clients)],
        },
        "update": {"name": "DLR", "window": 5, "decay": 0.9},
        "activation": {"name": "Random", "p": 0.5},
    }
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(values | more))
    return path


class RealFederation:
    """A folder with a party's file for each, and what is needed to start, watch and kill their processes.

    Args:
        folder: of all of it.
        run: the configuration of the run.
        secure: with TLS, NKeys and permissions.
        pace: settings of every party's file.
    """

    def __init__(self, folder: Path, run: Path, *, secure: bool = False, **pace: Any) -> None:
        self.folder, self.run = folder, run
        self.replay = assemble.replay(self.config)
        self.clients = [f"client-{m}" for m in range(1, self.replay.clients + 1)]
        self.names = [SERVER, *self.clients]
        conf = self._make_keys() if secure else None
        self.broker = LocalBroker(folder / "broker", conf)
        self._secure, self._pace = secure, {"checkpoint_every": 200} | pace
        self.processes: dict[str, Forked] = {}
        self._rounds = 0
        self._told: dict[int, dict[str, Any]] = {}
        self._readers: dict[int, threading.Thread] = {}

    @property
    def config(self) -> Config:
        """Of the run."""
        return load(find_source(str(self.run)), [])

    def __enter__(self) -> RealFederation:
        self.start_broker()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            self.end(process)
        self.broker.kill()

    def start_broker(self) -> None:
        """Starts it, for the first time or again on the same port."""
        asyncio.run(self.broker.start())
        for index, name in enumerate(self.names):
            if not (self.folder / name / "party.toml").exists():
                self._write(name, index)

    def start(self, *names: str) -> None:
        """Starts parties, for the first time or again."""
        for name in names:
            assert name not in self.processes or self.processes[name].poll() is not None
            self.processes[name] = self.process(name)

    def process(self, name: str) -> Forked:
        """A new process of a party."""
        own = self.folder / name
        with (own / "log.jsonl").open("ab") as log:
            process = Forked([SERVER if name == SERVER else "client", str(own / "party.toml"), "--json"], log)
        self._readers[process.pid] = threading.Thread(target=self._read, args=(process,))
        self._readers[process.pid].start()
        return process

    def _read(self, process: Forked) -> None:
        with process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    self._told[process.pid] = json.loads(line)

    def end(self, process: Forked) -> int:
        """Waits until a process has ended, and all that it said is read."""
        code = process.wait(PATIENCE)
        self._readers[process.pid].join()
        return code

    def status(self, name: str = SERVER) -> dict[str, Any]:
        """The last that its present process has reported; empty before."""
        return self._told.get(self.processes[name].pid, {}) if name in self.processes else {}

    @property
    def rounds(self) -> int:
        """How many the server has played, as far as it has said, also before it was killed."""
        self._rounds = max(self._rounds, int(self.status().get("rounds", 0)))
        return self._rounds

    def wait_for_rounds(self, rounds: int) -> None:
        """Until the server has played so many."""

        def played() -> bool:
            assert self.processes[SERVER].poll() is None, self.log(SERVER)
            return self.rounds >= rounds

        wait_for(played, f"round {rounds}; the server says {self.log(SERVER)[-2000:]}")

    def kill(self, *names: str, how: int = signal.SIGKILL) -> None:
        """Ends parties, by a signal, and waits until they have."""
        for name in names:
            self.processes[name].send_signal(how)
        for name in names:
            self.end(self.processes[name])

    def wait(self, *names: str) -> list[int]:
        """The exit codes of parties, once they have ended by themselves."""
        return [self.end(self.processes[name]) for name in names or self.names]

    def log(self, name: str) -> str:
        """All that it said to people and to its log."""
        return (self.folder / name / "log.jsonl").read_text()

    def checkpoints(self, name: str) -> list[Path]:
        """Its manifests, the older first."""
        return sorted((self.folder / name / "checkpoints").glob("*.json"))

    def result(self) -> Result:
        """What the last checkpoints of the parties have."""
        return collect(self.replay, self.folder, (1.0, 1), None)

    def _write(self, name: str, index: int) -> None:
        own = self.folder / name
        own.mkdir(exist_ok=True)
        connection: dict[str, Any] = {"federation": "real", "party": name, "index": index}
        if self._secure:
            connection |= {"ca": "ca.pem", "certificate": "cert.pem", "key": "key.pem", "seed": "party.nk"}
        connection |= {"url": self.broker.url} | ({} if index else {"clients": self.clients})
        (own / "connection.toml").write_text(tomli_w.dumps(connection))
        settings = partyfile.PartyFile(connection="connection.toml", folder=".", run=str(self.run), **self._pace)
        (own / "party.toml").write_text(partyfile.text(settings))

    def _make_keys(self) -> ServerConf:
        made = self.folder / "made"
        keys.init(made, "real", "127.0.0.1", self.clients)
        for name in self.names:
            shutil.move(made / name, self.folder / name)
        nkeys = {name: public_nkey(self.folder / name / keys.SEED) for name in self.names}
        passwords = {name: proof(self.folder / name / keys.SEED, name) for name in self.names}
        clients = [(name, nkeys[name]) for name in self.clients]
        users = party_users("real", nkeys[SERVER], clients, passwords=passwords)
        return ServerConf(
            port=-1, tls=Tls(*(made / "broker" / each for each in ("cert.pem", "key.pem", "ca.pem"))), users=users
        )

    @property
    def terms(self) -> Terms:
        """What its parties agree on."""
        return terms_of("real", self.replay.clients, self.replay.prepared.rule)

    def credentials(self, name: str) -> Credentials:
        """With which a party connects."""
        return Credentials.load(self.folder / name / "connection.toml")


def same(one: Result, other: Result) -> None:
    """All that two results must have in common, to the bit: parameters, curve, activations and traffic."""
    for a, b in zip(*(jax.tree.leaves(eqx.filter(each.model, eqx.is_array)) for each in (one, other)), strict=True):
        assert np.array_equal(a, b), "the parameters differ"
    assert one.rounds == other.rounds
    for a, b in zip(one.curve, other.curve, strict=True):
        assert np.array_equal(a, b), "the curves differ"
    assert np.array_equal(one.activation_rate, other.activation_rate)
    assert one.error_rate == other.error_rate
    for a, b in zip(jax.tree.leaves(one.traffic), jax.tree.leaves(other.traffic), strict=True):
        assert np.array_equal(a, b), "the traffic differs"


def simulate(run: Path) -> Result:
    """The same run in one process, which nobody disturbs."""
    return simulated(load(find_source(str(run)), []))


def processes_of(folder: Path) -> dict[int, str]:
    """The numbers and command lines of all processes that have the folder in theirs, or that work in it."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = str((each / "cwd").resolve())
        except OSError:
            continue
        if words and (str(folder) in words or where.startswith(str(folder))):
            found[int(each.name)] = words
    return found


def damage(manifest: Path, how: str) -> None:
    """Flips a byte of a checkpoint's arrays, or cuts off their end."""
    path = manifest.with_suffix(".safetensors")
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 0x10
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)


def damage_all(manifests: Sequence[Path]) -> None:
    """Leaves nothing that can be used."""
    for manifest in manifests:
        damage(manifest, "cut")
