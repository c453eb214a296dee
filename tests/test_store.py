"""Checkpoints, the round log and the lock: whole or not at all, whatever happens to the process, the disk or a bit."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anabranch.errors import CheckpointError, ConfigError, OutputError
from anabranch.storage import disk
from anabranch.storage.checkpoint import load, save
from anabranch.storage.lock import locked
from anabranch.storage.round_log import HEAD_BYTES, RECORD_BYTES, RoundLog

ARRAYS = {"w": np.arange(6, dtype="f4").reshape(2, 3), "mask": np.asarray([True, False])}
NUMBERS = [bool, "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", ">f4", ml_dtypes.bfloat16]

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
arrays = st.sampled_from(NUMBERS).flatmap(
    lambda dtype: st.builds(
        lambda shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
        hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4),
        st.integers(0, 9),
    )
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@contextmanager
def temporary() -> Iterator[Path]:
    """A folder on a disk that is never waited for; what is synced has its own tests."""
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        yield Path(folder)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    rewrite(path, bytes(content))


def rewrite(path: Path, content: bytes) -> None:
    """In place, since some file systems write out at once what replaces a file."""
    path.touch()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def failing(name: str, after: int, code: int = errno.ENOSPC) -> Callable[..., Any]:
    """A function of `os` whose calls fail after so many; a write that fails has first written half."""
    original, calls = getattr(os, name), iter(range(10**9))

    def call(*arguments: Any) -> Any:
        if next(calls) < after:
            return original(*arguments)
        if name == "write" and len(arguments[1]) > 1:
            original(arguments[0], arguments[1][: len(arguments[1]) // 2])
        raise OSError(code, os.strerror(code))

    return call


# Checkpoints


@given(st.dictionaries(names, arrays, max_size=4), values)
@settings(max_examples=60)
def test_a_checkpoint_comes_back_as_it_was(given_arrays: dict[str, np.ndarray], state: Any) -> None:
    with temporary() as folder:
        path = save(folder, given_arrays, state)
        found = load(folder)
    assert found is not None
    assert (found.path, found.damaged, found.state) == (path, (), state)
    assert found.arrays.keys() == given_arrays.keys()
    for name, array in given_arrays.items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found.arrays[name], array, strict=False)
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].flags.writeable


def test_every_bit_of_an_array_comes_back(tmp_path: Path) -> None:
    patterns = np.arange(2**16, dtype="u2")
    given_arrays = {"half": patterns.view("f2"), "brain": patterns.view(ml_dtypes.bfloat16), "turned": ARRAYS["w"].T}
    save(tmp_path, {**given_arrays, "jax": jnp.arange(3.0), "number": np.float64(7)}, None)
    found = load(tmp_path)
    assert found is not None
    for name, array in given_arrays.items():
        assert found.arrays[name].tobytes() == array.tobytes()
    assert found.arrays["jax"].tolist() == [0, 1, 2]
    assert found.arrays["number"].shape == ()


def test_the_last_two_are_kept_and_other_files_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "ü"
    assert load(folder) is None
    for round in range(12):
        (folder / "notes.json").parent.mkdir(parents=True, exist_ok=True)
        (folder / "notes.json").write_text("mine")
        assert save(folder, ARRAYS, {"round": round}).name == f"checkpoint-{round + 1:06d}.json"
    kept = [f"checkpoint-0000{number}.{ending}" for number in (11, 12) for ending in ("json", "safetensors")]
    assert files(folder) == [*kept, "notes.json"]
    assert json.loads((folder / kept[2]).read_text(encoding="utf-8"))["state"] == {"round": 11}


@pytest.mark.parametrize(
    ("given_arrays", "state", "message"),
    [
        ({"w": np.asarray([object()])}, None, "array 'w' is of the type object"),
        ({"w": np.asarray(["text"])}, None, "array 'w' is of the type str"),
        ({"w": np.zeros(1, "c16")}, None, "array 'w' is of the type complex128.*float32"),
        ({"__metadata__": np.zeros(1)}, None, "cannot be called '__metadata__'"),
        ({"\ud800": np.zeros(1)}, None, r"'\\ud800' is not valid Unicode"),
        ({}, {"a": (1, 2)}, "lists and not tuples"),
        ({}, {1: "a"}, "names are strings"),
        ({}, [float("nan")], "must be JSON values"),
        ({}, {"a": np.int64(3)}, "must be JSON values.*int64"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_named(tmp_path: Path, given_arrays: Any, state: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path, given_arrays, state)
    assert files(tmp_path) == []


def test_a_name_that_is_not_valid_unicode_is_kept_in_the_state(tmp_path: Path) -> None:
    save(tmp_path, {}, "file \udcff")
    found = load(tmp_path)
    assert found is not None
    assert found.state == "file \udcff"


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_any_damaged_bit_is_found_and_the_older_checkpoint_used(tmp_path: Path, ending: str) -> None:
    older = save(tmp_path, ARRAYS, {"round": 1})
    path = save(tmp_path, ARRAYS, {"round": 2}).with_suffix(f".{ending}")
    content = path.read_bytes()
    for offset in range(len(content)):
        flip(path, offset, offset % 8)
        found = load(tmp_path)
        assert found is not None
        assert (found.path, found.state) == (older, {"round": 1})
        assert "checkpoint-000002" in found.damaged[0]
        rewrite(path, content[:offset])  # and where it ends early
        found = load(tmp_path)
        assert found is not None
        assert found.state == {"round": 1}
        rewrite(path, content)
    found = load(tmp_path)
    assert found is not None
    assert found.damaged == ()


def test_arrays_that_are_gone_are_named(tmp_path: Path) -> None:
    save(tmp_path, ARRAYS, 1)
    save(tmp_path, ARRAYS, 2).with_suffix(".safetensors").unlink()
    found = load(tmp_path)
    assert found is not None
    assert "checkpoint-000002.safetensors cannot be read (No such file or directory)" in found.damaged[0]


def test_where_all_are_damaged_the_error_names_each(tmp_path: Path) -> None:
    for path in [save(tmp_path, ARRAYS, round) for round in (1, 2)]:
        flip(path, 100)
    with pytest.raises(CheckpointError, match=r"000002\.json: was edited.*000001\.json: was edited.*Put back a copy"):
        load(tmp_path)


def test_a_damaged_checkpoint_is_not_one_of_the_two_that_are_kept(tmp_path: Path) -> None:
    good = save(tmp_path, ARRAYS, 1)
    flip(save(tmp_path, ARRAYS, 2).with_suffix(".safetensors"), -1)
    flip(save(tmp_path, ARRAYS, 3), -3)
    assert good.exists()
    save(tmp_path, ARRAYS, 4).unlink()
    found = load(tmp_path)
    assert found is not None
    assert found.path == good


def test_a_save_that_was_killed_counts_for_nothing_and_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000001.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoint-000001.json.part").write_bytes(b"{")
    assert load(tmp_path) is None
    save(tmp_path, ARRAYS, 1)
    assert files(tmp_path) == ["checkpoint-000002.json", "checkpoint-000002.safetensors"]


@pytest.mark.parametrize(("form", "advice"), [(3, "or a later one"), (1, "or begin anew")])
def test_another_form_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int, advice: str
) -> None:
    save(tmp_path, ARRAYS, 1)
    with monkeypatch.context() as patch:
        patch.setattr("anabranch.storage.checkpoint.FORMAT", form)
        save(tmp_path, ARRAYS, 2)
    said = f"is of the form {form}, and this version of Anabranch knows the form 2: .*{advice}"
    with pytest.raises(CheckpointError, match=said):
        load(tmp_path)


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_a_file_of_absurd_size_is_not_read(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path, ARRAYS, 1).with_suffix(f".{ending}")
    os.truncate(path, 2**42)
    with pytest.raises(CheckpointError, match=r"too large|has 4,398,046,511,104 bytes"):
        load(tmp_path)


def test_a_state_that_load_would_not_read_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.storage.checkpoint.MAX_MANIFEST", 1000)
    save(tmp_path, {}, "x" * 700)
    with pytest.raises(CheckpointError, match="keep so much in arrays"):
        save(tmp_path, {}, "x" * 1000)
    assert load(tmp_path) is not None


@pytest.mark.parametrize(("name", "after"), [("write", 0), ("write", 1), ("fsync", 0), ("fsync", 1), ("fsync", 2)])
def test_a_full_disk_leaves_the_older_checkpoints_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    for round in (1, 2):
        save(tmp_path, ARRAYS, round)
    there = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(name, after))
        with pytest.raises(OutputError, match=r"cannot write the checkpoint into .*: No space left on device"):
            save(tmp_path, ARRAYS, 3)
    assert files(tmp_path) == there
    found = load(tmp_path)
    assert found is not None
    assert (found.state, found.damaged) == (2, ())
    save(tmp_path, ARRAYS, 3)
    assert len(files(tmp_path)) == 4


def test_a_checkpoint_is_on_the_disk_before_its_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(files(tmp_path)))
    save(tmp_path, ARRAYS, 1)
    arrays_name, manifest = "checkpoint-000001.safetensors", "checkpoint-000001.json"
    assert seen == [[arrays_name], [f"{manifest}.part", arrays_name], [manifest, arrays_name]]


def test_the_disk_has_all_folders_that_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(disk, "sync", seen.append)
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert {*seen} == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert len(seen) == 3


def test_a_write_that_takes_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:7]))
    save(tmp_path, ARRAYS, 1)
    found = load(tmp_path)
    assert found is not None
    np.testing.assert_array_equal(found.arrays["w"], ARRAYS["w"])
    with RoundLog(tmp_path) as log:
        log.append(1, b"a record of more than seven bytes")
    with RoundLog(tmp_path) as log:
        assert log.last == 1


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for attempt in (save, RoundLog):
        with pytest.raises(OutputError, match="cannot write the"):
            attempt(tmp_path / "file", *([{}, 1] if attempt is save else []))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write the lock"), locked(tmp_path / "file"):
        pass


# The round log


def payload(number: int) -> bytes:
    return random.Random(number).randbytes(number % 50)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 4)),
            st.tuples(st.just("append_many"), st.integers(0, 9)),
            st.tuples(st.just("trim"), st.integers(0, 60)),
            st.tuples(st.sampled_from(["reopen", "sync"]), st.just(0)),
        ),
        max_size=30,
    ),
    st.integers(1, 400),
    st.booleans(),
    st.integers(0, 30),
)
@settings(max_examples=80)
def test_a_log_holds_what_was_appended(
    steps: list[tuple[str, int]], segment_bytes: int, durable: bool, first: int
) -> None:
    with temporary() as folder:
        log = RoundLog(folder, segment_bytes=segment_bytes, durable=durable)
        following, oldest_needed = first, first
        for step, number in steps:
            if step == "append":
                for _ in range(number):
                    log.append(following, payload(following))
                    following += 1
            elif step == "append_many":
                log.append_many(following, [payload(following + place) for place in range(number)])
                following += number
            elif step == "trim":
                before = min(number, following)
                log.trim(before)
                oldest_needed = max(oldest_needed, before)
            elif step == "reopen":
                log.close()
                log = RoundLog(folder, segment_bytes=segment_bytes, durable=durable)
                assert log.cut == 0
            else:
                log.sync()
            held = dict(log.records())
            assert [*held] == list(range(following - len(held), following))
            assert all(held[each] == payload(each) for each in held)
            assert len(held) >= following - oldest_needed
            assert (log.first, log.last) == ((min(held), max(held)) if held else (None, None))
            assert log.size == sum(path.stat().st_size for path in folder.glob("*.log"))
            for start in (*held, following):
                assert [each for each, _ in log.records(start)] == list(range(start, following))
        log.close()


def written(folder: Path, segments: list[int], first: int = 5) -> list[Path]:
    """A log with so many records in each segment, of 20 bytes each; returns its files."""
    for count in segments:
        with RoundLog(folder, segment_bytes=1) as log:
            log.append_many(first, [bytes([first + place]) * 20 for place in range(count)])
            first += count
    return sorted(folder.glob("*.log"))


@pytest.mark.parametrize("segments", [[3], [2, 1], [1, 2]])
def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path, segments: list[int]) -> None:
    *earlier, last = written(tmp_path, segments)
    content, before = last.read_bytes(), {path: path.read_bytes() for path in earlier}
    whole = len(content) - 20 - RECORD_BYTES
    begins = 0 if whole == HEAD_BYTES else whole  # its only record: then the head goes too
    tails = [content[whole:length] if length > whole else b"" for length in range(begins, len(content))]
    heads = [content[: min(length, whole)] for length in range(begins, len(content))]
    by_power_cut = [bytes(30), b"\xff" * 30, content[whole:-1] + bytes(4096)]
    for head, tail in [*zip(heads, tails, strict=True), *((content[:whole], tail) for tail in by_power_cut)]:
        rewrite(last, head + tail)
        with RoundLog(tmp_path) as log:
            assert list(log.records()) == [(5, bytes([5]) * 20), (6, bytes([6]) * 20)]
            assert log.cut == len(tail) + (len(head) if len(head) < whole else 0)
            log.append(7, b"again")
            assert list(log.records(7)) == [(7, b"again")]
        with RoundLog(tmp_path) as log:
            assert (log.cut, log.last) == (0, 7)
        for path, was in before.items():
            rewrite(path, was)


def test_a_new_segment_of_zeros_is_cut_off(tmp_path: Path) -> None:
    last = written(tmp_path, [2, 1])[-1]
    last.write_bytes(bytes(8192))
    with RoundLog(tmp_path) as log:
        assert (log.last, log.cut) == (6, 8192)
        assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("segments", [[3], [1, 2], [2, 1]])
def test_a_flipped_bit_is_an_error_or_costs_the_last_record(tmp_path: Path, segments: list[int]) -> None:
    paths = written(tmp_path, segments)
    contents = {path: path.read_bytes() for path in paths}
    for path, content in contents.items():
        last_record = len(content) - 20 - RECORD_BYTES if path == paths[-1] else len(content)
        for offset in range(len(content)):
            flip(path, offset, offset % 8)
            if offset >= last_record:
                with RoundLog(tmp_path) as log:
                    assert (log.last, log.cut > 0) == (6, True)
                    assert [number for number, _ in log.records()] == [5, 6]
            else:
                begins = HEAD_BYTES + (offset - HEAD_BYTES) // (20 + RECORD_BYTES) * (20 + RECORD_BYTES)
                begins = max(begins, 0) if offset >= HEAD_BYTES else 0
                with pytest.raises(CheckpointError, match=rf"{path.name}: is damaged at byte {begins:,}, where record"):
                    RoundLog(tmp_path)
                assert path.read_bytes() != content  # nothing was cut
                assert path.stat().st_size == len(content)
            for each, was in contents.items():
                rewrite(each, was)


def test_records_in_another_order_are_damage(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [3])
    content, length = path.read_bytes(), 20 + RECORD_BYTES
    first, second, third = (content[HEAD_BYTES + place * length :][:length] for place in range(3))
    rewrite(path, content[:HEAD_BYTES] + second + first + third)
    with pytest.raises(CheckpointError, match=rf"is damaged at byte {HEAD_BYTES}, where record 5"):
        RoundLog(tmp_path)


def test_damage_that_comes_while_the_log_is_open_is_found(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [3])
    with RoundLog(tmp_path) as log:
        flip(path, HEAD_BYTES + RECORD_BYTES + 25)
        with pytest.raises(CheckpointError, match="where record 6 should be"):
            list(log.records())
        path.write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"has 0 bytes, and .* were written"):
            list(log.records())


def test_a_missing_or_renamed_file_is_an_error(tmp_path: Path) -> None:
    paths = written(tmp_path, [1, 1, 1])
    moved = paths[1].rename(tmp_path / "aside")
    with pytest.raises(CheckpointError, match=r"000007\.log: begins with record 7, and .* ends with record 5"):
        RoundLog(tmp_path)
    moved.rename(paths[1])
    for path in paths[1:]:
        path.unlink()
    paths[0].rename(tmp_path / "rounds-000000000001.log")
    with pytest.raises(CheckpointError, match=r"000001\.log: was renamed: it begins with record 5"):
        RoundLog(tmp_path)


def test_nobody_can_send_what_looks_like_a_record(tmp_path: Path) -> None:
    """A payload that holds another log's record must not make a torn tail look like damage."""
    (other,) = written(tmp_path / "other", [3])
    with RoundLog(tmp_path / "log") as log:
        log.append(5, b"x")
        log.append(6, other.read_bytes() * 3)
    (path,) = (tmp_path / "log").iterdir()
    os.truncate(path, path.stat().st_size - 1)
    with RoundLog(tmp_path / "log") as log:
        assert log.last == 5


