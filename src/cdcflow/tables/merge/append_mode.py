"""The mode `append`: the changes of a log as rows of a table, as SQL.

A row contains what its change contains: `_op`, `_offset`, `_txn` and `_commit_ts` as in the log, and the columns that
were sent, under the current names of the table's columns. `_unchanged` lists the names of the columns that were not
sent.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.modes import APPEND
from cdcflow.tables.merge.reduce import OURS, ColumnLayout
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.merge.target import Target


@dataclass(frozen=True, slots=True)
class Appending(Folding):
    """A range of changes that are appended to a table as rows."""

    @property
    def adds_only(self) -> bool:
        return True

    @property
    def is_by_key(self) -> bool:
        return False

    def sql(self, table: str) -> str:
        return f"INSERT INTO {table} ({', '.join(self._names)}) {self.rows()}"

    def rows(self) -> str:
        columns = self.layout.target.columns
        places = ", ".join(f"{i}, {text_sql(c.name)}" for i, c in enumerate(columns))
        values = {
            **{name_sql(c.name): f"s.c{i}" for i, c in enumerate(columns)},
            OP: "s.op",
            OFFSET: "s.o",
            TRANSACTION: "s.n",
            COMMIT_TS: "s.ts",
            UNCHANGED: f"transform(s.m, x -> element_at(map({places}), x))",
        }
        return f"SELECT {', '.join(f'{values[name]} AS {name}' for name in self._names)} FROM {self.changes} s"

    @property
    def _names(self) -> list[str]:
        return [*(name_sql(c.name) for c in self.layout.target.columns), *(name for name, _ in APPEND.columns)]


def layout_of(target: Target, evolution: Evolution, shapes: Sequence[Table]) -> ColumnLayout:
    """Return how rows of these shapes are written to the table. `target` describes the table now, `evolution.target`
    the table after the evolution of the incarnation that the rows are of.

    A column keeps its position when the source's table is recreated, but gets a different number. A column that a shape
    lacks is NULL: the change contains no value for it.
    """
    then = evolution.target
    numbers = [c.number for c in then.columns]
    numbers += [OURS] * (len(target.columns) - len(numbers))
    columns = tuple(replace(c, number=number) for c, number in zip(target.columns, numbers, strict=True))
    living = tuple(s for s in shapes if s.incarnation == then.incarnation)
    return ColumnLayout(replace(target, columns=columns), living, {}, evolution.numbered, stamped=True)
