"""Contracts of a table: what its columns promise to readers, and what happens if its next rows break a promise. Pure.

The log is the truth and has every row. A contract is checked where rows become visible: before the commit that would
show them, over the rows that the range changes. So a table never shows a row that breaks its contract. A table that is
stopped keeps its position, and the others continue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.tables.merge.refusals import CannotFollow

OnViolation = Literal["stop", "quarantine", "warn"]

REASON, ROW = "_reason", "_row"
"""Columns of a quarantine, in addition to the position of the row's latest change: the promises that the row breaks,
and its values by column. The values are texts, so that the table never has to follow a change of the source's
columns."""

_ALIASES = {
    "integer": "int",
    "long": "bigint",
    "text": "string",
    "varchar": "string",
    "bool": "boolean",
    "real": "float",
    "bytes": "binary",
    "timestamptz": "timestamp",
}


class ContractBroken(CannotFollow):
    """The error for a table whose next rows break its contract, if the settings stop the table in that case."""

    section = "contract"


@dataclass(frozen=True, slots=True)
class ColumnPromise:
    """A promise about one column. `check`: a condition in DuckDB's SQL; `setting`: the name under which the settings
    have the table."""

    column: str
    type: str | None = None
    not_null: bool = False
    check: str | None = None
    on_violation: OnViolation = "stop"
    setting: str = ""


Contract = tuple[ColumnPromise, ...]


@dataclass(slots=True)
class ContractResult:
    """What the check of a contract found in a merge of one table. `warned`: how many rows broke each promise that only
    warns; `quarantined`: how many rows are in quarantine since this merge."""

    warned: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0


def check_columns(table: TableId, contract: Contract, types: Mapping[str, str]) -> dict[str, str]:
    """Check that a table has the columns of its contract, with their types. Return the warnings by column. `types`: the
    type of each of the table's columns.

    Raises:
        ContractBroken: the table lacks one of these columns, or the column has a different type.
    """
    warnings = {}
    for promise in contract:
        found = types.get(promise.column)
        if found is None:
            raise ContractBroken(
                f"table {table} has a contract for column {promise.column}, and no such column",
                remedy=f"{did_you_mean(promise.column, types)}correct the contract, then run `cdcflow merge`",
            )
        if promise.type is None or _normal(promise.type) == _normal(found):
            continue
        if promise.on_violation == "warn":
            warnings[promise.column] = f"is {found} instead of {promise.type}"
            continue
        raise ContractBroken(
            f"table {table} breaks its contract: column {promise.column} is {found}, and {promise.type} is promised",
            remedy=f"change the column's type at the source, or {_by_contract(promise)}",
        )
    return warnings


def rows_broken(
    table: TableId, broken: Mapping[str, int], promise: ColumnPromise, first: int, *, keeps_changes: bool
) -> ContractBroken:
    """Return the error for a table whose next rows break its contract. `broken`: how many rows break each promise,
    `promise` first; `first`: the lowest offset of such a row. `keeps_changes`: the table has a row for each change, so
    a later change does not remove the row."""
    what = ", ".join(f"{count} rows break {promise}" for promise, count in broken.items())
    at_source = "" if keeps_changes else "correct the rows at the source and run `cdcflow merge` again; or "
    return ContractBroken(
        f"table {table} breaks its contract: {what}; the first one is at offset {first} of the log",
        remedy=f"{at_source}{_by_contract(promise)}",
    )


def wrong_condition(table: TableId | str, column: str, why: str) -> ContractBroken:
    return ContractBroken(
        f"table {table} has a contract whose condition for {column} cannot be used: {why}",
        remedy="correct contracts in the settings, then run `cdcflow merge`",
    )


def check_unavailable(table: TableId, why: str, *, where: str) -> ContractBroken:
    """Return the error for a table whose rows Spark cannot check. `where`: the processes that cannot; "" for cdcflow's
    own process."""
    return ContractBroken(
        f"table {table} has a contract, and its rows cannot be checked: in the Python{where}, {why}",
        remedy="run `pip install 'cdcflow[local]'` there, or remove the table's contract; then run `cdcflow merge`",
    )


def quarantine_name_taken(table: TableId, contract: Contract) -> ContractBroken:
    """Return the error for a table whose quarantine would have the name of a table with rows of the log."""
    return wrong_condition(table, contract[0].column, "a captured table has the name of its quarantine")


def quarantine_of(table: TableId) -> TableId:
    """Return the table for the rows that break a table's contract."""
    return TableId(table.schema, f"{table.name}__quarantine")


def _normal(type_: str) -> str:
    text = "".join(type_.lower().split())
    base, bracket, rest = text.partition("(")
    base = "decimal" if base == "numeric" else base
    return _ALIASES.get(re.sub(r"\(.*", "", text), base + bracket + rest)


def _by_contract(promise: ColumnPromise) -> str:
    return f"change contracts.'{promise.setting}'.{promise.column} in the settings and run `cdcflow merge`"
