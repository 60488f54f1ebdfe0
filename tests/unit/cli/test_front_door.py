"""`cdcflow --help`: its text, what it does not load, and the two ways to call it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdcflow.cli.app import COMMANDS, app

HEAVY = (
    "pyarrow", "numpy", "pandas", "psycopg", "pymysql", "pydantic", "confluent_kafka", "yaml", "rich", "structlog",
    "tenacity", "duckdb", "pyspark", "cdcflow.config", "cdcflow.wiring", "cdcflow.ports",
)  # fmt: skip
IMPORTED = """
import sys
from cdcflow.cli.app import main
sys.argv = ["cdcflow", "--help"]
try:
    main()
finally:
    print("loaded:", *sys.modules)
"""


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )


def test_help_loads_nothing_heavy() -> None:
    """A help text that takes two seconds is the first thing that a newcomer meets."""
    loaded = _python("-c", IMPORTED).stdout.rpartition("loaded:")[2].split()
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith("cdcflow.cli.")] == [
        "cdcflow.cli.failure", "cdcflow.cli.lazy", "cdcflow.cli.app",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [(), ("log",), ("table",)], ids=" ".join)
def test_no_summary_is_cut_at_80_columns(path: tuple[str, ...]) -> None:
    """A truncated sentence does not explain what a command does."""
    told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    commands = told.partition("Commands:")[2]
    assert commands.strip()
    assert "..." not in commands


def test_each_lazily_imported_command_has_help() -> None:
    """A command with a wrong module path would fail only when a user calls it."""
    for name in COMMANDS:
        told = CliRunner().invoke(app, [name, "--help"])
        assert told.exit_code == 0, name
        assert f"Usage: root {name}" in told.stdout or f"Usage: cdcflow {name}" in told.stdout


def test_help_and_package_name_every_database_and_format() -> None:
    """A user who searches for MySQL or Iceberg must find it in the first line."""
    first = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split("Options:")[0].split())
    declared = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    described = tomllib.loads(declared)["project"]["description"]
    for name in ("PostgreSQL", "MySQL", "MariaDB", "Delta", "Iceberg"):
        assert name in first
        assert name in described


def test_the_package_is_the_command() -> None:
    """`python -m cdcflow` is what users try where no script is on PATH."""
    assert _python("-m", "cdcflow", "--version").stdout.startswith("cdcflow ")


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("words", "offered"), [("cdcflow lo", "log"), ("cdcflow log exp", "expire"), ("cdcflow merge --ev", "--every")]
)
def test_a_shell_completes_commands_and_options(words: str, offered: str) -> None:
    """Also those of commands that are not loaded before they are called."""
    count = str(len(words.split()) - 1)
    done = _python("-m", "cdcflow", _CDCFLOW_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count)
    assert offered in done.stdout.split()
