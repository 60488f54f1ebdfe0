"""Reduce many changes of a key to one: the values at the latest offset, column by column. SQL, built here as text.

A change sends some columns and leaves others unchanged. Columns that are always sent together in the range that is
merged are a *family*; one hash aggregate per family finds the latest change that sent it:

    offset  op  sent                 families: {a, b} always sent, {doc} not in every change
      11    r   a b doc
      12    u   a b                  latest {a, b} at 12, latest {doc} at 11
      13    d                        barrier: earlier changes do not count
      14    c   a b doc

A barrier is a change that ends the row before it: c, r and d. A family counts only if it was sent at or after the
latest barrier. With a barrier the result is `whole`: it replaces the table's row. Without one (only updates in the
range) families that were not sent keep the table's values. Columns that a change at or after the barrier left unchanged
and that none sent are *missing*.

The input is one view of changes with only cdcflow's names, so that no column name can clash or break out of its quotes:

    o  bigint      offset            m       array<int>  positions of unchanged columns; NULL if all were sent
    op string      c u d r           c0, c1  the table's columns, by position in the layout
    v  int         shape             b0, …   the old key of a key change, by position

The result has the key columns `c<i>`, the others too, `o`, `gone` (the row ends), `whole`, `f<j>` (family j was sent),
`sent` and `miss` (arrays of column names; `miss` is NULL if no column is missing).
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdcflow.model.sqltypes import has_two_zeros, name_sql, stored_type, text_sql
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table
from cdcflow.tables.merge.column_versions import of_source, source_number, version_of
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.target import Target, TargetColumn

Mask = frozenset[int]

TRANSACTIONS_READ = (
    "number bigint, first_offset bigint, last_offset bigint, position string, commit_clock timestamp, kind string,"
    " origin string"
)
"""The columns (DDL) that a merge reads of a segment's transactions."""

OURS = 0
"""The number of a column of cdcflow's own, which the source does not have."""


