"""The requirements of the local engine: which warehouses it reaches, and which packages it needs. Imports neither
DuckDB nor a format."""

from __future__ import annotations

import importlib
import importlib.util

from cdcflow.tables.paths import Warehouse

_NEEDS = {"delta": ("duckdb", "deltalake"), "iceberg": ("duckdb", "pyiceberg.catalog.sql")}
"""The Python packages that each format needs."""


def only_for_spark(warehouse: Warehouse) -> str | None:
    """Return why only Spark can work in a warehouse; `None` if the local engine can, too."""
    if not warehouse.is_local and warehouse.place is None:
        return "the warehouse is neither in a folder nor in an object store that is reached without Spark"
    if warehouse.metastore is not None:
        return "its tables have names in a Hive metastore"
    if warehouse.catalog is None:
        return None
    from cdcflow.tables.local.iceberg_settings import OnlyForSpark, catalog_settings

    try:
        package = catalog_settings(warehouse.catalog, warehouse.location_of(())).package
    except OnlyForSpark as reason:
        return str(reason)
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    return f"its catalog needs the package {package} (pip install 'cdcflow[catalogs]')"


def is_installed(table_format: str, warehouse: Warehouse | None = None) -> bool:
    """Return whether the packages for tables of this format are installed, and those that the warehouse needs."""
    needed = [*_NEEDS[table_format], *(["obstore"] if warehouse is not None and not warehouse.is_local else [])]
    try:
        for name in needed:
            importlib.import_module(name)
    except ImportError:
        return False
    return True
