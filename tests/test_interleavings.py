"""Every interleaving of very small federations; `make interleavings` goes through larger ones."""

from __future__ import annotations

import pytest

from anabranch.protocol.server.conversation import ServerConversation
from interleavings import SMALL, Broken, Search
from small_parties import Play


@pytest.mark.parametrize("play", SMALL, ids=str)
def test_every_interleaving_ends_well(play: Play) -> None:
    search = Search(play)
    search.run()
    assert search.whole
    assert search.ends


def test_the_search_finds_an_embedding_whose_step_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The livelock of version 0.2.0: what was announced was the answer for the round of a late label."""

    def takes(server, each, client, answer):  # type: ignore[no-untyped-def]
        return not server.seats[client - 1].stale(answer.applied, each.t, server.in_flight)

    monkeypatch.setattr(ServerConversation, "_takes_announced", takes)
    with pytest.raises(Broken, match="the same comes again and again"):
        Search(Play("fresh", ((1,), (1, 2)), 2)).run()
