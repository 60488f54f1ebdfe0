"""Find which rows of a derived table a change of an input concerns.

A row of the result belongs to a unit: the values of those columns of the key that the query takes from single joined
rows (expressions of GROUP BY, or of the SELECT list without one), and by which each window is partitioned. The rows of
a unit depend on no joined row of another unit, so a unit can be computed alone.

    changed rows of an input ──▶ units that they are, or were, joined into ──▶ these units' rows, from the new inputs

Why no unit is missed. The columns of a unit belong to tables that are joined without NULLs being added (FROM, inner
joins); call a combination of rows of these p. If the joined rows with p differ before and after, then either a row in p
changed, and p is found by joining the changed rows with what the other tables have or had; or p is the same, and the
first LEFT JOIN that differs found a changed row for it, which that join's condition finds again. Each table is
therefore joined as a whole: its rows now, and those of its changed rows that it had before. Conditions may be omitted,
which finds more units, not fewer.

A query that this does not cover raises `NotCovered`, and the table is computed as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcflow.tables.derived.queries import is_aggregate
from cdcflow.tables.sql.quotes import quote
from cdcflow.tables.sql.trees import Node, function_of, nodes_of

Render = Callable[[Node], str]
"""A function that returns the SQL text of an expression."""

ADDED = ("count", "count_star", "sum", "avg", "min", "max")
"""Aggregates whose new value can be computed from their previous value and the changed rows."""
_ADDED = "count, sum, avg, min or max"

Column = tuple[int, str]
"""A column of one of the joined tables: the table's number in FROM, and the column's name in lower case."""

AFFECTED = "_cdcflow_affected"
"""The alias of the units to compute; its columns are `unit_column(0)`, …"""

_WHOLE = ("int8", "int16", "int32", "int64")
_LINKED = (*_WHOLE, "string", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]", "bool")
"""Arrow's types whose values are equal in SQL exactly if they are the same. Floating-point types are not among them.
"""


class NotCovered(Exception):
    """The error for a query from which the rows that a change concerns cannot be computed; the text is the reason."""


def item_column(number: int) -> str:
    """Return the name by which `Lineage.having` uses the column of the result with this number."""
    return f"_cdcflow_item_{number}"


def unit_column(number: int) -> str:
    """Return the name of a column of a table of units."""
    return f"_cdcflow_unit_{number}"


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """A table in FROM. `table`: the whole name of the input; `columns`: by lower-case name, the name and Arrow's type.
    `nullable`: it is joined by LEFT JOIN."""

    number: int
    table: str
    alias: str
    columns: Mapping[str, tuple[str, str]]
    nullable: bool
    condition: Node | None
    using: tuple[str, ...]

    def type_of(self, column: str) -> str:
        return self.columns[column][1]

    def sql(self, column: str) -> str:
        return f"{quote(self.alias)}.{quote(self.columns[column][0])}"


@dataclass(frozen=True, slots=True)
class InputRead:
    """A read of rows of a joined table: those whose `column` has one of the values of `of_column` in the joined table
    `of`, which was read before. With `of` `None`, these are the values of the unit's column with this number. Without
    `column`, all rows are read."""

    joined: int
    column: str = ""
    of: int | None = None
    of_column: str = ""
    unit: int = 0


@dataclass(frozen=True, slots=True)
class Reach:
    """The computation of the units that changed rows of a joined table concern: `units` are expressions over `joined`
    rows of the tables in `reads` and of the changed rows, whose table is `start`."""

    start: int
    units: tuple[str, ...]
    reads: tuple[InputRead, ...]
    joins: tuple[tuple[int, str], ...]
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResultItem:
    """A column of the result of a query with groups. Without `function`, `sql` is an expression of GROUP BY. With
    `function`, `sql` is the argument of that aggregate ("" for `count(*)`), over the rows that fulfil `condition`.
    `column`: the column that the argument is; `None` if it is an expression, or NULL in rows that a LEFT JOIN adds."""

    sql: str
    function: str = ""
    condition: str = ""
    column: Column | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Lineage:
    """A query whose units are known. `units`: their columns in the result; `unit_sql`: their expressions over the
    joined rows. `reads`: how the joined rows of units are read; `reads_from`: by joined table, how the rows are read
    that are joined with its changed rows. `results`: the columns of the result; or, if they are not only groups and
    aggregates that can be added to, the reason. `having`: the condition of HAVING over these columns, called
    `item_column`; "" if there is none, or if `results` is a reason."""

    joined: tuple[JoinedTable, ...]
    units: tuple[str, ...]
    unit_sql: tuple[str, ...]
    reads: tuple[InputRead, ...]
    reaches: tuple[Reach, ...]
    used: frozenset[Column]
    select: str
    joins: tuple[tuple[int, str], ...]
    where: str
    rest: str
    reads_from: tuple[tuple[InputRead, ...], ...]
    results: tuple[ResultItem, ...] | str
    having: str

    @property
    def has_groups(self) -> bool:
        return self.rest.startswith(" GROUP BY")

    def needed_columns(self, number: int) -> list[str]:
        """Return the columns of a joined table that the query uses, under the table's names for them; at least one."""
        joined = self.joined[number]
        same = {one.number for one in self.joined if one.table == joined.table}
        found = [name for lower, (name, _) in joined.columns.items() if any((n, lower) in self.used for n in same)]
        return found or [name for name, _ in joined.columns.values()][:1]

    def rows_sql(self, views: Sequence[str], affected: str) -> str:
        """Return the query for the rows of some units. `views`: the joined tables, by number; `affected`: the units."""
        same = " AND ".join(
            f"{AFFECTED}.{unit_column(n)} IS NOT DISTINCT FROM ({sql})" for n, sql in enumerate(self.unit_sql)
        )
        where = f" WHERE {self.where}" if self.where else ""
        from_ = self.from_sql(views)
        return f"SELECT {self.select} FROM {from_} SEMI JOIN {affected} AS {AFFECTED} ON ({same}){where}{self.rest}"  # noqa: S608  rendered from a checked tree

    def affected_sql(self, reach: Reach, views: Mapping[int, str]) -> str:
        """Return the query for the units that changed rows concern."""
        listed = ", ".join(f"({sql}) AS {unit_column(n)}" for n, sql in enumerate(reach.units))
        where = " AND ".join(f"({sql})" for sql in reach.conditions)
        return f"SELECT DISTINCT {listed} FROM {self._from(reach.joins, views)}{f' WHERE {where}' if where else ''}"  # noqa: S608  rendered from a checked tree

    def from_sql(self, views: Any) -> str:
        """Return the FROM clause: tables and joins. `views`: the joined tables, by number."""
        return self._from(self.joins, views)

    def _from(self, joins: Iterable[tuple[int, str]], views: Any) -> str:
        found = ""
        for number, words in joins:
            one = f"{views[number]} AS {quote(self.joined[number].alias)}"
            found += words.replace("{}", one, 1) if found else one
        return found


