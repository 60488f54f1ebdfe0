"""The MERGE of a reduced range into a current-state table, as text.

The source's names are quoted (`name_sql`); the names in the reduced view are cdcflow's. The table is `t`, the view `s`.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import Any

from cdcflow.model.sqltypes import has_two_zeros, name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge import reduce
from cdcflow.tables.merge.acts import Act, Add, Describe, Empty, Fill, MissAlso, MissOnly, Rename, Widen
from cdcflow.tables.merge.file_layouts import LAYOUT_PROPERTY
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, MODE_PROPERTY, ModeRules
from cdcflow.tables.merge.reduce import ColumnLayout, Family, Mask
from cdcflow.tables.merge.target import Target

TARGET_PROPERTY = "cdcflow.table"
IDENTITY_PROPERTY = "cdcflow.source"
BEGUN_PROPERTY = "cdcflow.begun"
"""The property with the offset at which folding of the log into the table began; a table without it was folded from
the log's beginning."""

_NONE_MISSING = "CAST(NULL AS array<string>)"
_ORDERED: dict[str, Callable[[str], Any]] = {  # Any: whatever the parser gives, compared only with its own kind
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "decimal(20,0)": int,  # an unsigned bigint
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
}


def is_integer(key_type: str) -> bool:
    """Return whether bounds of keys of this type are whole numbers."""
    return _ORDERED.get(key_type) is int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of the first key column in a range, as SQL literals."""

    least: str
    greatest: str

    def within(self, column: str) -> str:
        """Return the SQL condition that a column is within the bounds."""
        return f"{column} >= {self.least} AND {column} <= {self.greatest}"


def bounds(key_type: str, ends: Sequence[tuple[str | None, str | None]]) -> Bounds | None:
    """Return the bounds over the files of a range from their manifests' `key_min` and `key_max`; `None` if a file has
    none, or if engines do not agree on the type's order."""
    if not ends:
        return None
    parse = _ORDERED.get(key_type)
    if parse is None:
        return None
    least: list[tuple[Any, str]] = []
    greatest: list[tuple[Any, str]] = []
    for low, high in ends:
        if low is None or high is None:
            return None
        try:
            least.append((parse(low), low))
            greatest.append((parse(high), high))
        except ValueError:  # a date before Christ, or beyond year 9999
            return None
    try:
        chosen = min(least)[1], max(greatest)[1]
    except TypeError:  # some with a time zone, some without
        return None
    return Bounds(*(f"CAST({text_sql(end)} AS {key_type})" for end in chosen))


def each_key_once(key_type: str, runs: Sequence[Sequence[tuple[str, str]] | None]) -> bool:
    """Return whether the manifests of a range prove that no two of its rows have the same key. `runs`: each file's
    `key_runs`, `None` if it has none.

    In a file with `key_runs` each value of the first key column occurs once. The same is true of all files together if
    no run of one touches a run of another.
    """
    parse = _ORDERED.get(key_type)
    if parse is None:
        return False
    ends: list[tuple[Any, Any]] = []
    try:
        for of_file in runs:
            if of_file is None:
                return False
            ends += [(parse(first), parse(last)) for first, last in of_file]
        ends.sort()
        return all(before[1] < after[0] for before, after in pairwise(ends))
    except (ValueError, TypeError):  # see `bounds`
        return False


