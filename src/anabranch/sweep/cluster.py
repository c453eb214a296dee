"""Joins a Ray or a Dask cluster, and hands joblib's tasks to it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from joblib.parallel import ParallelBackendBase

from anabranch.errors import ClusterError, ConfigError, with_extra
from anabranch.sweep.trial import check_versions

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
    """Return the Dask cluster whose scheduler is at this address, and how many cores its workers have."""
    try:
        from distributed import Client
    except ImportError as error:
        raise _not_installed("dask") from error
    _try_to_join("Dask", f"from distributed import Client; Client(address, timeout={ANSWER_SECONDS})", address)
    with Client(address, set_as_default=False) as client:
        cores = sum(client.ncores().values())
        if not cores:
            raise ClusterError(f"the Dask cluster at {address} has no workers: start some with 'dask worker'")
        # A result that is held on to would be computed again when the worker that has it dies.
        under_way: set[Any] = set()

        def start(function: Callable[[], Any]) -> Any:
            future = client.submit(function, pure=False)
            under_way.add(future)
            future.add_done_callback(under_way.discard)
            return future

        _check_workers("Dask", address, start)
        yield Tasks(start, lambda: client.cancel(list(under_way))), cores


@contextmanager
def ray(address: str) -> Iterator[tuple[Tasks, int]]:
    """Return the Ray cluster at this address, and how many cores it has."""
    try:
        import ray
    except ImportError as error:
        raise _not_installed("ray") from error
    if ray.is_initialized():
        raise ConfigError("this program is connected to a Ray cluster already: call ray.shutdown() first")
    _try_to_join("Ray", "import ray; ray.init(address)", address)
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not cores:
            raise ClusterError(f"the Ray cluster at {address} has no cores to run trials on")
        # A trial whose process dies is no more Ray's to repeat than one that fails.
        call = ray.remote(_call).options(num_cpus=1, max_retries=0)
        under_way: dict[Any, Any] = {}

        def start(function: Callable[[], Any]) -> Any:
            reference = call.remote(function)
            future = reference.future()
            under_way[future] = reference
            future.add_done_callback(under_way.pop)
            return future

        def cancel() -> None:
            for reference in list(under_way.values()):
                ray.cancel(reference, force=True)

        _check_workers("Ray", address, start)
        yield Tasks(start, cancel), cores
    finally:
        ray.shutdown()


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _try_to_join(kind: str, how: str, address: str) -> None:
    """Whether the cluster can be joined, tried in another process.

    Ray tries for minutes and then ends the process that it is in; Dask waits for ever where another kind of server is.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise ClusterError(f"no {kind} cluster answers at {address} ({error.strerror or error})") from error
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY.format(how=how, kind=kind), address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"no {kind} cluster at {address}, after trying for {JOIN_SECONDS:.0f} s") from error
    if tried.returncode:
        reason = tried.stdout.strip() or "it cannot be joined"
        if "InvalidAuthToken" in tried.stderr:
            reason = "it asks for a token (set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as where it was started)"
        raise ClusterError(f"no {kind} cluster at {address}: {reason}")


_TRY = """
import os, struct, sys
address = sys.argv[1]
try:
    {how}
except (MemoryError, struct.error):  # another protocol's bytes were read as lengths
    print("what answers there is something else than a {kind} scheduler", flush=True)
    os._exit(1)
except Exception as error:
    print(*str(error).splitlines()[:1], flush=True)
    os._exit(1)
os._exit(0)
"""


def _check_workers(kind: str, address: str, start: Callable[[Callable[[], Any]], Any]) -> None:
    """Whether a worker has what trials need, in the versions that are here."""
    from anabranch.simulation.result import versions

    try:
        start(partial(check_versions, versions())).result()
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ClusterError(f"the workers of the {kind} cluster at {address} cannot run trials: {first}") from error


def _not_installed(name: str) -> ConfigError:
    return ConfigError(f"the back end {name} is not installed: {with_extra(name)}")
