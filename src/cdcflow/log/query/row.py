"""Find one row at an offset: its changes, folded (`log.fold.fold`), from the latest back to one that has all columns.

    offset   12 c 1:a,b     31 u 1:A,·     57 d 1     58 c 2:A,·  (before: 1)
    as of 31   {a: A, b: b}                            the update has a, and left b unchanged: the insert has it
    as of 58   row 2 is {a: A, b: b}                   its key was changed: what was left unchanged is row 1's at 56

A change of an earlier shape is converted to the shape of the result: a renamed column keeps its number; a column that
was added later has the value that the source gave to the rows that existed then, or NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.log.fold import fold
from cdcflow.log.query.keyrows import Key, Rows
from cdcflow.log.read.alignment import default_of, defaults_of, sources
from cdcflow.model.change import DELETE, INSERT, READ, TRUNCATE
from cdcflow.model.table import BEFORE, COMMIT_TS, LOG_COLUMNS, OFFSET, OP, TRANSACTION, UNCHANGED, Table

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the log. `values`: the values that the source sent (for a delete at least the key, for a truncate
    nothing); `unchanged`: columns that it did not send. `before`: the old row as far as the source sent it."""

    table: Table
    offset: int
    transaction: int
    commit_ts: datetime
    op: str
    values: Values = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    before: Values | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The known state of a row. `values`: None if there is no row; `last` is its latest change, or None if it has no
    change. `unknown`: columns whose value the log does not have."""

    values: Values | None
    last: Change | None
    unknown: tuple[str, ...] = ()


_NAN = float("nan")
"""Replaces every NaN. A NaN equals no number, so a key with one is found again only if it is the same object."""

Find = Callable[[Key, int], Iterator[Rows]]
"""The rows of a key up to an offset, latest first (`KeyRows.of`)."""


def changes_of(found: Rows) -> Iterator[Change]:
    """Yield rows of the log, one by one."""
    shape, rows = found
    for row in rows.to_pylist():
        op, unchanged = row[OP], tuple(row[UNCHANGED] or ())
        sent = {
            name: value if value == value else _NAN
            for name, value in row.items()
            if name not in LOG_COLUMNS and name not in unchanged and op != TRUNCATE
        }
        if op == DELETE:
            sent = {name: value for name, value in sent.items() if name in shape.key_columns or value is not None}
        yield Change(shape, row[OFFSET], row[TRANSACTION], row[COMMIT_TS], op, sent, unchanged, row[BEFORE])


def row_at(find: Find, key: Key, offset: int, shape: Table, shapes: Sequence[Table]) -> Row:
    """Return a row at an offset, in the columns of `shape`. `shapes`: all that the table has had, oldest first."""
    back: list[Change] = []
    for change in _own(find(key, offset), key, shape):
        back.append(change)
        if _says_all(change):
            break
    if not back:
        return Row(None, None)
    started: dict[fold.Key, fold.FoldedRow] = {}
    oldest, changes = back[-1], [_as_shape(change, shape) for change in reversed(back)]
    # The first change after which the row exists: columns added later were added to it.
    first = 1 if oldest.op in (DELETE, TRUNCATE) else 0
    if first < len(changes):
        changes[first] = _with_given(changes[first], back[-1 - first].table, shape, shapes)
    if oldest.op == INSERT and oldest.before is not None and oldest.unchanged:
        # The row continues one with another key: what it left unchanged is that row's value before its delete.
        moved = Key(key.table, _texts(oldest.table, oldest.before))
        was = row_at(find, moved, oldest.offset - 2, shape, shapes)
        names = _names(oldest.table, shape)
        gone = tuple(oldest.before[c] for c in oldest.table.key)
        if was.values is not None:
            started[gone] = fold.FoldedRow(was.values, frozenset(was.unknown), oldest.offset - 2)
        key_columns = [names[c] for c in oldest.table.key]
        changes.insert(0, fold.LogChange(oldest.offset - 1, DELETE, dict(zip(key_columns, gone, strict=True))))
        changes[1] = fold.LogChange(
            oldest.offset, INSERT, changes[1].values, changes[1].unchanged, dict(zip(key_columns, gone, strict=True))
        )
    rows = fold.fold(started, changes, shape.key)
    [row] = rows.values() or [None]
    if row is None:
        return Row(None, back[0])
    missing = tuple(c.name for c in shape.columns if c.name not in row.values or c.name in row.missing)
    return Row({c.name: row.values.get(c.name) for c in shape.columns if c.name not in missing}, back[0], missing)


def changes_around(found: Rows, key: Key) -> Iterator[Change]:
    """Yield the rows of `KeyRows.of` that belong to the history of the key's row: its own, truncates, and the insert
    that continues it under another key. A row that only happens to follow a delete does not belong to it."""
    for change in changes_of(found):
        goes_on = change.op == INSERT and _has(change.before, change.table, key)
        if change.op == TRUNCATE or _is_of(change, key) or goes_on:
            yield change


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _own(found: Iterator[Rows], key: Key, shape: Table) -> Iterator[Change]:
    """Yield the changes of this row in this incarnation of the table. A change of an earlier table of the same name
    ends the search."""
    for part in found:
        if part[0].incarnation != shape.incarnation:
            return
        for change in changes_of(part):
            if change.op == TRUNCATE or _is_of(change, key):
                yield change


def _is_of(change: Change, key: Key) -> bool:
    return _has(change.values, change.table, key)


def _has(values: Values | None, shape: Table, key: Key) -> bool:
    columns = key.columns(shape)
    return (
        values is not None
        and columns is not None
        and all(_is_same(values.get(name), column[0].as_py()) for name, column in zip(shape.key, columns, strict=True))
    )


def _is_same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # both are NaN


def _says_all(change: Change) -> bool:
    """Return whether a change determines the whole row, so that earlier changes are irrelevant."""
    return change.op in (DELETE, TRUNCATE, INSERT, READ) or not change.unchanged


def _as_shape(change: Change, shape: Table) -> fold.LogChange:
    """Return a change with the column names and types of a shape."""
    names = _names(change.table, shape)
    sent = {
        names[name]: _cast(change.table, name, value, shape, names[name])
        for name, value in change.values.items()
        if name in names
    }
    unchanged = frozenset(names[name] for name in change.unchanged if name in names)
    return fold.LogChange(change.offset, change.op, sent, unchanged)


def _with_given(change: fold.LogChange, of: Table, shape: Table, shapes: Sequence[Table]) -> fold.LogChange:
    """Return a row's oldest change, with the values of the columns that were added while the row existed."""
    defaults = defaults_of([s for s in shapes if s.incarnation == shape.incarnation], shape)
    given: dict[str, Any] = {}
    unknown: set[str] = set()
    for column, own in zip(shape.columns, sources(of, shape), strict=True):
        if own is None:
            try:
                given[column.name] = default_of(column, shape, defaults).as_py()
            except ConfigurationError:  # cdcflow cannot parse the server's text of the value
                unknown.add(column.name)
    return replace(change, values={**given, **change.values}, unchanged=change.unchanged | unknown)


def _names(of: Table, shape: Table) -> dict[str, str]:
    """Return a shape's names for the columns of another shape, keyed by the latter's names."""
    found = zip(shape.columns, sources(of, shape), strict=True)
    return {own.name: column.name for column, own in found if own is not None}


def _cast(of: Table, name: str, value: Any, shape: Table, called: str) -> Any:
    """Return a value of an earlier type converted to the later one; a value that cannot be converted is returned
    unchanged."""
    before, now = of.row_schema.field(name).type, shape.row_schema.field(called).type
    if value is None or before == now:
        return value
    try:
        return pa.array([value], before).cast(now)[0].as_py()
    except (pa.ArrowException, ValueError):
        return value


def _texts(table: Table, row: Values) -> tuple[str, ...]:
    types = [table.row_schema.field(name).type for name in table.key]
    return tuple(text_of(row[name], of) for name, of in zip(table.key, types, strict=True))


def text_of(value: Any, of: pa.DataType) -> str:
    """Return a value of a key as the text that identifies it (`model.keytexts`)."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(pa.array([value], of).cast(pa.string())[0].as_py())
