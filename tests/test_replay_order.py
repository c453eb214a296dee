"""The order of a replay by the data's clock: that of the data, however its parties take turns or start again."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.broker.credentials import Credentials
from anabranch.config import party as partyfile
from anabranch.errors import ConfigError
from anabranch.federation.data_clock import OrderedHappenings, OrderedRoom, OrderedSamples, ReplayTime
from anabranch.parties import build_party as own
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Predicted, Send, Stop
from anabranch.protocol.server.conversation import ServerConversation
from anabranch.protocol.server.missing import Wait, Zero
from anabranch.sources.base import Happening, Reading
from anabranch.sources.labels import LateLabel
from anabranch.storage.event_ids import Names
from anabranch.storage.pending_labels import Waiting
from anabranch.storage.place import Place
from conversations import answer, hello_of, told
from federations import Setting, sent

NAMES = Names(bytes(32))
TWO = Setting(shapes=((8, 5), (8, 5)), missing=(Wait(), Zero()), rounds=4)
HELLOS = [hello_of(TWO.client(1)), hello_of(TWO.client(2))]


def at(time: int) -> bytes:
    return NAMES.of("", time)


def label_of(place: int, time: int, known: int) -> LateLabel:
    return LateLabel(at(time), 1, time, Happening(at(time), Reading("", known, {}), None, Place("labels", [place])))


class Parties:
    """A server and two clients, each of which does what it has to when the test says so.

    Args:
        own: the times of each client's events.
        known: the times of the events with labels, and when each was known, in the order of the file.
    """

    def __init__(self, folder: Path, own: list[list[int]], known: list[tuple[int, int]], **room: Any) -> None:
        self.own, self.folder, self.room_options = own, folder, room
        self.labels = [label_of(i, *each) for i, each in enumerate(known)]
        self.done: list[tuple[str, bytes]] = []
        self.read = [0, 0]
        """How many of its events each client has announced."""
        self.granted = [m.EARLIEST, m.EARLIEST]
        self.mail: list[deque[m.Message]] = [deque(), deque()]
        self.waiting: Waiting | None = None
        self.start()

    def start(self) -> None:
        """Starts the server, perhaps once more after kill -9: its labels are given again, and clients say hello."""
        if self.waiting is not None:
            self.waiting.close()
        self.talk = TWO.server(by_data=True)
        source: Any = SimpleNamespace(labels=lambda: None, notes=None, found_none=0)
        self.source = OrderedHappenings(source, self.room_options.get("coalesce", 0))
        self.source.taken.let_go = lambda each: None  # type: ignore[method-assign]
        self.source.attach(self.talk)
        self.waiting = Waiting(self.folder / "waiting", most=1000, expiry=self.room_options.get("expiry"))
        self.source.sorted_in = self.waiting.sorted_in
        self.room = OrderedRoom(self.waiting, self.source, stored=False, clock=ReplayTime())
        self.source._here.extend(self.labels)
        self.source._ended = True
        for client in (1, 2):
            self.hello(client)

    def hello(self, client: int) -> None:
        """A client begins a session, perhaps after kill -9, and announces its events again."""
        self.mail[client - 1].clear()
        hello = HELLOS[client - 1]
        self.talk.seats[client - 1].session = None
        self.do(self.talk.receive(client, hello, 0.0))
        for time in self.own[client - 1][: self.read[client - 1]]:
            self.do(told_by(self.talk, client, at(time)))
        self.say_upcoming(client)

    def do(self, actions: list[Action]) -> None:
        for each in actions:
            if isinstance(each, Send) and isinstance(each.message, m.Advance):
                assert each.client is not None
                self.mail[each.client - 1].append(each.message)

    def say_upcoming(self, client: int) -> None:
        seat, left = self.talk.seats[client - 1], self.own[client - 1][self.read[client - 1] :]
        message = m.Upcoming(seat.session or 0, seat.announced, left[0] if left else m.NEVER)
        self.do(self.talk.receive(client, message, 0.0))

    def client_turn(self, client: int, most: int) -> None:
        """A client reads its mail, and announces so many events at most."""
        while self.mail[client - 1]:
            message = self.mail[client - 1].popleft()
            assert isinstance(message, m.Advance)
            assert message.time is not None
            self.granted[client - 1] = max(self.granted[client - 1], message.time)
            left = self.own[client - 1][self.read[client - 1] :]
            for time in [time for time in left if time <= self.granted[client - 1]][:most]:
                self.do(told_by(self.talk, client, at(time)))
                self.read[client - 1] += 1
            self.say_upcoming(client)

    def server_turn(self) -> None:
        """One event is predicted, or one label learnt from, if its time has come."""
        room = self.room
        room.sort_in(1)
        if ready := room.ready(1):
            self.done.append(("learnt", ready[0].event))
            room.learnt([ready[0].event])
        elif events := room.take(1):
            number = room.number(1)
            nothing = np.zeros(2, bool)
            room.predicted(Predicted(0, events[0], number, 0, None, None, nothing, (0, 0), (0, 0)))
            self.done.append(("predicted", events[0]))
        self.do(self.source.go_further(0.0))
        if not self.talk.announcing() and not self.talk.holds_events:
            room.expect_no_event()

    @property
    def over(self) -> bool:
        return self.room.over and not self.room.is_ready


def told_by(talk: ServerConversation, client: int, event: bytes) -> list[Action]:
    return talk.receive(client, told(talk, client, event), 0.0)


def expected(own: list[list[int]], known: list[tuple[int, int]]) -> list[tuple[str, bytes]]:
    """As `anabranch.simulate` orders events and labels, each label so many events later."""
    times = sorted({*own[0], *own[1]})
    due: dict[int, list[int]] = {}
    for time, moment in known:
        if time in times:
            i = times.index(time)
            due.setdefault(max(i, bisect_right(times, moment) - 1), []).append(i)
    known_at = {times.index(time): max(time, moment) for time, moment in known if time in times}
    found = []
    for tick, time in enumerate(times):
        found.append(("predicted", at(time)))
        is_last = tick == len(times) - 1  # there a label has a tick of its own
        order = sorted((known_at[i] if is_last else 0, i) for i in due.get(tick, []))
        found += [("learnt", at(times[i])) for _, i in order]
    return found


TIMES = st.lists(st.integers(0, 40), min_size=0, max_size=12, unique=True).map(sorted)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    own=st.tuples(TIMES, TIMES),
    delays=st.lists(st.integers(-3, 15), min_size=41, max_size=41),
    labelled=st.sets(st.integers(0, 40), max_size=30),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_order_is_that_of_the_data(
    tmp_path_factory: pytest.TempPathFactory,
    own: tuple[list[int], list[int]],
    delays: list[int],
    labelled: set[int],
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    known = sorted(((time, time + delays[time]) for time in labelled), key=lambda each: each[1])
    parties = Parties(tmp_path_factory.mktemp("replay"), [*own], known)
    for _ in range(2000):
        if parties.over:
            break
        match random.integers(20):
            case 0:
                parties.start()
            case 1:
                parties.hello(int(random.integers(1, 3)))
            case turn if turn < 12:
                parties.server_turn()
            case _:
                parties.client_turn(int(random.integers(1, 3)), int(random.integers(1, 4)))
    assert parties.over
    assert parties.done == expected([*own], known)
    counts, events = parties.room.waiting.counts, {*own[0], *own[1]}
    assert counts["happened"] == len(events)
    assert counts["learnt"] + len(parties.room.waiting) == counts["happened"]
    assert counts["labelled"] + counts["unknown"] == len(known)
    assert counts["duplicate"] == counts["expired"] == 0


def played(parties: Parties) -> list[tuple[str, int]]:
    """Until the end, with the events' times."""
    while not parties.over:
        parties.server_turn()
        for client in (1, 2):
            parties.client_turn(client, 99)
    return [(what, Names.read(event)[1]) for what, event in parties.done]  # type: ignore[index]


