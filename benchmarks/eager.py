"""The same rounds written plainly in eager PyTorch, with dense gradient buffers: what the simulator is held against."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def make(update: str, window: int, decay: float, clients: int, rate: float) -> Callable[..., None]:
    """A function that plays one round: ``x`` is one tensor a client, ``label`` (1,), ``active`` one flag a client."""
    widths = [784 // clients + (m < 784 % clients) for m in range(clients)]
    bottoms = [nn.Sequential(nn.Linear(width, 64), nn.ReLU()) for width in widths]
    top = nn.Sequential(nn.Linear(64 * clients, 256), nn.ReLU(), nn.Linear(256, 10))
    parties = [top, *bottoms]
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    buffers: list[deque] = [deque(maxlen=window) for _ in parties]
    normaliser = sum(decay**i for i in range(window))

    def gradients(x: list[torch.Tensor], labels: torch.Tensor, active: list[bool]) -> list[list[torch.Tensor]]:
        embeddings = [bottom(part) for bottom, part in zip(bottoms, x, strict=True)]
        sent = [embedding.detach().requires_grad_() for embedding in embeddings]  # what crosses the wire
        logits = top(torch.cat(sent, dim=-1))
        loss_of(logits, labels).backward()
        for embedding, received, go in zip(embeddings, sent, active, strict=True):
            if go:
                embedding.backward(received.grad)
        logits.argmax(dim=-1)
        taken = [[p.grad for p in party.parameters()] for party in parties]
        for party in parties:
            for p in party.parameters():
                p.grad = None
        return taken

    @torch.no_grad()
    def step(party: nn.Module, direction: list[torch.Tensor]) -> None:
        for p, g in zip(party.parameters(), direction, strict=True):
            p -= rate * g

    def play_ogd(x: list[torch.Tensor], label: torch.Tensor, active: list[bool]) -> None:
        taken = gradients(x, label, active)
        for party, gradient, go in zip(parties, taken, [True, *active], strict=True):
            if go:
                step(party, gradient)

    def play_dlr(x: list[torch.Tensor], label: torch.Tensor, active: list[bool]) -> None:
        taken = gradients(x, label, active)
        for party, gradient, go, buffer in zip(parties, taken, [True, *active], buffers, strict=True):
            buffer.appendleft(gradient if go else [torch.zeros_like(p) for p in party.parameters()])
            if go:
                smoothed = [torch.zeros_like(p) for p in party.parameters()]
                for i, past in enumerate(buffer):
                    for total, g in zip(smoothed, past, strict=True):
                        total.add_(g, alpha=decay**i / normaliser)
                step(party, smoothed)

    inputs: deque = deque(maxlen=window)

    def play_slr(x: list[torch.Tensor], label: torch.Tensor, active: list[bool]) -> None:
        inputs.append((x, label))
        rows = [torch.cat([past[0][m] for past in inputs]) for m in range(clients)]
        taken = gradients(rows, torch.cat([past[1] for past in inputs]), active)
        for party, gradient, go in zip(parties, taken, [True, *active], strict=True):
            if go:
                step(party, [g / window for g in gradient])

    return {"OGD": play_ogd, "DLR": play_dlr, "SLR": play_slr}[update]


def rounds_for(clients: int, rounds: int) -> list[tuple[list[torch.Tensor], torch.Tensor, list[bool]]]:
    """Random rounds as tensors, half of the clients activated."""
    rng = np.random.default_rng(0)
    widths = [784 // clients + (m < 784 % clients) for m in range(clients)]
    return [
        (
            [torch.tensor(rng.normal(size=(1, width)), dtype=torch.float32) for width in widths],
            torch.tensor([int(rng.integers(10))]),
            [bool(flag) for flag in rng.random(clients) < 0.5],
        )
        for _ in range(rounds)
    ]
