"""Links between pages, to files and to headings; and the book's list of pages. No mkdocs, no network."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.docs.pages import DOCS, ROOT, name_of, pages, prose

BOOK = ROOT / "mkdocs.yml"
OUTSIDE = {"architecture.md", "contributing.md", "changelog.md", "docker.md", "chart.md", "security-policy.md"}
"""Pages of the book outside of docs/ (docs/book/hooks.py)."""
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
SRC = re.compile(r'src="([^"]+)"')


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"``.*?``|`[^`\n]*`", "", prose(page))
    yield from (a or b for a, b in LINK.findall(text))
    yield from SRC.findall(text)


def anchors(page: Path) -> set[str]:
    """As Markdown's toc and GitHub both make them of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """A link that leads nowhere is found here, not by a reader."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else Path(posixpath.normpath(page.parent / path))
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_links_are_found_at_all() -> None:
    """The check above can fail: both kinds of links and headings are seen."""
    assert "docs/postgres.md#limits" in set(links(ROOT / "README.md"))
    assert "limits" in anchors(DOCS / "postgres.md")
    assert "slot-lost" in anchors(DOCS / "runbook" / "errors.md")


def listed(entry: Any) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case dict():
            for inner in entry.values():
                yield from listed(inner)
        case list():
            for inner in entry:
                yield from listed(inner)


def test_every_page_of_the_books_list_exists() -> None:
    """`make docs` would stop at it, and it is not part of every build."""
    named = list(listed(yaml.safe_load(BOOK.read_text())["nav"]))
    assert len(named) == len(set(named))
    assert [page for page in named if page not in OUTSIDE and not (DOCS / page).exists()] == []


def test_every_decision_is_in_the_books_list() -> None:
    """A decision that is in no list is discussed again."""
    named = set(listed(yaml.safe_load(BOOK.read_text())["nav"]))
    index = (DOCS / "decisions" / "index.md").read_text()
    missing = [p.name for p in (DOCS / "decisions").glob("0*.md") if f"({p.name})" not in index]
    assert missing == []
    assert [p.name for p in (DOCS / "decisions").glob("0*.md") if f"decisions/{p.name}" not in named] == []


def test_pages_load_nothing_from_elsewhere() -> None:
    """The book is read without access to the internet, and its readers must not be tracked."""
    text = BOOK.read_text()
    assert yaml.safe_load(text)["theme"]["font"] is False
    assert "extra_javascript" not in text
    assert "extra_css" not in text
    pictures = [link for page in pages() for link in re.findall(r"!\[[^\]]*\]\((https?:[^)]+)\)", prose(page))]
    assert pictures == []


def test_the_readme_leads_to_few_pages_and_the_index_to_all() -> None:
    """A wall of links is no answer to where to begin; a page that no list names is not found."""
    assert len(set(links(ROOT / "README.md"))) <= 10
    assert len(set(links(ROOT / "README.md"))) > 5, "the check can fail"
    listed_pages = {link.partition("#")[0] for link in links(DOCS / "index.md")}
    pages_of_users = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} - {"index.md"}
    assert {p for p in pages_of_users - listed_pages if not p.startswith("decisions/0")} == set()
