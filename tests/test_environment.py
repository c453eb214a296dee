"""What a process finds around it: a home or none, a folder for programs, variables that JAX refuses, Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from anabranch import environment
from anabranch.environment import CACHE, cache_folder

TABLE = "a,b,y\n1,2,0\n3,1,1\n"
RUN = '[model]\nname = "linear"\n[stream]\nname = "table"\npath = "t.csv"\nsplit = 2\n'


def python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Another process, with these variables and none of the cache's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "ANABRANCH_"))}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=kept | variables)


def test_the_cache_is_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(CACHE, "off")
    assert cache_folder() is None
    assert environment.keep_programs() is None


def no_home(name: str) -> Path:
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize("home", ["none", "a tilde", "empty", "a file"])
def test_without_a_home_that_can_be_written_there_is_no_cache(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "" if home == "empty" else str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if home == "none":  # what a user without HOME gets whom the system does not know
        monkeypatch.setattr(platformdirs, "user_cache_path", no_home)
    if home == "a tilde":  # the same, of older versions
        monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache") / name)
    if home == "a file":
        platformdirs.user_cache_path("anabranch").parent.parent.mkdir(parents=True, exist_ok=True)
        platformdirs.user_cache_path("anabranch").parent.touch()
    before = sorted(tmp_path.rglob("*"))
    assert cache_folder() is None
    assert sorted(tmp_path.rglob("*")) == before


PROGRAM = """
import json, sys, warnings
import anabranch as ab
import jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
x = np.random.default_rng(0).normal(size=(50, 4))
stream = ab.streams.from_arrays([x[:, :2], x[:, 2:]], (x[:, 0] > 0).astype(int))
model = ab.models.mlp(stream.widths, stream.classes, hidden=[3], embedding=2)
result = ab.simulate(model, stream, update=ab.DLR(3, 0.9), learning_rate=0.1)
numbers = {name: array.tobytes().hex() for name, array in result.model.to_arrays().items()}
print(json.dumps([len(hits) > 0, numbers]))
"""


def test_programs_are_kept_and_give_the_same_bits_whatever_became_of_their_files(tmp_path: Path) -> None:
    alone, first, again = (python(PROGRAM, **{CACHE: folder}) for folder in ("off", str(tmp_path), str(tmp_path)))
    assert (alone.stderr, first.stderr, again.stderr) == ("", "", "")
    assert alone.stdout == first.stdout
    assert alone.stdout.startswith("[false")
    assert again.stdout == alone.stdout.replace("[false", "[true")

    programs = sorted(tmp_path.rglob("*-cache"))
    assert programs
    unfinished, torn = programs[:2]
    unfinished.with_name(unfinished.name.replace("-cache", "-atime")).unlink()  # as a process leaves it that is killed
    torn.write_bytes(torn.read_bytes()[:10])
    unfinished.write_bytes(b"")
    mended = python(PROGRAM, **{CACHE: str(tmp_path)})
    assert mended.stderr == ""
    assert mended.stdout == again.stdout
    assert unfinished.stat().st_size


def test_what_keeps_programs_from_being_kept_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = python(
        "from anabranch.environment import keep_programs; print(keep_programs())", **{CACHE: f"{tmp_path}/file"}
    )
    assert told.stdout.startswith(f"there is no cache, since {tmp_path}/file: ")
    assert told.stdout.count("\n") == 1


def test_jax_s_own_folder_comes_first(tmp_path: Path) -> None:
    program = "import anabranch as ab, jax; ab.OGD; print(jax.config.jax_compilation_cache_dir)"
    own = python(program, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"), **{CACHE: str(tmp_path / "ours")})
    assert own.stdout == f"{tmp_path / 'own'}\n"
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("JAX_PLATFORMS", "cuda", "always cpu: unset JAX_PLATFORMS, or set JAX_PLATFORMS=cpu"),
        ("JAX_PLATFORMS", "nonsense", "always cpu: unset JAX_PLATFORMS, or set JAX_PLATFORMS=cpu"),
        ("JAX_PLATFORM_NAME", "gpu", "always cpu: unset JAX_PLATFORM_NAME, or set JAX_PLATFORM_NAME=cpu"),
        ("JAX_ENABLE_X64", "ja", "allowed are 0 and 1 (also false and true): unset JAX_ENABLE_X64"),
        ("JAX_DEFAULT_PRNG_IMPL", "x", "allowed are those of JAX's documentation: unset JAX_DEFAULT_PRNG_IMPL"),
    ],
)
def test_a_variable_that_keeps_jax_from_beginning_is_one_line(
    variable: str, value: str, allowed: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "t.toml").write_text(RUN)
    program = "import sys; from anabranch.__main__ import main; sys.argv[0] = 'anabranch'; main()"
    done = python(
        program, "run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "o"), **{variable: value, CACHE: "off"}
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"Error: {variable} = '{value}': JAX ")
    assert done.stderr.endswith(f"{allowed}\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_in_python_it_is_an_error_of_ours() -> None:
    program = "import anabranch as ab\ntry: ab.models.mlp([2, 2], 2)\nexcept ValueError as error: print(repr(error))"
    for variable, value in (("JAX_PLATFORMS", "cuda"), ("JAX_ENABLE_X64", "ja")):
        done = python(program, **{variable: value, CACHE: "off"})
        assert done.stdout.startswith(f'ConfigError("{variable} = '), done.stderr


@pytest.mark.parametrize(
    "system", ["sys.platform = 'win32'", "sys.modules['fcntl'] = None"], ids=["windows", "no fcntl"]
)
def test_windows_is_refused_in_one_line(system: str) -> None:
    for program in ("import anabranch", "from anabranch.__main__ import main; main()"):
        done = python(f"import sys; {system}; {program}")
        assert done.returncode == 1
        assert done.stderr.startswith("Error: Anabranch does not run on this system (")
        assert done.stderr.endswith("it runs on Linux and macOS, and on Windows within WSL\n")
        assert done.stderr.count("\n") == 1
    caught = python(
        f"import sys; {system}\ntry: import anabranch\nexcept ImportError as error: print(type(error).__name__)"
    )
    assert caught.stdout == "UnsupportedSystemError\n"