def test_a_label_is_too_late_by_the_data_s_clock(tmp_path: Path) -> None:
    second = 1_000_000
    known = [(2 * second, 5 * second), (1 * second, 5 * second), (3 * second, 6 * second)]
    parties = Parties(tmp_path, [[1 * second, 2 * second, 3 * second], []], known, expiry=3.0)
    assert played(parties)[3:] == [("learnt", 2 * second), ("learnt", 3 * second)]
    counts = parties.room.waiting.counts
    assert (counts["expired"], counts["expired label"], counts["happened"]) == (1, 1, 3)


def test_events_wait_for_other_clients_in_the_data_s_time(tmp_path: Path) -> None:
    parties = Parties(tmp_path, [[10, 20], [30]], [(10, 22)], coalesce=5)
    assert played(parties) == [
        ("predicted", 10), ("learnt", 10), ("predicted", 20), ("predicted", 30),
    ]  # fmt: skip


def test_a_round_begins_with_each_label_once_clients_have_announced_what_happened_before() -> None:
    talk = TWO.server(by_data=True)
    source: Any = SimpleNamespace(labels=lambda: None, notes=None, found_none=0)
    samples = OrderedSamples(source)
    samples.attach(talk)
    samples._here.extend([label_of(0, 10, 10), label_of(1, 20, 20)])
    for client in (1, 2):
        talk.receive(client, HELLOS[client - 1], 0.0)
    assert (samples.take(1), samples.go_further(0.0)) == ([], [])  # nobody has said anything

    def upcoming(client: int, time: int) -> None:
        seat = talk.seats[client - 1]
        talk.receive(client, m.Upcoming(seat.session or 0, seat.announced, time), 0.0)

    upcoming(1, 5)
    upcoming(2, 10)
    assert samples.take(1) == []
    advances = samples.go_further(0.0)
    assert [each.time for each in sent(advances, m.Advance)] == [10, 10]
    upcoming(1, 11)
    assert samples.take(1) == []
    upcoming(2, m.NEVER)
    assert samples.take(1) == [(at(10), 1)]
    assert samples.take(1) == []
    assert [each.time for each in sent(samples.go_further(0.0), m.Advance)] == [20]


