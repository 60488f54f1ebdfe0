"""Tables of each shape that a reader may or may not open, in one warehouse: with rows that were only created, with
marked rows, with a renamed column, and each of these with `readable: wide`. Of the Iceberg tables one is partitioned.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.model.file_layout import PartitionField
from cdcflow.model.table import TableId
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import Warehouse, table_path

COLUMNS: Mapping[str, Any] = {
    "id": "int64",
    "amount": pa.decimal128(12, 2),
    "note": "string",
    "paid": "bool",
    "rate": "float64",
    "day": "date32",
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "raw": "binary",
    "small": "int16",
}
SHAPES = ("created", "changed", "renamed")
NAMES = (*SHAPES, *(f"wide_{shape}" for shape in SHAPES))
WIDE = Policies(each={f"shop.wide_{shape}": TablePolicy(readable="wide") for shape in SHAPES})
PARTITIONED = "changed"
PARTITIONS = tuple(map(PartitionField.parse, ("month(day)", "bucket(4, id)", "note")))
"""A changed row moves to another partition."""

Row = dict[str, Any]


def make_row(n: int, **more: Any) -> Row:
    second = dt.datetime(2026, 1, 1, 0, 0, n % 60, n)
    return {
        "id": n,
        "amount": Decimal(n) / 4,
        "note": f"né {n}",
        "paid": n % 2 == 0,
        "rate": n / 8,
        "day": dt.date(2026, 1, 1 + n % 28),
        "at": second.replace(tzinfo=dt.UTC),
        "local": second,
        "raw": bytes([n]),
        "small": None if n % 5 == 0 else n,
        **more,
    }


def write_shapes(log: HandLog, warehouse: Warehouse, format_name: str) -> None:
    """Merge three segments into six tables. The caller has small files marked, too, not rewritten."""

    policies = WIDE
    if format_name == "iceberg":
        partitioned = {f"shop.{PARTITIONED}": TablePolicy(partition_by=PARTITIONS)}
        policies = Policies(each={**WIDE.each, **partitioned})

    def merge() -> None:
        report = local.merge(log.root, warehouse, table_format=format_name, policies=policies)
        assert not [table for table in report.tables if table.left_out]

    tables = {name: make_table(name, schema="shop", **COLUMNS) for name in NAMES}
    for table in tables.values():
        log.state(table)
    log.segment([(table, "c", make_row(n)) for table in tables.values() for n in range(100)])
    merge()
    changed = [tables[name] for name in NAMES if not name.endswith("created")]
    changes = [[(table, "u", make_row(1, note="one")), (table, "d", {"id": 2})] for table in changed]
    log.segment([change for of_table in changes for change in of_table])
    merge()
    renamed = {("text" if name == "note" else name): type_ for name, type_ in COLUMNS.items()}
    row = make_row(3)
    row["text"] = row.pop("note")
    log.segment([(make_table(name, schema="shop", **renamed), "u", row) for name in NAMES if name.endswith("renamed")])
    merge()


def own_rows(warehouse: Warehouse, format_name: str, name: str) -> list[Row]:
    """The rows as cdcflow itself reads them."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(TableId("shop", name)))
        assert there.snapshot() is not None
        return by_key(there.rows().to_pylist())


def by_key(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of their key, columns in the order of their names."""
    return [dict(sorted(row.items())) for row in sorted(rows, key=lambda row: int(row["id"]))]
