"""Find the latest changes of some keys in the log, from which a reader of the report sees which side is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from cdcflow.errors import HistoryLost
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, TRANSACTION
from cdcflow.tables.verify.port import Columns, Comparer
from cdcflow.tables.verify.report import LoggedChange

CHANGES_MAX = 10
"""How many changes of each key are shown."""
ROWS_MAX = 4_000_000
"""How many of the log's latest rows are scanned."""
STEP = 250_000

_SHOWN = (OFFSET, OP, TRANSACTION, COMMIT_TS)

Key = tuple[object, ...]


def histories(
    log: LogReader, comparer: Comparer, columns: Columns, keys: pa.Table, newest: int
) -> Mapping[Key, tuple[LoggedChange, ...]]:
    """Return, for each of these keys, its latest changes up to an offset, oldest first."""
    found: dict[Key, list[LoggedChange]] = {}
    for rows in _back(log, comparer, columns, keys, newest):
        stamps = rows.column(COMMIT_TS).cast(pa.int64()).to_pylist()
        listed = sorted(zip(rows.to_pylist(), stamps, strict=True), key=lambda r: r[0][OFFSET], reverse=True)
        for row, stamp in listed:
            key = tuple(value for name, value in row.items() if name not in _SHOWN)
            changes = found.setdefault(key, [])
            if len(changes) < CHANGES_MAX:
                changes.append(LoggedChange(row[OFFSET], row[OP], row[TRANSACTION], _position(log, row[OFFSET]), stamp))
    return {key: tuple(reversed(changes)) for key, changes in found.items()}


def _back(log: LogReader, comparer: Comparer, columns: Columns, keys: pa.Table, newest: int) -> Iterator[pa.Table]:
    """Yield the rows with these keys, from offset `newest` backwards, as far as the log reaches."""
    only_key = replace(columns, columns=tuple((n, t) for n, t in columns.columns if n in columns.key))
    high = newest
    while high > max(0, newest - ROWS_MAX):
        low = max(1, high - STEP + 1)
        try:
            parts = list(log.read_rows(low, high, {columns.table}))
        except HistoryLost:
            return
        found = []
        for shape, _, rows in parts:
            if not set(columns.key) <= {c.name for c in shape.columns}:
                continue
            converted = comparer.convert_rows(only_key, shape, rows)
            named = {f"k{i}": converted.column(name) for i, name in enumerate(columns.key)}
            found.append(comparer.among(pa.table({**named, **{name: rows.column(name) for name in _SHOWN}}), keys))
        if found:
            yield pa.concat_tables(found, promote_options="permissive")
        high = low - 1


def _position(log: LogReader, offset: int) -> str:
    for headers in log.read_transactions(offset, offset):
        return str(headers.column("position")[0].as_py())
    return ""