def test_an_announcement_that_was_lost_is_asked_for_again() -> None:
    talk = TWO.server(by_data=True)
    talk.receive(1, HELLOS[0], 0.0)
    talk.receive(1, m.Upcoming(HELLOS[0].session, 1, 10), 0.0)
    assert talk.seats[0].upcoming is None
    talk.tick(0.0)
    assert sent(talk.tick(1e6), m.Call)


def test_what_the_server_said_is_said_again_until_it_is_answered() -> None:
    talk = TWO.server(by_data=True)
    for client in (1, 2):
        hello = HELLOS[client - 1]
        assert [each.time for each in sent(talk.receive(client, hello, 0.0), m.Advance)] == [m.EARLIEST]
        talk.receive(client, m.Upcoming(hello.session, 0, 10 * client), 0.0)
    assert len(sent(talk.advance(99, 1.0, together=False), m.Advance)) == 1
    talk.tick(1.0)
    assert [each.time for each in sent(talk.tick(2.5), m.Advance)] == [19]
    talk.receive(1, m.Upcoming(HELLOS[0].session, 0, m.NEVER), 3.0)
    assert not sent(talk.tick(9.0), m.Advance)
    assert [each.time for each in sent(talk.advance(99, 9.0, together=False), m.Advance)] == [99]


