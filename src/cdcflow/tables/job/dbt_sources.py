"""Sources for dbt: the tables of a published cut, and queries that tell dbt how fresh each of them is.

A table of cdcflow is fresh when a recent cut shows it, also if none of its rows has changed for a week. So freshness is
the commit clock of the latest cut that has the table, and not a time in its rows; a table that is excluded from the
cuts becomes stale.
"""

from __future__ import annotations

from typing import Any

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import text_sql
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.paths import CUTS, Warehouse

PERIODS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def dbt_sources(cut: Cut, warehouse: Warehouse, *, warn_after_s: float, error_after_s: float) -> dict[str, Any]:
    """Return the content of a `sources.yml` for dbt with the adapter for DuckDB: a source for each schema."""
    schemas: dict[str, list[dict[str, Any]]] = {}
    for name, table in sorted(cut.tables.items()):
        schema, _, short = name.partition(".")
        schemas.setdefault(schema, []).append(_table(name, short, table, warehouse))
    freshness = {"warn_after": _period(warn_after_s), "error_after": _period(error_after_s)}
    about = f"Tables that cdcflow keeps in {warehouse}"
    return {
        "version": 2,
        "sources": [
            {"name": schema, "description": about, "config": {"freshness": freshness}, "tables": tables}
            for schema, tables in schemas.items()
        ],
    }


def _table(name: str, short: str, table: CutTable, warehouse: Warehouse) -> dict[str, Any]:
    cuts = f"delta_scan({text_sql(_location(warehouse, (CUTS,)))})"
    query = f"SELECT max(commit_clock) FROM {cuts} WHERE tables[{text_sql(name)}] IS NOT NULL"  # noqa: S608  quoted
    place = f"delta_scan({text_sql(_location(warehouse, tuple(table.path.split('/'))))})"
    return {
        "name": short,
        "description": f"{name} of the source, as of the latest merge",
        "config": {"meta": {"external_location": place}, "loaded_at_query": query},
    }


def _location(warehouse: Warehouse, path: tuple[str, ...]) -> str:
    """Return a table's location as DuckDB names it."""
    place = warehouse.location_of(path)
    return place.replace("s3a://", "s3://", 1) if place.startswith("s3a://") else place.removeprefix("file://")


def _period(seconds: float) -> dict[str, Any]:
    """Return a period as dbt writes it: a whole number of minutes, hours or days.

    Raises:
        ConfigurationError: the period is not a whole number of minutes.
    """
    for name, length in PERIODS:
        if seconds >= length and seconds % length == 0:
            return {"count": int(seconds // length), "period": name}
    raise ConfigurationError(
        f"dbt's freshness is in whole minutes, and {seconds:g} s is not", remedy="write a time such as 30m or 6h"
    )
