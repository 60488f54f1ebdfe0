"""The mode `soft_delete`: deleted rows remain in the table, and a delete marks them. SQL, built here as text.

The view of changes (`tables.merge.reduce`) becomes one of the same kind with an additional column `ended`: whether the
change deleted the row. If no change of its key follows, a delete becomes an update that sets `ended` and leaves every
other column unchanged. If a change follows, the delete stays one, so that the next row of its key takes no value from
the old one:

    offset  op  sent                       offset  op  left unchanged   ended
      11    c   a doc                        11    c
      12    d                                12    d
      13    c   a doc               ──▶      13    c                    false
      14    d                                14    u   a doc            true

A truncate is a delete of each existing row. In the range it becomes one delete for each key that has a change directly
before or after it; the statement marks the rows of the other keys.
"""

# ruff: noqa: S608 - SQL is built here; all names are cdcflow's
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from cdcflow.tables.merge.reduce import ColumnLayout, Mask


def masks(layout: ColumnLayout) -> Sequence[Mask]:
    """Return, for each shape, the columns that a delete leaves unchanged: all that the shape has except the key."""
    key, at = set(layout.key), {c.number: i for i, c in enumerate(layout.target.columns)}
    return [frozenset(at[c.number] for c in shape.columns) - key for shape in layout.numbered]


def with_truncates(layout: ColumnLayout, changes: str, truncates: Mapping[int, int], *, moved: bool) -> str:
    """Return SQL for the view of changes with the effect of truncates on the keys in it. `truncates`: the number of the
    shape, by offset. `moved`: the view has the old keys."""
    offsets = sorted(truncates)
    around = zip_longest([0, *offsets[:-1]], offsets, offsets[1:])
    listed = " UNION ALL ".join(
        f"SELECT CAST({offset} AS bigint) AS o, CAST({before} AS bigint) AS prior,"
        f" CAST({after if after is not None else 'NULL'} AS bigint) AS later, {truncates[offset]} AS v"
        for before, offset, after in around
        if offset is not None
    )
    key = [f"c{i}" for i in layout.key]
    near = "(c.o < t.o AND c.o > t.prior) OR (c.o > t.o AND (t.later IS NULL OR c.o < t.later))"
    hit = f"SELECT DISTINCT t.o, t.v, {', '.join(f'c.{k}' for k in key)} FROM {changes} c JOIN ({listed}) t ON {near}"
    types = [c.type for c in layout.target.columns]
    columns = ["o", "'d' AS op", "v", "CAST(NULL AS array<int>) AS m"]
    columns += [f"c{i}" if f"c{i}" in key else f"CAST(NULL AS {type_}) AS c{i}" for i, type_ in enumerate(types)]
    columns += [f"CAST(NULL AS {types[i]}) AS b{i}" for i in layout.key] if moved else []
    both = f"SELECT * FROM {changes} UNION ALL SELECT {', '.join(columns)} FROM ({hit})"
    # A row that was deleted already is not truncated.
    is_idle = f"o IN ({', '.join(map(str, offsets))}) AND later IS NULL AND coalesce(prior = 'd', false)"
    shown = [
        "o",
        "op",
        "v",
        "m",
        *(f"c{i}" for i in range(len(types))),
        *([f"b{i}" for i in layout.key] if moved else []),
    ]
    return f"SELECT {', '.join(shown)} FROM ({_around(layout, both)}) WHERE NOT ({is_idle})"


def with_purges(changes: str, purges: str, truncates: Collection[int]) -> str:
    """Return SQL for the view of changes with two columns for the effect of a delete by one of the transactions in the
    view `purges` (first and last offset `a` and `z`): whether it `removes` its row, and whether it `keeps` the row
    unmarked. Both are false for deletes that a truncate caused."""
    real = f" AND c.o NOT IN ({', '.join(map(str, sorted(truncates)))})" if truncates else ""
    within = f"c.op = 'd' AND c.o >= p.a AND c.o <= p.z{real}"
    effects = "coalesce(NOT p.keeps, false) AS removes, coalesce(p.keeps, false) AS keeps"
    return f"SELECT c.*, {effects} FROM {changes} c LEFT JOIN {purges} p ON {within}"


def changes_with_end(layout: ColumnLayout, changes: str) -> str:
    """Return SQL for the changes of a table with the column `ended`: a delete becomes an update of that column. With
    `layout.purges`, the view is that of `with_purges`: a delete that removes its row stays a delete, and one that keeps
    it becomes an update of the column `purged` instead."""
    last = "op = 'd' AND later IS NULL" + (" AND NOT removes" if layout.purges else "")
    keeps = "keeps" if layout.purges else "false"
    marks = {layout.ended: f"(op = 'd' AND NOT {keeps})", layout.purged: f"(op = 'd' AND {keeps})"}
    unchanged = [
        f"WHEN {version} THEN array({', '.join(map(str, sorted(mask)))})"
        for version, mask in enumerate(masks(layout))
        if mask
    ]
    mask = f"CASE v {' '.join(unchanged)} END" if unchanged else "CAST(NULL AS array<int>)"
    columns = [
        "o",
        f"CASE WHEN {last} THEN 'u' ELSE op END AS op",
        "v",
        f"CASE WHEN {last} THEN {mask} ELSE m END AS m",
    ]
    columns += [f"{marks[i]} AS c{i}" if i in marks else f"c{i}" for i in range(len(layout.target.columns))]
    return f"SELECT {', '.join(columns)} FROM ({_around(layout, changes)})"


def living(layout: ColumnLayout, changes: str) -> str:
    """Return the same as `changes_with_end` for changes without deletes."""
    marks = layout.ending_positions
    columns = [f"false AS c{i}" if i in marks else f"c{i}" for i in range(len(layout.target.columns))]
    return f"SELECT o, op, v, m, {', '.join(columns)} FROM {changes}"


def _around(layout: ColumnLayout, changes: str) -> str:
    """Return SQL for the changes, each with the kinds of the directly preceding and following changes of the
    same key."""
    window = f"OVER (PARTITION BY {', '.join(f'c{i}' for i in layout.key)} ORDER BY o)"
    source = changes if changes.isidentifier() else f"({changes})"
    return f"SELECT *, lag(op) {window} AS prior, lead(op) {window} AS later FROM {source}"
