"""Complete key changes whose insert left columns unchanged: find the source of these values. SQL, built here as text.

The log splits a key change into `d` of the old key and, directly after it, `c` of the new one with `_before`. The old
key's row at that point has the values that this `c` left unchanged. In a range the old key may itself have got its row
by such a change, so the value is found by following parents:

    offset  10 u k=1 a        life of k=1 from the table; a from 10
            11 d k=1
            12 c k=2 before 1 unchanged a, doc      parent: the table's row of k=1 (doc), a from 10
            13 d k=2
            14 c k=3 before 2 unchanged a, doc      parent: the move at 12

A *life* of a key is the range between two of its barriers (c, r, d, and a truncate of the table). Each move refers to
the life that its own `d` ended. If that life began before the range, its values are in the table's row; if it began
with a move, that move is the parent; otherwise it began with nothing. Parents are followed by doubling (in each round
every move copies what its parent knows and its parent's parent), so a chain of n moves takes log2(n) rounds. A key used
repeatedly (a swap through a temporary key) has one life each time.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Collection, Sequence

from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge.reduce import ColumnLayout, update_in_sql


def moves(layout: ColumnLayout, changes: str) -> str:
    """Return SQL for the moves that need values: `o`, `m`, and the old key `b<i>`."""
    before = ", ".join(f"b{i}" for i in layout.key)
    moved = f"b{layout.key[0]} IS NOT NULL"
    return f"SELECT o, m, {before} FROM {changes} WHERE op = 'c' AND {moved} AND m IS NOT NULL"


def lives(
    layout: ColumnLayout,
    columns: Collection[int],
    changes: str,
    moved: str,
    truncates: Sequence[int] = (),
    *,
    by_offset: bool = False,
) -> str:
    """Return SQL with a row per life of a moved key: the key `c<i>`, the offset `life` where it began (NULL: before the
    range), and per column `h<i>` (sent during this life), `x<i>` (its latest value) and `d<i>` (updated while the
    column did not exist). `truncates`: the offsets of truncates in the range, ascending; the view does not have their
    rows. `by_offset`: see `reduce.reduction`."""
    key = [f"c{i}" for i in layout.key]
    same = " AND ".join(f"c.c{i} <=> m.b{i}" for i in layout.key)
    began = _began("CURRENT ROW", key, truncates)
    started = f"SELECT *, {began} AS life FROM {changes} c LEFT SEMI JOIN {moved} m ON {same}"
    parts = []
    for i in columns:
        # A c or r in a shape without the column gives it the default, as the projection wrote it.
        without, older = update_in_sql(layout.lacking(i)), update_in_sql(layout.early(i))
        sent = f"NOT ({without}) AND NOT coalesce(array_contains(m, {i}), false)"
        parts.append(f"coalesce(bool_or({sent}), false) AS h{i}")
        newest = f"max(o) FILTER (WHERE {sent}) AS o{i}"
        parts.append(newest if by_offset else f"max_by(c{i}, o) FILTER (WHERE {sent}) AS x{i}")
        parts.append(f"bool_or({older}) AS d{i}")
    grouped = ", ".join([*key, "life"])
    found = f"SELECT {grouped}, {', '.join(parts)} FROM ({started}) WHERE op <> 'd' GROUP BY {grouped}"
    if not by_offset:
        return found
    values = ", ".join(f"x{i}.c{i} AS x{i}" for i in columns)
    joins = " ".join(f"LEFT JOIN {changes} x{i} ON x{i}.o = g.o{i} AND x{i}.op <> 'd'" for i in columns)
    return f"SELECT g.*, {values} FROM ({found}) g {joins}"


def ended_lives(layout: ColumnLayout, changes: str, moved: str, truncates: Sequence[int] = ()) -> str:
    """Return SQL with a row per move: `o`, `m`, the old key, and the offset `life` at which the life that the move
    ended had begun. `truncates`: as in `lives`."""
    key = [f"c{i}" for i in layout.key]
    same = " AND ".join(f"c.c{i} <=> m.b{i}" for i in layout.key)
    rows = (
        f"SELECT o, op, {', '.join(key)}, {_began('1 PRECEDING', key, truncates)} AS life FROM {changes} c"
        f" LEFT SEMI JOIN {moved} m ON {same}"
    )
    picked = ", ".join(f"d.{k}" for k in key)
    return f"SELECT m.o, m.m, d.life, {picked} FROM {moved} m JOIN ({rows}) d ON d.o = m.o - 1 AND d.op = 'd'"


def first_round(
    layout: ColumnLayout, columns: Collection[int], ended_view: str, lives_view: str, table: str | None
) -> str:
    """Return SQL for the values that each move has without its parent: from the life that it ended, and from the table
    if that life began before the range.

    Result: `o`, `m`, `parent` (offset; NULL if it has none), per column `h<i>` and `x<i>`. `table` is `None` if it was
    emptied.
    """
    same_life = " AND ".join(f"l.c{i} <=> e.c{i}" for i in layout.key)
    joins = f"{ended_view} e LEFT JOIN {lives_view} l ON {same_life} AND l.life <=> e.life"
    parts = []
    if table is not None:
        names = layout.target.columns
        same_row = " AND ".join(f"t.{name_sql(names[i].name)} = e.c{i}" for i in layout.key)
        joins += f" LEFT JOIN {table} t ON e.life IS NULL AND {same_row}"
    for i in columns:
        name = layout.target.columns[i].name
        own, default = f"coalesce(l.h{i}, false)", layout.default_sql(i)
        there = stands = "false"
        if table is not None:
            there = f"t.{OFFSET} IS NOT NULL"
            stands = f"{there} AND NOT coalesce(array_contains(t.{MISSING}, {text_sql(name)}), false)"
        # A row from before the column, about which nothing else is known: it got the default.
        older = f"coalesce(l.d{i}, false) AND NOT ({there})"
        parts.append(f"({own} OR ({stands}) OR ({older})) AS h{i}")
        held = f" WHEN {stands} THEN t.{name_sql(name)}" if table is not None else ""
        parts.append(f"CASE WHEN {own} THEN l.x{i}{held} WHEN {older} THEN {default} END AS x{i}")
    return f"SELECT e.o, e.m, e.life AS parent, {', '.join(parts)} FROM {joins}"


def next_round(columns: Collection[int], view: str) -> str:
    """Return SQL for one more round: every move takes the values that it lacks from its parent, and then points to its
    parent's parent."""
    parts = []
    for i in columns:
        parts.append(f"(s.h{i} OR coalesce(p.h{i}, false)) AS h{i}")
        parts.append(f"CASE WHEN s.h{i} THEN s.x{i} ELSE p.x{i} END AS x{i}")
    return f"SELECT s.o, s.m, p.parent, {', '.join(parts)} FROM {view} s LEFT JOIN {view} p ON s.parent = p.o"


