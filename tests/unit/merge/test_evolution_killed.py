"""A job that is killed at any commit of any schema change, and how the next runs continue.

A model of a current-state table: its format gives columns ids, each act of an evolution is one commit, and the MERGE is
the fold. The job dies at every commit of a range; the next one has the same range, or one in which the source changed
the table once more, and dies at every commit, too. At last one completes, and the table must be the same as without a
death, and show what the source has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.merge import evolution as rules
from cdcflow.tables.merge.acts import Act, Add, Describe, Fill, MissAlso, MissOnly, Rename, Widen
from cdcflow.tables.merge.describe_existing import with_existing_columns
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.statement import transaction
from cdcflow.tables.merge.target import FormatColumn, Target

ORDERS = TableId("public", "orders")
INT, BIG = pa.int32(), pa.int64()


class Died(Exception):
    """The job was killed before its next commit."""


# ── what the source does to its table ───────────────────────────────────────────────────────────────────────

Columns = tuple[Column, ...]


def column(name: str, number: int, arrow: pa.DataType = INT, default: str | None = None) -> Column:
    return Column(name, number, ColumnType(str(arrow), arrow), missing=default)


def shape_of(columns: Columns, incarnation: int = 1) -> Table:
    return Table(ORDERS, incarnation, columns, ("id",))


FIRST = shape_of((column("id", 1), column("a", 2), column("b", 3), column("c", 4)))


def renamed(**names: str) -> Callable[[Table], Table]:
    def change(shape: Table) -> Table:
        return replace(shape, columns=tuple(replace(c, name=names.get(c.name, c.name)) for c in shape.columns))

    return change


def dropped(name: str) -> Callable[[Table], Table]:
    return lambda shape: replace(shape, columns=tuple(c for c in shape.columns if c.name != name))


def added(name: str, default: str | None = None) -> Callable[[Table], Table]:
    def change(shape: Table) -> Table:
        # PostgreSQL never uses a number again, not even a dropped column's.
        number = 1 + max(*(c.number for c in shape.columns), *(_used[shape.incarnation]))
        _used[shape.incarnation].add(number)
        return replace(shape, columns=(*shape.columns, column(name, number, INT, default)))

    return change


def widened(name: str) -> Callable[[Table], Table]:
    def change(shape: Table) -> Table:
        wide = [replace(c, type=ColumnType("int64", BIG)) if c.name == name else c for c in shape.columns]
        return replace(shape, columns=tuple(wide))

    return change


def made_again(*names: str) -> Callable[[Table], Table]:
    def change(shape: Table) -> Table:
        _used[shape.incarnation + 1] = {0, len(names)}
        types = {c.name: c.type.arrow for c in shape.columns}
        columns = tuple(column(n, i, types.get(n, INT)) for i, n in enumerate(names, start=1))
        return shape_of(columns, shape.incarnation + 1)

    return change


_used: dict[int, set[int]] = {}


def together(*changes: Callable[[Table], Table]) -> Callable[[Table], Table]:
    def change(shape: Table) -> Table:
        for one in changes:
            shape = one(shape)
        return shape

    return change


CHANGES: dict[str, Callable[[Table], Table]] = {
    "nothing": lambda shape: shape,
    "rename": renamed(a="x"),
    "back": renamed(x="a"),
    "other letters": renamed(a="A"),
    "swap": renamed(a="b", b="a"),
    "circle": renamed(a="b", b="c", c="a"),
    "shift": renamed(a="b", b="c", c="d"),
    "drop": dropped("b"),
    "add": added("d"),
    "add with default": added("d", "7"),
    "drop, add again": together(dropped("b"), added("b", "8")),
    "drop, rename over it": together(dropped("b"), renamed(a="b")),
    "rename, add the old name": together(renamed(a="x"), added("a", "9")),
    "add, under a name that moves": together(renamed(a="d", b="a"), added("b", "5")),
    "widen": widened("c"),
    "swap, widen, add": together(renamed(a="b", b="a"), widened("a"), added("d", "6")),
    "made again": made_again("id", "b", "a", "c"),
    "made again, otherwise": made_again("id", "c", "a"),
    "made again, more": together(made_again("id", "b"), added("d"), added("e"), added("a")),
    "made again, drop": together(made_again("id", "b", "a"), dropped("a"), added("a")),
}


# ── a log of it ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Change:
    shape: Table
    offset: int
    op: str
    key: int
    sent: dict[int, Any]  # by number
    unchanged: frozenset[int] = frozenset()


def changes_under(shape: Table, first: int, generation: int) -> list[Change]:
    """One row is new, one of the first is changed, and one that was never read is changed in part."""
    numbers = [c.number for c in shape.columns if c.name != "id"]

    def value(number: int, key: int) -> int:
        return 1000 * generation + 100 * key + number

    whole = {n: value(n, 10 + generation) for n in numbers}
    some = {n: value(n, 1) for n in numbers[1:]}
    left = frozenset(numbers[:1])
    return [
        Change(shape, first, "c", 10 + generation, whole),
        Change(shape, first + 1, "u", 1, some, left),
        Change(shape, first + 2, "u", 20 + generation, some, left),
    ]


def truth(changes: Sequence[Change]) -> dict[int, dict[str, object]]:
    """The source's rows, by the latest names: the result of the fold. A value that was never sent is "missing"."""
    rows: dict[int, dict[int, object]] = {}
    before: Table | None = None
    for change in changes:
        shape = change.shape
        if before is not None and before.incarnation != shape.incarnation:
            rows = {}
        elif before is not None:
            for new in shape.columns:
                if new.number not in {c.number for c in before.columns}:
                    for row in rows.values():
                        row[new.number] = None if new.missing is None else int(new.missing)
        before = shape
        row = rows.setdefault(change.key, {})
        if change.op == "c":
            row.clear()
        for number in change.unchanged:
            row.setdefault(number, "missing")
        row |= change.sent
    assert before is not None
    return {key: {c.name: row[c.number] for c in before.columns if c.name != "id"} for key, row in rows.items()}


