"""Which tables are still to be read, and how far each one is; `chunk_choice` decides what to read next.

This module does not depend on windows, marks or the stream's order; see `cdcflow.capture.interleave.window_sequence`.
It owns the stored progress and the unstored facts about each table (`work`).

Rows that move. A plan is fixed at its start, so the range chunks miss a row if an update moves its new version to a
page that was already read, or above the bound. The log has that update, but perhaps not all of its columns. So as soon
as a plan is requested, the keys of changes with unchanged columns are remembered. Their rows are read by key (chunks of
kind "keys") after the ranges and before the table counts as done (W11), or before the next range if many keys wait.

How long must keys be remembered? When the window of the last range chunk closes, every row of the table either has all
of its columns in the log or a remembered key: a chunk showed it, or a change that moved it arrived. A later change with
unchanged columns alters neither: over a whole row it leaves a whole row, and a remembered key stays remembered. The
exception is a change of the key itself: its insert takes the unchanged columns from a row that may not be whole yet,
under a key that is not remembered, and a chunk that reads the old key no longer finds the row. So while keys are left
to read, the keys of such changes are remembered too (only those, or a busy table would never be done).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from cdcflow.capture.interleave.limits import FULL_PACE, Limits
from cdcflow.capture.interleave.messages import (
    Adjust,
    ChunkRead,
    RowVersion,
    Shape,
    Transactions,
)
from cdcflow.capture.interleave.progress import (
    MISSED_KEPT,
    CommandRecord,
    Gap,
    Progress,
    RepairOrder,
    RepairRecord,
    State,
    TableProgress,
)
from cdcflow.capture.interleave.reconcile import taken_up
from cdcflow.capture.interleave.work import Work
from cdcflow.model.change import KeySet
from cdcflow.model.position import Epoch, Offset, Position, position_text
from cdcflow.model.table import TableId

UNKNOWN = "the log no longer records which of its rows are partial"
TOO_MANY = "too many keys of partial rows"


class Backlog:
    """The tables, each with its progress.

    `changed`: the state of some table differs from the last cut. `work`: the unstored facts about each table. `queue`:
    the tables that are being read, by priority, then alphabetically. `next_offset`: the log's next offset at the start.
    `partial`: the keys of partial rows that the caller found in the log (None: see the machine).
    """

    def __init__(
        self,
        stored: Progress,
        tables: Mapping[TableId, Shape],
        limits: Limits,
        next_offset: Offset,
        partial: Mapping[TableId, KeySet | None],
    ) -> None:
        self.limits = limits
        self.pace = FULL_PACE
        self.progress = replace(stored, tables=taken_up(stored, tables, next_offset, backfill_new=limits.backfill_new))
        self.changed = self.progress != stored
        self._json: dict[str, object] | None = None
        self._newer: set[TableId] = set()  # tables whose entry in `_json` is outdated
        self._lacking = self.progress.lacking
        self.queue = self._read_order()
        self.work = {table: Work(limits.keys_per_chunk) for table in self.progress.tables}
        for table, known in self.progress.tables.items():
            self.work[table].collecting = known.collects_from is not None
        for table, keys in partial.items():
            if keys is not None and self.work[table].collecting:
                self.work[table].remember(keys)

    def use(self, limits: Limits) -> None:
        """Apply other limits. A table that waits because of the old rate no longer waits."""
        if limits.rows_per_second_max != self.limits.rows_per_second_max:
            for work in self.work.values():
                work.not_before_us = 0
        self.limits = limits

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
        """Return the progress in the form stored with a cut.

        It is the same object until something changes; then a new one, with the same entries for unchanged tables.
        """
        if self._json is None:
            self._json = self.progress.to_json()
        elif self._newer:
            tables = cast(dict[str, object], self._json["tables"])
            newer = {str(table): self.progress.tables[table].to_json(table) for table in self._newer}
            self._json = {**self._json, "tables": {**tables, **newer}}
        self._newer.clear()
        return self._json

    def set(self, table: TableId, progress: TableProgress) -> None:
        """Store a table's progress."""
        before = self.progress.tables[table]
        self.progress = replace(self.progress, tables={**self.progress.tables, table: progress})
        self._newer.add(table)
        if progress.lacks_changes != before.lacks_changes:
            self._lacking = self.progress.lacking
        if (before.active, before.priority) != (progress.active, progress.priority):
            self.queue = self._read_order()
        if (before.state, before.generation) != (progress.state, progress.generation):
            self.changed = True

    def _read_order(self) -> list[TableId]:
        tables = self.progress.tables
        return sorted((t for t, p in tables.items() if p.active), key=lambda t: (-tables[t].priority, t))

    # ── keys, and the ends of generations ─────────────────────────────────────────────────────────────────────────────

    def remember_partial(self, run: Transactions) -> None:
        """Remember the keys of rows with unchanged columns, for the tables that are being read.

        Keys of a paused table are not remembered: when it is resumed they are looked up in the log.
        """
        for table in self.queue:
            known, work = self.progress.tables[table], self.work[table]
            if work.collecting and known.state != "paused" and not known.whole:
                work.remember(run.moved_keys(table) if known.exhausted else run.partial_keys(table))

    def read_keys(self, table: TableId, keys: KeySet, next_offset: Offset) -> None:
        """If the table was already read or is being read, have the rows with these keys read: the stream delivers them
        incomplete."""
        work = self.work[table]
        self._begin_keys(table, next_offset)
        if work.collecting and self.progress.tables[table].state != "paused":
            work.remember(keys)

    def _begin_keys(self, table: TableId, next_offset: Offset) -> None:
        """If the table was already read completely, have only the rows of remembered keys read from it."""
        known, work = self.progress.tables[table], self.work[table]
        if known.state == "done":
            work.forget_keys()
            work.collecting = True
            self.set(table, replace(known, state="waiting", keys_since=next_offset))

    def too_many_keys(self) -> list[TableId]:
        """Return the tables for which more keys wait than may be kept."""
        return [table for table in self.queue if self.work[table].has_more_than(self.limits.keys_max)]

    def rewritten(self, table: TableId) -> None:
        """Read a table from the start, because it was rewritten and its plan no longer fits it (W27).

        Keys and `since` are kept, unless the table's row version has changed at the next plan.
        """
        known = self.progress.tables[table]
        again = replace(
            known, state="waiting", plan=None, cursor=None, units_done=0, rows=0, exhausted=False, keys_since=None
        )
        self.set(table, again)

    def keep_version(self, version: RowVersion) -> bool:
        """Record the row version at which the rows read so far are right; later versions are compared with it.

        Return true if nothing was read yet, so that the table must not be planned before a mark written now has
        arrived.
        """
        known, work = self.progress.tables[version.table], self.work[version.table]
        if known.plan is not None or known.state == "done":
            self.set(version.table, replace(known, row_version=version.now))
        elif known.active and not work.collecting and work.version != version.now:
            work.version = version.now
            return True
        return False

    def stop(self, table: TableId, state: State, reason: str | None = None) -> None:
        """End a table's generation in `state`: "done", or another state, with the `reason` for ending early."""
        work = self.work[table]
        work.collecting = work.planning = False
        work.forget_keys()
        known = self.progress.tables[table]
        stale = None if state == "done" else known.stale
        ended = replace(known, state=state, reason=reason, plan=None, cursor=None, stale=stale)
        ended = replace(ended, priority=0, rows_per_second_max=None, keys_ordered=None, to_repair=())
        whole_since = ended.since if state == "done" and not ended.has_base else ended.whole_since
        # A generation that began after changes were lost has read every row again, so the gap is closed.
        is_mended = state == "done" and ended.gap is not None and ended.generation > ended.gap.generation
        gap = None if is_mended else ended.gap
        self.set(table, replace(ended, keys_since=None, whole_since=whole_since, gap=gap))

    def lose_changes(self, table: TableId, epoch: Epoch, next_offset: Offset, position: Position, by: str) -> None:
        """Record that the log lacks changes of a table from offset `next_offset`; they begin after `position` in the
        source's log. `by`: see `Gap`."""
        known = self.progress.tables[table]
        before = None if known.gap is None or known.gap.base or not known.in_doubt else known.gap
        gap = Gap(
            next_offset if before is None else before.offset,
            known.generation,
            epoch,
            position.text if before is None else before.before,
            "",
            by=by,
        )
        missed = (*known.missed, (next_offset, known.generation))[-MISSED_KEPT:]
        self.set(table, replace(known, whole_since=None, gap=gap, missed=missed))
        self.changed = True

    @property
    def lacking(self) -> frozenset[TableId]:
        """The tables whose changes are not captured until they are read again."""
        return self._lacking

    def record_repair(self, read: ChunkRead, first: Offset) -> None:
        """Record a chunk that repairs rows, which are in the log from offset `first`, and keep the keys that are left
        to repair."""
        table, known = read.chunk.table, self.progress.tables[read.chunk.table]
        assert read.chunk.keys is not None  # noqa: S101 - a repairing chunk always has keys
        assert read.run is not None  # noqa: S101 - checked when it arrived
        order, *others = known.to_repair
        _, left = KeySet.from_text(order.keys).take(len(read.chunk.keys))
        if read.keys_left is not None:
            left = read.keys_left.union(left)
        if len(left):
            others.insert(0, replace(order, keys=left.to_text()))
        self.set(table, replace(known, to_repair=tuple(others)))
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
            read.run.last_position.text,
        )
        self._people(self.progress.with_repair(record))

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_generation(
        self, table: TableId, next_offset: Offset, *, by_order: bool = False, spaced: bool = False
    ) -> None:
        """Begin a new generation of a table, that is, read the table from the start.

        `by_order`: a command requests it, not a change of the table's rows; the priority and rate of the last
        generation then no longer hold. `spaced`: it is not planned before the table's rest is over (see `rest`).
        """
        known = self.progress.tables[table]
        if by_order:
            known = replace(known, priority=0, rows_per_second_max=None)
        before = self.work[table]
        self.work[table] = Work(
            self.limits.keys_per_chunk,
            known.row_version or before.version,
            statements_before=before.statements_before,
            spaced=spaced,
            rest_until_us=before.rest_until_us,
            read_before_us=before.read_us or before.read_before_us,
        )
        self.set(table, known.next_generation(next_offset))

    # ── statements that may have changed rows ─────────────────────────────────────────────────────────────────────────

    def suspect(self, table: TableId, next_window: int) -> None:
        """Note that a statement may have changed rows of a table without the log having them. `next_window`: the number
        of the next window, whose marks are not written yet."""
        self.work[table].statements_before = next_window
        known = self.progress.tables[table]
        if known.stale != "pending":  # such statements may arrive all the time
            self.set(table, replace(known, stale="pending"))

    def gather(self, table: TableId, now_us: int) -> None:
        """Let the next spaced generation of a table begin a little later, so that it also covers statements that follow
        in quick succession."""
        work = self.work[table]
        work.rest_until_us = max(work.rest_until_us, now_us + self.limits.statements_gather_us)

    def rest(self, table: TableId, now_us: int) -> None:
        """Let the next spaced generation of a table begin only after a rest.

        A session may write such statements all the time, and then every suspected table is read again and again. The
        rest is as long as the generation that ends now was read, and twice as long as all others together, each counted
        as no longer than this one. So tables of the same size are read for half of the time together, and a small table
        does not wait for a large one.
        """
        own = self.work[table].read_us
        others = sum(
            min(own, max(work.read_us, work.read_before_us))
            for other, work in self.work.items()
            if other != table and self.progress.tables[other].stale
        )
        self.work[table].rest_until_us = now_us + max(self.limits.statements_pause_us, own + 2 * others)

    # ── pauses and keys, by command ───────────────────────────────────────────────────────────────────────────────────

    def pause(self, table: TableId) -> None:
        """Pause a table. Its keys are not kept in memory during the pause: the log has them."""
        known, work = self.progress.tables[table], self.work[table]
        work.forget_keys()
        work.collecting = known.collects_from is not None
        self.set(table, replace(known, state="paused"))

    def resume(self, table: TableId, partial: Iterable[KeySet | None]) -> None:
        """Continue reading a table. `partial`: the keys of all partial rows that arrived since its plan was
        requested."""
        known = self.progress.tables[table]
        for keys in partial:
            self.work[table].remember(keys)
        self.set(table, replace(known, state="waiting" if known.plan is None else "reading"))

    def order_keys(self, table: TableId, keys: KeySet, next_offset: Offset) -> None:
        """Have the rows with these keys read again. The log does not have the keys: keep them until they are read."""
        self.read_keys(table, keys, next_offset)
        known = self.progress.tables[table]
        if self.work[table].collecting:  # otherwise the whole table will be read
            kept = keys if known.keys_ordered is None else keys.union(KeySet.from_text(known.keys_ordered))
            self.set(table, replace(known, keys_ordered=kept.distinct().to_text()))
            self.changed = True

    def order_repair(self, table: TableId, keys: KeySet, known_until: Position | None, next_offset: Offset) -> None:
        """Have the rows with these keys repaired, even if the whole table will be read.

        Reading the whole table is not enough: when its generation ends, rows that the log got after it began are kept,
        right or wrong.
        """
        self._begin_keys(table, next_offset)
        known = self.progress.tables[table]
        order = RepairOrder(self.progress.next_repair, keys.distinct().to_text(), position_text(known_until))
        self.set(table, replace(known, to_repair=(*known.to_repair, order)))
        self.changed = True

    def prove(self, table: TableId, position: Position, next_offset: Offset) -> None:
        """Record that a comparison has shown the table's rows to be right, although changes of it were lost."""
        known = self.progress.tables[table]
        assert known.gap is not None  # noqa: S101 - otherwise the command does not fit
        self.set(table, replace(known, gap=replace(known.gap, proven=position.text, until=next_offset)))
        self.changed = True

    def attach(self, table: TableId, base: str, epoch: Epoch, next_offset: Offset, position: Position | None) -> None:
        """Record that the rows of a table were loaded another way.

        Its current generation ends: chunks of it that are still being read are ignored when they arrive.
        """
        known = self.progress.tables[table]
        self.work[table] = Work(self.limits.keys_per_chunk, known.row_version or self.work[table].version)
        gap = Gap(next_offset, known.generation + 1, epoch, "", position_text(position) or "", base=base)
        # This is the state of a table that was read completely, so from now on only remembered keys are read from it.
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
        self.set(table, attached)
        self.changed = True

    def adjust(self, adjust: Adjust) -> None:
        known, rate = self.progress.tables[adjust.table], adjust.rows_per_second_max
        if adjust.reset:
            known = replace(known, priority=0, rows_per_second_max=None)
        self.set(
            adjust.table,
            replace(
                known,
                priority=known.priority if adjust.priority is None else adjust.priority,
                rows_per_second_max=known.rows_per_second_max if rate is None else rate,
            ),
        )
        self.changed = True
