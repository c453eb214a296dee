"""Goes through every interleaving of a small federation: `python tests/interleavings.py`.

A state is the server, two clients, what is under way between them, and how many faults may still happen. From each
state everything is tried that can happen next. A promise that is broken raises `Broken`, with the steps that led there.
So does a state from which a fair schedule, without further faults, does not lead to the end.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from anabranch.protocol import messages as m
from anabranch.protocol.codec import decode, encode
from small_parties import CLIENTS, EPOCHS, LIVES, SESSIONS, Client, Play, Server, Wrong

SERVER = 0
CHANNELS = [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
"""To the server by client; to each client, by itself and together with the others: each keeps its order."""


class Broken(Exception):  # noqa: N818 (it reads as what was found)
    """A promise is broken, or the end is never reached."""


class State(NamedTuple):
    """Numbers of parties and messages in the tables of a `Search`."""

    parties: tuple[int, int, int]
    mail: tuple[tuple[int, ...], ...]
    """By the place in `CHANNELS`."""
    losses: int
    restarts: int
    saves: int
    hurries: int


class Step(NamedTuple):
    """Something that happens."""

    what: str
    party: int
    channel: int = -1
    clear: bool = False
    """Whether what is under way to and from a party dies with it."""


class Known(NamedTuple):
    """A party in some state."""

    raw: bytes
    sessions: frozenset[int]
    facts: dict[str, Any]


class Search:
    """A search through all that can happen.

    Args:
        play: what is gone through.
        most: states, after which it ends as if there were no more; 0 is no end.
    """

    def __init__(self, play: Play, most: int = 0) -> None:
        self.play, self.most = play, most
        self._parties: list[Known] = []
        self._numbers: dict[Any, int] = {}
        self._messages: list[tuple[m.Message, int | None]] = []
        self._message_numbers: dict[bytes, int] = {}
        self._memo: dict[Any, tuple[int, tuple[tuple[int, int], ...]]] = {}
        self.came: dict[State, tuple[State, Step] | None] = {}
        """How each state was reached first."""
        self.ends = 0
        self.whole = True
        """Whether there was nothing more to be tried."""

    def run(self) -> None:
        """Goes through everything.

        Raises:
            Broken: where something is wrong.
        """
        first = self._first()
        self.came[first] = None
        follows: dict[State, State | None] = {}
        left = deque([first])
        while left:
            state = left.pop()
            steps = list(self._steps(state))
            if not steps:
                follows[state] = None
                continue
            for i, step in enumerate(steps):
                after = self._after(state, step)
                if i == 0:
                    follows[state] = after
                if after not in self.came:
                    if self.most and len(self.came) >= self.most:
                        self.whole = False
                        continue
                    self.came[after] = state, step
                    left.append(after)
        self._check_fair(follows)

    def _check_fair(self, follows: dict[State, State | None]) -> None:
        """Whether the fair schedule, which is always the first step, ends from everywhere."""
        good: set[State] = set()
        for state in follows:
            path: dict[State, None] = {}
            here: State | None = state
            while here is not None and here not in good and here in follows:
                if here in path:
                    self._fail("the same comes again and again", here)
                path[here] = None
                if follows[here] is None and not self._is_end(here):
                    self._fail("nothing happens any more, and it is not the end", here)
                here = follows[here]
            good.update(path)

    # -- states ---------------------------------------------------------------------------------------------------

    def _first(self) -> State:
        server, clients = Server(self.play), [Client(self.play, i) for i in range(1, CLIENTS + 1)]
        mail: list[list[int]] = [[] for _ in CHANNELS]
        self._post(mail, SERVER, server.do(server.talk.begin()))
        for i, client in enumerate(clients, 1):
            client.sessions.free = iter([SESSIONS * i])
            self._post(mail, i, client.hello())
        parties = tuple(self._intern(each) for each in [server, *clients])
        play = self.play
        return State(parties, _frozen(mail), play.losses, play.restarts, play.saves, play.hurries)  # type: ignore[arg-type]

    def _intern(self, party: Any) -> int:
        numbers: set[int] = set()
        flat = tuple(_flat(party, {}, numbers))
        number = self._numbers.get(flat)
        if number is None:
            number = self._numbers[flat] = len(self._parties)
            self._parties.append(Known(pickle.dumps(party, 5), frozenset(numbers), _facts(party)))
        return number

    def _post(self, mail: list[list[int]], party: int, sent: Any) -> None:
        for target, together, message in sent:
            channel = CHANNELS.index((0, party)) if party else CHANNELS.index((target, int(together)))
            mail[channel].append(self._message(message))

    def _message(self, message: m.Message) -> int:
        raw = encode(message)
        number = self._message_numbers.get(raw)
        if number is None:
            number = self._message_numbers[raw] = len(self._messages)
            self._messages.append((decode(raw), getattr(message, "session", None)))
        return number

    def _is_end(self, state: State) -> bool:
        facts = self._parties[state.parties[0]].facts
        if not facts["done"]:
            return False
        server, *clients = (pickle.loads(self._parties[each].raw) for each in state.parties)
        try:
            server.check_end(clients)
        except Wrong as error:
            self._fail(str(error), state)
        return True

    # -- what can happen ------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[Step]:
        """What can happen next; the first is what a fair schedule without faults does."""
        server = self._parties[state.parties[0]].facts
        if server["done"]:
            self.ends += 1
            return
        for channel, waiting in enumerate(state.mail):
            if waiting:
                yield Step("receive", CHANNELS[channel][0], channel)
        for client in range(1, CLIENTS + 1):
            if self._parties[state.parties[client]].facts["happens"]:
                yield Step("happen", client)
        if server["label"]:
            yield Step("label", SERVER)
        if not any(state.mail) or state.hurries:
            yield Step("wait", SERVER)
        if state.losses:
            for channel, waiting in enumerate(state.mail):
                if waiting:
                    yield Step("lose", CHANNELS[channel][0], channel)
        for party in range(CLIENTS + 1):
            if state.restarts:
                yield Step("restart", party)
                if any(state.mail):
                    yield Step("restart", party, clear=True)
            if state.saves:
                yield Step("save", party)

    def _after(self, state: State, step: Step) -> State:
        parties, mail = list(state.parties), [list(each) for each in state.mail]
        losses, restarts, saves, hurries = state[2:]
        match step.what:
            case "receive":
                number = mail[step.channel].pop(0)
                self._call(state, step, parties, mail, step.party, "receive", number)
            case "wait":
                hurries -= bool(any(mail))
                seconds = max(0.0, min(self._parties[parties[0]].facts["due"], 1.0))
                self._call(state, step, parties, mail, SERVER, "wait", seconds)
                for client in range(1, CLIENTS + 1):
                    self._call(state, step, parties, mail, client, "wait", None)
            case "lose":
                losses -= 1
                number = mail[step.channel].pop(0)
                if isinstance(self._messages[number][0], m.Happened):
                    source = CHANNELS[step.channel][1]
                    self._call(state, step, parties, mail, SERVER, "missed", source)
            case "restart":
                restarts -= 1
                if step.clear:
                    for channel, ends in enumerate(CHANNELS):
                        if step.party == SERVER or step.party in (ends if ends[0] == 0 else ends[:1]):
                            mail[channel].clear()
                self._call(state, step, parties, mail, step.party, "restart", None)
            case "save":
                saves -= 1
                self._call(state, step, parties, mail, step.party, "save", None)
            case what:
                self._call(state, step, parties, mail, step.party, what, None)
        return State(tuple(parties), _frozen(mail), losses, restarts, saves, hurries)  # type: ignore[arg-type]

    def _call(
        self, state: State, step: Step, parties: list[int], mail: list[list[int]], party: int, what: str, argument: Any
    ) -> None:
        """One party does something, and what it sends is posted."""
        free: tuple[int, ...] = ()
        if party:
            used = set().union(*(self._parties[each].sessions for each in parties))
            used.update(s for each in mail for number in each if (s := self._messages[number][1]) is not None)
            if what == "receive" and (session := self._messages[argument][1]) is not None:
                used.add(session)
            life = self._parties[parties[party]].facts["life"] + (what == "restart")
            begin = SESSIONS * party + LIVES * (life - 1)
            free = tuple(itertools.islice((n for n in range(begin, begin + LIVES) if n not in used), 2))
        source = CHANNELS[step.channel][1] if what == "receive" and party == SERVER else 0
        key = parties[party], what, argument, source, free
        if key not in self._memo:
            made = pickle.loads(self._parties[parties[party]].raw)
            arguments: list[Any] = [] if argument is None else [argument]
            if what == "receive":
                arguments = [*([source] if party == SERVER else []), self._messages[argument][0]]
            if party:
                made.sessions.free = _Free(free)
            try:
                if what == "restart" and party:
                    made.saved_free = free
                sent = _restart(made, free) if what == "restart" and party else getattr(made, what)(*arguments)
            except (Exception, AssertionError) as error:
                self._fail(f"{type(error).__name__}: {error}", state, step)
            if party:
                made.sessions.free = ()
            posted: list[list[int]] = [[] for _ in CHANNELS]
            self._post(posted, party, sent)
            pairs = tuple((channel, number) for channel, each in enumerate(posted) for number in each)
            self._memo[key] = self._intern(made), pairs
        parties[party], pairs = self._memo[key]
        for channel, number in pairs:
            mail[channel].append(number)

    def _fail(self, why: str, state: State, last: Step | None = None) -> None:
        lines: list[str] = []
        here: State | None = state
        while here is not None and (came := self.came.get(here)) is not None:
            before, step = came
            lines.append(self._told(before, step))
            here = before
        lines.reverse()
        if last is not None:
            lines.append(self._told(state, last))
        raise Broken(f"{why}\n{self.play}\n" + "\n".join(f"{i:3} {line}" for i, line in enumerate(lines)))

    def _told(self, state: State, step: Step) -> str:
        name = "server" if step.party == SERVER else f"client {step.party}"
        if step.channel < 0:
            return f"{name}: {step.what}{' and what is under way with it' if step.clear else ''}"
        message, _ = self._messages[state.mail[step.channel][0]]
        source = f"client {CHANNELS[step.channel][1]}" if step.party == SERVER else "server"
        return f"{name}: {step.what} from {source}: {_short(message)}"


def _restart(client: Any, free: tuple[int, ...]) -> Any:
    client.begin()
    client.sessions.free = _Free(free)
    return client.do(client.talk.hello())


class _Free:
    """Numbers that are free."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._left = list(numbers)

    def __next__(self) -> int:
        return self._left.pop(0)


