"""Real clusters of two workers on this machine, each in processes of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
# Set here, since what joins a cluster needs the token too, and Ray reads its settings when it is imported.
for name, value in {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",  # a task whose worker died is not tried on another
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray writes one into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(name, value)


@contextmanager
def cluster(kind: str) -> Iterator[str]:
    """Within it, there is a Ray or a Dask cluster at the address; its workers know the tests' modules."""
    paths = (str(TESTS), os.environ.get("PYTHONPATH"))
    process = subprocess.Popen(
        [sys.executable, __file__, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield next(line.split()[1] for line in process.stdout if line.startswith("address "))
    finally:
        process.stdin.close()  # which ends it
        process.wait(timeout=60)
        process.stdout.close()


def _serve(kind: str) -> None:
    if kind == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
        print("address", ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()
        ray.shutdown()
    else:
        from distributed import LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as local:
            print("address", local.scheduler_address, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1])
