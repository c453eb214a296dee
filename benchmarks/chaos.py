"""Kills the processes of a federation again and again, and says whether its result is that of an undisturbed run.

``python -m benchmarks.chaos`` (``make chaos``) runs the i-MNIST federation with its server, four clients and
nats-server as processes of their own, and kills one or two of them at a time (``kill -9``) at random, seeded moments;
now and then while others are still coming back. Each is started again at once. It prints a line for every kill, and at
the end whether model and curve are the bytes of the same run in one process. If they are not, the exit code is 1.

With ``--in-flight`` above 1 the bytes depend on what arrives when. Then it says whether every round was played once,
with every client's own answer, and with the activations of the undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.config.build import run as simulated
from anabranch.config.load import Override, find_source, load
from anabranch.parties import assemble
from anabranch.parties.local_federation import LocalFederation, Party, collect
from anabranch.simulation import output
from anabranch.simulation.output import FILES

BROKER = "nats-server"
PATIENCE = 300.0
"""Seconds without a round after which the federation does not go on by itself."""
COMPARED = ("model.safetensors", "curve.csv")


class Chaos:
    """Kills what it is told to, and waits for rounds.

    Args:
        federation: that runs.
        rounds: how many it has to play.
    """

    def __init__(self, federation: LocalFederation, rounds: int) -> None:
        self.federation, self.rounds = federation, rounds
        self.kills = 0

    @property
    def played(self) -> int:
        """As far as the server has said."""
        return int(self.federation.status.get("rounds", 0))

    async def until(self, rounds: int) -> None:
        """Waits until so many are played."""
        before, since = self.played, time.monotonic()
        while self.played < rounds:
            for party in self.federation.parties:
                if party.code not in (None, 0):
                    raise SystemExit(f"{party.name} has ended by itself: {self.federation.last_words(party)}")
            if self.played != before:
                before, since = self.played, time.monotonic()
            if time.monotonic() > since + PATIENCE:
                raise SystemExit(f"no round in {PATIENCE:g} s, after {before:,}: {self.federation.status}")
            await asyncio.sleep(0.02)

    async def kill(self, names: list[str]) -> None:
        """Kills these at once, and starts them again."""
        parties: list[Party] = [party for party in self.federation.parties if party.name in names]
        for party in parties:
            assert party.process is not None
            if party.process.returncode is None:
                party.process.kill()
        broker = self.federation.broker
        assert broker is not None
        if BROKER in names:
            broker.kill()
        for party in parties:
            assert party.process is not None
            await party.process.wait()
        if BROKER in names:
            await broker.start()
        for party in parties:
            await self.federation.start(party)
        self.kills += len(names)


async def run(federation: LocalFederation, rounds: int, kills: int, rng: np.random.Generator) -> int:
    """Runs it to its end; returns how many processes were killed."""
    chaos = Chaos(federation, rounds)
    names = [BROKER, *(party.name for party in federation.parties)]
    async with federation:
        await chaos.until(1)
        begin = time.monotonic()
        while chaos.kills < kills:
            here = chaos.played
            share = (rounds - here) / (kills - chaos.kills)
            ahead = 0 if rng.random() < 0.2 else int(rng.uniform(0, share))
            await chaos.until(min(here + ahead, rounds - 1))
            victims = [names[i] for i in rng.choice(len(names), 1 + (rng.random() < 0.25), replace=False)]
            at = chaos.played
            await chaos.kill(victims[: kills - chaos.kills])
            print(
                f"kill {chaos.kills:4d} at round {at:7,} after {time.monotonic() - begin:7.1f} s: {victims}", flush=True
            )
        await chaos.until(rounds)
        await federation.wait()
    return chaos.kills


def _written(config: Any, run: assemble.Replay, result: Any, folder: Path) -> Path:
    folder.mkdir()
    output.write(
        folder, output.untimed(result), output.Origin("chaos", config.title(), config.to_dict(), run.plan.data)
    )
    assert sorted(each.name for each in folder.iterdir()) == sorted(FILES)
    return folder


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 where the bytes are the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=200, help="rounds between two checkpoints")
    parser.add_argument("--in-flight", type=int, default=1)
    told = parser.parse_args(arguments)
    config = load(find_source("imnist"), [Override(("rounds",), told.rounds, "--rounds")])
    rng = np.random.default_rng(told.seed)
    with tempfile.TemporaryDirectory(prefix="anabranch-chaos-") as name:
        folder = Path(name)
        replay = assemble.replay(config)
        pace = RuntimeOptions(in_flight=told.in_flight, checkpoint_every=told.every)
        federation = LocalFederation(config, folder / "federation", replay.clients, pace)
        begin = time.monotonic()
        kills = asyncio.run(run(federation, told.rounds, told.kills, rng))
        seconds = time.monotonic() - begin
        result, undisturbed = collect(replay, federation.folder, (1.0, 1), None), simulated(config)
        if told.in_flight == 1:
            disturbed = _written(config, replay, result, folder / "disturbed")
            alone = _written(config, replay, undisturbed, folder / "alone")
            same = {
                f"the bytes of {each}": (disturbed / each).read_bytes() == (alone / each).read_bytes()
                for each in COMPARED
            }
        else:
            answered = [each["answered"] for each in result.settings["federation"]["clients"]]
            same = {
                "rounds with every client's answer": answered == [told.rounds] * replay.clients,
                "rounds in which each client was activated": np.array_equal(
                    result.activation_rate, undisturbed.activation_rate
                ),
            }
        log = sum(each.stat().st_size for each in (federation.folder / "server" / "rounds").glob("*"))
    print(f"{kills} kills in {told.rounds:,} rounds and {seconds:.0f} s; round log at the end: {log:,} bytes")
    for each, equal in same.items():
        print(f"{each}: {'as in' if equal else 'NOT as in'} an undisturbed run")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
