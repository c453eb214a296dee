"""The place of a reading in its source, so that a client knows where to go on after a restart."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A reading's place in a source that redelivers, after a restart, all readings from a place on.

    The order of places is the source's own. It may differ from the order of times when a clock is wrong.

    >>> first, second = Place("orders.csv", [1]), Place("orders.csv", [2])
    >>> first.is_before(second), second.is_before(first), first.is_before(Place("others.csv", [2]))
    (True, False, False)
    """

    of: str
    """The table or file that is counted in. Places of two tables are not ordered."""
    order: list[int | float | str]
    """Compared from the first element on. Elements at the same position are both numbers or both texts."""

    def is_before(self, other: Place) -> bool:
        """Return whether the source delivers this place before the other."""
        return self.of == other.of and self.order < other.order
