"""The policies by which columns' values are kept where a setting decides it, and which tables a changed setting has
cdcflow read again. Pure.

A setting for values that a type cannot hold applies from the next row. Rows already in the log were written by the
previous setting, so at a start the previous setting is compared with the current one:

| before        | now           | rows in the log                                                         |
| ------------- | ------------- | ----------------------------------------------------------------------- |
| stop          | null, clamp … | are right: an affected value would have stopped the capture             |
| null, clamp … | different     | have the values of the old setting: the table is read again             |
| one type      | another type  | have the old type: the table is read again                              |

The checkpoint stores these policies. The tables to read again are reported to the caller of `prepare`, which stores
them until its command to read them is durable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcflow.capture.ports.source import TablesToReread
from cdcflow.model.table import Table, TableId


@dataclass(frozen=True, slots=True)
class ColumnPolicy:
    """How one column's values are kept: the type in the log if a setting chose it ("": the default type), and the
    treatment of values that it cannot hold ("": they stop the capture). `by_name`: only a setting for this one column
    concerns it; no general setting concerns its type. Not stored."""

    type: str = ""
    special: str = ""
    by_name: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return " ".join(part for part in (self.type and f"as {self.type}", self.special) if part) or "stop"


PLAIN = ColumnPolicy()

Policies = Mapping[TableId, Mapping[int, ColumnPolicy]]
"""The policies by table and column number, of every column of a captured table that such a setting concerns."""


ByShape = Mapping[Table, Mapping[int, ColumnPolicy]]
"""The same policies, by the tables' shapes."""


def to_json(policies: Policies) -> str:
    entries = [
        [table.schema, table.name, {str(number): [kept.type, kept.special] for number, kept in columns.items()}]
        for table, columns in sorted(policies.items())
    ]
    return json.dumps(entries, separators=(",", ":"))


def from_json(text: str) -> Policies:
    return {
        TableId(schema, name): {int(number): ColumnPolicy(*kept) for number, kept in columns.items()}
        for schema, name, columns in json.loads(text)
    }


def changed_columns(
    before: Mapping[int, ColumnPolicy], now: Mapping[int, ColumnPolicy], table: Table
) -> dict[int, tuple[ColumnPolicy, ColumnPolicy]]:
    """Return the columns whose values in the log differ from what the current settings produce, each with its old and
    new policy."""
    found = {}
    for column in table.columns:
        kept = now.get(column.number, PLAIN)
        # A general setting concerns this column, but `before` lacks it: the column was added later, and its rows were
        # written under this setting.
        then = before.get(column.number, PLAIN if kept.by_name else kept)
        if then.type != kept.type or then.special not in ("", kept.special):
            found[column.number] = then, kept
    return found


def reread(before: Policies | None, tables: ByShape) -> dict[TableId, str]:
    """Return the captured tables that must be read again, each with the reason.

    `before`: the policies of the log's values; a checkpoint of an earlier cdcflow does not contain them (None), and
    then nothing is compared.
    """
    if before is None:
        return {}
    found = {}
    for table, now in tables.items():
        columns = changed_columns(before[table.id], now, table) if table.id in before else {}
        if columns:
            names = {c.number: c.name for c in table.columns}
            found[table.id] = ", ".join(f"{names[n]}: {then} → {kept}" for n, (then, kept) in columns.items())
    return found


def otherwise(before: Policies | None, tables: ByShape) -> dict[TableId, str]:
    """Return the captured tables with a column whose policy has changed, each with the difference.

    A backfill that failed at a value of the column may now succeed.
    """
    if before is None:
        return {}
    found = {}
    for table, now in tables.items():
        if (then := before.get(table.id)) is None:
            continue
        both = {c.name: (then.get(c.number, PLAIN), now.get(c.number, PLAIN)) for c in table.columns}
        if changes := [f"{name}: {a} → {b}" for name, (a, b) in both.items() if a != b]:
            found[table.id] = ", ".join(changes)
    return found


def tables_to_reread(before: Policies | None, tables: ByShape) -> TablesToReread:
    """Return the captured tables that a changed setting concerns. `before`: see `reread`."""
    return TablesToReread(frozenset(reread(before, tables)), frozenset(otherwise(before, tables)))


def by_table(tables: ByShape) -> Policies:
    """Return the policies in the form in which the checkpoint stores them."""
    return {t.id: kept for t, kept in tables.items()}
