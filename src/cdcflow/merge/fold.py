"""The meaning of a merge: from (rows, changes in offset order) to rows, in plain Python. The oracle.

Everything that applies changes (the Spark job above all) must give what `fold` gives; tests compare them. It is
short so that it can be believed, and slow, and never runs on the way from a source to a table.

What a row knows: a value per column, and which columns it is `missing`: never sent so far, which is neither NULL nor
unchanged. Until a table's backfill is done a row may miss columns; after that it must not (`unfinished`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

Key = tuple[object, ...]
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the log. `values` holds the columns that were sent; `unchanged` names those that were not.

    `values` of a delete hold at least the key. `before` is the old row of a key change (its insert follows
    directly on the delete of the old key), at least its key columns.
    """

    offset: int
    op: str
    values: Values = field(default_factory=dict)
    unchanged: frozenset[str] = frozenset()
    before: Values | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row. `offset` is its last change's. `count` is above 1 only in a table without a key, `deleted` says that the
    source has it no more (see `soft_delete`)."""

    values: Values
    missing: frozenset[str]
    offset: int
    count: int = 1
    deleted: bool = False


Rows = Mapping[Key, Row]


def fold(rows: Rows, changes: Iterable[Change], key_columns: tuple[str, ...], *, keyed: bool = True) -> dict[Key, Row]:
    """Apply changes, in offset order, to the rows of one table.

    `keyed` False: `key_columns` are all columns, and equal rows are counted.
    """
    state = dict(rows)
    for _ in _applied(state, changes, key_columns, keyed):
        pass
    return state


def soft_delete(
    rows: Rows, changes: Iterable[Change], key_columns: tuple[str, ...], columns: frozenset[str]
) -> dict[Key, Row]:
    """The same for a table with a key in which deleted rows stay, with their last values. What lives is what `fold`
    gives; a row that dies has the offset of the change that it died of.

    `columns` are those beside the key, which a row misses that was deleted before anything was known of it.
    """
    state = dict(rows)
    living = {key: row for key, row in rows.items() if not row.deleted}
    before = dict(living)
    for change in _applied(living, changes, key_columns, keyed=True):
        for key in before.keys() - living.keys():
            state[key] = replace(before[key], offset=change.offset, deleted=True)
        key = tuple(change.values.get(c) for c in key_columns)
        if change.op == "d" and key not in before:
            state[key] = Row(dict(zip(key_columns, key, strict=True)), columns, change.offset, deleted=True)
        state |= living
        before = dict(living)
    return state


def append(rows: Sequence[Change], changes: Iterable[Change]) -> list[Change]:
    """The same for a table whose rows are the changes themselves."""
    return [*rows, *changes]


def _applied(
    state: dict[Key, Row], changes: Iterable[Change], key_columns: tuple[str, ...], keyed: bool
) -> Iterator[Change]:
    """Apply changes to `state`, one at each step."""
    departed: tuple[int, Key, Row] | None = None
    for change in changes:
        key = tuple(change.values.get(c) for c in key_columns)
        match change.op:
            case "t":
                state.clear()
            case "d":
                gone = state.pop(key, None)
                if gone is not None:
                    departed = (change.offset, key, gone)
                    if gone.count > 1:
                        state[key] = Row(gone.values, gone.missing, change.offset, gone.count - 1)
            case "u":
                state[key] = _overlaid(state.get(key), change)
            case "c" | "r" if not keyed:
                count = state[key].count + 1 if key in state else 1
                state[key] = Row(dict(change.values), frozenset(), change.offset, count)
            case "c" | "r":
                state[key] = _overlaid(_moved_from(departed, change, key_columns), change)
            case op:
                raise ValueError(f"unknown op {op!r} at offset {change.offset}")
        yield change


def swept(rows: Rows, since: int) -> dict[Key, Row]:
    """The rows after a completed re-backfill that began at offset `since`: what nothing touched since is gone."""
    return {key: row for key, row in rows.items() if row.offset >= since}


def swept_softly(rows: Rows, since: int) -> dict[Key, Row]:
    """The same where deleted rows stay: what nothing touched since is deleted, and nobody knows by which change."""
    return {key: row if row.offset >= since else replace(row, deleted=True) for key, row in rows.items()}


def unfinished(rows: Rows) -> list[Key]:
    """Keys of rows that miss columns, deleted ones aside: none once the table's backfill is done."""
    return [key for key, row in rows.items() if row.missing and not row.deleted]


def _moved_from(departed: tuple[int, Key, Row] | None, change: Change, key_columns: tuple[str, ...]) -> Row | None:
    """The row that a key change's insert continues: the one that the delete directly before it took away."""
    if departed is None or change.before is None or not change.unchanged:
        return None
    offset, key, row = departed
    return row if offset == change.offset - 1 and key == tuple(change.before[c] for c in key_columns) else None


def _overlaid(old: Row | None, change: Change) -> Row:
    """The change's values over the old row's; what neither has is missing.

    An insert or read replaces the row, so there `old` is given only for a key change, and only for its unchanged
    columns.
    """
    sent = dict(change.values)
    if old is None:
        return Row(sent, change.unchanged, change.offset)
    kept = {c: v for c, v in old.values.items() if change.op == "u" or c in change.unchanged}
    unknown = old.missing | change.unchanged if change.op == "u" else change.unchanged
    missing = frozenset(c for c in unknown if c not in sent and c not in kept)
    return Row({**kept, **sent}, missing, change.offset)
