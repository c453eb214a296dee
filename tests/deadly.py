"""Trials that kill the process that they are in."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from anabranch.sweep import parallel
from anabranch.sweep.parallel import Attempt
from anabranch.sweep.trial import Trial

DEADLY_SEED = 13
_attempt = parallel.attempt


def attempt_or_die(trial: Trial, versions: Mapping[str, str]) -> Attempt:
    """As `anabranch.sweep.parallel.attempt`, but a trial of the seed 13 kills its process."""
    if trial.config.seed == DEADLY_SEED:
        os.kill(os.getpid(), signal.SIGKILL)
    return _attempt(trial, versions)
