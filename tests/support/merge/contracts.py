"""Contracts that rows of random histories break, and what a table then has."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from cdcflow.model.table import TableId
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.contract import ColumnPromise, OnViolation
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.paths import table_path

CHECKS = {
    "keyed": ("a", "a % 5 <> 3 OR note IS NULL OR length(note) = 5"),
    "bag": ("a", "a IS NULL OR a = 0 OR doc IS NULL"),
    "growing": ("doc", "doc NOT LIKE 'doc%7' AND (a IS NULL OR a <> 13)"),
}


def random_contracts(chance: random.Random, mode: Mode) -> Policies:
    """Contracts that some rows break; few stop a table, and one table never stops."""
    found = {}
    for name, (column, check) in CHECKS.items():
        other: OnViolation = chance.choice(["warn", "quarantine"])
        hard: OnViolation = chance.choice([other if name == "bag" else "stop", other])
        found[f"public.{name}"] = (
            ColumnPromise(column, check=check, on_violation="quarantine"),
            ColumnPromise("h", check=f"h <> {chance.randrange(100)}", on_violation=hard),
            ColumnPromise("doc", not_null=True, type="text", on_violation=other),
        )
    of_bag = TablePolicy(mode="append" if mode == "append" else "current")  # it has no key
    return Policies(TablePolicy(mode=mode), {"public.bag": of_bag}, contracts=found)


def rows_of(warehouse: Path, table_format: str, table: TableId) -> list[str]:
    """A table's rows, sorted, in its latest version."""
    with closing(LocalEngine(warehouse, table_format)) as engine, closing(engine.table(table_path(table))) as there:
        if there.snapshot() is None:
            return []
        rows = there.rows()
    named = rows.select(sorted(rows.column_names)).to_pylist(maps_as_pydicts="strict")
    # Lists are of names, in any order.
    return sorted(repr([sorted(v) if isinstance(v, list) else v for v in row.values()]) for row in named)