# ── a current-state table ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class ModelRow:
    values: dict[int, object]  # by the format's ids
    missing: set[str]
    offset: int


@dataclass
class ModelTable:
    """`columns` are names and types by id, as the format has them. `cut` is the cut of the latest MERGE."""

    columns: dict[int, tuple[str, str]] = field(default_factory=dict)
    rows: dict[int, ModelRow] = field(default_factory=dict)
    described: str = ""
    transactions: set[str] = field(default_factory=set)
    cut: int = 0

    def copy(self) -> ModelTable:
        rows = {key: ModelRow(dict(row.values), set(row.missing), row.offset) for key, row in self.rows.items()}
        return ModelTable(dict(self.columns), rows, self.described, set(self.transactions), self.cut)

    def merge(self, changes: Sequence[Change], cut: int, commits: int | None = None) -> int:
        """Merge a range, and die before commit `commits` (`None`: no death). Return the number of commits."""
        shapes = list(dict.fromkeys(c.shape for c in changes))
        target = None
        if self.described:
            columns = [FormatColumn(name, id_, type_) for id_, (name, type_) in self.columns.items()]
            target = with_existing_columns(Target.from_json(self.described), columns, ORDERS, shapes)
        found = evolve(target, shapes, self.cut)
        done = 0
        for work in self._commits(found, changes, cut):
            if done == commits:
                raise Died
            work()
            done += 1
        return done

    def _commits(self, found: rules.Evolution, changes: Sequence[Change], cut: int) -> Iterator[Callable[[], None]]:
        if found.before is None:
            yield lambda: self._create(found.target)
        for act in found.acts():
            yield lambda act=act: self._act(act, transaction(act, found.target.incarnation))  # type: ignore[misc]
        yield lambda: self._fold(found, changes, cut)

    def _create(self, target: Target) -> None:
        self.columns = {i: (c.name, c.type) for i, c in enumerate(target.columns, start=1)}
        self.described = target.to_json()

    def _act(self, act: Act, once: str) -> None:
        ids = {name.lower(): id_ for id_, (name, _) in self.columns.items()}
        match act:
            case Describe(target):
                self.described = target.to_json()
            case Rename(old, new):
                id_ = ids[old.lower()]
                assert new.lower() not in ids, f"there is a column {new}"  # also under its own name in other letters
                self.columns[id_] = (new, self.columns[id_][1])
            case Widen(name, type_):
                self.columns[ids[name.lower()]] = (name, type_)
            case Add(new):
                assert new.name.lower() not in ids, f"there is a column {new.name}"
                self.columns[max(self.columns) + 1] = (new.name, new.type)
            case Fill(filled, default):
                if once not in self.transactions:
                    for row in self.rows.values():
                        row.values[ids[filled.name.lower()]] = int(default.split("'")[1])
                self.transactions.add(once)
            case MissAlso(old, new):
                for row in self.rows.values():
                    row.missing |= {new} if old in row.missing else set()
            case MissOnly(names):
                for row in self.rows.values():
                    row.missing &= set(names)

    def _fold(self, found: rules.Evolution, changes: Sequence[Change], cut: int) -> None:
        living = [c for c in changes if c.shape.incarnation == found.target.incarnation]
        if found.fresh:
            self.rows = {k: r for k, r in self.rows.items() if r.offset >= living[0].offset}
        names = {c.number: c.name for c in found.target.columns}
        ids = {name: id_ for id_, (name, _) in self.columns.items()}
        for change in living:
            old = self.rows.get(change.key)
            new = old is None or change.op == "c"
            row = ModelRow({}, set(), 0) if new or old is None else old
            has = {c.number for c in change.shape.columns}
            for number, name in names.items():
                if number in change.sent:
                    row.values[ids[name]] = change.sent[number]
                    row.missing.discard(name)
                elif new and number in change.unchanged:
                    row.missing.add(name)
                elif new and number not in has and number in found.defaults:
                    row.values[ids[name]] = int(found.defaults[number].split("'")[1])
            row.offset = change.offset
            self.rows[change.key] = row
        self.cut = cut

    def shown(self) -> dict[int, dict[str, object]]:
        return {
            key: {
                name: "missing" if name in row.missing else row.values.get(id_)
                for id_, (name, _) in self.columns.items()
                if name != "id"
            }
            for key, row in self.rows.items()
        }


