"""A federation in Python: a person's own models and events, through a real nats-server."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import anabranch as ab
from anabranch.broker.connect import connect, disconnect
from anabranch.core.layers import MLP
from anabranch.errors import CheckpointError, RefusedError
from anabranch.net import Client, Credentials, Expected, Last, LocalBroker, Round, Server, Skip, Step, Wait, event_name
from anabranch.parties.async_party import seconds
from anabranch.parties.federation_table import Rates, table
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.messages import Bye, Call, Embeddings, Hello, Message, Welcome
from anabranch.protocol.terms import VERSION
from anabranch.serving.status import server_status
from patience import until

ROUNDS = 40
SECONDS = 30.0
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROUNDS, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(int)
NAMES = [f"order {i}" for i in range(ROUNDS)]
WIDTH = 3


class Own(eqx.Module):
    """A model that a person might write."""

    weight: jax.Array
    scale: float = eqx.field(static=True, default=2.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.weight) * jnp.float32(self.scale)


def bottom(m: int) -> Own:
    return Own(jax.random.normal(jax.random.key(m), (2, WIDTH)))


def top() -> MLP:
    return MLP([2 * WIDTH, 4, 2], relu_last=False, key=jax.random.key(0))


def features(m: int) -> Callable[[bytes], Any]:
    rows = {event_name(name): X[i, 2 * m - 2 : 2 * m] for i, name in enumerate(NAMES)}
    return rows.get


def run(main: Callable[[str], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    """Runs a test that is given the URL of a nats-server."""

    async def whole() -> None:
        async with LocalBroker(tmp_path / "broker") as broker:
            await asyncio.wait_for(main(broker.url), SECONDS)

    asyncio.run(whole())


def credentials(url: str, index: int) -> Credentials:
    party = ("server", "bank", "shop")[index]
    return Credentials((url,), "demo", party, index, clients=() if index else ("bank", "shop"))


def server(url: str, folder: Path, **options: Any) -> Server:
    options = {"labels": list(zip(NAMES, Y.tolist(), strict=True)), "clients": [Expected(WIDTH)] * 2} | options
    return Server(credentials(url, 0), folder / "server", model=top(), learning_rate=0.1, **options)


def client(url: str, folder: Path, m: int, **options: Any) -> Client:
    options = {"features": features(m), "model": bottom(m), "learning_rate": 0.1} | options
    return Client(credentials(url, m), folder / f"client {m}", inputs=2, clients=2, **options)


async def steps(client: Client) -> list[Step]:
    async with client:
        return [step async for step in client]


async def played(server: Server) -> list[Round]:
    async with server:
        return [each async for each in server]


def check_table(server: Server, activations: list[int]) -> None:
    """The live table of ``anabranch up``, of a server that has played all."""
    status = server_status(server.party, 0.0) | {"ended": server.stopped}  # type: ignore[arg-type]
    rates, shown = Rates(), Console(file=io.StringIO(), width=100)
    rates.add(1.0, status["rounds"])
    shown.print(table(status, ROUNDS, rates))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert f"{ROUNDS} of {ROUNDS} rounds · 0 rounds/s · run-time error 0." in text
    assert "waiting for" not in text
    for name, n in zip(("bank", "shop"), activations, strict=True):
        (line,) = (line for line in text.splitlines() if name in line)
        cells = [cell.strip() for cell in re.split("[│|]", line) if cell.strip()]
        assert cells[:4] == [name, str(n), str(ROUNDS), "0"]
        assert 0 < float(cells[4]) <= float(cells[5])


@pytest.mark.parametrize("activation", [ab.Random(0.5), lambda t, x: bool(x[0] > 0)], ids=["random", "a function"])
def test_own_models_give_the_bits_of_the_simulator(activation, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        parties = [
            server(url, tmp_path, update=ab.DLR(4, 0.9)),
            *(client(url, tmp_path, m, update=ab.DLR(4, 0.9), activation=activation) for m in (1, 2)),
        ]
        rounds, *taken = await asyncio.gather(played(parties[0]), steps(parties[1]), steps(parties[2]))
        drawn = isinstance(activation, ab.Random)
        mask = activation.mask(0, 0, X, (2, 2)) if drawn else X[:, [0, 2]] > 0
        result = ab.simulate(
            ab.SplitModel([bottom(1), bottom(2)], top()),
            ab.streams.from_arrays([X[:, :2], X[:, 2:]], Y),
            update=ab.DLR(4, 0.9),
            activation=ab.Recorded(mask),
            learning_rate=0.1,
            keep_errors=True,
        )
        models = [each.model for each in parties]
        for own, theirs in zip(models, [result.model.server, *result.model.clients], strict=True):
            for one, other in zip(jax.tree.leaves(own), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_array_equal(one, other)
        assert [each.number for each in rounds] == list(range(ROUNDS))
        assert [each.event for each in rounds] == [event_name(name) for name in NAMES]
        assert [each.label for each in rounds] == Y.tolist()
        assert [each.prediction != each.label for each in rounds] == result.errors.tolist()
        assert [each.activated for each in rounds] == [
            tuple(name for name, is_in in zip(("bank", "shop"), row, strict=True) if is_in) for row in mask
        ]
        assert not any(each.replaced for each in rounds)
        for m, mine in enumerate(taken):
            assert [step.round for step in mine] == np.flatnonzero(mask[:, m]).tolist()
            assert all(step.derivative.shape == (WIDTH,) for step in mine)
        assert {party.stopped for party in parties} == {"the stream has ended"}
        check_table(parties[0], mask.sum(axis=0).tolist())

    run(main, tmp_path)


def test_events_of_the_clients_open_rounds(tmp_path: Path) -> None:
    """Clients' own sources of events, and labels that are looked up; one event has none, and both tell of another."""
    waiting: list[asyncio.Queue[str]] = [asyncio.Queue(), asyncio.Queue()]
    labels = {event_name(name): int(label) for name, label in zip(NAMES, Y, strict=True)}

    async def happening(queue: asyncio.Queue[str]) -> AsyncIterator[str]:
        while True:
            yield await queue.get()

    async def main(url: str) -> None:
        tellers = [
            client(url, tmp_path, m, events=happening(queue), activation=lambda t, x: False)
            for m, queue in enumerate(waiting, 1)
        ]
        both = asyncio.gather(*map(steps, tellers))
        seen = []
        async with server(url, tmp_path, labels=labels.get) as label_holder:
            for name in (NAMES[3], "unlabelled", NAMES[1]):
                waiting[0].put_nowait(name)
            async for each in label_holder:
                seen.append(each)
                if len(seen) == 2:
                    for queue in waiting:
                        queue.put_nowait(NAMES[7])
                elif len(seen) == 3:
                    waiting[0].put_nowait(NAMES[9])
                elif len(seen) == 4:
                    label_holder.end()
        assert [each.event.decode() for each in seen] == [NAMES[3], NAMES[1], NAMES[7], NAMES[9]]
        activated = [each.activated for each in seen]
        assert (activated[0], activated[1], activated[3]) == (("bank",),) * 3
        assert activated[2] in (("bank",), ("shop",), ("bank", "shop"))  # who is too late for the round has missed it
        for name, mine in zip(("bank", "shop"), await both, strict=True):
            assert [step.round for step in mine] == [t for t, names in enumerate(activated) if name in names]

    run(main, tmp_path)


