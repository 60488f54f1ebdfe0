"""The changelog is short enough to be read, belongs to the version in the package, and links to pages that exist."""

from __future__ import annotations

import re

from tests.support.docs.pages import ROOT

from cdcflow import __version__

LINES_MAX = 60
"""Lines of one version, blank ones and headings included."""
TEXT = (ROOT / "CHANGELOG.md").read_text()


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each version, by its heading without the date."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {title.split(" (")[0]: body.splitlines() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def too_long(text: str) -> list[str]:
    return [title for title, lines in sections(text).items() if len(lines) > LINES_MAX]


def test_every_version_can_be_read_in_a_minute() -> None:
    """Users skip a section of two hundred points: what is internal belongs in the commit messages."""
    assert too_long(TEXT) == []
    assert too_long(TEXT + "- one more\n" * LINES_MAX) == [list(sections(TEXT))[-1]], "the check can fail"


def test_every_change_is_one_line() -> None:
    """The limit counts lines, so a change that wraps would count twice, and a paragraph would hide in one."""
    wrong = [line for lines in sections(TEXT).values() for line in lines if line.startswith((" ", "* "))]
    assert wrong == []
    assert [line for line in TEXT.splitlines() if len(line) > 260] == []


def test_the_version_of_the_package_has_a_dated_section() -> None:
    """A release without notes, or notes without a release, sends users to the wrong list."""
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", TEXT, re.MULTILINE)


def test_links_of_the_changelog_lead_to_pages() -> None:
    """The other checks of links leave this page out, because old sections mention what no longer exists."""
    links = re.findall(r"\]\(([^)#\s]+)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
