"""The English of docs and docstrings gets better and never worse: see CONTRIBUTING.md for the rules."""

from __future__ import annotations

from collections import Counter

from words import Finding, check_docstring, check_text, findings

MOST = {"long sentence": 673, "opening": 405, "no verb": 144}
"""The most findings of each rule. Lower a number when you have mended some."""


def test_a_finding_names_the_rule_that_a_sentence_breaks() -> None:
    long = " ".join(["word"] * 21)
    assert [each.rule for each in check_text("here", f"Short one. {long}. Where it rains, it pours.")] == [
        "long sentence",
        "opening",
    ]
    assert not list(check_text("here", "The server waits. Why does it wait? What is missing?"))
    assert [each.rule for each in check_docstring("here", "Returns the last events.", True)] == ["no verb"]
    assert [each.rule for each in check_docstring("here", "The last events.", True)] == ["no verb"]
    assert not list(check_docstring("here", "Return the last events.", True))
    assert not list(check_docstring("here", "The last events.", False))


def worst(found: list[Finding], rule: str) -> str:
    """Return the ten worst findings of a rule, a line each."""
    ranked = sorted((each for each in found if each.rule == rule), key=lambda each: -each.size)
    return "\n".join(f"{each.place}: ({each.size} words) {each.text}" for each in ranked[:10])


def test_the_words_get_no_worse() -> None:
    found = findings()
    counts = Counter(each.rule for each in found)
    for rule, most in MOST.items():
        assert counts[rule] <= most, (
            f"{rule}: {counts[rule]}, at most {most} are allowed. The worst:\n{worst(found, rule)}"
        )