def test_a_stream_of_labels_and_a_client_without_an_event(tmp_path: Path) -> None:
    async def stream() -> AsyncIterator[tuple[str, int]]:
        for name, label in zip(NAMES[:6], Y, strict=False):
            await asyncio.sleep(0)
            yield name, int(label)

    rows = features(2)
    lacking = event_name(NAMES[2])

    async def main(url: str) -> None:
        expected = [Expected(WIDTH), Expected(WIDTH, missing=Last(5))]
        rounds, *_ = await asyncio.gather(
            played(server(url, tmp_path, labels=stream(), clients=expected)),
            steps(client(url, tmp_path, 1, learning_rate=optax.sgd(0.1, momentum=0.9))),
            steps(client(url, tmp_path, 2, features=lambda event: None if event == lacking else rows(event))),
        )
        assert [each.replaced for each in rounds] == [{}, {}, {"shop": "last"}, {}, {}, {}]
        assert rounds[2].activated == ("bank",)

    run(main, tmp_path)


def test_leaving_in_the_middle_and_coming_back(tmp_path: Path) -> None:
    """The ``async for`` is left; what was played is played, and other objects go on with the next round."""

    async def main(url: str) -> None:
        clients = [asyncio.ensure_future(steps(client(url, tmp_path, m))) for m in (1, 2)]
        first = []
        async with server(url, tmp_path) as one:
            async for each in one:
                first.append(each.number)
                if len(first) == 5:
                    break
        done = one.rounds
        assert done >= 5
        again = server(url, tmp_path)
        assert again.rounds == done
        rest = await played(again)
        assert [each.number for each in rest] == list(range(done, ROUNDS))
        assert again.totals.rounds == ROUNDS
        assert [step.round for step in await clients[0]] == list(range(ROUNDS))
        assert len(await clients[1]) == ROUNDS

    run(main, tmp_path)


