"""The unit that `cdcflow init --systemd` prints: systemd accepts it, it is hardened, and it has cdcflow's exit
codes."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.cli.failure import exit_code
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated

EXPOSURE_MAX = 25
"""In tenths, as systemd-analyze counts: below 3.0 it reports OK or better."""


def _unit() -> str:
    done = CliRunner().invoke(app, ["init", "--systemd"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_daemon_that_needs_an_operator_is_not_restarted() -> None:
    """A restart every five seconds would bury the reason, and read everything again where a flag was left in place."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    parser.read_string(_unit())
    service = dict(parser["Service"])
    never = {exit_code(kind("x")) for kind in (HistoryLost, InvariantViolated, ConfigurationError)}
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == never
    assert service["Restart"] == "on-failure"
    assert service["ExecStart"] == f"{Path(sys.executable).parent}/cdcflow run --config /etc/cdcflow/%i.yaml"
    docs = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
    assert f"RestartPreventExitStatus={service['RestartPreventExitStatus']}" in docs


def test_printing_it_writes_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`init` alone writes a file; a user who needs the unit already has one."""
    monkeypatch.chdir(tmp_path)
    _unit()
    assert list(tmp_path.iterdir()) == []


def test_systemd_accepts_the_unit_and_rates_it_as_protected(tmp_path: Path) -> None:
    """Where systemd is installed; elsewhere the lines above are all that can be checked."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    path = tmp_path / "cdcflow@shop.service"
    # The account and the installed program are the administrator's.
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", _unit())
    path.write_text(re.sub(r"(?m)^(User|Group)=cdcflow$", r"\1=daemon", text))
    verified = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr
    assert [line for line in verified.stderr.splitlines() if "cdcflow@" in line] == []
    command = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(path)]
    protected = subprocess.run(command, capture_output=True, text=True, check=False)
    assert protected.returncode == 0, protected.stdout[-600:] + protected.stderr


def test_unit_of_a_guard_is_hardened_like_that_of_a_daemon() -> None:
    """A guard has the same password of the source."""
    done = CliRunner().invoke(app, ["guard", "--systemd"])
    assert done.exit_code == 0, done.output
    hardening = _unit().partition("NoNewPrivileges")[2]
    assert done.stdout.partition("NoNewPrivileges")[2] == hardening != ""
    assert f"ExecStart={Path(sys.executable).parent}/cdcflow guard --config /etc/cdcflow/%i.yaml" in done.stdout
