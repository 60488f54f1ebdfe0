"""The checkpoint that an attempt starts from, made durable in the log before the source's log is read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from cdcflow.capture import reread
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.log import Log, ShapeKeeping
from cdcflow.capture.ports.moves import Movable
from cdcflow.capture.ports.source import Prepared, ShapeAsking, Source, SourceHistory, TablesToReread
from cdcflow.capture.reread import StoredOrders
from cdcflow.model.position import Checkpoint, Epoch, position_text
from cdcflow.model.table import Table

MOVED = "move"
"""The value of `Gap.by` after a move of the log."""


def prepare_position(
    source: Source,
    log: Log,
    log_id: str,
    epoch: Epoch,
    on_event: OnEvent,
    *,
    accept_history_loss: bool,
    keep_rows: bool = False,
) -> Checkpoint:
    """Have the source create or check the log's position, and store its answer. Durable on return.

    `keep_rows`: if history is lost, tables with a key that were completely read keep their rows, unverified.

    Raises:
        HistoryLost, ConfigurationError: see `cdcflow.ports.Source.prepare`.
    """
    before = log.checkpoint
    if isinstance(source, ShapeAsking) and isinstance(log, ShapeKeeping):
        source.use_shapes(log.newest_shape)
    prepared = source.prepare(
        replace(before, source=reread.without_orders(before.source)),
        log_id,
        log.transactions_back,
        accept_history_loss=accept_history_loss,
    )
    if before.position is None:
        # A new log may replace one that was lost, whose slot still makes the server retain its log.
        for left in source.left_behind(log_id):
            on_event("left behind", {"what": left.subject, "found": left.text, "remedy": left.remedy})
    keeps = keep_rows or prepared.history is SourceHistory.RELEASED
    return _store(source, log, prepared, epoch, on_event, keeps=keeps)


def move_position(
    source: Source, log: Log, log_id: str, epoch: Epoch, on_event: OnEvent, *, compares: bool = False
) -> Checkpoint:
    """Have the source at another address continue the log, and store its answer. Durable on return; until then the
    log can continue where it did before.

    `compares`: see `Movable.move`.

    Raises:
        ConfigurationError, SourceUnavailable: see `Movable.move`.
    """
    assert isinstance(source, Movable)  # noqa: S101 - the caller's choice
    before = log.checkpoint
    if isinstance(source, ShapeAsking) and isinstance(log, ShapeKeeping):
        source.use_shapes(log.newest_shape)
    without = replace(before, source=reread.without_orders(before.source))
    prepared = source.move(without, log_id, log.transactions_back, compares=compares)
    return _store(source, log, prepared, epoch, on_event, keeps=True)


def _store(source: Source, log: Log, prepared: Prepared, epoch: Epoch, on_event: OnEvent, *, keeps: bool) -> Checkpoint:
    """Store where a capture begins, and which tables are still to be read again.

    `keeps`: after a gap, tables that can be compared keep their rows.
    """
    before = log.checkpoint
    orders = StoredOrders.read(before.source)
    # The orders stay in the checkpoint until a cut stores the commands. Otherwise a crash before that cut would leave a
    # log with a gap that nothing records.
    is_lost = prepared.history is not SourceHistory.CONTINUES
    history = (reread.KEPT if keeps else reread.LOST) if is_lost else orders.history
    orders = StoredOrders(history, _still_captured(orders.reread, source) | prepared.reread)
    stored = {**prepared.checkpoint.source, **orders.write()}
    checkpoint = replace(prepared.checkpoint, source=stored, epoch=epoch)
    if checkpoint.position != before.position or stored != dict(before.source) or is_lost:
        progress = checkpoint.progress
        if is_lost and keeps:
            progress = _in_doubt(source, log, before, checkpoint, is_moved=prepared.history is SourceHistory.MOVED)
        elif history == reread.LOST:
            progress = reread.unread(progress)
        if is_lost:
            progress = _with_gap(progress, before, checkpoint)
        checkpoint = replace(checkpoint, cut=checkpoint.cut + 1, progress=progress)
        log.cut(checkpoint)
        log.sync()
    if is_lost:
        found = {"after": position_text(before.position), "before": position_text(checkpoint.position)}
        on_event("changes not captured", {**found, "offset": checkpoint.next_offset})
    return checkpoint


def _in_doubt(
    source: Source, log: Log, before: Checkpoint, after: Checkpoint, *, is_moved: bool
) -> Mapping[str, object]:
    """Return the progress after a gap, in which tables that can be compared keep their rows."""
    since, tables = position_text(before.position) or "", source.tables()
    if not is_moved:
        return reread.in_doubt(after, since, tables)

    def keeps(known: TableProgress, table: Table) -> bool:
        return reread.is_comparable(known, table, log.newest_shape(table.id) if isinstance(log, ShapeKeeping) else None)

    return reread.in_doubt(after, since, tables, by=MOVED, keeps=keeps)


def _with_gap(progress: Mapping[str, object], before: Checkpoint, after: Checkpoint) -> dict[str, object]:
    """Return the progress with the record of a gap between the positions of two checkpoints."""
    positions = (position_text(before.position) or "", position_text(after.position) or "")
    return Progress.from_json(progress).with_gap(int(time.time() * 1e6), *positions, after.next_offset).to_json()


def _still_captured(left: TablesToReread, source: Source) -> TablesToReread:
    """Return, of the tables that an earlier start left to be read again, those that are still captured."""
    return left.only(frozenset(t.id for t in source.tables())) if left else left
