"""The thread that joins small sealed segments while a log is written (`log.compact`). Its errors do not end the
capture.

oldest ──segment──segment──segment─s─s─s─s─s─s─s─s─│─s─s─s─▶   s: a small one; │: read by every merge and publisher
                                   └──── join ────┘

A daemon whose merge process waits for rows seals a segment every second or two. Small neighbours become one, by a rule
that rewrites each row only a few times (`log.files.compaction`). `cdcflow log compact` does the same work, with the
same guarantees.

Readers. A reader opens files that it listed before. Segments that were replaced stay for `GRACE_S`. In addition, a
segment that a merge or publisher of this log has not read yet is not joined before it is `UNREAD_S` old, so that a
reader that works on a range for an hour finds all of its files. If one is missing after that, the reader lists the log
again and continues.

The capture never waits: sealing does not take the maintenance lock, the thread runs only on otherwise idle processors,
and a process that ends does not wait for it. An upload waits for one new segment at most.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from cdcflow.log.disk.layer import OS_LAYER, FileLayer
from cdcflow.log.disk.maintenance_lock import Busy
from cdcflow.log.files import notes
from cdcflow.log.files.compaction import CompactionRule
from cdcflow.log.files.layout import Bounds, Layout, widest_segments
from cdcflow.log.maintenance.background import BackgroundTask, OnEvent
from cdcflow.log.maintenance.retention import GRACE_S, LogRetention, RemoteStore

EVERY_S = 10.0
NICENESS = 15
SWEEP_EVERY_S = 300.0
UNREAD_S = 3600.0
RETRY_S = 300.0
"""The pause after an error: the failed attempt may have read and written as much as one segment."""

WHILE_SEALING = CompactionRule(bytes_max=64 << 20, ends_max=4096, count_min=8, growth=4)
"""The rule during a capture. With it a row is rewritten log4(rows of the result / rows of a segment) times, and once
or twice more when its run is full: 6 to 8 times for segments of 10 KB. A manifest stays below 200 KB."""


class BackgroundCompaction(BackgroundTask):
    """Compacts one log every `every_s` seconds, if something is due. A context manager; leaving it waits for no
    store."""

    put_off = "compaction put off"

    def __init__(
        self,
        layout: Layout,
        on_event: OnEvent,
        *,
        remote: RemoteStore | None = None,
        layer: FileLayer = OS_LAYER,
        every_s: float = EVERY_S,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("cdcflow-compaction", on_event, every_s, NICENESS)
        self._layout = layout
        self._remote = remote
        self._layer = layer
        self._grace_s = grace_s
        self._clock = clock
        self._retention: LogRetention | None = None
        self._sweep_at = 0.0
        self._retry_at = 0.0

    def step(self) -> None:
        """Join the segments that are due, and remove those that were replaced long enough ago."""
        if not self._layout.log_json.exists() or time.monotonic() < self._retry_at:
            return
        try:
            with contextlib.suppress(Busy):  # another process works on the segments
                self._compact()
                self._sweep()
        except Exception:
            self._retry_at = time.monotonic() + RETRY_S
            raise
        self._is_well()

    def _compact(self) -> None:
        retention = self._open_retention()
        last = self._last_offset()
        if not retention.is_due(WHILE_SEALING, last):
            return
        made = retention.compact(WHILE_SEALING, last_offset_max=last, stop=self._closing.is_set)
        if made:
            before, size = sum(count for _, count in made), sum(segment.size for segment, _ in made)
            self._tell("log compacted", {"segments": len(made), "replaced": before, "bytes": size})

    def _last_offset(self) -> int:
        """Return the offset up to which segments may be joined: every merge and publisher has read them, or they are
        old enough."""
        read = [note.offset for kind in ("merge", "publish") for note in notes.all_of(self._layout, kind)]
        offset = min(read, default=0)
        since = self._clock() - UNREAD_S
        for bounds in self._layout.segment_offsets():
            if bounds[1] > offset and _sealed_at(self._layout, bounds) > since:
                break
            offset = max(offset, bounds[1])
        return offset

    def _sweep(self) -> None:
        """Remove replaced segments, but not in every step, because each time lists the store."""
        if time.monotonic() < self._sweep_at:
            return
        found, unfinished = self._layout.listed_segments()
        if unfinished or len(found) > len(widest_segments(found)):
            self._open_retention().sweep()
        self._sweep_at = time.monotonic() + min(SWEEP_EVERY_S, self._grace_s)

    def _open_retention(self) -> LogRetention:
        if self._retention is None:
            wait = self._closing.wait  # for one batch at a time, so that uploads wait no longer than for that
            self._retention = LogRetention(
                self._layout, self._remote, layer=self._layer, grace_s=self._grace_s, wait=wait
            )
        return self._retention


def _sealed_at(layout: Layout, bounds: Bounds) -> float:
    """Return when a segment was sealed or uploaded, in seconds since 1970; the current time if it was replaced in the
    meantime."""
    try:
        return (layout.segment(*bounds) / "segment.json").stat().st_mtime
    except FileNotFoundError:
        return time.time()
