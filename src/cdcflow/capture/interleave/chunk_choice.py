"""Which table is read next, and how much of it: turns, plans, chunks and their sizes.

The progress of each table, its keys and the commands about it are in `backlog`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned, PlanTable
from cdcflow.capture.interleave.progress import Stale, TableProgress
from cdcflow.capture.interleave.reconcile import with_shape, without_base
from cdcflow.capture.interleave.work import QUIET_WINDOWS_MIN, ChunkPace, no_ids
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Offset, Token
from cdcflow.model.table import TableId

WHOLE_TRIES_MAX = 3
LAG_MIN_S = 1.0
LAG_PART = 0.25
"""If a window stays open for longer than `LAG_MIN_S` in addition to reading, a chunk may take this part of that
time."""
LAG_GROWTH = 8.0
SHARE_SLICED_MIN = 1 / 8
"""The smallest share of a chunk's time in which its rows are read; the rest are pauses between its slices. Longer
windows would hold changes for longer, so a smaller share is kept by pauses between two windows."""
FAILURES_COUNTED = 7
"""The pause after a failure grows from 0.2 to 12.8 s."""


class ChunkChoice:
    """Chooses what to read next from the tables of a backlog."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog

    def turns(self, now_us: int) -> Iterable[TableId]:
        """Return the tables that can be read now, in order: by priority, then alphabetically."""
        for table in self._backlog.queue:
            if (
                self._backlog.progress.tables[table].state != "paused"
                and self._backlog.work[table].not_before_us <= now_us
                and not self._backlog.work[table].is_resting(now_us)
            ):
                yield table

    def is_held(self, table: TableId) -> bool:
        """Whether the pace of reading makes this table wait.

        Once all ranges of a table are read, a pace that holds only ranges no longer does: the rows left are few, and
        the table is not whole without them.
        """
        pace = self._backlog.pace
        return pace.all_held or (pace.ranges_held and not self._backlog.progress.tables[table].exhausted)

    def is_read(self, table: TableId) -> bool:
        """Whether nothing is left to read of this table."""
        known = self._backlog.progress.tables[table]
        return known.exhausted and not known.to_repair and not self._backlog.work[table].keys

    def plan(
        self, table: TableId, next_offset: Offset, delivered: Delivered, *, marks_seen: int = 0
    ) -> PlanTable | None:
        """Return the effect that requests a plan of the table; None if the table has a plan or one is already
        requested.

        `marks_seen`: the number of the latest window whose low mark has arrived. Everything from before the statements
        that preceded this mark has an offset below `since`.
        """
        known, work = self._backlog.progress.tables[table], self._backlog.work[table]
        if known.plan is not None or work.planning:
            return None
        if not work.collecting:
            # From now on every row is either within the plan's bound, or moved out of it by a change that follows in
            # the log.
            work.collecting = True
            work.forget_keys()
            is_after_all = known.stale is not None and work.statements_before <= marks_seen
            stale: Stale | None = "reading" if is_after_all else known.stale
            self._backlog.set(table, replace(known, since=next_offset, stale=stale))
        work.planning, work.planned_after = True, delivered.ids()
        return PlanTable(table, known.generation, keys_only=known.keys_since is not None)

    def unseen_by(self, planned: Planned) -> Uint64s:
        """Return the transactions delivered before the plan was requested that its snapshot did not see.

        If there are any, the plan is useless: the rows those transactions inserted have offsets before `since`, and may
        be above the bound.
        """
        known = self._backlog.get(planned.table)
        if (
            known is None
            or known.generation != planned.generation
            or known.plan is not None
            or not planned.visibilities
        ):
            return no_ids()  # this answer is ignored; a later one gets this check
        work = self._backlog.work[planned.table]
        return np.unique(np.concatenate([v.hidden(work.planned_after) for v in planned.visibilities]))

    def accept_plan(self, planned: Planned) -> Literal["taken", "late", "moved"]:
        """Accept a plan, and return "taken". Return "late" if the table no longer waits for this plan, and "moved" if
        the row version differs from the one known before `since`.

        After "moved" the table must be planned again, with a `since` taken once the stream has reached this point.

        Raises:
            InvariantViolated: this plan was never requested.
        """
        table, known = planned.table, self._backlog.get(planned.table)
        if known is None or planned.generation > known.generation:
            raise InvariantViolated(f"{table} was planned for generation {planned.generation}, which was not requested")
        if planned.generation != known.generation:
            return "late"
        work = self._backlog.work[table]
        work.planning = False
        if known.state != "waiting" or known.plan is not None or not work.collecting:
            return "late"
        # If only keys are left to read, rows that were read before are still compared with the version they were read
        # at.
        version = planned.row_version if known.keys_since is None else known.row_version
        if known.keys_since is None and version not in (None, work.version):
            work.version, work.collecting = version, False
            return "moved"
        if planned.whole:
            work.forget_keys()  # such a table has no key; its one chunk shows every row
        size = min(planned.size, self._rows_max(known) // planned.rows_per_unit_max)
        incarnation = getattr(planned.shape, "incarnation", known.incarnation)
        taken = replace(
            known,
            state="reading",
            plan=planned.plan,
            size=max(1, size),
            units=planned.units,
            incarnation=incarnation,
            whole=planned.whole,
            keys_ordered=None if planned.whole else known.keys_ordered,
            to_repair=() if planned.whole else known.to_repair,
            row_version=version,
            whole_since=known.whole_since if incarnation == known.incarnation else None,
            gap=known.gap if incarnation == known.incarnation else without_base(known.gap),
        )
        self._backlog.set(table, with_shape(taken, planned.shape))
        return "taken"

    def chunk(self, table: TableId, low: Token) -> Chunk | None:
        """Return the next chunk of a table; None while it has no plan. Keys that the chunk takes can be returned by
        `put_back`."""
        known = self._backlog.progress.tables[table]
        if known.plan is None:
            return None
        about, work = (table, known.generation, known.chunks + 1, known.plan, known.cursor), self._backlog.work[table]
        if known.exhausted and known.to_repair:
            # They stay in the progress until they are in the log, so nothing has to be returned if the chunk fails.
            keys, _ = KeySet.from_text(known.to_repair[0].keys).take(work.keys_max)
            return Chunk(*about, size=0, low=low, kind="keys", keys=keys, repairs=True)
        if known.exhausted or work.keys_count > self._backlog.limits.keys_waiting_max:
            return Chunk(*about, size=0, low=low, kind="keys", keys=work.take_keys())
        kind: Literal["whole", "range"] = "whole" if known.whole else "range"
        share = self._backlog.pace.share
        return Chunk(
            *about,
            size=known.size,
            low=low,
            kind=kind,
            single_connection=work.still < QUIET_WINDOWS_MIN or share < 1,
            rows_max=self._rows_max(known),
            share=max(share, SHARE_SLICED_MIN),
        )

    # ── after a chunk ──────────────────────────────────────────────────────────────────────────────────────────────

    def put_back(self, chunk: Chunk) -> None:
        """Return the keys of a chunk that will not be in the log, so that they are read later."""
        if self._backlog.work[chunk.table].collecting and not chunk.repairs:
            self._backlog.work[chunk.table].remember(chunk.keys)

    def wait(self, table: TableId, now_us: int, *, failed: bool = False) -> None:
        """Do not read from the table until the retry pause is over.

        `failed`: the source could not be queried; the pause grows with each failure in a row.
        """
        work = self._backlog.work[table]
        work.not_before_us = now_us + (self._backlog.limits.retry_pause_us << max(work.failures - 1, 0))
        if failed:
            work.failures = min(work.failures + 1, FAILURES_COUNTED)

    def wait_for(self, table: TableId, hidden: Uint64s) -> None:
        """Do not read from the table until these transactions are visible."""
        self._backlog.work[table].hidden = hidden

    def is_held_up(self, table: TableId, delivered: Delivered) -> bool:
        """Whether the table waits for transactions that no snapshot has seen yet."""
        work = self._backlog.work[table]
        if len(work.hidden):
            work.hidden = work.hidden[np.isin(work.hidden, delivered.ids())]
        return bool(len(work.hidden))

    def plan_failed(self, table: TableId) -> None:
        self._backlog.work[table].planning = False

    def adapt_size(self, read: ChunkRead, *, holding: bool, live: bool) -> None:
        """Choose the size of the table's next chunk: aim at the time target, at most double the size, and stay under
        the allowed number of rows.

        `holding`: live transactions already wait for the window that is open. `live`: some arrived since it was opened.

        A smaller chunk is not always a quicker one: each has its round trips to the source, and a busy machine may let
        any read wait. If the size followed every measurement, it would end at one unit and stay there. So the rows of a
        chunk may take as long as opening the table does, which transactions wait for in any case; and the size follows
        the fastest of the latest chunks, but does not grow after a slow one.

        A capture that cannot keep up with its source gets a window's marks only after everything written before them.
        Chunks that are read in milliseconds would then arrive once in many seconds, and the table would not be done
        before the load ends. So a chunk may take a part of the time that its transactions wait for in any case.
        """
        known, work = self._backlog.progress.tables[read.chunk.table], self._backlog.work[read.chunk.table]
        work.quiet = 0 if holding else work.quiet + 1
        work.still = 0 if live else work.still + 1
        if read.chunk.kind != "range" or read.run is None:
            return
        target, least = self._backlog.limits.chunk_time_target_s, 0.25
        share = self._backlog.pace.share
        if work.still < QUIET_WINDOWS_MIN or share < 1:
            target, least = min(target, self._backlog.limits.chunk_time_live_s), 0.0
        if work.quiet < QUIET_WINDOWS_MIN:
            target, least = min(target, self._backlog.limits.chunk_time_busy_s), 0.0
        work.paces.append(ChunkPace(read.seconds / read.chunk.size, read.opening_seconds))
        target = max(target, min(pace.opening_s for pace in work.paces))
        most = 2.0
        if (lag_s := min(work.waits_s, default=0.0)) >= LAG_MIN_S and share == 1:
            target, most = max(target, LAG_PART * lag_s), LAG_GROWTH
        expected_s = read.chunk.size * min(pace.unit_s for pace in work.paces)
        most = most if read.seconds <= target else 1.0
        size = read.chunk.size * min(most, max(least, target / max(expected_s, 1e-6)))
        units = read.units_done - known.units_done
        if units > 0 and read.run.rows:
            size = min(size, self._rows_max(known) * units / read.run.rows)
        self._backlog.set(read.chunk.table, replace(known, size=max(1, int(size))))

    def read_less(self, table: TableId) -> None:
        """Halve the size of the next chunk of a table."""
        known, work = self._backlog.progress.tables[table], self._backlog.work[table]
        if known.exhausted:
            work.keys_max = max(1, work.keys_max // 2)
        else:
            self._backlog.set(table, replace(known, size=max(1, known.size // 2)))

    def shrink_chunk(self, table: TableId) -> bool:
        """Make the table's chunks smaller, because too many changes were held while a chunk was read. False if they
        cannot be smaller."""
        known, work = self._backlog.progress.tables[table], self._backlog.work[table]
        work.overflows += 1
        self.read_less(table)
        return not known.whole or work.overflows < WHOLE_TRIES_MAX

    def count_in(self, read: ChunkRead, now_us: int, *, opened_us: int, held: bool, live: bool) -> None:
        """Record that a chunk is in the log: reading continues after it.

        `held`: live transactions waited for it. `live`: some arrived while its window was open, since `opened_us`.
        """
        chunk = read.chunk
        known, work = self._backlog.progress.tables[chunk.table], self._backlog.work[chunk.table]
        assert read.run is not None  # noqa: S101 - checked when it arrived
        rows = read.run.rows - read.deleted - (chunk.kind == "whole")  # a whole chunk begins with a truncate
        if rate := known.rate(self._backlog.limits.rows_per_second_max):
            work.not_before_us = max(work.not_before_us, now_us) + rows * 1_000_000 // rate
        work.overflows = work.failures = 0
        work.read_us += now_us - opened_us
        work.waits_s.append((now_us - opened_us) / 1e6 - read.seconds)
        if held:
            work.quiet = 0
        if live:
            work.still = 0
        shape = None if known.rows + rows else known.shape
        now = replace(known, rows=known.rows + rows, chunks=chunk.number, shape=shape)
        if chunk.kind != "keys":
            at_end = read.exhausted or chunk.kind == "whole"
            units_done = known.units if at_end else read.units_done
            now = replace(now, cursor=read.reached, units_done=units_done, exhausted=at_end)
        elif chunk.keys is not None and read.keys_left is not None:
            work.keys_max = max(1, len(chunk.keys) - len(read.keys_left))
            if not chunk.repairs:
                work.remember(read.keys_left)
        elif chunk.keys is not None and len(chunk.keys) >= work.keys_max:
            # The rows of all keys fitted into the chunk. Take only a quarter more keys: rows that were too large once
            # may be so again.
            work.keys_max = min(self._backlog.limits.keys_per_chunk, work.keys_max + work.keys_max // 4 + 1)
        self._backlog.set(chunk.table, now)

    def _rows_max(self, known: TableProgress) -> int:
        """Return how many rows a chunk may have: at most one second's worth if a rate is set, and its part of what may
        still be read."""
        limits, left = self._backlog.limits, self._backlog.pace.rows_max
        most = min(limits.chunk_rows_max, known.rate(limits.rows_per_second_max) or limits.chunk_rows_max)
        return most if left is None else max(1, min(most, left // limits.chunks_per_window))
