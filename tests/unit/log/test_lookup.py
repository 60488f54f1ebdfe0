"""Questions about the log's past: how much of it is read for an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.log.files.layout import Layout
from cdcflow.model.change import reads
from cdcflow.model.position import Position, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, orders


def looked_at(log: FileLog, monkeypatch: pytest.MonkeyPatch, *ids: int) -> tuple[list[int], int]:
    """Which of these transactions the log has, and how many manifests were read for it."""
    read: list[int] = []
    manifest = Layout.manifest

    def counted(layout: Layout, first: int, last: int) -> object:
        read.append(first)
        return manifest(layout, first, last)

    with monkeypatch.context() as patched:
        patched.setattr(Layout, "manifest", counted)
        found = log.delivered(np.array(ids, np.uint64)).tolist()
    return found, len(read)


def test_segments_of_a_backfill_are_not_searched_for_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P35: a start searches the log for its latest transactions. After a backfill of a large table there are
    thousands of segments without any, and nothing before them has any either."""
    log = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "1", "shop"))
    writer = Writer.of(log)
    for number in range(1, 6):
        rows = pa.RecordBatch.from_pylist([{"id": number, "note": None}], ORDERS.row_schema)
        writer.put(reads(ORDERS, [rows], Position("0/9"), 5))
        assert log.roll()
        log.seal_pending()
    assert looked_at(log, monkeypatch, 10, 11) == ([], 1)
    writer.put(orders(7, xid=10))
    assert log.roll()
    log.seal_pending()
    assert looked_at(log, monkeypatch, 10, 11)[0] == [10]
    log.close()
