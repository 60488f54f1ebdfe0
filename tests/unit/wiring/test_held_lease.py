"""Commands that write a log, or end it, while its daemons have a lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import Config
from cdcflow.daemon.current_status import current
from cdcflow.daemon.exit_codes import exit_code
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.file_lease import FileLease
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders
from cdcflow.wiring import leases

SOURCE = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop"}


def settings(folder: Path, lease: dict[str, Any] | None = None) -> Config:
    given = {"source": SOURCE, "log": {"path": str(folder / "log")}, "service": {"lease": lease or {"at": "file"}}}
    return Config.model_validate(given)


def test_command_is_refused_while_a_daemon_is_active(tmp_path: Path) -> None:
    """The control socket shows a daemon on this machine only; the lease shows one on any."""
    config = settings(tmp_path)
    daemon = FileLease(leases.lease_file(config))
    assert daemon.hold()
    with (
        pytest.raises(ConfigurationError, match="holds the lease and captures into this log") as refused,
        wiring.held_lease(config, lambda event, fields: None),
    ):
        pass
    assert "also the standby" in str(refused.value.remedy)
    daemon.release()
    with wiring.held_lease(config, lambda event, fields: None):
        pass


def test_no_daemon_becomes_active_while_a_command_runs(tmp_path: Path) -> None:
    config = settings(tmp_path)
    daemon = FileLease(leases.lease_file(config))
    with wiring.held_lease(config, lambda event, fields: None):
        assert not daemon.hold()
    assert daemon.hold()


def test_lease_that_does_not_answer_refuses_a_command_unless_it_is_in_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is gone has no lease that a daemon could get, and its log must be movable."""
    monkeypatch.setattr(leases, "ANSWERS_WITHIN_S", 0.5)
    elsewhere = settings(tmp_path, {"at": "postgresql://cdc@127.0.0.1:1/locks", "name": "shop"})
    with (
        pytest.raises(SinkUnavailable, match="holding the lease at postgresql://"),
        wiring.held_lease(elsewhere, lambda event, fields: None),
    ):
        pass
    with wiring.held_lease(settings(tmp_path, {"at": "source", "name": "shop"}), lambda event, fields: None):
        pass


def test_drop_is_refused_while_a_daemon_on_another_machine_is_active(tmp_path: Path) -> None:
    """Its slot would be gone, and with it the changes that it has not captured."""
    file = tmp_path / "cdcflow.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://cdc@127.0.0.1:1/shop'}\n"
        "log: {path: log}\nservice: {lease: {at: file}}\n"
    )
    daemon = FileLease(tmp_path / "log" / leases.FILE_NAME)
    assert daemon.hold()
    done = CliRunner().invoke(app, ["drop", "--yes", "--config", str(file)])
    assert done.exit_code == exit_code(ConfigurationError(""))
    assert "holds the lease and captures into this log" in done.output
    daemon.release()


def test_status_on_another_machine_names_the_daemon_that_captures(tmp_path: Path) -> None:
    """`stopped` would have an operator start a daemon, or read the tables again."""
    log = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "1", "shop"))
    writer = Writer.of(log)
    writer.append(orders(1))
    writer.cut()
    log.close()
    config = settings(tmp_path)
    assert current(config)["state"] == "stopped"
    daemon = FileLease(leases.lease_file(config))
    assert daemon.hold()
    found = current(config)
    assert (found["state"], "captures" in found["reason"]) == ("standby", True)
    assert found["lease"]["holder"] in found["reason"]
    daemon.release()
