"""An idle source, and how its log's commit clock advances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.capture.watched_capture import Watched
from tests.support.polling import wait_for

import cdcflow


def check_idle_clock(
    folder: Path,
    source: dict[str, Any],
    table: str,
    insert: Callable[[int], object],
    now: Callable[[], int],
    slack: int,
) -> None:
    """Capture a table, let the source be idle, then commit. `now`: the server's clock in µs since 1970; `slack`: by how
    much (µs) its commit times are coarser.

    The clock advances without a row and never ahead of the server; a later transaction then gets its own commit time as
    its clock, because no heartbeat's time was read after the transaction's place in the log.
    """
    with Watched(folder, {**source, "heartbeat": "200ms"}) as on:
        on.until(lambda s: s["tables"].get(table, {}).get("state") == "done", "the backfill")
        status = on.watch.status(at_most_old_s=0.0)
        rows, clocks = int(status["next_offset"]), [int(status["commit_clock"])]
        for _ in range(3):
            status = on.until(lambda s: s["commit_clock"] > clocks[-1], "the clock to advance")
            assert status["next_offset"] == rows, "the source is not idle"
            clocks.append(int(status["commit_clock"]))
        assert clocks == sorted(clocks)
        assert clocks[-1] <= now() + slack
        insert(1)
        insert(2)
        on.until(lambda s: s["next_offset"] == rows + 2, "the rows")
    assert on.error is None
    headers = pa.concat_tables(cdcflow.open(on.config.log.folder).transactions(first=rows))
    times, found = (headers.column(n).cast(pa.int64()).to_pylist() for n in ("commit_ts", "commit_clock"))
    assert all(0 <= clock - ts <= slack for ts, clock in zip(times, found, strict=True)), (times, found)
    assert found[0] > clocks[-1]


def check_silent_source_is_named(folder: Path, source: dict[str, Any], table: str, quiet: Path) -> None:
    """Two logs, one of a source that is no longer captured: it holds the cut back and is named."""
    with Watched(folder, {**source, "heartbeat": "200ms"}) as on:
        on.until(lambda s: s["tables"].get(table, {}).get("state") == "done", "the backfill")
        stopped = cdcflow.open(quiet).now().commit_clock
        logs = cdcflow.open_logs({"quiet": quiet, "shop": on.config.log.folder}, silent_after_s=1.0)
        common = wait_for(
            logs.common,
            lambda common: [one.log for one in common.silent] == ["quiet"] and common.behind,
            "the quiet log to be named",
        )
        assert (common.commit_clock, common.held_back_by.log) == (stopped, "quiet")
    assert on.error is None


__all__ = ["check_idle_clock", "check_silent_source_is_named"]
