"""docs/glossary.md explains the words that several packages use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "glossary.md"


def meanings() -> dict[str, str]:
    """Each term of the table with its meaning."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {word.strip("`"): meaning for word, meaning in rows if word not in ("word", "---")}


@pytest.mark.parametrize("word", ["shape", "fence", "incarnation", "tail", "generation", "window", "cut", "state"])
def test_word_of_three_packages_has_a_meaning(word: str) -> None:
    """A newcomer meets these in code of several packages, and no other page defines them."""
    meaning = meanings()[word].removeprefix("1. ")
    assert meaning[0].isupper()
    assert meaning.endswith((".", ".)"))
    assert 30 < len(meaning) < 320


def test_terms_are_listed_once_and_in_order() -> None:
    """A word is looked up by its first letter."""
    words = [word.lower() for word in meanings()]
    assert words == sorted(set(words))
