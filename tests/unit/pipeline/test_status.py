"""What a running capture tells of itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from memorysource import MemorySource

from cdcflow.interleave.machine import Limits
from cdcflow.interleave.messages import Chunk, ChunkRead
from cdcflow.pipeline.attempt import Orders, Pace
from cdcflow.pipeline.capture import Capture
from cdcflow.service.metrics import exposition
from cdcflow.sinks.files import FileLog
from cdcflow.testing.sinks import ORDERS, orders


class Busy(MemorySource):
    """A transaction comes in while a chunk is read, and the high mark waits until somebody has looked."""

    looked: list[dict[str, object]]
    capture: Capture

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        self.commit(orders(8, 9))
        while not self.looked or not self.looked[-1].get("held_rows"):
            self.looked.append(self.capture.status())
            if len(self.looked) > 100_000:
                break
        return super().read_chunk(chunk)


def test_what_a_window_holds_back_is_told(tmp_path: Path) -> None:
    """Metrics and status have names for it; live changes that wait for a backfill must be seen to wait."""
    of = Busy({ORDERS: pa.RecordBatch.from_pydict({"id": [1], "note": ["a"]}, ORDERS.row_schema)})
    of.looked = []
    of.capture = Capture(
        open_source=lambda: of,
        open_log=lambda identity, _: FileLog.open(tmp_path / "log", identity),
        limits=Limits(),
        orders=Orders((), once=True),
        pace=Pace(),
        on_event=lambda *_: None,
    )
    of.capture.run()
    of.shut()
    held = of.looked[-1]
    assert held["held_rows"] == 2
    assert isinstance(held["held_bytes"], int)
    assert held["held_bytes"] > 0
    text = exposition(held)
    assert "cdcflow_held_rows 2\n" in text
    assert "cdcflow_held_bytes" in text
