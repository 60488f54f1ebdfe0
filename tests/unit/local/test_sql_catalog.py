"""Iceberg's catalog in a database: which of its rows are tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog

ORDERS, OTHERS = ("shop", "orders"), ("shop", "others")


def execute(warehouse: Path, sql: str) -> None:
    with closing(sqlite3.connect(warehouse / CATALOG)) as opened, opened:
        opened.execute(sql)


def test_a_view_is_no_table_and_catalogs_of_older_clients_are_read(tmp_path: Path) -> None:
    """Spark and other clients write such rows; the table that has the requested name is found, and no other one."""
    with closing(embedded_catalog(tmp_path)) as catalog:
        catalog.create_namespace("shop")
        made = {name: catalog.create_table(name, pa.schema([("id", pa.int64())])) for name in (ORDERS, OTHERS)}
        for kind in ("NULL", "'TABLE'"):
            execute(tmp_path, f"UPDATE iceberg_tables SET iceberg_type = {kind} WHERE table_name = 'orders'")
            assert catalog.load_table(ORDERS).metadata_location == made[ORDERS].metadata_location
        execute(tmp_path, "UPDATE iceberg_tables SET iceberg_type = 'VIEW' WHERE table_name = 'orders'")
        for name in (ORDERS, ("shop", "nothing"), ("orders", "shop")):
            with pytest.raises(NoSuchTableError):
                catalog.load_table(name)
        found = catalog.load_table(OTHERS)
        assert (found.name(), found.metadata) == (OTHERS, made[OTHERS].metadata)
    execute(tmp_path, "ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    with closing(embedded_catalog(tmp_path)) as older:
        assert older.load_table(ORDERS).metadata == made[ORDERS].metadata
