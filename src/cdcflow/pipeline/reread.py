"""Orders that a checkpoint's `source` carries until the cut that has them: read everything, or some tables, anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdcflow.interleave.messages import Backfill, Input, Pause
from cdcflow.interleave.progress import Gap, Progress, TableProgress
from cdcflow.model import rereading
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId

WHY = "the settings now keep its values differently"
LOST, KEPT = "lost", "lost, rows kept"
"""What `history` is in a checkpoint's `source` behind a gap: all tables are to be read anew, or those not in doubt."""


def kept_otherwise(source: Mapping[str, str], progress: Progress) -> tuple[TableId, ...]:
    """The tables whose rows the log has as other settings made them, or that could not be read with other settings. One
    that nobody ordered to read is not among them."""
    known, named = progress.tables, rereading.pending(source)
    again = {table for table in named if table in known and is_read_again(known[table])}
    failed = {table for table in rereading.retried(source) if table in known and known[table].state == "failed"}
    return tuple(sorted(again | failed))


def is_read_again(known: TableProgress) -> bool:
    """Whether another setting for its values has the table read again: it has rows, or its reading failed."""
    return has_rows(known) or known.state == "failed"


def has_rows(known: TableProgress) -> bool:
    """Whether the log has rows of it that a backfill read, or is about to get some."""
    return known.state in ("waiting", "reading", "paused", "done") or known.whole_since is not None


def orders(tables: tuple[TableId, ...], progress: Progress) -> list[Input]:
    """What has these tables read anew; one that is paused when it is resumed."""
    paused = [Pause(table) for table in tables if progress.tables[table].state == "paused"]
    return [Backfill(tables), *paused] if tables else []


def without_orders(source: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in rereading.without(source).items() if name != "history"}


def is_kept(known: TableProgress | None) -> bool:
    """Whether a table stays as it is behind a gap, in doubt."""
    return known is not None and known.in_doubt and known.state == "done" and _has_all(known)


def in_doubt(after: Checkpoint, before: str, tables: Iterable[Table]) -> dict[str, object]:
    """The progress after a hole in the history that began at position `before`: tables with a key of which everything
    was read are in doubt from here on, the others are as `unread` leaves them."""
    keyed = {table.id for table in tables if table.key}
    known = Progress.from_json(after.progress)
    found = {}
    for table, now in known.tables.items():
        if table in keyed and now.state == "done" and not now.whole and _has_all(now):
            began = now.gap.before if now.gap is not None and now.in_doubt else before
            gap = Gap(after.next_offset, now.generation, after.epoch, began, after.position or "", base=_base(now))
            found[table] = replace(now, gap=gap)
        else:
            found[table] = _unread(now)
    return replace(known, tables=found).to_json()


def _has_all(known: TableProgress) -> bool:
    return known.whole_since is not None or known.has_base


def _base(known: TableProgress) -> str:
    return "" if known.gap is None else known.gap.base


def unread(progress: Mapping[str, object]) -> dict[str, object]:
    """The progress after a hole in the history: no table may be called done before it is read again."""
    known = Progress.from_json(progress)
    return replace(known, tables={t: _unread(p) for t, p in known.tables.items()}).to_json()


def _unread(known: TableProgress) -> TableProgress:
    known = replace(known, whole_since=None, gap=None)
    return replace(known, state="waiting", plan=None, cursor=None) if known.state == "done" else known
