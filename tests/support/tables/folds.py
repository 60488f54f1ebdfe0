"""The fold of a table whose shape changes, merge by merge: the expected current-state table.

Columns are called by their numbers, so that a rename changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa
from tests.support.log.hand_log import position_of, time_of
from tests.support.merge.histories import State, Written

from cdcflow.log.fold.fold import (
    End,
    FoldedRow,
    Follows,
    LogChange,
    TableVersions,
    append,
    fold,
    go_on,
    soft_delete,
    sweep,
    swept_softly,
)
from cdcflow.model.table import Column, Table
from cdcflow.tables.merge.policy import Mode, TablePolicy


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of columns. `family`: what a table can hold in one column; `default`: text and value of a constant that a
    new column may give the existing rows."""

    arrow: pa.DataType
    family: str
    wider: str | None = None
    narrower: str | None = None
    default: tuple[str, object] | None = None


KINDS = {
    "int": Kind(pa.int32(), "whole", wider="long", default=("7", 7)),
    "long": Kind(pa.int64(), "whole", narrower="int", default=("-7", -7)),
    "text": Kind(pa.string(), "text", default=("it's \\ `7`", "it's \\ `7`")),
    "price": Kind(pa.decimal128(8, 2), "money", wider="sum", default=("7.25", Decimal("7.25"))),
    "sum": Kind(pa.decimal128(12, 2), "money", narrower="price", default=("7.00", Decimal(7))),
    "flag": Kind(pa.bool_(), "flag", default=("true", True)),
    "real": Kind(pa.float32(), "ratio", wider="ratio"),
    "ratio": Kind(pa.float64(), "ratio"),
    "day": Kind(pa.date32(), "day"),
}
DEFAULTS = dict(kind.default for kind in KINDS.values() if kind.default is not None)
FAMILY = {kind.arrow: kind.family for kind in KINDS.values()}


VERSION = 1000
"""What is added to a column's number where its type differs from that of the table's column."""


def table_names(shape: Table) -> dict[str, str]:
    """What the table calls the columns of its latest shape."""
    return {c.name: f"{c.name}__2" if c.number > VERSION else c.name for c in shape.columns}


Left = dict[tuple[object, ...], list[str]]
"""By key the values of columns that the source has dropped, as text and in any order; NULLs aside."""