def test_numbers_out_of_order_are_a_mistake(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    with pytest.raises(ValueError, match="a record's number is -1"):
        log.append(-1, b"")
    log.append(3, b"")
    for number in (2, 3, 5):
        with pytest.raises(ValueError, match="where it is the turn of 4"):
            log.append(number, b"")
        with pytest.raises(ValueError, match="where it is the turn of 4"):
            log.append_many(number, [b"", b""])
    log.trim(4)
    with pytest.raises(ValueError, match="where it is the turn of 4"):
        log.append(3, b"")
    log.append(4, b"")
    log.trim(100)  # a checkpoint that is ahead of the log, after a power cut
    log.append(100, b"")
    with pytest.raises(CheckpointError, match="begins with record 100, and record 4 is asked for"):
        log.records(4)
    log.close()
    log.close()
    for attempt in (lambda: log.append(101, b""), log.sync, lambda: log.trim(1)):
        with pytest.raises(ValueError, match="is closed"):
            attempt()
    with pytest.raises(ValueError, match="segment_bytes is 0"):
        RoundLog(tmp_path, segment_bytes=0)


def test_a_record_that_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.storage.round_log.MAX_PAYLOAD", 10)
    with RoundLog(tmp_path) as log:
        with pytest.raises(ValueError, match="record 1 has 11 bytes, and may have 10"):
            log.append(1, bytes(11))
        with pytest.raises(ValueError, match="a record has 11 bytes"):
            log.append_many(1, [b"", bytes(11)])
        assert log.size == 0


@pytest.mark.parametrize("segments", [[], [2]])
@pytest.mark.parametrize("segment_bytes", [1, 2**20])
@pytest.mark.parametrize("undone", [True, False])
@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: list[int], segment_bytes: int, undone: bool, after: int
) -> None:
    written(tmp_path, segments)
    for reopened in (True, False):
        copy = tmp_path / str(reopened)
        copy.mkdir()
        for path in tmp_path.glob("*.log"):
            shutil.copy(path, copy)
        log = RoundLog(copy, segment_bytes=segment_bytes)
        before = list(log.records())
        number = 7 if segments else 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing("write", after))
            if not undone:
                patch.setattr(os, "ftruncate", failing("ftruncate", 0, errno.EIO))
                patch.setattr(os, "unlink", failing("unlink", 0, errno.EIO))
            begins = segment_bytes == 1 or not segments
            if after and not begins:  # only one write is needed then
                log.append(number, b"fits")
                before.append((number, b"fits"))
                number += 1
            for payloads in ([b"a"], [b"b" * 40, b"c"]):
                with pytest.raises(OutputError, match=r"cannot write the round log into .*: (No space|Input/output)"):
                    log.append_many(number, payloads)
                assert list(log.records()) == before
                assert log.last == (before[-1][0] if before else None)
                if undone:
                    assert log.size == sum(path.stat().st_size for path in copy.glob("*.log"))
        if reopened:
            log.close()
            log = RoundLog(copy)
        log.append(number, b"there is room again")
        log.append(number + 1, b"and again")
        expected = [*before, (number, b"there is room again"), (number + 1, b"and again")]
        assert list(log.records()) == expected
        log.close()
        with RoundLog(copy) as log:
            assert (list(log.records()), log.cut) == (expected, 0)
            assert log.size == sum(path.stat().st_size for path in copy.glob("*.log"))