@dataclass(frozen=True, slots=True)
class Ending:
    """Rows that are marked as deleted without a change that deletes them (`ColumnLayout.ended`).

    These are the rows from before offset `before` that the range does not touch, and rows of the range that are as old.
    With `truncated_at`, the offset of the range's first truncate, rows that the range does not touch end at that
    offset.
    """

    before: int = 0
    truncated_at: int = 0

    @property
    def is_of_all(self) -> bool:
        return bool(self.before or self.truncated_at)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Rows of a table that other rows replace: those whose key is in the query `rows` (in parentheses). `key` maps the
    names of the table's key columns to the names of the query's columns."""

    rows: str
    key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Folding:
    """A range of changes to be merged into a table. `changes` names the view that `tables.merge.reduce` describes,
    `masks` are the sets of columns that they leave unchanged.

    `empty`: the table has no rows. `emptied`: none of its rows remain. `once`: no two changes have the same key, and
    each has a whole row. Rows older than `sweep_before` that the range does not touch are removed. `ends`: least and
    greatest value of the first key column in each file of the range, from the manifests. `count`: the maximum number of
    changes in the range. `ending`: for tables that keep deleted rows. `first`: the first offset of the range.
    `by_offset`: see `reduce.reduction`. `kept_out`: for a table without a key, the view of the offsets `o` of rows that
    it must not have (see `checked_rows`).
    """

    layout: ColumnLayout
    changes: str
    masks: Collection[Mask]
    empty: bool
    emptied: bool
    once: bool = False
    sweep_before: int = 0
    ends: Sequence[tuple[str | None, str | None]] = ()
    count: int = 0
    ending: Ending = Ending()
    first: int = 0
    by_offset: bool = False
    kept_out: str | None = None

    @property
    def adds_only(self) -> bool:
        """Whether the merge only adds `rows` to the table, and reads or changes none of its rows."""
        return False

    @property
    def replaced_rows(self) -> Replaced | None:
        """The rows of the table that `rows` replace, if all new rows are whole and each is known to be newer than the
        row that it replaces; `None` if the replaced rows are not known in advance."""
        return None

    @property
    def is_of_all(self) -> bool:
        """Whether rows may change that the range has no change of."""
        return self.sweep_before > 0 or self.ending.is_of_all

    @property
    def is_by_key(self) -> bool:
        """Whether each change concerns only the one row with its key: the table has rows, and all of them
        may remain."""
        return bool(self.layout.target.key) and not (self.empty or self.emptied or self.is_of_all)

    @property
    def brings_whole_rows(self) -> bool:
        """Whether the latest change of each key determines the whole row, provided that it is later than the table's
        row."""
        return self.is_by_key and self.layout.ended is None and all(family.always for family in self.families)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of a table with a key."""
        return reduce.families(self.layout, self.masks)

    @property
    def limits(self) -> Bounds | None:
        """The bounds of the first key column over the range."""
        return bounds(self.layout.target.columns[self.layout.key[0]].type, self.ends)

    def sql(self, table: str) -> str:
        """Return the one statement that merges the range: a MERGE, or an INSERT if the table has no rows."""
        target, sweep = self.layout.target, self.sweep_before
        if self.empty:
            return f"INSERT INTO {table} ({_columns(_names(target))}) {self.rows()}"
        if not target.key:
            return merge_counted(table, target, self.counting_query(), emptied=self.emptied, sweep_before=sweep)
        kinds = self.families
        return merge(
            table,
            target,
            kinds,
            self.reduced_query(kinds),
            sweep_before=sweep,
            limits=self.limits,
            ended=self.layout.ended_names,
            ending=self.ending,
            only=reduce.only_with(self.layout.constants, "t."),
        )

    def statements(self, table: str) -> Sequence[str]:
        """Return the statements that merge the range, possibly several; the caller makes them one commit."""
        return [self.sql(table)]

    def rows(self) -> str:
        """Return the query for the rows that the range gives a table without rows, under the names of the table's
        columns."""
        target, sweep = self.layout.target, self.sweep_before
        if not target.key:
            return rows_counted(target, self.counting_query(), sweep_before=sweep)
        if self.once and not self.ending.before:
            return rows_once(target, self.changes, sweep_before=sweep)
        return rows_reduced(target, self.reduced_query(self.families))

    def counting_query(self) -> str:
        """Return the query for the changes of a table without a key (see `reduce.counting`), in parentheses."""
        counted = f"({reduce.counting(self.layout, self.changes)})"
        if self.kept_out is None:
            return counted
        # As if they were older than any sweep, so that no copy of them remains.
        columns = ", ".join(f"c{i}" for i in range(len(self.layout.target.columns)))
        kept = f"(SELECT DISTINCT o AS kept FROM {self.kept_out})"
        offset = "CASE WHEN kept IS NULL THEN o ELSE -1 END AS o"
        return f"(SELECT {columns}, {offset}, total, lowest FROM {counted} LEFT JOIN {kept} ON o = kept)"

    def reduced_query(self, kinds: Sequence[Family]) -> str:
        """Return the query for the changes, one row per key (see `tables.merge.reduce`), in parentheses."""
        sweep = self.sweep_before if self.layout.ended is None else self.ending.before
        sql = reduce.reduction(
            self.layout, kinds, self.changes, emptied=self.emptied, sweep_before=sweep, by_offset=self.by_offset
        )
        return f"({sql})"


def create(
    table: str,
    format_: Format,
    target: Target,
    source: str,
    begun: int = 0,
    location: str | None = None,
    mode: ModeRules = CURRENT,
) -> str:
    """Return the CREATE TABLE of a table in this mode. `source` is the JSON that identifies its log and its table
    there, `begun` the offset from which the log is folded into it; `location` is where it is stored, if its name does
    not determine that."""
    columns = [f"{name_sql(c.name)} {c.type}" for c in target.columns]
    columns += [f"{name} {type_}" for name, type_ in mode.columns]
    return create_table(table, format_, ", ".join(columns), properties(target, source, begun, mode), location)


