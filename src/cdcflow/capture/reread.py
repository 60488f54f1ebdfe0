"""Requests to read all or some tables again. A checkpoint's `source` carries them until a cut stores the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cdcflow.capture.interleave.messages import Backfill, Input, Pause
from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.capture.ports.source import TablesToReread
from cdcflow.model.position import Checkpoint, position_text
from cdcflow.model.table import Table, TableId, tables_as_json, tables_from_json

WHY = "the settings now keep its values differently"
LOST, KEPT = "lost", "lost, rows kept"
"""The values of `history` in a checkpoint's `source` after a gap. LOST: all tables are to be read again. KEPT: all but
those that keep their rows, unverified."""
_HISTORY = "history"
_TABLES = _REREAD, _RETRIED = "reread", "retried"


@dataclass(frozen=True, slots=True)
class StoredOrders:
    """The tables still to be read again after a start, stored in a checkpoint's `source` next to the source's own
    state.

    So a crash between that checkpoint and the cut that stores the commands loses no request. `history`: `LOST` or
    `KEPT` after a gap, "" if no history is lost. `reread`: the tables that a backfill reads again because settings
    changed.
    """

    history: str = ""
    reread: TablesToReread = field(default_factory=TablesToReread)

    @classmethod
    def read(cls, source: Mapping[str, str]) -> StoredOrders:
        reread, retried = (frozenset(tables_from_json(source.get(name))) for name in _TABLES)
        return cls(source.get(_HISTORY, ""), TablesToReread(reread, retried))

    def write(self) -> dict[str, str]:
        listed = {_REREAD: self.reread.tables, _RETRIED: self.reread.retried}
        tables = {name: tables_as_json(sorted(found)) for name, found in listed.items() if found}
        return tables | ({_HISTORY: self.history} if self.history else {})

    def tables_to_read(self, progress: Progress) -> tuple[TableId, ...]:
        """Return the tables whose values other settings produced, or whose backfill failed with other settings.

        Tables that no backfill was ever requested for are not among them.
        """
        known = progress.tables
        again = {table for table in self.reread.tables if table in known and is_read_again(known[table])}
        failed = {table for table in self.reread.retried if table in known and known[table].state == "failed"}
        return tuple(sorted(again | failed))


def without_orders(source: Mapping[str, str]) -> dict[str, str]:
    """Return the source's own state: `source` without the fields that `StoredOrders` writes."""
    return {name: value for name, value in source.items() if name not in (*_TABLES, _HISTORY)}


def is_read_again(known: TableProgress) -> bool:
    """Whether a changed setting for a table's values requires reading it again: the log has rows of it, or its backfill
    failed."""
    return has_rows(known) or known.state == "failed"


def has_rows(known: TableProgress) -> bool:
    """Whether the log has rows of the table that a backfill read, or will get some."""
    return known.state in ("waiting", "reading", "paused", "done") or known.whole_since is not None


def orders(tables: tuple[TableId, ...], progress: Progress) -> list[Input]:
    """Return the inputs that have these tables read again; a paused table is read when it is resumed."""
    paused = [Pause(table) for table in tables if progress.tables[table].state == "paused"]
    return [Backfill(tables), *paused] if tables else []


def is_kept(known: TableProgress | None) -> bool:
    """Whether a table keeps its rows after a gap, unverified."""
    return known is not None and known.in_doubt and known.state == "done" and _has_all(known)


def is_comparable(known: TableProgress, table: Table, logged: Table | None) -> bool:
    """Whether a table at another server can be compared with the rows that the log has: it has the same number
    (`incarnation`) and the same columns.

    `logged`: the shape of its latest rows in the log (None if the log has no rows of it).
    """
    is_same_table = known.incarnation == table.incarnation
    return is_same_table and (logged is None or logged.has_columns_of(table))


def in_doubt(
    after: Checkpoint,
    before: str,
    tables: Iterable[Table],
    *,
    by: str = "",
    keeps: Callable[[TableProgress, Table], bool] = lambda known, table: True,
) -> dict[str, object]:
    """Return the progress after a gap in the history that began at position `before`.

    Tables with a key that were completely read, and that `keeps` allows, are unverified from now on; the others are as
    `unread` returns them. `by`: see `Gap`.
    """
    keyed = {table.id: table for table in tables if table.key}
    known = Progress.from_json(after.progress)
    found = {}
    for table, now in known.tables.items():
        if table in keyed and is_whole(now) and keeps(now, keyed[table]):
            began = now.gap.before if now.gap is not None and now.in_doubt else before
            gap = Gap(
                after.next_offset,
                now.generation,
                after.epoch,
                began,
                position_text(after.position) or "",
                base="" if now.gap is None else now.gap.base,
                by=by or (now.gap.by if now.gap is not None and now.in_doubt else ""),
            )
            # The comparison proves the rows. The row version of the old server means nothing at another server.
            found[table] = replace(now, gap=gap, row_version=None if by else now.row_version)
        else:
            found[table] = _unread(now)
    return replace(known, tables=found).to_json()


def is_whole(known: TableProgress) -> bool:
    """Whether the log has every row of the table, and the table was not read as a single chunk of kind "whole"."""
    return known.state == "done" and not known.whole and _has_all(known)


def _has_all(known: TableProgress) -> bool:
    return known.whole_since is not None or known.has_base


def unread(progress: Mapping[str, object]) -> dict[str, object]:
    """Return the progress after a gap in the history: no table counts as done until it is read again."""
    known = Progress.from_json(progress)
    return replace(known, tables={t: _unread(p) for t, p in known.tables.items()}).to_json()


def _unread(known: TableProgress) -> TableProgress:
    if known.lacks_changes:  # it stays failed, and lacks the changes of this gap too
        return known
    known = replace(known, whole_since=None, gap=None)
    return replace(known, state="waiting", plan=None, cursor=None) if known.state == "done" else known
