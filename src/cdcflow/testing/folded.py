"""A log folded in plain Python: the rows of its tables at its latest cut, for comparing with the source itself.

Slow and simple on purpose: it reads the log through the public reader and applies `cdcflow.log.fold.fold`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.errors import ConfigurationError
from cdcflow.log.fold.fold import FoldedRow, Key, LogChange, fold, sweep
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.read.reader import LogLocation
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Table, TableId
from cdcflow.tables.merge.evolution import evolve


def folded_log(location: LogLocation) -> dict[TableId, dict[Key, FoldedRow]]:
    """Return every table of a log in a folder or a store as of its latest cut. If a table's backfill is done, rows that
    it did not find are removed."""
    return fold_log(FolderReader(location))


def fold_log(log: LogReader) -> dict[TableId, dict[Key, FoldedRow]]:
    """Return every table of any log as of its latest cut. If a table's backfill is done, rows that it did not find are
    removed."""
    changes: dict[TableId, list[tuple[Table, LogChange]]] = defaultdict(list)
    for table, _version, rows in log.read_rows():
        changes[table.id].extend((table, change) for change in changes_of(table, rows))
    checkpoint = log.newest_checkpoint()
    progress = Progress.from_json(checkpoint.progress) if checkpoint else Progress()
    state: dict[TableId, dict[Key, FoldedRow]] = {}
    for table_id, found in changes.items():
        found.sort(key=lambda pair: pair[1].offset)
        newest = found[-1][0]
        rows = fold({}, (change for _, change in found), newest.key_columns, keyed=bool(newest.key))
        known = progress.tables.get(table_id)
        state[table_id] = sweep(rows, known.since) if known and known.state == "done" else rows
    return state


def changes_of(table: Table, rows: pa.Table) -> Iterator[LogChange]:
    """Return the rows of a log's table (`table.log_schema`) as changes."""
    names = [c.name for c in table.columns]
    for row in rows.to_pylist():
        unchanged = frozenset(row[UNCHANGED] or ())
        yield LogChange(
            offset=row[OFFSET],
            op=row[OP],
            values={n: hashable(row[n]) for n in names if n not in unchanged} if row[OP] != "t" else {},
            unchanged=unchanged if row[OP] != "d" else frozenset(),
            before=None if row[BEFORE] is None else {k: hashable(v) for k, v in row[BEFORE].items()},
        )


def hashable(value: object) -> object:
    """Return lists and structs as tuples, so that a key may hold them."""
    if isinstance(value, list):
        return tuple(hashable(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, hashable(v)) for k, v in value.items())
    return value


# ── by column number, as the merge does it ──────────────────────────────────────────────────────────────────

Logged = list[tuple[Table, LogChange]]


class Readable(Protocol):
    """The part of a `cdcflow.ports.LogReader` that is needed here."""

    def read_rows(self) -> Iterator[tuple[Table, int, pa.Table]]: ...
    def newest_checkpoint(self) -> Checkpoint: ...


class Unmergeable(Exception):
    """Raised where the merge would stop too: no table can hold rows of all these shapes, so a backfill is needed."""


def read(log: Readable) -> tuple[dict[TableId, Logged], Progress]:
    """Every table's changes in the order of the log."""
    found: dict[TableId, Logged] = defaultdict(list)
    for table, _version, rows in log.read_rows():
        found[table.id].extend((table, change) for change in changes_of(table, rows))
    for changes in found.values():
        changes.sort(key=lambda pair: pair[1].offset)
    return found, Progress.from_json(log.newest_checkpoint().progress)


def current(
    logged: Logged, progress: TableProgress | None, *, since_backfill: bool = False
) -> tuple[Table, list[dict[str, Any]]]:
    """Return a table's rows by column name, and its latest shape. `since_backfill`: use only changes since the latest
    backfill began.

    Raises:
        Unmergeable: the shapes are such that only a new table can hold them.
    """
    newest = logged[-1][0]
    if since_backfill and progress is not None:
        logged = [pair for pair in logged if pair[1].offset >= progress.since]
        if not logged:  # the backfill found no row
            return newest, []
        newest = logged[-1][0]
    living = [pair for pair in logged if pair[0].incarnation == newest.incarnation]
    # The merge also orders shapes by their last row, because an earlier shape may return.
    last = {table: change.offset for table, change in living}
    shapes = sorted(last, key=lambda shape: last[shape])
    try:
        evolve(None, shapes)
    except ConfigurationError as error:
        raise Unmergeable(str(error)) from None
    defaults = _defaults(shapes)
    numbers = {c.name: str(c.number) for c in newest.columns}
    key = tuple(numbers[name] for name in newest.key_columns)
    rows = fold({}, (_by_number(table, change) for table, change in living), key, keyed=bool(newest.key))
    if progress is not None and progress.state == "done":
        rows = sweep(rows, progress.since)
    out = []
    for row in rows.values():
        values = {name: row.values.get(n, defaults.get(n)) for name, n in numbers.items()}
        values |= {name: "(never sent)" for name, n in numbers.items() if n in row.missing}
        out += [values] * row.count
    return newest, out


def _by_number(table: Table, change: LogChange) -> LogChange:
    numbers = {c.name: str(c.number) for c in table.columns}
    return LogChange(
        offset=change.offset,
        op=change.op,
        values={numbers[n]: v for n, v in change.values.items()},
        unchanged=frozenset(numbers[n] for n in change.unchanged),
        before=None if change.before is None else {numbers[n]: v for n, v in change.before.items()},
    )


def _defaults(shapes: Sequence[Table]) -> dict[str, Any]:
    """Map the number of each column to its value in rows of shapes without it."""
    known = {c.number for c in shapes[0].columns}
    found: dict[str, Any] = {}
    for shape in shapes[1:]:
        for column in shape.columns:
            if column.number not in known:
                known.add(column.number)
                if column.missing is not None:
                    found[str(column.number)] = _value(column.missing, column.type.arrow)
    return found


def _value(text: str, arrow: pa.DataType) -> object:
    if pa.types.is_boolean(arrow):
        return text in ("t", "true", "1")
    return pa.array([text]).cast(arrow)[0].as_py()
