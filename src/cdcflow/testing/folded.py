"""A log folded in plain Python: what its tables hold at its newest cut, for comparing with the source itself.

Slow and simple on purpose: it reads the log as any stranger would and applies `cdcflow.merge.fold`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from cdcflow.changelog.folder import FolderReader
from cdcflow.changelog.reader import Place
from cdcflow.interleave.progress import Progress
from cdcflow.merge.fold import Change, Key, Row, fold, swept
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Table, TableId
from cdcflow.ports import LogReader


def folded_log(place: Place) -> dict[TableId, dict[Key, Row]]:
    """Every table of a log in a folder or a store as of its newest cut, swept where a backfill is done."""
    return folded(FolderReader(place))


def folded(log: LogReader) -> dict[TableId, dict[Key, Row]]:
    """The same of a log that is anywhere."""
    changes: dict[TableId, list[tuple[Table, Change]]] = defaultdict(list)
    for table, _version, rows in log.read_rows():
        changes[table.id].extend((table, change) for change in changes_of(table, rows))
    checkpoint = log.newest_checkpoint()
    progress = Progress.from_json(checkpoint.progress) if checkpoint else Progress()
    state: dict[TableId, dict[Key, Row]] = {}
    for table_id, found in changes.items():
        found.sort(key=lambda pair: pair[1].offset)
        newest = found[-1][0]
        rows = fold({}, (change for _, change in found), newest.key_columns, keyed=bool(newest.key))
        known = progress.tables.get(table_id)
        state[table_id] = swept(rows, known.since) if known and known.state == "done" else rows
    return state


def changes_of(table: Table, rows: pa.Table) -> Iterator[Change]:
    """The rows of a log's table (`table.log_schema`) as changes."""
    names = [c.name for c in table.columns]
    for row in rows.to_pylist():
        unchanged = frozenset(row[UNCHANGED] or ())
        yield Change(
            offset=row[OFFSET],
            op=row[OP],
            values={n: hashable(row[n]) for n in names if n not in unchanged} if row[OP] != "t" else {},
            unchanged=unchanged if row[OP] != "d" else frozenset(),
            before=None if row[BEFORE] is None else {k: hashable(v) for k, v in row[BEFORE].items()},
        )


def hashable(value: object) -> object:
    """Lists and structs as tuples, so that a key may hold them."""
    if isinstance(value, list):
        return tuple(hashable(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, hashable(v)) for k, v in value.items())
    return value
