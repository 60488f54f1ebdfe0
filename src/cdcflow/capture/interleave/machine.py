"""The machine that brings chunks of existing rows and the live log of a source into one order.

    source log   ──c──c──[low]──c──c──c──c──[high]──c──▶     c: a committed transaction
    chunk                    rows read here
    change log   ──c──c──c──│ r r r r c──c──c │──c──▶        │: a cut; r: rows of the chunk

`window_sequence` explains in which order rows and changes enter the log, and why that is right. `backlog` decides whose
turn it is, and which rows must be read by key. This module handles changes that the source and operators make to the
tables during a backfill.

Rows that a statement changes without writing them to the log (ALTER TYPE … USING). The source provides a *row version*,
which differs after any such statement; rows are read again if the version they were read at is not the current one. The
statement may give a row another key, and then only the sweep of the new generation removes the row under the old one:
so nothing from before the statement may come after `since`. Hence the order: a version V is known, then a mark is
written and arrives, then `since` is taken, and then the table is planned at the same V. Then no such statement ran in
between, and everything before V is before `since`. If the plan has another version, that version becomes the known one,
and the steps start again.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.capture.interleave.allowed_commands import TableOrder, outcome_of, outcome_of_capture
from cdcflow.capture.interleave.backlog import TOO_MANY, UNKNOWN, Backlog
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits, ReadingPace
from cdcflow.capture.interleave.messages import (
    Adjust,
    Advanced,
    Answered,
    Attach,
    Backfill,
    Cancel,
    ChangesRefused,
    ChunkFailed,
    ChunkRead,
    Command,
    Committed,
    Effect,
    Forget,
    Input,
    Late,
    MarkSeen,
    MarkWritten,
    Order,
    Outcome,
    Pause,
    PauseCapture,
    Planned,
    Proven,
    Repair,
    Reread,
    Resume,
    ResumeCapture,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    RowVersion,
    Shape,
    SnapshotTaken,
    Tick,
)
from cdcflow.capture.interleave.progress import CommandRecord, Progress, State
from cdcflow.capture.interleave.tail import Tail
from cdcflow.capture.interleave.window_sequence import WindowSequence
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Position
from cdcflow.model.table import TableId


class Interleave:
    """Decides what goes into the change log, in which order, and what to request from the source. Pure.

    One machine serves one connection of the stream, starting at a checkpoint. After an exception from `step` it must
    not be used again.

    `tables`: the tables captured now, with their shape (its `incarnation`, if it has one, distinguishes a table from
    another of the same name). `delivered`: ids that earlier epochs delivered and that may still be invisible.
    `partial`: for each table that is being read, the keys of its partial rows in the log since its `since`; None if
    they are unknown, so that the table is read from the start.
    """

    def __init__(
        self,
        *,
        epoch: Epoch,
        checkpoint: Checkpoint,
        tables: Mapping[TableId, Shape],
        limits: Limits,
        delivered: Uint64s,
        partial: Mapping[TableId, KeySet | None],
    ) -> None:
        self._epoch = epoch
        self._tail = Tail(checkpoint.next_offset, checkpoint.next_transaction, checkpoint.cut, checkpoint.position)
        stored = Progress.from_json(checkpoint.progress)
        self._backlog = Backlog(stored, tables, limits, checkpoint.next_offset, partial)
        seen = Delivered(delivered, limits.delivered_max)
        self._windows = WindowSequence(epoch, self._backlog, self._tail, seen)
        for table, keys in partial.items():
            if keys is None and (known := self._backlog.get(table)) is not None and known.collects_from is not None:
                self._windows.again(table, UNKNOWN)

    def step(self, given: Input) -> list[Effect]:
        """Take one input and return the effects to carry out, in this order. Effects on the log come first.

        Raises:
            InvariantViolated: the input is impossible; stop, nothing more may be written.
        """
        self._take(given)
        self._windows.go_on()
        is_due = self._tail.due or (self._backlog.changed and not self._windows.holding)
        if is_due and self._tail.position is not None:  # otherwise the source was never read: no position
            self._tail.make_cut(self._backlog.json())
            self._backlog.changed = False
        effects = self._tail.effects + self._windows.asks
        self._tail.effects, self._windows.asks = [], []
        return effects

    @property
    def is_reading(self) -> bool:
        """Whether chunks are to be read now of some table: one that is neither paused nor resting."""
        tables = self.progress.tables.items()
        return any(p.active and p.state != "paused" and not self._windows.is_resting(t) for t, p in tables)

    def use(self, limits: Limits) -> None:
        """Apply other limits, beginning with the next chunk."""
        self._backlog.use(limits)

    def keep_pace(self, pace: ReadingPace) -> None:
        """Read at this pace, beginning with the next window."""
        self._backlog.pace = pace

    @property
    def progress(self) -> Progress:
        """How far each table is. Any thread may call it."""
        return self._backlog.progress

    @property
    def held_size(self) -> tuple[int, int]:
        """The rows and bytes that are held because a window is open. Any thread may call it."""
        window = self._windows.window
        if window is None:
            return 0, 0
        return sum(run.rows for run in tuple(window.held)), window.held_bytes

    @property
    def window_tables(self) -> tuple[TableId, ...]:
        """The tables of the open window; empty if no window is open. Any thread may call it."""
        window = self._windows.window
        return () if window is None else tuple(window.chunks)

    def _take(self, given: Input) -> None:
        match given:
            case Committed(run):
                self._windows.add_committed(run)
            case MarkSeen():
                self._windows.mark_seen(given)
            case Advanced(position, commit_ts):
                self._windows.advance(position, commit_ts)
            case RowsFilled():
                self._windows.remember_delivered(given.xids)
                self._rows_filled(given)
            case RowsIncomplete(table, keys, _):
                self._rows_incomplete(table, keys)
            case ChangesRefused():
                self._windows.lose_changes(given)
            case RowsCompared(found, refused):
                self._compare_refused(refused)
                for version in found:
                    self._compare_version(version, is_shown_again=True)
            case Tick(now_us):
                self._windows.tick(now_us)
            case MarkWritten(mark):
                self._windows.mark_written(mark)
            case Planned():
                self._windows.accept_plan(given)
            case ChunkRead():
                self._windows.chunk_read(given)
            case ChunkFailed():
                self._windows.chunk_failed(given)
            case SnapshotTaken(visibility):
                self._windows.snapshot_taken(visibility)
            case Command():
                self._command(given)
            case Forget(table):
                self._forget(table)
            case Backfill() | Pause() | Resume() | Cancel() | Adjust() | Reread() | Repair() | Proven() | Attach():
                self._order(given)
            case PauseCapture() | ResumeCapture():
                self._order(given)

    # ── the source ──────────────────────────────────────────────────────────────────────────────────────────

    def _compare_version(self, version: RowVersion, *, is_shown_again: bool) -> None:
        """Read a table again if its row version shows that its rows changed without being logged.

        `is_shown_again`: the next check of the catalog would report the same, so the comparison is ignored if the
        version in the progress has changed since. A change that only the stream reports is never ignored.
        """
        known = self._backlog.get(version.table)
        if known is None or (known.row_version != version.known and is_shown_again):
            return  # planned again since then, or another comparison was quicker
        if version.changed:
            self._rows_changed(version.table)
        # Rows may have changed and the version be the same: a partition was added, written to, and dropped.
        if self._backlog.keep_version(version) or version.changed:
            self._windows.wait_for_mark()

    def _compare_refused(self, refused: Mapping[TableId, str]) -> None:
        """Fail the tables that cannot be captured now, and read those again that can be captured again."""
        position = self._tail.position or Position("")
        for table, reason in refused.items():
            self._windows.lose_changes(ChangesRefused(table, reason, position, is_checked=True))
        for table in [t for t, known in self.progress.tables.items() if known.is_refused and t not in refused]:
            self._windows.read_refused(table)

    def _rows_filled(self, filled: RowsFilled) -> None:
        match filled:
            case RowsFilled(table, swapped=True):
                self._on_swap(table)
            case RowsFilled(table, possible=True):
                self._rows_may_have_changed(table)
            case RowsFilled(table, _, None):
                self._rows_changed(table)
            case RowsFilled(_, _, RowVersion() as version):
                self._compare_version(version, is_shown_again=not version.changed)

    def _rows_changed(self, table: TableId) -> None:
        # A table whose backfill failed is read again too: the statement may have fixed the cause. And if it emptied the
        # table, the table would otherwise keep its old rows.
        if not self._is_unread(table, "cancelled", "forgotten"):
            self._windows.again(table, "a statement changed its old rows")
            self._windows.wait_for_mark()  # rows from before the statement may follow in the same batch

    def _rows_may_have_changed(self, table: TableId) -> None:
        known = self._backlog.get(table)
        if known is None:
            return
        if known.state == "cancelled" and known.stale != "pending":  # reported once, not for each statement
            self._windows.tell("rows changed unseen", table=str(table), state=known.state)
        self._windows.suspect(table)

    def _on_swap(self, table: TableId) -> None:
        known = self._backlog.get(table)
        if known is not None and known.active:
            self._windows.again(table, "another table took its name while it was read")
            self._windows.wait_for_mark()  # as above

    def _rows_incomplete(self, table: TableId, keys: KeySet) -> None:
        # A table whose backfill failed is left alone: otherwise every such row would start a backfill that fails again.
        # Its rows count as unproven in any case, until an operator requests a backfill.
        if self._is_unread(table, "cancelled", "failed", "forgotten"):
            return
        known = self._backlog.progress.tables[table]
        if known.whole:
            self._windows.again(table, "rows came without all of their columns, and it has no key to read them by")
            return
        if known.state == "done":
            self._windows.tell("keys to be read", table=str(table), reason="rows came without all of their columns")
        self._backlog.read_keys(table, keys, self._tail.next_offset)

    def _is_unread(self, table: TableId, *states: State) -> bool:
        """Whether this table is not being read, because it is unknown or in one of these states. If so, report an
        event."""
        known = self._backlog.get(table)
        if known is None or known.state in states:
            self._windows.tell("rows changed unseen", table=str(table), state=known.state if known else "unknown")
            return True
        return False

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────

    def _command(self, command: Command) -> None:
        """Carry out a command, answer it, and store its record."""
        outcomes = tuple(outcome for order in command.orders for outcome in self._order(order))
        commands = self._backlog.progress.commands
        number = commands[-1].number + 1 if commands else 1
        told = {str(o.table or "capture"): f"{o.outcome}: {o.reason}" if o.reason else o.outcome for o in outcomes}
        record = CommandRecord(number, command.at_us, command.asked_by, command.op, told, command.details)
        self._backlog.note(record)
        # The answer is queued among the effects on the log, so that the cut with the record follows it.
        self._tail.effects.append(Answered(command.id, number, outcomes))

    def _order(self, order: Order) -> list[Outcome]:
        """Carry out one order, table by table. If it does not fit a table, nothing changes there; the outcome gives the
        reason."""
        if isinstance(order, Late):
            return [order.outcome]
        if isinstance(order, PauseCapture | ResumeCapture):
            found = outcome_of_capture(order, self._backlog.progress)
            if found.fits:
                self._pause_capture(isinstance(order, PauseCapture))
            return [found]
        tables = order.tables if isinstance(order, Backfill) else (order.table,)
        return [self._order_table(order, table) for table in tables]

    def _order_table(self, order: TableOrder, table: TableId) -> Outcome:
        known = self._backlog.get(table)
        found = outcome_of(order, table, known)
        if not found.fits:
            state = "unknown" if known is None else known.state
            self._windows.tell("order ignored", order=type(order).__name__.lower(), table=str(table), state=state)
            return found
        match order:
            case Backfill():
                self._windows.leave(table)
                self._backlog.begin_generation(table, self._tail.next_offset, by_order=True)
            case Pause():
                self._windows.leave(table)
                self._backlog.pause(table)
            case Resume():
                self._resume(table, order.partial)
            case Cancel():
                self._windows.stop(table, "cancelled", "cancelled by order")
            case Adjust():
                self._backlog.adjust(order)
            case Reread():
                self._backlog.order_keys(table, order.keys, self._tail.next_offset)
            case Repair():
                self._backlog.order_repair(table, order.keys, order.known_until, self._tail.next_offset)
            case Proven():
                self._backlog.prove(table, order.position, self._tail.next_offset)
            case Attach():
                self._windows.leave(table)
                self._backlog.attach(table, order.base, self._epoch, self._tail.next_offset, self._tail.position)
        return found

    def _forget(self, table: TableId) -> None:
        if self._backlog.get(table) is None:
            self._windows.tell("order ignored", order="forget", table=str(table), state="unknown")
        else:
            self._windows.stop(table, "forgotten")

    def _pause_capture(self, paused: bool) -> None:
        """Pause or resume the capture. Either abandons the window, so that nothing is held and a cut is possible at
        once."""
        self._windows.leave_all()
        self._backlog.pause_capture(paused)
        self._windows.tell("capture paused" if paused else "capture resumed")

    def _resume(self, table: TableId, partial: KeySet | None) -> None:
        window = self._windows.window
        held = () if window is None else window.held
        self._backlog.resume(table, (partial, *(run.partial_keys(table) for run in held)))
        if partial is None and self._backlog.progress.tables[table].collects_from is not None:
            self._windows.again(table, UNKNOWN)
        for crowded in self._backlog.too_many_keys():
            self._windows.again(crowded, TOO_MANY)
