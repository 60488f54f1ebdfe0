"""SQL for the rows of a table without a MERGE: the rows that it has, with a range of changes folded over them.

    the table's rows, in the latest shape ──┬── with a key in the range: replaced; source of values that changes omit
                                            └── the others: retained, unless a sweep removes them
    changes ──reduced──▶ the new rows

If the table keeps deleted rows, those that a sweep or a truncate deletes are marked instead; changes that are rows
themselves are added to the others.

The result is what the MERGE of the same range would leave (`tables.merge.statement`), written as one query. So nothing
is written, and an engine that needs only some keys can look for them on both sides.

The table is in its state at the cut where the range begins, so none of its rows is newer than a change.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge import removed_and_added
from cdcflow.tables.merge.acts import Act, Add, Describe, Empty, Fill, MissAlso, MissOnly, Rename, Widen
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.statement import Folding, is_ended
from cdcflow.tables.merge.target import Target


def rows_after_acts(target: Target, acts: Iterable[Act], rows: str, mode: ModeRules = CURRENT) -> str:
    """Return SQL for the view `rows`, whose columns are the target's and the mode's, as it would be after these acts.

    `MissAlso` and `MissOnly` are the two halves of a rename's effect on `_missing`: the new name replaces the old one.
    """
    shown = {c.name: (name_sql(c.name), c.type) for c in target.columns}
    now = {c.name: c.name for c in target.columns}
    for act in acts:
        match act:
            case Add(column):
                shown[column.name] = f"CAST(NULL AS {column.type})", column.type
            case Fill(column, default, only):
                given = f"CAST({default} AS {column.type})"
                if only:
                    given = f"CASE WHEN {only} THEN {given} ELSE {shown[column.name][0]} END"
                shown[column.name] = given, column.type
            case Rename(old, new):
                shown[new] = shown.pop(old)
                now = {was: new if name == old else name for was, name in now.items()}
            case Widen(name, type_):
                shown[name] = f"CAST({shown[name][0]} AS {type_})", type_
            case Empty(name):
                shown[name] = f"CAST(NULL AS {shown[name][1]})", shown[name][1]
            case Describe() | MissAlso() | MissOnly():
                pass
    listed = [f"{value} AS {name_sql(name)}" for name, (value, _) in shown.items()]
    own = [f"{_missing(now, name)} AS {name}" if name == mode.names else name_sql(name) for name, _ in mode.columns]
    return f"SELECT {', '.join([*listed, *own])} FROM {rows}"


def _missing(now: Mapping[str, str], listed: str) -> str:
    """Return SQL for a row's list of missing columns, from its column `listed`, with the new names of the columns.
    `now` maps old names to new ones."""
    if all(was == name for was, name in now.items()):
        return listed
    pairs = ", ".join(f"{text_sql(was)}, {text_sql(name)}" for was, name in now.items())
    named = f"transform({listed}, x -> element_at(map({pairs}), x))"
    known = f"array_except({named}, array(CAST(NULL AS string)))"
    return f"CASE WHEN {listed} IS NOT NULL AND size({known}) > 0 THEN {known} END"


def rows_without_changes(
    target: Target, rows: str, mode: ModeRules, *, sweep_before: int, assigned: Mapping[str, str] | None = None
) -> str:
    """Return SQL for the rows of a table to which no change is applied, without those older than `sweep_before` (0: all
    rows). If the table keeps deleted rows, the older ones get the values in `assigned` instead."""
    if mode.ended is None or not sweep_before:
        return f"SELECT {_column_list(target, 't', mode)} FROM {rows} t{_sweep_filter(sweep_before)}"
    lives = f"t.{mode.open_only}" if mode.open_only else f"NOT {is_ended('t.', mode.ending_columns)}"
    goes = f"{lives} AND coalesce(t.{OFFSET}, 0) < {sweep_before}"
    set_ = assigned or {}
    own = [
        f"CASE WHEN {goes} THEN {set_[name]} ELSE t.{name_sql(name)} END AS {name_sql(name)}"
        if name in set_
        else f"t.{name_sql(name)}"
        for name, _ in mode.columns
    ]
    return f"SELECT {', '.join([*(f't.{name_sql(c.name)}' for c in target.columns), *own])} FROM {rows} t"


def nothing(target: Target, mode: ModeRules = CURRENT) -> str:
    """Return SQL for no row, with the columns of a table."""
    columns = [f"CAST(NULL AS {c.type}) AS {name_sql(c.name)}" for c in target.columns]
    columns += [f"CAST(NULL AS {type_}) AS {name_sql(name)}" for name, type_ in mode.columns]
    return f"SELECT * FROM (SELECT {', '.join(columns)}) WHERE {OFFSET} IS NOT NULL"


def rows_after_range(
    folding: Folding,
    target: Target,
    rows: str,
    mode: ModeRules,
    *,
    broadcast: bool,
    together: bool,
    doubled: bool = False,
) -> str:
    """Return SQL for a table's rows after a range, with the columns of the target and the mode. `rows`: the view of the
    rows before, in the target's shape, "" if it has no rows. `broadcast`, `together`, `doubled`: as in `current`."""
    if folding.adds_only:
        stay = f"SELECT {_column_list(target, 't', mode)} FROM {rows} t UNION ALL " if rows else ""
        return f"{stay}{folding.rows()}"
    found = current(folding, rows, broadcast=broadcast, together=together, doubled=doubled)
    return found if mode.ended is None else f"SELECT {_column_list(target, 't', mode)} FROM ({found}) t"


