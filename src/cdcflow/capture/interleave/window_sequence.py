"""Opens windows for chunks, holds the log's transactions until a window ends, and releases both in one order.

    source log   ──c──c──[low]──c──c──c──c──[high]──c──▶     c: a committed transaction
    chunk                    rows read here
    change log   ──c──c──c──│ r r r r c──c──c │──c──▶        │: a cut; r: rows of the chunk

The low mark is written first, then the chunk is read in one snapshot, and when its rows have arrived, the high mark is
written. (The first two are requested together: the source reads while the machine is still busy with the previous
chunk.) Transactions that arrive between low and high *in the log* are held, starting with the first one that touches a
table of the window. When high arrives through the log, the chunk's rows go first, then the held transactions, then a
cut. Readers see all of it or nothing.

Why this is right, for a row R that the chunk shows with the value of its snapshot S:
- Changes of R that S does not see commit after S, so after low; they are held and come after R's row. They are replayed
  over it column by column, so a change that omits columns (unchanged TOAST) finds them there (W08).
- Changes of R that S sees are either held, and replayed over a row that has them already: the same values again,
  for c, u and d alike, and the last one wins. Or they came before low, and R's row replaces what they left. One kind
  of change is not harmless to repeat (a key change that omits columns); `Window.held_before` deals with it.
- Changes that came before low and that S does not see would be lost under R's row (W01, W13). So cdcflow checks for
  them: every id delivered before low must be visible to every snapshot of the chunk. Otherwise the chunk is read again,
  once a snapshot has seen them. The same holds for a plan's bound: the transactions delivered before the plan was
  requested have offsets that the sweep removes, so a bound (a greatest key) read without them is queried again.
- S may see a commit that a crash of the server then erases (W02). The rows are released only when high has arrived
  through the log, which the server sends only once it is durable, and everything before it with it. This needs one
  machine per connection of the stream: after a lost connection a new machine with a new epoch starts, and whatever
  the old one had read is gone.
- What arrives after low but before the first transaction that touches a table of the window commutes with the chunk, so
  it is not held up: a quiet table's backfill costs no latency.

Hazards that appear harmless: forgetting a delivered id because of a snapshot newer than one still under way (see
`delivered`); acknowledging a position beyond a held transaction; a mark of an earlier epoch; answers that arrive after
their window was abandoned, which are ignored.
"""

from __future__ import annotations

import numpy as np

from cdcflow.capture.interleave.backlog import TOO_MANY, Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.messages import (
    ChangesRefused,
    Chunk,
    ChunkFailed,
    ChunkRead,
    Effect,
    Event,
    MarkSeen,
    Planned,
    PlanTable,
    ReadChunk,
    TakeSnapshot,
    Transactions,
    Visibility,
    WriteMark,
)
from cdcflow.capture.interleave.progress import REFUSED, State
from cdcflow.capture.interleave.tail import Tail
from cdcflow.capture.interleave.window import Window, split_runs, token, window_number
from cdcflow.errors import InvariantViolated
from cdcflow.model.position import Epoch, Offset, Position, Token
from cdcflow.model.table import TableId, word

PAUSE_MAX_US = 10_000_000
"""The longest pause between two windows. The pause is computed from the time that a window was open, which may have
been long for other reasons than reading."""
SUSPECTED = "a statement on other tables may have changed its rows"
SUSPECTED_WHILE_READ = "statements on other tables may have changed its rows while they were read"


