"""The meaning of a merge in plain Python: from rows and changes, in offset order, to rows. It is the oracle for tests.

Everything that applies changes (the Spark job above all) must give what `fold` gives; tests compare them. It is short
so that it can be believed, and slow, and never runs on the way from a source to a table.

A row has a value per column, and a set of columns that are `missing`: never sent so far, which is neither NULL nor
unchanged. Until a table's backfill is done a row may miss columns; after that it must not (`incomplete_keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

Key = tuple[object, ...]
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LogChange:
    """One row of the log. `values` holds the columns that were sent; `unchanged` names those that were not.

    `values` of a delete hold at least the key. `before` is the old row of a key change (its insert follows directly on
    the delete of the old key), at least its key columns. Only `history` uses the rest: `transaction` is the
    transaction's number, `segment` that of the segment in which the row was sealed, before any compaction, and `read`
    whether the transaction is a backfill's.
    """

    offset: int
    op: str
    values: Values = field(default_factory=dict)
    unchanged: frozenset[str] = frozenset()
    before: Values | None = None
    transaction: int = 0
    segment: int = 0
    read: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the source's table at the time of the change. Not for deletes."""
        return self.unchanged | self.values.keys()

    @property
    def is_found(self) -> bool:
        """Whether a backfill read the row in this state, or a repair found it to be missing; since when is unknown."""
        return self.op == "r" or (self.op == "d" and self.read)


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """A row of the result. `offset`: that of its last change. `count`: above 1 only in a table without a key.
    `deleted`: the source no longer has the row (see `soft_delete`)."""

    values: Values
    missing: frozenset[str]
    offset: int
    count: int = 1
    deleted: bool = False


Rows = Mapping[Key, FoldedRow]


def fold(
    rows: Rows, changes: Iterable[LogChange], key_columns: tuple[str, ...], *, keyed: bool = True
) -> dict[Key, FoldedRow]:
    """Apply changes, in offset order, to the rows of one table, and return the rows after them.

    `keyed` False: `key_columns` are all columns, and equal rows are counted.
    """
    state = dict(rows)
    for _ in _apply(state, changes, key_columns, keyed):
        pass
    return state


def soft_delete(
    rows: Rows, changes: Iterable[LogChange], key_columns: tuple[str, ...], columns: frozenset[str]
) -> dict[Key, FoldedRow]:
    """Apply changes like `fold`, for a table with a key in which deleted rows stay, with their last values. The live
    rows are those of `fold`; a deleted row has the offset of the change that deleted it.

    `columns` are those other than the key, which are missing in a row that was deleted before any change of it arrived.
    """
    state = dict(rows)
    living = {key: row for key, row in rows.items() if not row.deleted}
    before = dict(living)
    for change in _apply(living, changes, key_columns, keyed=True):
        for key in before.keys() - living.keys():
            state[key] = replace(before[key], offset=change.offset, deleted=True)
        key = tuple(change.values.get(c) for c in key_columns)
        if change.op == "d" and key not in before:
            state[key] = FoldedRow(dict(zip(key_columns, key, strict=True)), columns, change.offset, deleted=True)
        state |= living
        before = dict(living)
    return state


def append(rows: Sequence[LogChange], changes: Iterable[LogChange]) -> list[LogChange]:
    """Apply changes like `fold`, for a table whose rows are the changes themselves."""
    return [*rows, *changes]


def _apply(
    state: dict[Key, FoldedRow], changes: Iterable[LogChange], key_columns: tuple[str, ...], keyed: bool
) -> Iterator[LogChange]:
    """Apply changes to `state`, one at each step, and yield each when it is applied."""
    departed: tuple[int, Key, FoldedRow] | None = None
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
                        state[key] = FoldedRow(gone.values, gone.missing, change.offset, gone.count - 1)
            case "u":
                state[key] = _overlaid(state.get(key), change)
            case "c" | "r" if not keyed:
                count = state[key].count + 1 if key in state else 1
                state[key] = FoldedRow(dict(change.values), frozenset(), change.offset, count)
            case "c" | "r":
                state[key] = _overlaid(_moved_from(departed, change, key_columns), change)
            case op:
                raise ValueError(f"unknown op {op!r} at offset {change.offset}")
        yield change


def sweep(rows: Rows, since: int) -> dict[Key, FoldedRow]:
    """Return the rows that remain after a repeated backfill that began at offset `since` and is done: rows without a
    change since then are removed."""
    return {key: row for key, row in rows.items() if row.offset >= since}