def current(folding: Folding, rows: str, *, broadcast: bool, together: bool, doubled: bool = False) -> str:
    """Return SQL for the rows of a table that is changed by key or by count, with the columns of the folding's target,
    `_offset` and `_missing`. `rows`: the view of the rows before, in the target's shape.

    `broadcast`: the changes are few, so each machine may get their keys. `together`: one task reduces the changes,
    which takes less time for few of them than shuffling them by key. `doubled`: a key that is in the table more than
    once, which should never happen, is shown as often as a merge would leave it, or twice.
    """
    if together:
        folding = replace(folding, changes=f"(SELECT /*+ COALESCE(1) */ * FROM {folding.changes})")
    if folding.empty or folding.emptied:
        return folding.rows()
    if folding.layout.target.key:
        found = _by_key(folding, rows, broadcast=broadcast)
        return _with_doubled(folding, rows, found) if doubled else found
    return _counted_rows(folding, rows, broadcast=broadcast)


def _by_key(folding: Folding, rows: str, *, broadcast: bool) -> str:
    layout, families = folding.layout, folding.families
    target, limits = layout.target, folding.limits
    names = [name_sql(c.name) for c in target.columns]
    same = " AND ".join(f"t.{names[i]} = s.c{i}" for i in layout.key)
    keys = f"(SELECT {', '.join(f'c{i}' for i in layout.key)} FROM {folding.changes})"
    hint = _hint(broadcast=broadcast)
    stay = f"SELECT {hint}{_staying(folding)} FROM {rows} t LEFT ANTI JOIN {keys} s ON {same}"
    values = [f"t.{names[i]} AS c{i}" for i in layout.key]
    values += [f"t.{names[i]} AS v{i}" for family in families if not family.always for i in family.columns]
    values += [f"t.{names[i]} AS v{i}" for i in layout.ending_positions]
    within = f" WHERE {limits.within(f't.{names[layout.key[0]]}')}" if limits is not None else ""
    touched = (
        f"(SELECT {hint}{', '.join(values)}, t.{MISSING} AS missing, 1 AS {removed_and_added.ROW}"
        f" FROM {rows} t LEFT SEMI JOIN {keys} s ON {same}{within})"
    )
    come = removed_and_added.coming(target, families, folding.reduced_query(families), touched, layout.ending_positions)
    return f"{stay}{_sweep_filter(folding.sweep_before)} UNION ALL {come}"


