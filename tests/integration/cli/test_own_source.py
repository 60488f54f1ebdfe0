"""The page about own sources, executed: the package that `cdcflow new source` writes works before it is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.docs.pages import ROOT, blocks
from tests.support.plugins import install_project
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.cli.new import source_package
from cdcflow.log.read.reader import read_rows

PAGE = ROOT / "docs" / "own-source.md"
FIRST_SCENARIOS = "restart or keys_give or described or doctor or mark_returns or drop_leaves or large or unclaimed"
HALF_WRITTEN = """
import pathlib, time
write = pathlib.Path.write_text
def write_slowly(path, text, **more):
    if path.parent.name == "data":
        write(path, "")
        time.sleep(0.2)
    return write(path, text, **more)
pathlib.Path.write_text = write_slowly
"""
EXECUTED = ["cdcflow doctor", "cdcflow backfill", "cdcflow log show"]


def code(language: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == language]


def in_package(folder: Path, packages: Path, *arguments: str) -> str:
    """The output of a Python program in the package's folder, as if pip had installed the package."""
    paths = [*install_project(packages, folder), str(ROOT / "src")]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def written(tmp_path: Path) -> Path:
    folder = tmp_path / "cdcflow-mydb"
    result = CliRunner().invoke(app, ["new", "source", "mydb", "--output", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def test_code_on_the_page_is_the_package_s() -> None:
    """Who follows the page sees what the command wrote."""
    files = [without_indent(text) for text in source_package("mydb").values()]
    shown = [*code("python"), *code("toml")]
    assert len(shown) == 6
    assert [text for text in shown if not any(without_indent(text) in file for file in files)] == []


def without_indent(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.long
def test_commands_on_the_page_work_in_the_new_package(written: Path, tmp_path: Path) -> None:
    """The package captures rows before anything of it is changed."""
    (shell,) = code("sh")
    commands = shell.splitlines()
    assert commands[:2] == ["cdcflow new source mydb", "cd cdcflow-mydb"]
    assert commands[-3:] == EXECUTED
    output = [
        in_package(written, tmp_path / str(number), "-m", *command.split()) for number, command in enumerate(EXECUTED)
    ]
    assert "data can be read" in output[0]
    assert "mydb.items" in output[2]
    ((table, _, rows),) = read_rows(written / "mydb-log")
    assert (str(table.id), rows.column("name").to_pylist()) == ("mydb.items", ["one", "two"])


def test_new_package_passes_the_first_scenarios_without_a_change(written: Path, tmp_path: Path) -> None:
    """Then an author knows that what fails later is what was changed. Its capture polls while the suite writes rows."""
    (written / "tests" / "conftest.py").write_text(HALF_WRITTEN)
    said = in_package(
        written,
        tmp_path / "packages",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-k",
        FIRST_SCENARIOS,
    )
    assert " passed" in said
    assert "skipped" not in said


@pytest.mark.long
def test_new_package_passes_the_whole_suite(written: Path, tmp_path: Path) -> None:
    """Every scenario that a polled source can pass."""
    assert " passed" in in_package(written, tmp_path / "packages", "-m", "pytest", "-q", "-p", "no:xdist")


def test_name_is_that_of_the_new_kind_everywhere(tmp_path: Path) -> None:
    """Two packages of one name could not be installed together."""
    files = source_package("acme_crm")
    assert not [path for path, text in files.items() if "mydb" in (path + text).lower()]
    assert "class AcmeCrmPoller:" in files["src/cdcflow_acme_crm/poller.py"]
    assert 'name = "cdcflow-acme-crm"' in files["pyproject.toml"]


@pytest.mark.parametrize("name", ["postgres", "push", "My-DB", "1st", "../x", ""])
def test_name_that_cannot_be_a_kind_is_refused(tmp_path: Path, name: str) -> None:
    """A plug-in cannot replace a kind of cdcflow, and the name becomes a module's."""
    result = CliRunner().invoke(app, ["new", "source", name, "--output", str(tmp_path / "new")])
    assert "cannot be the kind of a new source" in result.output
    assert not (tmp_path / "new").exists()


def test_existing_folder_is_not_overwritten(written: Path) -> None:
    """It may contain work."""
    (written / "README.md").write_text("mine")
    result = CliRunner().invoke(app, ["new", "source", "mydb", "--output", str(written)])
    assert "exists already" in result.output
    assert (written / "README.md").read_text() == "mine"
