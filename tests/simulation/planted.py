"""Bugs planted on purpose, each as a patch of the machine or a switch around it: the simulation must find every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.faults import Faults
from tests.simulation.log import ModelLog
from tests.simulation.servers import SERVERS, Server
from tests.simulation.transactions import Plain

from cdcflow.capture import reread
from cdcflow.capture.durability import Durability
from cdcflow.capture.interleave import allowed_commands
from cdcflow.capture.interleave.allowed_commands import TableOrder
from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    ChangesRefused,
    ChunkRead,
    MarkSeen,
    OutcomeKind,
    Planned,
    Proven,
    Transactions,
    Visibility,
)
from cdcflow.capture.interleave.progress import State, TableProgress
from cdcflow.capture.interleave.window import Window
from cdcflow.capture.interleave.window_sequence import WindowSequence
from cdcflow.capture.log_writes import Recording
from cdcflow.model.position import Epoch, Offset, Position, Token
from cdcflow.model.table import TableId


class NoVisibilityCheck(WindowSequence):
    def _check_fence(self, window: Window, table: TableId) -> bool:
        return True


class HighNotWaitedFor(WindowSequence):
    """Lets the window go when high is written, at the place the stream happens to be."""

    def mark_written(self, mark: Token) -> None:
        super().mark_written(mark)
        window = self.window
        if window is not None and mark == window.high and window.before is not None:
            position = window.held[-1].last_position if window.held else self._tail.position
            assert position is not None
            self._high_seen(window, MarkSeen(window.high, position, 0))


class ChunkAfterWindow(WindowSequence):
    def _release_window(self, window: Window) -> None:
        self._tail.append_all(window.held)
        window.held = []
        super()._release_window(window)


class CutBeforeChunk(WindowSequence):
    """The checkpoint records the chunk as read, and its rows follow after the cut."""

    def _release_window(self, window: Window) -> None:
        before = len(self._tail.effects)
        super()._release_window(window)
        rows = self._tail.effects[before:]
        offset, transaction = self._tail.next_offset, self._tail.next_transaction
        if rows and not window.held:
            del self._tail.effects[before:]
            self._tail.next_offset = rows[0].first_offset  # type: ignore[union-attr]
            self._tail.next_transaction = rows[0].first_transaction  # type: ignore[union-attr]
            self._tail.make_cut(self._backlog.json())
            self._backlog.changed = False
            self._tail.effects += rows
            self._tail.next_offset, self._tail.next_transaction = offset, transaction


class AcknowledgesHeld(WindowSequence):
    """The position of a cut is the latest that was delivered, held or not."""

    def add_committed(self, run: Transactions) -> None:
        super().add_committed(run)
        if run.transactions and self.holding:
            self._tail.reach(run.last_position)


class TimeAheadOfHeld(WindowSequence):
    """A time that arrives while transactions are held is reported with the next cut, which precedes them."""

    def mark_seen(self, seen: MarkSeen) -> None:
        self._tail.commit_ts = max(self._tail.commit_ts, seen.commit_ts)
        super().mark_seen(seen)


def remembers_nothing(backlog: Backlog, run: Transactions) -> None:
    """A `Backlog.remember_partial` that leaves rows that moved to their fate."""


def remembers_ranges_only(backlog: Backlog, run: Transactions) -> None:
    """A `Backlog.remember_partial` for which everything is settled after the last range chunk, key changes included."""
    for table, known in backlog.progress.tables.items():
        if backlog.work[table].collecting and not known.exhausted:
            backlog.work[table].remember(run.partial_keys(table))


class ForgetsAtOnce(WindowSequence):
    """Uses a check of what is visible while a chunk with an older snapshot is still being read."""

    def chunk_read(self, read: ChunkRead) -> None:
        super().chunk_read(read)
        self._delivered.forget()


class ReleasesInFront(WindowSequence):
    """Lets transactions pass that follow one that touches a table of the window."""

    def add_committed(self, run: Transactions) -> None:
        window = self.window
        if window is not None and window.held and run.first_touching(window.tables) is None:
            self._delivered.add(run.xids)
            self._tail.release(run)
        else:
            super().add_committed(run)


def at_low(*kinds: str) -> Callable[[Window, TableId], int | None]:
    """A `Window.held_before` that places chunks of these kinds at the low mark, whatever was held."""
    original = Window.held_before
    return lambda window, table: 0 if window.chunks[table].kind in kinds else original(window, table)


class DeliveredForgottenAtWindow(WindowSequence):
    """Ids delivered inside a window are not remembered for the next."""

    def _close_window(self) -> None:
        super()._close_window()
        self._delivered = Delivered(self._delivered.ids()[:0], 1_000)


class PlansAtOnce(WindowSequence):
    """Plans a table that is captured again while changes from before may still arrive."""

    def _open(self) -> None:
        self._caught_up_by = 0
        super()._open()


class ReadsAgainAtOnce(WindowSequence):
    """Begins again with a table whose rows a statement changed while rows from before it may still arrive."""

    def wait_for_mark(self) -> None:
        pass


class ForgetsStatementsWhileRead(WindowSequence):
    """Counts a read that is running as one that begins after a statement which may have changed rows."""

    def suspect(self, table: TableId) -> None:
        if not self._backlog.progress.tables[table].active:
            super().suspect(table)


class PlansAtAnyVersion(WindowSequence):
    """Takes a plan although the row version is not the one from before `since`."""

    def accept_plan(self, planned: Planned) -> None:
        self._backlog.work[planned.table].version = planned.row_version
        super().accept_plan(planned)


def acknowledges_the_last_cut(recording: Recording) -> None:
    """A `Recording.acknowledge` that mistakes what is cut for durable."""
    cut = recording.checkpoint
    if cut is not recording.acknowledged and cut.position is not None:
        recording.acknowledged = cut
        recording._stream.acknowledge(cut.position)


def durable_before_its_sync(durability: Durability) -> None:
    """A `Durability._sync_log` that reports what the sync is about to make durable."""
    log = durability._log
    assert isinstance(log, ModelLog)
    durability.durable = log.cuts[-1].checkpoint
    log.sync()


PLANTED: dict[str, Faults] = {
    "ack before fsync": Faults(patch=(Recording, "acknowledge", acknowledges_the_last_cut)),
    "no visibility check": Faults(windows=NoVisibilityCheck),
    "token without epoch": Faults(epoch_forgotten=True),
    "high not waited for": Faults(windows=HighNotWaitedFor),
    "chunk rows after the window": Faults(windows=ChunkAfterWindow),
    "cut before chunk rows": Faults(windows=CutBeforeChunk),
    "ack of a held transaction": Faults(windows=AcknowledgesHeld),
    "unchanged taken for NULL": Faults(unchanged_as_null=True),
    "no re-read of moved partial rows": Faults(patch=(Backlog, "remember_partial", remembers_nothing)),
    "resume that skips one transaction": Faults(skips_after_restart=1),
    "resume that repeats one": Faults(skips_after_restart=-1),
}
"""The eleven that must be found."""


_stop, _fitting = Backlog.stop, allowed_commands._fitting


class DeletesAtHigh(WindowSequence):
    """Places the deletes of a repair after what was held, where they delete rows that arrived in between."""

    def _release_window(self, window: Window) -> None:
        for table, read in window.reads.items():
            if read.chunk.repairs and isinstance(read.run, Plain):
                (chunk,) = read.run.items
                rows = tuple(row for row in chunk.rows if row.op != "d")
                deletes = tuple(row for row in chunk.rows if row.op == "d")
                window.reads[table] = replace(read, run=Plain((chunk._replace(rows=rows),), read=True))
                window.held.append(Plain((chunk._replace(rows=deletes),), read=True))
        super()._release_window(window)


IN_REPAIRS: dict[str, Faults] = {
    "deletes of a repair at high": Faults(windows=DeletesAtHigh),
    "deletes after the rows that were read": Faults(deletes_behind_rows=True),
    "deletes of keys that were not looked for": Faults(deletes_keys_left=True),
    "repair without deletes": Faults(deletes_nothing=True),
}
"""The possible bugs of a repair."""


def clears_with_any_end(backlog: Backlog, table: TableId, state: State, reason: str | None = None) -> None:
    """A `Backlog.stop` that clears a table's gap also when only some of its rows were read."""
    _stop(backlog, table, state, reason)
    if state == "done":
        backlog.set(table, replace(backlog.progress.tables[table], gap=None))


