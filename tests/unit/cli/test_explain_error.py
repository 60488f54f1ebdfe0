"""`cdcflow explain-error`: the last line of an error is a command, and it works."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cdcflow import errors
from cdcflow.cli import explain_error, failure
from cdcflow.cli.app import app

runner = CliRunner()


def test_the_last_line_of_an_error_is_a_command_that_prints_its_section() -> None:
    """`see docs: …` named a file that a pip installation does not have."""
    last = failure.block(errors.HistoryLost("the slot is gone")).splitlines()[-1].strip()
    words = last.removeprefix("read more: ").split()
    assert words[0] == "cdcflow"
    done = runner.invoke(app, words[1:])
    assert done.exit_code == 0
    assert done.output.startswith("slot-lost\n\n**Meaning.**")
    assert "**Mitigation.**" in done.output
    assert "\n## " not in done.output
    assert "\n### " not in done.output


@pytest.mark.parametrize("name", sorted(explain_error.sections()))
def test_every_section_is_whole(name: str) -> None:
    text = explain_error.sections()[name]
    assert text.startswith("**Meaning.**")
    assert "**Mitigation.**" in text


def test_a_mistyped_name_gets_the_nearest_ones() -> None:
    done = runner.invoke(app, ["explain-error", "slot-los"])
    assert done.exit_code == 78
    assert "did you mean slot-lost" in done.stderr


def test_a_link_is_printed_where_the_book_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "http" not in runner.invoke(app, ["explain-error", "slot-lost"]).output.splitlines()[-1]
    monkeypatch.setenv(explain_error.DOCS_URL, "https://docs.example/cdcflow/")
    expected = "https://docs.example/cdcflow/runbook/errors/#slot-lost"
    assert runner.invoke(app, ["explain-error", "slot-lost"]).output.splitlines()[-1] == expected
    found = json.loads(runner.invoke(app, ["explain-error", "slot-lost", "--json"]).output)
    assert (found["name"], found["url"]) == ("slot-lost", expected)


def test_the_page_is_in_the_package() -> None:
    """A wheel has no docs folder: the build copies the page, and the package lists it."""
    copied = explain_error.PAGES[1]
    assert copied.name == "errors.md"
    assert copied.parent.name == "packaging"
    project = (explain_error.PAGES[0].parents[2] / "pyproject.toml").read_text()
    assert '"packaging/errors.md"' in project