def test_a_durable_append_that_could_not_be_synced_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RoundLog(tmp_path, durable=True) as log:
        log.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing("fsync", 0, errno.EIO))
            with pytest.raises(OutputError, match="Input/output error"):
                log.append(2, b"two")
        assert list(log.records()) == [(1, b"one")]
        log.append(2, b"again")
    with RoundLog(tmp_path) as log:
        assert list(log.records()) == [(1, b"one"), (2, b"again")]


def test_what_is_synced_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").resolve()))

    def syncs(action: Callable[[], Any]) -> list[str]:
        synced.clear()
        action()
        return [path.name for path in synced]

    one, two, here = "rounds-000000000001.log", "rounds-000000000003.log", tmp_path.name
    log = RoundLog(tmp_path, segment_bytes=110)
    assert syncs(lambda: log.append(1, bytes(20))) == []
    assert syncs(lambda: log.append(2, bytes(20))) == []
    assert syncs(log.sync) == [one, here]
    assert syncs(log.sync) == []
    log.trim(3)
    log.append(3, bytes(30))
    assert syncs(lambda: log.append(4, bytes(50))) == [two, here]  # before the next segment begins
    log.close()
    log = RoundLog(tmp_path, segment_bytes=1000, durable=True)
    assert syncs(lambda: log.append(5, b"")) == ["rounds-000000000004.log"]
    log.close()
    log = RoundLog(tmp_path)
    assert syncs(log.sync) == ["rounds-000000000004.log", here]  # the one before may have been killed before its sync
    log.close()


