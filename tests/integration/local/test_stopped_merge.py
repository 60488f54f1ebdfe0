"""A merge process that must stop ends at a commit: the next merge finishes, and no table is excluded because of it."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.config import Config
from cdcflow.daemon import merge_process
from cdcflow.daemon.merge_child import MergeLoop
from cdcflow.daemon.supervised_process import Reports
from cdcflow.errors import SinkUnavailable
from cdcflow.log.maintenance import state_files
from cdcflow.tables.job.lease import folder_lease

TABLES = [f"t{number}" for number in range(8)]


class StoppingReports(Reports):
    """Reports that are kept; a stop is requested as soon as the merge of a table begins."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(io.BytesIO())
        self.sent: list[dict[str, Any]] = []
        self._stop = stop

    def send(self, **fields: object) -> None:
        self.sent.append(json.loads(json.dumps(fields)))
        if "table" in fields:
            self._stop.set()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Settings of a log with a row in each of the tables."""
    log = HandLog(tmp_path / "log")
    made = [make_table(name, id="int64") for name in TABLES]
    for table in made:
        log.state(table)
    log.segment([(table, "r", {"id": 1}) for table in made])
    source = {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/none"}
    merge = {"engine": "local", "warehouse": str(tmp_path / "lake"), "every": "1s"}
    return Config.model_validate({"source": source, "log": {"path": str(tmp_path / "log")}, "merge": merge})


def test_merge_ends_before_its_next_table_and_the_next_one_finishes(config: Config, tmp_path: Path) -> None:
    """Eight tables that take a minute each must not keep the daemon from stopping; and the stop is no failure."""
    stop = threading.Event()
    reports = StoppingReports(stop)
    assert MergeLoop(config, reports, stop, threading.Event()).run() == 0
    begun = [line["table"] for line in reports.sent if "table" in line]
    assert 1 <= len(begun) < len(TABLES)
    assert not any("failure" in line or "merged" in line for line in reports.sent)
    assert state_files.of_merge(config.log.folder) is None
    report = local.merge(tmp_path / "log", tmp_path / "lake")
    assert report.published
    assert [table.left_out for table in report.tables] == [None] * len(TABLES)
    assert {name: table.num_rows for name, table in local.read_cut(tmp_path / "lake").items()} == {
        f"public.{name}": 1 for name in TABLES
    }


def test_merge_by_hand_waits_for_its_turn(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that ran `cdcflow merge` before an upgrade must not fail because the daemon merges, too."""
    monkeypatch.setattr(merge_process, "TURN_EVERY_S", 0.01)
    merge = merge_process.prepare_merge(config, lambda _: None, lambda _: None)
    tries: list[int] = []
    release = threading.Event()

    def counting() -> Any:
        tries.append(1)
        if len(tries) == 3:
            release.set()
            holder.join()
        return merge()

    def hold() -> None:
        with folder_lease(tmp_path / "lake"):
            held.set()
            release.wait()

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert merge_process.wait_for_turn(counting).published
    assert len(tries) == 3

    def unreachable() -> Any:
        raise SinkUnavailable("the store does not answer")

    with pytest.raises(SinkUnavailable, match="does not answer"):
        merge_process.wait_for_turn(unreachable)
