"""What a stream is: the one interface that the simulator reads samples through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Block(NamedTuple):
    """Some consecutive samples of a stream; row ``i`` is one round."""

    x: NDArray[np.floating[Any]]
    """(n, d): every client's features side by side, ``d = sum(widths)``, client 1 first."""
    y: NDArray[np.integer[Any]]
    """(n,): the labels, ``0 <= y < classes``."""


class Stream(ABC):
    """Samples in order, one a round, each split vertically among the clients.

    A stream of your own sets ``widths`` and ``classes`` and writes ``blocks``:

    >>> class Coin(Stream):
    ...     '''Two clients see one number each; the label says which is larger.'''
    ...     widths, classes = (1, 1), 2
    ...     def blocks(self):
    ...         rng = np.random.default_rng(0)
    ...         while True:
    ...             x = rng.normal(size=(256, 2))
    ...             yield Block(x, (x[:, 0] > x[:, 1]).astype(int))
    >>> next(Coin().blocks()).x.shape
    (256, 2)
    """

    widths: tuple[int, ...]
    """How many features each client holds."""
    classes: int
    """How many classes the labels have."""
    endless: bool = False
    """Whether the samples never end."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Return the samples from the first on, in blocks of any length; each call starts anew with the same samples.

        A block is read before the next one is asked for, so its arrays may be used again.
        """

    def describe(self) -> dict[str, Any]:
        """What a result file says of the stream: JSON values only."""
        return {"name": type(self).__name__}
