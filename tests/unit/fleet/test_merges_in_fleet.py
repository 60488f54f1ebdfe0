"""Merges publish for each of their logs: what runs now, and how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow.config import Config, load
from cdcflow.daemon.fleet_component import merges_in_fleet
from cdcflow.fleet.report import MemberReport
from cdcflow.log.maintenance import state_files

SETTINGS = """
source: {{kind: postgres, url: "postgresql://cdc@127.0.0.1/{name}"}}
log: {{path: {name}}}
merge: {{engine: local, warehouse: lake}}
service: {{fleet: {{at: register, name: {name}, every: 10m}}}}
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings of two logs, whose merges publish into one register."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "register").mkdir()
    found: list[Config] = []
    for name in ("crm", "shop"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.yaml").write_text(SETTINGS.format(name=name))
        found.append(load(tmp_path / f"{name}.yaml"))
    return found


def published(folder: Path) -> dict[str, MemberReport]:
    """The reports in the register, by the names of their pipelines."""
    reports = [MemberReport.from_bytes(path.read_bytes()) for path in (folder / "register").glob("*.json")]
    return {one.name: one for one in reports}


def merge_and_note(logs: list[Config]) -> str:
    for settings in logs:
        state_files.write_merge(settings.log.folder, cut=4, offset=9, seconds=1.0, rows=9, excluded={})
    return "a cut"


def test_single_merge_of_several_logs_publishes_for_each(logs: list[Config], tmp_path: Path) -> None:
    """A cron job on another machine: no daemon there could tell a fleet of it."""
    with merges_in_fleet(logs, lambda: merge_and_note(logs), None, print) as merge:
        assert merge() == "a cut"
    found = published(tmp_path)
    assert set(found) == {"crm", "shop"}
    for one in found.values():
        assert (one.kind, one.ended, one.numbers["merge_cut"]) == ("merge", True, 4)
        assert "merge_every_s" not in one.numbers


def test_merge_that_fails_is_published_as_failed(logs: list[Config], tmp_path: Path) -> None:
    """The error ends the command, and the page shows it."""

    def fail() -> None:
        for settings in logs:
            state_files.write_merge_failure(settings.log.folder, OSError("the catalog did not answer"))
        raise OSError("the catalog did not answer")

    with pytest.raises(OSError, match="catalog"), merges_in_fleet(logs, fail, None, print) as merge:
        merge()
    assert {one.state for one in published(tmp_path).values()} == {"failing"}


def test_log_without_a_fleet_publishes_nothing(logs: list[Config], tmp_path: Path) -> None:
    """Only pipelines that are in a fleet are on its page."""
    (tmp_path / "crm.yaml").write_text(SETTINGS.format(name="crm").partition("service:")[0])
    logs[0] = load(tmp_path / "crm.yaml")
    with merges_in_fleet(logs, lambda: merge_and_note(logs), 60.0, print) as merge:
        merge()
    found = published(tmp_path)
    assert set(found) == {"shop"}
    assert found["shop"].numbers["merge_every_s"] == 60
