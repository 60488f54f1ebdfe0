"""The promises of a contract about rows, as conditions in SQL that DuckDB evaluates over columns.

Every engine checks with these conditions: the local one in its own process, Spark in the Python processes of its
executors. So a condition has one meaning, whichever engine merges the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.table import OFFSET, OP, TableId
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.settings_sql import reason_of
from cdcflow.tables.merge.contract import (
    ColumnPromise,
    Contract,
    ContractBroken,
    ContractResult,
    rows_broken,
    wrong_condition,
)
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.sql.conditions import Condition, parse_condition
from cdcflow.tables.sql.quotes import quote, quote_text
from cdcflow.tables.sql.trees import Node, SqlRefused

NUMBER = "_cdcflow_row"
"""The column in which a broken row has its number among the checked rows."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """One promise as SQL that is true for a row that breaks it. `columns`: the columns that the SQL names."""

    promise: ColumnPromise
    name: str
    sql: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokenCounts:
    """For each rule, how many rows break it, and the lowest offset of such a row (`None` if no row does)."""

    rows: tuple[int, ...]
    first: tuple[int | None, ...]


class RuleFailed(Exception):
    """The error for a condition that cannot be evaluated. `rule`: its number; `why` has no value of a row."""

    def __init__(self, rule: int, why: str) -> None:
        super().__init__(why)
        self.rule = rule
        self.why = why


@dataclass(frozen=True, slots=True)
class ContractRules:
    """The promises of one table's contract about its rows, in a mode."""

    table: TableId
    rules: tuple[RowRule, ...]
    mode: ModeRules

    @classmethod
    def of(
        cls,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        parse: Callable[[str], Node],
        columns: Collection[str],
    ) -> ContractRules:
        """Return the rules of a contract. `parse`: as in `parse_condition`; `columns`: all columns of the table.

        Raises:
            ContractBroken: a condition cannot be used over these columns.
        """
        found = []
        for promise in contract:
            if promise.not_null:
                sql = f"{quote(promise.column)} IS NULL"
                found.append(_rule(promise, "not_null", sql, (promise.column,), mode))
            if promise.check is not None:
                condition = _condition(table, promise, mode, parse, columns)
                found.append(_rule(promise, "check", f"NOT {condition.sql}", condition.columns, mode))
        return cls(table, tuple(found), mode)

    @property
    def columns(self) -> list[str]:
        """The columns that a check reads, including those that cdcflow adds to the table."""
        of_kind = [OP] if self.mode.keeps_changes else []
        return list(dict.fromkeys([OFFSET, self.mode.names, *of_kind, *(c for r in self.rules for c in r.columns)]))

    def broken_rows(self, session: DuckSession, rows: pa.Table, first: int) -> pa.Table:
        """Return the rows that break a promise: `NUMBER` is the row's number in `rows`, `r<n>` whether it breaks rule
        n, and its offset is a further column. Rows from before offset `first` are not checked.

        Raises:
            RuleFailed: a condition cannot be evaluated for these rows.
        """
        given = rows.append_column(NUMBER, pa.array(np.arange(len(rows))))
        flags = ", ".join(f"coalesce({rule.sql}, false) AS r{n}" for n, rule in enumerate(self.rules))
        changed = f"{quote(OFFSET)} >= {int(first)}"
        if self.mode.keeps_changes:
            changed += f" AND {quote(OP)} NOT IN ('d', 't')"
        broken = " OR ".join(f"r{n}" for n in range(len(self.rules)))
        try:
            return session.over_own(
                given,
                lambda name: (
                    f"SELECT * FROM (SELECT {NUMBER}, {OFFSET}, {flags} FROM {name} WHERE {changed})"  # noqa: S608  quoted, or parsed
                    f" WHERE {broken} ORDER BY {NUMBER}"
                ),
            )
        except duckdb.Error as error:
            raise self._failure(session, given, changed, error) from None

    def _failure(self, session: DuckSession, given: pa.Table, changed: str, error: duckdb.Error) -> RuleFailed:
        """Return the error for a failed check, which names the first rule that fails when it is checked alone."""
        for number, rule in enumerate(self.rules):
            if (own := _error_of(session, given, rule, changed)) is not None:
                return RuleFailed(number, reason_of(own))
        return RuleFailed(0, reason_of(error))

    def count(self, found: pa.Table) -> BrokenCounts:
        """Count the rows that break each rule. `found`: the result of `broken_rows`."""
        flags = [found.column(f"r{n}") for n in range(len(self.rules))]
        first = [pc.min(found.column(OFFSET).filter(flag)).as_py() for flag in flags]
        return BrokenCounts(tuple(pc.sum(flag.cast(pa.int64())).as_py() or 0 for flag in flags), tuple(first))

    def reasons(self, found: pa.Table, numbers: Sequence[int]) -> pa.Array:
        """Return, for each broken row, a text that lists which of the rules with these numbers it breaks."""
        parts = [pc.if_else(found.column(f"r{n}"), self.rules[n].name, None) for n in numbers]
        return pc.binary_join_element_wise(*parts, ", ", null_handling="skip").combine_chunks()

    def judge(self, counts: BrokenCounts, result: ContractResult) -> list[int]:
        """Count warnings in `result`, and return the numbers of the rules whose broken rows go into quarantine; empty
        if there are none.

        Raises:
            ContractBroken: rows break a promise that stops the table.
        """
        found = [n for n, count in enumerate(counts.rows) if count]
        stops = [n for n in found if self.rules[n].promise.on_violation == "stop"]
        if stops:
            names = {self.rules[n].name: counts.rows[n] for n in stops}
            first = min(offset for n in stops if (offset := counts.first[n]) is not None)
            keeps_changes = self.mode.keeps_changes or self.mode.ends is not None
            raise rows_broken(self.table, names, self.rules[stops[0]].promise, first, keeps_changes=keeps_changes)
        for n in found:
            rule = self.rules[n]
            if rule.promise.on_violation == "warn":
                result.warned[rule.name] = result.warned.get(rule.name, 0) + counts.rows[n]
        return [n for n in found if self.rules[n].promise.on_violation == "quarantine"]

    def refusal(self, failed: RuleFailed) -> ContractBroken:
        return wrong_condition(self.table, self.rules[failed.rule].promise.column, f"it failed ({failed.why})")


