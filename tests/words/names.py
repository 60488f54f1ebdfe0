"""Count names of src/cdcflow that do not name: functions that are one bare participle, and classes of many modules.

A function that returns says what it returns (`table_ids`, `as_arrow`), one that acts says the act (`seal`). A
participle says neither. Words that are verbs as well (`read`, `put`, `run`) are not counted.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src/cdcflow")

EMPTY = frozenset({"told", "said", "kept", "seen", "found", "made", "one", "at"})
"""Names that no function may have: they fit everything."""

_IRREGULAR = re.compile(
    r"begun|bent|borne|bought|bound|broken|brought|built|caught|chosen|dealt|done|drawn|driven|eaten|"
    r"fallen|fed|felt|forgotten|found|frozen|given|gone|gotten|grown|heard|held|hidden|hung|kept|known|"
    r"laid|lain|led|left|lent|lost|made|meant|met|paid|ridden|risen|said|seen|sent|shown|slept|sold|sought|"
    r"spent|spoken|stolen|stood|struck|stuck|sung|swept|swum|sworn|taken|taught|thought|thrown|told|torn|"
    r"understood|won|worn|wound|written"
)
_NO_PARTICIPLE = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"})


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, by the module's path and its qualified name."""

    path: str
    line: int
    qualified: str

    @property
    def name(self) -> str:
        """Without the underscore of private ones."""
        return self.qualified.rpartition(".")[2].strip("_")

    @property
    def package(self) -> str:
        """The package of cdcflow that has it."""
        return package_of(self.path)


def is_participle(name: str) -> bool:
    """Whether a function's name is one bare participle, or a word that fits everything."""
    word = name.strip("_")
    if word in EMPTY or _IRREGULAR.fullmatch(word):
        return True
    return re.fullmatch(r"[a-z]+[a-z]ed", word) is not None and word not in _NO_PARTICIPLE


def participles() -> list[Function]:
    """Functions and methods of src/cdcflow that are named so."""
    return [f for path, tree in _modules() for f in _functions(path, tree) if is_participle(f.name)]


def repeated_classes() -> dict[str, list[str]]:
    """Names of classes that stand in two or more modules, with the modules' paths."""
    paths: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                paths[node.name].add(path)
    return {name: sorted(found) for name, found in sorted(paths.items()) if len(found) > 1}


def package_of(path: str) -> str:
    """The first folder below src/cdcflow; of modules there, `.`."""
    parts = Path(path).relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "."


def by_package(paths: Iterable[str]) -> Counter[str]:
    """How many are in each package."""
    return Counter(package_of(path) for path in paths)


def functions_of(path: str, source: str) -> list[Function]:
    """All functions and methods of a module's text."""
    return list(_functions(path, ast.parse(source)))


def _functions(path: str, tree: ast.AST, within: str = "") -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        inner = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(path, node.lineno, f"{within}{node.name}")
            inner = f"{within}{node.name}."
        elif isinstance(node, ast.ClassDef):
            inner = f"{within}{node.name}."
        yield from _functions(path, node, inner)


@cache
def _modules() -> list[tuple[str, ast.Module]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", f"{PACKAGE}/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    paths = [Path(path) for path in sorted(filter(None, listed.split("\0"))) if (ROOT / path).exists()]
    return [(str(path), ast.parse((ROOT / path).read_text(encoding="utf-8"))) for path in paths]
