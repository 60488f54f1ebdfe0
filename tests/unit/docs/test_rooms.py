"""ARCHITECTURE.md's table of rooms says what the packages say, and pure rooms are pure.

`python -m tests.unit.docs.test_rooms` prints the table again.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "cdcflow"
FORBIDDEN_INSIDE = ("concurrent.futures", "pyarrow.parquet", "pyarrow.fs", "pyarrow.dataset")
"""Parts of packages, which an import contract cannot name."""
COMMAND_LINES_MAX = 4_000


def contract(name: str) -> dict[str, Any]:
    """Return the import contract whose name begins so."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found: dict[str, Any] = next(c for c in contracts if c["name"].startswith(name))
    return found


def first_line(room: Path) -> str:
    """The first line of a room's docstring; empty if it has none."""
    file = room / "__init__.py" if room.is_dir() else room.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]


def rooms() -> Iterator[tuple[int, str]]:
    """Every room with its floor, from the top down; a room's own rooms follow it."""
    layers = contract("Imports go down the floors")["layers"]
    for above, layer in enumerate(layers):
        for name in (module.strip().removeprefix("cdcflow.") for module in layer.split("|")):
            yield len(layers) - 1 - above, name
            for inner in sorted((PACKAGE / name).glob("*/__init__.py")):
                if not first_line(inner.parent).startswith("The earlier name"):
                    yield len(layers) - 1 - above, f"{name}/{inner.parent.name}"


def table() -> str:
    lines = [f"| {floor} | `{name}` | {first_line(PACKAGE / name)} |" for floor, name in rooms()]
    return "\n".join(["| floor | room | what it is for |", "| --- | --- | --- |", *lines])


def test_table_of_rooms_is_made_from_the_packages() -> None:
    """A table that is maintained by hand describes the rooms of last month."""
    assert table() in (ROOT / "ARCHITECTURE.md").read_text(), "python -m tests.unit.docs.test_rooms prints the table"


def test_every_room_says_in_one_line_what_it_is_for() -> None:
    """A newcomer reads that line alone."""
    wrong = [name for _, name in rooms() if not first_line(PACKAGE / name).endswith(".")]
    assert wrong == []


def test_every_package_is_a_room_or_a_name_for_programs() -> None:
    """A package that nobody placed would be outside of every contract."""
    known = {name for _, name in rooms()} | {"changelog", "packaging", "ports", "query", "testing"}
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found - known == set()


def test_the_command_line_holds_commands_only() -> None:
    """How results read, and requests to a daemon, belong to rooms that other programs can use."""
    lines = {file.name: len(file.read_text().splitlines()) for file in (PACKAGE / "cli").glob("*.py")}
    assert sum(lines.values()) <= COMMAND_LINES_MAX, sorted(lines.items(), key=lambda item: -item[1])[:5]


def test_the_command_line_starts_no_thread() -> None:
    """A thread that a command starts ends with no daemon, and no library user can have it."""
    kept = contract("The command line starts no thread")
    assert kept["source_modules"] == ["cdcflow.cli"]
    assert {"threading", "concurrent", "multiprocessing", "asyncio"} <= set(kept["forbidden_modules"])


def test_pure_rooms_open_no_file_and_own_no_thread() -> None:
    """Only these rooms are called pure; what a contract cannot name of them is checked here."""
    modules = contract("Pure rooms")["source_modules"]
    found = []
    for module in modules:
        path = PACKAGE.joinpath(*module.split(".")[1:])
        for file in sorted(path.rglob("*.py")) or [path.with_suffix(".py")]:
            text = file.read_text()
            for node in ast.walk(ast.parse(text)):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
                    if isinstance(node, ast.ImportFrom)
                    else ["open"]
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
                    else []
                )
                found += [(file.name, name) for name in names if name == "open" or name in FORBIDDEN_INSIDE]
    assert found == []
    pure = {name for _, name in rooms() if re.search(r"\bPure\b", first_line(PACKAGE / name))}
    assert pure <= {module.removeprefix("cdcflow.").replace(".", "/") for module in modules}


if __name__ == "__main__":
    print(table())
