"""What a whole capture does when its disk fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from memorysource import MemorySource

from cdcflow.cli.failure import exit_code
from cdcflow.errors import SyncFailed
from cdcflow.interleave.machine import Limits
from cdcflow.pipeline.attempt import Orders, Pace
from cdcflow.pipeline.capture import Capture
from cdcflow.sinks.files import FileLog
from cdcflow.testing.disks import Failing
from cdcflow.testing.sinks import ORDERS, orders


def test_failed_sync_ends_the_capture_with_the_code_that_has_it_started_again(tmp_path: Path) -> None:
    """The page cache is not to be trusted, so the process must end (L07); a new one can go on, and the recommended unit
    file starts none after a 70."""
    of = MemorySource({ORDERS: pa.RecordBatch.from_pydict({"id": [1], "note": ["a"]}, ORDERS.row_schema)})
    broken = [False]

    def fails(call: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, "Input/output error") if broken[0] and call == "fsync" else None

    def told(event: str, fields: object) -> None:
        if event == "table done":
            broken[0] = True
            of.commit(orders(7))

    capture = Capture(
        open_source=lambda: of,
        open_log=lambda identity, _: FileLog.open(tmp_path / "log", identity, layer=Failing(fails)),
        limits=Limits(),
        orders=Orders(),
        pace=Pace(),
        on_event=told,
    )
    with pytest.raises(SyncFailed, match="Input/output error") as error:
        capture.run()
    of.shut()
    assert exit_code(error.value) == 74
