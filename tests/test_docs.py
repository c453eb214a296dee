"""The documentation builds without a warning, its links lead somewhere, and what it shows is true."""

from __future__ import annotations

import ast
import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import mkdocs_hooks
import pytest

import anabranch as ab
from anabranch.config import party as partyfile
from anabranch.config.load import PRESETS, load
from anabranch.config.run import KINDS, Config
from anabranch.sweep.file import read

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = sorted(ROOT.glob("*.md")) + PAGES
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path, language: str) -> list[str]:
    """The page's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def name(path: Path) -> str:
    return path.name


class References(HTMLParser):
    """What a page loads by itself: scripts, styles, pictures, fonts."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(held.get("src") or "")
        if tag == "link" and held.get("rel") not in ("canonical", "next", "prev", None):
            self.loaded.append(held.get("href") or "")


def test_site_builds_without_a_warning_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # Material's notice of its successor is no warning of ours
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)  # and a page for what is not found
    for page in pages:
        references = References()
        references.feed(page.read_text(encoding="utf-8"))
        outside = [url for url in references.loaded if re.match(r"(https?:)?//", url)]
        assert not outside, (page, outside)
    updates = (site / "updates" / "index.html").read_text(encoding="utf-8")
    assert 'data-copy="import anabranch as ab&#10;ab.DLR(window=50, decay=0.9)&#10;ab.DLR(' in updates
    start = (site / "quickstart" / "index.html").read_text(encoding="utf-8")
    assert 'data-copy="make demo&#10;source .venv/bin/activate"' in start
    assert "&gt;&gt;&gt;" not in "".join(re.findall(r'data-copy="([^"]*)"', updates + start))


@pytest.mark.parametrize(
    ("shown", "copied"),
    [
        (">>> if x:\n...     y()\n...\nTraceback ...\n...\nError: >>> z", "if x:\n    y()\n"),
        ("$ anabranch run imnist \\\n    --seed 1\nError: no\n$ ls", "anabranch run imnist \\\n    --seed 1\nls"),
        ("x = 1\n... y", ""),
    ],
)
def test_the_copy_button_copies_what_a_person_types(shown: str, copied: str) -> None:
    assert mkdocs_hooks.commands(shown) == copied


@pytest.mark.parametrize("text", TEXTS, ids=name)
def test_relative_links_lead_somewhere(text: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target) and not target.startswith("#"):
            assert (text.parent / target.split("#")[0]).exists(), target


def test_readme_is_short_and_says_how_to_start() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert {"make demo", "make test"} <= {line.removeprefix("$ ").split("  ")[0].strip() for line in lines}
    shown = [line for block in blocks(ROOT / "README.md", "python") for line in block.splitlines() if ">>>" in block]
    assert 0 < sum(line.startswith((">>>", "...")) for line in shown) <= 15


def test_no_page_and_no_error_installs_from_an_index_that_lacks_us() -> None:
    sources = [each for each in (ROOT / "src").rglob("*") if each.suffix in (".py", ".toml")]
    assert not [each for each in (*TEXTS, *sources) if re.search(r"install [^\n]*anabranch", each.read_text("utf-8"))]


@pytest.mark.parametrize("page", [p for p in PAGES if ">>>" in p.read_text(encoding="utf-8")], ids=name)
def test_examples_do_what_they_show(page: Path) -> None:
    examples = "\n".join(block for block in blocks(page, "python") if ">>>" in block)
    parsed = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    assert parsed.examples
    report: list[str] = []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # JAX as a reader has it
        results = doctest.DocTestRunner(optionflags=FLAGS).run(parsed, out=report.append)
    assert results.failed == 0, "".join(report)


@pytest.mark.parametrize("text", TEXTS, ids=name)
def test_other_python_names_what_there_is(text: Path) -> None:
    """Blocks that are not run here, since they need digits: they parse, and their names exist."""
    for block in blocks(text, "python"):
        if ">>>" in block:
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("ab."):
                found: Any = ab
                for part in ast.unparse(node).split(".")[1:]:
                    found = getattr(found, part)


@pytest.mark.parametrize("text", TEXTS, ids=name)
def test_configurations_and_commands_are_accepted(text: Path, tmp_path: Path) -> None:
    for i, block in enumerate(blocks(text, "toml")):
        file = tmp_path / f"{i}.toml"
        file.write_text(block, encoding="utf-8")
        values = tomllib.loads(block)
        if "include" in values:
            shutil.copy(ROOT / "examples" / "two-rooms" / values["include"], tmp_path)
        if "features" in values and "connection" not in values:
            assert values == tomllib.loads((ROOT / "examples" / "two-rooms" / "columns.toml").read_text())
        elif "connection" in values:
            partyfile.load(file)
        elif values.keys() <= {"metrics", "metrics_host"}:  # some lines of any party's file
            partyfile.check({"connection": "c", "folder": "f", "run": "r"} | values, file)
        elif "predictions" in values:  # some lines of a server's
            labels = {"path": "l", "event": "event", "label": "label"}
            clients = [{"name": "bank", "embedding": 2}]
            whole = {"labels": labels, "model": {"name": "linear", "classes": 2}, "clients": clients}
            partyfile.check({"connection": "c", "folder": "f"} | whole | values, file)
        else:
            (read if "[grid]" in block else load)(file)
    for command in re.findall(r"^\$ anabranch (?:run|show) (.*)$", text.read_text(encoding="utf-8"), re.MULTILINE):
        words = shlex.split(command)
        if words[0] in PRESETS and "widnow" not in command:
            load(words[0], [words[i + 1] for i, word in enumerate(words) if word == "--set"])


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = [*ab.__all__, *ab.models.__all__, *ab.streams.__all__, *vars(ab.Result)["__annotations__"]]
    missing = [each for each in names if not each.startswith("_") and not re.search(rf"\b{each}\b", text)]
    assert not missing


def test_every_setting_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    settings = [key for kinds in KINDS.values() for kind in kinds for key in (*kind.settings(), *kind.names())]
    missing = [each for each in [*Config.model_fields, *settings] if not re.search(rf"\b{each}\b", text)]
    assert not missing