def changes_with_moves(layout: ColumnLayout, columns: Collection[int], changes: str, known: str) -> str:
    """Return SQL for the view of changes with the moves' values filled in. Columns that are still unchanged after that
    are missing."""
    filled = ", ".join(f"CASE WHEN r.h{i} THEN array({i}) ELSE array() END" for i in columns)
    left = f"array_except(c.m, concat({filled}))"
    parts = ["c.o", "c.op", "c.v", f"CASE WHEN r.o IS NULL THEN c.m WHEN size({left}) > 0 THEN {left} END AS m"]
    parts += ["c.n", "c.ts"] if layout.stamped else []
    for i in range(len(layout.target.columns)):
        if i in columns:
            parts.append(f"CASE WHEN array_contains(c.m, {i}) AND r.h{i} THEN r.x{i} ELSE c.c{i} END AS c{i}")
        else:
            parts.append(f"c.c{i}")
    return f"SELECT {', '.join(parts)} FROM {changes} c LEFT JOIN {known} r ON c.o = r.o"


def _began(last: str, key: Collection[str], truncates: Sequence[int]) -> str:
    """Return SQL for the offset of the latest barrier up to `last`, of the same key or of all keys."""
    frame = f"ROWS BETWEEN UNBOUNDED PRECEDING AND {last}"
    own = f"max(CASE WHEN op IN ('c', 'r', 'd') THEN o END) OVER (PARTITION BY {', '.join(key)} ORDER BY o {frame})"
    return emptied_or(own, truncates)


def emptied_or(barrier: str, truncates: Sequence[int]) -> str:
    """Return SQL for the later one of a key's barrier (NULL if it has none) and the latest truncate up to `o`. No row
    has the offset of a truncate, except for the first row of a recreated table, which has nothing of the old table's.
    """
    if not truncates:
        return barrier
    emptied = " ".join(f"WHEN o >= {offset} THEN {offset}" for offset in sorted(truncates, reverse=True))
    return f"nullif(greatest(coalesce({barrier}, 0), CASE {emptied} ELSE 0 END), 0)"