@dataclass(frozen=True, slots=True)
class Family:
    """Columns (positions in the layout, without the key) that are always sent together. `lacking`: the shapes that do
    not have them; `early`: those shapes that do not have them yet; `masked`: changes may leave them unchanged."""

    columns: tuple[int, ...]
    lacking: frozenset[int]
    masked: bool
    early: frozenset[int] = frozenset()

    @property
    def always(self) -> bool:
        return not self.lacking and not self.masked

    @property
    def late(self) -> frozenset[int]:
        """The shapes that no longer have the columns because the source has dropped them."""
        return self.lacking - self.early

    def unchanged_sql(self) -> str:
        """Return the SQL condition that the change left this family, a masked one, unchanged."""
        return f"coalesce(array_contains(m, {self.columns[0]}), false)"

    def without_sql(self) -> str:
        """Return the SQL condition that the change is an update in a shape without this family, and so does not change
        it."""
        return update_in_sql(self.lacking)

    def older_sql(self) -> str:
        """Return the SQL condition that the change is an update in a shape that does not have this family yet. The row
        existed before the columns did, and got their defaults, unless the table has the row with other values."""
        return update_in_sql(self.early)

    def sent_sql(self) -> str:
        """Return the SQL condition that the change is not a delete and sent this family. A c or r in a shape without
        the family counts as sending the default, which the projection wrote."""
        parts = ["op <> 'd'"]
        if self.lacking:
            parts.append(f"NOT ({self.without_sql()})")
        if self.masked:
            parts.append(f"NOT {self.unchanged_sql()}")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns of a table after its evolution, and how the shapes in a range map to them. The shapes are those of
    its spans (`cdcflow.tables.job.spans`): a shape that returned after another is listed twice, under two numbers.

    `numbered`: the shapes with the numbers that their columns have in the table; if empty, they have the source's.
    `ended`: the position of cdcflow's column that is true in a deleted row; later changes take no value from such a
    row. `purged`: the position of the column that is true in a row that a purge left unmarked; such a row counts as
    deleted. `stamped`: the view of changes also has `n` and `ts`, number and commit time of the transaction.
    `constants`: columns of the key, with the values that they have in all changes; the table may have rows with other
    values, to which the changes do not apply. `purges`: with `ended`, a delete that is still one in the view of changes
    removes the row.
    """

    target: Target
    shapes: tuple[Table, ...]
    defaults: Mapping[int, str]
    numbered: tuple[Table, ...] = ()
    ended: int | None = None
    purged: int | None = None
    stamped: bool = False
    constants: Mapping[str, str] = field(default_factory=dict)
    purges: bool = False

    @classmethod
    def of(cls, evolution: Evolution, shapes: Sequence[Table]) -> ColumnLayout:
        living = tuple(s for s in shapes if s.incarnation == evolution.target.incarnation)
        return cls(evolution.target, living, evolution.defaults, evolution.numbered)

    def ending_by(self, names: Sequence[str]) -> ColumnLayout:
        """Return the layout with columns of cdcflow added at the end: `ended` and, if there are two names, `purged`."""
        count = len(self.target.columns)
        added = tuple(TargetColumn(name, OURS, "boolean") for name in names)
        target = replace(self.target, columns=(*self.target.columns, *added))
        return replace(self, target=target, ended=count, purged=count + 1 if len(names) > 1 else None)

    def with_constants(self, constants: Mapping[str, str]) -> ColumnLayout:
        """Return the layout with more columns in the key, after the source's, which have these values in
        every change."""
        if not constants:
            return self
        columns = tuple(TargetColumn(name, OURS, "string") for name in constants)
        target = replace(self.target, key=(*self.target.key, *constants), columns=(*self.target.columns, *columns))
        return replace(self, target=target, constants=constants)

    @property
    def ending_positions(self) -> tuple[int, ...]:
        """The positions of `ended` and `purged`, as far as there are such columns."""
        return tuple(i for i in (self.ended, self.purged) if i is not None)

    @property
    def ended_names(self) -> tuple[str, ...]:
        """The names of the columns at `ending_positions`."""
        return tuple(self.target.columns[i].name for i in self.ending_positions)

    @property
    def key(self) -> tuple[int, ...]:
        return self.target.key_positions

    @property
    def others(self) -> tuple[int, ...]:
        key = set(self.key)
        return tuple(i for i in range(len(self.target.columns)) if i not in key)

    def default_sql(self, position: int) -> str:
        column = self.target.columns[position]
        if column.number == OURS and column.name in self.constants:
            return f"CAST({text_sql(self.constants[column.name])} AS {column.type})"
        return f"CAST({self.defaults.get(column.number, 'NULL')} AS {column.type})"

    def lacking(self, position: int) -> frozenset[int]:
        """Return the numbers of the shapes that do not have this column. cdcflow's own columns are in every change."""
        number = self.target.columns[position].number
        if number == OURS:
            return frozenset()
        return frozenset(v for v, s in enumerate(self.numbered) if all(c.number != number for c in s.columns))

    def early(self, position: int) -> frozenset[int]:
        """Return the numbers of the shapes that do not have this column yet, so that rows which existed got its
        default.

        These are the shapes of `lacking` before the last shape with the column; after that one, the column was dropped.
        Where another version of the column took the values (`column_versions`), only a later version counts as added:
        it has no default, and is NULL in rows that existed.
        """
        number, lacking = self.target.columns[position].number, self.lacking(position)
        last = max(set(range(len(self.shapes))) - lacking, default=-1)
        is_later = version_of(number) > 1
        column = source_number(number)
        return frozenset(v for v in lacking if v < last and (is_later or column not in self._source_numbers(v)))

    def _source_numbers(self, shape: int) -> frozenset[int]:
        return of_source(c.number for c in self.numbered[shape].columns)


def only_with(constants: Mapping[str, str], of: str = "") -> str:
    """Return the SQL condition that a row has these values in these columns; "" if there are none. `of`
    names the row."""
    return " AND ".join(f"{of}{name_sql(name)} = {text_sql(value)}" for name, value in constants.items())


