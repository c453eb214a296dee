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
    higgs,
    probability,
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
        client_step,
    )
}
"""In the order of the paper, and after them the experiments that it has not."""


def find(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names; ``all`` is every one.

    Raises:
        ConfigError: where there is no such experiment.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name == "all":
            chosen |= EXPERIMENTS
        elif name in EXPERIMENTS:
            chosen[name] = EXPERIMENTS[name]
        else:
            known = ", ".join([*EXPERIMENTS, "all"])
            raise ConfigError(
                f"there is no experiment '{name}'.{nearest(name, [*EXPERIMENTS, 'all'])} There are {known}"
            )
    return list(chosen.values())