class Folded:
    """The fold of one table's changes. Columns are called by their numbers, as text."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], FoldedRow] = {}
        self.shape: Table | None = None
        self.known: set[str] = set()
        self.since = 0
        """Where the latest backfill began; only of a history."""

    def add(self, changes: Iterable[Written]) -> None:
        """One merge's input. Rows without a key are distinguished by the columns of the latest shape."""
        listed = list(changes)
        if listed and not listed[-1][0].key:
            listed = list(_in_shape(listed[-1][0], listed))
        for shape, stretch in groupby(listed, key=lambda pair: pair[0]):
            self.reshape(shape)
            self.apply(shape, _key_columns(shape), [_by_number(shape, c) for _, c in stretch])

    def apply(self, shape: Table, keys: tuple[str, ...], changes: list[LogChange]) -> None:
        """Changes of one shape, their columns and the key's by number."""
        self.rows = fold(self.rows, changes, keys, keyed=bool(shape.key))

    def sweep(self, since: int) -> None:
        """A backfill is done that began at this offset."""
        self.rows = sweep(self.rows, since)

    def expected(self, shape: Table) -> State:
        """What the table has in the columns of this shape, its latest."""
        names = {str(c.number): c.name for c in shape.columns}
        found: State = {}
        for key, row in self.rows.items():
            missing = frozenset(names[n] for n in row.missing if n in names)
            values = {name: row.values.get(n) for n, name in names.items() if name not in missing}
            found[key] = values, missing, row.offset, row.count
        return found

    def actual(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> State:
        """The rows of the table itself in the same form."""
        in_table = table_names(shape)
        in_source = {of_table: name for name, of_table in in_table.items()}
        found: State = {}
        for row in rows:
            told = frozenset(row["_missing"] or ())
            key = tuple(row[c] for c in shape.key_columns)
            offset, count = found[key][2:] if key in found else (0, 0)
            values = {name: row[of_table] for name, of_table in in_table.items() if of_table not in told}
            # A name that is no column's differs from the fold in any case.
            missing = frozenset(in_source[n] for n in told if n in in_source) | (told - row.keys())
            found[key] = values, missing, max(offset, row["_offset"]), count + 1
        return found

    def left(self, shape: Table) -> Left:
        """The rows' values in columns that the source has dropped, by key: the table chooses the name."""
        numbers = {str(c.number) for c in shape.columns}
        return {k: _any_order(v for n, v in r.values.items() if n not in numbers) for k, r in self.rows.items()}

    def left_in(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> Left:
        """The same in rows of the table."""
        return {tuple(row[c] for c in shape.key_columns): _left_of(shape, row) for row in rows}

    def reshape(self, shape: Table) -> None:
        """Rows of a dropped table are deleted; a new column gives its default to the existing rows. A row that already
        has it, or misses it, was inserted later."""
        before, self.shape = self.shape, shape
        if before is None or before.incarnation != shape.incarnation:
            self.rows, self.known = {}, set()
        for column in shape.columns:
            number = str(column.number)
            if before is not None and number not in self.known:
                default = _default(column)
                self.rows = {
                    k: r if number in r.missing else replace(r, values={number: default, **r.values})
                    for k, r in self.rows.items()
                }
            self.known.add(number)
        if not shape.key:
            self._count_again(shape)

    def _count_again(self, shape: Table) -> None:
        """Rows without a key are told apart by the columns that there are."""
        numbers = [str(c.number) for c in shape.columns]
        found: dict[tuple[object, ...], FoldedRow] = {}
        for row in self.rows.values():
            values = {n: row.values.get(n) for n in numbers}
            key = tuple(values.values())
            same = found.get(key)
            offset, count = (0, 0) if same is None else (same.offset, same.count)
            found[key] = FoldedRow(values, row.missing, max(offset, row.offset), count + row.count)
        self.rows = found


class SoftlyFolded(Folded):
    """The same where deleted rows stay."""

    def apply(self, shape: Table, keys: tuple[str, ...], changes: list[LogChange]) -> None:
        columns = frozenset(str(c.number) for c in shape.columns)
        self.rows = soft_delete(self.rows, changes, keys, columns - frozenset(keys))

    def sweep(self, since: int) -> None:
        self.rows = swept_softly(self.rows, since)

    def expected(self, shape: Table) -> State:
        ends = {key: row.deleted for key, row in self.rows.items()}
        return {k: ({**v, "_is_deleted": ends[k]}, m, o, n) for k, (v, m, o, n) in super().expected(shape).items()}

    def actual(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> State:
        listed = list(rows)
        ends = {tuple(row[c] for c in shape.key_columns): row["_is_deleted"] for row in listed}
        found = super().actual(shape, listed)
        return {k: ({**v, "_is_deleted": ends[k]}, m, o, n) for k, (v, m, o, n) in found.items()}


class Appended(Folded):
    """The changes themselves. A change of a table that was dropped since is identified by its values only: which column
    of the new table has them is a matter of names."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[LogChange] = []
        self.shapes: list[Table] = []

    @property
    def written(self) -> list[Written]:
        return list(zip(self.shapes, self.changes, strict=True))

    def add(self, changes: Iterable[Written]) -> None:
        listed = list(changes)
        self.changes = append(self.changes, [change for _, change in listed])
        self.shapes = [*self.shapes, *(shape for shape, _ in listed)]
        self.shape = self.shapes[-1] if self.shapes else None

    def sweep(self, since: int) -> None:
        pass

    def expected(self, shape: Table) -> State:
        names = {c.number: c.name for c in shape.columns}
        found: State = {}
        for then, change in self.written:
            said: dict[str, object] = {"_op": change.op, "_txn": change.transaction, "_commit_ts": change.offset}
            said["values"] = _any_order(v for v in change.values.values() if v is not None)
            missing = frozenset[str]()
            if then.incarnation == shape.incarnation:
                numbers = {c.name: c.number for c in then.columns}
                sent = {numbers[n]: v for n, v in change.values.items()}
                missing = frozenset(names[numbers[n]] for n in change.unchanged if numbers[n] in names)
                said |= {name: sent.get(n) for n, name in names.items()}
            found[(change.offset,)] = said, missing, len(change.unchanged), 1
        return found

    def actual(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> State:
        names = [c.name for c in shape.columns]
        living = {c.offset for s, c in self.written if s.incarnation == shape.incarnation}
        found: State = {}
        for row in rows:
            at = (row["_offset"],)
            said = {name: row[name] for name in ("_op", "_txn")}
            said["_commit_ts"] = round(row["_commit_ts"].timestamp() * 1_000_000)
            own = [v for name, v in row.items() if not (name in said or name in ("_offset", "_unchanged"))]
            said["values"] = _any_order(v for v in own if v is not None)
            told, missing = row["_unchanged"] or [], frozenset[str]()
            if row["_offset"] in living:
                said |= {name: row[name] for name in names}
                missing = frozenset(told) & set(names) | (frozenset(told) - row.keys())
            found[at] = said, missing, len(told), 1 + (found[at][3] if at in found else 0)
        return found


class Versioned(Folded):
    """The versions of each row. Of one whose table was dropped since, only the ends are compared: which column of the
    new table has its values is a matter of names."""

    def __init__(self) -> None:
        super().__init__()
        self.found = TableVersions()
        self.incarnations: dict[tuple[tuple[object, ...], int], int] = {}
        self.transactions: dict[int, int] = {}
        self.given: dict[str, int] = {}
        """By column, the offset of the first row that had it, from when on its default was in the others."""

    def add(self, changes: Iterable[Written]) -> None:
        listed = list(changes)
        for _, of_one in groupby(listed, key=lambda pair: pair[0].incarnation):
            self._add(list(of_one))
        self._told()

    def _add(self, written: Sequence[Written]) -> None:
        numbered = [(shape, _by_number(shape, change)) for shape, change in written]
        keys = _key_columns(written[0][0])
        self.transactions |= {change.offset: change.transaction for _, change in numbered}
        follows = Follows([change for _, change in numbered], keys)
        found = self.found = copy.copy(self.found)
        found.ended, found.open, found.rows = list(found.ended), dict(found.open), dict(self.rows)
        found.read, found.hidden = {}, set()
        for shape, stretch in groupby(numbered, key=lambda pair: pair[0]):
            changes = [change for _, change in stretch]
            self.reshape(shape, changes[0].offset)
            go_on(found, changes, keys, follows, self.since)

    def reshape(self, shape: Table, offset: int = 0) -> None:
        before, found = self.shape, self.found
        if before is not None and before.incarnation != shape.incarnation:
            for key in list(found.open):
                found.close(key, End(offset, exact=False))
            self.known, self.given, found.rows = set(), {}, {}
            self.incarnations |= {(k, v.start.offset): shape.incarnation for k, v in found.ended}
        self.shape = shape
        for column in shape.columns:
            number = str(column.number)
            if before is not None and before.incarnation == shape.incarnation and number not in self.known:
                default = {number: _default(column)}
                self.given[number] = offset
                for key, row in found.rows.items():
                    if number not in row.missing:
                        found.rows[key] = replace(row, values={**default, **row.values})
                for key, version in found.open.items():
                    if number not in version.missing:
                        found.open[key] = replace(version, values={**default, **version.values})
            self.known.add(number)

    def sweep(self, since: int) -> None:
        self.found.sweep(since)
        self._told()

    def _told(self) -> None:
        self.rows = {key: FoldedRow(v.values, v.missing, v.offset) for key, v in self.found.open.items()}

    def expected(self, shape: Table) -> State:
        names = {str(c.number): c.name for c in shape.columns}
        found: State = {}
        for key, version in [*self.found.ended, *self.found.open.items()]:
            end = version.end
            ends: dict[str, object] = {"_valid_from_exact": version.start.exact, "_valid_to": end and end.offset}
            ends["_valid_to_exact"] = end and end.exact
            at, missing = (*key, version.start.offset), frozenset[str]()
            if (key, version.start.offset) not in self.incarnations:
                missing = frozenset(names[n] for n in version.missing if n in names)
                later = {n for n, offset in self.given.items() if end is not None and end.offset < offset}
                values = {n: None if n in later else v for n, v in version.values.items()}
                ends |= {name: values.get(n) for n, name in names.items() if name not in missing}
            found[at] = ends, missing, version.offset, 1
        return found

    def actual(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> State:
        names = [c.name for c in shape.columns]
        found: State = {}
        for row in rows:
            key = tuple(row[c] for c in shape.key_columns)
            ends = {name: row[name] for name in ("_valid_from_exact", "_valid_to", "_valid_to_exact")}
            for side in ("from", "to"):
                offset, position, time = (row[f"_valid_{side}{part}"] for part in ("", "_position", "_time"))
                if offset is None or row[f"_valid_{side}_exact"]:
                    number = None if offset is None else self.transactions[offset]
                    right = (None, None) if number is None else (position_of(number), time_of(number))
                    assert (position, _in_utc(time)) == right
                else:
                    assert position is not None, f"{row} has no position"
            at, missing = (*key, row["_valid_from"]), frozenset[str]()
            if (key, row["_valid_from"]) not in self.incarnations:
                told = frozenset(row["_missing"] or ())
                missing = (told & set(names)) | (told - row.keys())
                given = self._given_too_late(shape, row)
                ends |= {name: None if name in given else row[name] for name in names if name not in told}
            found[at] = ends, missing, row["_offset"], 1 + (found[at][3] if at in found else 0)
        return found

    def left(self, shape: Table) -> Left:
        numbers = {str(c.number) for c in shape.columns}
        found: Left = {}
        for key, version in [*self.found.ended, *self.found.open.items()]:
            if (key, version.start.offset) not in self.incarnations:
                end = version.end
                later = {n for n, offset in self.given.items() if end is not None and end.offset < offset}
                values = [v for n, v in version.values.items() if n not in numbers and n not in later]
                found[(*key, version.start.offset)] = _any_order(values)
        return found

    def left_in(self, shape: Table, rows: Iterable[Mapping[str, Any]]) -> Left:
        listed = {(tuple(row[c] for c in shape.key_columns), row["_valid_from"]): row for row in rows}
        return {
            (*key, start): _left_of(shape, row)
            for (key, start), row in listed.items()
            if (key, start) not in self.incarnations
        }

    def _given_too_late(self, shape: Table, row: Mapping[str, Any]) -> frozenset[str]:
        """The columns that were added after a version for which a backfill recorded later when it had ended, at the
        latest. A merge before that took it for open and gave it their defaults (docs/tables.md)."""
        if row["_valid_to"] is None or row["_valid_to_exact"]:
            return frozenset()
        later = {n for n, offset in self.given.items() if row["_valid_to"] < offset}
        return frozenset(c.name for c in shape.columns if str(c.number) in later and row[c.name] in (None, _default(c)))


def _in_utc(time: datetime | None) -> datetime | None:
    """Spark gives its times without a zone, in the machine's own."""
    return None if time is None else time.astimezone(UTC)


def _left_of(shape: Table, row: Mapping[str, Any]) -> list[str]:
    there = {*table_names(shape).values()}
    return _any_order(v for n, v in row.items() if n not in there and not n.startswith("_"))


def _any_order(values: Iterable[object]) -> list[str]:
    values = [v for v in values if v is not None]
    return sorted(str(float(v)) if isinstance(v, int | float | Decimal) else str(v) for v in values)


FOLDED: dict[Mode, type[Folded]] = {
    "current": Folded,
    "soft_delete": SoftlyFolded,
    "append": Appended,
    "history": Versioned,
}


def _in_shape(newest: Table, changes: Iterable[Written]) -> Iterator[Written]:
    """Changes in the columns of another shape; those of a dropped table are removed."""
    for shape, change in changes:
        if shape.incarnation == newest.incarnation:
            names = {c.number: c.name for c in shape.columns}
            values = {
                c.name: change.values.get(names[c.number]) if c.number in names else _default(c) for c in newest.columns
            }
            yield newest, replace(change, values=values, before=None)


def _by_number(shape: Table, change: LogChange) -> LogChange:
    numbers = {c.name: str(c.number) for c in shape.columns}
    return replace(
        change,
        values={numbers[n]: v for n, v in change.values.items()},
        unchanged=frozenset(numbers[n] for n in change.unchanged),
        before=None if change.before is None else {numbers[n]: v for n, v in change.before.items()},
    )


def _default(column: Column) -> object:
    return None if column.missing is None else DEFAULTS[column.missing]


class Merged:
    """The merged state of one table: which changes are in it, since when, and whether it can follow at all, or may."""

    def __init__(self, mode: Mode = "current") -> None:
        self.mode = mode
        self.policy = TablePolicy(mode=mode)
        self.types: dict[int, pa.DataType] = {}
        self.is_refused = False
        self.log: list[Written] = []
        self.done = 0
        self.folded: Folded | None = None
        self.columns: dict[int, tuple[str, str]] = {}
        self.begun = 0
        self.is_left_out = False

    @property
    def is_there(self) -> bool:
        return self.folded is not None

    def move_away(self) -> None:
        self.folded, self.done = None, 0

    def merge(self, entry: Mapping[str, Any]) -> None:
        self.is_left_out = self.is_refused = False
        floor, since = _floor(entry), entry.get("since", 0)
        if self.folded is not None:
            new = self.log[self.done :]
            shapes = [shape for shape, _ in new]
            self.is_refused = not self._may_follow(shapes)
            if self.is_refused or not self._follows(shapes):
                self.is_left_out = True
                return
            self.folded.since = since
            self.folded.add(self._versioned(new))
        elif self.log:
            begins = [0, floor or 0] if self.mode in ("append", "history") else [floor or 0]
            if entry.get("state") in ("waiting", "reading") and since > begins[0]:
                begins.append(since)
            for begin in begins:
                # At least one row, from which the table gets its columns.
                new = [w for w in self.log if w[1].offset >= min(begin, self.log[-1][1].offset)]
                self.columns, self.types = {}, {}
                if self._follows([shape for shape, _ in new]):
                    break
            else:
                self.is_left_out = True
                return
            self.begun, self.folded = begin, FOLDED[self.mode]()
            self.folded.since = since
            self.folded.add(self._versioned(new))
        else:
            return
        self.done = len(self.log)
        self.folded.sweep(floor or 0)

    def is_whole(self, entry: Mapping[str, Any]) -> bool:
        floor = _floor(entry)
        return floor is not None and self.begun <= floor

    def _follows(self, shapes: Sequence[Table]) -> bool:
        """Whether the table accepts rows of these shapes, which give it its columns (name and family by number)."""
        is_append = self.mode == "append"
        # None, where there is no shape.
        are_kept = is_append or self.mode == "history"
        living = [s for s in shapes if are_kept or s.incarnation == shapes[-1].incarnation]
        columns, last = dict(self.columns), None if self.folded is None else self.folded.shape
        for shape in living:
            if last is not None and last.incarnation != shape.incarnation:
                if last.key != shape.key and not is_append:
                    return False
                # Columns by their names; those that the new table lacks do not belong to it.
                by_name = {name.lower(): family for name, family in columns.values()}
                columns = {
                    c.number: (c.name, by_name[c.name.lower()]) for c in shape.columns if c.name.lower() in by_name
                }
            elif last is not None and _key_numbers(last) != _key_numbers(shape) and not is_append:
                return False
            for column in shape.columns:
                family = FAMILY[column.type.arrow]
                held = columns.setdefault(column.number, (column.name, family))[1]
                fixed = self.policy.incompatible == "stop" or column.name in shape.key_columns
                if held != family and fixed:
                    return False
                columns[column.number] = column.name, held
            # A column that is dropped keeps its name until another needs it.
            names = {c.name.lower() for c in shape.columns}
            numbers = {c.number for c in shape.columns}
            columns = {
                n: (name if n in numbers or name.lower() not in names else f"?{n}", family)
                for n, (name, family) in columns.items()
            }
            last = shape
        self.columns = columns
        before = None if self.folded is None else self.folded.shape
        if living and before is not None and before.incarnation != living[-1].incarnation:
            self.types = self._types_by_name(living)
        for shape in living:
            for column in shape.columns:
                held_type = self.types.setdefault(column.number, column.type.arrow)
                if _is_wider(column.type.arrow, held_type):
                    self.types[column.number] = column.type.arrow
        return True

    def _types_by_name(self, living: Sequence[Table]) -> dict[int, pa.DataType]:
        """The types that a recreated table finds in the columns of the old one."""
        assert self.folded is not None
        assert self.folded.shape is not None
        old = {c.name.lower(): self.types[c.number % VERSION] for c in self.folded.shape.columns}
        return {c.number: old[c.name.lower()] for c in living[0].columns if c.name.lower() in old}

    def _may_follow(self, shapes: Sequence[Table]) -> bool:
        """Whether its policy allows the source's change of the table's shape."""
        last = None if self.folded is None else self.folded.shape
        living = [s for s in shapes if s.incarnation == shapes[-1].incarnation]
        if self.policy.evolve == "evolve" or last is None or not living:
            return True
        was, types = {c.number % VERSION: c.name for c in last.columns}, self.types
        if last.incarnation != living[0].incarnation:
            by_name = {c.name.lower(): c.number for c in living[0].columns}
            if any(name.lower() not in by_name for name in was.values()):
                return False
            types = self._types_by_name(living)
            was = {by_name[name.lower()]: name for name in was.values()}
        held = {c.number: types.get(c.number, c.type.arrow) for s in living for c in s.columns}
        retyped = {c.number for s in living for c in s.columns if FAMILY[c.type.arrow] != FAMILY[held[c.number]]}
        retyped -= self.retyped
        now = {c.number: c.name for c in living[-1].columns}
        if any(number not in now for number in was):
            return False
        # A column that a new version replaces stays where it was.
        now |= {number: _last_name(name, number, held, living) for number, name in was.items() if number in retyped}
        if any(now[number] != name for number, name in was.items()):
            return False
        if any(_is_wider(c.type.arrow, types.get(c.number)) for s in living for c in s.columns):
            return False
        come = {c.number for s in (living if last.key else living[-1:]) for c in s.columns} - was.keys()
        return self.policy.evolve == "add_only" or not come | retyped

    @property
    def retyped(self) -> set[int]:
        """Columns that have a version already."""
        columns = () if self.folded is None or self.folded.shape is None else self.folded.shape.columns
        return {c.number % VERSION for c in columns if c.number > VERSION}

    def _versioned(self, written: Sequence[Written]) -> list[Written]:
        """The same with other numbers for columns of another type than the table's column has."""

        def numbered(shape: Table) -> Table:
            if shape.incarnation != written[-1][0].incarnation:
                return shape
            columns = (
                replace(c, number=c.number + VERSION * (self.columns[c.number][1] != FAMILY[c.type.arrow]))
                for c in shape.columns
            )
            return replace(shape, columns=tuple(columns))

        return [(numbered(shape), change) for shape, change in written]

    def expected(self) -> State:
        """What the table has in the columns of its latest shape."""
        if self.folded is None or self.folded.shape is None:
            return {}
        return self.folded.expected(self.folded.shape)


def _last_name(name: str, number: int, held: Mapping[int, pa.DataType], shapes: Iterable[Table]) -> str:
    """What the table finally calls a column that has another type in some of these shapes."""
    for shape in shapes:
        own = [c.name for c in shape.columns if c.number == number and FAMILY[c.type.arrow] == FAMILY[held[number]]]
        # A column of another type gets a version, whose name is no other's.
        own_type = [c for c in shape.columns if FAMILY[c.type.arrow] == FAMILY[held[c.number]]]
        others = {c.name.lower() for c in own_type if c.number != number}
        if own:
            name = own[0]
        elif name.lower() in others:
            name = f"{name}__dropped_{number}"
    return name


def _is_wider(new: pa.DataType, old: pa.DataType | None) -> bool:
    wider = {KINDS[k.wider].arrow: k.arrow for k in KINDS.values() if k.wider is not None}
    return old is not None and wider.get(new) == old


def _floor(entry: Mapping[str, Any]) -> int | None:
    """From where on the log has every row."""
    found: int | None = entry["since"] if entry.get("state") == "done" else entry.get("whole_since")
    return found


def _key_columns(shape: Table) -> tuple[str, ...]:
    """The key's columns, by number."""
    return tuple(str(c.number) for n in shape.key_columns for c in shape.columns if c.name == n)


def _key_numbers(shape: Table) -> list[int]:
    return [c.number for n in shape.key for c in shape.columns if c.name == n]