def test_a_damaged_checkpoint_costs_nothing_whenever_the_server_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has what the checkpoint before the last one needs, also once a process has begun after a clean stop."""

    async def main(url: str) -> None:
        clients = asyncio.gather(*(steps(client(url, tmp_path, m)) for m in (1, 2)))
        first = server(url, tmp_path, checkpoint_every=15)
        await played(first)
        await clients
        trained = jax.tree.leaves(first.model)
        killed = server(url, tmp_path)  # its checkpoint has all rounds, and it plays none
        assert (killed.rounds, killed.party.replayed) == (ROUNDS, 0)  # type: ignore[union-attr]
        async with killed:
            killed.party._log_file.close()  # type: ignore[union-attr]
        newest = max((tmp_path / "server" / "checkpoints").glob("*.safetensors"))
        newest.write_bytes(newest.read_bytes()[:-1])
        with monkeypatch.context() as patch:
            patch.setattr(decode, "__defaults__", (0,))  # its own log has no longest message
            again = server(url, tmp_path)
        async with again:
            assert again.rounds == again.totals.rounds == ROUNDS
            assert again.party.replayed > 0  # type: ignore[union-attr]
            for one, other in zip(jax.tree.leaves(again.model), trained, strict=True):
                np.testing.assert_array_equal(one, other)

    run(main, tmp_path)


def dies_after_its_last_answer(shop: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    send = shop.party.link.send

    async def sends(message: Any, to: int | None = None) -> None:
        await send(message, to)
        if isinstance(message, Embeddings) and message.rounds[-1] == ROUNDS - 1:
            raise InterruptedError("killed")

    monkeypatch.setattr(shop.party.link, "send", sends)
    return shop


@pytest.mark.parametrize("missing", [Wait(), Skip()], ids=["waited for", "done without"])
def test_the_end_comes_while_a_client_is_down(missing, tmp_path: Path, monkeypatch, caplog) -> None:
    """One that has to be waited for gets its last derivatives however late it is, and another once both are there."""
    caplog.set_level("INFO", "anabranch.server")
    monkeypatch.setattr("anabranch.federation.server.LAST_ANSWERS", SECONDS)
    monkeypatch.setattr("anabranch.federation.client.HELLO_EVERY", 0.05)

    async def main(url: str) -> None:
        expected = {"clients": [Expected(WIDTH, missing=missing)] * 2}
        bank, first = client(url, tmp_path, 1), server(url, tmp_path, **expected)
        ending = asyncio.ensure_future(played(first))
        banking = asyncio.ensure_future(steps(bank))
        with pytest.raises(InterruptedError):
            await steps(dies_after_its_last_answer(client(url, tmp_path, 2), monkeypatch))
        assert len(await banking) == ROUNDS  # it has all, and waits for nobody
        first.party._deadline = 0.0  # type: ignore[union-attr]  # the time for last answers is over
        first.party.wake()
        monkeypatch.setattr("anabranch.federation.server.COMING", 0.0)
        if isinstance(missing, Wait):
            while "waiting for shop to say that the last derivatives are there" not in caplog.text:
                await asyncio.sleep(0)
            first.leave()
            assert len(await ending) == ROUNDS

            async def no_more() -> AsyncIterator[tuple[str, int]]:
                for item in ():
                    yield item

            expected["labels"] = no_more()  # type: ignore[assignment]  # which do not know yet that they are over
        else:
            assert len(await ending) == ROUNDS
            assert first.stopped == "the end came, and clients were away"
            assert "no word from shop in 30 s that the last derivatives are there" in caplog.text
        again = server(url, tmp_path, **expected)  # type: ignore[arg-type]  # which knows that the bank need not come
        ending = asyncio.ensure_future(played(again))
        assert [step.round for step in await steps(client(url, tmp_path, 2))] == list(range(ROUNDS))
        await ending
        assert again.stopped == "the stream has ended"

    run(main, tmp_path)


@pytest.mark.parametrize("more", [0, 20], ids=["nothing follows", "rounds follow"])
def test_a_goodbye_that_is_lost_and_a_server_that_dies_before_it_dismisses_anybody(
    more, tmp_path, monkeypatch, caplog
) -> None:
    """Clients leave when the server has kept that they may; they take part again where it has come by more labels."""
    monkeypatch.setattr("anabranch.federation.client.HELLO_EVERY", 0.05)
    monkeypatch.setattr("anabranch.federation.client.LONG", 0.0)
    lost: list[Bye] = []

    async def main(url: str) -> None:
        labels = list(zip(NAMES, Y.tolist(), strict=True))
        parties = [client(url, tmp_path, m) for m in (1, 2)]
        for each in parties:
            send = each.party.link.send

            async def sends(message: Any, to: int | None = None, send: Any = send) -> None:
                if isinstance(message, Bye) and len(lost) < 2:
                    lost.append(message)
                else:
                    await send(message, to)

            monkeypatch.setattr(each.party.link, "send", sends)
        taking = asyncio.gather(*(steps(each) for each in parties))
        first = server(url, tmp_path, labels=labels[:20])

        async def dies(*clients: Any) -> None:
            pass

        monkeypatch.setattr(first.party, "_dismiss", dies)
        assert len(await played(first)) == 20
        assert len(lost) == 2
        assert not taking.done()
        assert caplog.text.count("has all its derivatives, and waits for the server to keep that") == 2
        again = server(url, tmp_path, labels=labels[: 20 + more])
        assert len(await played(again)) == more
        assert [[step.round for step in each] for each in await taking] == [list(range(20 + more))] * 2
        assert [each.stopped for each in parties] == ["the stream has ended"] * 2

    run(main, tmp_path)


def test_a_client_whose_parameters_are_not_finite_says_goodbye(tmp_path: Path, caplog) -> None:
    """So nobody waits for its answers until their deadline."""
    caplog.set_level("INFO", "anabranch.server")

    async def main(url: str) -> None:
        broken = jax.tree.map(lambda each: each * jnp.nan, bottom(1))
        shop = client(url, tmp_path, 2)
        shopping = asyncio.ensure_future(steps(shop))
        async with server(url, tmp_path, clients=[Expected(WIDTH, missing=Skip())] * 2) as one:
            playing = asyncio.ensure_future(anext(one))
            with pytest.raises(ab.AnabranchError, match="client 1 are not finite since round 0: try a smaller"):
                await steps(client(url, tmp_path, 1, model=broken))
            await until(lambda: one.party.notes["left", 1], "a goodbye")  # type: ignore[union-attr]
            await playing
        shop.leave()
        await shopping
        assert "bank has left: the embeddings of client 1 are not finite since round 0" in caplog.text

    run(main, tmp_path)


def test_a_slow_reader_slows_the_federation_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.parties.async_party.HELD", 2)

    async def main(url: str) -> None:
        clients = asyncio.gather(*(steps(client(url, tmp_path, m)) for m in (1, 2)))
        async with server(url, tmp_path) as slow:
            first = await anext(slow)
            for _ in range(200):
                await asyncio.sleep(0)
            assert slow.rounds <= 5
            assert [first.number] + [each.number async for each in slow] == list(range(ROUNDS))
        await clients

    run(main, tmp_path)


def test_a_prediction_may_be_asked_for_where_rounds_are_iterated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits until somebody takes a round, and who would take one waits for the server; for long, perhaps."""
    monkeypatch.setattr("anabranch.parties.async_party.HELD", 2)
    monkeypatch.setattr("anabranch.parties.async_party.MOST_HELD", 3)

    async def main(url: str) -> None:
        clients = asyncio.gather(*(steps(client(url, tmp_path, m)) for m in (1, 2)))
        numbers = []
        async with server(url, tmp_path) as asked:
            async for each in asked:
                numbers.append(each.number)
                if each.number == 0:
                    await until(lambda: asked.rounds >= 4, "one round more than are held")
                    answer = await asked.predict(NAMES[0])
                    assert answer["answered"] == ["bank", "shop"]
                    for _ in range(5):
                        await asked.predict(NAMES[0])
        assert numbers == list(range(ROUNDS))
        await clients

    run(main, tmp_path)


