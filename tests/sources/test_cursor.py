"""How far a source was read: past what is safe, in whatever order it gets so, with room for what is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.cursor import Cursor

OPERATIONS = st.lists(st.one_of(st.none(), st.integers(0, 11)), max_size=60)


@given(OPERATIONS)
def test_the_position_is_the_last_place_up_to_which_all_is_safe(operations: list[int | None]) -> None:
    """None gives the next place, and a number says that a place is safe, also one that is so or was not given."""
    safe: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        cursor = Cursor(Path(folder) / "cursor", "orders")
        for each in operations:
            if each is None:
                cursor.given([len(safe)])
                safe.append(False)
            else:
                cursor.safe([each])
                if each < len(safe):
                    safe[each] = True
            until = safe.index(False) if False in safe else len(safe)
            assert cursor.position == ([until - 1] if until else None)
            assert cursor.waiting == safe.count(False)
        cursor.close()
        again = Cursor(Path(folder) / "cursor", "orders")
        assert again.position == cursor.position
        again.close()


def test_what_is_safe_after_what_is_not_takes_no_room(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "cursor", "orders")
    for place in range(1000):
        cursor.given(place)
        if place not in (0, 700):
            cursor.safe(place)
    held = (cursor._numbers, cursor._unsafe, cursor._ends)
    assert [len(each) for each in held] == [2, 2, 2]
    cursor.safe(0)
    assert cursor.position == 699
    cursor.safe(700)
    assert (cursor.position, cursor.waiting) == (999, 0)
    cursor.close()
