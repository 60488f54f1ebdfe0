"""A merge without Spark: `cdcflow.tables.merge`'s own SQL on current-state tables that an embedded DuckDB holds.

It executes the statements in the order in which `cdcflow.spark` executes them, over rows in memory instead of Parquet
files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from tests.support.merge.histories import State, Written

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import BEFORE, COMMIT_TS, MISSING, OFFSET, OP, TRANSACTION, UNCHANGED, Table, TableId
from cdcflow.tables.local.dialect import connect, duckdb_sql
from cdcflow.tables.merge import moves, removed_and_added, statement
from cdcflow.tables.merge import reduce as reduction
from cdcflow.tables.merge.acts import Add, Describe, Rename
from cdcflow.tables.merge.describe_existing import with_existing_columns
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.format import ANY
from cdcflow.tables.merge.target import FormatColumn, Target


class Died(Exception):
    """The job was killed between two commits."""


class EmbeddedWarehouse:
    """Current-state tables, by their names. `merge` takes the changes of a range, oldest first."""

    def __init__(self, *, marks: bool = False) -> None:
        """`marks`: a range by key is executed as deleted and inserted rows (`tables.merge.removed_and_added`)."""
        self._db = connect()
        self._marks = marks
        self._described: dict[str, str] = {}
        self._ids: dict[str, dict[str, int]] = {}
        self._done: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)
        self.commits_left: int | None = None
        """The number of commits after which the job is killed (`Died`); `None` if it is not killed."""

    def close(self) -> None:
        self._db.close()

    def run(self, spark_sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(duckdb_sql(spark_sql)).fetchall()

    def merge(
        self,
        name: str,
        written: Sequence[Written],
        *,
        sweep_before: int = 0,
        bounded: bool = False,
        at: int | None = None,
    ) -> None:
        """Merge a range of one table. `sweep_before`: a backfill is done that began there. `bounded`: say the first
        key column's ends, as manifests do. `at`: the cut at which the table is."""
        shapes = list(dict.fromkeys(shape for shape, _ in written))
        target = self.described(name, shapes)
        evolution = evolve(target, shapes, at)
        self._evolve(name, evolution)
        layout = reduction.ColumnLayout.of(evolution, shapes)
        living = [(s, c) for s, c in written if s.incarnation == evolution.target.incarnation]
        after = max((c.offset for _, c in living if c.op == "t"), default=0)
        if evolution.fresh:
            after = max(after, living[0][1].offset - 1)
        empty = not self.run(f"SELECT 1 FROM {name_sql(name)} LIMIT 1")
        emptied = after > 0 or empty
        sweep = max(sweep_before, after + 1 if after else 0)
        left = [(s, c) for s, c in living if c.offset > after]
        changes, masks = self._changes(layout, left, None if emptied else name)
        ends: list[tuple[str, str]] = []
        if bounded and left and evolution.target.key:
            first = evolution.target.columns[layout.key[0]]
            keys = sorted(c.values[first.name] for _, c in left)  # type: ignore[type-var]  # integers here
            ends = [(str(keys[0]), str(keys[-1]))]
        whole = evolution.target.key and all(c.op in ("c", "r") and not c.unchanged for _, c in left)
        folding = statement.Folding(
            layout,
            changes,
            masks,
            empty=empty,
            emptied=emptied,
            once=bool(whole) and not self.run(statement.repeated_keys(evolution.target, changes)),
            sweep_before=sweep,
            ends=ends,
            first=living[0][1].offset if living else 0,
        )
        self.fold(name, folding)

    def fold(self, name: str, folding: statement.Folding) -> None:
        """Execute a folding: as marked rows or as one statement."""
        if not (self._marks and folding.is_by_key and self._marked(name, folding)):
            self._commit(folding.sql(name))

    def _marked(self, name: str, folding: statement.Folding) -> bool:
        """False: the table has rows that are newer, and nothing was done."""
        target, families = folding.layout.target, folding.families
        columns = ", ".join(map(name_sql, removed_and_added.table_columns(target, families)))
        rows = self._view(
            "rows", f"SELECT {columns}, '' AS {removed_and_added.FILE}, rowid AS {removed_and_added.ROW} FROM {name}"
        )
        reduced = self._view("reduced", folding.reduced_query(families))
        query = removed_and_added.going(target, families, rows, reduced, limits=folding.limits, broadcast=True)
        going = self._view("going", query)
        if self.run(f"SELECT 1 FROM {going} WHERE newer"):
            return False
        coming = self._view("coming", removed_and_added.coming(target, families, reduced, going))
        listed = ", ".join([*(name_sql(c.name) for c in target.columns), OFFSET, MISSING])
        self._commit(f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {coming}")
        self.run(f"DELETE FROM {name} WHERE rowid IN (SELECT {removed_and_added.ROW} FROM {going})")
        return True

    def sweep(self, name: str, before: int) -> None:
        self.run(statement.sweep(name, before))

    def state(self, name: str, table: Table) -> State:
        """The table's content, in the oracle's form."""
        names = [c.name for c in table.columns]
        listed = ", ".join(name_sql(n) for n in [*names, OFFSET, MISSING])
        found: State = {}
        for *values, offset, missed in self.run(f"SELECT {listed} FROM {name}"):
            row = dict(zip(names, values, strict=True))
            assert missed != [], "a row that misses nothing has NULL there: it would count as one that does"
            missing = frozenset(missed or ())
            key = tuple(row[c] for c in table.key_columns)
            count = found[key][3] + 1 if key in found else 1
            found[key] = ({n: v for n, v in row.items() if n not in missing}, missing, offset, count)
        return found

    def described(self, name: str, shapes: Sequence[Table]) -> Target | None:
        """The table's description, as the next merge sees it."""
        if name not in self._described:
            return None
        columns = [FormatColumn(column, id_, None) for column, id_ in self._ids[name].items()]
        return with_existing_columns(Target.from_json(self._described[name]), columns, TableId("", name), shapes)

    def _evolve(self, name: str, evolution: Evolution) -> None:
        if evolution.before is None:
            self._commit(statement.create(name, ANY, evolution.target, "{}"))
            self._described[name] = evolution.target.to_json()
            self._ids[name] = {column.name: i for i, column in enumerate(evolution.target.columns, start=1)}
        for act in evolution.acts():
            once = (name, statement.transaction(act, evolution.target.incarnation))
            if once in self._done:
                continue
            for sql in statement.alter(name, ANY, act):
                self._commit(sql)
            self._done |= {once} if once[1] else set()
            ids = self._ids[name]
            match act:
                case Describe(target):
                    self._described[name] = target.to_json()
                case Add(column):
                    ids[column.name] = max(ids.values()) + 1
                case Rename(old, new):
                    self._ids[name] = {new if n == old else n: id_ for n, id_ in ids.items()}

    def _commit(self, spark_sql: str) -> None:
        if self.commits_left is not None:
            if not self.commits_left:
                raise Died
            self.commits_left -= 1
        self.run(spark_sql)

    def _changes(
        self, layout: reduction.ColumnLayout, written: Sequence[Written], table: str | None
    ) -> tuple[str, frozenset[reduction.Mask]]:
        """The view of changes with key changes completed, and its masks."""
        moved = any(c.before is not None and c.op == "c" for _, c in written)
        parts = []
        for version, shape in enumerate(layout.shapes):
            rows = [self._row(shape, c) for s, c in written if s == shape]
            columns = ", ".join(reduction.projection(layout, version, moved=moved))
            parts.append(f"SELECT {columns} FROM {self._read(pa.Table.from_pylist(rows, shape.log_schema))}")
        name = self._view("changes", " UNION ALL ".join(parts))
        masks = self._masks(name)
        if moved and masks:
            name = self._completed(layout, masks, name, table)
            masks = self._masks(name)
        return name, masks

    def _completed(
        self, layout: reduction.ColumnLayout, masks: frozenset[reduction.Mask], changes: str, table: str | None
    ) -> str:
        columns = sorted(frozenset[int]().union(*masks))
        moved = self._view("moves", moves.moves(layout, changes))
        ended = self._view("ended", moves.ended_lives(layout, changes, moved))
        lives = self._view("lives", moves.lives(layout, columns, changes, moved))
        known = self._view("known", moves.first_round(layout, columns, ended, lives, table))
        while self.run(f"SELECT 1 FROM {known} WHERE parent IS NOT NULL LIMIT 1"):
            known = self._view("known", moves.next_round(columns, known))
        return self._view("completed", moves.changes_with_moves(layout, columns, changes, known))

    def _masks(self, view: str) -> frozenset[reduction.Mask]:
        rows = self.run(f"SELECT DISTINCT m FROM {view} WHERE op <> 'd' AND m IS NOT NULL")
        return frozenset(frozenset(m) for (m,) in rows)

    def _row(self, shape: Table, change: Any) -> dict[str, Any]:
        row: dict[str, Any] = {c.name: change.values.get(c.name) for c in shape.columns}
        row |= {OFFSET: change.offset, TRANSACTION: change.offset, COMMIT_TS: change.offset, OP: change.op}
        return row | {UNCHANGED: sorted(change.unchanged) or None, BEFORE: change.before}

    def _read(self, rows: pa.Table) -> str:
        name = f"read_{next(self._numbers)}"
        self._db.register("given", rows)
        self._db.execute(f"CREATE TABLE {name} AS SELECT * FROM given").fetchall()
        self._db.unregister("given")
        return name

    def _view(self, what: str, sql: str) -> str:
        """A result, kept as Spark's local checkpoints keep it."""
        name = f"{what}_{next(self._numbers)}"
        self.run(f"CREATE TABLE {name} AS {sql}")
        return name
