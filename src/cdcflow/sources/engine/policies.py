"""How columns' values were kept where a setting decides it, and which tables another setting has read anew. Pure.

A setting for values that a type cannot hold counts from the next row on. Rows that the log has already keep what the
setting before made of them, so a start compares what it was then with what it is now:

| before        | now           | rows in the log                                                         |
| ------------- | ------------- | ----------------------------------------------------------------------- |
| stop          | null, clamp … | are right: a value that this concerns would have stopped the capture      |
| null, clamp … | another one   | have what the old setting put there: the table is read anew               |
| one type      | another type  | have the old type: the table is read anew                                 |

The checkpoint's `source` keeps them under `policies`, and beside them the tables whose order to be read anew is not
durable yet (`model.rereading`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcflow.model import rereading
from cdcflow.model.table import Table, TableId

POLICIES = "policies"


@dataclass(frozen=True, slots=True)
class Kept:
    """How one column's values are kept: the type in the log where a setting chose it ("": the plain one), and what
    becomes of values that it cannot hold ("": they stop the capture). `by_name`: only because a setting names this
    very column; none concerns its type otherwise. Not stored."""

    type: str = ""
    special: str = ""
    by_name: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return " ".join(part for part in (self.type and f"as {self.type}", self.special) if part) or "stop"


PLAIN = Kept()

Policies = Mapping[TableId, Mapping[int, Kept]]
"""By table and by the column's number, for every column of a captured table whose values a setting concerns."""


def to_json(policies: Policies) -> str:
    entries = [
        [table.schema, table.name, {str(number): [kept.type, kept.special] for number, kept in columns.items()}]
        for table, columns in sorted(policies.items())
    ]
    return json.dumps(entries, separators=(",", ":"))


def from_json(text: str) -> Policies:
    return {
        TableId(schema, name): {int(number): Kept(*kept) for number, kept in columns.items()}
        for schema, name, columns in json.loads(text)
    }


def changed(before: Mapping[int, Kept], now: Mapping[int, Kept], table: Table) -> dict[int, tuple[Kept, Kept]]:
    """The columns whose values in the log are not what the settings make of them now, each with then and now."""
    found = {}
    for column in table.columns:
        kept = now.get(column.number, PLAIN)
        # A column that a setting concerns and that was in no list was added since: its rows came by this setting.
        then = before.get(column.number, PLAIN if kept.by_name else kept)
        if then.type != kept.type or then.special not in ("", kept.special):
            found[column.number] = then, kept
    return found


def reread(source: Mapping[str, str], tables: Mapping[Table, Mapping[int, Kept]]) -> dict[TableId, str]:
    """The captured tables that must be read anew, each with why. `source` is the checkpoint's from before; one of an
    earlier cdcflow does not say how values were kept, and nothing is compared."""
    if POLICIES not in source:
        return {}
    before = from_json(source[POLICIES])
    found = {}
    for table, now in tables.items():
        columns = changed(before[table.id], now, table) if table.id in before else {}
        if columns:
            names = {c.number: c.name for c in table.columns}
            found[table.id] = ", ".join(f"{names[n]}: {then} → {kept}" for n, (then, kept) in columns.items())
    return found


def otherwise(source: Mapping[str, str], tables: Mapping[Table, Mapping[int, Kept]]) -> dict[TableId, str]:
    """The captured tables of which some column's values are kept otherwise than before, each with how: a backfill that
    failed at a value of the column may get further now."""
    if POLICIES not in source:
        return {}
    before = from_json(source[POLICIES])
    found = {}
    for table, now in tables.items():
        if (then := before.get(table.id)) is None:
            continue
        both = {c.name: (then.get(c.number, PLAIN), now.get(c.number, PLAIN)) for c in table.columns}
        if changes := [f"{name}: {a} → {b}" for name, (a, b) in both.items() if a != b]:
            found[table.id] = ", ".join(changes)
    return found


def noted(source: Mapping[str, str], tables: Mapping[Table, Mapping[int, Kept]]) -> dict[str, str]:
    """What a checkpoint's `source` gets: how values are kept, and what is to be read anew because of it."""
    captured = {t.id for t in tables}
    wanted = (rereading.pending(source) | reread(source, tables).keys()) & captured
    retried = (rereading.retried(source) | otherwise(source, tables).keys()) & captured
    return {POLICIES: to_json({t.id: kept for t, kept in tables.items()}), **rereading.noted(wanted, retried)}
