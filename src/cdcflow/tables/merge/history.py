"""A range of changes as versions of rows, for a table that keeps each version. SQL, built here as text.

`log.fold.fold.history` defines the result. Here each key's changes, preceded by the open version that the table has of
it, are in one view, and windows over them find which of them begin a version, which end one, and what it holds:

    open row of the table    offset 4          begins at 4, and ends at 20
    u a        unchanged doc    20 txn 7       } one transaction: one version, beginning at 21
    u a                         21 txn 7       }
    r                           40             the same values: no version, the open one is confirmed
    d                           50 txn 9       the version of 21 ends
    t (every key)               60 txn 10      what is open ends

    events   the open rows and the changes, with the transaction's position and time
             (`x`: the delete of a row that a repair did not find)
    settled  the last event of each transaction, with all its values
    bounds   without reads that a change of the same segment follows, and those that only confirm the open version
    rows     each with its successor: versions that begin, and open rows of the table that end or are confirmed

Windows are most of the cost, in proportion to the width of the rows that they sort: what they need of a family that not
every change sends is computed before. If every event is settled and bounds a version, the first window finds the
successors, too (`Range.alone`).

The result has the names of a view of changes, so it is merged into the table like any other: whole rows, one for each
key and `start`, which together are the key of such a table (`v` 1: a row that it has, 0: a new one). The source's
columns `c<i>` are followed by those of `ends.columns`.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cdcflow.model.sqltypes import name_sql, same_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge.history_columns import OffsetNames
from cdcflow.tables.merge.moves import emptied_or
from cdcflow.tables.merge.reduce import ColumnLayout, Family

_FOLLOWED = "o", "n", "p", "t", "op"
"""The columns that are needed of the key's next event."""


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What must be known of a range in addition to its changes.

    `changes`: the view that `tables.merge.reduce` describes, without truncates, key changes completed, with `n`, the
    number of the transaction. `transactions`: a view of number `n`, position `p`, time `t`, and `k`, whether it is a
    backfill's. `standing`: the table's rows, or `None` if it has none; if `whole`, all of them are needed, not only
    those of keys in the range. `segments`: the last offset of each segment at its sealing. `has_reads`: whether a
    backfill's rows, or deletes, may be among the changes. `truncates`: offset and transaction of the last truncate in
    each transaction that has any. `moments`: a view of offset `o`, position `p` and time `t` of the truncates, of
    `since` and of `swept`; `None` if none of these exists. `since`: where the latest backfill began (0 if there was
    none). `swept`: rows without a change since this offset end (0 if no rows do). `gap`: changes were lost before the
    first of these offsets, and the rows are known to be right since the second one (0: not yet). `made_again`: the
    range's first offset, if the table was dropped and recreated before it. `added`: for each column that the table did
    not have before the range, by position, the offset since which its source had it. `alone`: no two changes of a key
    are in one transaction, and each event begins or ends a version.
    """

    changes: str
    transactions: str
    moments: str | None
    standing: str | None
    segments: Sequence[int]
    has_reads: bool
    truncates: Sequence[tuple[int, int]] = ()
    since: int = 0
    swept: int = 0
    gap: tuple[int, int] | None = None
    made_again: int = 0
    added: Mapping[int, int] = field(default_factory=dict)
    alone: bool = False

    @property
    def knows_first(self) -> bool:
        """Whether the kind of each transaction's first event is needed.

        A transaction may create a row that a backfill may not have found. The version that was open before had then
        ended already, even if the same transaction also changes or deletes the row.
        """
        return bool(self.since) and not self.alone

    @property
    def may_be_alone(self) -> bool:
        """Whether each event begins or ends a version, provided that no two changes of a key are in one transaction."""
        return not self.has_reads and not self.clearing

    @property
    def whole(self) -> bool:
        """Whether the range may end versions of rows that it has no change of."""
        return bool(self.truncates or self.swept or self.made_again)

    @property
    def clearing(self) -> Sequence[tuple[int, int]]:
        """The offset and transaction of each event that ends every row: truncates, and the replacement of this table by
        a different one."""
        return [(self.made_again, -1), *self.truncates] if self.made_again else self.truncates


def open_rows(layout: ColumnLayout, names: OffsetNames, range_: RangeFacts) -> str | None:
    """Return SQL for the open rows of the table that the range may end, confirm or continue, under the table's own
    names; `None` if the table has no rows."""
    if range_.standing is None:
        return None
    is_open = f"t.{name_sql(names.end)} IS NULL"
    if range_.whole:
        return f"SELECT t.* FROM {range_.standing} t WHERE {is_open}"
    same = " AND ".join(f"t.{name_sql(layout.target.columns[i].name)} = c.c{i}" for i in layout.key)
    return f"SELECT t.* FROM {range_.standing} t LEFT SEMI JOIN {range_.changes} c ON {same} WHERE {is_open}"


def crowded_transactions(layout: ColumnLayout, changes: str) -> str:
    """Return SQL that has one row if a transaction has more than one change of a key, and otherwise no row."""
    key = ", ".join(f"c{i}" for i in layout.key)
    return f"SELECT 1 FROM (SELECT count(*) AS changes FROM {changes} GROUP BY {key}, n) HAVING max(changes) > 1"


def versions(layout: ColumnLayout, found: Sequence[Family], names: OffsetNames, range_: RangeFacts) -> str:
    """Return SQL for the versions that result from a range. `found`: the families, formed by the columns that changes
    leave unchanged and those that open rows lack."""
    events = _events(layout, names, range_)
    settled = _last_events(layout, found, range_, events)
    return _rows(layout, range_, _bounds(layout, range_, settled))


def _events(layout: ColumnLayout, names: OffsetNames, range_: RangeFacts) -> str:
    """Return SQL for the events: the changes and the open rows. For a version that begins with the event, `f`, `p` and
    `t` are the offset, position and time at which it began, and `x` whether it began exactly there."""
    columns = [f"c{i}" for i in range(len(layout.target.columns))]
    segment = _first_from(range_.segments, range_.segments, "c.o") if range_.has_reads else "0"
    op = "CASE WHEN c.op = 'd' AND x.k THEN 'x' ELSE c.op END" if range_.has_reads else "c.op"
    changes = (
        f"SELECT c.o, {op} AS op, c.v, c.m, c.n, c.o AS f, x.p, x.t, c.op <> 'r' AS x, CAST({segment} AS bigint) AS g,"
        f" {', '.join(f'c.{c}' for c in columns)} FROM {range_.changes} c"
        f" LEFT JOIN {range_.transactions} x ON c.n = x.n"
    )
    open_ = open_rows(layout, names, range_)
    if open_ is None:
        return changes
    listed = ", ".join(f"{text_sql(column.name)}, {i}" for i, column in enumerate(layout.target.columns))
    missing = f"transform({MISSING}, x -> element_at(map({listed}), x))"
    named = ", ".join(f"{name_sql(column.name)} AS c{i}" for i, column in enumerate(layout.target.columns))
    start = name_sql(names.start)
    return (
        f"{changes} UNION ALL SELECT {OFFSET} AS o, 'b' AS op, -1 AS v,"
        f" CASE WHEN size({MISSING}) > 0 THEN {missing} END AS m, CAST(0 AS bigint) AS n, {start} AS f,"
        f" _valid_from_position AS p, _valid_from_time AS t,"
        f" _valid_from_exact AS x, CAST(0 AS bigint) AS g, {named} FROM ({open_})"
    )


def _last_events(layout: ColumnLayout, found: Sequence[Family], range_: RangeFacts, events: str) -> str:
    """Return SQL for the last event of each transaction. `e`: the row exists after it; `miss`: positions of the columns
    whose value is unknown; `tr`, `tn`: offset and transaction of the first truncate after it; `h`: it is a read that
    creates no version; `fo`: the kind of the transaction's first event (see `RangeFacts.knows_first`)."""
    key = ", ".join(f"c{i}" for i in layout.key)
    by_offset = f"PARTITION BY {key} ORDER BY o"
    so_far = f"OVER ({by_offset} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    later = f"OVER ({by_offset} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    partial = [(j, family) for j, family in enumerate(found) if not family.always]
    sent = {i for _, family in partial for i in family.columns}
    given = ["o", "op", "v", "n", "f", "p", "t", "x", *(["g"] if range_.has_reads else [])]
    given += [f"c{i}" for i in range(len(layout.target.columns)) if i not in sent]
    seen = ["*", f"lead(n) OVER ({by_offset}) AS nn"]
    if range_.alone:
        seen = ["*", *(f"lead({name}) OVER ({by_offset}) AS z{name}" for name in _FOLLOWED)]
    if range_.has_reads:
        seen.append(f"first(CASE WHEN op IN ('c', 'u', 'd') THEN g END, true) {later} AS ng")
    if partial:
        own = f"max(CASE WHEN op IN ('c', 'r', 'd', 'x', 'b') THEN o END) {so_far}"
        seen.append(f"{emptied_or(own, [o for o, _ in range_.clearing])} AS b")
    for j, family in partial:
        packed = ", ".join(["o", *(["op", "v", "g"] if range_.has_reads else []), *(f"c{i}" for i in family.columns)])
        given.append(f"CASE WHEN {family.sent_sql()} THEN struct({packed}) END AS s{j}")
        seen.append(f"last(s{j}, true) {so_far} AS z{j}")
        if family.masked:
            given.append(f"CASE WHEN op NOT IN ('d', 'x') AND {family.unchanged_sql()} THEN o END AS m{j}")
            seen.append(f"max(m{j}) {so_far} AS u{j}")
        if family.masked and family.early:
            given.append(f"CASE WHEN {family.older_sql()} THEN o END AS y{j}")
            seen.append(f"max(y{j}) {so_far} AS l{j}")
        if range_.has_reads:
            given.append(f"CASE WHEN op = 'c' OR (op = 'u' AND {family.sent_sql()}) THEN g END AS h{j}")
            seen.append(f"first(h{j}, true) {later} AS k{j}")
    if range_.knows_first:
        given.append(f"CASE WHEN coalesce(lag(n) OVER ({by_offset}) <> n, true) THEN op END AS f1")
        seen.append(f"last(f1, true) {so_far} AS fo")
    events = f"SELECT {', '.join(given)} FROM ({events})"
    offsets, numbers = [o for o, _ in range_.clearing], [n for _, n in range_.clearing]
    behind = f"CAST({_first_from(offsets, offsets, 'o + 1')} AS bigint) AS tr"
    of_it = f"CAST({_first_from(offsets, numbers, 'o + 1')} AS bigint) AS tn"
    ended = "tn IS NOT NULL AND tn = n"
    values, missing = _values(layout, found, range_)
    more = [f"z{name}" for name in _FOLLOWED if range_.alone] + ["fo"] * range_.knows_first
    is_hidden = "op IN ('r', 'x') AND coalesce(ng = g, false)" if range_.has_reads else "false"
    return (
        f"SELECT CASE WHEN {ended} THEN tr ELSE o END AS o, CASE WHEN {ended} THEN 't' ELSE op END AS op,"
        f" v, n, f, p, t, x, op NOT IN ('d', 'x') AND NOT ({ended}) AS e, tr, tn, {is_hidden} AS h,"
        f" {missing} AS miss, {', '.join([*values, *more])}"
        f" FROM (SELECT *, {behind}, {of_it} FROM (SELECT {', '.join(seen)} FROM ({events})))"
        f" WHERE {'true' if range_.alone else 'nn IS NULL OR nn <> n'}"
    )


def _values(layout: ColumnLayout, found: Sequence[Family], range_: RangeFacts) -> tuple[list[str], str]:
    """Return SQL for the value of each column, and for the positions of the columns whose value is unknown."""
    values = {i: f"c{i}" for i in layout.key}
    absent = []
    for j, family in enumerate(found):
        if family.always:
            values |= {i: f"c{i}" for i in family.columns}
            continue
        sent = f"coalesce(z{j}.o >= coalesce(b, 0), false)"
        unknown, is_dropped = "false", _in_one_of(family.late)
        if family.masked:
            unknown = f"(NOT {sent} AND coalesce(u{j} >= coalesce(b, 0), false))"
            if family.early:
                unknown = f"({unknown} AND NOT coalesce(l{j} >= coalesce(b, 0) AND l{j} < u{j}, false))"
        if range_.has_reads:
            # The read may already show what a later change sent; not if its shape does not have the column yet.
            read = f"z{j}.op = 'r'"
            if family.lacking:
                read += f" AND z{j}.v NOT IN ({', '.join(map(str, sorted(family.lacking)))})"
            unknown = f"({unknown} OR coalesce({sent} AND {read} AND z{j}.g = k{j}, false))"
        if family.late:
            unknown = f"({unknown} AND NOT {is_dropped})"
        listed = ", ".join(map(str, family.columns))
        absent.append(f"CASE WHEN {unknown} THEN array({listed}) ELSE array() END")
        for i in family.columns:
            held = f"WHEN {sent} THEN z{j}.c{i} ELSE {layout.default_sql(i)}"
            nothing = f"{unknown} OR {is_dropped}"
            values[i] = f"CASE WHEN {nothing} THEN CAST(NULL AS {layout.target.columns[i].type}) {held} END"
    missing = "CAST(NULL AS array<int>)"
    if absent:
        all_ = f"concat({', '.join(absent)})"
        missing = f"CASE WHEN size({all_}) > 0 THEN {all_} END"
    return [f"{values[i]} AS c{i}" for i in range(len(layout.target.columns))], missing


def _bounds(layout: ColumnLayout, range_: RangeFacts, settled: str) -> str:
    """Return SQL for the events that begin or end a version. `lo`: offset of the key's last event; `po`: of the event
    before; `nh`: of the next read that creates no version; `lt`: of the last event before the truncate that follows."""
    key = ", ".join(f"c{i}" for i in layout.key)
    by_offset = f"PARTITION BY {key} ORDER BY o"
    if not range_.has_reads:
        return f"SELECT *, o AS lo, CAST(NULL AS bigint) AS nh FROM ({settled})"
    later = f"OVER ({by_offset} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    hiding = f"SELECT *, first(CASE WHEN h THEN o END, true) {later} AS nh FROM ({settled})"
    before = ["o", "e", "tr", "miss", *(f"c{i}" for i in layout.others)]
    late = {i: shapes for i in layout.others if (shapes := layout.lacking(i) - layout.early(i))}
    stood = f"lag(struct({', '.join(before)})) OVER ({by_offset}) AS s"
    if range_.gap is not None:
        stood += f", max(o) OVER (PARTITION BY {key}, tr) AS lt"
    known = f"SELECT *, max(o) OVER (PARTITION BY {key}) AS lo, {stood} FROM ({hiding}) WHERE NOT h"
    # A column that a read does not contain, because the source has dropped it, does not make the row different.
    missed = f"{_without(late, 's.miss')} AND miss IS NULL"
    same = " AND ".join(["s.e", "coalesce(s.tr > o, true)", missed])
    types = [column.type for column in layout.target.columns]
    values = [same_sql(f"s.c{i}", f"c{i}", types[i]) for i in layout.others]
    values = [f"({_in_one_of(late[i])} OR {a})" if i in late else a for i, a in zip(layout.others, values, strict=True)]
    alike = " AND ".join([same, *values])
    return f"SELECT *, s.o AS po FROM ({known}) WHERE NOT (op = 'r' AND s IS NOT NULL AND {alike})"


def _rows(layout: ColumnLayout, range_: RangeFacts, bounds: str) -> str:
    """Return SQL for the versions that begin, and for those of the table that end or are confirmed. `eo`: the offset
    where a version ends; `bt`: whether a truncate ends it; `bs`: whether it had ended before `eo`."""
    key = ", ".join(f"c{i}" for i in layout.key)
    next_ = f"OVER (PARTITION BY {key} ORDER BY o)"
    taken = [] if range_.alone else [*_FOLLOWED, *["po"] * range_.has_reads, *["fo"] * range_.knows_first]
    followed = ", ".join(["*", *(f"lead({name}) {next_} AS z{name}" for name in taken)])
    before = "zpo" if range_.has_reads else "o"
    by_truncate = "(tr IS NOT NULL AND (zo IS NULL OR tn < zn))" if range_.clearing else "false"
    first = "zfo" if range_.knows_first else "zop"
    is_gone = f"({first} = 'c' AND {before} < {range_.since} AND zo >= {range_.since})" if range_.since else "false"
    is_swept = f"(zo IS NULL AND lo < {range_.swept})" if range_.swept else "false"
    ways = (
        f"SELECT *, {by_truncate} AS bt, NOT {by_truncate} AND coalesce({is_gone}, false) AS bg,"
        f" NOT {by_truncate} AND coalesce({is_swept}, false) AS bw FROM (SELECT {followed} FROM ({bounds}))"
    )
    end = f"CASE WHEN bt THEN tr WHEN bg THEN {_offset(range_.since)} WHEN bw THEN {_offset(range_.swept)} ELSE zo END"
    ended = f"SELECT *, bg OR bw AS bs, {end} AS eo FROM ({ways})"
    at = len(layout.target.columns)
    of_end = ("zp", "zt") if range_.moments is None else (f"CASE WHEN bt OR bs THEN q.{x}2 ELSE z{x} END" for x in "pt")
    position, time = of_end
    made_again = f" AND NOT (bt AND eo = {range_.made_again})" if range_.made_again else ""
    unsure = (
        "" if range_.gap is None else f" AND NOT ({_across(before, 'lt' if range_.has_reads else 'o', *range_.gap)})"
    )
    is_exact = f"NOT bs{made_again}{unsure}"
    if range_.has_reads:
        is_exact += " AND (bt OR zop NOT IN ('r', 'x')) AND NOT coalesce(nh < eo, false)"
    columns = [
        "CASE WHEN eo IS NULL THEN lo ELSE eo END AS o",
        "'c' AS op",
        "CASE WHEN op = 'b' THEN 1 ELSE 0 END AS v",
        "miss AS m",
        *(_column(i, range_.added.get(i)) for i in range(at)),
        f"f AS c{at}, p AS c{at + 1}, t AS c{at + 2}, x AS c{at + 3}",
        f"eo AS c{at + 4}, {position} AS c{at + 5}, {time} AS c{at + 6}",
        f"CASE WHEN eo IS NOT NULL THEN {is_exact} END AS c{at + 7}",
    ]
    joined = f"({ended}) r"
    if range_.moments is not None:
        joined += f" LEFT JOIN (SELECT o AS o2, p AS p2, t AS t2 FROM {range_.moments}) q ON (bt OR bs) AND q.o2 = eo"
    return f"SELECT {', '.join(columns)} FROM {joined} WHERE e AND (op <> 'b' OR eo IS NOT NULL OR lo > r.o)"


def _in_one_of(shapes: Collection[int]) -> str:
    """Return the SQL condition that the event is in one of these shapes."""
    return f"v IN ({', '.join(map(str, sorted(shapes)))})" if shapes else "false"


def _without(late: Mapping[int, Collection[int]], missing: str) -> str:
    """Return the SQL condition that no columns are missing except those that the event's shape no longer has. `late`:
    for each column, the shapes without it. `missing`: the missing columns, in SQL."""
    if not late:
        return f"{missing} IS NULL"
    gone = ", ".join(f"CASE WHEN {_in_one_of(shapes)} THEN array({i}) ELSE array() END" for i, shapes in late.items())
    return f"coalesce(size(array_except({missing}, concat({gone}))), 0) <= 0"


def _across(before: str, last: str, gap: int, until: int) -> str:
    """Return the SQL condition that a version was last seen before changes were lost, and ends before its row was known
    to be right again."""
    known = f" AND eo < {until}" if until else ""
    return f"CASE WHEN bt THEN {last} ELSE {before} END < {gap} AND eo >= {gap}{known}"


def _offset(number: int) -> str:
    return f"CAST({number} AS bigint)"


def _column(position: int, added: int | None) -> str:
    """Return SQL for a column's value. A column that was added at offset `added` gave its default only to the versions
    that were open then."""
    value = f"c{position}"
    return value if added is None else f"CASE WHEN eo IS NULL OR eo >= {added} THEN {value} END AS {value}"


def _first_from(points: Sequence[int], values: Sequence[int], offset: str) -> str:
    """Return SQL for the value of the first of these points, which ascend, that is not before an offset; NULL if there
    is no such point. The SQL is a binary tree, so that many points cost little."""
    if not points:
        return "NULL"
    if len(points) == 1:
        return f"CASE WHEN {offset} <= {points[0]} THEN {values[0]} END"
    half = len(points) // 2
    below, above = (_first_from(points[p], values[p], offset) for p in (slice(half), slice(half, None)))
    return f"CASE WHEN {offset} <= {points[half - 1]} THEN {below} ELSE {above} END"
