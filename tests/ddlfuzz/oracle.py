"""What a log says of a table: folded by column number, as the merge does it, under the names of the newest shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.interleave.progress import Progress, TableProgress
from cdcflow.merge.evolution import evolve
from cdcflow.merge.fold import Change, fold, swept
from cdcflow.model.table import Table, TableId
from cdcflow.ports import LogReader
from cdcflow.testing.folded import changes_of

Logged = list[tuple[Table, Change]]


class Unmergeable(Exception):
    """The merge would stop by name at this table's shapes, and ask for a backfill."""


def read(log: LogReader) -> tuple[dict[TableId, Logged], Progress]:
    """Every table's changes in the order of the log."""
    found: dict[TableId, Logged] = defaultdict(list)
    for table, _version, rows in log.read_rows():
        found[table.id].extend((table, change) for change in changes_of(table, rows))
    for changes in found.values():
        changes.sort(key=lambda pair: pair[1].offset)
    return found, Progress.from_json(log.newest_checkpoint().progress)


def current(
    logged: Logged, progress: TableProgress | None, *, anew: bool = False
) -> tuple[Table, list[dict[str, Any]]]:
    """A table's rows by column name, and its newest shape. `anew`: only what the newest backfill began with and after.

    Raises:
        Unmergeable: the shapes are such that only a new table can hold them.
    """
    if anew and progress is not None:
        logged = [pair for pair in logged if pair[1].offset >= progress.since]
    newest = logged[-1][0]
    living = [pair for pair in logged if pair[0].incarnation == newest.incarnation]
    # As the merge orders them: by their last row, for one may come back after another.
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
        rows = swept(rows, progress.since)
    out = []
    for row in rows.values():
        values = {name: row.values.get(n, defaults.get(n)) for name, n in numbers.items()}
        values |= {name: "(never sent)" for name, n in numbers.items() if n in row.missing}
        out += [values] * row.count
    return newest, out


def _by_number(table: Table, change: Change) -> Change:
    numbers = {c.name: str(c.number) for c in table.columns}
    return Change(
        offset=change.offset,
        op=change.op,
        values={numbers[n]: v for n, v in change.values.items()},
        unchanged=frozenset(numbers[n] for n in change.unchanged),
        before=None if change.before is None else {numbers[n]: v for n, v in change.before.items()},
    )


def _defaults(shapes: Sequence[Table]) -> dict[str, Any]:
    """By column number: what rows of shapes without it have there."""
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


def differences(rows: Iterable[dict[str, Any]], source: Iterable[Sequence[Any]], columns: Sequence[str]) -> str | None:
    """How a table's rows by its log and those of the source differ, in a line; None: not at all."""
    logged = Counter(tuple(_plain(row.get(c, "(no such column)")) for c in columns) for row in rows)
    wanted = Counter(tuple(_plain(v) for v in row) for row in source)
    if logged == wanted:
        return None
    more, less = list((logged - wanted).elements()), list((wanted - logged).elements())
    at = {row[columns.index("id")]: row for row in more} if "id" in columns else {}
    for row in sorted(less, key=repr):
        if (other := at.get(row[columns.index("id")])) is not None:
            unequal = [
                f"{c}: {a!r} in the log, {b!r} in the source"
                for c, a, b in zip(columns, other, row, strict=True)
                if a != b
            ]
            return f"{len(less)} rows differ; id {row[columns.index('id')]}: {'; '.join(unequal)}"[:600]
    return f"{len(more)} rows in the log only, {len(less)} in the source only: {more[:1]} {less[:1]}"[:600]


def _plain(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


__all__ = ["Unmergeable", "current", "differences", "read"]
