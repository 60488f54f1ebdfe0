"""The pages of the book and of the repository, and the parts that can be checked: commands and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def pages() -> list[Path]:
    """Every page that a reader sees, except the changelog, which mentions former commands."""
    names = (
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docker/README.md",
        "charts/cdcflow/README.md",
        "SECURITY.md",
    )
    own = [ROOT / name for name in names]
    return [*own, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "bench" / "results").glob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [Block(name_of(page), language, text) for language, text in _FENCE.findall(page.read_text())]


def first_of(page: Path, language: str) -> str:
    """A page's first block of a language."""
    return next(block.text for block in blocks(page) if block.language == language)


def python_of(page: Path, *, spark: bool | None, section: str | None = None) -> list[str]:
    """A page's blocks of Python: those that have a Spark session, the others, or all of them (None); and only those of
    one section, by the text of its heading `## …`."""
    text = page.read_text() if section is None else _section(page, section)
    found = [code for language, code in _FENCE.findall(text) if language == "python"]
    return [code for code in found if spark is None or ("spark" in code) == spark]


def _section(page: Path, title: str) -> str:
    for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        if part.splitlines()[0] == title:
            return part
    raise LookupError(f"{name_of(page)} has no section {title}")


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def spans(page: Path) -> list[str]:
    """The text between single backquotes outside of blocks."""
    return _SPAN.findall(prose(page))


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a shell block; a command may span several lines."""
    words: list[str] = []
    for line in _whole_lines(block.text):
        words = shlex.split(line, comments=True)
        if words:
            yield words


def _whole_lines(text: str) -> Iterator[str]:
    """Lines, joined where a backslash or an open quotation mark continues them."""
    held = ""
    for line in text.splitlines():
        held += line.removesuffix("\\") + (" " if line.endswith("\\") else "")
        if line.endswith("\\"):
            continue
        try:
            shlex.split(held, comments=True)
        except ValueError:
            held += "\n"
            continue
        yield held
        held = ""
