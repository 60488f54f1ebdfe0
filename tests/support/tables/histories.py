"""Random histories of tables, each generated from a separate seed, and the fold of them.

A history is one table of a made-up database, from its first row to its last statement. Many share one log and one
merge, and each is independent of the others, so any of them can be run alone.

    database    rows, some older than the log; changes; statements that change the shape; truncates; drop and create
    log         what a capture writes of it: whole and partial rows, backfills that are done, restarted and abandoned,
                and nothing for a while
    fold        `log.fold.fold` over the log, with columns by number, so that a rename changes nothing
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, differences, make_table
from tests.support.tables.folds import FAMILY, KINDS, VERSION, Folded, Merged

from cdcflow.log.fold.fold import LogChange
from cdcflow.model.file_layout import FileLayout, PartitionField, SortColumn
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.job.reports import MergeReport, TableMergeReport
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

MODES: tuple[Mode, ...] = ("current", "current", "soft_delete", "append", "history")
"""Modes of the tables whose merges are tested; one that is listed twice is tested twice as often."""

SEGMENTS = 2
"""Segments of a round: the input of one merge."""

Values = dict[int, Any]
"""A row of the database, by the columns' numbers."""


NAMES = {
    "whole": ("a", "number", "it's", "select", "A a"),
    "text": ("b", "order", "quo`te", "b.b", "B-b"),
    "money": ("c", 'pri"ce', "Ünï", "cc"),
    "flag": ("d", "d__dropped_4", "dd"),
    "ratio": ("e", "e\\e", "ee"),
    "day": ("f", "f?", "ff"),
}
"""By family, so that a recreated table has no other type under an old name."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of a table's files, and the numbers of their columns in an incarnation of the table."""

    partitions: tuple[PartitionField, ...]
    order: tuple[SortColumn, ...]
    numbers: frozenset[int]
    incarnation: int

    @property
    def texts(self) -> list[str]:
        return [*map(str, self.partitions), *map(str, self.order)]

    @property
    def names(self) -> set[str]:
        """The source's columns that they name."""
        return {name for name in FileLayout(self.partitions, self.order).columns if name[0] != "_"}


_WHOLE = (PartitionField(""), PartitionField("", "bucket", 3), PartitionField("", "truncate", 5))
TRANSFORMS: Mapping[str, Sequence[PartitionField]] = {
    "whole": _WHOLE,
    "text": (PartitionField(""), PartitionField("", "bucket", 2), PartitionField("", "truncate", 1)),
    "money": (PartitionField(""), PartitionField("", "bucket", 3)),
    "flag": (PartitionField(""),),
    "ratio": (),
    "day": (PartitionField(""), *(PartitionField("", time) for time in ("year", "month", "day"))),
}
"""By family, by what a table may be partitioned."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the database. `may_be_unchanged`: an update may leave it out of the log."""

    name: str
    number: int
    kind: str
    may_be_unchanged: bool = False
    missing: str | None = None

    def value(self, chance: random.Random, few: bool) -> Any:
        """One of the values that it may have; `few`: so few that equal rows happen."""
        number = chance.choice([None, 0, 1] if few else [*[None] * 7, *range(30)])
        if number is None:
            return None
        match KINDS[self.kind].family:
            case "text":
                return chance.choice([f"{self.number}-{number}", "", "it's \\", "x" * 40]) if not few else f"n{number}"
            case "money":
                return Decimal(number) / 4
            case "flag":
                return bool(number % 2)
            case "ratio":
                return {1: -0.0}.get(number, number / 2)
            case "day":
                return date(2024, 1, 1) + timedelta(days=number)
            case _:
                return number + (2**40 if self.kind == "long" and number % 7 == 3 else 0)