def test_trimming_bounds_the_disk() -> None:
    largest = 0
    with temporary() as folder, RoundLog(folder, segment_bytes=10_000) as log:
        for number in range(1, 5001):
            log.append(number, bytes(100))
            if number % 100 == 0:
                log.trim(number - 50)
                largest = max(largest, sum(path.stat().st_size for path in folder.iterdir()))
                assert log.first is not None
                assert log.first <= number - 50
        assert 50 <= len(list(log.records())) < 250
    assert largest < 30_000


# Kills, limits and locks, in real processes

WORKER = """
import os, random, sys
from pathlib import Path
import numpy as np
from anabranch.storage.checkpoint import load, save
from anabranch.storage.lock import locked
from anabranch.storage.round_log import RoundLog

os.fsync = lambda descriptor: None  # what a killed process wrote is there without it
folder = Path(sys.argv[1])
with locked(folder), RoundLog(folder, segment_bytes=300_000) as log:
    found = load(folder)
    done = found.state["round"] if found else 0
    number = (log.last or done) + 1
    print("held", flush=True)
    while True:
        log.append(number, random.Random(number).randbytes(number % 7 * 20_000))
        print("record", number, flush=True)
        if number % 5 == 0:
            save(folder, {"w": np.full(50_000, number)}, {"round": number})
            print("checkpoint", number, flush=True)
            log.trim(number - 10)
        number += 1
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    draw = random.Random(4)
    for _ in range(6):
        lines, said = draw.randint(3, 40), []
        with process(WORKER, str(tmp_path)) as child:
            assert child.stdout is not None
            for line in child.stdout:
                said.append(line.split())
                if len(said) == lines:
                    child.kill()  # it goes on until the signal comes, and may be in the middle of anything
        assert len(said) >= lines, child.stderr and child.stderr.read()
        records = [int(words[1]) for words in said if words[0] == "record" and len(words) > 1]
        rounds = [int(words[1]) for words in said if words[0] == "checkpoint" and len(words) > 1]
        with locked(tmp_path), RoundLog(tmp_path) as log:
            found = load(tmp_path)
            assert log.last is not None
            assert log.last >= max(records)
            done = found.state["round"] if found else 0
            assert done >= max(rounds, default=0)
            assert found is None or (found.damaged == () and (found.arrays["w"] == done).all())
            held = dict(log.records(done + 1))
            assert [*held] == list(range(done + 1, log.last + 1))
            for number, content in log.records():
                assert content == random.Random(number).randbytes(number % 7 * 20_000)
            assert log.size < 2_000_000


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    with process(WORKER, str(tmp_path)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"is in use by the process {child.pid}: end that one first"):
            locked(tmp_path).__enter__()
    with locked(tmp_path):  # kill -9 let go of it
        with pytest.raises(ConfigError, match="is in use by this process already"), locked(tmp_path):
            pass
        with process(WORKER, str(tmp_path)) as child:
            _, errors = child.communicate()
        assert f"is in use by the process {os.getpid()}" in errors
    with locked(tmp_path):
        (tmp_path / "lock").write_text("?")
        with pytest.raises(ConfigError, match="is in use by another process"), locked(tmp_path):
            pass


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from anabranch.errors import OutputError
from anabranch.storage.checkpoint import load, save
from anabranch.storage.round_log import RoundLog

folder = Path(sys.argv[1])
save(folder, {"w": np.zeros(10)}, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save(folder, {"w": np.zeros(10_000)}, 2)
except OutputError as error:
    print(error)
log = RoundLog(folder)
try:
    for number in range(1, 100):
        log.append(number, bytes(1000))
except OutputError as error:
    print(error)
log.append(number, b"small")
print(log.last, log.size, load(folder).state, sorted(path.name for path in folder.iterdir()))
"""


def test_a_real_limit_of_the_system(tmp_path: Path) -> None:
    with process(LIMITED, str(tmp_path)) as child:
        out, errors = child.communicate()
    assert errors == ""
    checkpoint, log, rest = out.splitlines()
    assert checkpoint.startswith("cannot write the checkpoint into")
    assert log.startswith("cannot write the round log into")
    assert checkpoint.endswith(": File too large")
    size = HEAD_BYTES + 9 * (1000 + RECORD_BYTES) + 5 + RECORD_BYTES
    there = ["checkpoint-000001.json", "checkpoint-000001.safetensors", "rounds-000000000001.log"]
    assert rest == f"10 {size} 1 {there}"