class WindowSequence:
    """One window at a time, over the tables of a backlog. Pure.

    Effects on the log are in `tail`; requests to the source and events for operators are in `asks`; the machine takes
    both from there. Any thread may read `window`.
    """

    def __init__(self, epoch: Epoch, backlog: Backlog, tail: Tail, delivered: Delivered) -> None:
        self._epoch = epoch
        self._backlog = backlog
        self._choice = ChunkChoice(backlog)
        self._tail = tail
        self._delivered = delivered
        self.asks: list[Effect] = []
        self.window: Window | None = None
        self._windows = 0
        # No table is planned before the low mark of this window, or of a later one, has arrived (0: nothing to wait
        # for).
        self._caught_up_by = 0 if epoch == 1 else 1
        self._marks_seen = 0  # the number of the latest window whose low mark has arrived
        self._mark_not_before_us = 0
        self._open_not_before_us = 0
        self._is_taking_snapshot = False
        self._now_us = 0

    @property
    def holding(self) -> bool:
        """Whether transactions of the source's log wait for the window's end."""
        return self.window is not None and bool(self.window.held)

    def tick(self, now_us: int) -> None:
        if now_us < self._now_us:
            raise InvariantViolated(f"the clock went back from {self._now_us} to {now_us} microseconds")
        if not self._now_us and self.window is not None:  # opened before the clock was known
            self.window.opened_us = now_us
        self._now_us = now_us

    def go_on(self) -> None:
        """Open the next window if no window is open, and request a snapshot if one is needed."""
        is_paused = self._backlog.progress.capture_paused or self._now_us < self._open_not_before_us
        if self.window is None and not is_paused:
            self._open()
        if self._delivered.wants_snapshot():
            self._ask_snapshot()

    # ── the stream ──────────────────────────────────────────────────────────────────────────────────────────

    def add_committed(self, run: Transactions) -> None:
        if not run.transactions:
            return
        self._delivered.add(run.xids)
        if self._backlog.lacking:
            run = run.without(self._backlog.lacking)
        self._backlog.remember_partial(run)
        for table in self._backlog.too_many_keys():
            self.again(table, TOO_MANY)
        window = self.window
        if window is not None and run.rows:
            window.live = True
        if window is None or window.before is None:
            self._tail.release(run)
            return
        first = 0 if window.held else run.first_touching(window.tables)
        if first is None:
            self._tail.release(run)
            return
        passing, touching = run.split_at(first)
        if passing.transactions:
            self._tail.release(passing)
        window.hold(touching)
        for table in sorted(window.tables):
            if (reason := window.conflict(table, (touching,))) is not None:
                self._give_up(table, reason)
        if window.held_bytes > self._backlog.limits.held_bytes_max:
            self._give_up_overflow(window)

    def remember_delivered(self, xids: tuple[int, ...]) -> None:
        """Remember transactions without rows in the log that later chunks and plans have to see."""
        ids = np.array(xids, np.uint64)
        new = ids[~np.isin(ids, self._delivered.ids())]
        if len(new):
            self._delivered.add(new)

    def advance(self, position: Position, commit_ts: int) -> None:
        # Held transactions are appended later, so neither the position nor the time may move past them.
        if not self.holding and (position != self._tail.position or commit_ts > self._tail.commit_ts):
            self._tail.reach(position, commit_ts)

    def mark_seen(self, seen: MarkSeen) -> None:
        number = window_number(seen.token, self._epoch)
        window = self.window
        if number is not None and number > self._windows:
            raise InvariantViolated(f"mark {seen.token} returned, but window {self._windows} is the last one opened")
        if number is None or window is None or number != window.number:
            self._pass(seen)
        elif seen.token == window.low:
            self._low_seen(window, seen)
        else:
            self._high_seen(window, seen)

    def _pass(self, seen: MarkSeen) -> None:
        """Move the end of the log past a mark that needs no cut by itself, so that the next cut may be after it."""
        if not self.holding:
            self._tail.move(seen.position, seen.commit_ts)

    def _low_seen(self, window: Window, seen: MarkSeen) -> None:
        if window.before is not None:
            raise InvariantViolated(f"mark {seen.token} returned twice")
        self._pass(seen)
        if window.number >= self._caught_up_by:
            self._caught_up_by = 0
        self._marks_seen = window.number
        window.before = self._delivered.ids()
        for table in sorted(window.reads):
            self._check_fence(window, table)
        if not window.chunks and self.window is window:
            self._close_window()

    def _high_seen(self, window: Window, seen: MarkSeen) -> None:
        if window.before is None or not window.high_asked:
            missing = "before its low mark" if window.before is None else "before it was written"
            raise InvariantViolated(f"mark {seen.token} returned {missing}")
        for table in sorted(window.tables):
            if window.held_before(table) is None:
                self._choice.read_less(table)
                self._give_up(table, "its snapshot does not match a prefix of the log")
        if window.chunks:
            self._release_window(window)
        self._tail.reach(seen.position, seen.commit_ts)

    def _release_window(self, window: Window) -> None:
        counts = {table: window.held_before(table) or 0 for table in window.reads}
        rest, released = window.held, 0
        begins: dict[TableId, Offset] = {}
        for table in sorted(counts, key=lambda t: (counts[t], t)):
            before, rest = split_runs(rest, counts[table] - released)
            released = counts[table]
            self._tail.append_all(before)
            begins[table] = self._tail.next_offset
            self._tail.append_all(run for run in (window.reads[table].run,) if run is not None)
        self._tail.append_all(rest)
        self.tell("window closed", window=window.number, chunks=len(window.reads), held=len(window.held))
        self._close_window()
        for table, read in window.reads.items():
            opened_us, held = window.opened_us, bool(window.held)
            self._choice.count_in(read, self._now_us, opened_us=opened_us, held=held, live=window.live)
            if read.chunk.repairs:
                self._backlog.record_repair(read, begins[table])
                self.tell(
                    "rows repaired", table=str(table), rows=read.run.rows if read.run else 0, deleted=read.deleted
                )
            if self._choice.is_read(table):
                self._end_generation(table)

    # ── the window ──────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        """Plan the tables whose turn it is, and open a window for the chunks of those that have a plan.

        If a table was not captured for a while, or is now a different one of the same name, changes from before that
        may still be under way. They must get offsets below the new `since`, or the rows they touch outlive the sweep.
        So no table is planned before a mark of this epoch has arrived; if no window brings one, a window without chunks
        does. In the very first epoch nothing was captured before. The same applies when the catalog showed that a
        table's rows changed: changes still under way may be from before that.
        """
        low, high = (token(self._epoch, self._windows + 1, end) for end in ("low", "high"))
        chunks: dict[TableId, Chunk] = {}
        turns, turns_max = 0, self._backlog.limits.chunks_per_window if self._backlog.pace.share == 1 else 1
        behind = wants_snapshot = False
        for table in self._choice.turns(self._now_us):
            if self._choice.is_read(table):
                self._end_generation(table)
                continue
            if turns == turns_max:
                break
            if self._choice.is_held(table):
                continue
            if self._choice.is_held_up(table, self._delivered):
                # A chunk that does not see those transactions would be discarded. A snapshot shows as well whether they
                # are visible, and costs the source little.
                self._choice.wait(table, self._now_us)
                wants_snapshot = True
                continue
            turns += 1
            if (chunk := self._choice.chunk(table, low)) is not None:
                chunks[table] = chunk
            elif self._caught_up_by or self._awaits_mark(table):
                behind = True
            elif (plan := self._plan(table)) is not None:
                self.asks.append(plan)
        if chunks or (behind and self._mark_not_before_us <= self._now_us):
            self._windows += 1
            self.window = Window(self._windows, low, high, chunks, opened_us=self._now_us)
            self.asks.append(WriteMark(low, tuple(ReadChunk(chunk) for chunk in chunks.values())))
        if wants_snapshot:
            self._ask_snapshot()

    def _plan(self, table: TableId) -> PlanTable | None:
        return self._choice.plan(table, self._tail.next_offset, self._delivered, marks_seen=self._marks_seen)

    def _awaits_mark(self, table: TableId) -> bool:
        """Whether a table that statements may have changed is planned only once a mark has arrived, so that it counts
        as read after them.

        It waits for one mark, whatever arrives until then: otherwise it would wait for as long as such statements
        follow each other quickly. If one of them was later than the mark, another generation follows.
        """
        known, work = self._backlog.progress.tables[table], self._backlog.work[table]
        is_covered = known.stale != "pending" or work.statements_before <= self._marks_seen
        if is_covered or work.collecting or work.awaits_mark:
            return False
        work.awaits_mark = True
        self.wait_for_mark()
        return True

    def _ask_snapshot(self) -> None:
        """Request a snapshot, unless one is under way: a source that does not answer must not get more and more
        requests."""
        if not self._is_taking_snapshot:
            self._is_taking_snapshot = True
            self.asks.append(TakeSnapshot())

    def mark_written(self, mark: Token) -> None:
        number = window_number(mark, self._epoch)
        if number is None or number > self._windows:
            raise InvariantViolated(f"mark {mark} was written, but was not requested")
        window = self.window
        if window is None or number != window.number:
            return
        if mark == window.low:
            if window.low_written:
                raise InvariantViolated(f"mark {mark} was written twice")
            window.low_written = True

    def chunk_read(self, read: ChunkRead) -> None:
        chunk = read.chunk
        table = chunk.table
        number = window_number(chunk.low, self._epoch)
        if number is None or number > self._windows:
            raise InvariantViolated(f"a chunk of {table} was read for mark {chunk.low}, which was not written")
        window = self.window
        if window is None or number != window.number or window.chunks.get(table) != chunk:
            return
        if table in window.reads or not window.low_written:
            raise InvariantViolated(f"chunk {chunk.number} of {table} was read twice, or before its low mark")
        if read.rewritten:
            if chunk.repairs:  # the table may have another key now; reading it again repairs it too
                self.again(table, "it was rewritten while rows of it were to be repaired")
                return
            self._give_up(table, "the table was rewritten")
            self._backlog.rewritten(table)
            return
        if read.run is None or (chunk.kind == "whole" and not read.visibilities):
            raise InvariantViolated(f"chunk {chunk.number} of {table} ({chunk.kind}) came without rows or snapshot")
        self._choice.adapt_size(read, holding=bool(window.held), live=window.live)
        window.reads[table] = read
        if chunk.kind != "whole":  # the snapshot of a whole chunk may cover only its own table
            self._delivered.record_snapshot(*read.visibilities)
        if (reason := window.conflict(table, window.held)) is not None:
            self._give_up(table, reason)
        elif self._check_fence(window, table):
            self._ask_high(window)

    def _check_fence(self, window: Window, table: TableId) -> bool:
        """Whether the chunk saw everything that was delivered before the low mark.

        If it did not, abandon it, so that nothing else waits for it.
        """
        hidden = window.hidden_xids(table)
        if len(hidden):
            self._choice.wait_for(table, hidden)
            self._give_up(table, "delivered transactions are not visible yet", hidden=len(hidden))
        return not len(hidden)

    def _ask_high(self, window: Window) -> None:
        if window.low_written and not window.high_asked and window.reads.keys() == window.chunks.keys():
            window.high_asked = True
            self.asks.append(WriteMark(window.high))

    def _give_up(self, table: TableId, reason: str, **fields: object) -> None:
        """Remove a table's chunk from the window; it is read again after a pause."""
        assert self.window is not None  # noqa: S101 - only chunks of an open window are abandoned
        self._choice.wait(table, self._now_us)
        self.tell("chunk given up", window=self.window.number, table=str(table), reason=reason, **fields)
        self.leave(table)

    def _give_up_overflow(self, window: Window) -> None:
        """Abandon the window's chunks because too much is held, and make the next ones smaller.

        A table that cannot be read in smaller chunks fails.
        """
        for table in sorted(window.tables):
            smaller = self._choice.shrink_chunk(table)
            self._give_up(table, "too many changes were held back", bytes=window.held_bytes)
            if not smaller:
                self.stop(
                    table,
                    "failed",
                    f"more than {self._backlog.limits.held_bytes_max} bytes were written while the table was read"
                    " whole; raise source.backfill.held_bytes_max, or wait until fewer changes are written, then run"
                    f" `cdcflow backfill {word(table)}`",
                )

    def leave(self, table: TableId) -> None:
        """Remove a table's chunk from the window, if it has one, and release the transactions that were held only for
        it."""
        window = self.window
        if window is None or table not in window.chunks:
            return
        self._choice.put_back(window.drop(table))
        for run in window.passing():
            self._tail.release(run)
        if window.chunks:
            self._ask_high(window)
        else:
            self._close_window()

    def _close_window(self) -> None:
        pace = self._backlog.pace
        if pace.share < 1 and self.window is not None and self.window.chunks:
            idle_us = int(sum(read.idle_seconds for read in self.window.reads.values()) * 1e6)
            pause_us = pace.pause_us_after(self._now_us - self.window.opened_us, idle_us)
            self._open_not_before_us = self._now_us + min(pause_us, PAUSE_MAX_US)
        self.window = None
        self._delivered.forget()

    # ── the tables ──────────────────────────────────────────────────────────────────────────────────────────

    def accept_plan(self, planned: Planned) -> None:
        hidden = self._choice.unseen_by(planned)
        if len(hidden):
            table = planned.table
            self._choice.plan_failed(table)
            self._choice.wait_for(table, hidden)
            self._choice.wait(table, self._now_us)
            reason = "delivered transactions are not visible yet"
            self.tell("plan given up", table=str(table), reason=reason, hidden=len(hidden))
            return
        match self._choice.accept_plan(planned):
            case "taken":
                about = {"table": str(planned.table), "generation": planned.generation, "units": planned.units}
                self.tell("table planned", **about)
            case "moved":
                self.wait_for_mark()

    def chunk_failed(self, failed: ChunkFailed) -> None:
        inside = frozenset() if self.window is None else self.window.tables
        if failed.table is None:
            self._is_taking_snapshot = False  # perhaps the snapshot failed; a second one is harmless
            for table in sorted(inside):
                self._give_up(table, failed.reason)
            if self.window is not None and not inside:
                self._mark_not_before_us = self._now_us + self._backlog.limits.retry_pause_us
                self._close_window()
            return
        known = self._backlog.get(failed.table)
        if known is None or not known.active:
            return
        if not failed.retry:
            self.stop(failed.table, "failed", failed.reason)
        elif failed.table in inside:
            self._give_up(failed.table, failed.reason)
            self._choice.wait(failed.table, self._now_us, failed=True)
        else:
            self._choice.plan_failed(failed.table)
            self._choice.wait(failed.table, self._now_us, failed=True)
            self.tell("table waits", table=str(failed.table), reason=failed.reason)

    def again(self, table: TableId, reason: str, *, spaced: bool = False) -> None:
        """Read a table again from the start; if it is paused, once it is resumed; if `spaced`, once it has rested.

        A table that lacks changes is not read: settings that no longer fit it may read it without an error, for example
        if two columns exchanged their names.
        """
        if table in self._backlog.lacking:
            return
        state = self._backlog.progress.tables[table].state
        self.tell("table to be read again", table=str(table), reason=reason)
        if state == "forgotten":
            return
        self.leave(table)
        self._backlog.begin_generation(table, self._tail.next_offset, spaced=spaced)
        if state == "paused":
            self._backlog.pause(table)

    def suspect(self, table: TableId) -> None:
        """Have a table read again, because a statement on other tables may have changed its rows.

        Such statements may arrive all the time. So a read that is running continues, and another follows it.
        """
        known = self._backlog.progress.tables[table]
        self._backlog.suspect(table, self._windows + 1)
        if known.state not in ("cancelled", "forgotten") and (not known.active or known.keys_since is not None):
            self._backlog.gather(table, self._now_us)
            self.again(table, SUSPECTED, spaced=True)

    def is_resting(self, table: TableId) -> bool:
        """Whether it is too early to read a table once more because of statements on other tables."""
        return self._backlog.work[table].is_resting(self._now_us)

    def _end_generation(self, table: TableId) -> None:
        """End a generation whose rows are all in the log: the table is done, or its next generation begins because a
        statement may have changed rows that this one had read before."""
        if self._backlog.progress.tables[table].stale == "pending":
            self._backlog.rest(table, self._now_us)
            self.again(table, SUSPECTED_WHILE_READ, spaced=True)
        else:
            self.stop(table, "done")

    def stop(self, table: TableId, state: State, reason: str | None = None) -> None:
        """End a table's generation in `state`: done, or early with a `reason`."""
        if self._backlog.progress.tables[table].stale:
            self._backlog.rest(table, self._now_us)
        self._backlog.stop(table, state, reason)
        self.leave(table)
        known = self._backlog.progress.tables[table]
        self.tell(f"table {state}", table=str(table), generation=known.generation, rows=known.rows, reason=reason)

    def lose_changes(self, refused: ChangesRefused) -> None:
        """Fail a table whose changes cannot leave the source, and exclude its changes until it is read again.

        The cut that stores this precedes every later row.
        """
        table, known = refused.table, self._backlog.get(refused.table)
        if known is None or known.state == "forgotten" or known.lacks_changes:
            return
        self.leave_all()  # held transactions precede the missing changes, so they get lower offsets
        by = REFUSED if refused.is_checked else ""
        self._backlog.lose_changes(table, self._epoch, self._tail.next_offset, refused.position, by)
        self.stop(table, "failed", refused.reason)

    def read_refused(self, table: TableId) -> None:
        """Read a table that can be captured again. Changes from before that may still be under way."""
        self.tell("table to be read again", table=str(table), reason="it can be captured again")
        self._backlog.begin_generation(table, self._tail.next_offset)
        self.wait_for_mark()

    def wait_for_mark(self) -> None:
        """Plan nothing until a mark written after this call has arrived."""
        self._caught_up_by = self._windows + 1

    def snapshot_taken(self, visibility: Visibility) -> None:
        self._is_taking_snapshot = False
        self._delivered.record_snapshot(visibility)
        if self.window is None:
            self._delivered.forget()

    def leave_all(self) -> None:
        """Close the window, so that nothing is held and a cut is possible at once. Its chunks are read again later."""
        for table in () if self.window is None else sorted(self.window.tables):
            self.leave(table)
        if self.window is not None:  # a window without chunks, which holds nothing
            self._close_window()

    def tell(self, event: str, **fields: object) -> None:
        self.asks.append(Event(event, tuple(fields.items())))