def of_any_epoch(order: TableOrder, known: TableProgress) -> OutcomeKind | None:
    """A `_fitting` that takes a comparison which began before the gap for a proof."""
    return _fitting(replace(order, epoch=Epoch(1 << 62)) if isinstance(order, Proven) else order, known)


def keeps_what_was_not_read(known: TableProgress | None) -> bool:
    """An `is_kept` for which every table can be compared."""
    return known is not None


def drops_silently(self: WindowSequence, refused: ChangesRefused) -> None:
    """The stream has dropped them."""


def keeps_whole(self: Backlog, table: TableId, epoch: Epoch, next_offset: Offset, position: Position, by: str) -> None:
    self.changed = True


def without_gap(self: TableProgress, table: TableId) -> dict[str, object]:
    found = to_json(self, table)
    if self.state == "failed":
        found |= {"state": "done", "whole_since": self.since}
        found.pop("gap", None)
    return found


to_json = TableProgress.to_json

IN_GAPS: dict[str, Faults] = {
    "table proven without a comparison": Faults(proves_unseen=True),
    "comparison from before the gap": Faults(patch=(allowed_commands, "_fitting", of_any_epoch)),
    "table verified after any repair": Faults(patch=(Backlog, "stop", clears_with_any_end)),
    "tables without a key not read again": Faults(patch=(reread, "is_kept", keeps_what_was_not_read)),
}
"""What can be mistaken for proven after a gap."""

