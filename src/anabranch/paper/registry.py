"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import ConfigError, nearest
from anabranch.paper import (
    activated,
    activation,
    client_step,
    clients,
    decay,
    drift,
    full_length,
    higgs,
    probability,
    readings,
    regret,
    stationary,
    susy,
    threshold,
    window,
)
from anabranch.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        stationary,
        drift,
        probability,
        threshold,
        activation,
        window,
        decay,
        susy,
        higgs,
        clients,
        activated,
        regret,
    )
}
"""In the order of the paper."""
FURTHER: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (client_step, full_length, readings)
}
"""Questions that the paper raises. They take hours, so they are run by name only."""


def find(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names; ``all`` is every one of the paper's.

    Raises:
        ConfigError: where there is no such experiment.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name == "all":
            chosen |= EXPERIMENTS
        elif name in EXPERIMENTS or name in FURTHER:
            chosen[name] = (EXPERIMENTS | FURTHER)[name]
        else:
            known = [*EXPERIMENTS, *FURTHER, "all"]
            raise ConfigError(f"there is no experiment '{name}'.{nearest(name, known)} There are {', '.join(known)}")
    return list(chosen.values())