def _short(message: m.Message) -> str:
    shown = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in message.__dict__.items()
        if name not in ("terms", "schema", "width") and value is not None
    }
    return f"{type(message).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"


def _frozen(mail: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each) for each in mail)


def _facts(party: Any) -> dict[str, Any]:
    """What the search wants to know of a party."""
    if isinstance(party, Server):
        return {"done": party.talk.done, "due": party.talk.due(), "label": party.label_is_due}
    happens = party.play.announced and party.happened < len(party.play.events(party.client))
    return {"happens": happens, "life": party.life}


_CONSTANT = {"play", "terms", "expected", "rule", "_HANDLERS", "schema"}


def _flat(value: Any, seen: dict[int, int], numbers: set[int]) -> Iterator[Any]:
    """Everything that a party consists of, so that two that are equal are equal here; collects the sessions."""
    if value is None or isinstance(value, bool | str | bytes | float):
        yield value
    elif isinstance(value, int):
        if SESSIONS <= value < EPOCHS:
            numbers.add(value)
        yield value
    elif isinstance(value, np.ndarray):
        yield value.dtype.char, value.shape, value.tobytes()
    elif isinstance(value, dict):
        yield "dict", len(value)
        for name, each in value.items():
            yield from _flat(name, seen, numbers)
            yield from _flat(each, seen, numbers)
    elif isinstance(value, list | tuple | deque):
        yield "list", len(value)
        for each in value:
            yield from _flat(each, seen, numbers)
    elif isinstance(value, set | frozenset):
        yield "set", tuple(sorted(value))
        numbers.update(each for each in value if isinstance(each, int) and SESSIONS <= each < EPOCHS)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, np.dtype):
        if id(value) in seen:
            yield "again", seen[id(value)]
            return
        seen[id(value)] = len(seen)
        yield type(value).__name__
        for name, each in value.__dict__.items():
            if name not in _CONSTANT:
                yield from _flat(each, seen, numbers)
    else:
        yield type(value).__name__