def properties(target: Target, source: str, begun: int, mode: ModeRules = CURRENT) -> dict[str, str]:
    """Return the properties of a new table (see `create`)."""
    said = {TARGET_PROPERTY: target.to_json(), IDENTITY_PROPERTY: source, BEGUN_PROPERTY: str(begun)}
    return said if mode == CURRENT else {**said, MODE_PROPERTY: mode.property_value}


def create_table(
    table: str, format_: Format, columns: str, properties: Mapping[str, str], location: str | None = None
) -> str:
    """Return the CREATE TABLE of any of cdcflow's tables; `columns` as SQL."""
    listed = ", ".join(f"{text_sql(k)} = {text_sql(v)}" for k, v in {**format_.properties, **properties}.items())
    given = "" if not listed else f" TBLPROPERTIES ({listed})"
    lies = "" if location is None else f" LOCATION {text_sql(location)}"
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {format_.name}{lies}{given}"


def begin(table: str, begun: int) -> str:
    """Return SQL that records, for a new table without rows, the offset from which it is folded."""
    return _set(table, {BEGUN_PROPERTY: str(begun)})


def record_layout(table: str, recorded: str) -> str:
    """Return SQL that records the layout of a table's files."""
    return _set(table, {LAYOUT_PROPERTY: recorded})


def alter(table: str, format_: Format, act: Act) -> list[str]:
    """Return the statements of one act of an evolution. Each may be executed again."""
    needed = format_.needs(act)
    return [*([_set(table, needed)] if needed else []), *_alter(table, act)]


def _alter(table: str, act: Act) -> list[str]:
    match act:
        case Describe(target):
            return [describe(table, target)]
        case Add(column):
            return [f"ALTER TABLE {table} ADD COLUMNS ({name_sql(column.name)} {column.type})"]
        case Fill():
            return [fill(table, act)]
        case Rename(old, new):
            return [f"ALTER TABLE {table} RENAME COLUMN {name_sql(old)} TO {name_sql(new)}"]
        case Widen(name, type_):
            return [f"ALTER TABLE {table} ALTER COLUMN {name_sql(name)} TYPE {type_}"]
        case Empty(name):
            return [f"UPDATE {table} SET {name_sql(name)} = NULL WHERE {name_sql(name)} IS NOT NULL"]
        case MissAlso(old, new, listed):
            says = f"array_contains({listed}, {text_sql(old)}) AND NOT array_contains({listed}, {text_sql(new)})"
            longer = f"concat({listed}, array({text_sql(new)}))"
            return [f"UPDATE {table} SET {listed} = {longer} WHERE {listed} IS NOT NULL AND {says}"]
        case MissOnly(names, listed):
            strange = f"array_except({listed}, array({', '.join(map(text_sql, names))}))"
            left = f"array_except({listed}, {strange})"
            return [
                f"UPDATE {table} SET {listed} = CASE WHEN size({left}) > 0 THEN {left} END"
                f" WHERE {listed} IS NOT NULL AND size({strange}) > 0"
            ]


def fill(table: str, act: Add | Fill) -> str:
    """Return the statement that gives existing rows the constant default of a column that was just added (hard case
    P18)."""
    only = f" WHERE {act.only}" if isinstance(act, Fill) and act.only else ""
    return f"UPDATE {table} SET {name_sql(act.column.name)} = {act.default}{only}"


def describe(table: str, target: Target) -> str:
    """Return the statement that records the table's description."""
    return _set(table, {TARGET_PROPERTY: target.to_json()})


def transaction(act: Act, incarnation: int) -> str:
    """Return the id of the transaction that an act records because it must be done only once, ever; "" if it may be
    repeated. If a run dies after filling a column, the next one must not fill it again, over newer NULLs."""
    return f"fill/{incarnation}.{act.column.number}" if isinstance(act, Fill) else ""


