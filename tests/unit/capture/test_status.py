"""What a running capture reports about itself."""

from __future__ import annotations

from pathlib import Path

from tests.support.capture.memory_source import OrdersSource

from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.http.metrics import exposition
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS


def test_rows_that_a_window_holds_back_are_reported(tmp_path: Path) -> None:
    """Metrics and status have names for it: live changes that wait for a backfill must be visible as waiting."""
    of = OrdersSource(1)
    looked: list[dict[str, object]] = []

    def look() -> None:
        """A transaction arrives while a chunk is read, and the high mark waits until the status was read."""
        of.insert(8, 9)
        while not looked or not looked[-1].get("held_rows"):
            looked.append(capture.status())
            if len(looked) > 100_000:
                break

    of.on_read = look
    capture = Capture(
        open_source=lambda: of,
        open_log=lambda identity, _: FileLog.open(tmp_path / "log", identity),
        limits=Limits(),
        orders=Orders((), once=True),
        pace=LoopIntervals(),
        on_event=lambda *_: None,
    )
    capture.run()
    held = looked[-1]
    assert held["held_rows"] == 2
    assert held["window"] == [str(ORDERS.id)]
    assert isinstance(held["held_bytes"], int)
    assert held["held_bytes"] > 0
    text = exposition(held)
    assert "cdcflow_held_rows 2.0\n" in text
    assert "cdcflow_held_bytes" in text