def lineage_of(
    query: Node, key: Sequence[str], inputs: Callable[[str, str], tuple[str, Mapping[str, str]]], render: Render
) -> Lineage:
    """Return how changes of the inputs reach the rows of a checked query. `inputs` returns the full name of a table,
    and its columns with Arrow's types, for the (schema, name) that the text of the query has.

    Raises:
        NotCovered: the table must be computed as a whole.
    """
    return _LineageReader(query, key, inputs, render).read()


class _LineageReader:
    """Finds the lineage of one query."""

    def __init__(
        self,
        query: Node,
        key: Sequence[str],
        inputs: Callable[[str, str], tuple[str, Mapping[str, str]]],
        render: Render,
    ) -> None:
        self._query = query
        self._key = key
        self._inputs = inputs
        self._render = render
        self._joined: list[JoinedTable] = []
        self._joins: list[tuple[int, str]] = []
        self._same: dict[Column, Column] = {}

    def read(self) -> Lineage:
        self._check_form()
        self._read_from(self._query["from_table"])
        self._where = _conjuncts(self._query.get("where_clause"))
        self._items: dict[str, Node] = {self._output(item): item for item in self._query["select_list"]}
        self._link()
        units = self._units()
        unit_refs = {ref for _, node in units for ref in self._refs(node)}
        for number, column in sorted(unit_refs):
            if self._joined[number].nullable:
                raise NotCovered(f"its key has {column} of a table that is joined by LEFT JOIN")
        for joined in self._joined:
            if joined.condition is not None and not joined.nullable and self._reaches_nullable(joined.condition):
                raise NotCovered("a JOIN follows a LEFT JOIN, and its condition uses that table")
        reaches = tuple(self._reach(one, units, unit_refs) for one in self._joined)
        return Lineage(
            tuple(self._joined),
            tuple(name for name, _ in units),
            tuple(self._render(node) for _, node in units),
            tuple(self._reads_of_units(units)),
            reaches,
            frozenset(self._columns_in_use()),
            ", ".join(self._item_sql(item) for item in self._query["select_list"]),
            tuple(self._joins),
            " AND ".join(f"({self._render(node)})" for node in self._where),
            self._rest(),
            tuple(self._reads_from(one) for one in self._joined),
            *self._results(),
        )

    # ── the query's form ────────────────────────────────────────────────────────────────────────────────────

    def _check_form(self) -> None:
        query = self._query
        if query["type"] != "SELECT_NODE":
            raise NotCovered("it is a UNION, INTERSECT or EXCEPT")
        if query["cte_map"]["map"]:
            raise NotCovered("it has WITH")
        if any(node.get("type") == "SUBQUERY" or node.get("class") == "SUBQUERY" for node in nodes_of(query)):
            raise NotCovered("it has a subquery")
        groups = query["group_expressions"]
        if query.get("aggregate_handling") != "STANDARD_HANDLING":
            raise NotCovered("it has GROUP BY ALL: name the columns")
        if query["group_sets"] not in ([], [list(range(len(groups)))]):
            raise NotCovered("it has more than one set of groups")
        parts = [query["select_list"], query.get("having"), query.get("qualify")]
        if not groups and (query.get("having") is not None or any(is_aggregate(node) for node in nodes_of(parts))):
            raise NotCovered("it has aggregates without GROUP BY, so each change concerns its only row")

    def _read_from(self, node: Node) -> None:
        kind = node["type"]
        if kind == "JOIN":
            self._read_from(node["left"])
            self._read_join(node)
        elif kind == "BASE_TABLE":
            self._add(node, nullable=False, condition=None, using=())
            self._joins.append((0, ""))
        else:
            raise NotCovered("it reads from something else than tables")

    def _read_join(self, node: Node) -> None:
        right, kind, form = node["right"], node["join_type"], node["ref_type"]
        if right["type"] != "BASE_TABLE":
            raise NotCovered("it has a join in brackets")
        if kind not in ("INNER", "LEFT") or form not in ("REGULAR", "CROSS"):
            raise NotCovered(f"it has a {(kind if form in ('REGULAR', 'CROSS') else form)} JOIN")
        using = tuple(str(name).lower() for name in node.get("using_columns") or ())
        self._add(right, nullable=kind == "LEFT", condition=node.get("condition"), using=using)
        number = len(self._joined) - 1
        word = "LEFT JOIN" if kind == "LEFT" else "JOIN"
        if using:
            on = f" USING ({', '.join(map(quote, using))})"
        elif node.get("condition") is not None:
            on = f" ON ({self._render(node['condition'])})"
        else:
            word, on = "CROSS JOIN", ""
        self._joins.append((number, f" {word} {{}}{on}"))

    def _add(self, node: Node, *, nullable: bool, condition: Node | None, using: tuple[str, ...]) -> None:
        if node.get("column_name_alias"):
            raise NotCovered("it renames the columns of a table in FROM")
        table, columns = self._inputs(str(node.get("schema_name") or ""), str(node["table_name"]))
        alias = str(node.get("alias") or node["table_name"])
        lower = {name.lower(): (name, type_) for name, type_ in columns.items()}
        if len(lower) != len(columns):
            raise NotCovered(f"{table} has columns whose names differ only in upper and lower case")
        if alias.lower() in {one.alias.lower() for one in self._joined}:
            raise NotCovered(f"it has two tables called {alias}")
        self._joined.append(JoinedTable(len(self._joined), table, alias, lower, nullable, condition, using))

    def _rest(self) -> str:
        query, rest = self._query, ""
        if query["group_expressions"]:
            rest += f" GROUP BY {', '.join(self._render(node) for node in query['group_expressions'])}"
        if query.get("having") is not None:
            rest += f" HAVING {self._render(query['having'])}"
        if query.get("qualify") is not None:
            rest += f" QUALIFY {self._render(query['qualify'])}"
        return rest

    def _item_sql(self, item: Node) -> str:
        is_first = item is self._query["select_list"][0]
        distinct = any(one["type"] == "DISTINCT_MODIFIER" for one in self._query["modifiers"])
        text = self._render(item)
        if item.get("alias"):
            text += f" AS {quote(str(item['alias']))}"
        return f"DISTINCT {text}" if is_first and distinct else text

    # ── columns ─────────────────────────────────────────────────────────────────────────────────────────────

    def _resolve(self, names: Sequence[str]) -> Column | None:
        """Return the column that a reference names; `None` if it is not a plain column of a joined table."""
        lower = [str(name).lower() for name in names]
        if len(lower) == 1:
            found = [one for one in self._joined if lower[0] in one.columns]
            if len(found) > 1 and all(lower[0] in one.using for one in found[1:]):
                found = found[:1]
            return (found[0].number, lower[0]) if len(found) == 1 else None
        if len(lower) == 2:
            for one in self._joined:
                if one.alias.lower() == lower[0] and lower[1] in one.columns:
                    return one.number, lower[1]
        return None

    def _refs(self, node: object) -> set[Column]:
        """Return the columns that an expression uses.

        Raises:
            NotCovered: it uses something else than columns of the joined tables.
        """
        found: set[Column] = set()
        for one in nodes_of(node):
            if one.get("class") == "COLUMN_REF":
                column = self._resolve(one["column_names"])
                if column is None:
                    raise NotCovered(f"{'.'.join(map(str, one['column_names']))} is not a column of one table in FROM")
                found.add(column)
            elif one.get("class") == "STAR":
                raise NotCovered("it has * inside of an expression")
        return found

    def _columns_in_use(self) -> set[Column]:
        """Return the columns that the query uses, or more than these."""
        every = {(one.number, name) for one in self._joined for name in one.columns}
        found = {column for column in every if column[1] in self._joined[column[0]].using}
        for node in nodes_of(self._query):
            if node.get("class") == "STAR":
                return every
            for name in node.get("using_columns") or ():
                found |= {column for column in every if column[1] == str(name).lower()}
            if node.get("class") == "COLUMN_REF":
                column = self._resolve(node["column_names"])
                parts = {str(part).lower() for part in node["column_names"]}
                found |= {other for other in every if other[1] in parts} if column is None else {column}
        return found

    def _output(self, item: Node) -> str:
        """Return the name of an item in the result, in lower case ("" if it has no plain name)."""
        if item.get("alias"):
            return str(item["alias"]).lower()
        return str(item["column_names"][-1]).lower() if item.get("class") == "COLUMN_REF" else ""

    def _canonical(self, node: Node) -> str:
        """Return a text that is the same for equal expressions."""

        def plain(one: object) -> object:
            if isinstance(one, Mapping):
                if one.get("class") == "COLUMN_REF":
                    return {"column": self._resolve(one["column_names"]) or list(one["column_names"])}
                kept = {k: v for k, v in one.items() if k != "alias" and not k.startswith("query_location")}
                return {k: plain(v) for k, v in kept.items()}
            return [plain(v) for v in one] if isinstance(one, list) else one

        return json.dumps(plain(node), sort_keys=True)

    def _reaches_nullable(self, condition: Node) -> bool:
        return any(self._joined[number].nullable for number, _ in self._refs(condition))

    # ── equal columns ───────────────────────────────────────────────────────────────────────────────────────

    def _link(self) -> None:
        """Find which columns inner joins make equal in each joined row."""
        for one, other in self._equal_columns(self._inner_conditions()):
            a, b = self._root(one), self._root(other)
            self._same[max(a, b)] = min(a, b)
        for joined in self._joined:
            if not joined.nullable:
                for name in joined.using:
                    pair = self._using(joined, name)
                    if self._may_link(*pair):
                        a, b = self._root(pair[0]), self._root(pair[1])
                        self._same[max(a, b)] = min(a, b)

    def _inner_conditions(self) -> list[Node]:
        """Return the conditions that each joined row fulfils and that use no table of a LEFT JOIN."""
        listed = [node for one in self._joined if not one.nullable for node in _conjuncts(one.condition)]
        listed += self._where
        return [node for node in listed if not self._reaches_nullable(node)]

    def _using(self, joined: JoinedTable, name: str) -> tuple[Column, Column]:
        first = next((o for o in self._joined[: joined.number] if name in o.columns), None)
        if first is None or first.nullable:
            raise NotCovered(f"USING ({name}) follows a LEFT JOIN")
        return (first.number, name), (joined.number, name)

    def _equal_columns(self, conditions: Iterable[Node]) -> Iterable[tuple[Column, Column]]:
        for node in conditions:
            if node.get("type") != "COMPARE_EQUAL":
                continue
            sides = [node["left"], node["right"]]
            if any(side.get("class") != "COLUMN_REF" for side in sides):
                continue
            one, other = (self._resolve(side["column_names"]) for side in sides)
            if one is not None and other is not None and one[0] != other[0] and self._may_link(one, other):
                yield one, other

    def _may_link(self, one: Column, other: Column) -> bool:
        kinds = {_kind(self._joined[number].type_of(name)) for number, name in (one, other)}
        return len(kinds) == 1 and None not in kinds

    def _root(self, column: Column) -> Column:
        while column in self._same:
            column = self._same[column]
        return column

    def _left_pairs(self, joined: JoinedTable) -> list[tuple[Column, Column]]:
        """Return the pairs of a column of a LEFT JOIN's table and an equal column of another table, in this order."""
        found = [
            (one, other) if one[0] == joined.number else (other, one)
            for one, other in self._equal_columns(_conjuncts(joined.condition))
            if joined.number in (one[0], other[0])
        ]
        found += [(pair[1], pair[0]) for name in joined.using if self._may_link(*(pair := self._using(joined, name)))]
        return found

    def _columns_like(self, joined: JoinedTable, column: Column) -> list[str]:
        """Return the columns of a joined table that are equal to `column` in each joined row for which the table has a
        row. `column` is of a table whose rows are joined without added NULLs."""
        if joined.nullable:
            return [own[1] for own, other in self._left_pairs(joined) if self._root(other) == self._root(column)]
        if joined.number == column[0]:
            return [column[1]]
        if not can_compare(self._joined[column[0]].type_of(column[1])):
            return []
        root = self._root(column)
        return [name for name in joined.columns if self._root((joined.number, name)) == root]

    # ── units ───────────────────────────────────────────────────────────────────────────────────────────────

    def _units(self) -> list[tuple[str, Node]]:
        """Return the columns of the key that form the units, with their expressions."""
        groups = {self._canonical(self._group(node)) for node in self._query["group_expressions"]}
        windows = [
            {self._canonical(self._item_of_name(part)) for part in node["partitions"]}
            for node in nodes_of([self._query["select_list"], self._query.get("qualify")])
            if node.get("class") == "WINDOW"
        ]
        found: list[tuple[str, Node]] = []
        for name in self._key:
            item = self._item(name)
            if item is None or any(n.get("class") == "WINDOW" or is_aggregate(n) for n in nodes_of(item)):
                continue
            text = self._canonical(item)
            if groups and text not in groups:
                continue
            if all(text in partitions for partitions in windows):
                found.append((name, {**item, "alias": ""}))
        if not found:
            raise NotCovered(
                "no column of its key is a column of the SELECT list"
                + (" and of GROUP BY" if groups else "")
                + (" by which its windows are partitioned" if windows else "")
            )
        return found

    def _item(self, name: str) -> Node | None:
        """Return the item of the SELECT list that becomes the result's column `name`."""
        if (item := self._items.get(name.lower())) is not None:
            return item
        stars: list[Node] = [
            item for item in self._query["select_list"] if item.get("class") == "STAR" and not item["columns"]
        ]
        for star in stars:
            relation = str(star.get("relation_name") or "").lower()
            kept = not any(star.get(part) for part in ("exclude_list", "replace_list", "rename_list", "expr"))
            names = [relation, name] if relation else [name]
            if kept and not star.get("qualified_exclude_list") and self._resolve(names) is not None:
                return {**_place(star), "class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": names}
        return None

    def _group(self, node: Node) -> Node:
        """Return the expression that GROUP BY groups by: a number, or a name of the SELECT list, means an item."""
        if node.get("class") == "CONSTANT":
            literal = node.get("literal") or {}
            text = str(literal.get("text", (node.get("value") or {}).get("value", "")))
            if text.isdecimal() and 0 < int(text) <= len(self._query["select_list"]):
                found: Node = self._query["select_list"][int(text) - 1]
                return found
            raise NotCovered("it has GROUP BY a constant")
        return self._item_of_name(node)

    def _item_of_name(self, node: Node) -> Node:
        """Return the item of the SELECT list with a name, unless a joined table has a column of that name; then the
        name itself."""
        if node.get("class") == "COLUMN_REF" and self._resolve(node["column_names"]) is None:
            return self._items.get(str(node["column_names"][-1]).lower(), node)
        return node

    # ── what is read ────────────────────────────────────────────────────────────────────────────────────────

    def _reads_of_units(self, units: Sequence[tuple[str, Node]]) -> list[InputRead]:
        """Return how the joined rows of some units are read."""
        found: dict[int, InputRead] = {}
        for joined in self._joined:
            for number, (_, node) in enumerate(units):
                column = self._resolve(node["column_names"]) if node.get("class") == "COLUMN_REF" else None
                if joined.nullable or column is None or joined.number in found:
                    continue
                if not can_compare(self._joined[column[0]].type_of(column[1])):
                    continue
                for name in self._columns_like(joined, column):
                    found[joined.number] = InputRead(joined.number, name, None, "", number)
                    break
        return self._follow(found, [one.number for one in self._joined])

    def _follow(self, found: dict[int, InputRead], wanted: Sequence[int], start: int | None = None) -> list[InputRead]:
        """Extend `found` with reads of the other tables: each by a column that is equal to one of a table that was read
        before."""
        known = [*([] if start is None else [start]), *found]
        while True:
            one = self._next_read(known, [n for n in wanted if n not in known], start)
            if one is None:
                break
            found[one.joined] = one
            known.append(one.joined)
        return [*found.values(), *(InputRead(n) for n in wanted if n not in known)]

    def _next_read(self, known: Sequence[int], wanted: Sequence[int], start: int | None) -> InputRead | None:
        for number in wanted:
            for own, other in self._pairs(self._joined[number], start):
                if other[0] in known:
                    return InputRead(number, own[1], other[0], other[1])
        return None

    def _pairs(self, joined: JoinedTable, start: int | None) -> list[tuple[Column, Column]]:
        """Return the pairs of a column of a table and an equal column of another table, in this order. `start`: the
        table of the changed rows."""
        if joined.nullable:
            return self._left_pairs(joined)
        found = []
        for name in joined.columns:
            for other in self._joined:
                if other.nullable and other.number != start:
                    continue  # its rows do not decide which rows of others are joined
                if other.nullable:
                    pairs = self._left_pairs(other)
                    found += [((joined.number, name), own) for own, of in pairs if of == (joined.number, name)]
                elif other.number != joined.number:
                    roots = self._root((joined.number, name))
                    found += [
                        ((joined.number, name), (other.number, o))
                        for o in other.columns
                        if self._root((other.number, o)) == roots
                    ]
        return found

    def _reads_from(self, start: JoinedTable) -> tuple[InputRead, ...]:
        """Return how the rows are read that are joined with changed rows of the table `start`."""
        return tuple(self._follow({}, [one.number for one in self._joined if one is not start], start.number))

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────

    def _results(self) -> tuple[tuple[ResultItem, ...] | str, str]:
        """Return the columns of the result, and the condition of HAVING over them (`Lineage.having`). If they are not
        only groups and aggregates that can be added to, return the reason, and ""."""
        query = self._query
        if not query["group_expressions"]:
            return "it has no groups", ""
        if any(one["type"] == "DISTINCT_MODIFIER" for one in query["modifiers"]):
            return "it has DISTINCT", ""
        if query.get("qualify") is not None or any(n.get("class") == "WINDOW" for n in nodes_of(query["select_list"])):
            return "it has window functions", ""
        groups = {self._canonical(self._group(node)) for node in query["group_expressions"]}
        selected = {self._canonical(item): n for n, item in enumerate(query["select_list"])}
        if not groups <= selected.keys():
            return "it groups by an expression that it does not select", ""
        try:
            found = tuple(self._result(item, groups) for item in query["select_list"])
            having = query.get("having")
            return found, "" if having is None else self._render(self._over_items(having, selected))
        except NotCovered as error:
            return str(error), ""

    def _over_items(self, node: Any, selected: Mapping[str, int]) -> Any:
        """Return a condition of HAVING over columns of the result. `selected`: their numbers, by canonical text.

        Raises:
            NotCovered: it uses something else.
        """
        if isinstance(node, list):
            return [self._over_items(one, selected) for one in node]
        if not isinstance(node, Mapping):
            return node
        if "class" in node:
            number = self._item_number(node, selected)
            if number is not None:
                named = [item_column(number)]
                return {**_place(node), "class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": named}
            if node["class"] == "COLUMN_REF" or is_aggregate(node):
                raise NotCovered(f"its HAVING has {self._render(node)}, which it does not select")
        return {name: self._over_items(one, selected) for name, one in node.items()}

    def _item_number(self, node: Node, selected: Mapping[str, int]) -> int | None:
        """Return the number of the column of the result that an expression of HAVING is; `None` if it is none, or if
        it is a name that may be that of two different columns."""
        number = selected.get(self._canonical(node))
        if node["class"] != "COLUMN_REF" or len(node["column_names"]) > 1:
            return number
        named = self._items.get(str(node["column_names"][0]).lower())
        if named is None:
            return number
        other = selected[self._canonical(named)]
        is_clear = number == other if self._resolve(node["column_names"]) is not None else True
        return other if is_clear else None

    def _result(self, item: Node, groups: Collection[str]) -> ResultItem:
        if self._canonical(item) in groups:
            return ResultItem(self._qualify({**item, "alias": ""}))
        name = function_of(item) if item.get("class") == "FUNCTION" else ""
        if name not in ADDED or item.get("distinct"):
            raise NotCovered(f"its column {item.get('alias') or self._render(item)} is not a plain {_ADDED}")
        arguments = [self._qualify(one["expression"]) for one in item["arguments"]]
        condition = self._qualify(item["filter"]) if item.get("filter") else ""
        column = self._inner_column(item["arguments"][0]["expression"]) if arguments else None
        function = "count" if name == "count_star" else name
        return ResultItem(arguments[0] if arguments else "", function, condition, column)

    def _inner_column(self, node: Node) -> Column | None:
        """Return the column that an expression is, if it belongs to a table that is not joined by LEFT JOIN."""
        column = self._resolve(node["column_names"]) if node.get("class") == "COLUMN_REF" else None
        return None if column is None or self._joined[column[0]].nullable else column

    # ── changed rows ────────────────────────────────────────────────────────────────────────────────────────

    def _reach(self, start: JoinedTable, units: Sequence[tuple[str, Node]], unit_refs: set[Column]) -> Reach:
        own: dict[Column, str] = {}
        for ref in unit_refs:
            like = [ref[1]] if ref[0] == start.number else self._columns_like(start, ref)
            if like:
                own[ref] = like[0]
        if own.keys() == unit_refs:
            named = {ref: (start.number, name) for ref, name in own.items()}
            listed = tuple(self._render(self._replace(node, named)) for _, node in units)
            return Reach(start.number, listed, (), ((start.number, ""),), ())
        return self._reach_by_joins(start, units, unit_refs)

    def _reach_by_joins(self, start: JoinedTable, units: Sequence[tuple[str, Node]], unit_refs: set[Column]) -> Reach:
        inner = [one.number for one in self._joined if not one.nullable]
        needed = {number for number, _ in unit_refs} | {start.number}
        left: set[int] = set()
        if start.nullable:
            self._need(start, needed, left)
        kept = set(inner) | {start.number}
        for number in inner:
            if number not in needed and self._is_linked_without(kept, number, start.number):
                kept.discard(number)
        reads = self._follow({}, [*sorted(kept - {start.number}), *sorted(left)], start.number)
        joins = [(n, " CROSS JOIN {}" if found else "") for found, n in enumerate(sorted(kept - {start.number}))]
        joins += [(number, f" LEFT JOIN {{}} ON ({self._on(self._joined[number])})") for number in sorted(left)]
        joins.append((start.number, " CROSS JOIN {}" if joins else ""))
        among = kept | left
        own = [*self._inner_conditions(), *(_conjuncts(start.condition) if start.nullable else [])]
        conditions = [self._qualify(node) for node in own if {n for n, _ in self._refs(node)} <= among]
        for number in sorted(kept):
            pairs = [self._using(self._joined[number], name) for name in self._joined[number].using]
            conditions += [f"{self._sql(one)} = {self._sql(other)}" for one, other in pairs if one[0] in among]
        listed = tuple(self._qualify(node) for _, node in units)
        return Reach(start.number, listed, tuple(reads), tuple(joins), tuple(conditions))

    def _need(self, joined: JoinedTable, needed: set[int], left: set[int]) -> None:
        """Add the tables that a LEFT JOIN's condition uses: to `left` if they are joined by LEFT JOIN, otherwise to
        `needed`. For those in `left`, the tables that their conditions use are added, too."""
        refs = self._refs(joined.condition) if joined.condition is not None else set()
        refs |= {self._using(joined, name)[0] for name in joined.using}
        for number in {number for number, _ in refs} - {joined.number}:
            if not self._joined[number].nullable:
                needed.add(number)
            elif number not in left:
                left.add(number)
                self._need(self._joined[number], needed, left)

    def _is_linked_without(self, kept: set[int], without: int, start: int) -> bool:
        """Return whether the tables `kept`, without the table `without`, are still linked to the changed rows of
        `start`, or were not linked to them before either."""
        return self._tables_near(kept - {without}, start) >= self._tables_near(kept, start) - {without}

    def _tables_near(self, among: set[int], start: int) -> set[int]:
        found = {start}
        while True:
            more = {
                n
                for n in among - found
                if any(other[0] in found for _, other in self._pairs(self._joined[n], start))
                or any(other[0] == n for f in found for _, other in self._pairs(self._joined[f], start))
            }
            if not more:
                return found
            found |= more

    def _replace(self, node: Any, named: Mapping[Column, Column]) -> Any:
        """Return an expression in which the columns in `named` are replaced by the ones that they map to."""
        if isinstance(node, Mapping):
            if node.get("class") == "COLUMN_REF":
                column = self._resolve(node["column_names"])
                assert column is not None  # noqa: S101  `_refs` has seen it
                number, name = named[column]
                joined = self._joined[number]
                return {**node, "column_names": [joined.alias, joined.columns[name][0]]}
            return {k: self._replace(v, named) for k, v in node.items()}
        return [self._replace(v, named) for v in node] if isinstance(node, list) else node

    def _qualify(self, node: Node) -> str:
        """Return an expression's text, with each column's table."""
        return self._render(self._replace(node, {ref: ref for ref in self._refs(node)}))

    def _on(self, joined: JoinedTable) -> str:
        """Return the condition of a LEFT JOIN."""
        pairs = [self._using(joined, name) for name in joined.using]
        found = [f"{self._sql(one)} = {self._sql(other)}" for one, other in pairs]
        found += [] if joined.condition is None else [self._qualify(joined.condition)]
        return " AND ".join(f"({one})" for one in found) or "true"

    def _sql(self, column: Column) -> str:
        return self._joined[column[0]].sql(column[1])


def _conjuncts(node: Node | None) -> list[Node]:
    """Return the conditions that are joined by AND."""
    if node is None:
        return []
    if node.get("type") == "CONJUNCTION_AND":
        return [one for child in node["children"] for one in _conjuncts(child)]
    return [node]


def _place(node: Node) -> Node:
    return {k: v for k, v in node.items() if k.startswith("query_location")}


def _kind(type_: str) -> str | None:
    """Return the comparison group of a type: values of a group are equal in SQL exactly if they are the same. `None`
    for a type for whose values this does not hold."""
    if type_ in _WHOLE:
        return "whole"
    return type_ if type_ in _LINKED or type_.startswith("decimal128(") else None


def can_compare(type_: str) -> bool:
    """Return whether values of a type are equal in SQL exactly if they are the same."""
    return _kind(type_) is not None
