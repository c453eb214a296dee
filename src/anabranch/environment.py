"""The machine around a process: a folder for what can be had again, and variables that keep JAX from beginning."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from anabranch.errors import ConfigError

CACHE = "ANABRANCH_CACHE"
"""The environment variable that names the folder of the cache, or says ``off``."""
LARGEST = 512 * 2**20
"""Bytes of compiled programs; those that were used longest ago go first."""
_SECONDS = 10.0
"""To wait for another process that works on the programs."""


def cache_folder() -> Path | None:
    """Return the folder for what can be had again, made where it is not there; None where there is none.

    It is the user's, such as ``~/.cache/anabranch``. There is none if ``ANABRANCH_CACHE`` is ``off``, if the system
    knows no home of the user, or if the folder cannot be written.
    """
    return _cache()[0]


def keep_programs() -> str | None:
    """Have JAX keep compiled programs in the cache, so that the next process need not compile them again.

    JAX's own settings come first: nothing changes if ``JAX_COMPILATION_CACHE_DIR`` is set. A program is the same from
    the cache, to the bit. The folder is of this kind of processor, since programs are.

    Returns:
        Why programs are not kept, for people; None if they are, or if somebody has asked for that.
    """
    import jax

    of_jax = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")}
    if of_jax["jax_compilation_cache_dir"] is not None or not of_jax["jax_enable_compilation_cache"]:
        return None
    folder, problem = _cache()
    if folder is None:
        return problem
    programs = folder / "programs" / _processor()
    try:
        _repair(programs)
    except (OSError, filelock.Timeout) as error:
        return f"compiled programs are not kept: {programs}: {getattr(error, 'strerror', None) or error}"
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(programs),
        "jax_compilation_cache_max_size": LARGEST,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    for name, value in settings.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    # JAX compiles what it cannot read or write there, as on a full disk, and there is nothing for a person to do.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
    return None


def wrong_variable(problem: ValueError) -> ConfigError | None:
    """Return the error that names the variable whose value JAX refused when it was imported; None for any other."""
    if "jax" in sys.modules:
        return None
    said = str(problem).lower()
    for name, value in os.environ.items():
        if name.startswith("JAX_") and name.removeprefix("JAX_").lower() in said:
            allowed = "0 and 1 (also false and true)" if "truth value" in said else "those of JAX's documentation"
            return ConfigError(f"{name} = {value!r}: JAX refuses this value; allowed are {allowed}: unset {name}")
    return None


def _cache() -> tuple[Path | None, str | None]:
    """Return the folder, or why there is none, where nobody has asked for that."""
    named = os.environ.get(CACHE, "")
    if named.lower() == "off":
        return None, None
    folder = Path(named) if named else _usual()
    why = "the system knows no home folder of this user (HOME)"
    if folder is not None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder, None
            why = f"{folder} cannot be written"
        except OSError as error:
            why = f"{folder}: {error.strerror}"
    return None, f"there is no cache, since {why}: programs are compiled at every start; name a folder by {CACHE}"


def _usual() -> Path | None:
    if os.environ.get("HOME") == "":  # which would be the root of all
        return None
    try:
        folder = platformdirs.user_cache_path("anabranch")
    except RuntimeError:  # newer versions say so; older ones return a "~" that they could not replace
        return None
    return folder if folder.is_absolute() else None


def _processor() -> str:
    """Return a name for processors that run one another's programs."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    found = [platform.system(), platform.machine(), platform.processor()]
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        first = ""
    found += [line for line in first.splitlines() if line.partition("\t")[0].partition(":")[0].strip() in wanted]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _repair(programs: Path) -> None:
    """Remove what a killed process left unfinished. JAX writes a program, then when it was used."""
    programs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with filelock.FileLock(programs / ".lockfile", timeout=_SECONDS):  # JAX's own
        for program in programs.glob("*-cache"):
            if not program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists():
                program.unlink()