def merge(
    table: str,
    target: Target,
    found: Sequence[Family],
    reduced: str,
    *,
    sweep_before: int,
    limits: Bounds | None = None,
    ended: Sequence[str] = (),
    ending: Ending = Ending(),
    only: str = "",
) -> str:
    """Return the MERGE of a table with a key. Rows of the table older than `sweep_before` that the range does not touch
    are removed. A row of the table that is newer than the change is not changed (hard case G08).

    `ended`: columns such that one is true in a row that the source no longer has. A newer row takes no value from such
    a row, and the first of these columns is set in a row that ends without a change. `only`: a condition for the rows
    of `t` that the range is about; "" if it is about all of them.
    """
    family_of = {i: j for j, family in enumerate(found) for i in family.columns}
    names = [name_sql(c.name) for c in target.columns]
    key = set(target.key_positions)
    matched = [f"t.{names[i]} = s.c{i}" for i in target.key_positions]
    if limits is not None and not (sweep_before or ending.is_of_all):
        matched.append(limits.within(f"t.{names[target.key_positions[0]]}"))
    whole = f"(s.whole OR {is_ended('t.', ended)})" if ended else "s.whole"
    assigned = []
    for i, name in enumerate(names):
        if i in key:
            if has_two_zeros(target.columns[i].type):
                assigned.append(f"t.{name} = s.c{i}")
            continue
        family = found[family_of[i]]
        kept = f"CASE WHEN {whole} OR s.f{family_of[i]} THEN s.c{i} ELSE t.{name} END"
        assigned.append(f"t.{name} = {f's.c{i}' if family.always else kept}")
    if all(f.always for f in found):
        missing = "NULL"
    else:
        left = f"array_except(t.{MISSING}, s.sent)"
        missing = f"CASE WHEN {whole} THEN s.miss WHEN size({left}) > 0 THEN {left} END"
    assigned += [f"t.{OFFSET} = s.o", f"t.{MISSING} = {missing}"]
    parts = [
        f"MERGE INTO {table} t USING {reduced} s ON {' AND '.join(matched)}",
        f"WHEN MATCHED AND s.gone AND t.{OFFSET} < s.o THEN DELETE",
        f"WHEN MATCHED AND t.{OFFSET} < s.o THEN UPDATE SET {', '.join(assigned)}",
        f"WHEN NOT MATCHED AND NOT s.gone THEN {_insert(names)}",
    ]
    if sweep_before:
        these = f" AND {only}" if only else ""
        parts.append(f"WHEN NOT MATCHED BY SOURCE AND t.{OFFSET} < {sweep_before}{these} THEN DELETE")
    if ended:
        parts += _ends_of_untouched(ended, ending, only)
    return "\n".join(parts)


def _ends_of_untouched(ended: Sequence[str], ending: Ending, only: str) -> list[str]:
    """Return the MERGE's clauses that end rows which the range does not touch. `only`: see `merge`."""
    lives = f"NOT {is_ended('t.', ended)}" + (f" AND {only}" if only else "")
    parts = []
    if ending.truncated_at:
        at = ending.truncated_at
        parts.append(
            f"WHEN NOT MATCHED BY SOURCE AND {lives} AND t.{OFFSET} < {at}"
            f" THEN UPDATE SET t.{name_sql(ended[0])} = true, t.{OFFSET} = {at}"
        )
    if ending.before:
        parts.append(
            f"WHEN NOT MATCHED BY SOURCE AND {lives} AND t.{OFFSET} < {ending.before}"
            f" THEN UPDATE SET t.{name_sql(ended[0])} = true"
        )
    return parts


def is_ended(of: str, ended: Sequence[str]) -> str:
    """Return the SQL condition, on the columns `ended`, that the source no longer has a row. `of` names the row."""
    found = [f"coalesce({of}{name_sql(name)}, false)" for name in ended]
    return found[0] if len(found) == 1 else f"({' OR '.join(found)})"


def merge_counted(table: str, target: Target, counted: str, *, emptied: bool, sweep_before: int) -> str:
    """Return the MERGE of a table without a key; `counted` is the view that `reduce.counting` describes.

    Each distinct row of the range removes all its copies from the table and adds as many as exist after the range: one
    source row that matches them (`copy` 0) if the table has some, and one for each copy, which matches nothing. A
    source row must have something to do: together with a sweep, Delta treats a source row of NULLs that does nothing as
    an error.
    """
    names = [name_sql(c.name) for c in target.columns]
    columns = ", ".join(f"s.c{i}" for i in range(len(names)))
    newest = ", ".join(
        f"max_by(s.c{i}, s.o) AS c{i}" if has_two_zeros(column.type) else f"s.c{i}"
        for i, column in enumerate(target.columns)
    )
    same = " AND ".join(f"t.{name} <=> s.c{i}" for i, name in enumerate(names))
    standing = "0" if emptied else "count(t." + OFFSET + ")"
    joined = "" if emptied else f" LEFT JOIN {table} t ON {same}"
    number = f"greatest({standing}, -s.lowest) + s.total"
    kept = f"CASE WHEN s.o < {sweep_before} THEN 0 ELSE {number} END"
    source = (
        f"SELECT * FROM (SELECT *, explode(sequence(0, CAST(n AS int))) AS copy FROM ("
        f"SELECT {newest}, s.o, {kept} AS n, {standing} > 0 AS stood FROM {counted} s{joined}"
        f" GROUP BY {columns}, s.o, s.total, s.lowest)) WHERE copy > 0 OR stood"
    )
    parts = [
        f"MERGE INTO {table} t USING ({source}) s ON s.copy = 0 AND {same}",
        "WHEN MATCHED THEN DELETE",
        f"WHEN NOT MATCHED AND s.copy > 0 THEN {_insert(names, missing='NULL')}",
    ]
    if sweep_before:
        parts.append(f"WHEN NOT MATCHED BY SOURCE AND t.{OFFSET} < {sweep_before} THEN DELETE")
    return "\n".join(parts)


