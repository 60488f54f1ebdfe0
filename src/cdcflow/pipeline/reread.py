"""Orders that a checkpoint's `source` carries until the cut that has them: read everything, or some tables, anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdcflow.interleave.messages import Backfill, Input, Pause
from cdcflow.interleave.progress import Progress, TableProgress
from cdcflow.model import rereading
from cdcflow.model.table import TableId

WHY = "the settings now keep its values differently"


def kept_otherwise(source: Mapping[str, str], progress: Progress) -> tuple[TableId, ...]:
    """The tables whose rows the log has as other settings made them. One that was never read is not among them."""
    named = sorted(rereading.pending(source))
    return tuple(table for table in named if table in progress.tables and has_rows(progress.tables[table]))


def has_rows(known: TableProgress) -> bool:
    """Whether the log has rows of it that a backfill read, or is about to get some."""
    return known.state in ("waiting", "reading", "paused", "done") or known.whole_since is not None


def orders(tables: tuple[TableId, ...], progress: Progress) -> list[Input]:
    """What has these tables read anew; one that is paused when it is resumed."""
    paused = [Pause(table) for table in tables if progress.tables[table].state == "paused"]
    return [Backfill(tables), *paused] if tables else []


def without_orders(source: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in rereading.without(source).items() if name != "history"}


def unread(progress: Mapping[str, object]) -> dict[str, object]:
    """The progress after a hole in the history: no table may be called done before it is read again."""
    known = Progress.from_json(progress)
    tables = {t: replace(p, whole_since=None) for t, p in known.tables.items()}
    for table, progress_of in tables.items():
        if progress_of.state == "done":
            tables[table] = replace(progress_of, state="waiting", plan=None, cursor=None)
    return replace(known, tables=tables).to_json()
