"""What is run by hand: `make bench-net` on a small scale, and what stands in for computing there and in `make fuzz`."""

from __future__ import annotations

import asyncio
import inspect
import json

import pytest
from benchmarks import net
from fuzz import standins

import anabranch as ab
from anabranch.broker.local import LocalBroker
from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from federations import Setting
from small_runs import write_digits

UNUSED = {"party", "warm_up", "copy_model"}
"""What the conversation never calls."""
RARE = {"predict", "embed", "restore"}
"""What a federation calls that starts once, and is asked for no prediction."""


def stand_ins():
    setting = Setting(ab.OGD())
    server = ServerCompute(setting.rule, setting.model.server, 20, Rate(0.1, 0.0))
    client = ClientCompute(setting.rule, setting.model.clients[0], setting.widths[0], Rate(0.1, 0.0))
    return {
        "idle server": (net.IdleServer(server), server, UNUSED | RARE),
        "idle client": (net.IdleClient(client), client, UNUSED | RARE),
        "fuzzed server": (standins.Server(setting.rule, 1), server, UNUSED),
        "fuzzed client": (standins.Client(setting.rule, 1), client, UNUSED),
    }


@pytest.mark.parametrize("name", ["idle server", "idle client", "fuzzed server", "fuzzed client"])
def test_what_stands_in_for_computing_can_be_called_as_the_real_one(name):
    stand_in, real, left_out = stand_ins()[name]
    public = {each for each in dir(real) if not each.startswith("_")}
    assert left_out <= {*dir(ServerCompute), *dir(ClientCompute)}
    assert public - left_out <= {*dir(stand_in)}
    for each in public - left_out:
        if callable(getattr(real, each)):
            here, there = inspect.signature(getattr(stand_in, each)), inspect.signature(getattr(real, each))
            assert [(p.name, p.kind, p.default) for p in here.parameters.values()] == [
                (p.name, p.kind, p.default) for p in there.parameters.values()
            ], each


def test_the_benchmark_of_the_federation_plays_without_a_model(tmp_path, capsys, monkeypatch):
    for compute in (ServerCompute, ClientCompute):
        monkeypatch.setattr(compute, "warm_up", lambda self: None)  # what is never called need not be compiled
    monkeypatch.setenv("ANABRANCH_DATA", str(write_digits(tmp_path / "digits")))
    names = ["server", "client-1"]

    async def play() -> None:
        async with LocalBroker(tmp_path / "broker") as broker:
            for index, name in enumerate(names):
                (tmp_path / name).mkdir()
                net.connect(tmp_path / name, broker.url, name, index, tls=False)
            parties = [net.party(tmp_path / name, i, 1, 200, 8, model=False) for i, name in enumerate(names)]
            await asyncio.gather(*parties)

    asyncio.run(play())
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert 40 <= first["rounds"] < last["rounds"] == 200
    assert first["seconds"] < last["seconds"]
    assert last["clients"][0]["answered"] == 200
    assert last["clients"][0]["round_trip_ms"]["p99"] > 0
    assert 0 < last["clients"][0]["max_delay"] < 8
