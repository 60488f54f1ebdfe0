"""A stop that has no time left: what is durable need not be sealed, and the next start seals it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcflow.log.disk.segment_folders import write_segment
from cdcflow.log.files.layout import Layout
from cdcflow.log.read import reader
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files import sealer
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
ROWS = 5


def log_with_rows(root: Path, *, rolls: bool) -> FileLog:
    log = FileLog.open(root, IDENTITY)
    writer = Writer.of(log)
    for number in range(ROWS):
        writer.put(orders(number, xid=number + 1))
        if rolls:
            log.roll()
    return log


def assert_next_start_seals_all(root: Path) -> None:
    layout = Layout(root)
    assert sum(len(found) for found in reader.read_transactions(layout)) == ROWS
    assert not list(layout.segments.glob(".*")), "a part of a segment is left"
    log = FileLog.open(root, IDENTITY)
    assert log.seal_due(0.0)
    log.close()
    found = layout.segment_offsets()
    assert found[0][0] == 1
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(found))
    assert found[-1][1] == ROWS


@pytest.mark.parametrize("rolls", [True, False], ids=["closed journals", "open journal"])
def test_log_without_time_to_seal_is_closed_at_once(tmp_path: Path, *, rolls: bool) -> None:
    """Sealing 32 MiB takes longer than a service manager waits, if other processes need the processor."""
    log = log_with_rows(tmp_path, rolls=rolls)
    log.end_sealing_within(0.0)
    log.close()
    assert Layout(tmp_path).segment_offsets() == []
    assert_next_start_seals_all(tmp_path)


def test_segment_that_is_being_written_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop waits for the sealing thread, which may just have begun the largest segment."""
    log = log_with_rows(tmp_path, rolls=True)
    written: list[Path] = []

    def without_time(layer: Any, directory: Path, sealed: Callable[..., Any]) -> Any:
        written.append(directory)
        if len(written) == 2:
            log.end_sealing_within(0.0)
        return write_segment(layer, directory, sealed)

    monkeypatch.setattr(sealer, "write_segment", without_time)
    assert len(log.seal_pending()) == 1
    log.close()
    assert len(written) == 2
    assert len(Layout(tmp_path).segment_offsets()) == 1
    monkeypatch.undo()
    assert_next_start_seals_all(tmp_path)


def test_log_with_time_is_sealed(tmp_path: Path) -> None:
    log = log_with_rows(tmp_path, rolls=False)
    log.end_sealing_within(math.inf)
    log.close()
    assert Layout(tmp_path).segment_offsets() == [(1, ROWS)]