def read_schema(shape: Table, *, moved: bool) -> str:
    """Return the schema (DDL) with which a shape's Parquet files are read, so that Spark need not inspect the files
    first."""
    parts = [f"{OFFSET} bigint", f"{OP} string", f"{UNCHANGED} array<string>"]
    parts += [f"{TRANSACTION} bigint", f"{COMMIT_TS} timestamp"]
    parts += [f"{name_sql(c.name)} {stored_type(c.type.arrow).read}" for c in shape.columns]
    if moved:
        types = {c.name: stored_type(c.type.arrow).read for c in shape.columns}
        fields = ", ".join(f"{name_sql(k)}: {types[k]}" for k in shape.key_columns)
        parts.append(f"{BEFORE} struct<{fields}>")
    return ", ".join(parts)


def projection(layout: ColumnLayout, number: int, *, moved: bool) -> list[str]:
    """Return SELECT expressions that bring rows of shape `number` into the view of changes.

    A column that the shape does not have yet gets its default, one that it no longer has is NULL.
    """
    shape = layout.numbered[number]
    found = {c.number: c for c in shape.columns}
    at = {c.number: i for i, c in enumerate(layout.target.columns)}
    places = ", ".join(f"{text_sql(c.name)}, {at[c.number]}" for c in shape.columns if c.number in at)
    # A table without a key may no longer have any of the shape's columns, and then no column is unchanged.
    unchanged = f"transform({UNCHANGED}, x -> element_at(map({places}), x))" if places else "CAST(NULL AS array<int>)"
    parts = [
        f"{OFFSET} AS o",
        f"{OP} AS op",
        f"{number} AS v",
        f"CASE WHEN size({UNCHANGED}) > 0 THEN {unchanged} END AS m",
        *([f"{TRANSACTION} AS n", f"{COMMIT_TS} AS ts"] if layout.stamped else []),
    ]
    for i, column in enumerate(layout.target.columns):
        own = found.get(column.number)
        if own is None:
            # Existing rows got a default; a row that was inserted after the column was dropped has none.
            is_early = column.number == OURS or number in layout.early(i)
            parts.append(f"{layout.default_sql(i) if is_early else f'CAST(NULL AS {column.type})'} AS c{i}")
        else:
            parts.append(f"CAST({stored_type(own.type.arrow).sql(name_sql(own.name))} AS {column.type}) AS c{i}")
    if moved:
        for i in layout.key:
            if layout.target.columns[i].name in layout.constants:
                parts.append(f"{layout.default_sql(i)} AS b{i}")
                continue
            own = found[layout.target.columns[i].number]
            value = stored_type(own.type.arrow).sql(f"{BEFORE}.{name_sql(own.name)}")
            parts.append(f"CAST({value} AS {layout.target.columns[i].type}) AS b{i}")
    return parts


def families(layout: ColumnLayout, masks: Collection[Mask]) -> tuple[Family, ...]:
    """Return the columns, except the key, grouped into families: columns that the same masks and the same
    shapes lack."""
    ordered = sorted(masks, key=sorted)
    found: dict[tuple[tuple[bool, ...], frozenset[int]], list[int]] = {}
    for i in layout.others:
        signature = (tuple(i in mask for mask in ordered), layout.lacking(i))
        found.setdefault(signature, []).append(i)
    return tuple(
        Family(tuple(columns), lacking, any(hit), layout.early(columns[0])) for (hit, lacking), columns in found.items()
    )


def update_in_sql(shapes: Collection[int]) -> str:
    """Return the SQL condition that a change is an update in one of these shapes."""
    return f"op = 'u' AND v IN ({', '.join(map(str, sorted(shapes)))})" if shapes else "false"


