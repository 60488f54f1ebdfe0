"""`cdcflow plugins`: which kinds are installed, what is wrong with them, and their settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.plugins import FILES, install, install_notifier_of_the_page, install_project, on_path
from typer.testing import CliRunner

from cdcflow.cli.app import app


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["plugins", *words])
    return found.exit_code, found.output


def test_kinds_of_installed_packages_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    """Before a settings file names one."""
    broken = install(tmp_path / "b", "cdcflow-shop", {"shop": "cdcflow_shop:plugin", "mysql": "cdcflow_shop:plugin"})
    pager = install_notifier_of_the_page(tmp_path / "p")
    with on_path(*install_project(tmp_path / "f", FILES), pager, broken):
        code, text = run("--json")
        found = {one["kind"]: one for one in json.loads(text)}
    assert code == 1
    assert (found["files"]["package"], found["files"]["problem"]) == ("cdcflow-files", "")
    assert found["pager"]["part"] == "cdcflow.notifiers"
    assert "cannot be imported: cdcflow-shop" in found["shop"]["problem"]
    assert found["mysql"]["problem"]


def test_settings_of_a_kind_are_printed_with_their_meaning(tmp_path: Path) -> None:
    """The package's own documentation may be elsewhere."""
    pager = install_notifier_of_the_page(tmp_path / "p")
    with on_path(*install_project(tmp_path / "f", FILES), pager):
        assert run()[0] == 0
        code, text = run("files")
        _, of_pager = run("pager", "--json")
    assert code == 0
    line = next(line for line in text.splitlines() if line.startswith("source.store.url"))
    assert "required" in line
    assert "the files are the objects below it" in line
    found = {one["name"]: one for one in json.loads(of_pager)}
    assert found["service.notify.file"] == {
        "name": "service.notify.file", "values": "path", "default": "required", "meaning": ""
    }  # fmt: skip
    assert found["service.notify.lag_over"]["default"] == "`5m`"


def test_kind_that_is_not_installed_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that lists those that are."""
    code, text = run("flies")
    assert code == 78
    assert "no installed package brings the kind flies" in text
