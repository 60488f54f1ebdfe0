"""The last rows of a log, in the order of their offsets, as Python objects: for a command that prints a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cdcflow.errors import HistoryLost
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import OFFSET, Table, TableId


def first_of_last(log: LogReader, table: TableId | None, limit: int) -> int:
    """Return an offset at or after which the log has about `limit` rows (of this table). It searches back in growing
    steps."""
    end = int(log.newest_checkpoint().next_offset)
    kept, expired, span = end, 0, limit
    while kept > expired + 1:
        start = max(1, end - span, (expired + kept) // 2 if expired else 1)
        try:
            found = [offset for offset, _ in rows_in_order(log, table, start, end)]
        except HistoryLost:
            expired = start
            continue
        if len(found) >= limit:
            return found[-limit]
        kept, span = start, span * 8
    return kept


def rows_in_order(
    log: LogReader, table: TableId | None, first: int, end: int
) -> Iterator[tuple[int, tuple[Table, dict[str, Any]]]]:
    """Rows with first <= offset < end, in offset order, read one range of offsets at a time."""
    step = 4096 if table is None else 1 << 17
    tables = None if table is None else (table,)
    for start in range(first, end, step):
        rows: list[tuple[int, tuple[Table, dict[str, Any]]]] = []
        for shape, _version, batch in log.read_rows(start, min(start + step, end) - 1, tables):
            rows += [(row[OFFSET], (shape, row)) for row in batch.to_pylist()]
        yield from sorted(rows, key=lambda row: row[0])