@pytest.mark.parametrize("by_data", [True, False])
def test_two_clocks_do_not_go_together(by_data: bool) -> None:
    """Each side says so, whichever goes by the data's clock."""
    talk, client = TWO.server(by_data=not by_data), TWO.client(1)
    client.by_data = by_data
    client.goes_on_at(10)
    hello = sent(client.hello(), m.Hello)[0]
    to_client = [each.message for each in talk.receive(1, hello, 0.0) if isinstance(each, Send)]
    said = client.receive(to_client)
    to_client = [
        each.message
        for action in said
        if isinstance(action, Send) and isinstance(action.message, m.Upcoming)
        for each in talk.receive(1, action.message, 0.0)
        if isinstance(each, Send)
    ]
    stops = [each for each in [*said, *client.receive(to_client)] if isinstance(each, Stop)]
    assert [each.failed for each in stops] == [True]
    assert "clock" in stops[0].reason


def test_a_client_that_is_slow_is_waited_for_whatever_stands_in_for_it() -> None:
    """Else rounds would depend on the load; what stands in is for one that does not know the event."""
    for by_data in (False, True):
        talk = TWO.server(by_data=by_data)
        for client in (1, 2):
            talk.receive(client, HELLOS[client - 1], 0.0)
        row = np.zeros((1, 5), np.float32)
        talk.open([at(1)], [0], 0.0)
        talk.receive(1, answer(talk, 1, (0,), row, activated=False), 0.0)
        talk.tick(2.0)
        assert (talk.rounds, talk.room) == ((0, 0) if by_data else (1, 1))
        if by_data:
            talk.receive(2, m.Unknown(HELLOS[1].session, (0,)), 3.0)
            assert talk.rounds == 1
        asked = talk.questions.asked
        talk.questions.ask([at(2)], 4.0, first=0)
        reply = m.Reply(HELLOS[0].session, -1, -1, (asked,), (), np.zeros(1, bool), row)
        actions = [*talk.receive(1, reply, 4.0), *talk.tick(9.0)]
        found = [each for each in actions if isinstance(each, Predicted)]
        assert len(found) == (not by_data)


SOURCE = {"source": "csv", "path": "a.csv", "entity_key": "entity.key", "time": "at", "clock": "data"}
LABELS = SOURCE | {"label": "y", "late": "fresh"}
CLIENT = {
    "connection": "connection.toml", "folder": "state", "clients": 1, "model": {"name": "mlp"},
    "features": SOURCE | {"columns": ["a"]},
}  # fmt: skip
SERVER = {
    "connection": "connection.toml", "folder": "state", "model": {"name": "mlp", "classes": 2},
    "clients": [{"name": "one", "embedding": 3}], "labels": LABELS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "section", "more", "said"),
    [
        (CLIENT, "features", {"clock": "wall"}, 'features.clock is "wall", but it must be "machine", or "data"'),
        (CLIENT, "features", {"speed": 2.0}, "replays as fast as all parties can: leave speed out"),
        (SERVER, "labels", {"speed": 2.0, "origin": ["2026-01-01", "2026-01-01"]}, "leave speed out"),
        (SERVER, "labels", {"origin": ["2026-01-01", "2026-01-01"]}, "leave origin out"),
        (CLIENT, "features", {"kept_for": 9.0}, "until its label has come: leave kept_for out"),
        (CLIENT, "features", {"source": "sql", "url": "sqlite:///a.db"}, "there is no setting 'clock'"),
    ],
)
def test_what_does_not_go_with_the_data_s_clock_is_refused(
    tmp_path: Path, file: dict[str, Any], section: str, more: dict[str, Any], said: str
) -> None:
    partyfile.check(file, tmp_path / "party.toml")
    with pytest.raises(ConfigError, match=said):
        partyfile.check(file | {section: file[section] | more}, tmp_path / "party.toml")


def test_a_server_that_replays_has_one_round_in_flight(tmp_path: Path) -> None:
    file = partyfile.check(SERVER | {"in_flight": 2}, tmp_path / "party.toml")
    assert isinstance(file, partyfile.ServerFile)
    party = Credentials(("nats://127.0.0.1:1",), "test", "server", 0, clients=("one",))
    with pytest.raises(ConfigError, match=r"in_flight is 2, but with labels\.clock"):
        own.server_party(file, party, tmp_path)
