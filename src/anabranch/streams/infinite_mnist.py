"""i-MNIST: an endless stream of deformed handwritten digits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.checks import whole
from anabranch.errors import ConfigError
from anabranch.streams.base import Block, Stream
from anabranch.streams.digits import Digits, load_digits
from anabranch.streams.split import split_widths

MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels, in units of 255
AMPLITUDE = 1.4  # pixels: standard deviation of a displacement, in each direction
SMOOTH = 2.0  # pixels: standard deviation of the Gaussian that smooths the fields
FIELDS = 512  # field pairs in the bank
POOLS = (1, 2, 4, 7, 14, 28)  # sides of the squares that an image divides into

_BLOCK = 1024  # samples of a block
_PART = 32  # samples deformed at a time: what they need (0.9 MB) fits in the cache of one core
# A digit is kept as 30 rows of 30: 28 of each, then two of background. In flat memory these two also lie to the left
# of the next row, and above the next digit, so a digit moved by one pixel, with its neighbours one pixel further out,
# is one contiguous run of bytes, and gradients are differences of shifted flat arrays.
_SIDE, _PAD = 28, 2
_ROW = _SIDE + _PAD
_AREA = _ROW * _ROW
_MARGIN = _PAD * _ROW + _PAD


def imnist(
    seed: int = 0,
    clients: int = 4,
    data_dir: str | Path | None = None,
    digits: Digits | None = None,
    *,
    pool: int = 1,
) -> IMnist:
    """Return the i-MNIST stream: endless deformed digits, each image's pixels split evenly among ``clients``.

    A round draws a class uniformly from those present (1/10 each, as in the paper), a base digit ``I`` of this class,
    a shift ``d`` of at most one pixel in each direction (uniform over the nine), and two smooth random fields ``F_x``,
    ``F_y``. The sample is

        ``x = (clip(S + F_x · ∂S/∂x + F_y · ∂S/∂y, 0, 255) / 255 − 0.1307) / 0.3081``,  ``S(p) = I(p − d)``,

    flattened row by row to 784 numbers. Derivatives are central differences in grey levels a pixel. Each field is
    Gaussian with a standard deviation of 1.4 pixels at every point: white noise smoothed over 2 pixels. Client ``m``
    holds the ``m``-th of ``clients`` contiguous slices (:func:`~anabranch.streams.split.split_widths`).

    With ``pool`` above 1 each square of ``pool × pool`` pixels gives one feature, the mean of its normalised pixels:
    ``(28 / pool)²`` of them, again row by row.

    **Nothing repeats.** A bank holds 512 fields ``A`` and 512 fields ``B``. Every 32 samples take 32 pairs
    side by side from random places in it and turn them by one random angle: ``F_x = A cos θ + B sin θ``, ``F_y =
    B cos θ − A sin θ``. A turn leaves two independent Gaussian fields such, so the angle costs nothing in distribution
    but makes the displacements continuous. Two equal samples would need the same digit, shift, pair and angle: the 32
    themselves have different pairs, and any two others coincide with a chance of about one in 5,000 · 9 · 512² · 2^24
    (for 5,000 base digits; the angle is kept as float32). Over all 2 · 10^12 pairs of 2,000,000 rounds that makes one
    in 100,000.

    Args:
        seed: a whole number of at least 0. The same seed gives the same samples, bit for bit.
        clients: 1 to the number of features.
        data_dir: folder of the base digits, see :func:`~anabranch.streams.digits.load_digits` for where else they are
            looked for.
        digits: base digits themselves, in place of ``data_dir``.
        pool: the side of the squares, which divides 28; 1 for all pixels.

    Raises:
        ConfigError: ``seed``, ``clients`` or ``pool`` out of range, or both ``data_dir`` and ``digits``.
        DataError: a broken file, see :func:`~anabranch.streams.digits.load_digits`.

    Source: Loosli, Canu and Bottou, *Training invariant support vector machines using selective sampling* (2006);
    Wang et al. (ICLR 2025), section 5.1.

    >>> from anabranch.streams.digits import make_digits
    >>> base = make_digits(np.full((10, 28, 28), 128), np.arange(10))
    >>> stream = imnist(seed=0, clients=5, digits=base)
    >>> stream.widths
    (157, 157, 157, 157, 156)
    >>> block = next(stream.blocks())
    >>> block.x.shape, block.x.dtype
    ((1024, 784), dtype('float32'))
    >>> imnist(clients=4, digits=base, pool=4).widths
    (13, 12, 12, 12)
    """
    if digits is not None and data_dir is not None:
        raise ConfigError("give either digits or data_dir, not both")
    seed = whole("seed", seed, 0)
    if whole("pool", pool, 1) not in POOLS:
        raise ConfigError(f"pool is {pool}, but it must divide {_SIDE}: {', '.join(map(str, POOLS))}")
    widths = split_widths((_SIDE // pool) ** 2, clients)
    return IMnist(load_digits(data_dir) if digits is None else digits, widths, seed, pool)


class IMnist(Stream):
    """The stream that :func:`imnist` makes."""

    classes = 10
    endless = True

    def __init__(self, digits: Digits, widths: tuple[int, ...], seed: int, pool: int) -> None:
        self.widths = widths
        self.seed = seed
        self.pool = pool
        self._base = digits.describe()
        order = np.argsort(digits.labels, kind="stable")
        counts = np.bincount(digits.labels, minlength=10)
        self._present = np.flatnonzero(counts).astype(np.int32)
        self._count = counts[self._present]
        self._first = (np.cumsum(counts) - counts)[self._present]
        self._pixels = _padded(digits.images[order])

    def describe(self) -> dict[str, Any]:
        base = dict(self._base)
        return {"name": "imnist", "seed": self.seed, "clients": len(self.widths), "pool": self.pool, "base": base}

    def blocks(self) -> Iterator[Block]:
        index = 0
        deform = _Deformer()
        windows = np.lib.stride_tricks.sliding_window_view(self._pixels, _AREA)
        while True:
            # A generator of its own for each block, so that a block can be made without the ones before it.
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(index,))))
            kind = rng.integers(len(self._present), size=_BLOCK)
            digit = self._first[kind] + (rng.random(_BLOCK) * self._count[kind]).astype(np.intp)
            down, right = rng.integers(-1, 2, size=(2, _BLOCK))
            # The window starts one row above the digit, for the gradient of its first row.
            starts = _MARGIN + _AREA * digit - _ROW - _ROW * down - right
            place_a, place_b = rng.integers(FIELDS - _PART + 1, size=(2, _BLOCK // _PART))
            turn = rng.standard_normal((2, _BLOCK // _PART))
            turn /= np.sqrt(np.square(turn).sum(axis=0))
            x = _aligned(_BLOCK, _SIDE * _SIDE)
            for part in range(_BLOCK // _PART):
                rows = slice(part * _PART, (part + 1) * _PART)
                deform(windows[starts[rows]], place_a[part], place_b[part], turn[:, part], out=x[rows])
            yield Block(x if self.pool == 1 else _pooled(x, self.pool), self._present[kind])
            index += 1


class _Deformer:
    """Deforms ``_PART`` digits at a time, in buffers of its own that stay in the cache."""

    def __init__(self) -> None:
        self.bank = _bank()
        self.flat = [_aligned(_PART * _AREA) for _ in range(5)]
        for buffer in self.flat:
            buffer[:] = 0

    def __call__(
        self, windows: NDArray[np.uint8], a: int, b: int, turn: NDArray[np.float64], out: NDArray[np.float32]
    ) -> None:
        """Write the normalised samples (n, 784) of ``windows`` (n, 900) to ``out``."""
        image, grad, move, f, g = self.flat
        bank_a = self.bank[0, a : a + _PART].reshape(-1)
        bank_b = self.bank[1, b : b + _PART].reshape(-1)
        # Half, because the central difference below is not divided by two.
        cos, sin = (np.float32(AMPLITUDE / 2 * t) for t in turn)

        np.copyto(image, windows.reshape(-1))
        image *= np.float32(1 / 255 / STD)
        image += _BLACK
        # F_x = A cos θ + B sin θ and F_y = B cos θ − A sin θ.
        np.multiply(bank_a, cos, out=f)
        np.multiply(bank_b, sin, out=g)
        f += g
        np.subtract(image[_ROW + 1 :], image[_ROW - 1 : -2], out=grad[: -_ROW - 1])
        np.multiply(f, grad, out=move)
        np.multiply(bank_b, cos, out=f)
        np.multiply(bank_a, sin, out=g)
        f -= g
        np.subtract(image[2 * _ROW :], image[: -2 * _ROW], out=grad[: -2 * _ROW])
        f *= grad
        move += f
        move[:-_ROW] += image[_ROW:]
        np.clip(_inner(move), _BLACK, _WHITE, out=out.reshape(-1, _SIDE, _SIDE))


_BLACK = np.float32(-MEAN / STD)
_WHITE = np.float32((1 - MEAN) / STD)


def _inner(flat: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, 28, 28): the pixels of digits kept as 30 rows of 30."""
    return flat.reshape(-1, _ROW, _ROW)[:, :_SIDE, :_SIDE]