def test_a_client_that_hears_nothing_says_hello_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.federation.client.HELLO_EVERY", 0.01)

    async def main(url: str) -> None:
        heard: list[Message] = []

        async def hear(message: Any) -> None:
            heard.append(decode(message.data))

        spy = await connect(credentials(url, 0))
        await spy.subscribe("demo.up.1", cb=hear)
        await spy.flush()
        alone = client(url, tmp_path, 1)
        running = asyncio.ensure_future(alone.run())
        await until(lambda: len(heard) >= 3, "three hellos")
        assert all(isinstance(each, Hello) for each in heard[:3])
        alone.leave()
        await running
        await disconnect(spy)

    run(main, tmp_path)


def test_a_client_takes_part_again_once_its_copy_has_left(tmp_path: Path) -> None:
    """The server waits for the other client all the while, and asks nobody anything."""

    async def main(url: str) -> None:
        serving = asyncio.ensure_future(played(server(url, tmp_path)))
        bank, copy = client(url, tmp_path, 1), client(url, tmp_path / "copy", 1)
        stepping = asyncio.ensure_future(steps(bank))
        await until(lambda: bank.party.conversation.joined, "the bank")
        leaving = asyncio.ensure_future(copy.run())
        await until(lambda: copy.party.conversation.joined, "its copy")
        copy.leave()
        await leaving
        await steps(client(url, tmp_path, 2))
        assert len(await stepping) == len(await serving) == ROUNDS

    run(main, tmp_path)


