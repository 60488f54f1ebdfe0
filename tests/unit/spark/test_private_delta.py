"""Delta's private Java classes: who names them, and the setting that turns off changes of rows through them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

from cdcflow.config import load
from cdcflow.spark.runtime.sessions import FAST_DELTA

SRC = Path(__file__).parents[3] / "src" / "cdcflow"
ROOM = SRC / "spark" / "private_delta"
PRIVATE = ("apache.spark.sql.delta", ".io.delta", "DeltaOperations", "DeltaLog.forTable")
"""How Python reaches them: through the JVM's packages. Settings that name a class are public."""


def outside() -> list[Path]:
    return [path for path in sorted(SRC.rglob("*.py")) if ROOM not in path.parents]


def test_only_their_room_names_private_classes_of_delta() -> None:
    """When Delta changes them, one folder has to change."""
    found = [
        f"{path.relative_to(SRC)}: {node.attr}"
        for path in outside()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and any(name in ast.unparse(node) for name in PRIVATE)
    ]
    assert found == []


def test_other_modules_import_the_package_alone() -> None:
    """A caller of one of its modules would keep that from being removed."""
    found = [
        f"{path.relative_to(SRC)}: {line}"
        for path in outside()
        for line in path.read_text().splitlines()
        if "cdcflow.spark.private_delta." in line
    ]
    assert found == []


@pytest.mark.parametrize(("line", "told"), [("", "true"), ("  fast_delta: false\n", "false")])
def test_setting_reaches_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str) -> None:
    """A switch that ends in the settings file switches nothing off."""
    settings = tmp_path / "cdcflow.yaml"
    settings.write_text(
        "source:\n  kind: postgres\n  url: postgresql://shop@db/shop\n  tables: [public.orders]\n"
        f"log:\n  path: ./log\nmerge:\n  format: delta\n{line}"
    )
    module = importlib.import_module("cdcflow.spark.session")
    given: dict[str, Any] = {}
    monkeypatch.setattr(module, "session", lambda **named: given.update(named))
    module.session_for(load(settings))
    assert given["settings"][FAST_DELTA] == told