def _pooled(x: NDArray[np.float32], pool: int) -> NDArray[np.float32]:
    """(n, 784) to (n, (28 / pool)²): the mean of each square, added up in the same order on every machine."""
    images = x.reshape(-1, _SIDE, _SIDE)
    rows = functools.reduce(np.add, [images[:, i::pool] for i in range(pool)])
    squares = functools.reduce(np.add, [rows[:, :, i::pool] for i in range(pool)])
    return (squares / np.float32(pool * pool)).reshape(len(x), -1)


def _padded(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return all images in one flat array: 30 rows of 30 each, and background before the first and after the last."""
    n = len(images)
    flat = np.zeros(_MARGIN + n * _AREA + _MARGIN, np.uint8)
    flat[_MARGIN : _MARGIN + n * _AREA].reshape(n, _ROW, _ROW)[:, :_SIDE, :_SIDE] = images
    return flat


@functools.cache
def _bank() -> NDArray[np.float32]:
    """(2, 512, 900): smooth Gaussian fields of mean 0 and variance 1 at every pixel, the same for every seed."""
    reach = int(4 * SMOOTH)
    kernel = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / SMOOTH))
    kernel /= np.sqrt(np.square(kernel).sum())
    rng = np.random.Generator(np.random.PCG64(0x1F1E1D))
    noise = rng.standard_normal((2 * FIELDS, _SIDE + 2 * reach, _SIDE + 2 * reach), dtype=np.float32)
    rows = sum(k * noise[:, i : i + _SIDE] for i, k in enumerate(kernel.astype(np.float32)))
    field = sum(k * rows[:, :, i : i + _SIDE] for i, k in enumerate(kernel.astype(np.float32)))
    bank = _aligned(2, FIELDS, _AREA)
    bank[:] = 0
    _inner(bank)[:] = field
    bank.setflags(write=False)
    return bank


def _aligned(*shape: int) -> NDArray[np.float32]:
    """Return an uninitialised array at a multiple of 64 bytes: unaligned stores of 64 bytes take twice as long."""
    size = 4 * int(np.prod(shape))
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)
