"""docs/cases.md against the codes that docstrings and comments use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cases.md"
CODE = re.compile(r"\b(?:[GKLMNOPSTW][0-9]{2}|E[0-9])\b")
ROW = re.compile(r"^\| ([A-Z][0-9]{1,2}) \| \S.* \|$", re.MULTILINE)


def used() -> set[str]:
    """Every code in the text files of src/, tests/ and docs/, without this test and the page itself."""
    kinds = (".py", ".pyx", ".pxi", ".txt", ".md")
    files = [f for room in ("src", "tests", "docs") for f in (ROOT / room).rglob("*") if f.suffix in kinds]
    return {code for f in files if f not in (PAGE, Path(__file__)) for code in CODE.findall(f.read_text())}


def test_every_code_in_use_is_on_the_page_once_and_no_other() -> None:
    """A code that cannot be found on the page means nothing to a reader of the docstring."""
    listed = ROW.findall(PAGE.read_text())
    assert len(listed) == len(set(listed))
    assert used() - set(listed) == set(), "used, and not on docs/cases.md"
    assert set(listed) - used() == set(), "on docs/cases.md, and not used"