def swept_softly(rows: Rows, since: int) -> dict[Key, FoldedRow]:
    """Return the rows after a sweep like `sweep`, for a table in which deleted rows stay: rows without a change since
    then are marked as deleted, by an unknown change."""
    return {key: row if row.offset >= since else replace(row, deleted=True) for key, row in rows.items()}


def incomplete_keys(rows: Rows) -> list[Key]:
    """Return the keys of rows that miss columns, except deleted ones. Empty once the table's backfill is done."""
    return [key for key, row in rows.items() if row.missing and not row.deleted]


def _moved_from(
    departed: tuple[int, Key, FoldedRow] | None, change: LogChange, key_columns: tuple[str, ...]
) -> FoldedRow | None:
    """Return the row that the insert of a key change continues: the one that the delete directly before it removed."""
    if departed is None or change.before is None or not change.unchanged:
        return None
    offset, key, row = departed
    return row if offset == change.offset - 1 and key == tuple(change.before[c] for c in key_columns) else None


def _overlaid(old: FoldedRow | None, change: LogChange) -> FoldedRow:
    """Return the row after a change: the old row with the change's values. Columns that neither has are missing.

    An insert or read replaces the row, so for these `old` is given only for a key change, and used only for its
    unchanged columns.
    """
    sent = dict(change.values)
    if old is None:
        return FoldedRow(sent, change.unchanged, change.offset)
    kept = {c: v for c, v in old.values.items() if change.op == "u" or c in change.unchanged}
    unknown = old.missing | change.unchanged if change.op == "u" else change.unchanged
    missing = frozenset(c for c in unknown if c not in sent and c not in kept)
    return FoldedRow({**kept, **sent}, missing, change.offset)


# ── the versions of each row ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class End:
    """One end of a version. `exact`: the source changed the row at this offset. Otherwise it changed the row at this
    offset or before it: a backfill read the row in the new state, or found that an earlier row no longer existed."""

    offset: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """The values of a row from `start` up to `end` (`None` while the version is open). `offset`: that of the change
    that last confirmed or ended it."""

    values: Values
    missing: frozenset[str]
    start: End
    end: End | None
    offset: int


@dataclass(slots=True)
class TableVersions:
    """The versions of one table: those that have ended, and the open one of each key.

    Within a merge it also keeps what the next changes need of earlier ones: `rows` like those of `fold`; `read`, the
    columns whose value is from a backfill, with the segment; and `hidden`, the keys for which a row of a backfill
    arrived that created no version.
    """

    ended: list[tuple[Key, Version]] = field(default_factory=list)
    open: dict[Key, Version] = field(default_factory=dict)
    rows: dict[Key, FoldedRow] = field(default_factory=dict)
    read: dict[Key, dict[str, int]] = field(default_factory=dict)
    hidden: set[Key] = field(default_factory=set)

    def close(self, key: Key, end: End) -> None:
        if (gone := self.open.pop(key, None)) is not None:
            self.ended.append((key, replace(gone, end=end, offset=end.offset)))

    def sweep(self, since: int) -> None:
        """End the versions of rows without a change since the offset at which a backfill began that is done now: these
        rows no longer exist."""
        for key, version in list(self.open.items()):
            if version.offset < since:
                self.close(key, End(since, exact=False))


def history(
    open_: Mapping[Key, Version],
    changes: Sequence[LogChange],
    key_columns: tuple[str, ...],
    *,
    since: int = 0,
    swept: int = 0,
    gap: tuple[int, int] | None = None,
) -> TableVersions:
    """Apply changes, in offset order, to the open versions. Each transaction creates one version of each row that it
    changed. The changes must include all changes of their segments.

    `since`: the offset at which the latest backfill began (0 if there was none); `swept`: that of the latest one that
    is done, so that rows without a change since then no longer exist. `gap`: changes were lost before the first of
    these offsets, and since the second one (0: not yet) the rows are known to be right.

    A backfill's row precedes the changes of its window in the log, and may show them already; so may the delete of a
    row that a repair did not find. So if a change of the same row follows in the same segment (a window ends inside
    one), the row is known since that change, except for the columns that a still later change of the segment sends:
    their values may be from that change.
    """
    rows = {key: FoldedRow(v.values, v.missing, v.offset) for key, v in open_.items()}
    found = TableVersions(open=dict(open_), rows=rows)
    go_on(found, changes, key_columns, Follows(changes, key_columns), since, gap)
    found.sweep(swept)
    return found