IN_REFUSALS: dict[str, Faults] = {
    "changes dropped without a record": Faults(patch=(WindowSequence, "lose_changes", drops_silently)),
    "table with lost changes stays whole": Faults(patch=(Backlog, "lose_changes", keeps_whole)),
    "failure forgotten by the next attempt": Faults(patch=(TableProgress, "to_json", without_gap)),
}
"""What can go wrong when changes of a table cannot leave the source."""

EARLY: dict[str, Faults] = {
    "ack before fsync": PLANTED["ack before fsync"],
    "ack of a sync under way": Faults(patch=(Durability, "_sync_log", durable_before_its_sync)),
}
"""The source is notified of what is not durable yet (invariant 2)."""

MORE: dict[str, Faults] = {
    "held transactions overtaken": Faults(windows=ReleasesInFront),
    "whole chunk placed at low": Faults(patch=(Window, "held_before", at_low("whole"))),
    "key change replayed over a later row": Faults(patch=(Window, "held_before", at_low("range", "keys"))),
    "ids of a window forgotten": Faults(windows=DeliveredForgottenAtWindow),
    "table captured again before the log caught up": Faults(windows=PlansAtOnce),
    "table captured again over running transactions": Faults(runs_over_running=True),
    "statement that fills rows not reported": Faults(fills_unsaid=True),
    "rows that a statement changed read again before the log caught up": Faults(windows=ReadsAgainAtOnce),
    "table planned at another row version": Faults(windows=PlansAtAnyVersion),
    "heartbeat's time taken after its position": Faults(asks_time_late=True),
    "heartbeat's time reported before held transactions": Faults(windows=TimeAheadOfHeld),
}
"""More that the simulation finds."""


