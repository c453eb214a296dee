"""A party's ending: what became of its events, in its last line, its result file and its exit code."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anabranch.broker.credentials import Credentials
from anabranch.broker.local import LocalBroker
from anabranch.config.party import load
from anabranch.federation.client import ClientParty
from anabranch.federation.engine import LEFT
from anabranch.federation.server import ServerParty
from anabranch.parties import run_party as serve
from anabranch.parties.ending import Ending, ending_of, sum_up
from anabranch.parties.federation_table import LiveTable, MinuteLines
from anabranch.protocol.actions import Stop
from anabranch.report import report
from anabranch.storage.event_ids import write_key
from forks import Forked
from patience import PATIENCE
from source_playing import run

END = Stop("the stream has ended")
NUMBERS = st.integers(0, 1000)


def server(
    rounds: int = 0,
    skipped: int = 0,
    notes: Mapping[str, int] | None = None,
    late: Mapping[str, int] | None = None,
    waiting: int = 0,
    early: int = 0,
) -> ServerParty:
    """A server whose counters say this."""
    party = ServerParty.__new__(ServerParty)
    party.earlier = Counter()
    party.notes = Counter({(what, None): n for what, n in (notes or {}).items()})
    party.ledger = SimpleNamespace(rounds=rounds, skipped=skipped, run_time_error=0.5, error_rate=0.25)  # type: ignore[assignment]
    party.conversation = SimpleNamespace(unopened=0)  # type: ignore[assignment]
    room = SimpleNamespace(waiting=_Waiting(Counter(late or {}), waiting, early))
    party.late = None if late is None else room  # type: ignore[assignment]
    return party


class _Waiting:
    """The counters of the events that wait for their labels."""

    def __init__(self, counts: Counter[str], length: int, early: int) -> None:
        self.counts, self._length, self.early = counts, length, early

    def __len__(self) -> int:
        return self._length


def client(counts: Mapping[str, int], notes: Mapping[str, int]) -> ClientParty:
    """A client whose counters say this."""
    party = ClientParty.__new__(ClientParty)
    party.earlier, party._counted = Counter(), Counter(counts)
    party.notes = Counter({(what, None): n for what, n in notes.items()})
    party.conversation = SimpleNamespace(announced=0, answers=0, replies=0, activations=0)  # type: ignore[assignment]
    return party


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_events_add_up_and_too_many_lost_are_a_failure(
    learnt: int, skipped: int, expired: int, crowded: int, refused: int, waiting: int, most: float
) -> None:
    party = server(
        learnt + skipped, skipped, {"source: no class": refused}, {"expired": expired, "crowded out": crowded}, waiting
    )
    ending = ending_of(party, END, most)
    counts = ending.counts
    assert counts["happened"] == counts["learnt"] + counts["expired"] + counts["dropped"] + counts["waiting"]
    assert counts["learnt"] == learnt
    lost = expired + crowded + skipped + refused
    assert (ending.problem is not None) == (learnt == 0 or lost > most * (learnt + lost))
    assert f"learnt {learnt:,}" in ending.text
    left = ending_of(party, Stop(LEFT), most)
    assert (left.problem, left.counts) == (None, counts)


@pytest.mark.parametrize(
    ("party", "said"),
    [
        (server(notes={"source: no class": 3}), "3 rows of the label source had no class of the model"),
        (server(late={}, early=2), "2 labels had no event that a client has announced"),
        (server(late={"unknown": 7}), "7 labels had no event"),
        (server(late={"expired": 5}), "5 events expired before a label came"),
        (server(rounds=4, skipped=4), "no event had both a label and all the embeddings"),
        (server(), "no label came"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_server_that_has_learnt_nothing_says_why(party: ServerParty, said: str) -> None:
    ending = ending_of(party, END, 1.0)
    assert ending.problem is not None
    assert ending.problem.startswith("not one label could be used: ")
    assert said in ending.text
    assert sum_up(party) == "no round was learnt from"


def test_labels_of_moments_without_an_event_are_no_loss_but_names_that_do_not_match_are() -> None:
    usual = ending_of(server(rounds=50, late={"unknown": 900}), END, 0.1)
    assert usual.problem is None
    assert usual.text == "the stream has ended (happened 50, learnt 50, unknown 900)"
    wrong = ending_of(server(rounds=50, late={"unknown": 50}, waiting=50), END, 0.1)
    assert wrong.problem is not None
    assert "50.0% were lost (names of no label 50), but most_lost = 0.1" in wrong.problem


@pytest.mark.parametrize(
    ("counts", "notes", "said"),
    [
        ({"answers": 10, "steps": 4}, {"input: unknown": 90}, None),
        ({"answers": 10, "steps": 4}, {"input: unusable": 2}, "16.7% were lost (refused 2)"),
        ({}, {"input: unknown": 90}, "this client could answer for no event: 90 were unknown here"),
        ({}, {}, None),
        ({"replies": 20, "answers": 20}, {"event dropped": 9, "features gone": 5}, "20.0% were lost (dropped 5)"),
    ],
)
def test_a_client_says_what_it_lost(counts: dict[str, int], notes: dict[str, int], said: str | None) -> None:
    ending = ending_of(client(counts, notes), END, 0.1)
    assert (ending.problem is None) if said is None else said in (ending.problem or "")
    assert ending_of(client(counts, notes), Stop(LEFT), 0.1).problem is None


def test_events_that_clients_announced_and_that_have_no_label_are_a_loss_only_if_labels_come_late() -> None:
    notes = {"event dropped": 80}
    at_once, late = (ending_of(server(rounds=20, notes=notes, late=each), END, 0.1) for each in (None, {}))
    assert (at_once.problem, at_once.counts["waiting"], at_once.counts["happened"]) == (None, 80, 100)
    assert (late.counts["dropped"], late.counts["happened"]) == (80, 100)
    assert late.problem is not None


def test_training_that_cannot_go_on_is_that_and_no_loss() -> None:
    ending = ending_of(server(), Stop("not finite", failed=True, diverged=True), 0.1)
    assert (ending.problem, ending.failed) == ("not finite", True)


# -- whole parties ------------------------------------------------------------------------------------------------


class Two:
    """A server and a client of one feature, with a file each."""

    def __init__(self, folder: Path, labels: Sequence[Any], values: Sequence[Any], **more: Any) -> None:
        self.folder = folder
        write_key(folder / "entity.key")
        times = range(1000, 1000 + len(labels))
        self._table("labels.csv", [("at", "known", "y"), *((t, t + 1, y) for t, y in zip(times, labels, strict=True))])
        self._table("a.csv", [("at", "x"), *zip(times, values, strict=True)])
        source = {"source": "csv", "entity_key": "entity.key", "time": "at", "years": [1970, 2100]}
        model = {"name": "linear", "classes": 2}
        own = {key: more.pop(key) for key in [*more] if key in ("most_lost", "report_every")}
        late = {"label": "y", "event_time": "at", "time": "known", "late": "fresh", "expiry": 5, "path": "labels.csv"}
        self._write("server", {"labels": source | late, "clients": [{"name": "a", "embedding": 2} | more]}, model, own)
        features = source | {"path": "a.csv", "columns": [{"name": "x"}]}
        rest = {"features": features, "clients": 1, "activation": {"name": "OnEvent"}}
        self._write("a", rest, model, {})

    def _table(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)

    def _write(self, name: str, sections: dict[str, Any], model: dict[str, Any], own: dict[str, Any]) -> None:
        values = {"connection": f"{name}-connection.toml", "folder": f"state/{name}", "model": model, **own, **sections}
        (self.folder / f"{name}.toml").write_text(tomli_w.dumps(values))

    def connections(self, url: str) -> None:
        for index, name in enumerate(("server", "a")):
            held: dict[str, Any] = {"url": url, "federation": "f", "party": name, "index": index}
            held |= {} if index else {"clients": ["a"]}
            (self.folder / f"{name}-connection.toml").write_text(tomli_w.dumps(held))

    async def play(self) -> list[Ending]:
        async with LocalBroker(self.folder / "broker") as broker:
            self.connections(broker.url)
            return await asyncio.gather(*(self._party(name) for name in ("server", "a")))

    async def _party(self, name: str) -> Ending:
        path = self.folder / f"{name}.toml"
        settings = load(path)
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return await serve._run(path, settings, Credentials.load(settings.connection), folder, None)

    def result(self, name: str) -> dict[str, Any]:
        found = json.loads((self.folder / "state" / name / "result.json").read_text())
        assert isinstance(found, dict)
        return found


def test_a_federation_ends_with_the_files_of_a_run_at_the_server_and_a_result_at_the_client(tmp_path: Path) -> None:
    two = Two(tmp_path, [1, 0] * 10, range(20), report_every=5)
    server_ended, client_ended = run(two.play())
    assert server_ended.text == "the stream has ended (happened 20, learnt 20)"
    assert client_ended.text == "the stream has ended (announced 20, answered 20, learnt 20)"
    result = two.result("server")
    assert (result["rounds"], result["stopped"], result["ending"]["problem"]) == (20, None, None)
    assert result["ending"]["counts"] == dict(server_ended.counts)
    with (tmp_path / "state" / "server" / "curve.csv").open() as file:
        assert [int(row["rounds"]) for row in csv.DictReader(file)] == [5, 10, 15, 20]
    own = two.result("a")
    assert (own["steps"], own["party"], own["ending"]["counts"]["announced"]) == (20, "a", 20)
    assert own["bytes_up"] > 0 < own["bytes_down"]
    page = report(tmp_path / "state").read_text()
    assert "happened 20, learnt 20" in page
    assert "What became of the events of a" in page


def test_text_labels_without_classes_are_refused_at_the_start(tmp_path: Path) -> None:
    """With a real process: by its exit code."""
    two = Two(tmp_path, ["wet", "dry", "wet"], [1, 2, 3])

    async def play() -> int:
        async with LocalBroker(tmp_path / "broker") as broker:
            two.connections(broker.url)
            with (tmp_path / "log").open("ab") as log:
                server = Forked(["server", str(tmp_path / "server.toml")], log)
            code = await asyncio.to_thread(server.wait, PATIENCE)
            server.stdout.close()
            return code

    assert run(play()) == 2
    log = (tmp_path / "log").read_text()
    assert "row 1, column 'y'" in log
    assert "classes" in log
    assert "wet" not in log


def test_one_bad_cell_does_not_keep_a_federation_waiting(tmp_path: Path) -> None:
    """Nobody else knows of the event, so it is not announced, and its label finds none."""
    values: list[Any] = list(range(20))
    values[7] = 1e300  # float32 has no such number
    ended, own = run(Two(tmp_path, [1, 0] * 10, values).play())
    assert ended.counts["learnt"] == 19
    assert own.counts["refused"] == 1
    assert ended.problem is None is own.problem


# -- what a person sees meanwhile ---------------------------------------------------------------------------------

STATUS = {
    "party": "server",
    "rounds": 1234,
    "run_time_error": 0.25,
    "labels": {"waiting": 7},
    "waiting_for": [],
    "connected": True,
    "ended": None,
    "clients": [
        {
            "name": name,
            "present": False,
            "ended": ended,
            "activations": 5,
            "answered": 9,
            "missed": 0,
            "round_trip_ms": {"p50": 1.5, "p99": None},
        }
        for name, ended in (("bank", True), ("shop", False))
    ],
}


def test_a_terminal_shows_a_table_with_the_log_above_it() -> None:
    console = Console(record=True, width=80, force_terminal=True, color_system=None, file=io.StringIO())
    with LiveTable(console) as live:
        live(STATUS)
        live.write('{"level": "info", "message": "[bank] is here"}\n')
    text = console.export_text()
    for part in ("1,234 rounds", "rounds/s", "run-time error 0.2500", "7 wait for labels", "[bank] is here"):
        assert part in text
    assert "shop (away)" in text
    assert "bank (away)" not in text  # it has said goodbye at the end


def test_a_line_a_minute_says_how_far_a_server_is() -> None:
    said: list[str] = []
    now = [0.0]
    lines = MinuteLines(said.append, lambda: now[0])
    for seconds, rounds in ((0, 0), (59, 100), (60, 600), (119, 900), (120, 1200)):
        now[0] = seconds
        lines(STATUS | {"rounds": rounds})
    now[0] = 500
    lines(STATUS | {"ended": "the stream has ended"})
    assert said == [
        "600 rounds · 10 rounds/s · run-time error 0.2500 · 7 wait for labels",
        "1,200 rounds · 10 rounds/s · run-time error 0.2500 · 7 wait for labels",
    ]
