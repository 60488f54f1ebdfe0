"""The tables of statements in docs/ against the tests that they name, and against the words that the code knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.ddlfuzz import draw  # noqa: F401  registers the kinds of steps
from tests.ddlfuzz.kinds import KINDS

from cdcflow.sources.mysql import alters, statements

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("postgres-ddl.md", "mysql-ddl.md")
DEFINED = re.compile(r'^\[([^\]]+)\]: (\S+) "(\w+)"$', re.MULTILINE)
USED = re.compile(r"\[([^\]]+)\]\[([^\]]+)\]")
NOT_TESTED = "## PostgreSQL 19"


def rows(page: str) -> list[list[str]]:
    """The cells of each row that names statements, without heads and what cannot be tested."""
    text = (DOCS / page).read_text().partition(NOT_TESTED)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| st"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def functions(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists_and_is_used(page: str) -> None:
    """A promise without its test is only a sentence; so is one whose test was renamed away."""
    text = (DOCS / page).read_text()
    defined = {name: (DOCS / path, function) for name, path, function in DEFINED.findall(text)}
    for path, function in defined.values():
        assert function in functions(path), f"{path} has no {function}"
    cases = USED.findall(text)
    assert {name for _, name in cases} == set(defined), "used, and not defined; or defined, and not used"
    assert [(case, name) for case, name in cases if case not in defined[name][0].read_text()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_kind_of_step_that_a_page_names_is_one_of_the_fuzzers(page: str) -> None:
    """The fuzzer draws each kind for which no single test exists."""
    named = set(re.findall(r"fuzz `(\w+)`", (DOCS / page).read_text()))
    assert named
    assert named <= set(KINDS)


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_the_test_that_shows_it(page: str) -> None:
    """An empty cell would hide that it was never tried."""
    for cells in rows(page):
        assert len(cells) == 3, cells
        assert all(cells), cells


def test_every_kind_that_rewrites_or_leaves_rows_alone_is_on_the_page_of_postgres() -> None:
    """The test's cases and the page are one list."""
    path = DOCS.parent / "tests" / "integration" / "daemon" / "test_rewritten_rows.py"
    tree = ast.parse(path.read_text())
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id in ("CHANGED", "UNCHANGED")]  # type: ignore[attr-defined]  # plain names
    cases = {key.value for found in lists for key in found.keys}  # type: ignore[attr-defined]  # dicts of strings
    shown = {case for case, name in USED.findall((DOCS / PAGES[0]).read_text()) if name == "rewritten"}
    assert len(lists) == 2
    assert cases <= shown


def test_every_word_that_the_code_tells_statements_apart_by_is_on_the_page_of_mysql() -> None:
    """A clause that the code handles and no page documents is a rule that cannot be found."""
    text = (DOCS / "mysql-ddl.md").read_text()
    words = {word for name in dir(alters) if isinstance(found := getattr(alters, name), frozenset) for word in found}
    words |= {w for name in ("_ROW_WORDS", "_HARMLESS_WORDS", "_PART_WORDS") for w in getattr(statements, name)}
    assert len(words) > 60
    assert {word for word in words if not re.search(rf"\b{word}\b", text, re.IGNORECASE)} == set()