A, B, C = (1, 2), (1,), (2,)


def main() -> None:
    """Goes through what is asked for."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--labels", default="fresh")
    reader.add_argument("--events", type=int, default=3)
    reader.add_argument("--touched", default="")
    reader.add_argument("--in-flight", type=int, default=2)
    reader.add_argument("--losses", type=int, default=0)
    reader.add_argument("--restarts", type=int, default=0)
    reader.add_argument("--saves", type=int, default=0)
    reader.add_argument("--hurries", type=int, default=0)
    reader.add_argument("--unannounced", action="store_true")
    reader.add_argument("--most", type=int, default=0)
    given = reader.parse_args()
    touched = (
        tuple(tuple(map(int, each)) for each in given.touched.split(","))
        if given.touched
        else (A, A, A)[: given.events]
    )
    play = Play(
        given.labels,
        touched,
        given.in_flight,
        not given.unannounced,
        given.losses,
        given.restarts,
        given.saves,
        given.hurries,
    )
    begin = time.perf_counter()
    search = Search(play, given.most)
    try:
        search.run()
    except Broken as error:
        sys.exit(str(error))
    print(
        f"{len(search.came):,} states, {search.ends:,} ends, {len(search._parties):,} parties, {len(search._memo):,} calls, {time.perf_counter() - begin:.1f} s, whole: {search.whole}"
    )


if __name__ == "__main__":
    main()
