"""Strict arrays in every test: no silent promotion of dtypes or of ranks. Examples are the same in every run.

What one process of the tests has compiled, the others find in a folder that lasts as long as the tests. The files that
take longest come first, so that no process is left with one of them when the others are done.
"""

import os
import shutil
import signal
import sys
import tempfile

import pytest
from hypothesis import settings

PROGRAMS = None if "PYTEST_XDIST_WORKER" in os.environ else tempfile.mkdtemp(prefix="anabranch-tests-")
if PROGRAMS is not None:
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": PROGRAMS, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    os.environ["ANABRANCH_CACHE"] = f"{PROGRAMS}/cache"  # nothing of the user's own

# The tests start a hundred processes, each of which would else compile this package's sources for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import jax  # noqa: E402  # reads those when it is imported

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settings.register_profile("anabranch", deadline=None, derandomize=True)
settings.load_profile("anabranch")

LONGEST = [
    "test_reproduce.py",
    "test_federation.py",
    "test_conversation.py",
    "test_party.py",
    "test_simulate.py",
    "test_reference.py",
    "test_docs.py",
    "test_online.py",
    "test_label_delay.py",
    "test_drift_federation.py",
    "test_drifts.py",
    "test_regret.py",
    "test_sweep.py",
    "test_deploy.py",
    "test_contract.py",
]

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def usual_sigterm() -> None:
    """Ray leaves a handler of its own behind, which would end the process of the tests."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file stays."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


def pytest_unconfigure() -> None:
    """The process that made the folder removes it."""
    if PROGRAMS is not None:
        shutil.rmtree(PROGRAMS, ignore_errors=True)
