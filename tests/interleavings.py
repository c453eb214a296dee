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
from small_parties import CLIENTS, EPOCHS, LIVES, SESSIONS, Client, NoneFree, Play, Server, Wrong

SERVER = 0
CHANNELS = [(1, 0), (2, 0), (0, 1), (0, 2)]
"""From whom to whom: each keeps its order, but for what overtakes."""


class Broken(Exception):  # noqa: N818 (it reads as what was found)
    """A promise is broken, or the end is never reached."""


class State(NamedTuple):
    """Numbers of parties and messages in the tables of a `Search`."""

    parties: tuple[int, int, int]
    mail: tuple[tuple[int, ...], ...]
    """By the place in `CHANNELS`: twice the number of a message, and 1 more if it was sent to all clients together."""
    losses: int
    overtakes: int
    restarts: int
    saves: int
    hurries: int


class Step(NamedTuple):
    """Something that happens."""

    what: str
    party: int
    channel: int = -1
    place: int = 0
    """Of the message in the channel."""
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
        self.play, self.most, self.tells = play, most, False
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
            steps = self._steps(state)
            if not steps:
                follows[state] = None
                continue
            if self.tells and len(follows) % 50_000 == 0:
                print(f"  {len(follows):,} states gone through, {len(self.came):,} found", flush=True)
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
            client.free = [SESSIONS * i]
            self._post(mail, i, client.hello())
        parties = tuple(self._intern(each) for each in [server, *clients])
        play = self.play
        return State(parties, _frozen(mail), play.losses, play.overtakes, play.restarts, play.saves, play.hurries)  # type: ignore[arg-type]

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
            mail[CHANNELS.index((party, target))].append(2 * self._message(message) + together)

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

    def _steps(self, state: State) -> list[Step]:
        """What can happen next; the first is what a fair schedule without faults does.

        Steps of different parties do not get in each other's way: a step takes the first message of a channel, and adds
        to the ends of others. So a party to which a message is under way on each of its channels goes first, and what
        the others could do meanwhile is tried afterwards. This holds as long as nobody can die and no deadline passes.
        """
        if self._parties[state.parties[0]].facts["done"]:
            self.ends += 1
            return []
        steps = [self._steps_of(state, party) for party in (1, 2, SERVER)]
        if not (state.restarts or state.hurries):
            for each, channels in zip(steps, ((2,), (3,), (0, 1)), strict=True):
                if all(state.mail[channel] for channel in channels):
                    return each
        waits = [Step("wait", SERVER)] if not any(state.mail) or state.hurries else []
        fair = [each for some in steps for each in some if each.what in ("receive", "happen", "label")]
        faults = [each for some in steps for each in some if each.what not in ("receive", "happen", "label")]
        return [*fair, *waits, *faults]

    def _steps_of(self, state: State, party: int) -> list[Step]:
        """What one party can do next, or suffer."""
        facts, steps = self._parties[state.parties[party]].facts, []
        channels = [i for i, (_, to) in enumerate(CHANNELS) if to == party and state.mail[i]]
        steps += [Step("receive", party, channel) for channel in channels]
        steps += [Step(what, party) for what in ("happen", "label") if facts.get(what)]
        for channel in channels:
            mail = state.mail[channel]
            other = next((place for place, each in enumerate(mail) if each % 2 != mail[0] % 2), 0)
            if state.overtakes and other:
                steps.append(Step("receive", party, channel, other))
            if state.losses:
                steps.append(Step("lose", party, channel))
        if state.restarts:
            steps.append(Step("restart", party))
            if any(state.mail):
                steps.append(Step("restart", party, clear=True))
        if state.saves:
            steps.append(Step("save", party))
        return steps

    def _after(self, state: State, step: Step) -> State:
        parties, mail = list(state.parties), [list(each) for each in state.mail]
        losses, overtakes, restarts, saves, hurries = state[2:]
        match step.what:
            case "receive":
                overtakes -= step.place > 0
                number = mail[step.channel].pop(step.place)
                self._call(state, step, parties, mail, step.party, "receive", number // 2)
            case "wait":
                hurries -= any(mail)
                seconds = max(0.0, min(self._parties[parties[0]].facts["due"], 1.0))
                self._call(state, step, parties, mail, SERVER, "wait", seconds)
                for client in range(1, CLIENTS + 1):
                    self._call(state, step, parties, mail, client, "wait", None)
            case "lose":
                losses -= 1
                number = mail[step.channel].pop(0)
                if isinstance(self._messages[number // 2][0], m.Happened):
                    self._call(state, step, parties, mail, SERVER, "missed", CHANNELS[step.channel][0])
            case what:
                restarts -= what == "restart"
                saves -= what == "save"
                if step.clear:
                    for channel, ends in enumerate(CHANNELS):
                        if step.party in ends:
                            mail[channel].clear()
                self._call(state, step, parties, mail, step.party, what, None)
        return State(tuple(parties), _frozen(mail), losses, overtakes, restarts, saves, hurries)  # type: ignore[arg-type]

    def _call(
        self, state: State, step: Step, parties: list[int], mail: list[list[int]], party: int, what: str, argument: Any
    ) -> None:
        """One party does something, and what it sends is posted."""
        source = CHANNELS[step.channel][0] if what == "receive" else 0
        key: Any = (parties[party], what, argument, source)
        if (known := self._memo.get(key)) is None:
            made = self._made(parties[party], what, argument, source, (), state, step)
            if made is not None:
                known = self._memo[key] = made
            else:  # it draws a session, and which one depends on what is known elsewhere
                free = self._free(parties, mail, party, what, argument)
                if (known := self._memo.get((*key, free))) is None:
                    known = self._made(parties[party], what, argument, source, free, state, step)
                    assert known is not None
                    self._memo[*key, free] = known
        parties[party], pairs = known
        for channel, number in pairs:
            mail[channel].append(number)

    def _made(
        self, number: int, what: str, argument: Any, source: int, free: tuple[int, ...], state: State, step: Step
    ) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        """A party after it has done something, and what it sends by channel; None if it needs free numbers."""
        made = pickle.loads(self._parties[number].raw)
        party = made.client if isinstance(made, Client) else SERVER
        arguments: list[Any] = [] if argument is None else [argument]
        if what == "receive":
            arguments = [*([source] if party == SERVER else []), self._messages[argument][0]]
        if party:
            made.free = list(free)
        try:
            sent = getattr(made, what)(*arguments)
        except NoneFree:
            return None
        except (Exception, AssertionError) as error:
            self._fail(f"{type(error).__name__}: {error}", state, step)
        if party:
            made.free = []
        posted: list[list[int]] = [[] for _ in CHANNELS]
        self._post(posted, party, sent)
        return self._intern(made), tuple((channel, each) for channel, some in enumerate(posted) for each in some)

    def _free(self, parties: list[int], mail: list[list[int]], party: int, what: str, argument: Any) -> tuple[int, ...]:
        """The smallest sessions of a client that nobody knows."""
        used = set().union(*(self._parties[each].sessions for each in parties))
        used.update(s for each in mail for number in each if (s := self._messages[number // 2][1]) is not None)
        if what == "receive" and (session := self._messages[argument][1]) is not None:
            used.add(session)
        life = self._parties[parties[party]].facts["life"] + (what == "restart")
        begin = SESSIONS * party + LIVES * (life - 1)
        return tuple(itertools.islice((n for n in range(begin, begin + LIVES) if n not in used), 2))

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
        message, _ = self._messages[state.mail[step.channel][step.place] // 2]
        source = f"client {CHANNELS[step.channel][0]}" if step.party == SERVER else "server"
        return f"{name}: {step.what} from {source}: {_short(message)}"


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
    return {"happen": happens, "life": party.life}


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


BOTH, ONE, OTHER = (1, 2), (1,), (2,)
SMALL = [
    *(Play(labels, (BOTH, BOTH), 2) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (ONE, OTHER), 1, losses=1) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (BOTH,), 2, losses=1, overtakes=1) for labels in ("told", "fresh", "stored")),
    Play("at once", (BOTH, BOTH), 2, announced=False, losses=1),
    Play("fresh", (BOTH, ONE), 2, announced=False),
]
"""They take seconds together."""
LARGE = [
    *(Play(labels, (BOTH, BOTH, BOTH), n) for labels in ("at once", "told", "fresh", "stored") for n in (1, 2, 3)),
    *(Play(labels, (BOTH, ONE, OTHER), 2) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (BOTH, ONE), 2, losses=1, overtakes=1) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (BOTH,), 2, restarts=1) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (BOTH,), 2, overtakes=1, hurries=1) for labels in ("at once", "told", "fresh", "stored")),
    *(Play(labels, (BOTH,), 1, restarts=1, saves=1) for labels in ("at once", "told", "fresh", "stored")),
]
MOST = 100_000
"""States of one play at most."""


def main() -> None:
    """Go through small federations, or through one that is described."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--labels", choices=["at once", "told", "fresh", "stored"], help="this one alone")
    reader.add_argument("--touched", default="12,12", help="the clients that each event activates, such as 12,1,2")
    reader.add_argument("--in-flight", type=int, default=2)
    reader.add_argument("--unannounced", action="store_true", help="clients announce no events")
    for name in ("losses", "overtakes", "restarts", "saves", "hurries"):
        reader.add_argument(f"--{name}", type=int, default=0)
    reader.add_argument("--most", type=int, default=MOST, help="states of one play; 0 is no end")
    given = reader.parse_args()
    plays = [*SMALL, *LARGE]
    if given.labels is not None:
        touched = tuple(tuple(map(int, each)) for each in given.touched.split(","))
        faults = {name: getattr(given, name) for name in ("losses", "overtakes", "restarts", "saves", "hurries")}
        plays = [Play(given.labels, touched, given.in_flight, not given.unannounced, **faults)]
    for play in plays:
        begin = time.perf_counter()
        search = Search(play, given.most)
        search.tells = True
        print(play, flush=True)
        try:
            search.run()
        except Broken as error:
            sys.exit(str(error))
        end = "all" if search.whole else "no more were looked at"
        print(f"  {len(search.came):,} states ({end}), {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
