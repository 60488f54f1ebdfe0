"""Compute the rows of a derived table from their last values and the changed rows alone, where that is exact.

For a query of groups whose aggregates are counts, sums of whole numbers and decimals, means of whole numbers, least and
greatest values:

    changed rows ⋈ rows of the other inputs ──▶ weights of +1 and -1 ──▶ per group: how much each aggregate changes
    the table's present row of the group ───────────────────────────────────▶ present value + change

Why it is exact. An inner join is linear in each of its tables: with the tables A, B, … before and A', B', … after,
A'⋈B' - A⋈B = (A'-A)⋈B + A'⋈(B'-B). So for each changed table its changed rows are joined with the others, those to its
left after the changes, those to its right before them: the present rows, minus new ones, plus old ones. A LEFT JOIN is
linear in its left side, as long as its right table has not changed. Weights of joined rows are products.

A value that this does not determine is computed from all rows of the unit, as for any other query:

- A group may have lost its last row, and the table has no `count(*)`. If another count or sum is then not zero, it has
  rows.
- A sum may have lost its last value, and become NULL. If it is not zero, it has values; a count of them decides, too.
- A least value was removed, or one as small.
- A group is not in the table, and HAVING may have excluded it before.

A mean of whole numbers is continued from its sum, which is mean * count, rounded: if a sum is less than 2^50, the two
roundings before are an error of less than 1/2. DuckDB divides with 53 bits or more, then rounds to 53. That gives what
one division with 53 bits gives, unless the first rounding leads to the middle between two numbers. A quotient by n that
is elsewhere is at least 1 / (n * 2^54) of itself away from it, and rounding to 64 bits moves it by at most 2^-64. So
means of up to 512 values are continued. Their count is that of the values, or that of the rows if no row of the input
has NULL in the column.

Sums of floating-point numbers depend on the order of the rows, so they are not computed in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdcflow.tables.derived.lineage import Lineage, NotCovered, ResultItem, item_column, unit_column
from cdcflow.tables.sql.quotes import quote

WEIGHT = "_cdcflow_weight_"
"""The prefix of columns with weights. Such a column of a joined table's rows is 1 for a row that is added, and -1 for
one that is removed."""

_WEIGHT = "_cdcflow_weight"
_ROWS = "_cdcflow_rows"
PLACE = "_cdcflow_number"
"""A column of the present rows that is never NULL. So it shows, after a LEFT JOIN, whether a group has a present row.
"""
UNCLEAR = "_cdcflow_unclear"
"""A column that is true in a row with unknown values."""

MEAN_VALUES_MAX = 512
"""The mean of more values than this is computed from the rows."""
MEAN_SUM_MAX = 1 << 50
"""The sum of a mean that is continued is less than this."""


def _group(item: int) -> str:
    return f"_cdcflow_group_{item}"


def _change(item: int) -> str:
    return f"_cdcflow_change_{item}"


def _values(item: int) -> str:
    return f"_cdcflow_values_{item}"


def _where(item: int) -> str:
    return f"_cdcflow_where_{item}"


def _removed_value(item: int) -> str:
    return f"_cdcflow_removed_{item}"


def weight_column(joined: int) -> str:
    """Return the name of the column of weights of a joined table."""
    return f"{WEIGHT}{joined}"


@dataclass(frozen=True, slots=True)
class Increments:
    """A query whose results can be computed from the previous ones. `names`: the columns of its result, one per item;
    `types`: their types in DuckDB, from which those of the table may differ."""

    lineage: Lineage
    items: tuple[ResultItem, ...]
    names: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def groups(self) -> list[int]:
        return [n for n, item in enumerate(self.items) if not item.function]

    @property
    def aggregates(self) -> list[tuple[int, ResultItem]]:
        return [(n, item) for n, item in enumerate(self.items) if item.function]

    def changed_sql(self, views: Mapping[int, str], weighted: Sequence[int]) -> str:
        """Return the query for joined rows with their weights. `views`: the joined tables, by number; `weighted`: the
        numbers of those that have a column of weights."""
        lineage = self.lineage
        listed = [f"({item.sql}) AS {_group(n)}" for n, item in enumerate(self.items) if not item.function]
        for n, item in self.aggregates:
            listed += [f"({item.sql}) AS {_change(n)}"] if item.sql else []
            listed += [f"({item.condition}) AS {_where(n)}"] if item.condition else []
        listed.append(f"{' * '.join(weight_column(number) for number in weighted)} AS {_WEIGHT}")
        where = f" WHERE {lineage.where}" if lineage.where else ""
        return f"SELECT {', '.join(listed)} FROM {lineage.from_sql(views)}{where}"  # noqa: S608  rendered from a checked tree

    def changes_sql(self, parts: Sequence[str]) -> str:
        """Return the query for how the aggregates of each group change. `parts`: queries of `changed_sql`."""
        listed = [_group(n) for n in self.groups]
        listed.append(f"{_difference('count(*)', '')} AS {_ROWS}")
        for n, item in self.aggregates:
            function = "sum" if item.function == "avg" else item.function
            over = f"{function}({_change(n)})" if item.sql else "count(*)"
            condition = f" AND {_where(n)}" if item.condition else ""
            if item.function in ("min", "max"):
                listed.append(f"{over} FILTER (WHERE {_WEIGHT} > 0{condition}) AS {_change(n)}")
                listed.append(f"{over} FILTER (WHERE {_WEIGHT} < 0{condition}) AS {_removed_value(n)}")
                continue
            listed.append(f"{_difference(over, condition)} AS {_change(n)}")
            if item.function in ("sum", "avg"):
                listed.append(f"{_difference(f'count({_change(n)})', condition)} AS {_values(n)}")
        union = " UNION ALL ".join(parts)
        return f"SELECT {', '.join(listed)} FROM ({union}) GROUP BY {', '.join(_group(n) for n in self.groups)}"  # noqa: S608  cdcflow's own

    def columns_of_changes(self) -> list[tuple[str, int]]:
        """Return those columns of `changes_sql` that must have the type of a column of the result, each with the number
        of that item."""
        found = [(_group(n), n) for n in self.groups]
        found += [(_change(n), n) for n, item in self.aggregates if item.function != "avg"]
        return found + [(_removed_value(n), n) for n, item in self.aggregates if item.function in ("min", "max")]

    def sums_of_means(self) -> list[tuple[str, int]]:
        """Return those columns of `changes_sql` that are sums of whole numbers for a mean, each with the number of that
        item."""
        return [(_change(n), n) for n, item in self.aggregates if item.function == "avg"]

    @property
    def columns_without_null(self) -> list[tuple[str, str]]:
        """The columns, each with its table, in which no row may have NULL: a count of rows is the count of their values
        (see `count_for_mean`)."""
        found = []
        for n, item in self.aggregates:
            if item.function == "avg" and item.column is not None and self._count_of_values(n) is None:
                joined = self.lineage.joined[item.column[0]]
                found.append((joined.table, joined.columns[item.column[1]][0]))
        return found

    def columns_of_units(self) -> list[str]:
        """Return the columns of `changes_sql` that form a unit."""
        return [_group(self._item_named(name)) for name in self.lineage.units]

    def units_sql(self, changes: str) -> str:
        """Return the query for the units of the groups that change."""
        listed = ", ".join(
            f"{column} AS {unit_column(number)}" for number, column in enumerate(self.columns_of_units())
        )
        return f"SELECT DISTINCT {listed} FROM {changes}"  # noqa: S608  cdcflow's own

    def unclear_sql(self, rows: str) -> str:
        """Return the query for the units of those rows of `rows_sql` that have unknown values."""
        listed = ", ".join(f"{quote(name)} AS {unit_column(number)}" for number, name in enumerate(self._unit_names()))
        return f"SELECT DISTINCT {listed} FROM {rows} WHERE {UNCLEAR}"  # noqa: S608  quoted

    def rows_sql(self, changes: str, present: str) -> str:
        """Return the query for the rows of all units of `present`, with the changes added. `UNCLEAR` is true in a row
        with an unknown value."""
        same = " AND ".join(f"p.{quote(self.names[n])} IS NOT DISTINCT FROM d.{_group(n)}" for n in self.groups)
        listed = [
            f"{self._value(n)} AS {quote(self.names[n])}"
            if item.function
            else f"d.{_group(n)} AS {quote(self.names[n])}"
            for n, item in enumerate(self.items)
        ]
        known = ", ".join(quote(name) for name in self.names)
        having = self.lineage.having or "true"
        listed += [
            f"CAST({self._value(n) if item.function else f'd.{_group(n)}'} AS {type_}) AS {item_column(n)}"
            for n, (item, type_) in enumerate(zip(self.items, self.types, strict=True))
            if item_column(n) in having
        ]
        continued = (
            f"SELECT {', '.join(listed)}, {self._exists()} AS _cdcflow_exists, {self._unclear()} AS {UNCLEAR}"  # noqa: S608  quoted
            f" FROM {changes} d LEFT JOIN {present} p ON ({same})"
        )
        return (
            f"SELECT {known}, coalesce({UNCLEAR}, true) AS {UNCLEAR} FROM ({continued})"  # noqa: S608  quoted
            f" WHERE coalesce({UNCLEAR}, true) OR CASE WHEN _cdcflow_exists THEN {having} ELSE false END"
            f" UNION ALL SELECT {known}, false FROM {present} p ANTI JOIN {changes} d ON ({same})"
        )

    def without_sql(self, rows: str, unclear: str) -> str:
        """Return the query for the rows of `rows_sql` whose unit is not among the unclear ones."""
        same = " AND ".join(
            f"r.{quote(name)} IS NOT DISTINCT FROM u.{unit_column(number)}"
            for number, name in enumerate(self._unit_names())
        )
        known = ", ".join(f"r.{quote(name)}" for name in self.names)
        return f"SELECT {known} FROM {rows} r ANTI JOIN {unclear} u ON ({same})"  # noqa: S608  quoted

    # ── the values of a group; p: its present row, perhaps none; d: its changes ─────────────────────────────────────

    def _value(self, item: int) -> str:
        """Return SQL for the new value of an item, provided that it is known."""
        present, change = f"p.{quote(self.names[item])}", f"d.{_change(item)}"
        match self.items[item].function:
            case "count":
                return f"(coalesce({present}, 0) + {change})"
            case "sum":
                # No constant is added to a decimal, which would change its type.
                total = f"CASE WHEN {present} IS NULL THEN {change} ELSE {present} + {change} END"
                values = self._count_of_values(item)
                if values is not None:
                    return f"CASE WHEN {self._value(values)} > 0 THEN {total} END"
                return f"CASE WHEN {present} IS NOT NULL OR d.{_values(item)} > 0 THEN {total} END"
            case "avg":
                count = self._value(self.count_for_mean(item))
                total = f"({self._previous_sum(item)} + CAST({change} AS DOUBLE))"
                return f"CASE WHEN {count} > 0 THEN {total} / CAST({count} AS DOUBLE) END"
            case function:
                return f"{'least' if function == 'min' else 'greatest'}({present}, {change})"

    def _is_unclear(self, item: int) -> str:
        """Return the SQL condition that the new value of an item is unknown, in a group that has rows; "" if it is
        always known."""
        present = f"p.{quote(self.names[item])}"
        match self.items[item].function:
            case "count":
                return ""
            case "sum":
                if self._count_of_values(item) is not None:
                    return ""
                return f"(d.{_values(item)} < 0 AND coalesce({present} = -d.{_change(item)}, true))"
            case "avg":
                values, total = self._value(self.count_for_mean(item)), self._previous_sum(item)
                change = f"CAST(d.{_change(item)} AS DOUBLE)"
                is_known = f"{values} <= {MEAN_VALUES_MAX} AND greatest(abs({total}), abs({change})) < {MEAN_SUM_MAX}"
                has_values = f"({values} - d.{_values(item)} > 0) = ({present} IS NOT NULL)"
                return f"NOT ({is_known} AND {has_values})"
            case function:
                compared = "<=" if function == "min" else ">="
                removed = f"d.{_removed_value(item)}"
                return f"({removed} IS NOT NULL AND coalesce({removed} {compared} {self._value(item)}, true))"

    def _exists(self) -> str:
        """Return the SQL condition that a group has rows, provided that this is known."""
        if (rows := self._count_of_rows()) is not None:
            return f"({self._value(rows)} > 0)"
        return f"(p.{PLACE} IS NOT NULL OR d.{_ROWS} > 0)"

    def _unclear(self) -> str:
        if self.lineage.having:
            return f"(p.{PLACE} IS NULL OR {self._unclear_of_present()})"
        return self._unclear_of_present()

    def _unclear_of_present(self) -> str:
        unclear = [text for n, _ in self.aggregates if (text := self._is_unclear(n))]
        values = " OR ".join(unclear) or "false"
        if (rows := self._count_of_rows()) is not None:
            return f"({self._value(rows)} < 0 OR ({self._value(rows)} > 0 AND ({values})))"
        signs = [
            f"coalesce(p.{quote(self.names[n])} <> -d.{_change(n)}, false)"
            for n, item in self.aggregates
            if item.function in ("count", "sum")
        ]
        lost = f"(d.{_ROWS} < 0 AND NOT ({' OR '.join(signs) or 'false'}))"
        return f"({lost} OR ({self._exists()} AND ({values})))"

    def _count_of_rows(self) -> int | None:
        found = (n for n, item in self.aggregates if item.function == "count" and not item.sql and not item.condition)
        return next(found, None)

    def _count_of_values(self, item: int) -> int | None:
        """Return the number of the item that counts the values of a sum; `None` if the result has no such item."""
        own = self.items[item]
        return next((n for n, i in self.aggregates if i == ResultItem(own.sql, "count", own.condition)), None)

    def count_for_mean(self, item: int) -> int:
        """Return the number of the item that counts the values of a mean, or the rows that have them.

        Raises:
            NotCovered: the result has no such item.
        """
        own = self.items[item]
        found = self._count_of_values(item)
        if found is None and own.column is not None:
            of_rows = ResultItem("", "count", own.condition)
            found = next((n for n, i in self.aggregates if i == of_rows), None)
        if found is None:
            raise NotCovered(f"its column {self.names[item]} is an avg without a count of its values")
        return found

    def _previous_sum(self, item: int) -> str:
        """Return SQL for the sum of a mean before the changes."""
        count = f"({self._value(self.count_for_mean(item))} - d.{_values(item)})"
        return f"coalesce(round(p.{quote(self.names[item])} * CAST({count} AS DOUBLE)), 0)"

    def _item_named(self, name: str) -> int:
        return [known.lower() for known in self.names].index(name.lower())

    def _unit_names(self) -> list[str]:
        return [self.names[self._item_named(name)] for name in self.lineage.units]


def increments_of(lineage: Lineage, names: Sequence[str], types: Sequence[str]) -> Increments:
    """Return how a query's results are computed from the previous ones. `names`, `types`: the columns of its result,
    and their types in DuckDB.

    Raises:
        NotCovered: they cannot be computed in this way.
    """
    if isinstance(lineage.results, str):
        raise NotCovered(lineage.results)
    found = Increments(lineage, lineage.results, tuple(names), tuple(types))
    for n, item in found.aggregates:
        if item.function != "avg":
            continue
        found.count_for_mean(n)
        if types[n] != "DOUBLE":
            raise NotCovered(f"its column {names[n]} is an avg of values that are not whole numbers")
    return found


def _difference(aggregate: str, condition: str) -> str:
    """Return SQL for the amount by which weighted rows change an aggregate."""
    added, removed = (f"coalesce({aggregate} FILTER (WHERE {_WEIGHT} {sign} 0{condition}), 0)" for sign in "><")
    return f"({added} - {removed})"