def test_a_server_that_is_started_beside_another_ends_no_client(tmp_path: Path) -> None:
    """It has an empty folder, refuses them, and is ended before long."""
    gone = asyncio.Event()

    async def labels() -> AsyncIterator[tuple[str, int]]:
        yield NAMES[0], int(Y[0])
        await gone.wait()
        for name, label in zip(NAMES[1:], Y[1:].tolist(), strict=True):
            yield name, label

    async def main(url: str) -> None:
        clients = [client(url, tmp_path, m) for m in (1, 2)]
        stepping = [asyncio.ensure_future(steps(each)) for each in clients]
        serving = asyncio.ensure_future(played(server(url, tmp_path, labels=labels())))
        await until(lambda: all(each.party.conversation.applied == 0 for each in clients), "the first round")
        other = server(url, tmp_path / "other")
        refusing = asyncio.ensure_future(other.run())
        await until(lambda: all(other.party.notes["refused", m] for m in (1, 2)), "two refusals")
        other.leave()
        await refusing
        gone.set()
        assert len(await serving) == ROUNDS
        assert [len(each) for each in await asyncio.gather(*stepping)] == [ROUNDS] * 2

    run(main, tmp_path)


def test_under_slr_events_whose_names_bear_no_times_hold_up_no_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first are of no round, and more than are read ahead; before there is a server none is given up."""
    monkeypatch.setattr("anabranch.federation.client.AHEAD", 3)

    async def happening() -> AsyncIterator[str]:
        for name in NAMES[:10]:
            yield name

    async def main(url: str) -> None:
        tells = client(url, tmp_path, 1, events=happening(), update=ab.SLR(2), activation=lambda t, x: False)
        running = asyncio.ensure_future(steps(tells))
        await until(lambda: tells.party.conversation.told == 3, "as many events as are read ahead")  # type: ignore[union-attr]
        other = asyncio.ensure_future(steps(client(url, tmp_path, 2, update=ab.SLR(2))))
        # A round begins once all have been read.
        gone = asyncio.Event()

        async def labels() -> AsyncIterator[tuple[str, int]]:
            await gone.wait()
            yield NAMES[9], 1

        serving = asyncio.ensure_future(played(server(url, tmp_path, labels=labels(), update=ab.SLR(2))))
        await until(lambda: tells.party._listening.done(), "the last event")  # type: ignore[union-attr]
        gone.set()
        (only,) = await serving
        assert only.activated == ("bank", "shop")
        assert tells.party.notes["event dropped", None] == 7
        await asyncio.gather(running, other)

    run(main, tmp_path)


def test_what_an_inbox_had_no_room_for_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server calls whom it did not listen to, who then tells again; a client says hello."""

    async def main(url: str) -> None:
        for index, message in ((0, Bye(7, -1, "back soon")), (1, Call(1, 0))):
            party = (server(url, tmp_path) if index == 0 else client(url, tmp_path, 1)).party
            if index == 0:
                party.conversation.seats[0].session = 7
            sent: list[tuple[type[Message], int | None]] = []

            async def send(message: Message, client: int | None = None, sent: Any = sent) -> None:
                sent.append((type(message), client))

            monkeypatch.setattr(party.link, "send", send)
            monkeypatch.setattr("anabranch.federation.engine.INBOX", 1)
            await party._turn()
            del sent[:]
            party.conversation.joined = True
            for _ in range(3):
                party._received(1 - index, encode(message))
            await party._turn()
            assert party.notes["flood", 1 - index or None] == 2
            assert sent[0] == ((Call, 1) if index == 0 else (Hello, None))
            del sent[:]
            await party._turn()
            assert not sent

    run(main, tmp_path)


