"""Finds out which data trials read, before they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.config.run import Config, RecordedActivation
from anabranch.sweep.trial import Trial


def with_data(configs: Sequence[Config]) -> list[Trial]:
    """Return the trials of these configurations; files that several of them read are looked at once.

    Raises:
        AnabranchError: where a file is missing or broken, or a configuration that is looked at does not fit its file.
    """
    from anabranch.config import build as runner

    found: dict[str, dict[str, dict[str, Any]]] = {}
    trials = []
    for config in configs:
        recorded = config.activation.path if isinstance(config.activation, RecordedActivation) else None
        files = f"{config.stream!r} {recorded}"
        if files not in found:
            found[files] = runner.build(config).data
        trials.append(Trial(config, found[files]))
    return trials