def _with_doubled(folding: Folding, rows: str, found: str) -> str:
    """Return SQL for the rows of a range, in which a key has two rows if it has several in the table: a merge changes
    each of them."""
    layout = folding.layout
    names = [name_sql(layout.target.columns[i].name) for i in layout.key]
    keys = f"(SELECT {', '.join(f'c{i}' for i in layout.key)} FROM {folding.changes})"
    touched = " AND ".join(f"t.{name} = s.c{i}" for name, i in zip(names, layout.key, strict=True))
    listed = ", ".join(f"t.{name}" for name in names)
    twice = (
        f"(SELECT {listed} FROM {rows} t LEFT SEMI JOIN {keys} s ON {touched} GROUP BY {listed} HAVING count(*) > 1)"
    )
    same = " AND ".join(f"f.{name} = d.{name}" for name in names)
    return f"{found} UNION ALL SELECT f.* FROM ({found}) f LEFT SEMI JOIN {twice} d ON {same}"


def _staying(folding: Folding) -> str:
    """Return the SELECT list for rows that the range does not touch. Some of them may end all the same
    (`statement.Ending`)."""
    layout, ending = folding.layout, folding.ending
    if not layout.ended_names or not ending.is_of_all:
        return _column_list(layout.target, "t")
    lives = f"NOT {is_ended('t.', layout.ended_names)}"
    truncated, swept = (f"({lives} AND t.{OFFSET} < {at})" for at in (ending.truncated_at, ending.before))
    ended = name_sql(layout.ended_names[0])
    values = {
        ended: f"CASE WHEN {truncated} OR {swept} THEN true ELSE t.{ended} END AS {ended}",
        OFFSET: f"CASE WHEN {truncated} THEN {ending.truncated_at} ELSE t.{OFFSET} END AS {OFFSET}",
    }
    names = [*(name_sql(c.name) for c in layout.target.columns), OFFSET, MISSING]
    return ", ".join(values.get(name, f"t.{name}") for name in names)


def _counted_rows(folding: Folding, rows: str, *, broadcast: bool) -> str:
    """Return SQL for the rows after a range of a table without a key: the rows that the range does not change, and each
    changed one as many times as the table has it after the range (see `reduce.counting`)."""
    target = folding.layout.target
    names = [name_sql(c.name) for c in target.columns]
    columns = ", ".join(f"c{i}" for i in range(len(names)))
    same = " AND ".join(f"t.{name} <=> s.c{i}" for i, name in enumerate(names))
    distinct = f"(SELECT {columns} FROM {folding.changes})"
    hint = _hint(broadcast=broadcast)
    stay = f"SELECT {hint}{_column_list(target, 't')} FROM {rows} t LEFT ANTI JOIN {distinct} s ON {same}"
    stood = ", ".join(f"t.{name} AS c{i}" for i, name in enumerate(names))
    grouped = ", ".join(f"t.{name}" for name in names)
    standing = (
        f"(SELECT {hint}{stood}, count(*) AS stood FROM {rows} t LEFT SEMI JOIN {distinct} s ON {same}"
        f" GROUP BY {grouped})"
    )
    found = " AND ".join(f"g.c{i} <=> s.c{i}" for i in range(len(names)))
    counts = (
        f"SELECT s.*, greatest(coalesce(g.stood, 0), -s.lowest) + s.total AS n"
        f" FROM {folding.counting_query()} s LEFT JOIN {standing} g ON {found}"
    )
    copies = f"SELECT *, explode(sequence(1, CAST(n AS int))) AS copy FROM ({counts}) WHERE n > 0"
    come = ", ".join(f"s.c{i} AS {name}" for i, name in enumerate(names))
    return (
        f"{stay}{_sweep_filter(folding.sweep_before)} UNION ALL SELECT {come}, s.o AS {OFFSET},"
        f" CAST(NULL AS array<string>) AS {MISSING} FROM ({copies}) s WHERE s.o >= {folding.sweep_before}"
    )


def _column_list(target: Target, alias: str, mode: ModeRules = CURRENT) -> str:
    names = [*(c.name for c in target.columns), *(name for name, _ in mode.columns)]
    return ", ".join(f"{alias}.{name_sql(name)}" for name in names)


def _sweep_filter(sweep_before: int) -> str:
    return f" WHERE coalesce(t.{OFFSET}, 0) >= {sweep_before}" if sweep_before else ""


def _hint(*, broadcast: bool) -> str:
    return "/*+ BROADCAST(s) */ " if broadcast else ""
