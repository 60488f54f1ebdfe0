"""The checkpoint that an attempt starts from, durable in the log before anything is read from there."""

from __future__ import annotations

from dataclasses import replace

from cdcflow.capture import reread
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.log import Log, ShapeKeeping
from cdcflow.capture.ports.source import ShapeAsking, Source
from cdcflow.model.position import Checkpoint, Epoch


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

    `keep_rows`: where history is lost, tables with a key that were completely read keep their rows, unverified.

    Raises:
        HistoryLost, ConfigurationError: see `cdcflow.ports.Source.prepare`.
    """
    before = log.checkpoint
    asked = {**before.source, **({"accept_history_loss": "yes"} if accept_history_loss else {})}
    if isinstance(source, ShapeAsking) and isinstance(log, ShapeKeeping):
        source.use_shapes(log.newest_shape)
    prepared = source.prepare(replace(before, source=asked), log_id, log.transactions_back)
    if before.position is None:
        # A new log may replace one that was lost, whose slot still makes the server retain its log.
        for left in source.left_behind(log_id):
            on_event("left behind", {"what": left.subject, "found": left.text, "remedy": left.remedy})
    # "history" stays in the checkpoint until the cut that orders the new backfill: otherwise a crash between the two
    # would leave a log with a hole that nothing records.
    was, now = before.source.get("history"), prepared.source.get("history")
    is_new = now == reread.LOST and (accept_history_loss or was != reread.LOST)
    keeps = is_new and keep_rows
    history = reread.KEPT if keeps else now if is_new else was or now
    kept = {k: v for k, v in prepared.source.items() if k not in ("accept_history_loss", "history")} | (
        {"history": history} if history else {}
    )
    checkpoint = replace(prepared, source=kept, epoch=epoch)
    if checkpoint.position != before.position or kept != dict(before.source) or is_new:
        progress = checkpoint.progress
        if keeps:
            progress = reread.in_doubt(checkpoint, before.position or "", source.tables())
        elif history == reread.LOST:
            progress = reread.unread(progress)
        checkpoint = replace(checkpoint, cut=checkpoint.cut + 1, progress=progress)
        log.cut(checkpoint)
        log.sync()
    return checkpoint
