"""What the tests of streams share: real data where there is some, and no network, cache or environment otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anabranch.streams import Digits, digits, make_digits
from real_data import DATA


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No data folder, an empty cache and no mirror that answers."""
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path_factory.mktemp("cache") / "mnist")
    monkeypatch.setattr(digits, "_reachable", lambda: ())


@pytest.fixture
def real() -> Callable[[str], Path]:
    """``real("susy/x.csv.gz")`` is this file of the real data; without it the test is skipped."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs {name} in the folder that ANABRANCH_DATA names, and there is none in {DATA}")
        return path

    return find


@pytest.fixture(scope="session")
def blobs() -> Digits:
    """Twenty smooth made-up digits, two of each class."""
    rng = np.random.default_rng(0)
    down, right = np.mgrid[:28, :28]
    centre = rng.uniform(9, 19, (20, 2, 1, 1))
    width = rng.uniform(3, 6, (20, 1, 1))
    images = 255 * np.exp(-((down - centre[:, 0]) ** 2 + (right - centre[:, 1]) ** 2) / (2 * width**2))
    return make_digits(images.astype(np.uint8), np.arange(20) % 10, name="blobs")
