"""The MERGE of a table with a key as two queries: which rows of the table are removed, and which rows are added.

    reduced ──join── the table, its keys first ──▶ going    file and number of each row that a change is about
       └───────────────── going ──join──────────▶ coming    whole rows, as the table will have them

They are for formats that mark rows as deleted in place, and commit marks and new rows at once. A MERGE statement reads
the table once to find the files, once to find the rows, and once for their values. Here it is read once, and only the
columns that the changes do not contain themselves.

`going` has the key `c<i>`, `_cdcflow_file`, `_cdcflow_row`, `newer` (the table's row is newer than the change, which
must then do nothing), and `v<i>` and `missing`: the row's values of the columns that not every change sends.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql
from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge.reduce import Family
from cdcflow.tables.merge.statement import Bounds, Replaced, rows_reduced
from cdcflow.tables.merge.target import Target

FILE, ROW = "_cdcflow_file", "_cdcflow_row"
"""Columns of the view of a table's rows: each row's file and its number there."""


def needs_values(found: Sequence[Family]) -> bool:
    """Return whether the new rows contain values of the removed ones."""
    return not all(family.always for family in found)


def table_columns(target: Target, found: Sequence[Family], ended: Sequence[int] = ()) -> list[str]:
    """Return the columns of the table that `going` reads, without `FILE` and `ROW`."""
    read = [*target.key_positions, *_columns_to_read(found, ended)]
    return [*(target.columns[i].name for i in read), OFFSET, *([MISSING] if needs_values(found) else [])]


def going(
    target: Target,
    found: Sequence[Family],
    rows: str,
    reduced: str,
    *,
    limits: Bounds | None,
    broadcast: bool,
    ended: Sequence[int] = (),
) -> str:
    """Return SQL for the rows of the view `rows` whose key is in the view `reduced`. `broadcast`: the view `reduced` is
    small. `ended`: see `reduce.ColumnLayout.ending_positions`."""
    names = [name_sql(c.name) for c in target.columns]
    key = target.key_positions
    columns = [f"s.c{i}" for i in key]
    columns += [f"t.{FILE}", f"t.{ROW}", f"t.{OFFSET} >= s.o AS newer"]
    columns += [f"t.{names[i]} AS v{i}" for i in _columns_to_read(found, ended)]
    columns += [f"t.{MISSING} AS missing"] if needs_values(found) else []
    same = " AND ".join(f"t.{names[i]} = s.c{i}" for i in key)
    listed = ", ".join([*(f"c{i}" for i in key), "o"])
    within = f" WHERE {limits.within(f't.{names[key[0]]}')}" if limits is not None else ""
    hint = "/*+ BROADCAST(s) */ " if broadcast else ""
    return f"SELECT {hint}{', '.join(columns)} FROM {rows} t JOIN (SELECT {listed} FROM {reduced}) s ON {same}{within}"


def coming(target: Target, found: Sequence[Family], reduced: str, gone: str, ended: Sequence[int] = ()) -> str:
    """Return SQL for the new rows, under the names of the table's columns. `gone`: the view of `going`'s rows, none of
    them newer than its change; it is read only if values of it are needed."""
    if not needs_values(found):
        return rows_reduced(target, reduced)
    family_of = {i: j for j, family in enumerate(found) for i in family.columns}
    whole = " OR ".join(["s.whole", *(f"coalesce(g.v{i}, false)" for i in ended)])
    values = []
    for i, column in enumerate(target.columns):
        kept = i in family_of and not found[family_of[i]].always
        of_both = f"CASE WHEN g.{ROW} IS NULL OR {whole} OR s.f{family_of.get(i)} THEN s.c{i} ELSE g.v{i} END"
        values.append(f"{of_both if kept else f's.c{i}'} AS {name_sql(column.name)}")
    left = "array_except(g.missing, s.sent)"
    missing = f"CASE WHEN g.{ROW} IS NULL OR {whole} THEN s.miss WHEN size({left}) > 0 THEN {left} END"
    same = " AND ".join(f"g.c{i} = s.c{i}" for i in target.key_positions)
    return (
        f"SELECT {', '.join(values)}, s.o AS {OFFSET}, {missing} AS {MISSING}"
        f" FROM {reduced} s LEFT JOIN {gone} g ON {same} WHERE NOT s.gone"
    )


def matched_rows(replaced: Replaced, rows: str, *, limits: Bounds | None, broadcast: bool) -> str:
    """Return SQL for the file and number of those rows of the view `rows` that are replaced. `limits`: bounds of the
    first column of the key."""
    same = " AND ".join(f"t.{name_sql(name)} = s.{column}" for name, column in replaced.key.items())
    within = f" WHERE {limits.within(f't.{name_sql(next(iter(replaced.key)))}')}" if limits is not None else ""
    hint = "/*+ BROADCAST(s) */ " if broadcast else ""
    return f"SELECT {hint}t.{FILE}, t.{ROW} FROM {rows} t LEFT SEMI JOIN {replaced.rows} s ON {same}{within}"


def removal(table: str, key: Mapping[str, str], keys: str, *, limits: Bounds | None, broadcast: bool) -> str:
    """Return the statement that removes the rows whose key is in the query `keys`. `key`: maps the key columns of the
    table to those of the query.

    Nothing is added, so it is an inner join: the table's rows are not moved, and only their key is read. A MERGE that
    also adds rows shuffles whole rows of the table, because the join must also return rows without a match.
    """
    names = [name_sql(name) for name in key]
    same = [f"t.{name} = s.{column}" for name, column in zip(names, key.values(), strict=True)]
    if limits is not None:
        same.append(limits.within(f"t.{names[0]}"))
    hint = "/*+ BROADCAST(r) */ " if broadcast else ""
    listed = f"SELECT {hint}{', '.join(key.values())} FROM {keys} r"
    return f"MERGE INTO {table} t USING ({listed}) s ON {' AND '.join(same)} WHEN MATCHED THEN DELETE"


def _columns_to_read(found: Sequence[Family], ended: Sequence[int]) -> list[int]:
    """Return the positions of the columns, except the key, that are read of the removed rows."""
    kept = [i for family in found if not family.always for i in family.columns]
    return [*kept, *ended] if kept else kept
