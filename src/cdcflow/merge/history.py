"""A range of changes as versions of rows: what comes into a table that keeps each of them. SQL, built here as text.

`merge.fold.history` says what is meant. Here each key's changes, and before them the open version that the table has of
it, lie side by side, and windows over them find which of them begin a version, which end one, and what it holds:

    open row of the table    offset 4          begins at 4, and ends at 20
    u a        unchanged doc    20 txn 7       } one transaction: one version, from 21 on
    u a                         21 txn 7       }
    r                           40             the same values: no version, the open one is confirmed
    d                           50 txn 9       the version of 21 ends
    t (every key)               60 txn 10      what is open ends

    events   the open rows and the changes, with the transaction's position and time
    settled  the last event of each transaction, with all its values
    bounds   without reads that a change of the same segment follows, and those that only confirm the open version
    rows     each with its successor: versions that begin, and open rows of the table that end or are confirmed

The result has the names of a view of changes, so it comes into the table as any other does: whole rows, one for each
key and `start`, which together are the key of such a table. Behind the source's columns `c<i>` those of `ENDS` follow.
"""

# ruff: noqa: S608 - statements are made here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.merge.reduce import Family, Layout
from cdcflow.merge.types import name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET


@dataclass(frozen=True, slots=True)
class Names:
    """What the two offsets are called."""

    start: str = "_valid_from"
    end: str = "_valid_to"


AUTO_CDC = Names("__START_AT", "__END_AT")
"""As Spark's Auto CDC calls them."""


def ends(names: Names) -> tuple[tuple[str, str], ...]:
    """The columns that a history has besides the source's, with their types."""
    types = (("", "bigint"), ("_position", "string"), ("_time", "timestamp"), ("_exact", "boolean"))
    start = tuple((names.start if not part else f"_valid_from{part}", type_) for part, type_ in types)
    return start + tuple((names.end if not part else f"_valid_to{part}", type_) for part, type_ in types)


@dataclass(frozen=True, slots=True)
class Range:
    """What is to be known of a range besides its changes.

    `changes`: the view that `merge.reduce` describes, without truncates, key changes completed, with `n`, the number of
    the transaction. `transactions`: a view of number `n`, position `p` and time `t`. `standing`: the table's rows, or
    None where it has none; `whole`: all of them are wanted, not only those of keys in the range. `segments`: the last
    offset of each segment as it was sealed. `has_reads`: whether a backfill's rows are among the changes. `truncates`:
    offset and transaction of the last one in each transaction that has any. `moments`: a view of offset `o`, position
    `p` and time `t` of the truncates and of `since`. `since`: where the newest backfill began (0: there is none), and
    `swept`: it is done, and what nothing touched since is to go.
    """

    changes: str
    transactions: str
    moments: str
    standing: str | None
    segments: Sequence[int]
    has_reads: bool
    truncates: Sequence[tuple[int, int]] = ()
    since: int = 0
    swept: bool = False

    @property
    def whole(self) -> bool:
        """Whether rows may end of which the range has no change."""
        return bool(self.truncates) or self.swept


def open_rows(layout: Layout, names: Names, range_: Range) -> str | None:
    """The open rows of the table that the range may end, confirm or go on from, under the table's own names."""
    if range_.standing is None:
        return None
    is_open = f"t.{name_sql(names.end)} IS NULL"
    if range_.whole:
        return f"SELECT t.* FROM {range_.standing} t WHERE {is_open}"
    same = " AND ".join(f"t.{name_sql(layout.target.columns[i].name)} = c.c{i}" for i in layout.key)
    return f"SELECT t.* FROM {range_.standing} t LEFT SEMI JOIN {range_.changes} c ON {same} WHERE {is_open}"


def versions(layout: Layout, found: Sequence[Family], names: Names, range_: Range) -> str:
    """The rows that come. `found`: the families by what the changes leave unchanged and the open rows miss."""
    events = _events(layout, names, range_)
    settled = _settled(layout, found, range_, events)
    return _rows(layout, range_, _bounds(layout, range_, settled))


def _events(layout: Layout, names: Names, range_: Range) -> str:
    """`f`, `p`, `t`, `x`: where a version that begins with the event began, and whether exactly there."""
    columns = [f"c{i}" for i in range(len(layout.target.columns))]
    segment = _first_from(range_.segments, range_.segments, "c.o") if range_.has_reads else "0"
    changes = (
        f"SELECT c.o, c.op, c.v, c.m, c.n, c.o AS f, x.p, x.t, c.op <> 'r' AS x, CAST({segment} AS bigint) AS g,"
        f" {', '.join(f'c.{c}' for c in columns)} FROM {range_.changes} c LEFT JOIN {range_.transactions} x ON c.n = x.n"
    )
    open_ = open_rows(layout, names, range_)
    if open_ is None:
        return changes
    listed = ", ".join(f"{text_sql(column.name)}, {i}" for i, column in enumerate(layout.target.columns))
    missing = f"transform({MISSING}, x -> element_at(map({listed}), x))"
    named = ", ".join(f"{name_sql(column.name)} AS c{i}" for i, column in enumerate(layout.target.columns))
    start = name_sql(names.start)
    return (
        f"{changes} UNION ALL SELECT {OFFSET} AS o, 'b' AS op, -1 AS v, CASE WHEN size({MISSING}) > 0 THEN {missing} END"
        f" AS m, CAST(0 AS bigint) AS n, {start} AS f, _valid_from_position AS p, _valid_from_time AS t,"
        f" _valid_from_exact AS x, CAST(0 AS bigint) AS g, {named} FROM ({open_})"
    )