_changed = Interleave._rows_changed


def sweeps_from_inside_a_batch(machine: Interleave, table: TableId) -> None:
    """An `Interleave._rows_changed` that begins again with a table once a statement changed its rows, and takes the
    place that it sweeps from although rows from before the statement may follow in the same batch."""
    caught_up_by = machine._windows._caught_up_by
    _changed(machine, table)
    machine._windows._caught_up_by = caught_up_by


def each_bound_for_itself(delivered: Delivered, *visibilities: Visibility) -> None:
    """A `Delivered.record_snapshot` for which what an upper bound does not rule out was seen."""
    delivered._snapshots += [(visibility,) for visibility in visibilities]


IN_BINLOGS: dict[str, tuple[Server, Faults]] = {
    "log's end taken for what is visible": (SERVERS["mysql-read-only"], Faults(takes_log_end_for_visible=True)),
    "log's end taken for a snapshot's place": (SERVERS["mariadb-read-only"], Faults(takes_log_end_for_visible=True)),
    "marks without GTIDs where commits are not ordered": (Server("order", writes_marks=True, ordered=False), Faults()),
    "chunks before all that the log has is visible": (SERVERS["mariadb-read-only"], Faults(chunks_before_visible=True)),
    "resume that skips one transaction": (SERVERS["mysql"], PLANTED["resume that skips one transaction"]),
    "upper bound taken for what is visible": (
        SERVERS["mysql-read-only"],
        Faults(patch=(Delivered, "record_snapshot", each_bound_for_itself)),
    ),
    "high not waited for": (SERVERS["mysql-read-only"], PLANTED["high not waited for"]),
    "no re-read of moved partial rows": (SERVERS["mysql-read-only"], PLANTED["no re-read of moved partial rows"]),
    "bound of a plan without a fence": (SERVERS["mysql"], Faults(plans_without_fence=True)),
    "bound of a plan without a fence, GTIDs read-only": (SERVERS["mysql-read-only"], Faults(plans_without_fence=True)),
    "bound of a plan without a fence, places": (SERVERS["mariadb-read-only"], Faults(plans_without_fence=True)),
    "statement that fills rows not reported": (SERVERS["mariadb"], MORE["statement that fills rows not reported"]),
    "statement that may have changed rows forgotten while a table is read": (
        SERVERS["mysql"],
        Faults(windows=ForgetsStatementsWhileRead),
    ),
    "time queried after the end of the log": (SERVERS["mariadb-read-only"], Faults(asks_time_late=True)),
    "row that came in one batch with the statement that took it away": (
        SERVERS["mariadb"],
        Faults(patch=(Interleave, "_rows_changed", sweeps_from_inside_a_batch)),
    ),
}
"""The possible bugs of a source with a binary log (W03, W04)."""

ON_STANDBYS: dict[str, Faults] = {
    "log's end taken for what is visible": Faults(takes_log_end_for_visible=True),
    "record in replay forgotten": Faults(forgets_record_in_replay=True),
    "high before what the chunk may have seen": Faults(marks_before_what_was_seen=True),
    "high not waited for": PLANTED["high not waited for"],
    "resume that skips one transaction": PLANTED["resume that skips one transaction"],
    "whole chunk placed at low": MORE["whole chunk placed at low"],
}
"""The possible bugs of a source that is a standby (W06)."""

SUBTLE: dict[str, Faults] = {
    "key changes after the last range forgotten": Faults(patch=(Backlog, "remember_partial", remembers_ranges_only)),
    "delivered ids forgotten by a newer check": Faults(windows=ForgetsAtOnce),
    "key change replayed over a later row": MORE["key change replayed over a later row"],
    "whole chunk placed at low": MORE["whole chunk placed at low"],
}
"""Bugs that the simulation meets too seldom to rely on, or that were found late: each has a separate scenario."""
