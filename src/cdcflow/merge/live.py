"""The current rows of a table without a MERGE: what it has, with a range of changes folded over it. SQL, built here.

    the table's rows, in the newest shape ──┬── whose keys are in the range: they go, and give what changes left out
                                            └── the others: they stay, if no sweep takes them
    changes ──reduced──▶ the rows that come

It is what the MERGE of the same range would leave (`merge.statement`), said as one query, so nothing is written and an
engine that is asked for some keys can look for them on both sides.

The table is as it was at the cut where the range begins, so none of its rows is newer than a change.
"""

# ruff: noqa: S608 - statements are made here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdcflow.merge import marking
from cdcflow.merge.acts import Act, Add, Describe, Empty, Fill, MissAlso, MissOnly, Rename, Widen
from cdcflow.merge.statement import Folding
from cdcflow.merge.target import Target
from cdcflow.merge.types import name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET


def followed(target: Target, acts: Iterable[Act], rows: str) -> str:
    """The view `rows`, whose columns are the target's, as it would be after these acts.

    `MissAlso` and `MissOnly` are the two halves of what a rename does to `_missing`: a name there becomes the new one.
    """
    shown = {c.name: (name_sql(c.name), c.type) for c in target.columns}
    now = {c.name: c.name for c in target.columns}
    for act in acts:
        match act:
            case Add(column):
                shown[column.name] = f"CAST(NULL AS {column.type})", column.type
            case Fill(column, default):
                shown[column.name] = f"CAST({default} AS {column.type})", column.type
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
    return f"SELECT {', '.join([*listed, OFFSET, f'{_missing(now)} AS {MISSING}'])} FROM {rows}"


def _missing(now: Mapping[str, str]) -> str:
    """What a row says that it misses, in the columns' names of `now`, by the name that each had."""
    if all(was == name for was, name in now.items()):
        return MISSING
    pairs = ", ".join(f"{text_sql(was)}, {text_sql(name)}" for was, name in now.items())
    named = f"transform({MISSING}, x -> element_at(map({pairs}), x))"
    known = f"array_except({named}, array(CAST(NULL AS string)))"
    return f"CASE WHEN {MISSING} IS NOT NULL AND size({known}) > 0 THEN {known} END"


def unchanged(target: Target, rows: str, *, sweep_before: int) -> str:
    """The rows of a table of which nothing is new but, maybe, that those older than an offset go."""
    return f"SELECT {_listed(target, 't')} FROM {rows} t{_kept(sweep_before)}"


def nothing(target: Target) -> str:
    """No row of a table."""
    columns = [f"CAST(NULL AS {c.type}) AS {name_sql(c.name)}" for c in target.columns]
    columns += [f"CAST(NULL AS bigint) AS {OFFSET}", f"CAST(NULL AS array<string>) AS {MISSING}"]
    return f"SELECT * FROM (SELECT {', '.join(columns)}) WHERE {OFFSET} IS NOT NULL"


def current(folding: Folding, rows: str, *, broadcast: bool, together: bool) -> str:
    """The current rows: the target's columns, `_offset` and `_missing`. `rows`: those that the table has, in the
    target's shape. `broadcast`: so few changes that each machine may have their keys. `together`: so few that one task
    reduces them, which takes less time than to bring each key's to one place."""
    if together:
        folding = replace(folding, changes=f"(SELECT /*+ COALESCE(1) */ * FROM {folding.changes})")
    if folding.empty or folding.emptied:
        return folding.rows()
    if folding.layout.target.key:
        return _by_key(folding, rows, broadcast=broadcast)
    return _counted(folding, rows, broadcast=broadcast)


def _by_key(folding: Folding, rows: str, *, broadcast: bool) -> str:
    layout, families = folding.layout, folding.families
    target, limits = layout.target, folding.limits
    names = [name_sql(c.name) for c in target.columns]
    same = " AND ".join(f"t.{names[i]} = s.c{i}" for i in layout.key)
    keys = f"(SELECT {', '.join(f'c{i}' for i in layout.key)} FROM {folding.changes})"
    hint = _hint(broadcast=broadcast)
    stay = f"SELECT {hint}{_listed(target, 't')} FROM {rows} t LEFT ANTI JOIN {keys} s ON {same}"
    values = [f"t.{names[i]} AS c{i}" for i in layout.key]
    values += [f"t.{names[i]} AS v{i}" for family in families if not family.always for i in family.columns]
    within = f" WHERE {limits.within(f't.{names[layout.key[0]]}')}" if limits is not None else ""
    touched = (
        f"(SELECT {hint}{', '.join(values)}, t.{MISSING} AS missing, 1 AS {marking.ROW}"
        f" FROM {rows} t LEFT SEMI JOIN {keys} s ON {same}{within})"
    )
    come = marking.coming(target, families, folding.reduced(families), touched)
    return f"{stay}{_kept(folding.sweep_before)} UNION ALL {come}"


def _counted(folding: Folding, rows: str, *, broadcast: bool) -> str:
    """Each distinct row of the range stands as often as it does after it: see `reduce.counting`."""
    target = folding.layout.target
    names = [name_sql(c.name) for c in target.columns]
    columns = ", ".join(f"c{i}" for i in range(len(names)))
    same = " AND ".join(f"t.{name} <=> s.c{i}" for i, name in enumerate(names))
    distinct = f"(SELECT {columns} FROM {folding.changes})"
    hint = _hint(broadcast=broadcast)
    stay = f"SELECT {hint}{_listed(target, 't')} FROM {rows} t LEFT ANTI JOIN {distinct} s ON {same}"
    stood = ", ".join(f"t.{name} AS c{i}" for i, name in enumerate(names))
    grouped = ", ".join(f"t.{name}" for name in names)
    standing = (
        f"(SELECT {hint}{stood}, count(*) AS stood FROM {rows} t LEFT SEMI JOIN {distinct} s ON {same}"
        f" GROUP BY {grouped})"
    )
    found = " AND ".join(f"g.c{i} <=> s.c{i}" for i in range(len(names)))
    counts = (
        f"SELECT s.*, greatest(coalesce(g.stood, 0), -s.lowest) + s.total AS n"
        f" FROM {folding.counted()} s LEFT JOIN {standing} g ON {found}"
    )
    copies = f"SELECT *, explode(sequence(1, CAST(n AS int))) AS copy FROM ({counts}) WHERE n > 0"
    come = ", ".join(f"s.c{i} AS {name}" for i, name in enumerate(names))
    return (
        f"{stay}{_kept(folding.sweep_before)} UNION ALL SELECT {come}, s.o AS {OFFSET},"
        f" CAST(NULL AS array<string>) AS {MISSING} FROM ({copies}) s WHERE s.o >= {folding.sweep_before}"
    )


def _listed(target: Target, alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in [*(name_sql(c.name) for c in target.columns), OFFSET, MISSING])


def _kept(sweep_before: int) -> str:
    return f" WHERE coalesce(t.{OFFSET}, 0) >= {sweep_before}" if sweep_before else ""


def _hint(*, broadcast: bool) -> str:
    return "/*+ BROADCAST(s) */ " if broadcast else ""
