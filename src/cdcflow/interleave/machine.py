"""The machine that puts chunks of existing rows and the live log of a source into one order.

    source log   ──c──c──[low]──c──c──c──c──[high]──c──▶     c: a committed transaction
    chunk                    rows read here
    change log   ──c──c──c──│ r r r r c──c──c │──c──▶        │: a cut; r: rows of the chunk

Write low; when it is written read the chunk, in one snapshot; when that is answered write high. (The first two are
asked for together: the source reads while the machine is still busy with the chunk before.) What arrives between
low and high *in the log* is held from the first transaction on that touches a table of the window; when high comes
back through the log, the chunk's rows go first, then what was held, then a cut. Readers see all of it or nothing.

Why this is right, for a row R that the chunk shows with the value of its snapshot S:
- Changes of R that S does not see commit after S, so after low; they are held and come after R's row. They are replayed
  over it column by column, so a change that omits columns (unchanged TOAST) finds them there (W08).
- Changes of R that S sees are either held, and replayed over a row that has them already: the same values again,
  for c, u and d alike, and the last one wins. Or they came before low, and R's row replaces what they left. One kind
  of change is not harmless to repeat (a key change that omits columns); `Window.held_before` deals with it.
- Changes that came before low and that S does not see would be lost under R's row (W01, W13). So they are looked
  for: every id delivered before low must be visible to every snapshot of the chunk. Else it is read again, once a
  snapshot has seen them. A plan's bound is held to the same: what was delivered before the plan was asked for has
  offsets that the sweep removes, so a bound (a greatest key) that was read without it is asked for again.
- S may see a commit that a crash of the server then erases (W02). The rows are let go only when high has come back
  through the log, which the server sends only once it is durable, and everything before it with it. This needs one
  machine per connection of the stream: after a lost connection a new machine with a new epoch starts, and whatever
  the old one had read is gone.
- What arrives after low but before the first transaction that touches a table of the window commutes with the chunk, so
  it is not held up: a quiet table's backfill costs no latency.

Rows that move. A plan is fixed at its start, so the range chunks miss a row whose new version an update puts on a page
that was read already, or behind the bound. The log carries that update, but perhaps not all of its columns. So from
the moment a plan is asked for, the keys of changes with unchanged columns are remembered, and read by key after the
ranges (chunks of kind "keys") before the table counts as done (W11), or before the next range, when many of them wait.
How long must they be remembered? When the window of the last range chunk closes, every row of the table either has all
of its columns in the log or a remembered key: it was shown by a chunk, or a change came that moved it. From then on a
change with unchanged columns changes neither: over a whole row it leaves a whole row, and a remembered key stays
remembered. Except when it changes the key itself: its insert takes the unchanged columns from a row that may not be
whole yet, under a key that is not remembered, and a chunk that looks for the old key no longer finds it. So while keys
are left to read, the keys of such changes (and only those, or a busy table would never be done) are remembered too.

Rows that a statement changes without a word in the log (ALTER TYPE … USING). Its source tells a *row version*, which is
another one after any such statement; rows are read again when the version they were read at is not today's. A row
may get another key by it, and then only the sweep of the new generation removes what stands under the old one: so
nothing from before the statement may come behind `since`. Hence a version V must be known, then a mark written and
come back, then `since` be taken, and then the table be planned at the same V. In between there was no statement, and
what was before V is before `since`. When V is another one at the plan, it counts as known, and so on from there.

Hazards that look harmless: forgetting a delivered id because of a snapshot newer than one still under way
(see `delivered`); acknowledging a position beyond a held transaction; a mark of an earlier epoch; answers that
arrive after their window was given up, which are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cdcflow.errors import InvariantViolated
from cdcflow.interleave.backlog import TOO_MANY, UNKNOWN, Backlog, Limits
from cdcflow.interleave.delivered import Delivered
from cdcflow.interleave.messages import (
    Adjust,
    Advanced,
    Answered,
    Append,
    Backfill,
    Cancel,
    Chunk,
    ChunkFailed,
    ChunkRead,
    Command,
    Committed,
    Cut,
    Effect,
    Event,
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
    ReadChunk,
    Reread,
    Resume,
    ResumeCapture,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    RowVersion,
    Shape,
    SnapshotTaken,
    TakeSnapshot,
    Tick,
    Transactions,
    WriteMark,
)
from cdcflow.interleave.orders import TableOrder, outcome_of, outcome_of_capture
from cdcflow.interleave.progress import CommandRecord, Progress, State
from cdcflow.interleave.window import Window, split_runs, token, window_number
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, Token
from cdcflow.model.table import TableId

__all__ = ["Interleave", "Limits"]


@dataclass(slots=True)
class _Tail:
    """The end of the change log: the numbers that come next, and the position of everything before."""

    next_offset: Offset
    next_transaction: int
    cut: int
    position: Position | None
    effects: list[Effect] = field(default_factory=list)
    due: bool = False

    def append(self, run: Transactions) -> None:
        """Transactions without rows leave no trace in the log and get no number."""
        if run.rows:
            self.effects.append(Append(run, self.next_offset, self.next_transaction))
            self.next_offset = Offset(self.next_offset + run.rows)
            self.next_transaction += run.transactions

    def reach(self, position: Position) -> None:
        """Everything up to this position is appended: a cut is due."""
        self.position = position
        self.due = True


class Interleave:
    """Decides what goes into the change log, in which order, and what to ask of the source. Pure.

    One machine serves one connection of the stream, from a checkpoint on. After an exception from `step` it must not
    be used again.

    `tables` are those captured now, with their shape (its `incarnation`, where it has one, tells a table from another
    of the same name). `delivered` are ids that earlier epochs delivered and that may still be invisible; `partial`
    are the keys of partial rows in the log since the `since` of each table that is being read; None: nobody knows them,
    so that the table is read from the start.
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
        self._limits = limits
        self._tail = _Tail(checkpoint.next_offset, checkpoint.next_transaction, checkpoint.cut, checkpoint.position)
        self._delivered = Delivered(delivered, limits.delivered_max)
        self._window: Window | None = None
        self._windows = 0
        # No table is planned before the low mark of this window, or of a later one, has come back (0: it has).
        self._caught_up_by = 0 if epoch == 1 else 1
        self._mark_not_before_us = 0
        self._is_taking_snapshot = False
        self._now_us = 0
        self._asks: list[Effect] = []
        stored = Progress.from_json(checkpoint.progress)
        self._backlog = Backlog(stored, tables, limits, checkpoint.next_offset, partial)
        for table, keys in partial.items():
            if keys is None and (known := self._backlog.get(table)) is not None and known.collects_from is not None:
                self._again(table, UNKNOWN)

    def step(self, given: Input) -> list[Effect]:
        """Take one input and say what to do, in this order. What goes to the log comes first.

        Raises:
            InvariantViolated: the input cannot be; stop, nothing more may be written.
        """
        self._take(given)
        if self._window is None and not self._backlog.progress.capture_paused:
            self._open_window()
        if self._delivered.wants_snapshot():
            self._ask_snapshot()
        if self._tail.due or (self._backlog.changed and not self._holding):
            self._cut()
        effects = self._tail.effects + self._asks
        self._tail.effects, self._asks = [], []
        return effects

    @property
    def is_reading(self) -> bool:
        """Chunks are still to be read, and nobody paused all of them."""
        return any(p.active and p.state != "paused" for p in self.progress.tables.values())

    def use(self, limits: Limits) -> None:
        """Go on with other limits from the next chunk on."""
        self._limits = limits
        self._backlog.use(limits)

    @property
    def progress(self) -> Progress:
        """How far each table is. May be asked for from any thread."""
        return self._backlog.progress

    @property
    def held(self) -> tuple[int, int]:
        """Rows and bytes of what is held because a window is open. May be asked for from any thread."""
        window = self._window
        if window is None:
            return 0, 0
        return sum(run.rows for run in tuple(window.held)), window.held_bytes

    @property
    def window_tables(self) -> tuple[TableId, ...]:
        """The tables of the window that is open; none: none is. May be asked for from any thread."""
        window = self._window
        return () if window is None else tuple(window.chunks)

    def _take(self, given: Input) -> None:
        match given:
            case Committed(run):
                self._committed(run)
            case MarkSeen():
                self._mark_seen(given)
            case Advanced(position):
                if not self._holding and position != self._tail.position:
                    self._tail.reach(position)
            case RowsFilled(table, swapped=True):
                self._swapped(table)
            case RowsFilled(table, _, None):
                self._rows_changed(table)
            case RowsFilled(_, _, RowVersion() as version):
                self._compared(version)
            case RowsIncomplete(table, keys, _):
                self._rows_incomplete(table, keys)
            case RowsCompared(found):
                for version in found:
                    self._compared(version)
            case Tick(now_us):
                if now_us < self._now_us:
                    raise InvariantViolated(f"the clock went back from {self._now_us} to {now_us} microseconds")
                self._now_us = now_us
            case MarkWritten(mark):
                self._mark_written(mark)
            case Planned():
                self._planned(given)
            case ChunkRead():
                self._chunk_read(given)
            case ChunkFailed():
                self._chunk_failed(given)
            case SnapshotTaken(visibility):
                self._is_taking_snapshot = False
                self._delivered.seen(visibility)
                if self._window is None:
                    self._delivered.forget()
            case Command():
                self._command(given)
            case Forget(table):
                self._forget(table)
            case Backfill() | Pause() | Resume() | Cancel() | Adjust() | Reread() | PauseCapture() | ResumeCapture():
                self._order(given)

    # ── the stream ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _holding(self) -> bool:
        return self._window is not None and bool(self._window.held)

    def _committed(self, run: Transactions) -> None:
        if not run.transactions:
            return
        self._delivered.add(run.xids)
        self._backlog.remember_partial(run)
        for table in self._backlog.too_many_keys():
            self._again(table, TOO_MANY)
        window = self._window
        if window is not None and run.rows:
            window.live = True
        if window is None or window.before is None:
            self._release(run)
            return
        first = 0 if window.held else run.first_touching(window.tables)
        if first is None:
            self._release(run)
            return
        passing, touching = run.split_at(first)
        if passing.transactions:
            self._release(passing)
        window.hold(touching)
        for table in sorted(window.tables):
            if (reason := window.conflict(table, (touching,))) is not None:
                self._give_up(table, reason)
        if window.held_bytes > self._limits.held_bytes_max:
            self._give_up_overflow(window)

    def _release(self, run: Transactions) -> None:
        self._tail.append(run)
        self._tail.reach(run.last_position)

    def _mark_seen(self, seen: MarkSeen) -> None:
        number = window_number(seen.token, self._epoch)
        window = self._window
        if number is not None and number > self._windows:
            raise InvariantViolated(f"mark {seen.token} came back, but window {self._windows} is the last one opened")
        if number is None or window is None or number != window.number:
            self._pass(seen.position)
        elif seen.token == window.low:
            self._low_seen(window, seen)
        else:
            self._high_seen(window, seen)

    def _compared(self, version: RowVersion) -> None:
        known = self._backlog.get(version.table)
        if known is None or known.row_version != version.known:
            return  # planned again meanwhile
        if version.changed:
            self._rows_changed(version.table)
        # What changed rows may have left the version as it was: a partition that came, was written to, and is gone.
        if self._backlog.keep_version(version) or version.changed:
            self._wait_for_mark()

    def _wait_for_mark(self) -> None:
        """Plan nothing until a mark has come back that is written from now on."""
        self._caught_up_by = self._windows + 1

    def _rows_changed(self, table: TableId) -> None:
        # Also where the reading failed: the statement may have mended what it failed at, and a table that it emptied
        # would stay empty.
        if not self._is_unread(table, "cancelled", "forgotten"):
            self._again(table, "a statement changed its old rows")
            self._wait_for_mark()  # rows from before the statement may be in the same batch, behind this

    def _swapped(self, table: TableId) -> None:
        known = self._backlog.get(table)
        if known is not None and known.active:
            self._again(table, "another table took its name while it was read")
            self._wait_for_mark()  # as above

    def _rows_incomplete(self, table: TableId, keys: KeySet) -> None:
        # Not where the reading failed: it would be tried and fail anew with every such row. None of its rows is proven
        # to be right before somebody orders to read it.
        if self._is_unread(table, "cancelled", "failed", "forgotten"):
            return
        known = self._backlog.progress.tables[table]
        if known.whole:
            self._again(table, "rows came without all of their columns, and it has no key to read them by")
            return
        if known.state == "done":
            self._tell("keys to be read", table=str(table), reason="rows came without all of their columns")
        self._backlog.read_keys(table, keys, self._tail.next_offset)

    def _is_unread(self, table: TableId, *states: State) -> bool:
        """Whether nobody reads this table, for it is unknown or in one of these states."""
        known = self._backlog.get(table)
        if known is None or known.state in states:
            self._tell("rows changed unseen", table=str(table), state=known.state if known else "unknown")
            return True
        return False

    def _again(self, table: TableId, reason: str) -> None:
        """Read a table from the start; one that is paused when it is resumed."""
        state = self._backlog.progress.tables[table].state
        self._tell("table to be read again", table=str(table), reason=reason)
        if state == "forgotten":
            return
        self._leave_window(table)
        self._backlog.begin_generation(table, self._tail.next_offset)
        if state == "paused":
            self._backlog.pause(table)

    def _pass(self, position: Position) -> None:
        """A mark that means nothing (any more): worth no cut of its own, but the next one may stand behind it."""
        if not self._holding:
            self._tail.position = position

    def _low_seen(self, window: Window, seen: MarkSeen) -> None:
        if window.before is not None:
            raise InvariantViolated(f"mark {seen.token} came back twice")
        self._pass(seen.position)
        if window.number >= self._caught_up_by:
            self._caught_up_by = 0
        window.before = self._delivered.ids()
        for table in sorted(window.reads):
            self._check_fence(window, table)
        if not window.chunks and self._window is window:
            self._close_window()

    def _high_seen(self, window: Window, seen: MarkSeen) -> None:
        if window.before is None or not window.high_asked:
            missing = "before its low mark" if window.before is None else "before it was written"
            raise InvariantViolated(f"mark {seen.token} came back {missing}")
        for table in sorted(window.tables):
            if window.held_before(table) is None:
                self._backlog.read_less(table)
                self._give_up(table, "what it saw is no beginning of what was logged")
        if window.chunks:
            self._release_window(window)
        self._tail.reach(seen.position)

    def _release_window(self, window: Window) -> None:
        counts = {table: window.held_before(table) or 0 for table in window.reads}
        rest, released = window.held, 0
        for table in sorted(counts, key=lambda t: (counts[t], t)):
            before, rest = split_runs(rest, counts[table] - released)
            released = counts[table]
            self._append_all(before)
            self._append_all(run for run in (window.reads[table].run,) if run is not None)
        self._append_all(rest)
        self._tell("window closed", window=window.number, chunks=len(window.reads), held=len(window.held))
        self._close_window()
        for table, read in window.reads.items():
            self._backlog.count_in(read, self._now_us, held=bool(window.held), live=window.live)
            if self._backlog.is_read(table):
                self._stop(table, "done")

    def _append_all(self, runs: Iterable[Transactions]) -> None:
        for run in runs:
            self._tail.append(run)

    # ── the window ──────────────────────────────────────────────────────────────────────────────────────────

    def _open_window(self) -> None:
        """Plan the tables whose turn it is, and open a window for the chunks of those that have a plan.

        A table that was not captured for a while, or is another one of the same name now, may have changes from before
        that on their way. They must get offsets below the new `since`, or what they touch outlives the sweep. So no
        table is planned before a mark of this epoch has come back; where no window brings one, a window without
        chunks does. In the very first epoch there is no before. The same when the catalog showed that a table's rows
        changed: what is on its way may be from before that.
        """
        low, high = (token(self._epoch, self._windows + 1, end) for end in ("low", "high"))
        chunks: dict[TableId, Chunk] = {}
        turns = 0
        behind = wants_snapshot = False
        for table in self._backlog.turns(self._now_us):
            if self._backlog.is_read(table):
                self._stop(table, "done")
                continue
            if turns == self._limits.chunks_per_window:
                break
            if self._backlog.is_held_up(table, self._delivered):
                # Reading it now would be for nothing: a snapshot tells as much as a chunk and costs the source little.
                self._backlog.wait(table, self._now_us)
                wants_snapshot = True
                continue
            turns += 1
            if (chunk := self._backlog.chunk(table, low)) is not None:
                chunks[table] = chunk
            elif self._caught_up_by:
                behind = True
            elif (plan := self._backlog.plan(table, self._tail.next_offset, self._delivered)) is not None:
                self._asks.append(plan)
        if chunks or (behind and self._mark_not_before_us <= self._now_us):
            self._windows += 1
            self._window = Window(self._windows, low, high, chunks)
            self._asks.append(WriteMark(low, tuple(ReadChunk(chunk) for chunk in chunks.values())))
        if wants_snapshot:
            self._ask_snapshot()

    def _ask_snapshot(self) -> None:
        """One at a time: a source that does not answer must not be asked ever more."""
        if not self._is_taking_snapshot:
            self._is_taking_snapshot = True
            self._asks.append(TakeSnapshot())

    def _mark_written(self, mark: Token) -> None:
        number = window_number(mark, self._epoch)
        if number is None or number > self._windows:
            raise InvariantViolated(f"mark {mark} was written, but nobody asked for it")
        window = self._window
        if window is None or number != window.number:
            return
        if mark == window.low:
            if window.low_written:
                raise InvariantViolated(f"mark {mark} was written twice")
            window.low_written = True

    def _chunk_read(self, read: ChunkRead) -> None:
        chunk = read.chunk
        table = chunk.table
        number = window_number(chunk.low, self._epoch)
        if number is None or number > self._windows:
            raise InvariantViolated(f"a chunk of {table} was read for mark {chunk.low}, which nobody wrote")
        window = self._window
        if window is None or number != window.number or window.chunks.get(table) != chunk:
            return
        if table in window.reads or not window.low_written:
            raise InvariantViolated(f"chunk {chunk.number} of {table} was read twice, or before its low mark")
        if read.rewritten:
            self._give_up(table, "the table was rewritten")
            self._backlog.rewritten(table)
            return
        if read.run is None or (chunk.kind == "whole" and len(read.visibilities) != 1):
            raise InvariantViolated(f"chunk {chunk.number} of {table} ({chunk.kind}) came without rows or snapshot")
        self._backlog.adapt_size(read, holding=bool(window.held), live=window.live)
        window.reads[table] = read
        if chunk.kind != "whole":  # what that one sees, it need see of its own table only
            self._delivered.seen(*read.visibilities)
        if (reason := window.conflict(table, window.held)) is not None:
            self._give_up(table, reason)
        elif self._check_fence(window, table):
            self._ask_high(window)

    def _check_fence(self, window: Window, table: TableId) -> bool:
        """Whether the chunk saw all that was delivered before low. Else it is given up; nothing else waits for it."""
        hidden = window.hidden(table)
        if len(hidden):
            self._backlog.wait_for(table, hidden)
            self._give_up(table, "delivered transactions are not visible yet", hidden=len(hidden))
        return not len(hidden)

    def _ask_high(self, window: Window) -> None:
        if window.low_written and not window.high_asked and window.reads.keys() == window.chunks.keys():
            window.high_asked = True
            self._asks.append(WriteMark(window.high))

    def _give_up(self, table: TableId, reason: str, **fields: object) -> None:
        """Take a table's chunk out of the window; it is read again after a pause."""
        assert self._window is not None  # noqa: S101 - only chunks of an open window are given up
        self._backlog.wait(table, self._now_us)
        self._tell("chunk given up", window=self._window.number, table=str(table), reason=reason, **fields)
        self._leave_window(table)

    def _give_up_overflow(self, window: Window) -> None:
        """Too much is held: read less at a time."""
        for table in sorted(window.tables):
            smaller = self._backlog.overflowed(table)
            self._give_up(table, "too much was held", bytes=window.held_bytes)
            if not smaller:
                reason = f"more than {self._limits.held_bytes_max} bytes were written while the table was read whole"
                self._stop(table, "failed", f"{reason}; raise held_bytes_max, or read it in a quiet hour")

    def _leave_window(self, table: TableId) -> None:
        """Take a table's chunk out of the window, if it is in; what was held only for it goes on."""
        window = self._window
        if window is None or table not in window.chunks:
            return
        self._backlog.put_back(window.drop(table))
        for run in window.passing():
            self._release(run)
        if window.chunks:
            self._ask_high(window)
        else:
            self._close_window()

    def _close_window(self) -> None:
        self._window = None
        self._delivered.forget()

    # ── the tables ──────────────────────────────────────────────────────────────────────────────────────────

    def _planned(self, planned: Planned) -> None:
        hidden = self._backlog.unseen_by(planned)
        if len(hidden):
            table = planned.table
            self._backlog.plan_failed(table)
            self._backlog.wait_for(table, hidden)
            self._backlog.wait(table, self._now_us)
            reason = "delivered transactions are not visible yet"
            self._tell("plan given up", table=str(table), reason=reason, hidden=len(hidden))
            return
        match self._backlog.planned(planned):
            case "taken":
                about = {"table": str(planned.table), "generation": planned.generation, "units": planned.units}
                self._tell("table planned", **about)
            case "moved":
                self._wait_for_mark()

    def _stop(self, table: TableId, state: State, reason: str | None = None) -> None:
        """A table's generation ends here, one way or the other."""
        self._backlog.stop(table, state, reason)
        self._leave_window(table)
        known = self._backlog.progress.tables[table]
        self._tell(f"table {state}", table=str(table), generation=known.generation, rows=known.rows, reason=reason)

    def _chunk_failed(self, failed: ChunkFailed) -> None:
        inside = frozenset() if self._window is None else self._window.tables
        if failed.table is None:
            self._is_taking_snapshot = False  # it may have been the snapshot, or a mark: another one does no harm
            for table in sorted(inside):
                self._give_up(table, failed.reason)
            if self._window is not None and not inside:
                self._mark_not_before_us = self._now_us + self._limits.retry_pause_us
                self._close_window()
            return
        known = self._backlog.get(failed.table)
        if known is None or not known.active:
            return
        if not failed.retry:
            self._stop(failed.table, "failed", failed.reason)
        elif failed.table in inside:
            self._give_up(failed.table, failed.reason)
            self._backlog.wait(failed.table, self._now_us, failed=True)
        else:
            self._backlog.plan_failed(failed.table)
            self._backlog.wait(failed.table, self._now_us, failed=True)
            self._tell("table waits", table=str(failed.table), reason=failed.reason)

    # ── people ──────────────────────────────────────────────────────────────────────────────────────────────

    def _command(self, command: Command) -> None:
        """Do what a command orders, answer it, and keep its trace."""
        outcomes = tuple(outcome for order in command.orders for outcome in self._order(order))
        commands = self._backlog.progress.commands
        number = commands[-1].number + 1 if commands else 1
        told = {str(o.table or "capture"): f"{o.outcome}: {o.reason}" if o.reason else o.outcome for o in outcomes}
        record = CommandRecord(number, command.at_us, command.asked_by, command.op, told, command.details)
        self._backlog.note(record)
        # Among what goes to the log, for the cut that keeps the trace comes behind it.
        self._tail.effects.append(Answered(command.id, number, outcomes))

    def _order(self, order: Order) -> list[Outcome]:
        """Do what people want, table by table. An order that does not fit changes nothing, and is said so."""
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
            self._tell("order ignored", order=type(order).__name__.lower(), table=str(table), state=state)
            return found
        match order:
            case Backfill():
                self._leave_window(table)
                self._backlog.begin_generation(table, self._tail.next_offset, by_order=True)
            case Pause():
                self._leave_window(table)
                self._backlog.pause(table)
            case Resume():
                self._resume(table, order.partial)
            case Cancel():
                self._stop(table, "cancelled", "cancelled by order")
            case Adjust():
                self._backlog.adjust(order)
            case Reread():
                self._backlog.order_keys(table, order.keys, self._tail.next_offset)
        return found

    def _forget(self, table: TableId) -> None:
        if self._backlog.get(table) is None:
            self._tell("order ignored", order="forget", table=str(table), state="unknown")
        else:
            self._stop(table, "forgotten")

    def _pause_capture(self, paused: bool) -> None:
        """Give up the window, so that nothing is held and a cut can be made at once; or go on."""
        for table in () if self._window is None else sorted(self._window.tables):
            self._leave_window(table)
        if self._window is not None:  # one without chunks: it holds nothing
            self._close_window()
        self._backlog.pause_capture(paused)
        self._tell("capture paused" if paused else "capture resumed")

    def _resume(self, table: TableId, partial: KeySet | None) -> None:
        held = () if self._window is None else self._window.held
        self._backlog.resume(table, (partial, *(run.partial_keys(table) for run in held)))
        if partial is None and self._backlog.progress.tables[table].collects_from is not None:
            self._again(table, UNKNOWN)
        for crowded in self._backlog.too_many_keys():
            self._again(crowded, TOO_MANY)

    # ── what comes out ──────────────────────────────────────────────────────────────────────────────────────

    def _cut(self) -> None:
        tail = self._tail
        if tail.position is None:  # the source was never read: there is nothing to stand behind
            return
        tail.cut += 1
        tail.effects.append(Cut(tail.cut, tail.position, tail.next_offset, tail.next_transaction, self._backlog.json()))
        tail.due = self._backlog.changed = False

    def _tell(self, event: str, **fields: object) -> None:
        self._asks.append(Event(event, tuple(fields.items())))