def reduction(
    layout: ColumnLayout,
    found: Sequence[Family],
    changes: str,
    *,
    emptied: bool,
    sweep_before: int,
    by_offset: bool = False,
) -> str:
    """Return SQL for one row per key from the view `changes`.

    `emptied`: the table's rows from before the range no longer exist (truncate, new incarnation), so every result is
    whole. A result older than offset `sweep_before` is gone too; if the table keeps deleted rows, it is marked as
    deleted. `by_offset`: the aggregates return offsets only, and the values at these are joined (see
    `cdcflow.tables.port.SqlSession.takes_by_offset`).
    """
    exact = {i for i in layout.key if has_two_zeros(layout.target.columns[i].type)}
    partial = not all(f.always for f in found)
    outer = [
        *(f"k{i} AS c{i}" if i in exact else f"c{i}" for i in layout.key),
        "o",
        f"(op = 'd' OR o < {sweep_before}) AS gone" if layout.ended is None else f"{_purged_sql(layout)} AS gone",
    ]
    whole = "true" if emptied or not partial else "(b IS NOT NULL)"
    outer.append(f"{whole} AS whole")
    sent, miss = [], []
    for j, family in enumerate(found):
        names = ", ".join(text_sql(layout.target.columns[i].name) for i in family.columns)
        if family.always:
            outer.append(f"true AS f{j}")
            ends = {layout.ended: f"(s{j}.c{layout.ended} OR {_swept_sql(layout, f's{j}', sweep_before)})"}
            outer += [f"{ends.get(i, f's{j}.c{i}')} AS c{i}" for i in family.columns]
            sent.append(f"array({names})")
            continue
        is_sent = f"coalesce(o{j} >= coalesce(b, 0), false)"
        outer.append(f"{is_sent} AS f{j}")
        is_missing = "false"
        if family.masked:
            is_missing = f"(NOT {is_sent} AND coalesce(u{j} >= coalesce(b, 0), false))"
            if family.early:
                is_missing = f"({is_missing} AND NOT coalesce(l{j} >= coalesce(b, 0) AND l{j} < u{j}, false))"
            miss.append(f"CASE WHEN {is_missing} THEN array({names}) ELSE array() END")
        older = f" AND l{j} >= coalesce(b, 0)" if family.late and family.early else ""
        for i in family.columns:
            absent = f"WHEN NOT {is_missing}{older} THEN {layout.default_sql(i)}"
            outer.append(f"CASE WHEN {is_sent} THEN s{j}.c{i} {absent} END AS c{i}")
        sent.append(f"CASE WHEN {is_sent} THEN array({names}) ELSE array() END")
    outer.append(f"{'concat(' + ', '.join(sent) + ')' if partial else 'CAST(NULL AS array<string>)'} AS sent")
    if miss:
        outer.append(f"CASE WHEN size(concat({', '.join(miss)})) > 0 THEN concat({', '.join(miss)}) END AS miss")
    else:
        outer.append("CAST(NULL AS array<string>) AS miss")
    newest = (_join_values if by_offset else _aggregate)(layout, found, changes, sorted(exact))
    return f"SELECT {', '.join(outer)} FROM ({newest})"


def _swept_sql(layout: ColumnLayout, values: str, sweep_before: int) -> str:
    """Return the SQL condition that the latest change, with these values, is older than offset `sweep_before` and did
    not purge its row."""
    return f"o < {sweep_before}" + ("" if layout.purged is None else f" AND NOT {values}.c{layout.purged}")


def _purged_sql(layout: ColumnLayout) -> str:
    """Return the SQL condition that the latest change removes a row of a table that keeps deleted rows."""
    return "(op = 'd')" if layout.purges else "false"


def _aggregate(layout: ColumnLayout, found: Sequence[Family], changes: str, exact: Sequence[int]) -> str:
    """Return SQL with, per key, the offsets that count, and as `s<j>` the values of family j in the latest change that
    sent it."""
    values = ["max_by(op, o) AS op", *(f"max_by(c{i}, o) AS k{i}" for i in exact)]
    for j, family in enumerate(found):
        only = "" if family.always else f" FILTER (WHERE {family.sent_sql()})"
        values.append(f"max_by({_struct_of(family)}, o){only} AS s{j}")
    return _group_by_key(layout, found, changes, values)