class History:
    """One table: its rows as the database has them, and the log's entry of its backfill (`entry`, {}: none yet)."""

    def __init__(self, seed: int, modes: Sequence[Mode] = ("current",)) -> None:
        """`modes`: its table's is one of these; a table without a key has no other than these two."""
        self.seed = seed
        self.chance = random.Random(seed)
        self.id = TableId("public", f"history_{seed}")
        self.incarnation = 1
        self.numbers = 0
        self.burnt: set[str] = set()
        key = self.chance.choices([1, 2, 0], [4, 3, 3])[0]
        self.few = not key
        self.keys = self.chance.choice([3, 4, 12])
        # Statements that clear rows away hide what happens to them, so they are rare in some histories.
        clearing = ["truncate", "begin_backfill", "unheard", "make_again"]
        self.rare = [f"_{name}" for name in clearing if self.chance.random() < 0.5]
        self.fields: list[Field] = []
        self.key: tuple[int, ...] = ()
        for _ in range(key):
            self.fields.append(self._field(self.chance.choice(["int", "int", "long", "text", "day"])))
            self.key = (*self.key, self.fields[-1].number)
        for _ in range(self.chance.randint(1 if key else 2, 4)):
            self.fields.append(self._field(self._any_kind()))
        self.rows: list[Values] = []
        self.entry: dict[str, Any] = {}
        # From a separate random source, so that a seed gives the same history in every mode.
        able = [m for m in modes if key or m in ("current", "append")]
        self.merged = Merged(random.Random(f"mode {seed}").choice(able or ["current"]))
        self.covered: Counter[str] = Counter()
        self.is_moved_away = False
        self.has_repairs = False
        self.layout: Layout | None = None
        self.recorded: Layout | None = None
        self.layout_chance = random.Random(f"layout {seed}")
        self.has_undone = False
        self.policy: TablePolicy | None = None
        self.queue: list[Callable[[int], list[Step]]] = []
        for _ in range(self.chance.choice([0, 3, 9])):  # older than the log
            self._insert(0)

    # ── queries ─────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self) -> list[int]:
        """How many events each segment of the next round has."""
        self.is_moved_away = self.merged.is_there and self.chance.random() < (0.6 if self.merged.is_left_out else 0.04)
        if self.merged.is_refused:
            # The remedy: the policy is changed for one merge.
            self.merged.policy = replace(self.merged.policy, evolve="evolve")
        elif self.policy is not None:
            self.merged.policy = self.policy
        if self.merged.is_left_out and not self.merged.is_refused and not self.queue:
            # The remedy: the folder is moved away, some time, and everything is read again.
            self.queue = [self._begin_backfill, self._read, self._update, self._end_backfill]
        return [self.chance.choice([0, 1, 3, 8, 16]) for _ in range(SEGMENTS)]

    def event(self, offset: int) -> list[Step]:
        """What happens next: changes that nothing comes between, the first at this offset."""
        if self.queue and self.chance.random() < 0.5:
            chosen = self.queue.pop(0)
        else:
            kinds = {
                self._insert: 8,
                self._update: 10,
                self._delete: 4,
                self._move: 4,
                self._swap: 1,
                self._truncate: 1,
                self._begin_backfill: 2,
                self._read: 4,
                **({self._repair: 4} if self.has_repairs else {}),
                self._end_backfill: 3,
                self._cancel: 0.5,
                self._unheard: 1,
                self._add: 1,
                self._drop: 1,
                self._rename: 1.5,
                self._swap_names: 0.7,
                self._widen: 1,
                self._narrow: 0.5,
                self._make_again: 0.4,
                self._break: 0.15 if self.policy is None else 3,
                **({self._undone: 6} if self.has_undone else {}),
            }
            weights = [weight / 20 if kind.__name__ in self.rare else weight for kind, weight in kinds.items()]
            chosen = self.chance.choices(list(kinds), weights)[0]
        found = chosen(offset)
        self.covered[_name_of(chosen)] += 1
        return found

    def lay_out(self, *, partitions: bool) -> None:
        """Choose the settings of its files for the next merge: often the ones that it has."""
        if self.is_moved_away:
            self.recorded = None
        if not self.merged.log:
            return
        shape = self.merged.log[-1][0]
        if self.layout is None or not self._may_have(self.layout, shape) or self.layout_chance.random() < 0.2:
            self.layout = self._any_layout(shape, partitions=partitions)

    def _may_have(self, layout: Layout, shape: Table) -> bool:
        """Whether a table whose latest rows have this shape may have these settings."""
        if {c.name for c in shape.columns} >= layout.names:
            return True  # the names of each family are its own
        is_same = self.recorded is not None and self.recorded.texts == layout.texts
        numbers = {c.number for c in shape.columns}
        return is_same and layout.incarnation == shape.incarnation and layout.numbers <= numbers

    def _any_layout(self, shape: Table, *, partitions: bool) -> Layout:
        chance = self.layout_chance
        chosen = chance.sample(shape.columns, chance.randint(0, min(2, len(shape.columns))))
        able = [(c.name, found) for c in chosen if partitions and (found := TRANSFORMS[FAMILY[c.type.arrow]])]
        fields = [replace(chance.choice(found), column=name) for name, found in able]
        own = {"append": ("_op", "day(_commit_ts)"), "soft_delete": ("_is_deleted",)}.get(self.merged.mode, ())
        if partitions and own and chance.random() < 0.3:
            fields.append(PartitionField.parse(chance.choice(own)))
        by = chance.sample(shape.columns, chance.choice([0, 0, 1, 2]) % (len(shape.columns) + 1))
        order = tuple(SortColumn(c.name, chance.random() < 0.5) for c in by)
        numbers = frozenset(c.number for c in (*chosen, *by))
        return Layout(tuple(fields), order, numbers, shape.incarnation)

    @property
    def shape(self) -> Table:
        columns = []
        for f in self.fields:
            arrow = KINDS[f.kind].arrow
            columns.append(Column(f.name, f.number, ColumnType(str(arrow), arrow), missing=f.missing))
        names = {f.number: f.name for f in self.fields}
        return Table(self.id, self.incarnation, tuple(columns), tuple(names[n] for n in self.key))

    # ── changes of rows ─────────────────────────────────────────────────────────────────────────────────────

    def _insert(self, offset: int) -> list[Step]:
        row = self._row()
        if any(self._key(r) == self._key(row) for r in self.rows if self.key):
            return self._update(offset)
        self.rows.append(row)
        return [self._step("c", row)]

    def _update(self, offset: int) -> list[Step]:
        if not self.rows:
            return []
        if not self.key:
            return self._move(offset)
        row = self.chance.choice(self.rows)
        unchanged = self._changed(row)
        return [self._step("u", row, unchanged)]

    def _delete(self, offset: int) -> list[Step]:
        if not self.rows:
            return []
        row = self.rows.pop(self.chance.randrange(len(self.rows)))
        return [self._step("d", row if not self.key or self.chance.random() < 0.2 else self._key_of(row))]

    def _move(self, offset: int, to: Values | None = None) -> list[Step]:
        """A key change, which is a delete and an insert; so is every update where there is no key."""
        if not self.rows:
            return []
        row = self.chance.choice(self.rows)
        new = self._key_of(self._row()) if to is None else to
        if self.key and any(self._key(r) == self._key(new) for r in self.rows):
            return []
        return self._moved(row, new)

    def _swap(self, offset: int) -> list[Step]:
        """Two rows take each other's key, by way of a third."""
        if not self.key or len(self.rows) < 2:
            return []
        first, second = self.chance.sample(self.rows, 2)
        one, other = self._key_of(first), self._key_of(second)
        spare = self._key_of(self._row())
        if any(self._key(r) == self._key(spare) for r in self.rows):
            return []
        return [*self._moved(first, spare), *self._moved(second, one), *self._moved(first, other)]

    def _truncate(self, offset: int) -> list[Step]:
        self.rows = []
        return [(self.shape, "t", {})]

    def _moved(self, row: Values, key: Values) -> list[Step]:
        old = dict(row)
        row.update(key)
        unchanged = self._changed(row)
        names = {f.number: f.name for f in self.fields}
        before = {names[n]: v for n, v in (self._key_of(old) if self.key else old).items()}
        shape, op, values = self._step("c", row, unchanged)
        return [self._step("d", self._key_of(old) if self.key else old), (shape, op, values | {"_before": before})]

    def _changed(self, row: Values) -> list[Field]:
        """Change a row except its key; returns the columns that the log does not get."""
        unchanged = []
        for f in self.fields:
            if f.number not in self.key:
                if f.may_be_unchanged and self.chance.random() < 0.5:
                    unchanged.append(f)
                elif self.chance.random() < 0.7:
                    row[f.number] = f.value(self.chance, self.few)
        return unchanged

    def _step(self, op: str, row: Values, unchanged: Sequence[Field] = ()) -> Step:
        names = [f.name for f in unchanged]
        sent = {f.name: row[f.number] for f in self.fields if f.number in row and f.name not in names}
        return self.shape, op, sent | ({"_unchanged": names} if names else {})

    def _row(self) -> Values:
        row = {f.number: f.value(self.chance, self.few) for f in self.fields}
        for f in self.fields:
            if f.number in self.key:
                number = self.chance.randrange(self.keys)
                row[f.number] = {
                    "text": "ß'" * number,
                    "day": date(1969, 12, 30) + timedelta(days=number),
                }.get(KINDS[f.kind].family, number - 1)
        return row

    def _key_of(self, row: Values) -> Values:
        return {n: row[n] for n in self.key}

    def _key(self, row: Values) -> tuple[Any, ...]:
        return tuple(row[n] for n in self.key)

    # ── backfills, and times without a capture ──────────────────────────────────────────────────────────────

    def _begin_backfill(self, offset: int) -> list[Step]:
        self.entry = {
            "state": "waiting",
            "generation": self.entry.get("generation", 0) + 1,
            "since": offset,
            "whole_since": self.entry.get("whole_since"),
        }
        return []

    @property
    def _is_reading(self) -> bool:
        return self.entry.get("state") in ("waiting", "reading")

    def _read(self, offset: int) -> list[Step]:
        """A chunk of rows, in any order; some rows come twice."""
        if not self._is_reading or not self.key:
            return []
        self.entry["state"] = "reading"
        read = self.chance.sample(self.rows, self.chance.randint(0, len(self.rows)))
        return [self._step("r", row) for row in read]

    def _repair(self, offset: int) -> list[Step]:
        """Rows that are read by key, after deletes of keys that no row has: the log never got the delete of one."""
        if not self.key:
            return []
        gone = [self._key_of(self._row()) for _ in range(2)]
        if self.rows and self.chance.random() < 0.5:
            gone.append(self._key_of(self.rows.pop(self.chance.randrange(len(self.rows)))))
        there = {self._key(row) for row in self.rows}
        others = [f for f in self.fields if f.number not in self.key]
        deletes = [self._step("d", key, others) for key in gone if self._key(key) not in there]
        read = [self._step("r", row) for row in self.chance.sample(self.rows, self.chance.randint(0, len(self.rows)))]
        return [(shape, op, values | {"_read": True}) for shape, op, values in (*deletes, *read)]

    def _end_backfill(self, offset: int) -> list[Step]:
        """What of the rows is not in the log since the backfill began. A table without a key is read as a whole."""
        if not self._is_reading:
            return []
        since = self.entry["since"]
        self.entry |= {"state": "done", "whole_since": since}
        if not self.key:
            return [(self.shape, "t", {}), *(self._step("r", row) for row in self.rows)]
        known = Folded()
        known.add(w for w in self.merged.log if w[1].offset >= since)
        known.reshape(self.shape)
        return [
            self._step("r", row)
            for row in self.rows
            if (there := known.rows.get(self._key(row))) is None
            or there.missing
            or {n: there.values.get(str(n)) for n in row} != row
        ]

    def _cancel(self, offset: int) -> list[Step]:
        if self._is_reading:
            self.entry["state"] = "cancelled"
        return []

    def _unheard(self, offset: int) -> list[Step]:
        """Changes that are not captured, and the backfill that is then requested."""
        for _ in range(self.chance.randint(1, 4)):
            self.chance.choice([self._insert, self._update, self._delete, self._truncate])(offset)
        self.entry["whole_since"] = None
        return self._begin_backfill(offset)

    # ── statements ──────────────────────────────────────────────────────────────────────────────────────────

    def _any_kind(self) -> str:
        return self.chance.choice([k for k, kind in KINDS.items() if self.key or kind.family != "ratio"])

    def _field(self, kind: str, *, new: bool = False) -> Field:
        """A column that does not exist yet; `new`: with existing rows, which may get a default."""
        self.numbers += 1
        default = KINDS[kind].default if new and self.chance.random() < 0.5 else None
        partial = bool(getattr(self, "key", ())) and self.chance.random() < 0.5
        return Field(self._name(KINDS[kind].family), self.numbers, kind, partial, default and default[0])

    def _name(self, family: str) -> str:
        taken = {f.name.lower() for f in self.fields} | self.burnt
        free = [name for name in NAMES[family] if name.lower() not in taken]
        return self.chance.choice(free) if free else f"{family}_{self.numbers}_{self.chance.randrange(10**6)}"

    def _others(self) -> list[Field]:
        return [f for f in self.fields if f.number not in self.key]

    def _become(self, old: Field, new: Field) -> None:
        self.fields[self.fields.index(old)] = new

    def _add(self, offset: int) -> list[Step]:
        added = self._field(self._any_kind(), new=True)
        self.fields.append(added)
        default = KINDS[added.kind].default if added.missing is not None else None
        for row in self.rows:
            row[added.number] = default and default[1]
        return []

    def _drop(self, offset: int) -> list[Step]:
        if len(others := self._others()) > 1:
            gone = self.chance.choice(others)
            self.fields.remove(gone)
            for row in self.rows:
                del row[gone.number]
        return []

    def _rename(self, offset: int) -> list[Step]:
        old = self.chance.choice(self.fields)
        self._become(old, replace(old, name=self._name(KINDS[old.kind].family)))
        return []

    def _swap_names(self, offset: int) -> list[Step]:
        """Two or three columns, in a circle."""
        by_family = sorted(self.fields, key=lambda f: KINDS[f.kind].family)
        for _, same in groupby(by_family, key=lambda f: KINDS[f.kind].family):
            found = list(same)
            for old, other in zip(found, found[1:] + found[:1], strict=True):
                self._become(old, replace(old, name=other.name))
        return []

    def _widen(self, offset: int) -> list[Step]:
        if found := [f for f in self.fields if KINDS[f.kind].wider]:
            old = self.chance.choice(found)
            self._become(old, replace(old, kind=KINDS[old.kind].wider or ""))
        return []

    def _narrow(self, offset: int) -> list[Step]:
        found = [f for f in self.fields if KINDS[f.kind].narrower]
        found = [f for f in found if all(abs(row[f.number] or 0) < 2**31 for row in self.rows)]
        if found:
            old = self.chance.choice(found)
            self._become(old, replace(old, kind=KINDS[old.kind].narrower or ""))
        return []

    def _make_again(self, offset: int) -> list[Step]:
        """Another table of the same name: fewer columns, more columns, other numbers. It is read again."""
        key = [f for n in self.key for f in self.fields if f.number == n]
        others = [f for f in self._others() if self.chance.random() < 0.7]
        kept = [*others, *key] if self.chance.random() < 0.5 else [*key, *others]
        self.numbers, self.incarnation = 0, self.incarnation + 1
        number_of = {}
        self.fields = []
        for old in kept:
            self.numbers += 1
            number_of[old.number] = self.numbers
            self.fields.append(replace(old, number=self.numbers, missing=None))
        self.key = tuple(number_of[n] for n in self.key)
        for _ in range(self.chance.randint(0 if len(kept) > 1 else 1, 2)):
            self.fields.append(self._field(self._any_kind()))
        self.rows = []
        for _ in range(self.chance.choice([0, 2])):  # before it is captured
            self._insert(offset)
        self.entry["whole_since"] = None
        return self._begin_backfill(offset)

    def _undone(self, offset: int) -> list[Step]:
        """A column that comes and goes, or a name that changes and changes back, with rows in between: then the table
        has a shape that it had before."""
        if self.queue:
            return []
        rows = [self._insert, self._update, self._delete, self._read, self._truncate, self._move]
        between = self.chance.choices(rows, [4, 6, 2, 2, 0.5, 2], k=self.chance.randint(1, 4))
        if self.chance.random() < 0.7:
            self._add(offset)
            undo = functools.partial(self._without, self.fields[-1].number, self.incarnation)
        else:
            old = self.chance.choice(self.fields)
            self._become(old, replace(old, name=self._name(KINDS[old.kind].family)))
            undo = functools.partial(self._named_back, old, self.incarnation)
        self.queue = [*between, undo, self._update]
        return []

    def _without(self, number: int, incarnation: int, offset: int) -> list[Step]:
        """A column goes that came a while ago, unless it went with its table or is all that there is."""
        found = [f for f in self._others() if f.number == number]
        if found and self.incarnation == incarnation and len(self._others()) > 1:
            self.fields.remove(found[0])
            for row in self.rows:
                del row[number]
        return []

    def _named_back(self, old: Field, incarnation: int, offset: int) -> list[Step]:
        found = [f for f in self.fields if f.number == old.number]
        is_free = all(f.name.lower() != old.name.lower() for f in self.fields) and old.name.lower() not in self.burnt
        if found and is_free and self.incarnation == incarnation:
            self._become(found[0], replace(found[0], name=old.name))
        return []

    def _break(self, offset: int) -> list[Step]:
        """A change of shape that no table follows: another type, or another key."""
        if len(self.key) > 1 and self.chance.random() < 0.5:
            self.key = self.key[::-1]
            return []
        if found := [f for f in self._others() if f.kind in ("int", "long", "day")]:
            old = self.chance.choice(found)
            self.burnt.add(old.name.lower())
            self._become(old, replace(old, kind="text", missing=None))
            for row in self.rows:
                row[old.number] = None if row[old.number] is None else str(row[old.number])
            if self.policy is not None:  # such a statement rewrites every row, so the table is read again
                self.entry["whole_since"] = None
                return self._begin_backfill(offset)
        return []


