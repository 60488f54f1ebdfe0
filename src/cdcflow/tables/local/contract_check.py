"""Checks the rows that a commit would write against their table's contract: one query over columns for each table.

    rows of a range ──▶ one query ──▶ rows that break a promise
                                          ├─ stop        ContractBroken: nothing is committed
                                          ├─ quarantine  into <name>__quarantine first, then not into the table
                                          └─ warn        counted

Rows are written into quarantine before the table's commit: a merge that dies in between finds their offsets there, and
writes none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.table import OFFSET, OP, TableId
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.settings_sql import reason_of
from cdcflow.tables.local.table_files import TableFiles
from cdcflow.tables.merge.contract import (
    ColumnPromise,
    Contract,
    ContractBroken,
    ContractResult,
    rows_broken,
    wrong_condition,
)
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.statement import TARGET_PROPERTY
from cdcflow.tables.sql.conditions import Condition, parse_condition
from cdcflow.tables.sql.quotes import quote, quote_text
from cdcflow.tables.sql.trees import SqlRefused

NUMBER = "_cdcflow_row"
REASON, ROW = "_reason", "_row"
_COLUMNS = pa.schema(
    [
        pa.field(OFFSET, pa.int64()),
        pa.field(REASON, pa.string()),
        pa.field(ROW, pa.map_(pa.string(), pa.string())),
    ]
)
"""A quarantine's columns: the position of the row's latest change, which promises it breaks, and its values as texts
by column. Texts, so that the table never has to follow a change of the source's columns."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One promise as SQL that is true for a row that breaks it."""

    promise: ColumnPromise
    name: str
    sql: str


