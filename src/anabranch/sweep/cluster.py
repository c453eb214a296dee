"""Joins a Ray or a Dask cluster, and hands joblib's tasks to it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from joblib.parallel import ParallelBackendBase

from anabranch.errors import ClusterError, ConfigError

ANSWER_SECONDS = 5.0
"""So long a cluster's address may take to answer at all."""
JOIN_SECONDS = 30.0
"""So long joining a cluster may take, once something answers there."""


class Tasks(ParallelBackendBase):
    """A joblib back end over whatever makes a future of a function.

    Joblib's own for Dask waits for ever for a task whose worker died, and the one that comes with Ray deals tasks out
    in turn, to workers that are busy too while others have nothing to do.

    Args:
        start: runs a function on the cluster, and returns its future.
        cancel: stops what is under way, where that is possible.
    """

    supports_retrieve_callback = True

    def __init__(self, start: Callable[[Callable[[], Any]], Any], cancel: Callable[[], None]) -> None:
        super().__init__(nesting_level=0)
        self._start, self._cancel = start, cancel

    def effective_n_jobs(self, n_jobs: int) -> int:
        return n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return n_jobs

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None]) -> Any:
        future = self._start(func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Any) -> Any:
        return future.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self._cancel()


@contextmanager
def dask(address: str) -> Iterator[tuple[Tasks, int]]:
    """The Dask cluster whose scheduler is at this address, and how many cores its workers have."""
    try:
        from distributed import Client
    except ImportError as error:
        raise _not_installed("dask") from error
    try:
        client = Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address} ({_first_line(error)})") from error
    started: list[Any] = []

    def start(function: Callable[[], Any]) -> Any:
        future = client.submit(function, pure=False)
        started.append(future)
        return future

    with client:
        cores = sum(client.ncores().values())
        if not cores:
            raise ClusterError(f"the Dask cluster at {address} has no workers: start some with 'dask worker'")
        yield Tasks(start, lambda: client.cancel(started)), cores


@contextmanager
def ray(address: str) -> Iterator[tuple[Tasks, int]]:
    """The Ray cluster at this address, and how many cores it has."""
    try:
        import ray
    except ImportError as error:
        raise _not_installed("ray") from error
    if ray.is_initialized():
        raise ConfigError("this program is connected to a Ray cluster already: call ray.shutdown() first")
    _try_ray(address)
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not cores:
            raise ClusterError(f"the Ray cluster at {address} has no cores to run trials on")
        # A trial whose process dies is no more Ray's to repeat than one that fails.
        call = ray.remote(_call).options(num_cpus=1, max_retries=0)
        started: list[Any] = []

        def start(function: Callable[[], Any]) -> Any:
            reference = call.remote(function)
            started.append(reference)
            return reference.future()

        def cancel() -> None:
            for reference in started:
                ray.cancel(reference, force=True)

        yield Tasks(start, cancel), cores
    finally:
        ray.shutdown()


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _try_ray(address: str) -> None:
    """Whether Ray can be joined, tried in another process: where it cannot, it tries for minutes, then ends its own."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise ClusterError(f"no Ray cluster answers at {address} ({_first_line(error)})") from error
    command = [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1])", address]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"no Ray cluster at {address} after {JOIN_SECONDS:.0f} s of trying to join it") from error
    if tried.returncode:
        raise ClusterError(f"cannot join the Ray cluster at {address}: {(tried.stderr.splitlines() or ['?'])[-1]}")


def _not_installed(name: str) -> ConfigError:
    return ConfigError(f"the back end {name} is not installed: pip install 'anabranch[{name}]'")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
