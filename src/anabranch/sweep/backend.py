"""Where trials run: processes on this machine, or a Ray or Dask cluster, each through joblib."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker

import joblib

from anabranch.environment import keep_programs
from anabranch.errors import ConfigError, nearest
from anabranch.sweep import cluster

NAMES = ("loky", "ray", "dask")
EXAMPLES = {"ray": "auto or 10.0.0.1:6379", "dask": "10.0.0.1:8786"}


@dataclass(frozen=True)
class Backend:
    """Where trials run.

    Args:
        name: ``loky`` (processes on this machine), ``ray`` or ``dask``.
        address: of the cluster, for Ray and Dask: ``HOST:PORT``, and for Ray also ``auto``, the one that this machine
            is part of.
        jobs: how many trials at a time; None is as many as there are cores.

    Raises:
        ConfigError: where there is no such back end, or it and the address do not go together.

    >>> Backend("dask")
    Traceback (most recent call last):
        ...
    anabranch.errors.ConfigError: the back end dask needs the address of a cluster (--address), such as 10.0.0.1:8786
    """

    name: str = "loky"
    address: str | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            hint = nearest(self.name, NAMES)
            raise ConfigError(f"there is no back end '{self.name}'.{hint} There are {', '.join(NAMES)}")
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"jobs is {self.jobs}, but it must be a whole number of 1 or more (--jobs)")
        if self.name == "loky" and self.address is not None:
            raise ConfigError(
                "an address is given (--address), but the back end loky is this machine: choose --backend ray or dask"
            )
        if self.name in EXAMPLES and not self.address:
            raise ConfigError(
                f"the back end {self.name} needs the address of a cluster (--address), such as {EXAMPLES[self.name]}"
            )


@contextmanager
def connected(backend: Backend) -> Iterator[int]:
    """Within it, joblib runs its tasks there; yields how many at a time.

    Raises:
        ConfigError: where the back end's package is not installed.
        ClusterError: where the cluster does not answer within seconds, or has no workers.
    """
    if backend.address is None:
        with _this_machine():
            yield backend.jobs or joblib.cpu_count()
    else:
        join = cluster.ray if backend.name == "ray" else cluster.dask
        with join(backend.address) as (tasks, cores), joblib.parallel_config(tasks):
            yield min(backend.jobs or cores, cores)


@contextmanager
def _this_machine() -> Iterator[None]:
    # Python would start this one with the first worker, and let the signals through that are held back for workers.
    resource_tracker.ensure_running()
    # A worker whose memory grew (compiled programs are kept) ends after its trial, and another takes its place.
    with warnings.catch_warnings(), joblib.parallel_config("loky", initializer=_begin, initargs=(os.getpid(),)):
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
        yield


def _begin(parent: int) -> None:
    """In a worker of this machine: it ends when its parent is gone, whose Ctrl-C and SIGTERM are to handle."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    keep_programs()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
