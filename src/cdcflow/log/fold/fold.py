"""The meaning of a merge: from (rows, changes in offset order) to rows, in plain Python. The oracle.

Everything that applies changes (the Spark job above all) must give what `fold` gives; tests compare them. It is
short so that it can be believed, and slow, and never runs on the way from a source to a table.

What a row knows: a value per column, and which columns it is `missing`: never sent so far, which is neither NULL nor
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

    `values` of a delete hold at least the key. `before` is the old row of a key change (its insert follows
    directly on the delete of the old key), at least its key columns. `transaction` is its number, `segment` that of the
    segment that it was sealed in, before any compaction, `read` whether its transaction is a backfill's; only `history`
    uses them.
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
        """Whether the row was read in this state, or (by a repair) found to be missing; since when is unknown."""
        return self.op == "r" or (self.op == "d" and self.read)


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """A row. `offset` is its last change's. `count` is above 1 only in a table without a key. `deleted`: the source no
    longer has it (see `soft_delete`)."""

    values: Values
    missing: frozenset[str]
    offset: int
    count: int = 1
    deleted: bool = False


Rows = Mapping[Key, FoldedRow]


def fold(
    rows: Rows, changes: Iterable[LogChange], key_columns: tuple[str, ...], *, keyed: bool = True
) -> dict[Key, FoldedRow]:
    """Apply changes, in offset order, to the rows of one table.

    `keyed` False: `key_columns` are all columns, and equal rows are counted.
    """
    state = dict(rows)
    for _ in _apply(state, changes, key_columns, keyed):
        pass
    return state


def soft_delete(
    rows: Rows, changes: Iterable[LogChange], key_columns: tuple[str, ...], columns: frozenset[str]
) -> dict[Key, FoldedRow]:
    """The same for a table with a key in which deleted rows stay, with their last values. The live rows are those of
    `fold`; a deleted row has the offset of the change that deleted it.

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
    """The same for a table whose rows are the changes themselves."""
    return [*rows, *changes]


def _apply(
    state: dict[Key, FoldedRow], changes: Iterable[LogChange], key_columns: tuple[str, ...], keyed: bool
) -> Iterator[LogChange]:
    """Apply changes to `state`, one at each step."""
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
    """The rows after a completed re-backfill that began at offset `since`: what nothing touched since is gone."""
    return {key: row for key, row in rows.items() if row.offset >= since}


def swept_softly(rows: Rows, since: int) -> dict[Key, FoldedRow]:
    """The same where deleted rows stay: rows without a change since are deleted, by an unknown change."""
    return {key: row if row.offset >= since else replace(row, deleted=True) for key, row in rows.items()}


def incomplete_keys(rows: Rows) -> list[Key]:
    """Keys of rows that miss columns, except deleted ones: empty once the table's backfill is done."""
    return [key for key, row in rows.items() if row.missing and not row.deleted]


def _moved_from(
    departed: tuple[int, Key, FoldedRow] | None, change: LogChange, key_columns: tuple[str, ...]
) -> FoldedRow | None:
    """The row that a key change's insert continues: the one that the delete directly before it took away."""
    if departed is None or change.before is None or not change.unchanged:
        return None
    offset, key, row = departed
    return row if offset == change.offset - 1 and key == tuple(change.before[c] for c in key_columns) else None


def _overlaid(old: FoldedRow | None, change: LogChange) -> FoldedRow:
    """The change's values over the old row's; what neither has is missing.

    An insert or read replaces the row, so there `old` is given only for a key change, and only for its unchanged
    columns.
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
    """An end of a version: the offset, and whether it is exactly where the source made the change. Otherwise the row's
    state is only known since then (a backfill showed it), or became so then at the latest (an earlier row no longer
    existed)."""

    offset: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """A row from `start` up to `end` (None while open). `offset`: of the change that last confirmed or ended it."""

    values: Values
    missing: frozenset[str]
    start: End
    end: End | None
    offset: int


@dataclass(slots=True)
class TableVersions:
    """The versions of one table: those that have ended, and the open one of each key.

    Within a merge it also keeps what each change needs of the earlier ones: `rows` like those of `fold`, `read`, the
    columns whose value is from a backfill, with the segment, and `hidden`, the keys for which a backfill's row arrived
    that created no version.
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
        """A backfill is done that began at this offset: rows without a change since then no longer exist."""
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
    """Apply changes, in offset order, to the open versions: each transaction creates one version of each row that it
    changed. The changes are all of their segments. `since`: the offset at which the latest backfill began (0 if there
    was none); `sweep`: that of the latest one that is done, so that rows without a change since then no longer exist.
    `gap`: changes were lost before the first of these offsets, and since the second one (0: not yet) the rows are known
    to be right.

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
    """Apply more of a merge's changes. `follows` knows all of them."""
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
    """Which columns of a row have their value from a backfill, after one more change of it."""
    if change.op == "u":
        for name in change.values:
            columns.pop(name, None)
    else:
        columns.clear()
        columns |= dict.fromkeys(change.values, change.segment) if change.op == "r" else {}


def _alike(row: FoldedRow, version: Version, columns: frozenset[str]) -> bool:
    """Whether they are the same in the columns that the source has. A row that misses one of them is like no other: its
    value there is unknown. One that a shape does not have is NULL in it."""
    same = all(exact(row.values.get(c)) == exact(version.values.get(c)) for c in columns)
    return same and not (row.missing | version.missing) & columns


def exact(value: object) -> object:
    """A value that equals another only if it is identical: 0.0 is not -0.0, and a NaN is a NaN."""
    match value:
        case float():
            return repr(value)
        case Mapping():
            return {name: exact(part) for name, part in value.items()}
        case list() | tuple():
            return [exact(part) for part in value]
    return value


class Follows:
    """The later changes in the same segment."""

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
        """Whether a change of the row follows."""
        return self._last.get((key, read.segment), 0) > read.offset

    def is_sent_later(self, key: Key, change: LogChange, segment: int, column: str) -> bool:
        """Whether one follows in that segment which sends the column."""
        return self._last.get((key, segment, column), 0) > change.offset
