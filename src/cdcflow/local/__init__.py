"""The merge without Spark and Java: small ranges into Iceberg tables, in this process (`engine`).

    merge(log_path, warehouse)      fold what is new in a change log into tables

    dialect     Spark's SQL as DuckDB's
    session     DuckDB over the log's Parquet files
    iceberg     tables through PyIceberg
    engine      what it takes on, and what it declines

Importing this package imports neither DuckDB nor PyIceberg; what needs them says so when it is called.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError

if TYPE_CHECKING:
    from cdcflow.changelog.layout import Layout
    from cdcflow.local.engine import LocalEngine
    from cdcflow.warehouse.job import MergeReport, OnEdit

__all__ = ["is_installed", "local_engine", "merge"]

FORMAT = "iceberg"
"""The format that it writes."""

CHANGES_MAX, BYTES_MAX = 500_000, 128 << 20
"""What `auto` gives it of a table at most: all of it is held in one process's memory."""


def is_installed() -> bool:
    """Whether what it needs is there."""
    try:
        import duckdb
        import pyiceberg.catalog.sql  # noqa: F401
    except ImportError:
        return False
    return bool(duckdb)


def local_engine(warehouse: Path, *, bounded: bool = False) -> LocalEngine:
    """The engine, in a warehouse. `bounded`: it declines what is large.

    Raises:
        ConfigurationError: DuckDB or PyIceberg is not installed.
    """
    if not is_installed():
        raise ConfigurationError(
            "merging without Spark needs DuckDB and PyIceberg, which are not installed",
            remedy="run `pip install 'cdcflow[local]'`",
        )
    from cdcflow.local.engine import LocalEngine

    return LocalEngine(warehouse, CHANGES_MAX, BYTES_MAX) if bounded else LocalEngine(warehouse)


def merge(
    log: Layout | Path | str,
    warehouse: Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
) -> MergeReport:
    """Bring every current-state table to the newest sealed cut of the log, then publish the cut; tables are Iceberg's.

    Everything else, and what is raised, as `cdcflow.warehouse.job.merge` says. What only Spark does right is left out
    of the cut, by name.
    """
    from cdcflow.warehouse import job
    from cdcflow.warehouse.formats import format_for
    from cdcflow.warehouse.paths import Warehouse

    root = Warehouse.of(warehouse).folder
    format_for(root, FORMAT)
    with closing(local_engine(root)) as engine:
        engines = job.Engines(engine, remedy=NEEDS_SPARK)
        return job.merge(engines, log, root, tables, on_edit=on_edit)


NEEDS_SPARK = (
    "set merge.engine to auto and run `pip install 'cdcflow[spark]'`: Spark merges this table, the others stay"
)