def test_what_goes_wrong_is_raised_where_it_is_iterated(tmp_path: Path) -> None:
    async def wrong(*items: tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
        for item in items:
            yield item
        raise KeyError("the table is gone")

    async def main(url: str) -> None:
        first = asyncio.ensure_future(steps(client(url, tmp_path, 1)))
        second = asyncio.ensure_future(steps(client(url, tmp_path, 2)))
        with pytest.raises(ab.DataError, match="the label of an event is none of the 2 classes"):
            await played(server(url, tmp_path, labels=wrong((NAMES[0], 0), (NAMES[1], 7))))
        with pytest.raises(KeyError, match="the table is gone"):
            await played(server(url, tmp_path, labels=wrong((NAMES[1], 1))))
        second.cancel()
        await asyncio.wait([second])

        other = asyncio.ensure_future(server(url, tmp_path, labels=[(name, 0) for name in NAMES]).run())
        with pytest.raises(RefusedError, match=r"update is DLR.* here and .*OGD\(\) there; embedding width is 3 here"):
            await client(url, tmp_path / "other", 2, update=ab.OGD(), model=Own(jnp.ones((2, 2)))).run()
        with pytest.raises(ab.DataError, match=r"float64 of shape \(3,\), and not 2 numbers"):
            await client(url, tmp_path, 2, features=lambda event: [1.0, 2.0, 3.0]).run()
        for each in (first, other):
            each.cancel()
        await asyncio.wait([first, other])

    run(main, tmp_path)


def test_another_version_of_the_protocol_is_refused_on_both_sides(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "anabranch")
    wrong = f"version of the protocol is {VERSION} here and {VERSION + 1} there"

    def of_another(message: Message) -> bytes:
        raw = encode(message)
        return raw[:2] + bytes((VERSION + 1,)) + raw[3:]

    async def main(url: str) -> None:
        other = await connect(credentials(url, 0))
        said: asyncio.Queue[Message] = asyncio.Queue()

        async def hear(message: Any) -> None:
            said.put_nowait(decode(message.data))

        heard = await other.subscribe("demo.up.1", cb=hear)
        party = client(url, tmp_path, 1)
        bank = asyncio.ensure_future(party.run())
        hello = await said.get()
        assert isinstance(hello, Hello)
        welcome = Welcome(hello.session, 1, hello.terms, hello.width, "", 0)
        await other.publish("demo.down.1", encode(welcome))
        while not party.party.conversation.joined:
            await asyncio.sleep(0)
        await other.publish("demo.down.1", of_another(welcome))  # a server in its place that was upgraded, as it seems
        while not isinstance(again := await said.get(), Hello) or again == hello:
            pass
        assert isinstance(again, Hello)
        await other.publish("demo.query", of_another(Call(2, 0)))
        with pytest.raises(RefusedError, match=f"the server takes part in something else: {wrong}"):
            await bank
        await heard.unsubscribe()

        ours = server(url, tmp_path)
        serving = asyncio.ensure_future(ours.run())
        while "waiting for bank, shop" not in caplog.text:
            await asyncio.sleep(0)
        await other.publish("demo.up.2", of_another(hello))
        while f"shop was refused: {wrong}" not in caplog.text:
            await asyncio.sleep(0)
        assert ours.party.notes == {("refused", 2): 1}
        ours.leave()
        await serving
        await disconnect(other)

    run(main, tmp_path)


def test_metrics_are_there_while_a_party_takes_part(tmp_path: Path) -> None:
    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def main(url: str) -> None:
        parties = [server(url, tmp_path, metrics=0), client(url, tmp_path, 1, metrics=0), client(url, tmp_path, 2)]
        assert [each.metrics_port for each in parties] == [None] * 3
        others = [asyncio.ensure_future(each.run()) for each in parties[1:]]
        async for _ in parties[0]:
            ports = [each.metrics_port for each in parties]
            if ports[2] is None and None not in ports[:2]:
                assert b'anabranch_party_info{federation="demo",party="server"' in await ask(ports[0])
                assert b"anabranch_client_joined 1.0" in await ask(ports[1])
                break
        taken = parties[0].metrics_port
        with pytest.raises(ab.ConfigError, match=f"metrics: port {taken} of 127.0.0.1 cannot be had"):
            await client(url, tmp_path / "other", 2, metrics=taken).run()
        async with parties[0]:
            pass
        assert parties[0].metrics_port is None
        for each in others:
            each.cancel()
        await asyncio.wait(others)

    run(main, tmp_path)


def test_a_number_of_seconds_may_be_zero_or_not() -> None:
    assert seconds("coalesce", 0) == 0.0
    assert seconds("deadline", 0.5, zero=False) == seconds("deadline", np.float32(0.5)) == 0.5
    with pytest.raises(ab.ConfigError, match="deadline is 0, but it is a number of seconds above 0"):
        seconds("deadline", 0, zero=False)


def test_arguments_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    url = "nats://127.0.0.1:1"
    wrong = [
        (lambda **o: server(url, tmp_path, **o), {"labels": 3}, "labels is 3, but it is an iterable of"),
        (lambda **o: server(url, tmp_path, **o), {"clients": [Expected(5)]}, "does not take 5 elements"),
        (lambda **o: server(url, tmp_path, **o), {"clients": []}, "clients are 0"),
        (lambda **o: server(url, tmp_path, **o), {"activation": ab.Full()}, "the server decides Fixed"),
        (lambda **o: server(url, tmp_path, **o), {"wire_dtype": "int8"}, "wire_dtype is 'int8'"),
        (lambda **o: server(url, tmp_path, **o), {"in_flight": 0}, "in_flight is 0"),
        (lambda **o: server(url, tmp_path, **o), {"deadline": -1}, "deadline is -1"),
        (lambda **o: server(url, tmp_path, **o), {"deadline": 0}, "deadline is 0, but it is a number of seconds above"),
        (lambda **o: server(url, tmp_path, **o), {"deadline": True}, "deadline is True"),
        (lambda **o: server(url, tmp_path, **o), {"metrics": 70_000}, "metrics is 70000.* a port"),
        (
            lambda **o: server(url, tmp_path, **o),
            {"update": ab.SLR(2), "clients": [Expected(3, missing=Skip())] * 2},
            "SLR evaluates a window",
        ),
        (lambda **o: client(url, tmp_path, 1, **o), {"update": "DLR"}, "update is 'DLR', but the type"),
        (lambda **o: client(url, tmp_path, 1, **o), {"update": ab.DLR(2, 1 - 1e-9)}, "decay is .* is 1 in float32"),
        (lambda **o: client(url, tmp_path, 1, **o), {"learning_rate": -1.0}, "learning_rate is -1.0"),
        (lambda **o: client(url, tmp_path, 1, **o), {"model": eqx.nn.Identity()}, "Identity.* has no parameters"),
        (lambda **o: client(url, tmp_path, 1, **o), {"model": MLP([3, 3], relu_last=False, key=jax.random.key(0))},
         "bank: the model does not take 2 features: its first dense layer takes 3"),
    ]  # fmt: skip
    for make, options, message in wrong:
        with pytest.raises(ab.AnabranchError, match=message):
            make(**options)
    with pytest.raises(ab.ConfigError, match="this is the connection of bank, not the server's"):
        Server(credentials(url, 1), tmp_path / "x", model=top(), clients=[Expected(3)] * 2, labels=[])
    with pytest.raises(ab.ConfigError, match=r"this connection is client 2's, but the federation has 1 client$"):
        Client(credentials(url, 2), tmp_path / "x", model=bottom(1), inputs=2, features=features(1), clients=1)


def test_a_folder_has_one_user_and_one_model(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        clients = asyncio.gather(*(steps(client(url, tmp_path, m)) for m in (1, 2)))
        one = server(url, tmp_path)
        with pytest.raises(ab.ConfigError, match="is in use by this process already"):
            server(url, tmp_path)
        await one.run()
        await clients

    run(main, tmp_path)
    with pytest.raises(CheckpointError, match="was made with other settings"):
        server("nats://127.0.0.1:1", tmp_path, update=ab.OGD())


def test_labels_that_come_after_their_events(tmp_path: Path) -> None:
    """A client tells of events; their labels come later, in another order, one twice and one of no event at all."""
    labels: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def coming() -> AsyncIterator[tuple[str, int]]:
        while True:
            yield await labels.get()

    async def happening() -> AsyncIterator[str]:
        for name in NAMES[:20]:
            yield name

    async def main(url: str) -> None:
        told = client(url, tmp_path, 1, events=happening(), activation=lambda t, x: False)
        asked = client(url, tmp_path, 2, activation=lambda t, x: False)
        both = asyncio.gather(steps(told), steps(asked))
        async with server(url, tmp_path, labels=coming(), late="fresh") as serving:
            rounds = aiter(serving)
            first = asyncio.ensure_future(anext(rounds))
            while len(serving.party.late.waiting) < 20:
                assert not first.done(), "no label has come"
                await asyncio.sleep(0.01)
            order = np.random.default_rng(0).permutation(20)
            for i in order:
                labels.put_nowait((NAMES[i], int(Y[i])))
            labels.put_nowait((NAMES[0], int(Y[0])))
            labels.put_nowait((NAMES[30], 1))
            seen = [await first, *[await anext(rounds) for _ in range(19)]]
            assert [each.event for each in seen] == [event_name(NAMES[i]) for i in order]
            assert [each.label for each in seen] == Y[order].tolist()
            assert all(each.prediction in (0, 1) for each in seen)
            assert all(each.activated == ("bank",) for each in seen)
            while not serving.party.late.waiting.counts["early"]:
                await asyncio.sleep(0.01)
            serving.end()
            assert [each async for each in rounds] == []
            counts = serving.party.late.waiting.counts
            assert (counts["learnt"], counts["duplicate"], counts["early"]) == (20, 1, 1)
        assert [len(each) for each in await both] == [20, 0]

    run(main, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"late": "frehs"}, "Did you mean 'fresh'"),
        ({"late": "fresh"}, "with late it is an async iterable"),
        ({"late": "stored", "update": ab.SLR(3)}, "SLR evaluates past samples again"),
        ({"events": []}, "events is for labels that come late"),
    ],
)
def test_late_labels_that_do_not_go_together(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ab.AnabranchError, match=said):
        server("nats://127.0.0.1:1", tmp_path, **options)
