"""A log in a store, read from another machine, advances while its source is idle."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.support.objects.logs import ObjectLog, write
from tests.support.polling import wait_until

import cdcflow
from cdcflow.config import Objects
from cdcflow.log.read.reader import newest_checkpoint
from cdcflow.sinks.objects import uploads
from cdcflow.tables.job.common_clock import sealed_clock
from cdcflow.testing.sinks import Writer, orders

LATER_US = 5_000_000


@pytest.fixture
def log(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectLog:
    monkeypatch.setattr(uploads, "CHECKPOINT_EVERY_S", 0.05)
    return ObjectLog(tmp_path / "log", objects)


def beat(writer: Writer) -> None:
    """A heartbeat: the source's clock has advanced, without a change."""
    writer.checkpoint = replace(writer.checkpoint, commit_clock=writer.checkpoint.commit_clock + LATER_US)
    writer.cut()


def test_heartbeats_reach_who_has_only_the_store(log: ObjectLog) -> None:
    """Durable ones: what a crash may undo is reported to no reader. The last one is reported when the daemon stops."""
    opened = log.open()
    write(opened, [1])
    log.settled()
    sealed = newest_checkpoint(log.alone)
    writer = Writer.of(opened)
    beat(writer)
    time.sleep(0.3)
    assert newest_checkpoint(log.alone) == sealed
    opened.sync()
    wait_until(lambda: newest_checkpoint(log.alone) == writer.checkpoint, "the checkpoint in the bucket")
    assert sealed_clock(log.alone) == sealed.commit_clock + LATER_US
    beat(writer)
    opened.sync()
    opened.close()
    assert newest_checkpoint(log.alone) == writer.checkpoint
    opened = log.open()
    beat(again := Writer.of(opened))
    opened.sync()
    wait_until(lambda: newest_checkpoint(log.alone) == again.checkpoint, "the next daemon's checkpoint in the bucket")
    opened.close()


def test_heartbeats_after_a_row_wait_for_it(log: ObjectLog) -> None:
    """The store does not have the row yet, so a reader must not assume that the log has reached their time."""
    opened = log.open()
    write(opened, [1])
    log.settled()
    writer = Writer.of(opened)
    beat(writer)
    opened.sync()
    wait_until(lambda: newest_checkpoint(log.alone) == writer.checkpoint, "the checkpoint in the bucket")
    told = writer.checkpoint
    writer.put(orders(2))
    beat(writer)
    opened.sync()
    time.sleep(0.3)
    assert newest_checkpoint(log.alone) == told
    assert opened.roll()
    opened.seal_pending()
    log.settled()
    assert newest_checkpoint(log.alone) == writer.checkpoint  # of the segment: what was reported before is older
    beat(writer)
    opened.sync()
    wait_until(lambda: newest_checkpoint(log.alone) == writer.checkpoint, "the checkpoint in the bucket")
    opened.close()


def test_idle_log_holds_no_reader_back(log: ObjectLog, tmp_path: Path) -> None:
    """Read with another machine's settings, together with a log in a folder that receives rows."""
    away = log.open()
    write(away, [1])
    log.settled()
    near = ObjectLog(tmp_path / "near" / "log", log.objects).open(uploading=False)
    write(near, [1])
    other = Writer.of(near)
    beat(other)
    other.put(orders(2))
    beat(other)
    near.sync()
    logs = cdcflow.open_logs({"away": settings(log, tmp_path), "near": tmp_path / "near" / "log"})
    assert logs.common().held_back_by.log == "away"
    writer = Writer.of(away)
    for _ in range(4):
        beat(writer)
    away.sync()
    wait_until(lambda: logs.common().held_back_by.log == "near", "the idle log's clock to advance")
    assert [batch.log for batch in logs.changes()].count("near") == 3
    for one in (away, near):
        one.close()


def settings(log: ObjectLog, folder: Path) -> Path:
    """Of a machine that has nothing of the log but its bucket's address."""
    access = {k: v for k, v in log.objects.model_dump(mode="json").items() if v is not None}
    path = folder / "away.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "source": {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop"},
                "log": {"path": str(folder / "nothing"), "objects": {**access, "cache": str(folder / "cache-away")}},
            }
        )
    )
    return path
