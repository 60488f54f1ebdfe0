"""The limits within which the machine uses the source and memory."""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.model.change import PARTIAL_KEYS_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that limit how the machine uses the source and memory.

    Chunks aim at `chunk_time_target_s` while no captured table is written to. Live transactions wait, and need
    processors, while a chunk goes into the log; so while any arrive, chunks aim at `chunk_time_live_s` and are read
    through one connection. Transactions that write to the chunk's own table also wait until the window ends; while any
    of those arrive, chunks aim at `chunk_time_busy_s`. `rows_per_second_max` is per table, 0: no limit. `backfill_new`:
    at once read a table that was never captured; if false, such a table waits for a `Backfill`. `retry_pause_us` is the
    pause after a failed chunk. Keys of partial rows are read after the ranges, or before the next range if more than
    `keys_waiting_max` wait. If more than `keys_max` keys of a table wait, the table is read again from the start.

    `statements_gather_us`, `statements_pause_us`: how long statements on other tables that may have changed a table are
    gathered before the table is read again, and the least pause between two such reads. See `Backlog.rest`.
    """

    chunks_per_window: int = 2
    chunk_time_target_s: float = 0.2
    chunk_time_live_s: float = 0.05
    chunk_time_busy_s: float = 0.01
    chunk_rows_max: int = 200_000
    keys_per_chunk: int = 10_000
    keys_waiting_max: int = 250_000
    keys_max: int = PARTIAL_KEYS_MAX
    rows_per_second_max: int = 0
    held_bytes_max: int = 64 << 20
    delivered_max: int = 1 << 16
    retry_pause_us: int = 200_000
    statements_gather_us: int = 1_000_000
    statements_pause_us: int = 60_000_000
    backfill_new: bool = True


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """How fast the machine may read from a source that is busy; `capture.pacing` decides it.

    `share`: the share of the time in which the server may be busy with windows, above 0 and at most 1. If it is below
    1, chunks are also smaller, and sources that can read them in slices do so. `ranges_held`: no chunk of existing rows
    is begun; single rows are still read by key. `all_held`: nothing is read. `rows_max`: how many rows may still be
    read, if that is limited.
    """

    share: float = 1.0
    ranges_held: bool = False
    all_held: bool = False
    rows_max: int | None = None

    def pause_us_after(self, open_us: int, idle_us: int) -> int:
        """The pause after a window that was open this long, during which the server was idle for `idle_us`."""
        busy_us = max(0, open_us - idle_us)
        return max(0, int(busy_us * (1 / self.share - 1)) - idle_us)


FULL_PACE = ReadingPace()
"""The pace without limits."""
