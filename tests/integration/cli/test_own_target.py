"""The page about own targets, executed: the package that `cdcflow new target` writes passes its suite and gets rows."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.support.docs.pages import ROOT, blocks
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.plugins import install_target_of_the_template, on_path
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.cli.new import target_package

PAGE = ROOT / "docs" / "own-target.md"
ORDERS, ODD = make_table("orders", id="int64", name="string"), make_table("it's", id="int64")
FIRST_SCENARIOS = "whole or refused or replaces or moves"


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.output


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return sorted(database.execute(f'SELECT * FROM "{table}"'))


def test_code_on_the_page_is_the_package_s() -> None:
    """Who follows the page sees what the command wrote."""
    files = [without_indent(text) for text in target_package("mydb").values()]
    shown = [block.text for block in blocks(PAGE) if block.language in ("python", "toml")]
    assert len(shown) == 4
    assert [text for text in shown if not any(without_indent(text) in file for file in files)] == []


def without_indent(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    monkeypatch.chdir(tmp_path)
    made = HandLog(tmp_path / "shop-log")
    made.state(ORDERS)
    made.segment([(ORDERS, "r", {"id": 1, "name": "one"}), (ORDERS, "r", {"id": 2, "name": None})])
    (settings,) = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
    Path("cdcflow.yaml").write_text(yaml.safe_dump(settings))
    return made


def test_target_of_the_page_has_the_rows_of_the_log(log: HandLog, tmp_path: Path) -> None:
    """With the page's settings: all rows first, then changes; a table that cannot be delivered does not stop others."""
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        assert run("deliver", "--once") == (0, "copy: public.orders: all 2 rows, through offset 2\n")
        log.segment([(ORDERS, "u", {"id": 1, "name": "uno"}), (ORDERS, "d", {"id": 2}), (ODD, "c", {"id": 5})])
        code, text = run("deliver", "copy", "--once", "--json")
        found = {one["table"]: one for one in map(json.loads, text.splitlines())}
        assert (code, found["public.orders"]["rows"], found["public.orders"]["deleted"]) == (1, 1, 1)
        assert "not all rows of the table are in the log" in found["public.it's"]["problem"]
        log.state(ODD)
        log.segment([(ODD, "c", {"id": 6})])
        assert run("deliver", "--once") == (0, "copy: public.it's: all 2 rows, through offset 6\n")
        assert run("deliver", "--once") == (0, "")
        assert "did you mean copy?" in run("deliver", "copi", "--once")[1]
    assert rows(tmp_path / "copy.sqlite", "public.orders") == [(1, "uno")]
    assert rows(tmp_path / "copy.sqlite", "public.it's") == [(5,), (6,)]


def test_new_package_passes_its_suite(tmp_path: Path) -> None:
    """Then an author knows that what fails later is what was changed."""
    assert passed(tmp_path, "-k", FIRST_SCENARIOS)


@pytest.mark.long
def test_new_package_passes_its_whole_suite(tmp_path: Path) -> None:
    """Also with processes that are killed while they apply a change."""
    assert passed(tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong", "test"),
    [
        ("if self._place_of(table.id) != change.after:", "if False:", "applied_again"),
        pytest.param('execute("BEGIN IMMEDIATE")', 'execute("SELECT 1")', "killed", marks=pytest.mark.long),
    ],
)
def test_suite_finds_a_target_that_forgets_a_check(tmp_path: Path, right: str, wrong: str, test: str) -> None:
    """The suite can fail: a place that is not compared, and rows without their place."""
    install_target_of_the_template(tmp_path)
    file = tmp_path / "project" / "src" / "cdcflow_mydb" / "tables.py"
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong).replace('"COMMIT"', '"SELECT 1"'))
    assert not passed(tmp_path, "-k", test, install=False)


def passed(folder: Path, *options: str, install: bool = True) -> bool:
    """Whether the package's own tests pass."""
    if install:
        install_target_of_the_template(folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:xdist", *options],
        cwd=folder / "project",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    return done.returncode == 0 and " passed" in done.stdout
