"""How a party ends: how many events happened, how many it has learnt, and how many were lost in which way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.errors import counted
from anabranch.federation.client import ClientParty
from anabranch.federation.engine import LEFT
from anabranch.federation.server import ServerParty
from anabranch.protocol.actions import Stop

UNUSABLE_LABELS = ("source: no class", "source: unusable")
UNUSABLE_READINGS = ("input: unusable", "source: unusable")
"""Notes of what a source gave and a party could not use."""


@dataclass(frozen=True)
class Ending:
    """How a party has ended."""

    reason: str
    """Why no round follows."""
    counts: Mapping[str, int]
    """By what became of events, since the party's folder was new."""
    problem: str | None = None
    """Why this ending is a failure; None where it is none."""
    failed: bool = False
    """Whether training could not go on."""

    @property
    def text(self) -> str:
        """The last line that a person reads."""
        said = ", ".join(f"{what} {n:,}" for what, n in self.counts.items() if n or what in ("happened", "learnt"))
        return f"{self.problem or self.reason} ({said})" if said else self.reason

    def describe(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "counts": dict(self.counts)}


def ending_of(party: ServerParty | ClientParty, stop: Stop, most_lost: float) -> Ending:
    """Return how a party has ended.

    Args:
        party: which has ended.
        stop: why.
        most_lost: the share of its events that may be lost.
    """
    if isinstance(party, ServerParty):
        return _server_ending(party, stop, most_lost)
    return _client_ending(party, stop, most_lost)


def sum_up(party: ServerParty | ClientParty) -> str:
    """Return what a party has done, in its folder's whole time."""
    if isinstance(party, ClientParty):
        counts = client_counts(party)
        return f"{counts['answered']:,} answers and {counts['learnt']:,} steps"
    ledger = party.ledger
    if not ledger.rounds - ledger.skipped:
        return "no round was learnt from"
    errors = f"run-time error {ledger.run_time_error:.4f}, accumulated error {ledger.error_rate:.4f}"
    return f"{ledger.rounds:,} rounds, {errors}"


def _server_ending(party: ServerParty, stop: Stop, most_lost: float) -> Ending:
    counts = server_counts(party)
    problem = None
    if stop.failed or stop.reason == LEFT:
        pass
    elif not counts["learnt"]:
        too_late = 0 if party.late is None else party.late.waiting.counts["expired label"]
        problem = f"not one label could be used: {_why_none(counts, too_late)}"
    else:
        # A label without an event is usual, and so is an event without a label; both together are one that was missed.
        missed = min(counts["unknown"], counts["waiting"])
        problem = _lost(counts["learnt"], counts | {"names of no label": missed}, most_lost)
    return Ending(stop.reason, counts, stop.reason if stop.failed else problem, stop.failed)


def server_counts(party: ServerParty) -> dict[str, int]:
    """Return what became of the events of a server, and of the labels that found none.

    ``happened`` is the sum of ``learnt``, ``expired``, ``dropped`` and ``waiting``.
    """
    ledger, noted = party.ledger, party.noted()
    learnt = ledger.rounds - ledger.skipped
    given_up = noted["event dropped"]
    counts = {
        "happened": 0,
        "learnt": learnt,
        "expired": 0,
        "dropped": ledger.skipped,
        "waiting": party.conversation.unopened,
        "unknown": 0,
        "refused": sum(noted[kind] for kind in UNUSABLE_LABELS),
    }
    if party.late is None:  # rounds begin with labels, and an event that is given up is one that none came for
        counts["waiting"] += given_up
    else:
        waiting = party.late.waiting
        counts["expired"] = waiting.counts["expired"]
        counts["dropped"] += waiting.counts["crowded out"] + given_up
        counts["waiting"] = len(waiting)  # an event that clients announce again is among these already
        counts["unknown"] = waiting.counts["unknown"] + waiting.early
    counts["happened"] = sum(counts[what] for what in ("learnt", "expired", "dropped", "waiting"))
    return counts


def _why_none(counts: Mapping[str, int], too_late: int) -> str:
    """Return why a server has learnt nothing; ``too_late`` labels came when their events had expired."""
    if counts["refused"]:
        return (
            f"{counted(counts['refused'], 'row')} of the label source had no class of the model: name the right column "
            "of labels, the texts that are classes, or the right number of classes"
        )
    if counts["unknown"]:
        return (
            f"{counted(counts['unknown'], 'label')} had no event that a client has announced: compare entity keys, "
            "ids, time zones, time_unit and grain of all parties"
        )
    if counts["expired"]:
        return f"{counted(counts['expired'], 'event')} expired before a label came: is `expiry` shorter than the delay?"
    if too_late:
        return f"{counted(too_late, 'label')} came too late for their events: is `expiry` shorter than the delay?"
    return "no label came" if not counts["dropped"] else "no event had both a label and all the embeddings it needed"


def _client_ending(party: ClientParty, stop: Stop, most_lost: float) -> Ending:
    counts, problem = client_counts(party), None
    if not stop.failed and stop.reason != LEFT:
        asked = counts["unknown"] + counts["refused"]
        if not counts["answered"] and not counts["learnt"] and asked:
            problem = (
                f"this client could answer for no event: {counts['unknown']:,} were unknown here, and values of "
                f"{counts['refused']:,} could not be used. Compare its columns, entity key and ids with the others'"
            )
        else:
            # An event of its own that it gave up may be one that no label came for.
            lost = {"refused": counts["refused"], "dropped": counts["dropped"] - party.noted()["event dropped"]}
            problem = _lost(max(counts["answered"], counts["learnt"]), lost, most_lost)
    return Ending(stop.reason, counts, stop.reason if stop.failed else problem, stop.failed)


def client_counts(party: ClientParty) -> dict[str, int]:
    """Return what became of the events of a client: those it announced, and those it was asked for."""
    counts, noted = party.counts, party.noted()
    return {
        "announced": counts["announced"],
        "answered": max(counts["answers"], counts["replies"]),  # of an event whose label is late it has sent both
        "learnt": counts["steps"],
        "expired": noted["input: expired"],
        "dropped": noted["event dropped"] + noted["features gone"] + noted["input: crowded out"],
        "unknown": noted["input: unknown"],
        "refused": sum(noted[kind] for kind in UNUSABLE_READINGS),
    }


LOSSES = ("expired", "dropped", "refused", "names of no label")


def _lost(used: int, counts: Mapping[str, int], most_lost: float) -> str | None:
    """Return why too much was lost; None where it was not."""
    lost = {what: counts[what] for what in LOSSES if counts.get(what)}
    total = sum(lost.values())
    if not total or total <= most_lost * (used + total):
        return None
    kinds = ", ".join(f"{what} {n:,}" for what, n in lost.items())
    return (
        f"{total / (used + total):.1%} were lost ({kinds}), but most_lost = {most_lost:g}: see the warnings in "
        "the log, or raise most_lost if that is as it should be"
    )