def _join_values(layout: ColumnLayout, found: Sequence[Family], changes: str, exact: Sequence[int]) -> str:
    """Return SQL for the same as `_aggregate`, with every value exactly as in the change, unaltered by an aggregate
    function."""
    key = [f"c{i}" for i in layout.key]
    same = "".join(f" AND x.{c} = g.{c}" for c in key)
    newest = ["op", *(f"c{i} AS k{i}" for i in exact)]
    newest += [f"{_struct_of(family)} AS s{j}" for j, family in enumerate(found) if family.always]
    taken = ["g.*", *(f"x.{part.split(' AS ')[-1]}" for part in newest)]
    joins = f"JOIN (SELECT o, {', '.join([*key, *newest])} FROM {changes}) x ON x.o = g.o{same}"
    for j, family in enumerate(found):
        if not family.always:
            of_it = f"(SELECT o, {', '.join(key)}, {_struct_of(family)} AS s{j} FROM {changes})"
            taken.append(f"x{j}.s{j}")
            joins += f" LEFT JOIN {of_it} x{j} ON x{j}.o = g.o{j}{same.replace(' x.', f' x{j}.')}"
    return f"SELECT {', '.join(taken)} FROM ({_group_by_key(layout, found, changes, [])}) g {joins}"


def _group_by_key(layout: ColumnLayout, found: Sequence[Family], changes: str, values: Sequence[str]) -> str:
    """Return SQL with, per key, the offsets `o` of the latest change and `b` of the latest barrier. For each family
    that not every change sends, it also has `o<j>`, `u<j>` and `l<j>`: the offsets of the latest change that sent it,
    that left it unchanged, and that was too early for it."""
    key = [f"c{i}" for i in layout.key]
    parts = [*key, "max(o) AS o"]
    if not all(f.always for f in found):
        parts.append("max(CASE WHEN op IN ('c', 'r', 'd') THEN o END) AS b")
    for j, family in enumerate(found):
        if not family.always:
            parts.append(f"max(o) FILTER (WHERE {family.sent_sql()}) AS o{j}")
        if family.masked:
            parts.append(f"max(o) FILTER (WHERE op <> 'd' AND {family.unchanged_sql()}) AS u{j}")
        if family.early and (family.masked or family.late):
            parts.append(f"max(o) FILTER (WHERE {family.older_sql()}) AS l{j}")
    return f"SELECT {', '.join([*parts, *values])} FROM {changes} GROUP BY {', '.join(key)}"


def _struct_of(family: Family) -> str:
    return f"struct({', '.join(f'c{i}' for i in family.columns)})"


def counting(layout: ColumnLayout, changes: str) -> str:
    """Return SQL with, per distinct row of a table without a key, how its count changes, from the view `changes`.

    Result: the columns `c<i>`, `o`, `total` (inserts minus deletes) and `lowest` (the minimum of the running total, at
    most 0). A row that existed n times then exists greatest(n, -lowest) + total times, because a delete of a row that
    does not exist does nothing.
    """
    columns = ", ".join(f"c{i}" for i in range(len(layout.target.columns)))
    newest = ", ".join(
        f"max_by(c{i}, o) AS k{i}" if has_two_zeros(column.type) else f"c{i} AS k{i}"
        for i, column in enumerate(layout.target.columns)
    )
    shown = ", ".join(f"k{i} AS c{i}" for i in range(len(layout.target.columns)))
    step = "CASE WHEN op = 'd' THEN -1 ELSE 1 END"
    return (
        f"SELECT {shown}, o, total, lowest FROM ("
        f"SELECT {newest}, max(o) AS o, sum(step) AS total, least(0, min(running)) AS lowest FROM ("
        f"SELECT {columns}, o, {step} AS step, sum({step}) OVER (PARTITION BY {columns} ORDER BY o) AS running"
        f" FROM {changes}) GROUP BY {columns})"
    )