@dataclass
class Histories:
    """Histories with seeds in a row, in one log."""

    seeds: Sequence[int]
    log: HandLog
    modes: Sequence[Mode] = ("current",)
    with_policies: bool = False
    with_repairs: bool = False
    with_undone: bool = False
    with_layouts: str = ""
    refused: int = 0
    versions: int = 0
    listed: list[History] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log.has_transactions |= "history" in self.modes
        self.chance = random.Random(self.seeds[0])
        self.listed = [History(seed, self.modes) for seed in self.seeds]
        for history in self.listed:
            history.has_repairs, history.has_undone = self.with_repairs, self.with_undone
        for history in self.listed if self.with_policies else ():
            chance = random.Random(f"policy {history.seed}")
            history.merged.policy = history.policy = TablePolicy(
                mode=history.merged.mode,
                evolve=chance.choice(["evolve", "add_only", "freeze"]),
                incompatible=chance.choice(["stop", "new_column", "new_column"]),
            )
        # One more table, so that a merge which has to skip all the others is no failure.
        self.beside = make_table("beside", id="int64")

    @property
    def policies(self) -> Policies:
        """The settings of the tables in the next merge."""
        return Policies(each={str(history.id): self._policy(history) for history in self.listed})

    def _policy(self, history: History) -> TablePolicy:
        found, layout = history.merged.policy, history.layout
        return found if layout is None else replace(found, partition_by=layout.partitions, sort_by=layout.order)

    def lay_out(self) -> None:
        """Choose how the files of the tables are laid out. `with_layouts`: the tables' format, if it is chosen at
        all."""
        for history in self.listed if self.with_layouts else ():
            history.lay_out(partitions=self.with_layouts == "iceberg")

    def write_round(self) -> None:
        """The segments of one round. Some older ones become one."""
        plans = [history.plan() for history in self.listed]
        for number in range(SEGMENTS):
            turns = [
                (history, count)
                for history, plan in zip(self.listed, plans, strict=True)
                for count in self._streaks(plan[number])
            ]
            self.chance.shuffle(turns)
            rows: list[Step] = [(self.beside, "c", {"id": self.log.next_offset})]
            for history in (history for history, count in turns for _ in range(count)):
                offset = self.log.next_offset + len(rows)
                found = history.event(offset)
                segment = self.log.cut + 1
                history.merged.log += [
                    (s, _change(offset + n, op, v, offset, segment)) for n, (s, op, v) in enumerate(found)
                ]
                rows += [(s, op, {**v, "_txn": offset}) for s, op, v in found]
            for history in self.listed:
                if history.entry:
                    self.log.progress[str(history.id)] = dict(history.entry)
            self.log.segment(rows)
        if self.chance.random() < 0.4:
            self.log.compact(self.chance.randint(2, 3))

    def _streaks(self, count: int) -> Iterator[int]:
        """Events of one table that follow each other: a fault may be one offset wide."""
        while count:
            streak = self.chance.randint(1, count)
            yield streak
            count -= streak

    def move_away(self, folder: Callable[[TableId], Any]) -> None:
        """Some tables' folders are moved away, as many messages instruct operators to do."""
        for history in self.listed:
            if history.is_moved_away:
                there = folder(history.id)
                there.rename(there.with_name(f"{there.name} until {self.log.cut}"))
                history.merged.move_away()

    def check(self, report: MergeReport, rows: Callable[[Table], Iterable[Mapping[str, Any]]]) -> None:
        """Check that every table equals the fold; and the database, where the log is complete."""
        assert report.cut == self.log.cut
        reports = {t.name: t for t in report.tables}
        wrong = []
        for history in self.listed:
            has_rows = len(history.merged.log) > history.merged.done
            history.merged.merge(history.entry)
            if has_rows and not history.merged.is_left_out:
                history.recorded = history.layout
            self.refused += history.merged.is_refused
            self.versions += len(history.merged.retyped)
            found = _difference(history, reports.get(str(history.id)), rows)
            if found is not None:
                wrong.append(
                    f"CDCFLOW_HISTORY_SEED={history.seed} CDCFLOW_HISTORIES=1, cut {self.log.cut},"
                    f" {history.merged.mode}: {found}"
                )
        assert not wrong, "\n".join(wrong)


