"""Packages of this repository that bring a kind of source use what docs/api.md promises, and nothing else."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.plugins import FILES, ROOT, install_project, on_path

from cdcflow.config import plugins

PUBLIC = (
    *re.findall(r"^::: (cdcflow[\w.]*)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE),
    *("cdcflow.ports", "cdcflow.testing"),
)


def imported(path: Path) -> set[str]:
    """The modules of cdcflow that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "cdcflow"}


def is_public(module: str) -> bool:
    return module in PUBLIC or module.startswith("cdcflow.testing.")


def test_the_files_package_uses_public_names_only() -> None:
    """Otherwise it proves nothing about packages of others."""
    files = sorted(FILES.rglob("*.py"))
    found = {(str(path.relative_to(FILES)), name) for path in files for name in imported(path)}
    assert {name for _, name in found} >= {"cdcflow.ports", "cdcflow.sources.polled", "cdcflow.testing.sources"}
    assert [pair for pair in sorted(found) if not is_public(pair[1])] == []
    assert not is_public("cdcflow.sources.engine.chunks"), "the check can fail"


def test_the_files_package_declares_what_pip_would_install(tmp_path: Path) -> None:
    """Its entry point names a plug-in for the ports of this cdcflow, and pip gets its dependencies."""
    with on_path(*install_project(tmp_path, FILES)):
        assert plugins.load_plugin(plugins.SOURCES, "files").ports == plugins.PORTS_VERSION
    about = tomllib.loads((FILES / "pyproject.toml").read_text())["project"]
    used = {name.split(".")[0] for path in (FILES / "src").rglob("*.py") for name in others(path)}
    assert used - set(sys.stdlib_module_names) == {"cdcflow", "cdcflow_files", "pyarrow", "pydantic"}
    assert about["dependencies"] == ["cdcflow"], "which brings pyarrow and pydantic"


def others(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("name", ["cdcflow.ports", "cdcflow.sources.polled"])
def test_public_modules_show_what_they_have(name: str) -> None:
    """`__all__` is what a program may import."""
    module = __import__(name, fromlist=["x"])
    assert [one for one in module.__all__ if not hasattr(module, one)] == []
