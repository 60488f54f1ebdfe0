"""The audit records of operators' commands to a capture, wherever in a log they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.capture.interleave.progress import COMMANDS_KEPT, CommandRecord, Progress, RepairRecord
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.model.position import Offset, SourceIdentity
from cdcflow.model.table import TableId
from cdcflow.testing.sinks import Writer, orders

runner = CliRunner()
SEGMENT = 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with two sealed segments and a journal, each with thirty more commands and repairs."""
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["init"]).exit_code == 0
    config = load(tmp_path / "cdcflow.yaml")
    progress, number = Progress(), 0
    for _ in range(3):
        log = wiring.open_log(config, SourceIdentity("postgres", "1", "shop"))
        writer = Writer.of(log)
        for number in range(number + 1, number + SEGMENT + 1):  # noqa: B020  it continues at the last number
            record = CommandRecord(number, 1_700_000_000_000_000, "ann", "pause", {"a.b": "paused"}, {"priority": 3})
            repair = RepairRecord(number, TableId("a", "b"), Offset(7), Offset(9), 3, 1, 0, None, "0/9")
            progress = progress.with_command(record).with_repair(repair)
        writer.append(orders(1))
        writer.checkpoint = replace(writer.checkpoint, progress=progress.to_json())
        writer.cut()
        log.sync()
        log.close()
    return tmp_path


def numbers(*options: str, of: str = "commands") -> list[int]:
    result = runner.invoke(app, ["log", of, "--json", *options])
    assert result.exit_code == 0, result.output
    return [one["number"] for one in json.loads(result.stdout)]


def test_commands_that_a_checkpoint_no_longer_has_are_found_in_older_segments(folder: Path) -> None:
    """A checkpoint contains only the latest ones, or it would grow indefinitely; sealing must not lose the others."""
    newest = wiring.log_reader(load(folder / "cdcflow.yaml")).newest_checkpoint().progress
    assert len(Progress.from_json(newest).commands) == COMMANDS_KEPT == 50
    assert numbers("--limit", "200") == list(range(1, 91))
    assert numbers("--limit", "3") == [88, 89, 90]


def test_commands_are_listed_with_caller_time_and_outcome(folder: Path) -> None:
    """The first questions of the next morning."""
    result = runner.invoke(app, ["log", "commands", "--limit", "1"])
    names, line = (text.split() for text in result.stdout.splitlines())
    assert names == ["number", "when", "who", "operation", "with", "outcome"]
    assert line == ["90", "2023-11-14T22:13:20Z", "ann", "pause", "priority=3", "a.b:", "paused"]


def test_repairs_are_found_in_older_segments_too(folder: Path) -> None:
    """A seal must not remove the record of where the log may be wrong about rows."""
    assert numbers("--limit", "200", of="repairs") == list(range(1, 91))
    assert numbers("--limit", "3", of="repairs") == [88, 89, 90]
    result = runner.invoke(app, ["log", "repairs", "--limit", "1"])
    names, line = (text.split() for text in result.stdout.splitlines())
    assert names == ["number", "table", "offsets", "keys", "deleted", "left", "known", "until", "repaired", "at"]
    assert line == ["90", "a.b", "7-9", "3", "1", "0", "unknown", "0/9"]
    result = runner.invoke(app, ["log", "repairs", "--json", "--limit", "1"])
    assert json.loads(result.stdout) == [
        {"number": 90, "schema": "a", "name": "b", "first_offset": 7, "last_offset": 9}
        | {"keys": 3, "deleted": 1, "left": 0, "known_until": None, "position": "0/9"}
    ]


def test_log_of_an_older_cdcflow_has_no_commands(folder: Path) -> None:
    """Its list of commands is empty, and the log is read as before."""
    assert Progress.from_json({"version": 1, "tables": {}}) == Progress()
