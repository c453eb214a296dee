"""What the tests of the conversation have in common."""

from __future__ import annotations

import numpy as np

from anabranch.core.party_programs import ClientCompute, Rate, ServerCompute
from anabranch.protocol import messages as m
from anabranch.protocol.actions import Action, Send
from federations import Setting, sent, trained
from problems import bits


def check_same(setting: Setting, world, predictions) -> None:
    """The conversation came to the simulator's bits."""
    simulated = setting.simulated()
    assert predictions == simulated.predictions.tolist()
    assert trained(world.server, world.clients) == bits(simulated.model)


def play(setting: Setting, **options):
    predictions: list[int | None] = []
    world = setting.in_memory(played=lambda played: predictions.extend(played.predictions), **options)
    world.run()
    return world, predictions


def check_steps(setting, server, clients, log) -> None:
    """Every step was made once: the parameters are, but for rounding, those that the log leads to."""
    expected = in_arrays(setting, log)
    for party, model in zip([server, *clients], expected, strict=True):
        for mine, theirs in zip(party.compute.party.model.layers, model.layers, strict=True):
            np.testing.assert_allclose(mine.weight, theirs.weight, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(mine.bias, theirs.bias, rtol=1e-4, atol=1e-5)


def in_arrays(setting, log) -> list:
    """The parties' models, worked out from the log; each embedding at the parameters that it says it belongs to."""
    rate, widths = Rate(setting.rate), [e for _, e in setting.shapes]
    starts = np.cumsum([0, *widths])
    top = ServerCompute(setting.rule, setting.model.server, int(starts[-1]), rate)
    bottoms = [
        ClientCompute(setting.rule, model, d, rate)
        for model, d in zip(setting.model.clients, setting.widths, strict=True)
    ]
    derivatives = []
    for record in log:
        if record.emptied:
            top.empty_window()
        stepped = top.step(record.embeddings[None], np.array([record.label], np.int32), record.factor)
        derivatives.append(stepped.derivatives)
    for c, client in enumerate(bottoms):
        belong: dict[int, list[int]] = {}
        for t, record in enumerate(log):
            belong.setdefault(record.applied[c], []).append(t)
        held: dict[int, list] = {}

        def encode(applied: int, client=client, c=c, belong=belong, held=held) -> None:
            for t in belong.pop(applied, []):
                x = setting.features[c][int(log[t].event)]
                embedding, held[t] = client.encode(np.array([t], np.int32), x[None])
                own = log[t].embeddings[starts[c] : starts[c + 1]]
                np.testing.assert_allclose(own, embedding[0], rtol=1e-4, atol=1e-5)

        encode(-1)
        for t, record in enumerate(log):
            if record.emptied:
                client.empty_window()
            if record.activated[c]:
                own = derivatives[t][..., starts[c] : starts[c + 1]]
                client.step(np.array([t], np.int32), held.pop(t), own, record.factor)
                encode(t)
        assert not belong, "an embedding belongs to parameters that the client never had"
    return [top.party.model, *(client.party.model for client in bottoms)]


def hello_of(client) -> m.Hello:
    (hello,) = sent(client.hello(), m.Hello)
    return hello


def joined(setting, **options):
    """A server that every client has said hello to."""
    server = setting.server(**options)
    for i, client in enumerate(setting.clients(), 1):
        server.receive(i, hello_of(client), 0.0)
    return server


def heard(actions, client) -> list[m.Message]:
    """What a client hears of what the server wants sent."""
    return [each.message for each in actions if isinstance(each, Send) and each.client in (None, client)]


def said(server, client, actions, now=0.0) -> list[Action]:
    """What the server does about what a client wants sent."""
    return [
        each for action in actions if isinstance(action, Send) for each in server.receive(client, action.message, now)
    ]


def answered(server, clients, t, now=0.0) -> list[Action]:
    """What the server does once these clients have answered for a round that does not touch them."""
    none = np.zeros((1, 5), np.float32)
    messages = [(i, answer(server, i, (t,), none, server.seats[i - 1].before, activated=False)) for i in clients]
    return [each for i, message in messages for each in server.receive(i, message, now)]


def answer(server, client, rounds, values, applied=-1, activated=True) -> m.Embeddings:
    flags = np.full(len(rounds), activated)
    return m.Embeddings(server.seats[client - 1].session, applied, -1, rounds, flags, values)


def told(server, client, event, value=1.0, applied=-1) -> m.Happened:
    return m.Happened(server.seats[client - 1].session, applied, -1, event, np.full(5, value, np.float32))


def bits_of(server) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in server.compute.arrays().items()}
