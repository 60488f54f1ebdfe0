"""The prose of the repository: docstrings, comments, messages, help, Markdown and names of tests.

Code is not prose: fenced blocks and inline code of Markdown, identifiers, SQL and other short strings are left out.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]

Area = Literal["src", "docs", "tests"]
AREAS: tuple[Area, ...] = ("src", "docs", "tests")

NOT_OURS = ("tests/words/", "tests/corpus/", "LICENSE")
"""Paths without prose of the project: this package quotes what it counts."""

WITH_PROSE = (".md", ".py", ".pyx", ".pxd")

WORDS_OF_A_MESSAGE = 4
"""A string with fewer words is a name, a key or a piece of SQL."""

_SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE \S+ SET|DELETE FROM|CREATE|ALTER|DROP|CASE WHEN|MERGE INTO|COPY)\b")
_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(r"`[^`\n]*`")
_FOR_TOOLS = re.compile(r"(noqa|type:|pragma|cython|fmt:)")
_LINK = re.compile(r"\]\([^)\s]*\)")
_GENERATED = re.compile(r"<!-- [^>]*: written by make [a-z-]+ -->.*?<!-- end of [^>]*-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose. `line`: of its file, from 1."""

    path: str
    line: int
    kind: Literal["docstring", "comment", "message", "markdown", "test name"]
    text: str

    @property
    def area(self) -> Area:
        """The part of the repository that it belongs to; benchmarks count as tests."""
        if self.path.startswith("src/"):
            return "src"
        return "docs" if self.path.endswith(".md") else "tests"


def without_code(text: str) -> str:
    """The same without what stands in backticks."""
    return _CODE.sub("`…`", text)


def files() -> list[str]:
    """The repository's files, as git lists them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(path for path in listed.stdout.splitlines() if not path.startswith(NOT_OURS))


def texts(paths: tuple[str, ...] = ("",)) -> Iterator[Text]:
    """All prose of the repository, or of the files whose path begins with one of these."""
    for path in files():
        if path.startswith(paths) and path.endswith(WITH_PROSE) and (ROOT / path).is_file():
            yield from texts_of(path, (ROOT / path).read_text(encoding="utf-8"))


def texts_of(path: str, source: str) -> Iterator[Text]:
    """The prose of one file."""
    if path.endswith(".md"):
        yield from _of_markdown(path, source)
    elif path.endswith(".py"):
        yield from _of_python(path, source)
    else:
        yield from _comments(path, source.splitlines(), {})


def _of_python(path: str, source: str) -> Iterator[Text]:
    """Docstrings, comments, messages, and the names of test functions."""
    strings = list[ast.expr]()
    inside = set[ast.AST]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(path, node.lineno, "test name", node.name.replace("_", " "))
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            strings.append(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            strings.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            inside.add(node.value)
            strings.append(node.value)
            yield Text(path, node.lineno, "docstring", without_code(node.value.value))
    for node in strings:
        text = _message(node)
        if node not in inside and len(text.split()) >= WORDS_OF_A_MESSAGE and not _SQL.search(text):
            yield Text(path, node.lineno, "message", without_code(text))
    yield from _comments(path, source.splitlines(), _of_strings(strings))


def _message(node: ast.expr) -> str:
    """A string's text. What an f-string fills in is `…`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _of_strings(strings: Iterable[ast.expr]) -> dict[int, list[tuple[int, int]]]:
    """By line, from where to where (bytes) there are strings."""
    found: dict[int, list[tuple[int, int]]] = {}
    for node in strings:
        last = node.end_lineno or node.lineno
        for line in range(node.lineno, last + 1):
            begin = node.col_offset if line == node.lineno else 0
            end = node.end_col_offset or 0 if line == last else 1 << 30
            found.setdefault(line, []).append((begin, end))
    return found


def _comments(path: str, lines: Sequence[str], strings: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[Text]:
    """Comments; those that follow each other on lines of their own are one text."""
    first, last, parts = 0, -1, list[str]()
    for number, line in enumerate(lines, 1):
        if "#" not in line or (text := _comment(line, strings.get(number, ()))) is None:
            continue
        if parts and (number != last + 1 or not line.lstrip().startswith("#")):
            yield Text(path, first, "comment", without_code(" ".join(parts)))
            parts = []
        first, last = first if parts else number, number if line.lstrip().startswith("#") else -1
        parts.append(text)
    if parts:
        yield Text(path, first, "comment", without_code(" ".join(parts)))


def _comment(line: str, strings: Sequence[tuple[int, int]]) -> str | None:
    """The comment of a line, without what is meant for a tool."""
    at = line.find("#")
    while at >= 0:
        offset = len(line[:at].encode())
        if not any(begin <= offset < end for begin, end in strings):
            text = line[at:].lstrip("#!: ").strip()
            return text.partition("  ")[2] if _FOR_TOOLS.match(text) else text
        at = line.find("#", at + 1)
    return None


def _of_markdown(path: str, source: str) -> Iterator[Text]:
    """Paragraphs, without code, the targets of links, and tables that are generated: their words are in the code."""
    source = _GENERATED.sub(lambda found: "\n" * found[0].count("\n"), source)
    first, parts, is_code = 0, list[str](), False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if _FENCE.match(line):
            is_code = not is_code
            continue
        if is_code:
            continue
        if not line.strip():
            if parts:
                yield Text(path, first, "markdown", " ".join(parts))
            parts = []
            continue
        first = first if parts else number
        parts.append(_LINK.sub("]", without_code(line)).strip())
