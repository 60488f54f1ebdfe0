"""Which tables are still to be read, how far each one is, and what to read next.

This module does not depend on windows, marks or the stream's order; see `cdcflow.capture.interleave.window_sequence`.
It owns the stored progress and the unstored facts about each table (`work`).

Rows that move. A plan is fixed at its start, so the range chunks miss a row if an update moves its new version to a
page that was already read, or above the bound. The log has that update, but perhaps not all of its columns. So as soon
as a plan is requested, the keys of changes with unchanged columns are remembered. They are read by key (chunks of kind
"keys") after the ranges and before the table counts as done (W11), or before the next range if many of them wait.
How long must they be remembered? When the window of the last range chunk closes, every row of the table either has all
of its columns in the log or a remembered key: a chunk showed it, or a change that moved it arrived. A later change with
unchanged columns alters neither: over a whole row it leaves a whole row, and a remembered key stays remembered. The
exception is a change of the key itself: its insert takes the unchanged columns from a row that may not be whole yet,
under a key that is not remembered, and a chunk that reads the old key no longer finds it. So while keys are left to
read, the keys of such changes are remembered too (only those, or a busy table would never be done).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, cast

import numpy as np

from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import (
    Adjust,
    Chunk,
    ChunkRead,
    Planned,
    PlanTable,
    RowVersion,
    Shape,
    Transactions,
)
from cdcflow.capture.interleave.progress import (
    CommandRecord,
    Gap,
    Progress,
    RepairOrder,
    RepairRecord,
    State,
    TableProgress,
)
from cdcflow.capture.interleave.reconcile import taken_up, with_shape, without_base
from cdcflow.capture.interleave.work import QUIET_WINDOWS_MIN, Work, no_ids
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Epoch, Offset, Token
from cdcflow.model.table import TableId

UNKNOWN = "the log no longer records which of its rows are partial"
TOO_MANY = "too many keys of partial rows"
WHOLE_TRIES_MAX = 3
FAILURES_COUNTED = 7
"""The pause after a failure grows from 0.2 to 12.8 s."""


class Backlog:
    """The tables, each with its progress. `changed`: the state of some table differs from the last cut.

    `next_offset` is the log's at the start; `partial` are remembered keys that the caller found in the log (None: see
    the machine).
    """

    def __init__(
        self,
        stored: Progress,
        tables: Mapping[TableId, Shape],
        limits: Limits,
        next_offset: Offset,
        partial: Mapping[TableId, KeySet | None],
    ) -> None:
        self._limits = limits
        self.progress = replace(stored, tables=taken_up(stored, tables, next_offset, backfill_new=limits.backfill_new))
        self.changed = self.progress != stored
        self._json: dict[str, object] | None = None
        self._newer: set[TableId] = set()  # tables whose entry in `_json` is outdated
        self._queue = self._read_order()
        self._work = {table: Work(limits.keys_per_chunk) for table in self.progress.tables}
        for table, known in self.progress.tables.items():
            self._work[table].collecting = known.collects_from is not None
        for table, keys in partial.items():
            if keys is not None and self._work[table].collecting:
                self._work[table].remember(keys)

    def use(self, limits: Limits) -> None:
        """Apply other limits. A wait that an old rate imposed ends."""
        if limits.rows_per_second_max != self._limits.rows_per_second_max:
            for work in self._work.values():
                work.not_before_us = 0
        self._limits = limits

    def note(self, record: CommandRecord) -> None:
        """Store the record of a command."""
        self._people(self.progress.with_command(record))

    def pause_capture(self, paused: bool) -> None:
        self._people(replace(self.progress, capture_paused=paused))

    def _people(self, progress: Progress) -> None:
        self.progress = progress
        if self._json is not None:
            kept = {name: self._json[name] for name in ("version", "tables")}
            self._json = {**kept, **progress.people_json()}
        self.changed = True

    def get(self, table: TableId) -> TableProgress | None:
        return self.progress.tables.get(table)

    def json(self) -> dict[str, object]:
        """The progress in the form stored with a cut.

        The same object until something changes; then a new one with the same entries for the unchanged tables.
        """
        if self._json is None:
            self._json = self.progress.to_json()
        elif self._newer:
            tables = cast(dict[str, object], self._json["tables"])
            newer = {str(table): self.progress.tables[table].to_json(table) for table in self._newer}
            self._json = {**self._json, "tables": {**tables, **newer}}
        self._newer.clear()
        return self._json

    def _set(self, table: TableId, progress: TableProgress) -> None:
        before = self.progress.tables[table]
        self.progress = replace(self.progress, tables={**self.progress.tables, table: progress})
        self._newer.add(table)
        if (before.active, before.priority) != (progress.active, progress.priority):
            self._queue = self._read_order()
        if (before.state, before.generation) != (progress.state, progress.generation):
            self.changed = True

    def _read_order(self) -> list[TableId]:
        tables = self.progress.tables
        return sorted((t for t, p in tables.items() if p.active), key=lambda t: (-tables[t].priority, t))

    # ── whose turn it is ────────────────────────────────────────────────────────────────────────────────────

    def turns(self, now_us: int) -> Iterable[TableId]:
        """The tables that can be read now, in order: by priority, then alphabetically."""
        for table in self._queue:
            if self.progress.tables[table].state != "paused" and self._work[table].not_before_us <= now_us:
                yield table

    def is_read(self, table: TableId) -> bool:
        """Nothing is left to read of it."""
        known = self.progress.tables[table]
        return known.exhausted and not known.to_repair and not self._work[table].keys

    def plan(self, table: TableId, next_offset: Offset, delivered: Delivered) -> PlanTable | None:
        """The effect that has the table planned; None if it has a plan, or one is under way."""
        known, work = self.progress.tables[table], self._work[table]
        if known.plan is not None or work.planning:
            return None
        if not work.collecting:
            # From now on every row is within the plan's bound, or a change that follows in the log moved it out of it.
            work.collecting = True
            work.forget_keys()
            self._set(table, replace(known, since=next_offset))
        work.planning, work.planned_after = True, delivered.ids()
        return PlanTable(table, known.generation)

    def unseen_by(self, planned: Planned) -> Uint64s:
        """The transactions delivered before the plan was requested that it did not see.

        Such a plan is useless: the rows those transactions inserted have offsets before `since`, and may be above the
        bound.
        """
        known = self.get(planned.table)
        if (
            known is None
            or known.generation != planned.generation
            or known.plan is not None
            or not planned.visibilities
        ):
            return no_ids()  # too late: a later answer counts, and gets this check itself
        work = self._work[planned.table]
        return np.unique(np.concatenate([v.hidden(work.planned_after) for v in planned.visibilities]))

    def accept_plan(self, planned: Planned) -> Literal["taken", "late", "moved"]:
        """Accept a plan, unless it is too late or the row version is not the one that was known before `since`.

        In the second case ("moved") the table must be planned again, with a `since` taken once the stream has reached
        this point.

        Raises:
            InvariantViolated: this plan was never requested.
        """
        table, known = planned.table, self.get(planned.table)
        if known is None or planned.generation > known.generation:
            raise InvariantViolated(f"{table} was planned for generation {planned.generation}, which was not requested")
        if planned.generation != known.generation:
            return "late"
        work = self._work[table]
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
            work.forget_keys()  # no row can be read by them, and the one chunk shows all of these rows
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
        self._set(table, with_shape(taken, planned.shape))
        return "taken"

    def chunk(self, table: TableId, low: Token) -> Chunk | None:
        """The next chunk of a table; None while it has no plan. `put_back` returns the keys that it takes."""
        known = self.progress.tables[table]
        if known.plan is None:
            return None
        about, work = (table, known.generation, known.chunks + 1, known.plan, known.cursor), self._work[table]
        if known.exhausted and known.to_repair:
            # They stay in the progress until they are in the log, so nothing has to be returned if the chunk fails.
            keys, _ = KeySet.from_text(known.to_repair[0].keys).take(work.keys_max)
            return Chunk(*about, size=0, low=low, kind="keys", keys=keys, repairs=True)
        if known.exhausted or work.keys_count > self._limits.keys_waiting_max:
            return Chunk(*about, size=0, low=low, kind="keys", keys=work.take_keys())
        kind: Literal["whole", "range"] = "whole" if known.whole else "range"
        single = work.still < QUIET_WINDOWS_MIN
        rows_max = self._rows_max(known)
        return Chunk(*about, size=known.size, low=low, kind=kind, single_connection=single, rows_max=rows_max)

    # ── how it went ─────────────────────────────────────────────────────────────────────────────────────────

    def remember_partial(self, run: Transactions) -> None:
        """Remember the keys of rows with unchanged columns, of the tables that are being read.

        Not of a paused table: on resume they are looked up in the log.
        """
        for table in self._queue:
            known, work = self.progress.tables[table], self._work[table]
            if work.collecting and known.state != "paused" and not known.whole:
                work.remember(run.moved_keys(table) if known.exhausted else run.partial_keys(table))

    def read_keys(self, table: TableId, keys: KeySet, next_offset: Offset) -> None:
        """Rows with these keys arrive incomplete: have them read, if all rows were read already or are being read."""
        work = self._work[table]
        self._begin_keys(table, next_offset)
        if work.collecting and self.progress.tables[table].state != "paused":
            work.remember(keys)

    def _begin_keys(self, table: TableId, next_offset: Offset) -> None:
        """Begin to read only keys of a table that was already read completely."""
        known, work = self.progress.tables[table], self._work[table]
        if known.state == "done":
            work.forget_keys()
            work.collecting = True
            self._set(table, replace(known, state="waiting", keys_since=next_offset))

    def too_many_keys(self) -> list[TableId]:
        """The tables with more waiting keys than may be kept."""
        return [table for table in self._queue if self._work[table].has_more_than(self._limits.keys_max)]

    def put_back(self, chunk: Chunk) -> None:
        """A chunk will not be in the log: its keys are still to be read."""
        if self._work[chunk.table].collecting and not chunk.repairs:
            self._work[chunk.table].remember(chunk.keys)

    def wait(self, table: TableId, now_us: int, *, failed: bool = False) -> None:
        """Read nothing of it until the retry pause is over.

        `failed`: the source could not be queried; the pause grows with each failure in a row.
        """
        work = self._work[table]
        work.not_before_us = now_us + (self._limits.retry_pause_us << max(work.failures - 1, 0))
        if failed:
            work.failures = min(work.failures + 1, FAILURES_COUNTED)

    def wait_for(self, table: TableId, hidden: Uint64s) -> None:
        """Read nothing of it before these transactions are visible."""
        self._work[table].hidden = hidden

    def is_held_up(self, table: TableId, delivered: Delivered) -> bool:
        """Whether it waits for transactions that no snapshot has seen yet."""
        work = self._work[table]
        if len(work.hidden):
            work.hidden = work.hidden[np.isin(work.hidden, delivered.ids())]
        return bool(len(work.hidden))

    def plan_failed(self, table: TableId) -> None:
        self._work[table].planning = False

    def adapt_size(self, read: ChunkRead, *, holding: bool, live: bool) -> None:
        """Aim at the time target; at most double the size, and stay under the allowed number of rows.

        `holding`: live transactions already wait for this window. `live`: some arrived since it was opened.
        """
        known, work = self.progress.tables[read.chunk.table], self._work[read.chunk.table]
        work.quiet = 0 if holding else work.quiet + 1
        work.still = 0 if live else work.still + 1
        if read.chunk.kind != "range" or read.run is None:
            return
        target, least = self._limits.chunk_time_target_s, 0.25
        if work.still < QUIET_WINDOWS_MIN:
            target, least = min(target, self._limits.chunk_time_live_s), 0.0
        if work.quiet < QUIET_WINDOWS_MIN:
            target, least = min(target, self._limits.chunk_time_busy_s), 0.0
        size = read.chunk.size * min(2.0, max(least, target / max(read.seconds, 1e-6)))
        units = read.units_done - known.units_done
        if units > 0 and read.run.rows:
            size = min(size, self._rows_max(known) * units / read.run.rows)
        self._set(read.chunk.table, replace(known, size=max(1, int(size))))

    def read_less(self, table: TableId) -> None:
        """Halve the next chunk of a table."""
        known, work = self.progress.tables[table], self._work[table]
        if known.exhausted:
            work.keys_max = max(1, work.keys_max // 2)
        else:
            self._set(table, replace(known, size=max(1, known.size // 2)))

    def shrink_chunk(self, table: TableId) -> bool:
        """Too much was held for the table's chunk: read less. False when it cannot be read in smaller pieces."""
        known, work = self.progress.tables[table], self._work[table]
        work.overflows += 1
        self.read_less(table)
        return not known.whole or work.overflows < WHOLE_TRIES_MAX

    def count_in(self, read: ChunkRead, now_us: int, *, held: bool, live: bool) -> None:
        """A chunk is in the log: the table continues after it.

        `held`: live transactions waited for it. `live`: some arrived while its window was open.
        """
        chunk = read.chunk
        known, work = self.progress.tables[chunk.table], self._work[chunk.table]
        assert read.run is not None  # noqa: S101 - checked when it arrived
        rows = read.run.rows - read.deleted - (chunk.kind == "whole")  # a whole chunk begins with a truncate
        if rate := known.rate(self._limits.rows_per_second_max):
            work.not_before_us = max(work.not_before_us, now_us) + rows * 1_000_000 // rate
        work.overflows = work.failures = 0
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
            # All of them fitted. Grow by a quarter only: rows that were too large once may be again.
            work.keys_max = min(self._limits.keys_per_chunk, work.keys_max + work.keys_max // 4 + 1)
        self._set(chunk.table, now)

    def record_repair(self, read: ChunkRead, first: Offset) -> None:
        """A chunk that repairs rows is in the log, starting at offset `first`:

        record it, and keep the keys that are left.
        """
        table, known = read.chunk.table, self.progress.tables[read.chunk.table]
        assert read.chunk.keys is not None  # noqa: S101 - a repairing chunk always has keys
        assert read.run is not None  # noqa: S101 - checked when it arrived
        order, *others = known.to_repair
        _, left = KeySet.from_text(order.keys).take(len(read.chunk.keys))
        if read.keys_left is not None:
            left = read.keys_left.union(left)
        if len(left):
            others.insert(0, replace(order, keys=left.to_text()))
        self._set(table, replace(known, to_repair=tuple(others)))
        keys = len(read.chunk.keys) - (0 if read.keys_left is None else len(read.keys_left))
        record = RepairRecord(
            order.number,
            table,
            first,
            Offset(first + read.run.rows - 1),
            keys,
            read.deleted,
            len(left),
            order.known_until,
            read.run.last_position,
        )
        self._people(self.progress.with_repair(record))

    def _rows_max(self, known: TableProgress) -> int:
        """How many rows a chunk may have: no more than a second's, where a rate is set."""
        return min(
            self._limits.chunk_rows_max, known.rate(self._limits.rows_per_second_max) or self._limits.chunk_rows_max
        )

    def rewritten(self, table: TableId) -> None:
        """The table is no longer what was planned (W27): read it from the start.

        Keys and `since` are kept, unless its row version has changed at the next plan.
        """
        known = self.progress.tables[table]
        again = replace(
            known, state="waiting", plan=None, cursor=None, units_done=0, rows=0, exhausted=False, keys_since=None
        )
        self._set(table, again)

    def keep_version(self, version: RowVersion) -> bool:
        """What was read of the table is right at this version and is compared with it from now on.

        Return true if nothing was read yet and the table must not be planned before the stream has reached this point.
        """
        known, work = self.progress.tables[version.table], self._work[version.table]
        if known.plan is not None or known.state == "done":
            self._set(version.table, replace(known, row_version=version.now))
        elif known.active and not work.collecting and work.version != version.now:
            work.version = version.now
            return True
        return False

    def stop(self, table: TableId, state: State, reason: str | None = None) -> None:
        """A generation ends here, one way or the other."""
        work = self._work[table]
        work.collecting = work.planning = False
        work.forget_keys()
        ended = replace(self.progress.tables[table], state=state, reason=reason, plan=None, cursor=None)
        ended = replace(ended, priority=0, rows_per_second_max=None, keys_ordered=None, to_repair=())
        whole_since = ended.since if state == "done" and not ended.has_base else ended.whole_since
        # What a later generation has read is right, whatever was lost before it began.
        is_mended = state == "done" and ended.gap is not None and ended.generation > ended.gap.generation
        gap = None if is_mended else ended.gap
        self._set(table, replace(ended, keys_since=None, whole_since=whole_since, gap=gap))

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────

    def begin_generation(self, table: TableId, next_offset: Offset, *, by_order: bool = False) -> None:
        """Read it from the start.

        `by_order`: because of a command, not because its rows changed; the last generation's throttle ends.
        """
        known = self.progress.tables[table]
        if by_order:
            known = replace(known, priority=0, rows_per_second_max=None)
        self._work[table] = Work(self._limits.keys_per_chunk, known.row_version or self._work[table].version)
        self._set(table, known.next_generation(next_offset))

    def pause(self, table: TableId) -> None:
        """It is not read for now, so its keys are not kept: the log has them."""
        known, work = self.progress.tables[table], self._work[table]
        work.forget_keys()
        work.collecting = known.collects_from is not None
        self._set(table, replace(known, state="paused"))

    def resume(self, table: TableId, partial: Iterable[KeySet | None]) -> None:
        """Continue reading it. `partial`: all keys of partial rows that arrived since its plan was requested."""
        known = self.progress.tables[table]
        for keys in partial:
            self._work[table].remember(keys)
        self._set(table, replace(known, state="waiting" if known.plan is None else "reading"))

    def order_keys(self, table: TableId, keys: KeySet, next_offset: Offset) -> None:
        """Have the rows with these keys read again. The log does not have the keys: keep them until they are read."""
        self.read_keys(table, keys, next_offset)
        known = self.progress.tables[table]
        if self._work[table].collecting:  # otherwise all of it will be read
            kept = keys if known.keys_ordered is None else keys.union(KeySet.from_text(known.keys_ordered))
            self._set(table, replace(known, keys_ordered=kept.distinct().to_text()))
            self.changed = True

    def order_repair(self, table: TableId, keys: KeySet, known_until: str | None, next_offset: Offset) -> None:
        """Have the rows with these keys repaired, even if the whole table will be read.

        The end of that generation would keep rows that the log has had since it began, right or wrong.
        """
        self._begin_keys(table, next_offset)
        known = self.progress.tables[table]
        order = RepairOrder(self.progress.next_repair, keys.distinct().to_text(), known_until)
        self._set(table, replace(known, to_repair=(*known.to_repair, order)))
        self.changed = True

    def prove(self, table: TableId, position: str, next_offset: Offset) -> None:
        """A comparison has shown that its rows are right, although changes of it were lost."""
        known = self.progress.tables[table]
        assert known.gap is not None  # noqa: S101 - otherwise the command does not fit
        self._set(table, replace(known, gap=replace(known.gap, proven=position, until=next_offset)))
        self.changed = True

    def attach(self, table: TableId, base: str, epoch: Epoch, next_offset: Offset, position: str) -> None:
        """Its rows were loaded another way.

        What was read of it no longer counts as a generation, so answers about that generation are too late.
        """
        known = self.progress.tables[table]
        self._work[table] = Work(self._limits.keys_per_chunk, known.row_version or self._work[table].version)
        gap = Gap(next_offset, known.generation + 1, epoch, "", position, base=base)
        # The state of a table that was completely read, so that only keys are read of it.
        attached = TableProgress(
            "done",
            gap.generation,
            since=next_offset,
            incarnation=known.incarnation,
            exhausted=True,
            row_version=known.row_version,
            shape=known.shape,
            gap=gap,
        )
        self._set(table, attached)
        self.changed = True

    def adjust(self, adjust: Adjust) -> None:
        known, rate = self.progress.tables[adjust.table], adjust.rows_per_second_max
        if adjust.reset:
            known = replace(known, priority=0, rows_per_second_max=None)
        self._set(
            adjust.table,
            replace(
                known,
                priority=known.priority if adjust.priority is None else adjust.priority,
                rows_per_second_max=known.rows_per_second_max if rate is None else rate,
            ),
        )
        self.changed = True