def history(first: str, second: str) -> list[list[Change]]:
    """Three ranges: the first shape, the one after the first change, and the one after the second."""
    _used.clear()
    _used[1] = {4}
    one = FIRST
    two = CHANGES[first](one)
    three = CHANGES[second](two)
    return [changes_under(s, 1 + 3 * n, n) for n, s in enumerate((one, two, three))]


def check(found: ModelTable, alive: ModelTable, changes: Sequence[Change], told: str) -> None:
    """Check that the table shows what the source has, and otherwise the same as a table whose merges never died."""
    wanted = truth(changes)
    shown, all_alive = found.shown(), alive.shown()
    assert shown.keys() == wanted.keys(), told
    assert {k: {n: row.get(n) for n in wanted[k]} for k, row in shown.items()} == wanted, told
    incarnations = [c.shape.incarnation for c in changes]
    if incarnations[-1] in incarnations[:6]:
        assert sorted(found.columns.values()) == sorted(alive.columns.values()), told
        assert shown == all_alive, told
    else:  # A column of an earlier incarnation may be present under a name that it had for a while; it has no values.
        kept = [value for k, row in shown.items() for name, value in row.items() if name not in wanted[k]]
        assert not any(kept), told


def killed(start: ModelTable, changes: Sequence[Change], cut: int) -> Iterator[tuple[int, ModelTable]]:
    """The table after a death at each commit of a merge; the last one did not die."""
    for death in itertools.count():
        table = start.copy()
        try:
            table.merge(changes, cut, death)
        except Died:
            yield death, table
        else:
            yield death, table
            return


def kills(first: str, second: str) -> int:
    """Every death of a range, and of the range after it; return how many there were."""
    zero, one, two = history(first, second)
    start = ModelTable()
    start.merge(zero, 1)
    count = 0
    later = [*one, *two] if second else one
    alive = start.copy()
    alive.merge(later, 3)
    check(alive, alive, [*zero, *later], f"{first}, {second}: no run died")
    for death, table in killed(start, one, 2):
        if table.cut == 2:
            continue
        for again, next_one in killed(table, later, 3):
            if next_one.cut < 3:
                next_one.merge(later, 3)
            check(next_one, alive, [*zero, *later], f"{first}, {second}: killed at commit {death}, then at {again}")
            count += 1
    return count


def can_follow(first: str, second: str) -> bool:
    """Whether the source's names stay different, regardless of case."""
    names = [c.name.lower() for c in history(first, second)[2][0].shape.columns]
    return len(set(names)) == len(names)


@pytest.mark.spread(2)
@pytest.mark.parametrize("first", [name for name in CHANGES if name != "nothing"])
def test_a_job_killed_at_any_commit_of_a_schema_change_is_finished_by_the_next(first: str) -> None:
    """G10, G25, G27, P19, P25: the next run learns what the dead one did only from the columns' ids."""
    pairs = [second for second in CHANGES if can_follow(first, second)]
    assert sum(kills(first, second) for second in pairs) > len(pairs)


def _judged_by_name(patch: pytest.MonkeyPatch) -> None:
    """As before ids existed: a column is the one to which the description gives that name."""

    def by_name(described: Target, *_: object) -> Target:
        return replace(described, columns=tuple(c for c in described.columns if not c.added))

    patch.setitem(globals(), "with_existing_columns", by_name)


def _nothing_announced(patch: pytest.MonkeyPatch) -> None:
    right = rules.Evolution.acts
    patch.setattr(
        rules.Evolution, "acts", lambda e: (a for a in right(e) if not (isinstance(a, Describe) and a.target.is_open))
    )


def _emptied_by_number_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "evolve", lambda target, shapes, at: rules.evolve(target, shapes))


def _stale_misses_kept(patch: pytest.MonkeyPatch) -> None:
    right = rules.Evolution.acts
    patch.setattr(rules.Evolution, "acts", lambda e: (a for a in right(e) if not isinstance(a, MissOnly)))


BREACHES: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    _judged_by_name: "swap",
    _nothing_announced: "rename, add the old name",
    _emptied_by_number_alone: "made again",
    _stale_misses_kept: "swap",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__.strip("_"))
def test_a_planted_breach_is_seen(
    breach: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation that cannot fail proves nothing."""
    breach(monkeypatch)
    first = BREACHES[breach]
    with pytest.raises((AssertionError, KeyError, CannotFollow)):
        sum(kills(first, second) for second in CHANGES if can_follow(first, second))