def _settled(layout: Layout, found: Sequence[Family], range_: Range, events: str) -> str:
    """The last event of each transaction. `e`: the row is there then; `miss`: positions of the columns that nobody
    knows; `tr`, `tn`: offset and transaction of the first truncate behind it; `h`: a read that makes no version."""
    key = ", ".join(f"c{i}" for i in layout.key)
    by_offset = f"PARTITION BY {key} ORDER BY o"
    so_far = f"OVER ({by_offset} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    later = f"OVER ({by_offset} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    seen = ["*", f"lead(n) OVER ({by_offset}) AS nn"]
    if range_.has_reads:
        seen.append(f"first(CASE WHEN op IN ('c', 'u', 'd') THEN g END, true) {later} AS ng")
    partial = [(j, family) for j, family in enumerate(found) if not family.always]
    if partial:
        seen.append(f"max(CASE WHEN op IN ('c', 'r', 'd', 'b') THEN o END) {so_far} AS b")
    for j, family in partial:
        packed = ", ".join(["o", "op", "g", *(f"c{i}" for i in family.columns)])
        sent = family.sent_sql()
        seen.append(f"last(CASE WHEN {sent} THEN struct({packed}) END, true) {so_far} AS z{j}")
        if family.masked:
            seen.append(f"max(CASE WHEN op <> 'd' AND {family.unchanged_sql()} THEN o END) {so_far} AS u{j}")
        if family.masked and family.early:
            seen.append(f"max(CASE WHEN {family.older_sql()} THEN o END) {so_far} AS l{j}")
        if range_.has_reads:
            seen.append(f"first(CASE WHEN op IN ('c', 'u') AND {sent} THEN g END, true) {later} AS k{j}")
    offsets, numbers = [o for o, _ in range_.truncates], [n for _, n in range_.truncates]
    behind = f"CAST({_first_from(offsets, offsets, 'o + 1')} AS bigint) AS tr"
    of_it = f"CAST({_first_from(offsets, numbers, 'o + 1')} AS bigint) AS tn"
    ended = "tn IS NOT NULL AND tn = n"
    values, missing = _values(layout, found, range_)
    is_hidden = "op = 'r' AND coalesce(ng = g, false)" if range_.has_reads else "false"
    return (
        f"SELECT CASE WHEN {ended} THEN tr ELSE o END AS o, CASE WHEN {ended} THEN 't' ELSE op END AS op, n, f, p, t, x,"
        f" op <> 'd' AND NOT ({ended}) AS e, tr, tn, {is_hidden} AS h,"
        f" {missing} AS miss, {', '.join(values)}"
        f" FROM (SELECT *, {behind}, {of_it} FROM (SELECT {', '.join(seen)} FROM ({events})))"
        f" WHERE nn IS NULL OR nn <> n"
    )


def _values(layout: Layout, found: Sequence[Family], range_: Range) -> tuple[list[str], str]:
    """Each column's value, and the positions of those that nobody knows."""
    values = {i: f"c{i}" for i in layout.key}
    absent = []
    for j, family in enumerate(found):
        if family.always:
            values |= {i: f"c{i}" for i in family.columns}
            continue
        sent = f"coalesce(z{j}.o >= coalesce(b, 0), false)"
        unknown = "false"
        if family.masked:
            unknown = f"(NOT {sent} AND coalesce(u{j} >= coalesce(b, 0), false))"
            if family.early:
                unknown = f"({unknown} AND NOT coalesce(l{j} >= coalesce(b, 0) AND l{j} < u{j}, false))"
        if range_.has_reads:
            # The read may show what the change that is still to come has sent.
            unknown = f"({unknown} OR coalesce({sent} AND z{j}.op = 'r' AND z{j}.g = k{j}, false))"
        listed = ", ".join(map(str, family.columns))
        absent.append(f"CASE WHEN {unknown} THEN array({listed}) ELSE array() END")
        for i in family.columns:
            held = f"WHEN {sent} THEN z{j}.c{i} ELSE {layout.default_sql(i)}"
            values[i] = f"CASE WHEN {unknown} THEN CAST(NULL AS {layout.target.columns[i].type}) {held} END"
    missing = "CAST(NULL AS array<int>)"
    if absent:
        all_ = f"concat({', '.join(absent)})"
        missing = f"CASE WHEN size({all_}) > 0 THEN {all_} END"
    return [f"{values[i]} AS c{i}" for i in range(len(layout.target.columns))], missing


def _bounds(layout: Layout, range_: Range, settled: str) -> str:
    """Events that begin or end a version. `lo`: offset of the key's last event; `po`: of the event before; `nh`: of the
    next read that makes no version."""
    key = ", ".join(f"c{i}" for i in layout.key)
    by_offset = f"PARTITION BY {key} ORDER BY o"
    if not range_.has_reads:
        return f"SELECT *, o AS lo, CAST(NULL AS bigint) AS nh FROM ({settled})"
    later = f"OVER ({by_offset} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    hiding = f"SELECT *, first(CASE WHEN h THEN o END, true) {later} AS nh FROM ({settled})"
    before = ["o", "e", "tr", "miss", *(f"c{i}" for i in layout.others)]
    stood = f"lag(struct({', '.join(before)})) OVER ({by_offset}) AS s"
    known = f"SELECT *, max(o) OVER (PARTITION BY {key}) AS lo, {stood} FROM ({hiding}) WHERE NOT h"
    same = " AND ".join(["s.e", "coalesce(s.tr > o, true)", "s.miss IS NULL", "miss IS NULL"])
    alike = " AND ".join([same, *(f"s.c{i} <=> c{i}" for i in layout.others)])
    return f"SELECT *, s.o AS po FROM ({known}) WHERE NOT (op = 'r' AND s IS NOT NULL AND {alike})"


def _rows(layout: Layout, range_: Range, bounds: str) -> str:
    """Versions that begin, and those of the table that end or are confirmed."""
    key = ", ".join(f"c{i}" for i in layout.key)
    columns = [f"c{i}" for i in range(len(layout.target.columns))]
    next_ = f"OVER (PARTITION BY {key} ORDER BY o)"
    taken = ("o", "n", "p", "t", "op", *(["po"] if range_.has_reads else []))
    followed = ", ".join(f"lead({name}) {next_} AS z{name}" for name in taken)
    before = "zpo" if range_.has_reads else "o"
    by_truncate = "(tr IS NOT NULL AND (zo IS NULL OR tn < zn))"
    is_gone = f"(zop = 'c' AND {before} < {range_.since} AND zo >= {range_.since})" if range_.since else "false"
    is_swept = f"(zo IS NULL AND lo < {range_.since})" if range_.swept else "false"
    ended = (
        f"SELECT *, {by_truncate} AS bt, NOT {by_truncate} AND coalesce({is_gone} OR {is_swept}, false) AS bs"
        f" FROM (SELECT *, {followed} FROM ({bounds}))"
    )
    end = f"CASE WHEN bt THEN tr WHEN bs THEN CAST({range_.since} AS bigint) ELSE zo END"
    at = len(columns)
    named = [
        "CASE WHEN eo IS NULL THEN lo ELSE eo END AS o",
        "'c' AS op",
        f"{max(len(layout.shapes) - 1, 0)} AS v",
        "miss AS m",
        *columns,
        f"f AS c{at}, p AS c{at + 1}, t AS c{at + 2}, x AS c{at + 3}, eo AS c{at + 4}",
        f"CASE WHEN bt OR bs THEN q.p2 ELSE zp END AS c{at + 5}",
        f"CASE WHEN bt OR bs THEN q.t2 ELSE zt END AS c{at + 6}",
        "CASE WHEN eo IS NOT NULL THEN NOT bs AND (bt OR zop <> 'r') AND NOT coalesce(nh < eo, false) END"
        f" AS c{at + 7}",
    ]
    of_moments = f"(SELECT o AS o2, p AS p2, t AS t2 FROM {range_.moments}) q"
    return (
        f"SELECT {', '.join(named)} FROM (SELECT *, {end} AS eo FROM ({ended})) r"
        f" LEFT JOIN {of_moments} ON (bt OR bs) AND q.o2 = r.eo"
        " WHERE e AND (op <> 'b' OR eo IS NOT NULL OR lo > r.o)"
    )


def _first_from(points: Sequence[int], values: Sequence[int], offset: str) -> str:
    """The value of the first of these points, which ascend, that is not before an offset; NULL: there is none. A tree,
    so that many points cost little."""
    if not points:
        return "NULL"
    if len(points) == 1:
        return f"CASE WHEN {offset} <= {points[0]} THEN {values[0]} END"
    half = len(points) // 2
    below, above = (_first_from(points[p], values[p], offset) for p in (slice(half), slice(half, None)))
    return f"CASE WHEN {offset} <= {points[half - 1]} THEN {below} ELSE {above} END"