def _difference(
    history: History, report: TableMergeReport | None, rows: Callable[[Table], Iterable[Mapping[str, Any]]]
) -> str | None:
    merged = history.merged
    if merged.is_left_out:
        is_so = report is not None and report.left_out is not None
        return None if is_so else "it cannot follow its source, and no message reports it"
    if merged.folded is None or merged.folded.shape is None:
        return None if report is None else "the log has no row of it, and there is a table"
    if report is None or report.left_out is not None:
        return f"left out: {report and report.left_out}"
    if report.edits:
        return f"edits were reported that no program made: {report.edits}"
    shape, there = merged.folded.shape, list(rows(merged.folded.shape))
    differ = differences(merged.expected(), merged.folded.actual(shape, there))
    if differ:
        return "\n  ".join([f"{len(differ)} keys differ", *differ[:5]])
    if shape.key and merged.mode != "append":
        wanted, found = merged.folded.left(shape), merged.folded.left_in(shape, there)
        if wanted != found:
            said = [f"{k}: fold {wanted.get(k)} merge {found.get(k)}" for k in wanted if wanted[k] != found.get(k)]
            return "\n  ".join([f"{len(said)} keys differ in dropped columns", *said[:5]])
    if report.complete != merged.is_whole(history.entry):
        return f"it is {'' if report.complete else 'not '}complete"
    if report.complete and merged.mode != "append":
        fold_has, database_has = _both(merged.folded, history)
        if fold_has != database_has:
            return f"the fold has {fold_has - database_has}, the database {database_has - fold_has}"
    return None


