"""The rows that a range would write, for a check before they are written, and the range without some of these rows.
SQL.

    folding ──▶ rows_to_write ──▶ a check ──▶ rows that the table must not have
       └──────────────────────────────────────────▶ without_rows ──▶ folding

When a row is kept out, its older version is removed from the table as well: all changes of its key in the range become
one delete at the row's offset. So each way in which a range is merged (a MERGE, marked rows, a branch, an append)
excludes the row.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql
from __future__ import annotations

from dataclasses import replace

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import OFFSET
from cdcflow.tables.merge import live
from cdcflow.tables.merge.statement import Folding


def rows_to_write(folding: Folding, table: str, *, broadcast: bool) -> str:
    """Return SQL for the rows that the range writes into a table, under the names of the table's columns. `table`: the
    name in SQL of its current version. `broadcast`: as in `live.current`.

    These are the rows that the table has afterwards, from the range's first offset onward, except those that it already
    has: the range does not change a row that is as new as a change of its key.
    """
    new = f"w.{OFFSET} >= {folding.first}"
    if folding.empty or folding.emptied or folding.adds_only or folding.replaced_rows is not None:
        return f"SELECT w.* FROM ({folding.rows()}) w WHERE {new}"
    target = folding.layout.target
    names = [name_sql(target.columns[i].name) for i in target.key_positions]
    after = live.current(folding, table, broadcast=broadcast, together=False)
    there = f"SELECT {', '.join(names)}, {OFFSET} FROM {table} WHERE {OFFSET} >= {folding.first}"
    same = " AND ".join(f"t.{name} <=> w.{name}" for name in names)
    return f"SELECT w.* FROM ({after}) w LEFT ANTI JOIN ({there}) t ON {same} AND t.{OFFSET} >= w.{OFFSET} WHERE {new}"


def identity_positions(folding: Folding) -> tuple[int, ...]:
    """Return the positions of the columns that identify a row of the range; empty if its offset identifies it."""
    return () if folding.adds_only or not folding.layout.target.key else folding.layout.key


def without_rows(folding: Folding, kept_out: str) -> Folding:
    """Return the folding without the rows in the view `kept_out`, which has the offset `o` of each, and the columns
    `c<i>` at its `identity_positions`."""
    layout, key = folding.layout, identity_positions(folding)
    if folding.adds_only:
        only = f"(SELECT x.* FROM {folding.changes} x LEFT ANTI JOIN {kept_out} k ON x.o = k.o)"
        return replace(folding, changes=only)
    if not key:
        return replace(folding, kept_out=kept_out)
    columns = [f"c{i}" for i in range(len(layout.target.columns))]
    same = " AND ".join(f"x.c{i} <=> k.c{i}" for i in key)
    values = [
        f"k.c{i}" if i in key else f"CAST(NULL AS {column.type}) AS c{i}"
        for i, column in enumerate(layout.target.columns)
    ]
    # `v` 1: a row with this key may be in the table (`versions`). For other deletes it means nothing.
    deletes = f"SELECT k.o, 'd' AS op, 1 AS v, CAST(NULL AS array<int>) AS m, {', '.join(values)} FROM {kept_out} k"
    others = ", ".join(f"x.{name}" for name in ("o", "op", "v", "m", *columns))
    changes = f"(SELECT {others} FROM {folding.changes} x LEFT ANTI JOIN {kept_out} k ON {same} UNION ALL {deletes})"
    purging = layout if layout.ended is None else replace(layout, purges=True)
    return replace(folding, changes=changes, layout=purging, once=False)