class ContractCheck:
    """The check of one table in one merge. `quarantine` opens the table for rows that break a promise."""

    def __init__(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], TableFiles[Any]],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        self._table = table
        self._contract = contract
        self._mode = mode
        self._quarantine = quarantine
        self._result = result
        self._metadata = metadata

    def rows_to_write(self, rows: pa.Table, first: int, session: DuckSession, app: str) -> pa.Table:
        """Return the rows that the table may show. Rows from before offset `first` are not new.

        Raises:
            ContractBroken: rows break a promise that stops the table, or a condition cannot be used.
        """
        rules = self._rules(session, rows.column_names)
        if not rules or not len(rows):
            return rows
        given = rows.append_column(NUMBER, pa.array(np.arange(len(rows))))
        flags = ", ".join(f"coalesce({rule.sql}, false) AS r{n}" for n, rule in enumerate(rules))
        changed = f"{quote(OFFSET)} >= {int(first)}"
        if self._mode.keeps_changes:
            changed += f" AND {quote(OP)} NOT IN ('d', 't')"
        broken = " OR ".join(f"r{n}" for n in range(len(rules)))
        try:
            found = session.over_own(
                given,
                lambda name: (
                    f"SELECT * FROM (SELECT {NUMBER}, {OFFSET}, {flags} FROM {name} WHERE {changed})"  # noqa: S608  quoted, or parsed
                    f" WHERE {broken} ORDER BY {NUMBER}"
                ),
            )
        except duckdb.Error as error:
            raise self._refusal(session, given, changed, rules, error) from None
        if not len(found):
            return rows
        return self._taken_out(rows, found, rules, app)

    def _refusal(
        self, session: DuckSession, given: pa.Table, changed: str, rules: Sequence[_Rule], error: duckdb.Error
    ) -> ContractBroken:
        """The error of a check that failed, with the column whose promise fails alone."""
        column = rules[0].promise.column
        for rule in rules:
            if (own := _error_of(session, given, rule, changed)) is not None:
                column, error = rule.promise.column, own
                break
        return wrong_condition(self._table, column, f"it failed ({reason_of(error)})")

    def _taken_out(self, rows: pa.Table, found: pa.Table, rules: Sequence[_Rule], app: str) -> pa.Table:
        counts = [int(pc.sum(found.column(f"r{n}").cast(pa.int64())).as_py()) for n in range(len(rules))]
        stops = {r: c for r, c in zip(rules, counts, strict=True) if c and r.promise.on_violation == "stop"}
        if stops:
            broken = _any_of(found, [n for n, r in enumerate(rules) if r in stops])
            first = int(pc.min(found.filter(broken).column(OFFSET)).as_py())
            names = {rule.name: count for rule, count in stops.items()}
            promise = next(iter(stops)).promise
            keeps_changes = self._mode.keeps_changes or self._mode.ends is not None
            raise rows_broken(self._table, names, promise, first, keeps_changes=keeps_changes)
        for rule, count in zip(rules, counts, strict=True):
            if count and rule.promise.on_violation == "warn":
                self._result.warned[rule.name] = self._result.warned.get(rule.name, 0) + count
        held = [n for n, rule in enumerate(rules) if rule.promise.on_violation == "quarantine"]
        if not any(counts[n] for n in held):
            return rows
        chosen = found.filter(_any_of(found, held))
        numbers = chosen.column(NUMBER).to_numpy()
        self._write(rows.take(numbers), _reasons(chosen, held, rules), app)
        stays = np.ones(len(rows), bool)
        stays[numbers] = False
        return rows.filter(pa.array(stays))

    def _rules(self, session: DuckSession, columns: Sequence[str]) -> list[_Rule]:
        found = []
        for promise in self._contract:
            if promise.not_null:
                sql = f"{quote(promise.column)} IS NULL"
                found.append(_Rule(promise, f"{promise.column}: not_null", self._if_sent(sql, (promise.column,))))
            if promise.check is not None:
                condition = self._condition(session, promise, columns)
                sql = f"NOT {condition.sql}"
                found.append(_Rule(promise, f"{promise.column}: check", self._if_sent(sql, condition.columns)))
        return found

    def _condition(self, session: DuckSession, promise: ColumnPromise, columns: Sequence[str]) -> Condition:
        own = {*self._mode.own}
        try:
            return parse_condition(session.parse, promise.check or "", [c for c in columns if c not in own])
        except SqlRefused as error:
            raise wrong_condition(self._table, promise.column, str(error)) from None

    def _if_sent(self, sql: str, columns: Sequence[str]) -> str:
        """The condition where these columns have values: a column that was not sent is neither NULL nor a value."""
        listed = ", ".join(quote_text(column) for column in columns)
        lacking = quote(self._mode.names)
        return f"(({sql}) AND NOT list_has_any(coalesce({lacking}, []), [{listed}]::VARCHAR[]))"

    # ── quarantine ──────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, rows: pa.Table, reasons: pa.Array, app: str) -> None:
        offsets = rows.column(OFFSET)
        with closing_table(self._quarantine()) as there:
            known = there.snapshot()
            if known is None:
                there.create(_COLUMNS, {}, self._metadata)
                there.snapshot()
            elif TARGET_PROPERTY in known.properties:
                raise wrong_condition(
                    self._table,
                    self._contract[0].column,
                    "a captured table has the name of its quarantine",
                )
            else:
                earlier = [there.read(file, [OFFSET]).column(OFFSET) for file in there.files()]
                written = pa.chunked_array([c for part in earlier for c in part.chunks], pa.int64())
                new = pc.invert(pc.is_in(offsets, value_set=written.combine_chunks()))
                rows, reasons = rows.filter(new), reasons.filter(new.combine_chunks())
            if not len(rows):
                return
            table = pa.Table.from_arrays([rows.column(OFFSET), reasons, _texts(rows, self._mode.own)], schema=_COLUMNS)
            there.replace([], table, self._metadata, f"{app}/quarantine", int(pc.max(rows.column(OFFSET)).as_py()))
            self._result.quarantined += len(rows)


def closing_table(table: TableFiles[Any]) -> closing[Any]:  # Any: the table is a FileTable, which has `snapshot`
    return closing(table)


def _error_of(session: DuckSession, given: pa.Table, rule: _Rule, changed: str) -> duckdb.Error | None:
    try:
        session.over_own(given, lambda name: f"SELECT {rule.sql} FROM {name} WHERE {changed}")  # noqa: S608  see above
    except duckdb.Error as error:
        return error
    return None


def _any_of(found: pa.Table, numbers: Sequence[int]) -> pa.ChunkedArray:
    flags = found.column(f"r{numbers[0]}")
    for n in numbers[1:]:
        flags = pc.or_(flags, found.column(f"r{n}"))
    return flags


def _reasons(found: pa.Table, held: Sequence[int], rules: Sequence[_Rule]) -> pa.Array:
    """The promises that each row breaks, as a text."""
    parts = [pc.if_else(found.column(f"r{n}"), rules[n].name, None) for n in held]
    return pc.binary_join_element_wise(*parts, ", ", null_handling="skip").combine_chunks()


def _texts(rows: pa.Table, own: Collection[str]) -> pa.Array:
    """The values of each row as texts, by column, without the table's own columns."""
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