def _name_of(event: Callable[[int], list[Step]]) -> str:
    called = event.func if isinstance(event, functools.partial) else event
    return called.__name__.strip("_")


def _change(offset: int, op: str, given: Mapping[str, Any], transaction: int, segment: int) -> LogChange:
    values = {k: v for k, v in given.items() if k not in ("_unchanged", "_before", "_read")}
    unchanged = frozenset(given.get("_unchanged") or ())
    read = bool(given.get("_read"))
    return LogChange(offset, op, values, unchanged, given.get("_before"), transaction, segment, read)


def _both(folded: Folded, history: History) -> tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]:
    """The rows of a fold and of the database, in the columns that both have: the latest statements reach the log only
    with the next row."""
    living = [row for row in folded.rows.values() if not row.deleted]
    of_now = frozenset(str(c.number) for c in (folded.shape.columns if folded.shape is not None else ()))
    assert not any(row.missing & of_now for row in living)  # what a dropped column held can no longer be known
    shape, kinds = folded.shape, {f.number: KINDS[f.kind].family for f in history.fields}
    numbers = {
        c.number % VERSION: c.number
        for c in (shape.columns if shape is not None and shape.incarnation == history.incarnation else ())
        if kinds.get(c.number % VERSION) == FAMILY[c.type.arrow]
    }
    fold_has: Counter[tuple[object, ...]] = Counter()
    for there in living:
        fold_has[tuple(there.values.get(str(n)) for n in numbers.values())] += there.count
    return fold_has, Counter(tuple(row[n] for n in numbers) for row in history.rows)