def rows_reduced(target: Target, reduced: str) -> str:
    """Return the query for the rows that a MERGE inserts into a table with a key that has no rows."""
    return f"SELECT {_values(target, 's.miss')} FROM {reduced} s WHERE NOT s.gone"


def rows_once(target: Target, changes: str, *, sweep_before: int) -> str:
    """Return the same query as `rows_reduced` for a range in which each key has only one change, with its whole row.
    `changes` is the view of the changes."""
    return f"SELECT {_values(target, _NONE_MISSING)} FROM {changes} s WHERE s.o >= {sweep_before}"


def repeated_keys(target: Target, changes: str) -> str:
    """Return a query that has one row if a key has more than one change in the range, and otherwise no row."""
    key = ", ".join(f"c{i}" for i in target.key_positions)
    # Without LIMIT, for which Spark would read one partition after another.
    return f"SELECT 1 FROM (SELECT count(*) AS n FROM {changes} GROUP BY {key}) HAVING max(n) > 1"


def rows_counted(target: Target, counted: str, *, sweep_before: int) -> str:
    """Return the query for the rows that a MERGE inserts into a table without a key that has no rows."""
    copies = "explode(sequence(1, CAST(n AS int))) AS copy"
    counts = f"SELECT *, total - lowest AS n FROM {counted} s WHERE o >= {sweep_before} AND total > lowest"
    return f"SELECT {_values(target, _NONE_MISSING)} FROM (SELECT *, {copies} FROM ({counts})) s"


def sweep(table: str, sweep_before: int, ended: Sequence[str] = (), assigned: str = "", only: str = "") -> str:
    """Return the statement that only does the sweep of a MERGE. `ended`: see `merge`; with `assigned`, the values to
    set in a row that ends, the first of these columns is NULL as long as the row has not ended. `only`: a condition for
    the rows that the sweep is about; "" for all."""
    these = f" AND {only}" if only else ""
    if ended and assigned:
        lives = f"{name_sql(ended[0])} IS NULL"
        return f"UPDATE {table} SET {assigned} WHERE {OFFSET} < {sweep_before} AND {lives}{these}"
    if ended:
        lives = f"NOT {is_ended('', ended)}"
        older = f"coalesce({OFFSET}, 0) < {sweep_before}"
        return f"UPDATE {table} SET {name_sql(ended[0])} = true WHERE {older} AND {lives}{these}"
    # Written so that it is a change of rows everywhere: files that are removed unread are a separate commit in Iceberg,
    # without cdcflow's properties.
    return f"DELETE FROM {table} WHERE coalesce({OFFSET}, 0) < {sweep_before}{these}"


def _insert(names: Sequence[str], missing: str = "s.miss") -> str:
    values = ", ".join([*(f"s.c{i}" for i in range(len(names))), "s.o", missing])
    return f"INSERT ({_columns(names)}) VALUES ({values})"


def _names(target: Target) -> list[str]:
    return [name_sql(c.name) for c in target.columns]


def _values(target: Target, missing: str) -> str:
    """Return the SELECT list of a row's values under the names of the table's columns."""
    named = [f"s.c{i} AS {name}" for i, name in enumerate(_names(target))]
    return ", ".join([*named, f"s.o AS {OFFSET}", f"{missing} AS {MISSING}"])


def _columns(names: Sequence[str]) -> str:
    return ", ".join([*names, OFFSET, MISSING])


def _set(table: str, properties: Mapping[str, str]) -> str:
    listed = ", ".join(f"{text_sql(name)} = {text_sql(value)}" for name, value in properties.items())
    return f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})"