def go_on(
    found: TableVersions,
    changes: Iterable[LogChange],
    key_columns: tuple[str, ...],
    follows: Follows,
    since: int,
    gap: tuple[int, int] | None = None,
) -> None:
    """Apply more of a merge's changes. `follows` knows all changes of the merge."""
    for _, group in groupby(changes, key=lambda c: c.transaction):
        together = list(group)
        touched: dict[Key, LogChange] = {}
        made: dict[Key, bool] = {}
        for change in together:
            key = tuple(change.values.get(c) for c in key_columns)
            # A repair's delete may have hidden a row whose version is open.
            keys = {*found.rows, *found.open, *touched} if change.op == "t" else {key}
            touched |= dict.fromkeys(keys, change)
            if change.op != "t":
                made.setdefault(key, change.op == "c")
            for k in keys:
                _note_read(found.read.setdefault(k, {}), change)
        found.rows = fold(found.rows, together, key_columns)
        for key, last in touched.items():
            row, stood = found.rows.get(key), found.open.get(key)
            if last.is_found and follows.change(key, last):
                found.hidden.add(key)
            elif last.op == "r" and row is not None and stood is not None and _alike(row, stood, last.columns):
                found.open[key] = replace(stood, offset=last.offset)
            else:
                # After a create, any earlier row with this key no longer exists.
                was_gone = made.get(key, False) and stood is not None and stood.offset < since <= last.offset
                is_across = gap is not None and stood is not None and _is_across(gap, stood.offset, last.offset)
                exact = not last.is_found and not was_gone and key not in found.hidden and not is_across
                found.close(key, End(since if was_gone else last.offset, exact))
                found.hidden.discard(key)
                if row is not None:
                    unsure = {
                        c for c, segment in found.read[key].items() if follows.is_sent_later(key, last, segment, c)
                    }
                    # A new version has no value of a column that the source has dropped.
                    values = {c: v for c, v in row.values.items() if c in last.columns and c not in unsure}
                    missing = (row.missing | unsure) & last.columns
                    found.open[key] = Version(values, missing, End(last.offset, last.op != "r"), None, last.offset)


def _is_across(gap: tuple[int, int], before: int, after: int) -> bool:
    first, until = gap
    return before < first <= after and (not until or after < until)


def _note_read(columns: dict[str, int], change: LogChange) -> None:
    """Update which columns of a row have their value from a backfill, after one more change of the row."""
    if change.op == "u":
        for name in change.values:
            columns.pop(name, None)
    else:
        columns.clear()
        columns |= dict.fromkeys(change.values, change.segment) if change.op == "r" else {}


def _alike(row: FoldedRow, version: Version, columns: frozenset[str]) -> bool:
    """Return whether a row and a version are the same in the columns that the source has. A row that misses one of them
    is like no other, because its value is unknown. A column that a shape does not have is NULL in its rows."""
    same = all(exact(row.values.get(c)) == exact(version.values.get(c)) for c in columns)
    return same and not (row.missing | version.missing) & columns


def exact(value: object) -> object:
    """Return a value that equals another only if it is identical: 0.0 is not -0.0, and a NaN is a NaN."""
    match value:
        case float():
            return repr(value)
        case Mapping():
            return {name: exact(part) for name, part in value.items()}
        case list() | tuple():
            return [exact(part) for part in value]
    return value


class Follows:
    """Finds the later changes of a row in the same segment."""

    def __init__(self, changes: Iterable[LogChange], key_columns: tuple[str, ...]) -> None:
        self._last: dict[object, int] = {}
        for change in changes:
            key = tuple(change.values.get(c) for c in key_columns)
            if change.op in "cud" and not change.is_found:
                self._last[key, change.segment] = change.offset
            if change.op in "cu":  # an insert brings the whole row, also what a key change left unchanged
                brought = [*change.values, *(change.unchanged if change.op == "c" else ())]
                self._last |= {(key, change.segment, column): change.offset for column in brought}

    def change(self, key: Key, read: LogChange) -> bool:
        """Return whether a change of the row follows the one that was read, in its segment."""
        return self._last.get((key, read.segment), 0) > read.offset

    def is_sent_later(self, key: Key, change: LogChange, segment: int, column: str) -> bool:
        """Return whether a later change of the row in that segment sends the column."""
        return self._last.get((key, segment, column), 0) > change.offset