def any_of(found: pa.Table, numbers: Sequence[int]) -> pa.ChunkedArray:
    """Return, for each broken row, whether it breaks one of the rules with these numbers."""
    flags = found.column(f"r{numbers[0]}")
    for n in numbers[1:]:
        flags = pc.or_(flags, found.column(f"r{n}"))
    return flags


def row_texts(rows: pa.Table, own: Collection[str]) -> pa.Array:
    """Return the values of each row as texts, by column, without the columns `own`."""
    names = [name for name in rows.column_names if name not in own]
    columns = [_as_text(rows.column(name)) for name in names]
    count, width = len(rows), len(names)
    # One row after the other: the columns are laid side by side, and read across.
    values = pa.concat_arrays(columns) if columns else pa.array([], pa.string())
    order = np.arange(width * count).reshape(width, count).T.reshape(-1)
    keys = pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(width), count)))
    ends = pa.array(np.arange(0, (count + 1) * width, max(width, 1), dtype=np.int32)[: count + 1])
    return pa.MapArray.from_arrays(ends, keys, values.take(pa.array(order)))


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if pa.types.is_binary(whole.type):
        return pa.array([None if v is None else f"0x{v.hex()}" for v in whole.to_pylist()], pa.string())
    if pa.types.is_nested(whole.type):
        return pa.array([None if v is None else str(v) for v in whole.to_pylist()], pa.string())
    return whole.cast(pa.string())


def _rule(promise: ColumnPromise, what: str, sql: str, columns: tuple[str, ...], mode: ModeRules) -> RowRule:
    """Return a rule that applies only to rows in which these columns have values: the value of a column that was not
    sent is unknown, not NULL."""
    listed = ", ".join(quote_text(column) for column in columns)
    sent = f"NOT list_has_any(coalesce({quote(mode.names)}, []), [{listed}]::VARCHAR[])"
    return RowRule(promise, f"{promise.column}: {what}", f"(({sql}) AND {sent})", columns)


def _condition(
    table: TableId, promise: ColumnPromise, mode: ModeRules, parse: Callable[[str], Node], columns: Collection[str]
) -> Condition:
    try:
        return parse_condition(parse, promise.check or "", [c for c in columns if c not in mode.own])
    except SqlRefused as error:
        raise wrong_condition(table, promise.column, str(error)) from None


def _error_of(session: DuckSession, given: pa.Table, rule: RowRule, changed: str) -> duckdb.Error | None:
    try:
        session.over_own(given, lambda name: f"SELECT {rule.sql} FROM {name} WHERE {changed}")  # noqa: S608  see above
    except duckdb.Error as error:
        return error
    return None
