"""Settings and Python on the pages: names that exist, values that are taken."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from tests.support.docs.pages import ROOT, Block, blocks, name_of, pages
from tests.support.plugins import (
    FILES,
    install_notifier_of_the_page,
    install_project,
    install_target_of_the_template,
    install_transform_of_the_page,
    on_path,
)

from cdcflow.config import Config, Fleet
from cdcflow.config.setting_paths import note_marks

PARTIAL = {"missing", "union_tag_not_found"}
"""What is wrong with a part of a settings file, and only because it is a part."""


def examples(language: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == language]


def mistakes(text: str) -> list[str]:
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        assert node is not None
        note_marks(Path("page"), node, (), {})
        model = Fleet if text.startswith("# fleet.yaml") else Config
        model.model_validate(yaml.SafeLoader("").construct_document(node))
    except ValidationError as error:
        found = error.errors(include_input=False)
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found if e["type"] not in PARTIAL]
    return []


def imports(text: str) -> Iterator[tuple[str, str | None]]:
    """Each module of cdcflow that an example imports, with the name that it takes from it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cdcflow"):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.startswith("cdcflow"))


SCHEDULERS = {f"cdcflow_{name}": ROOT / "plugins" / f"cdcflow-{name}" / "src" for name in ("airflow", "dagster")}
"""Packages that need a scheduler to be imported: tests/schedulers does."""


def exists(module: str, name: str | None) -> bool:
    if module in SCHEDULERS:
        return f'"{name}"' in (SCHEDULERS[module] / module / "__init__.py").read_text().partition("__all__ = ")[2]
    found = importlib.import_module(module)
    if name is None or hasattr(found, name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def test_block_has_one_word_after_its_fence() -> None:
    """GitHub shows one with two as a block, the book as text."""
    lines = [(name_of(page), line) for page in pages() for line in page.read_text().splitlines()]
    assert [(page, line) for page, line in lines if line.lstrip().startswith("```") and " " in line.strip()] == []


def test_settings_on_a_page_are_valid(tmp_path: Path) -> None:
    """An example of settings is copied before it is read."""
    notifier, target = install_notifier_of_the_page(tmp_path / "n"), install_target_of_the_template(tmp_path / "t")
    transform = install_transform_of_the_page(tmp_path / "f")
    with on_path(*install_project(tmp_path, FILES), notifier, *target, transform):
        found = {block.page: wrong for block in examples("yaml") if (wrong := mistakes(block.text))}
    assert found == {}
    assert len(examples("yaml")) > 10


@pytest.mark.parametrize(
    "text", ["log: {pth: ./log}", "log: {path: ./log, seal: {age_max: soon}}", "merge: {engine: flink}"]
)
def test_settings_that_do_not_exist_are_found(text: str) -> None:
    """The check above can fail."""
    assert mistakes(text)


def test_names_that_an_example_imports_exist() -> None:
    """A renamed function is renamed on the pages, too."""
    named = [(block.page, *names) for block in examples("python") for names in imports(block.text)]
    assert [(page, module, name) for page, module, name in named if not exists(module, name)] == []
    assert len(named) > 5
    assert not exists("cdcflow.spark", "no_such_name")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/reading.md", "docs/readers.md"])
def test_a_page_that_leads_to_tables_names_the_setting_for_plain_readers(page: str) -> None:
    """pandas and Polars open no default Delta table."""
    assert re.search(r"readable: wide", (ROOT / page).read_text())
